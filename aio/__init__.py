"""The asyncio clients under their public name, `zsq.aio` (see transport/client/asyncio/aio.py)."""

from ..transport.client.asyncio.aio import (
    Admin,
    Archive,
    Batch,
    Consumer,
    Fetched,
    Measured,
    Message,
    Producer,
    Reader,
    Receipt,
    run,
)

__all__ = [
    "Admin",
    "Archive",
    "Batch",
    "Consumer",
    "Fetched",
    "Measured",
    "Message",
    "Producer",
    "Reader",
    "Receipt",
    "run",
]
