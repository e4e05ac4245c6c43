"""The asyncio clients: the same names and arguments as the blocking ones, with await.

They turn the same engines, in the loop's own thread: no locks, no threads.

    async with zsq.aio.Producer(url) as producer:
        await producer.publish("clicks", b"hello")

A client belongs to the loop in which it is first used. `run(main())` runs a program on uvloop.
"""

from __future__ import annotations

import os
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from .address import parse
from .aio_asker import Admin, Reader
from .aio_consumer import Batch, Consumer, Message
from .block import Block
from .client import Fetched, Measured
from .codec import HeaderValue
from .credentials import KeyFile
from .drive import inherit
from .errors import E_BAD_ARGUMENT, E_CLOSING, Refused, UsageError
from .lane import QUEUE_BYTES_MAX, ProducerEngine, Text, as_attributes, as_body, as_delay_ms, pack_many, packed
from .producer import TIMEOUT_S, ReceiptView, check_times, make_engine, too_late
from .session import Parcel
from .turner import Turner

__all__ = ["Admin", "Batch", "Consumer", "Fetched", "Measured", "Message", "Producer", "Reader", "Receipt", "run"]

_T = TypeVar("_T")


def run(main: Coroutine[Any, Any, _T], *, debug: bool | None = None) -> _T:
    """Run a program on uvloop until it returns, like `asyncio.run`."""
    import uvloop

    result: _T = uvloop.run(main, debug=debug)
    return result


class Receipt(ReceiptView):
    """Of an asyncio producer; to be awaited, or looked at."""

    __slots__ = ()

    async def wait(self, timeout: float | None = None) -> int:
        """The first offset, once all of it is durable. `timeout` in seconds, default: the producer's. Raises what went wrong."""
        if not self.done:
            await self._owner._await(self._parcels, timeout)
        return self._outcome()


class Producer:
    """Publishes to any number of topics; see `zsq.Producer` for the arguments."""

    def __init__(
        self,
        url: str | None = None,
        *,
        linger_ms: float = 0.0,
        batch_bytes: int = 256 * 1024,
        batch_count: int = 1000,
        timeout: float = TIMEOUT_S,
        heartbeat_ms: int | None = None,
        when_full: str = "fail",
        key_file: KeyFile = None,
    ) -> None:
        check_times(timeout, heartbeat_ms)
        self._options = (parse(url, key_file), linger_ms, batch_bytes, batch_count, heartbeat_ms, when_full)
        self._timeout = timeout
        self._lingers = linger_ms > 0
        self._closed = False
        make_engine(*self._options)  # a wrong argument is told here
        self._made: Turner[ProducerEngine] | None = None

    def _turner(self) -> Turner[ProducerEngine]:
        if self._closed:
            raise Refused(E_CLOSING, "this producer is closed; make a new one")
        made = self._made
        if made is None or made.pid != os.getpid():
            if made is not None:
                inherit(made)
            made = self._made = Turner(make_engine(*self._options))
        return made

    async def publish(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        *,
        key: Text = None,
        tag: Text = None,
        headers: Mapping[str, HeaderValue] | None = None,
        delay: float | None = None,
    ) -> Receipt:
        """Publish one message; durable when it returns, unless it lingers. `delay`: seconds, see `zsq.Producer.publish`."""
        delay_ms = as_delay_ms(delay)
        payload = as_body(body)
        attributes = None if key is None and tag is None and headers is None else as_attributes(key, tag, headers)
        if not self._lingers or delay_ms:
            columns = [None if value is None else [value] for value in attributes or (None, None, None)]
            time_ns = time.time_ns() if delay_ms else None
            block = packed([payload], time_ns, *columns)
            receipt = await self._push(topic, (block,), delay_ms)
            if not self._lingers:
                await receipt.wait()
            return receipt
        turner = self._turner()
        parcel, index = turner.engine.linger(topic, payload, attributes)
        turner.settle()
        await self._make_room(turner, topic)
        return Receipt(self, (parcel,), index, 1)

    async def publish_many(
        self,
        topic: str,
        bodies: Sequence[bytes],
        *,
        keys: Sequence[Text] | None = None,
        tags: Sequence[Text] | None = None,
        headers: Sequence[Mapping[str, HeaderValue] | None] | None = None,
        delay: float | None = None,
        wait: bool = True,
    ) -> Receipt:
        """Publish messages in order, cut into blocks; with `wait=False` it returns when they are handed over."""
        delay_ms = as_delay_ms(delay)
        receipt = await self._push(topic, pack_many(bodies, keys, tags, headers, time.time_ns() if delay_ms else None), delay_ms)
        if wait:
            await receipt.wait()
        return receipt

    async def _push(self, topic: str, blocks: Iterable[Block], delay_ms: int) -> Receipt:
        turner = self._turner()
        lane = turner.engine.lane(topic)
        lane.seal(time.monotonic_ns())  # what was published before goes before
        parcels = []
        for block in blocks:
            await self._make_room(turner, topic)
            parcels.append(Parcel(block, delay_ms))
            lane.push(parcels[-1], time.monotonic_ns())
        turner.settle()
        return Receipt(self, tuple(parcels), 0, sum(parcel.count for parcel in parcels))

    async def _make_room(self, turner: Turner[ProducerEngine], topic: str) -> None:
        session = turner.engine.lanes[topic].session
        if session.queue_bytes > QUEUE_BYTES_MAX:
            deadline_ns = time.monotonic_ns() + int(self._timeout * 1e9)
            if not await turner.wait(lambda: session.queue_bytes <= QUEUE_BYTES_MAX, deadline_ns):
                raise too_late(turner.engine, self._timeout, False)

    async def _await(self, parcels: tuple[Parcel, ...], timeout: float | None) -> None:
        turner = self._made
        timeout = self._timeout if timeout is None else timeout
        if turner is None or turner.pid != os.getpid():
            raise UsageError(E_BAD_ARGUMENT, "this receipt belongs to the process that published; wait for it there")
        engine = turner.engine
        if any(parcel.block is None and not parcel.done for parcel in parcels):
            engine.seal_all(time.monotonic_ns())  # somebody waits: no more lingering
        alone = parcels[0] if len(parcels) == 1 else None
        done = (lambda: alone.done) if alone is not None else (lambda: all(parcel.done for parcel in parcels))
        if await turner.wait(done, time.monotonic_ns() + int(timeout * 1e9)):
            return
        raise engine.give_up(parcels, lambda sent: too_late(engine, timeout, sent))

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was published is durable; raises the first error that nobody was told of."""
        turner = self._made
        if turner is None or turner.pid != os.getpid():
            return
        timeout = self._timeout if timeout is None else timeout
        engine = turner.engine
        engine.seal_all(time.monotonic_ns())
        if not await turner.wait(lambda: not engine.unanswered, time.monotonic_ns() + int(timeout * 1e9)):
            raise too_late(engine, timeout, True)
        engine.raise_failed()

    async def close(self, timeout: float | None = None) -> None:
        """Flush, then end. What `flush` raises is raised after the end."""
        if self._closed:
            return
        self._closed = True
        turner = self._made
        if turner is None:
            return
        if turner.pid != os.getpid():
            inherit(turner)
            return
        try:
            await self.flush(timeout)
        finally:
            turner.stop(linger_ms=1000)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()
