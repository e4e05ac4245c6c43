"""The asyncio Admin and Reader, and the turner of all asyncio clients.

The turner runs an engine in an event loop. It uses one reader for all sockets of the engine, and
one timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, cast

from ...errors import ZsqError
from ...reports import BrokerStats
from ...settings import ChannelOptions, NewChannelOptions, RetentionSettings
from ...wire.answers import (
    Added,
    AuditEntry,
    ChannelConfigured,
    Chunks,
    Closed,
    ClusterAnswer,
    DelayedCount,
    DelayedRow,
    Disconnected,
    FigureHistory,
    Made,
    Moved,
    Moving,
    Nothing,
    OverviewAnswer,
    Scheduled,
    ScheduleRow,
    Silenced,
    TopicConfigured,
)
from ...wire.codec import HeaderValue
from ...wire.spread import HasParts
from ..blocking.asker import AskerBase, moved
from ..blocking.caretaker import caretaker
from ..blocking.client import AdminBase, ReaderBase
from ..blocking.drive import Drive
from ..blocking.program_end import (
    CONCLUDE_S,
    ClientName,
    abandoned,
    inherit,
    prepare_end,
    remember,
)
from ..core import administration, peeking, reading
from ..core.administration import Side
from ..core.asking import Asking, PartAnswers, Place, Question, Reply
from ..core.message import Fetched, StoredMessage
from ..core.peeking import PEEK_COUNT, Peek
from ..core.reading import BYTES_ANY, Archive, Measured
from ..core.requester import RequestEngine
from ..link.engine import Engine, Steps, Waiter
from ..link.timeouts import FAR_NS

_EngineT = TypeVar("_EngineT", bound=Engine)
_T = TypeVar("_T")


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Turner(Generic[_EngineT]):
    """A turner runs an engine in the event loop. It is made and used only in the loop's thread.

    It is the asyncio counterpart of `Drive`. The engine of a client that was dropped without
    `close`, or is open at the end of the program, leaves the loop. A `Drive` then finishes its work
    in another thread, because the loop may run no more.
    """

    def __init__(self, engine: _EngineT, *, tells: bool = False, hasty: bool = False) -> None:
        """Create a turner for `engine`. `tells`, `hasty`: see `Engine`."""
        engine.tells = tells
        engine.hasty = hasty
        self.pid = os.getpid()
        self.engine = engine
        self.loop = asyncio.get_running_loop()
        self.stopped = False
        self.client_name: ClientName | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._concludes = threading.Lock()  # held as soon as a thread concludes
        self._concluded = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = FAR_NS
        engine.events.attach(self.loop, self._on_ready)

    def _on_ready(self) -> None:
        if not self.stopped:
            self.engine.turn(self.engine.events.poll(0))
            self.settle()

    def _on_due(self) -> None:
        self._timer = None
        self._timer_ns = FAR_NS
        if not self.stopped:
            self.engine.turn([])
            self.settle()

    def settle(self) -> None:
        """Wake the waiters whose condition is met, and set the timer for the next due time.

        This is called after something was sent or received.
        """
        self.engine.settle()
        self._arm()

    def _arm(self) -> None:
        due_ns = self.engine.due_ns
        if due_ns >= self._timer_ns or self.stopped:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = due_ns
        self._timer = self.loop.call_later(
            max(0.0, (due_ns - time.monotonic_ns()) / 1e9), self._on_due
        )

    async def wait(self, done: Callable[[], bool], deadline_ns: int) -> bool:
        """Wait until `done()` is true. Return False at the deadline."""
        self.settle()
        turned = False  # `done` is checked once even if the deadline has passed already
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
            # A separate timer for each waiter would rarely be needed, and would cost as much as the
            # waiting itself.
            self.engine.sooner(deadline_ns)
            self._arm()
            try:
                await future
            finally:
                with contextlib.suppress(ValueError):
                    self.engine.waiters.remove(waiter)
        return True

    async def carry_out(self, steps: Steps[_T]) -> _T:
        """Run these steps."""
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
        self._leave_loop()
        if self._finalizer is not None:
            self._finalizer.detach()
        self.engine.stop(linger_ms)
        self.engine.events.close()
        for waiter in list(self.engine.waiters):
            waiter.wake()

    def _leave_loop(self) -> None:
        """Let the loop turn the engine no more. The loop's thread calls this, or it is closed."""
        self.stopped = True
        self.engine.events.detach()
        if self._timer is not None:
            self._timer.cancel()

    # A client that was dropped, or is open at the end of the program

    def belong_to(self, client: object, name: ClientName | None) -> None:
        """Close when this client is dropped, and warn if it has a name."""
        self.client_name = name
        self._finalizer = weakref.finalize(client, self._on_drop)
        self._finalizer.atexit = False
        remember(self, name)
        caretaker.look_after(self)
        prepare_end()

    def _on_drop(self) -> None:
        """Let another thread conclude. This runs in any thread, and takes no lock."""
        if self.pid != os.getpid():
            inherit(self)
            return
        if self.stopped:
            return
        abandoned.add(self)
        self._ask_to_leave()
        if self.client_name is not None:
            self.client_name.warn()

    def _ask_to_leave(self) -> None:
        try:
            self.loop.call_soon_threadsafe(self.end_dropped)
        except RuntimeError:  # the loop is closed
            caretaker.take(self)

    def end_in_thread(self) -> None:
        """Finish the work of the client in a thread, because its task does not wait for that."""
        abandoned.add(self)
        self.end_dropped()

    def end_dropped(self) -> None:
        """Conclude in a thread. The loop's thread calls this, or it is closed."""
        if self.stopped or not self._concludes.acquire(blocking=False):
            return
        self._leave_loop()
        name = "zsq concluding"
        try:
            threading.Thread(target=self._conclude, name=name, daemon=True).start()
        except RuntimeError:  # the program ends, or there are too many threads
            self._conclude()

    def turn_if_idle(self) -> None:
        """Conclude if the loop was closed. Nothing else turns this engine any more."""
        if self.loop.is_closed() and not self.stopped and self.pid == os.getpid():
            self.end_in_thread()

    def _conclude(self, timeout_s: float = CONCLUDE_S) -> None:
        try:
            drive = Drive(self.engine, hasty=self.engine.hasty)
            drive.client_name = self.client_name
            drive.conclude(timeout_s)
        finally:
            abandoned.discard(self)
            self._concluded.set()

    def close(self, timeout: float | None = None) -> None:
        """Conclude at the end of the program. Log what is missing."""
        if self.stopped or self.pid != os.getpid():
            return
        abandoned.add(self)
        if self.loop.is_running():
            self._ask_to_leave()

    def finish(self, timeout_s: float) -> str:
        """Wait until a dropped client is closed. Return what is missing then, or ""."""
        if not self.loop.is_running() and self._concludes.acquire(blocking=False):
            self._leave_loop()
            self._conclude(timeout_s)
        return "" if self._concluded.wait(timeout_s) else self.engine.unfinished


