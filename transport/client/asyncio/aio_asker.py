"""The asyncio clients that ask: Admin and Reader.

Turning an engine from an event loop: one reader for all its sockets, one timer for all that is due.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from ...block.block import Block
from ...errors import E_CLOSING, CorruptBlock, Refused
from ...names import check_name
from ...settings import ChannelOptions, NewChannelOptions, RetentionSettings
from ...wire.address import DefaultTimeout, Target, parse, url_last
from ...wire.credentials import KeyFile
from ...wire.protocol import Wire
from ..blocking.client import (
    BYTES_ANY,
    Fetched,
    Measured,
    Side,
    audit,
    configure_channel,
    configure_topic,
    create_topic,
    fetch,
    fetched,
    list_topics,
    manage,
    measure,
    measured,
    newest,
    offset_at,
    overview,
    redrive_to,
    seek,
    stats,
)
from ..blocking.drive import inherit
from ..blocking.producer import TIMEOUT_S, check_times
from ..core.link import FAR_NS, Engine, Steps, Waiter, until_ns
from ..core.message import StoredMessage, stored
from ..core.peeking import PEEK_COUNT, Look, Peek, check_count, look_at_channel, look_at_newest
from ..core.peeking import ask as ask_peek
from ..core.requester import RequestEngine
from ..core.subscription import END, Place, on_wire

_EngineT = TypeVar("_EngineT", bound=Engine)
_T = TypeVar("_T")


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Turner(Generic[_EngineT]):
    """An engine in the running loop; made and used in its thread only. The counterpart of `Drive`."""

    def __init__(self, engine: _EngineT, *, tells: bool = False, hasty: bool = False) -> None:
        """`tells`, `hasty`: see `Engine`."""
        engine.tells = tells
        engine.hasty = hasty
        self.pid = os.getpid()
        self.engine = engine
        self.loop = asyncio.get_running_loop()
        self.stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = FAR_NS
        # An epoll set can be waited for like any descriptor, and stays readable as long as one of its own is.
        self.loop.add_reader(engine.epoll.fileno(), self._on_ready)

    def _on_ready(self) -> None:
        if not self.stopped:
            self.engine.turn(self.engine.epoll.poll(0))
            self.settle()

    def _on_due(self) -> None:
        self._timer = None
        self._timer_ns = FAR_NS
        if not self.stopped:
            self.engine.turn([])
            self.settle()

    def settle(self) -> None:
        """After something was sent or taken: wake who waited for it, and see that what is due is done in time."""
        self.engine.settle()
        self._arm()

    def _arm(self) -> None:
        due_ns = self.engine.due_ns
        if due_ns >= self._timer_ns or self.stopped:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = due_ns
        self._timer = self.loop.call_later(max(0.0, (due_ns - time.monotonic_ns()) / 1e9), self._on_due)

    async def wait(self, done: Callable[[], bool], deadline_ns: int) -> bool:
        """Until `done()`, or False at the deadline."""
        self.settle()
        turned = False  # a deadline in the past still gets one look
        while not done():
            late = time.monotonic_ns() >= deadline_ns
            if self.stopped or (late and turned):
                return done()
            if late:
                turned = True
                self._on_ready()
                continue
            future: asyncio.Future[None] = self.loop.create_future()
            waiter = Waiter(done, partial(_wake, future), deadline_ns)
            self.engine.waiters.append(waiter)
            # No timer of its own for each who waits: it is hardly ever needed, and costs as much as the waiting.
            self.engine.sooner(deadline_ns)
            self._arm()
            try:
                await future
            finally:
                with contextlib.suppress(ValueError):
                    self.engine.waiters.remove(waiter)
        return True

    async def carry_out(self, steps: Steps[_T]) -> _T:
        """Do what these steps say."""
        with contextlib.closing(steps):
            try:
                step = next(steps)
                while True:
                    step = steps.send(await self.wait(*step))
            except StopIteration as end:
                result: _T = end.value
                return result
            finally:
                if not self.stopped:
                    self.settle()

    def stop(self, linger_ms: int = 0) -> None:
        if self.stopped:
            return
        self.stopped = True
        if not self.loop.is_closed():
            self.loop.remove_reader(self.engine.epoll.fileno())
        if self._timer is not None:
            self._timer.cancel()
        self.engine.stop(linger_ms)
        self.engine.epoll.close()
        for waiter in list(self.engine.waiters):
            waiter.wake()


class _Asker:
    """Asks one target; any number of tasks may ask at once."""

    def __init__(self, url: str | None, target: Target, timeout: float | None, *, patient: bool = False, key_file: KeyFile = None) -> None:
        check_times(timeout, None)
        self._address = parse(url, key_file)
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
            engine = RequestEngine(self._address, self._target, patient=self._patient)
            turner = self._made = Turner(engine, tells=True, hasty=isinstance(self._timeout, DefaultTimeout))
        engine = turner.engine
        number = engine.number()
        request = engine.ask(number, make(number), repeatable=repeatable)
        if not await turner.wait(lambda: request.done, until_ns(self._timeout)):
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

    def __init__(self, url: str | None = None, *, timeout: float | None = TIMEOUT_S, key_file: KeyFile = None) -> None:
        super().__init__(url, Target("supervisor"), timeout, key_file=key_file)

    async def _do(self, make: Callable[[int], Wire], *, repeatable: bool = False) -> dict[str, Any]:
        answer, _ = await self._ask(make, repeatable=repeatable)
        data: dict[str, Any] = answer.data
        return data

    async def create_topic(self, name: str, sync: str = "always", **retention: Unpack[RetentionSettings]) -> dict[str, Any]:
        return await self._do(create_topic(name, sync, retention))

    async def configure_topic(self, name: str, **retention: Unpack[RetentionSettings]) -> dict[str, Any]:
        return await self._do(configure_topic(name, retention), repeatable=True)

    async def create_channel(self, topic: str, channel: str, **settings: Unpack[NewChannelOptions]) -> dict[str, Any]:
        return await self._do(manage("create", topic, channel, on_wire(settings)))

    async def configure_channel(self, topic: str, channel: str, **settings: Unpack[ChannelOptions]) -> dict[str, Any]:
        return await self._do(configure_channel(topic, channel, settings), repeatable=True)

    async def delete_topic(self, name: str, force: bool = False) -> dict[str, Any]:
        return await self._do(manage("delete", name, None, {"force": force}))

    async def close_topic(self, name: str, to: Side = "publishers") -> dict[str, Any]:
        return await self._do(manage("close", name, None, {"to": to}), repeatable=True)

    async def open_topic(self, name: str, to: Side = "publishers") -> dict[str, Any]:
        return await self._do(manage("open", name, None, {"to": to}), repeatable=True)

    async def delete_channel(self, topic: str, channel: str, force: bool = False) -> dict[str, Any]:
        return await self._do(manage("delete", topic, channel, {"force": force}))

    async def pause(self, topic: str, channel: str | None = None) -> dict[str, Any]:
        return await self._do(manage("pause", topic, channel, {}))

    async def unpause(self, topic: str, channel: str | None = None) -> dict[str, Any]:
        return await self._do(manage("unpause", topic, channel, {}))

    async def empty(self, topic: str, channel: str | None = None) -> dict[str, Any]:
        return await self._do(manage("empty", topic, channel, {}))

    async def seek(self, topic: str, channel: str, where: Place, forward: bool = False, clamp: bool = False) -> dict[str, Any]:
        return await self._do(seek(topic, channel, where, forward, clamp), repeatable=True)

    async def redrive_to(
        self, dead_topic: str, to: str, channel: str | None, origin: tuple[str, str, str], chosen: bool = False
    ) -> dict[str, Any]:
        return await self._do(redrive_to(dead_topic, to, channel, origin, chosen), repeatable=True)

    async def peek(self, topic: str, channel: str | None = None, count: int = PEEK_COUNT) -> Peek:
        look: Look
        async with Reader(topic, url=self._address.url, timeout=self._timeout, key_file=self._address.credentials) as reader:
            if channel is None:
                look = look_at_newest(topic, await reader.newest(check_count(count)), (await reader.head())[1], count)
            else:
                look = look_at_channel(topic, channel, await self._do(ask_peek(topic, channel, count), repeatable=True), count)
            try:
                step = next(look)
                while True:
                    step = look.send(await reader.read(*step))
            except StopIteration as end:
                found: Peek = end.value
                return found

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

    async def topics(self) -> dict[str, list[str]]:
        found = (await self._do(list_topics(), repeatable=True))["topics"]
        return {name: sorted(channels) for name, channels in sorted(found.items())}

    async def stats(self, topic: str | None = None, channel: str | None = None) -> dict[str, Any]:
        return await self._do(stats(topic, channel), repeatable=True)

    async def overview(self, since: int = 0, *, processes: bool = False, alarms: bool = False) -> dict[str, Any]:
        return await self._do(overview(since, processes, alarms), repeatable=True)

    async def audit(self, count: int = 100, topic: str = "") -> list[dict[str, Any]]:
        return list((await self._do(audit(count, topic), repeatable=True))["entries"])

    async def chunks(self, topic: str) -> dict[str, Any]:
        return await self._do(manage("chunks", topic, None, {}), repeatable=True)

    async def ping(self) -> str:
        return str((await self.stats()).get("health", "OK"))


class Reader(_Asker):
    """Reads a topic by offset; see `zsq.Reader`."""

    @overload
    def __init__(
        self, topic: str, *, url: str | None = None, timeout: float | None = TIMEOUT_S, patient: bool = False, key_file: KeyFile = None
    ) -> None: ...
    @overload
    def __init__(
        self, url: str | None, topic: str, *, timeout: float | None = TIMEOUT_S, patient: bool = False, key_file: KeyFile = None
    ) -> None:
        """Deprecated: name the URL, as in `Reader(topic, url=url)`."""

    @url_last("topic")
    def __init__(
        self, topic: str, *, url: str | None = None, timeout: float | None = TIMEOUT_S, patient: bool = False, key_file: KeyFile = None
    ) -> None:
        super().__init__(url, Target("reader", check_name(topic), create=False), timeout, patient=patient, key_file=key_file)
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
