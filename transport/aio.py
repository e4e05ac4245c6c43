"""The asyncio clients: the same names and arguments as the blocking ones, with await.

They turn the same engines, in the loop's own thread: no locks, no threads.

    async with zsq.aio.Producer(url) as producer:
        await producer.publish("clicks", b"hello")

A client belongs to the loop in which it is first used. `run(main())` runs a program on uvloop.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from .address import Target, parse
from .aio_consumer import Batch, Consumer, Message
from .block import Block, pack
from .client import (
    BYTES_ANY,
    END,
    Fetched,
    Measured,
    RetentionSettings,
    configure_topic,
    create_topic,
    fetch,
    fetched,
    manage,
    measure,
    measured,
    newest,
    offset_at,
    seek,
    stats,
)
from .codec import HeaderValue
from .drive import inherit
from .errors import E_BAD_ARGUMENT, E_CLOSING, CorruptBlock, Refused, UsageError
from .lane import QUEUE_BYTES_MAX, ProducerEngine, Text, as_attributes, as_body, as_delay_ms, pack_many
from .names import check_name
from .producer import TIMEOUT_S, ReceiptView, check_times, make_engine, too_late
from .protocol import Wire
from .requester import RequestEngine
from .session import Parcel
from .stored import StoredMessage, stored
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
    ) -> None:
        check_times(timeout, heartbeat_ms)
        self._options = (url, linger_ms, batch_bytes, batch_count, heartbeat_ms)
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
            keys, tags, packed = (None if value is None else [value] for value in attributes or (None, None, None))
            times = [time.time_ns()] if delay_ms else None
            receipt = await self._push(topic, (pack([payload], keys=keys, tags=tags, headers=packed, times=times),), delay_ms)
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
        if await turner.wait(lambda: all(parcel.done for parcel in parcels), time.monotonic_ns() + int(timeout * 1e9)):
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


class _Asker:
    """Asks one target; any number of tasks may ask at once."""

    def __init__(self, url: str | None, target: Target, timeout: float, *, patient: bool = False) -> None:
        check_times(timeout, None)
        self._address = parse(url)
        self._target = target
        self._timeout = timeout
        self._patient = patient
        self._closed = False
        self._made: Turner[RequestEngine] | None = None

    async def _ask(self, make: Callable[[int], Wire], *, repeatable: bool) -> tuple[Any, list[Block]]:
        if self._closed:
            raise Refused(E_CLOSING, "this client is closed; make a new one")
        turner = self._made
        if turner is None or turner.pid != os.getpid():
            if turner is not None:
                inherit(turner)
            turner = self._made = Turner(RequestEngine(self._address, self._target, patient=self._patient))
        engine = turner.engine
        number = engine.number()
        request = engine.ask(number, make(number), repeatable=repeatable)
        if not await turner.wait(lambda: request.done, time.monotonic_ns() + int(self._timeout * 1e9)):
            engine.give_up(request)
            raise engine.too_late(self._timeout)
        if request.error is not None:
            raise request.error
        return request.answer, request.blocks

    async def close(self) -> None:
        self._closed = True
        turner, self._made = self._made, None
        if turner is not None and turner.pid != os.getpid():
            inherit(turner)
        elif turner is not None:
            turner.stop(linger_ms=200)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()


class Admin(_Asker):
    """Topics and channels by command; see `zsq.Admin`."""

    def __init__(self, url: str | None = None, *, timeout: float = TIMEOUT_S) -> None:
        super().__init__(url, Target("supervisor"), timeout)

    async def _do(self, make: Callable[[int], Wire], *, repeatable: bool = False) -> dict[str, Any]:
        answer, _ = await self._ask(make, repeatable=repeatable)
        data: dict[str, Any] = answer.data
        return data

    async def create_topic(self, name: str, sync: str = "always", **retention: Unpack[RetentionSettings]) -> dict[str, Any]:
        return await self._do(create_topic(name, sync, retention))

    async def configure_topic(self, name: str, **retention: Unpack[RetentionSettings]) -> dict[str, Any]:
        return await self._do(configure_topic(name, retention), repeatable=True)

    async def create_channel(self, topic: str, channel: str) -> dict[str, Any]:
        return await self._do(manage("create", topic, channel, {}))

    async def delete_topic(self, name: str, force: bool = False) -> dict[str, Any]:
        return await self._do(manage("delete", name, None, {"force": force}))

    async def delete_channel(self, topic: str, channel: str, force: bool = False) -> dict[str, Any]:
        return await self._do(manage("delete", topic, channel, {"force": force}))

    async def pause(self, topic: str, channel: str | None = None) -> dict[str, Any]:
        return await self._do(manage("pause", topic, channel, {}))

    async def unpause(self, topic: str, channel: str | None = None) -> dict[str, Any]:
        return await self._do(manage("unpause", topic, channel, {}))

    async def empty(self, topic: str, channel: str | None = None) -> dict[str, Any]:
        return await self._do(manage("empty", topic, channel, {}))

    async def seek(self, topic: str, channel: str, offset: int, forward: bool = False) -> dict[str, Any]:
        return await self._do(seek(topic, channel, offset, forward))

    async def delayed_list(self, topic: str, after: str = "", limit: int = 1_000) -> list[dict[str, Any]]:
        answer = await self._do(manage("delayed", topic, None, {"do": "list", "after": after, "limit": limit}), repeatable=True)
        return list(answer["messages"])

    async def delayed_count(self, topic: str) -> dict[str, int]:
        return await self._do(manage("delayed", topic, None, {"do": "count"}), repeatable=True)

    async def delayed_cancel(self, topic: str, keys: Sequence[str]) -> list[bool]:
        answer = await self._do(manage("delayed", topic, None, {"do": "cancel", "keys": tuple(keys)}))
        return list(answer["cancelled"])

    async def delayed_cancel_all(self, topic: str) -> int:
        total, more = 0, True
        while more:
            answer = await self._do(manage("delayed", topic, None, {"do": "cancel", "all": True}))
            total, more = total + int(answer["cancelled"]), bool(answer["more"] and answer["cancelled"])
        return total

    async def stats(self, topic: str | None = None, channel: str | None = None) -> dict[str, Any]:
        return await self._do(stats(topic, channel), repeatable=True)

    async def chunks(self, topic: str) -> dict[str, Any]:
        return await self._do(manage("chunks", topic, None, {}), repeatable=True)

    async def ping(self) -> str:
        return str((await self.stats()).get("health", "OK"))


class Reader(_Asker):
    """Reads a topic by offset; see `zsq.Reader`."""

    def __init__(self, url: str | None, topic: str, *, timeout: float = TIMEOUT_S, patient: bool = False) -> None:
        super().__init__(url, Target("reader", check_name(topic), create=False), timeout, patient=patient)
        self.topic = topic

    async def read(self, offset: int, bytes_max: int = 1 << 20) -> Fetched:
        for attempt in (1, 2):
            try:
                return fetched(*await self._ask(fetch(offset, bytes_max), repeatable=True))
            except CorruptBlock:
                if attempt == 2:
                    raise
        raise AssertionError("unreachable")

    async def head(self) -> tuple[int, int]:
        answer, _ = await self._ask(fetch(END, 1), repeatable=True)
        return answer.start, answer.head

    async def offset_at(self, time_ns: int) -> int:
        answer, _ = await self._ask(offset_at(time_ns), repeatable=True)
        return int(answer.data["offset"])

    async def newest(self, count: int) -> int:
        answer, _ = await self._ask(newest(count), repeatable=True)
        return int(answer.data["offset"])

    async def message(self, offset: int) -> StoredMessage:
        return stored(self.topic, offset, await self.read(offset, 1))

    async def measure(self, start: int, end: int = -1, bytes_max: int = BYTES_ANY) -> Measured:
        answer, _ = await self._ask(measure(start, end, bytes_max), repeatable=True)
        return measured(answer)

    async def uuid(self) -> str:
        await self.head()
        assert self._made is not None
        return str(self._made.engine.link.opened.get("uuid", ""))
