"""ZSQ: a durable message queue for Python and Spark teams, without a cluster to run first.

The public names are loaded when first used: the command line answers `zsq --help` and the supervisor forks its
children without a client library, and nothing makes a ZeroMQ context at import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from . import aio
    from .transport.client import Admin, Batch, Consumer, Message, Producer, Reader, Receipt
    from .transport.errors import (
        BrokerUnreachable,
        CorruptBlock,
        LeaseLost,
        NotFound,
        Refused,
        UsageError,
        ZsqError,
    )

__version__ = "0.1.0"

__all__ = [
    "Admin",
    "Batch",
    "BrokerUnreachable",
    "Consumer",
    "CorruptBlock",
    "LeaseLost",
    "Message",
    "NotFound",
    "Producer",
    "Reader",
    "Receipt",
    "Refused",
    "UsageError",
    "ZsqError",
    "__version__",
    "aio",
]

_CLIENT: Final = frozenset({"Admin", "Batch", "Consumer", "Message", "Producer", "Reader", "Receipt"})


def __getattr__(name: str) -> Any:
    if name == "aio":
        return import_module(".aio", __name__)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(".transport.client" if name in _CLIENT else ".transport.errors", __name__)
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