class Asker(AskerBase):
    """A client of one target. Any number of tasks may send requests at once."""

    _made: Turner[RequestEngine] | None
    _tells = True  # log a broker that does not answer while a request waits for it

    async def _carry_out(self, asking: Asking[_T]) -> _T:
        """Run the generator: send its questions and return its result."""
        try:
            question = next(asking)
            while True:
                try:
                    reply = await self._ask(question)
                except ZsqError as error:
                    question = asking.throw(error)
                else:
                    question = asking.send(reply)
        except StopIteration as end:
            result: _T = end.value
            return result

    async def _ask(self, question: Question) -> Reply:
        """Send a request and return the reply. If it is about parts, ask their brokers."""
        try:
            return await self._ask_here(question, self._timeout)
        except HasParts as error:
            answers = PartAnswers(question, error.spread)
        for one in answers:
            try:
                other = self._other(one.urls, Admin)
                reply = await other._ask_here(one.question, answers.timeout(self._timeout))
                answers.add(one, reply)
            except HasParts as error:
                answers.fail(one, moved(error))
            except ZsqError as error:
                answers.fail(one, error)
        return answers.combined()

    async def _ask_here(self, question: Question, timeout: float | None) -> Reply:
        self._check_open()
        turner = self._made
        if turner is None or turner.pid != os.getpid():
            if turner is not None:
                inherit(turner)
            turner = self._made = Turner(self._engine(), tells=self._tells, hasty=self._hasty)
            turner.belong_to(self, self._client_name)
        return await turner.carry_out(turner.engine.reply(turner.engine.begin(question), timeout))

    async def close(self) -> None:
        self._closed = True
        others, self._others = self._others, {}
        for other in others.values():
            await other.close()
        turner, self._made = self._made, None
        if turner is not None and turner.pid != os.getpid():
            inherit(turner)
        elif turner is not None:
            turner.stop(linger_ms=200)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class Admin(AdminBase, Asker):
    """Manage topics and channels. See `zsq.Admin`."""

    async def create_topic(
        self,
        name: str,
        sync: str = "always",
        *,
        parts: int = 0,
        brokers: Sequence[int] = (),
        **retention: Unpack[RetentionSettings],
    ) -> Made:
        return await self._carry_out(
            administration.create_topic(name, sync, retention, parts, brokers)
        )

    async def add_parts(self, topic: str, count: int, *, brokers: Sequence[int] = ()) -> Added:
        return await self._carry_out(administration.add_parts(topic, count, brokers))

    async def move_part(self, part: str, broker: int) -> Moving:
        return await self._carry_out(administration.move_part(part, broker))

    async def cluster(self, *, fresh: bool = False) -> ClusterAnswer:
        return await self._carry_out(administration.cluster(fresh=fresh))

    async def configure_topic(
        self, name: str, sync: str | None = None, **retention: Unpack[RetentionSettings]
    ) -> TopicConfigured:
        return await self._carry_out(administration.configure_topic(name, sync, retention))

    async def create_channel(
        self, topic: str, channel: str, **settings: Unpack[NewChannelOptions]
    ) -> Made:
        return await self._carry_out(administration.create_channel(topic, channel, settings))

    async def configure_channel(
        self, topic: str, channel: str, **settings: Unpack[ChannelOptions]
    ) -> ChannelConfigured:
        return await self._carry_out(administration.configure_channel(topic, channel, settings))

    async def delete_topic(self, name: str, force: bool = False) -> Nothing:
        return await self._carry_out(administration.delete(name, None, force))

    async def close_topic(self, name: str, to: Side = "publishers") -> Closed:
        return await self._carry_out(administration.close_topic(name, to))

    async def open_topic(self, name: str, to: Side = "publishers") -> Closed:
        return await self._carry_out(administration.open_topic(name, to))

    async def delete_channel(self, topic: str, channel: str, force: bool = False) -> Nothing:
        return await self._carry_out(administration.delete(topic, channel, force))

    async def pause(self, topic: str, channel: str | None = None) -> Nothing:
        return await self._carry_out(administration.pause(topic, channel))

    async def unpause(self, topic: str, channel: str | None = None) -> Nothing:
        return await self._carry_out(administration.unpause(topic, channel))

    async def empty(self, topic: str, channel: str | None = None) -> Nothing:
        return await self._carry_out(administration.empty(topic, channel))

    async def seek(
        self, topic: str, channel: str, where: Place, forward: bool = False, clamp: bool = False
    ) -> Moved:
        return await self._carry_out(administration.seek(topic, channel, where, forward, clamp))

    async def skip(
        self, topic: str, channel: str, offsets: Sequence[int], *, preview: bool = False
    ) -> list[int]:
        return await self._carry_out(administration.skip(topic, channel, offsets, preview))

    async def disconnect(self, topic: str, channel: str, consumer: str) -> Disconnected:
        return await self._carry_out(administration.disconnect(topic, channel, consumer))

    async def redrive_to(
        self,
        dead_topic: str,
        to: str,
        channel: str | None,
        origin: tuple[str, str, str],
        chosen: bool = False,
    ) -> Nothing:
        return await self._carry_out(
            administration.redrive_to(dead_topic, to, channel, origin, chosen)
        )

    async def peek(self, topic: str, channel: str | None = None, count: int = PEEK_COUNT) -> Peek:
        async with Reader(topic, timeout=self._timeout, **self._same_place()) as reader:
            held = await self._carry_out(peeking.place_of(topic, channel, count))
            return await reader._carry_out(peeking.look(topic, channel, held, count))

    async def delayed_list(
        self, topic: str, after: str = "", limit: int = 1_000
    ) -> list[DelayedRow]:
        return await self._carry_out(administration.delayed_list(topic, after, limit))

    async def delayed_count(self, topic: str) -> DelayedCount:
        return await self._carry_out(administration.delayed_count(topic))

    async def delayed_cancel(self, topic: str, keys: Sequence[str]) -> list[bool]:
        return await self._carry_out(administration.delayed_cancel(topic, keys))

    async def delayed_cancel_all(self, topic: str) -> int:
        return await self._carry_out(administration.delayed_cancel_all(topic))

    async def schedule_add(
        self,
        topic: str,
        name: str,
        cron: str,
        body: bytes,
        *,
        timezone: str = "UTC",
        missed: str = "one",
        key: bytes | str | None = None,
        tag: str | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
    ) -> Scheduled:
        return await self._carry_out(
            administration.schedule_add(
                topic, name, cron, body, timezone, missed, key, tag, headers
            )
        )

    async def schedule_set(
        self,
        topic: str,
        name: str,
        *,
        cron: str | None = None,
        body: bytes | None = None,
        timezone: str | None = None,
        missed: str | None = None,
        tag: str | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
    ) -> Scheduled:
        changes = {
            "cron": cron, "timezone": timezone, "missed": missed, "tag": tag, "headers": headers,
        }  # fmt: skip
        return await self._carry_out(administration.schedule_set(topic, name, changes, body))

    async def schedule_run(self, topic: str, name: str) -> Nothing:
        return await self._carry_out(administration.schedule_order("run", topic, name))

    async def schedule_remove(self, topic: str, name: str) -> Nothing:
        return await self._carry_out(administration.schedule_order("remove", topic, name))

    async def schedule_pause(self, topic: str, name: str) -> Nothing:
        return await self._carry_out(administration.schedule_order("pause", topic, name))

    async def schedule_resume(self, topic: str, name: str) -> Nothing:
        return await self._carry_out(administration.schedule_order("resume", topic, name))

    async def schedule_list(self, topic: str | None = None) -> list[ScheduleRow]:
        return await self._carry_out(administration.schedule_list(topic))

    async def topics(self) -> dict[str, list[str]]:
        return await self._carry_out(administration.topics())

    async def stats(
        self, topic: str | None = None, channel: str | None = None, *, partial: bool = False
    ) -> BrokerStats:
        found = await self._carry_out(administration.stats(topic, channel, partial))
        return cast("BrokerStats", found)

    async def unfinished(self, topic: str, channel: str) -> int:
        return await self._carry_out(administration.unfinished(topic, channel))

    async def overview(
        self, since: int = 0, *, processes: bool = False, alarms: bool = False
    ) -> OverviewAnswer:
        return await self._carry_out(administration.overview(since, processes, alarms))

    async def history(
        self, topic: str, channel: str | None = None, span: str = "1d", points: int = 240
    ) -> FigureHistory:
        return await self._carry_out(administration.history(topic, channel, span, points))

    async def alarm_ack(
        self, topic: str = "", channel: str = "", figure: str = "", *, seconds: float = 0
    ) -> Silenced:
        return await self._carry_out(administration.alarm("ack", topic, channel, figure, seconds))

    async def alarm_unack(self, topic: str = "", channel: str = "", figure: str = "") -> Silenced:
        return await self._carry_out(administration.alarm("unack", topic, channel, figure))

    async def audit(self, count: int = 100, topic: str = "") -> list[AuditEntry]:
        return await self._carry_out(administration.audit(count, topic))

    async def handover(self) -> None:
        return await self._carry_out(administration.handover())

    async def chunks(self, topic: str) -> Chunks:
        return await self._carry_out(administration.chunks(topic))

    async def ended(self, topic: str) -> int | None:
        return await self._carry_out(administration.ended(topic))

    async def ping(self) -> str:
        return await self._carry_out(administration.ping())


class Reader(ReaderBase, Asker):
    """Read a topic by offset. See `zsq.Reader`."""

    async def read(self, offset: int, bytes_max: int = 1 << 20) -> Fetched:
        request = reading.read_on(self.topic, offset, bytes_max, self._on_data_loss)
        return await self._carry_out(request)

    async def head(self) -> tuple[int, int]:
        return await self._carry_out(reading.head())

    async def offset_at(self, time_ns: int) -> int:
        return await self._carry_out(reading.offset_at(time_ns))

    async def archive(self) -> Archive | None:
        return await self._carry_out(reading.archive())

    async def newest(self, count: int) -> int:
        return await self._carry_out(reading.newest(count))

    async def message(self, offset: int) -> StoredMessage:
        return await self._carry_out(reading.message(self.topic, offset))

    async def measure(self, start: int, end: int = -1, bytes_max: int = BYTES_ANY) -> Measured:
        return await self._carry_out(reading.measure(start, end, bytes_max))

    async def uuid(self) -> str:
        await self.head()
        assert self._made is not None
        return self._made.engine.uuid
