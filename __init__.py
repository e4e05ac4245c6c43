"""ZSQ: a durable message queue for Python and Spark teams that needs no cluster.

The public names are loaded when they are first used. So `zsq --help` and the supervisor do not load
a client library, and the import creates no ZeroMQ context.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from . import aio
    from .storage.errors import StorageError
    from .storage.nsq.disk_queue import DiskQueue
    from .transport.client.blocking.client import (
        Admin,
        Batch,
        Consumer,
        Message,
        Producer,
        Reader,
        Receipt,
    )
    from .transport.client.blocking.range_reader import RangeReader
    from .transport.client.blocking.stage_writer import StageCommitter, StageWriter
    from .transport.client.core.consumer_backoff import Backoff
    from .transport.client.core.deferral import RetryAfter
    from .transport.client.core.message_batch import MessageBatch, MessageFailed
    from .transport.errors import (
        BrokerUnreachable,
        CorruptBlock,
        DataLoss,
        LeaseLost,
        NotFound,
        Refused,
        UsageError,
        ZsqError,
    )
    from .transport.retries import Retries

__version__ = "1.0.0"

__all__ = [
    "Admin",
    "Backoff",
    "Batch",
    "BrokerUnreachable",
    "Consumer",
    "CorruptBlock",
    "DataLoss",
    "LeaseLost",
    "Message",
    "MessageBatch",
    "MessageFailed",
    "NotFound",
    "Producer",
    "RangeReader",
    "Reader",
    "Receipt",
    "Refused",
    "Retries",
    "RetryAfter",
    "StageCommitter",
    "StageWriter",
    "UsageError",
    "ZsqError",
    "__version__",
    "aio",
]

if sys.platform == "linux":  # so that `from zsq import *` works on other systems
    __all__ += ["DiskQueue", "StorageError"]

_CLIENT: Final = dict.fromkeys(
    ("Admin", "Batch", "Consumer", "Message", "Producer", "Reader", "Receipt"),
    ".transport.client.blocking.client",
)
# All other public names are exceptions of transport/errors.py.
_HOMES: Final = _CLIENT | {
    "Backoff": ".transport.client.core.consumer_backoff",
    "Retries": ".transport.retries",
    "RetryAfter": ".transport.client.core.deferral",
    "MessageBatch": ".transport.client.core.message_batch",
    "MessageFailed": ".transport.client.core.message_batch",
    "DiskQueue": ".storage.nsq.disk_queue",
    "RangeReader": ".transport.client.blocking.range_reader",
    "StorageError": ".storage.errors",
    "StageCommitter": ".transport.client.blocking.stage_writer",
    "StageWriter": ".transport.client.blocking.stage_writer",
}


def __getattr__(name: str) -> Any:
    if name == "aio":
        return import_module(".aio", __name__)
    if name == "DiskQueue":
        # Its files need system calls of Linux. The import would fail with a less clear error.
        import_module(".transport.system", __name__).check_runs_brokers("zsq.DiskQueue")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_HOMES.get(name, ".transport.errors"), __name__)
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
