"""The asyncio clients under their public name, `zsq.aio`; they live in transport/aio.py."""

from ..transport.aio import Admin, Batch, Consumer, Fetched, Measured, Message, Producer, Reader, Receipt, run

__all__ = ["Admin", "Batch", "Consumer", "Fetched", "Measured", "Message", "Producer", "Reader", "Receipt", "run"]
