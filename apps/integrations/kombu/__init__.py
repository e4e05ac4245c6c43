"""Transport of Kombu, so that Celery runs on ZSQ: `broker_url = "zsq://host:4153"`."""

from .transport import Transport

__all__ = ["Transport"]
