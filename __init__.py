"""ZSQ: a durable message queue for Python and Spark teams, without a cluster to run first."""

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
]
