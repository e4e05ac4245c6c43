"""The client library's face: Producer, Consumer, Admin and Reader, blocking; `aio.py` has the same for asyncio.

A blocking client that asks one target: a request and its answer at a time for each thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self, Unpack, overload

from ...block.block import Block
from ...errors import E_BAD_ARGUMENT, E_CLOSING, CorruptBlock, Refused, UsageError
from ...names import check_name
from ...settings import SYNC_MODES, ChannelOptions, NewChannelOptions, RetentionSettings
from ...wire.address import Address, DefaultTimeout, Target, parse, url_last
from ...wire.credentials import KeyFile
from ...wire.protocol import Blocks, Done, Fetch, Manage, Measure, OffsetAt, Stats, Wire
from ..core.link import until_ns
from ..core.message import Batch, Fetched, Message, StoredMessage, stored
from ..core.peeking import PEEK_COUNT, Look, Peek, Peeked, check_count, look_at_channel, look_at_newest
from ..core.peeking import ask as ask_peek
from ..core.requester import Request, RequestEngine
from ..core.subscription import END, SETTING_MAX, Place, moved_to, on_wire
from .consumer import Consumer
from .drive import Drive, inherit, ours, remember
from .producer import TIMEOUT_S, Producer, Receipt, check_times

__all__ = ["Admin", "Batch", "Consumer", "Fetched", "Measured", "Message", "Peek", "Peeked", "Producer", "Reader", "Receipt"]


class Asker:
    """Asks one target, a request at a time for each thread. Fork-safe like the other clients.

    `patient`: a topic that failed and is started again, or a limit, is waited out until the time-out; else it is refused at once.
    """

    def __init__(self, url: str | None, target: Target, timeout: float | None, *, patient: bool = False, key_file: KeyFile = None) -> None:
        check_times(timeout, None)
        self._address: Address = parse(url, key_file)
        self._target = target
        self._timeout = timeout
        self._patient = patient
        self._closed = False
        self._made: Drive[RequestEngine] | None = None
        remember(self)

    def _ask(self, make: Callable[[int], Wire], *, repeatable: bool) -> tuple[Any, list[Block]]:
        return self._await(self._begin(make, repeatable=repeatable))

    def _begin(self, make: Callable[[int], Wire], *, repeatable: bool) -> Request:
        """Send a request; `_await` takes its answer."""
        if self._closed:
            raise Refused(E_CLOSING, "this client is closed; make a new one")
        drive = self._made
        if drive is None or drive.pid != os.getpid():
            drive = ours(lambda: self._made, self._make)
        with drive.lock:
            engine = drive.engine
            number = engine.number()
            return engine.ask(number, make(number), repeatable=repeatable)

    def _await(self, request: Request) -> tuple[Any, list[Block]]:
        """The answer and its blocks, or what went wrong. The time-out counts from now."""
        drive = self._made
        if drive is None or drive.pid != os.getpid():
            raise Refused(E_CLOSING, "this client was closed, or belongs to the process that asked; make a new one")
        with drive.lock:
            engine = drive.engine
            if not engine.asked(request):
                raise Refused(E_CLOSING, "this client was closed, or the request belongs to the process that asked; ask again")
            if not drive.wait(lambda: request.done, until_ns(self._timeout)):
                engine.give_up(request)
                raise engine.too_late(self._timeout)
        if request.error is not None:
            raise request.error
        return request.answer, request.blocks

    def _forget(self, request: Request) -> None:
        """Its answer is of no use any more."""
        drive = self._made
        if drive is not None and drive.pid == os.getpid():
            with drive.lock:
                drive.engine.give_up(request)

    def _make(self, inherited: Drive[RequestEngine] | None) -> Drive[RequestEngine]:
        engine = RequestEngine(self._address, self._target, patient=self._patient)
        self._made = Drive(engine, hasty=isinstance(self._timeout, DefaultTimeout))
        return self._made

    def close(self, timeout: float | None = None) -> None:
        """End; nothing is in progress."""
        self._closed = True
        drive, self._made = self._made, None
        if drive is None:
            return
        if drive.pid != os.getpid():
            inherit(drive)
            return
        with drive.lock:
            drive.stop(linger_ms=200)
        drive.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


BYTES_ANY: Final = (1 << 63) - 1  # no bound
NEWEST_MAX: Final = 10_000
Side = Literal["publishers", "consumers"]


class Measured(NamedTuple):
    """How much lies between two offsets. `bytes`: about, on disk; `offset`: where about `bytes_max` of them end; `start`: oldest offset
    kept; `head`: the next offset to come."""

    bytes: int
    offset: int
    start: int
    head: int


# Requests, as words: shared with asyncio


def manage(action: str, topic: str, channel: str | None, options: dict[str, Any]) -> Callable[[int], Wire]:
    check_name(topic)
    name = "" if channel is None else check_name(channel, "channel")
    return lambda number: Manage(number, action, topic, name, options)


def create_topic(name: str, sync: str, retention: RetentionSettings | None = None) -> Callable[[int], Wire]:
    if sync not in SYNC_MODES:
        raise UsageError(E_BAD_ARGUMENT, f"sync {sync!r} is none of {', '.join(SYNC_MODES)}")
    return manage("create", name, None, {"sync": sync} | ({"retention": _settings(retention)} if retention else {}))


def configure_topic(name: str, retention: RetentionSettings) -> Callable[[int], Wire]:
    if not retention:
        raise UsageError(E_BAD_ARGUMENT, f"say what to change: {', '.join(RetentionSettings.__annotations__)}")
    return manage("configure", name, None, _settings(retention))


def configure_channel(topic: str, channel: str, settings: ChannelOptions) -> Callable[[int], Wire]:
    if not settings:
        raise UsageError(E_BAD_ARGUMENT, f"say what to change: {', '.join(ChannelOptions.__annotations__)}")
    return manage("configure", topic, channel, on_wire(settings))


def _settings(retention: RetentionSettings) -> dict[str, Any]:
    """What can be carried; the broker says what makes sense."""
    for name, value in retention.items():
        if not isinstance(value, (int, float, str, type(None))) or (isinstance(value, int) and abs(value) > SETTING_MAX):
            raise UsageError(E_BAD_ARGUMENT, f"{name} is a number up to 2**62, a word or None, not {repr(value)[:40]}")
    return dict(retention)


def list_topics() -> Callable[[int], Wire]:
    return lambda number: Manage(number, "list", "", "", {})


def overview(since: int, processes: bool, alarms: bool) -> Callable[[int], Wire]:
    return lambda number: Manage(number, "overview", "", "", {"since": since, "processes": processes, "alarms": alarms})


def audit(count: int, topic: str) -> Callable[[int], Wire]:
    return lambda number: Manage(number, "audit", topic, "", {"count": count})


def stats(topic: str | None, channel: str | None) -> Callable[[int], Wire]:
    if channel is not None and topic is None:
        raise UsageError(E_BAD_ARGUMENT, "a channel is named together with its topic")
    names = ("" if topic is None else check_name(topic), "" if channel is None else check_name(channel, "channel"))
    return lambda number: Stats(number, *names)


def fetch(offset: int, bytes_max: int) -> Callable[[int], Wire]:
    if offset < 0 or bytes_max < 1:
        raise UsageError(E_BAD_ARGUMENT, "an offset is 0 or more, bytes_max 1 or more")
    return lambda number: Fetch(number, offset, bytes_max)


def offset_at(time_ns: int) -> Callable[[int], Wire]:
    return lambda number: OffsetAt(number, min(max(time_ns, -END), END))


def newest(count: int) -> Callable[[int], Wire]:
    if not 1 <= count <= NEWEST_MAX:
        raise UsageError(E_BAD_ARGUMENT, f"of the newest messages 1 to {NEWEST_MAX} can be asked for, not {count}")
    return lambda number: OffsetAt(number, 0, count)


def measure(start: int, end: int, bytes_max: int) -> Callable[[int], Wire]:
    if start < 0 or end < -1 or bytes_max < 1:
        raise UsageError(E_BAD_ARGUMENT, "start and end are offsets (end -1: the durable end), bytes_max is 1 or more")
    return lambda number: Measure(number, start, end, bytes_max)


def measured(answer: Any) -> Measured:
    data = _data(answer)
    return Measured(data["bytes"], data["offset"], data["start"], data["head"])


def seek(topic: str, channel: str, where: Place, forward: bool, clamp: bool) -> Callable[[int], Wire]:
    return manage("seek", topic, channel, moved_to(where) | {"forward": forward} | ({"clamp": True} if clamp else {}))


def redrive_to(dead_topic: str, to: str, channel: str | None, origin: tuple[str, str, str], chosen: bool) -> Callable[[int], Wire]:
    asked = {"to": check_name(to), "channel": channel or "", "origin": tuple(origin), "chosen": chosen}
    return manage("redrive", dead_topic, None, asked)


def fetched(answer: Any, blocks: list[Block]) -> Fetched:
    assert isinstance(answer, Blocks)
    return Fetched(answer.start, answer.head, blocks, answer.next_offset)


class Admin(Asker):
    """Topics and channels by command. `timeout` in seconds, for each call; `key_file`: see `Producer`.

    A call whose link is lost raises `BrokerUnreachable`: whether it took effect is then not known.
    """

    def __init__(self, url: str | None = None, *, timeout: float | None = TIMEOUT_S, key_file: KeyFile = None) -> None:
        super().__init__(url, Target("supervisor"), timeout, key_file=key_file)

    def _manage(self, action: str, topic: str, channel: str | None = None, **options: Any) -> dict[str, Any]:
        answer, _ = self._ask(manage(action, topic, channel, options), repeatable=False)
        return _data(answer)

    def create_topic(self, name: str, sync: str = "always", **retention: Unpack[RetentionSettings]) -> dict[str, Any]:
        """`sync`: always, interval or never. {"existed": True} if it was there; then nothing was changed."""
        answer, _ = self._ask(create_topic(name, sync, retention), repeatable=False)
        return _data(answer)

    def configure_topic(self, name: str, **retention: Unpack[RetentionSettings]) -> dict[str, Any]:
        """How long it keeps what, see `RetentionSettings`. {"retention": all that holds now}. Durable and in effect when it returns."""
        answer, _ = self._ask(configure_topic(name, retention), repeatable=True)
        return _data(answer)

    def create_channel(self, topic: str, channel: str, **settings: Unpack[NewChannelOptions]) -> dict[str, Any]:
        """{"existed": True} if it was there; then nothing was changed. `UsageError` where it is there with another order, or other tags."""
        return self._manage("create", topic, channel, **on_wire(settings))

    def configure_channel(self, topic: str, channel: str, **settings: Unpack[ChannelOptions]) -> dict[str, Any]:
        """Change settings, see `ChannelOptions`. {"settings": all that hold now}. Durable and in effect when it returns."""
        answer, _ = self._ask(configure_channel(topic, channel, settings), repeatable=True)
        return _data(answer)

    def delete_topic(self, name: str, force: bool = False) -> dict[str, Any]:
        """Refused with E_NOT_EMPTY while messages are unfinished, unless forced."""
        return self._manage("delete", name, force=force)

    def close_topic(self, name: str, to: Side = "publishers") -> dict[str, Any]:
        """To publishers: they are refused with E_CLOSED, consumers drain it; to consumers: to both, and those that are there see the
        same error. {"closed": "publishers" or "consumers"}. Durable, and in effect everywhere, when it returns."""
        answer, _ = self._ask(manage("close", name, None, {"to": to}), repeatable=True)
        return _data(answer)

    def open_topic(self, name: str, to: Side = "publishers") -> dict[str, Any]:
        """To publishers: to all; to consumers: to these only, to go on draining it. {"closed": "" or "publishers"}."""
        answer, _ = self._ask(manage("open", name, None, {"to": to}), repeatable=True)
        return _data(answer)

    def delete_channel(self, topic: str, channel: str, force: bool = False) -> dict[str, Any]:
        """Refused with E_NOT_EMPTY while messages are unfinished, unless forced."""
        return self._manage("delete", topic, channel, force=force)

    def pause(self, topic: str, channel: str | None = None) -> dict[str, Any]:
        """A paused topic shows its channels nothing new; a paused channel delivers nothing."""
        return self._manage("pause", topic, channel)

    def unpause(self, topic: str, channel: str | None = None) -> dict[str, Any]:
        """Let it go on where it was paused."""
        return self._manage("unpause", topic, channel)

    def empty(self, topic: str, channel: str | None = None) -> dict[str, Any]:
        """Clear what waits: of a topic, what waits for its first channel or behind its pause; of a channel, its backlog."""
        return self._manage("empty", topic, channel)

    def seek(self, topic: str, channel: str, where: Place, forward: bool = False, clamp: bool = False) -> dict[str, Any]:
        """The channel goes on from there (at least the oldest kept): back, to read again, or forward, to leave out.

        `where`: an offset, "earliest", "latest", or a time (datetime, or seconds since 1970 as float): the first message stored then or
        later. What the channel holds and what is not finished behind it is cleared. With `forward` it never goes back. An offset beyond the
        topic's end, or a time in the future, raises `UsageError`; with `clamp` it means the end. {"offset": where it is}. Durable when it
        returns.
        """
        answer, _ = self._ask(seek(topic, channel, where, forward, clamp), repeatable=True)
        return _data(answer)

    def redrive_to(
        self, dead_topic: str, to: str, channel: str | None, origin: tuple[str, str, str], chosen: bool = False
    ) -> dict[str, Any]:
        """Ask whether dead letters of `dead_topic` may be published to topic `to` (for `channel`, None: for all), as `zsq redrive` does.

        `origin`: topic, its uuid, and channel, as the letters' headers say. E_FORBIDDEN unless dead letters of that channel go to
        `dead_topic`; with `chosen` a person named `to`, and the headers decide nothing. Noted in the audit log.
        """
        return _data(self._ask(redrive_to(dead_topic, to, channel, origin, chosen), repeatable=True)[0])

    def peek(self, topic: str, channel: str | None = None, count: int = PEEK_COUNT) -> Peek:
        """Look without taking part; nothing is finished. `count`: at most so many messages of each state, up to 1,000.

        Of a channel: what it would hand out next, and what is in flight with whom, requeued, deferred. Of a topic: its newest.
        """
        look: Look
        with Reader(topic, url=self._address.url, timeout=self._timeout, key_file=self._address.credentials) as reader:
            if channel is None:
                look = look_at_newest(topic, reader.newest(check_count(count)), reader.head()[1], count)
            else:
                answer, _ = self._ask(ask_peek(topic, channel, count), repeatable=True)
                look = look_at_channel(topic, channel, _data(answer), count)
            try:
                step = next(look)
                while True:
                    step = look.send(reader.read(*step))
            except StopIteration as end:
                found: Peek = end.value
                return found

    def delayed_list(self, topic: str, after: str = "", limit: int = 1_000) -> list[dict[str, Any]]:
        """Delayed messages that wait, the one due next first: key, due_ns, size, body (its first 200 bytes), tag, message_key.

        At most `limit` (1,000); for more, ask with `after` the last one's key.
        """
        answer, _ = self._ask(manage("delayed", topic, None, {"do": "list", "after": after, "limit": limit}), repeatable=True)
        return list(_data(answer)["messages"])

    def delayed_count(self, topic: str) -> dict[str, int]:
        """What waits: messages, bytes, next_due_ns (0: nothing); and lost: what damage has cost."""
        answer, _ = self._ask(manage("delayed", topic, None, {"do": "count"}), repeatable=True)
        return _data(answer)

    def delayed_cancel(self, topic: str, keys: Sequence[str]) -> list[bool]:
        """Take delayed messages out by their keys (1,000 at most), durable when it returns. False: it does not wait (any more)."""
        return list(self._manage("delayed", topic, do="cancel", keys=tuple(keys))["cancelled"])

    def delayed_cancel_all(self, topic: str) -> int:
        """Take out all that wait; how many that were. In several steps, so that others get their turn: what comes meanwhile may stay."""
        total, more = 0, True
        while more:
            answer = self._manage("delayed", topic, do="cancel", all=True)
            total, more = total + int(answer["cancelled"]), bool(answer["more"] and answer["cancelled"])
        return total

    def topics(self) -> dict[str, list[str]]:
        """Which topics there are, each with its channels, by name. Nobody is asked for it but the supervisor."""
        answer, _ = self._ask(list_topics(), repeatable=True)
        return {name: sorted(channels) for name, channels in sorted(_data(answer)["topics"].items())}

    def stats(self, topic: str | None = None, channel: str | None = None) -> dict[str, Any]:
        """Statistics of everything, of one topic or of one channel, freshly asked."""
        answer, _ = self._ask(stats(topic, channel), repeatable=True)
        return _data(answer)

    def overview(self, since: int = 0, *, processes: bool = False, alarms: bool = False) -> dict[str, Any]:
        """All topics and channels as they last said themselves, a second ago or ten where nothing happens: nobody is asked, so it is cheap.

        {"version", "whole", "topics": {name: (row, {channel: row})}, "broker"}; which number is which say `topic_fields` and
        `channel_fields`, there where it is the `whole`. With `since` a version: rows that changed after it; () for a topic that did not.
        """
        answer, _ = self._ask(overview(since, processes, alarms), repeatable=True)
        return _data(answer)

    def audit(self, count: int = 100, topic: str = "") -> list[dict[str, Any]]:
        """The newest entries of the audit log, newest first; of one topic, if it is named.

        Each has "time", "action", "topic", "channel", "options", "user", "from", "via" and "result".
        """
        answer, _ = self._ask(audit(count, topic), repeatable=True)
        return list(_data(answer)["entries"])

    def chunks(self, topic: str) -> dict[str, Any]:
        """Of a topic's log files: {"chunks": the newest 1,000, "older": the others in a sum, "total": all}, see `zsq stats --chunks`."""
        answer, _ = self._ask(manage("chunks", topic, None, {}), repeatable=True)
        return _data(answer)

    def ping(self) -> str:
        """The broker's health: "OK", or what is wrong with it."""
        return str(self.stats().get("health", "OK"))


class Reader(Asker):
    """Reads a topic by offset; no channel takes part, nothing is finished. `NotFound` where there is no such topic.

    `url`: see `Producer`. `patient`: wait, up to `timeout`, also for a topic that failed and is started again; else that is `Refused`
    at once.
    `key_file`: see `Producer`.
    """

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

    def read(self, offset: int, bytes_max: int = 1 << 20) -> Fetched:
        """Blocks from the one that holds `offset` on, about `bytes_max` of them (at least one, if there is one)."""
        for attempt in (1, 2):
            try:
                return fetched(*self._ask(fetch(offset, bytes_max), repeatable=True))
            except CorruptBlock:
                if attempt == 2:
                    raise
        raise AssertionError("unreachable")

    def head(self) -> tuple[int, int]:
        """(oldest offset kept, next offset to come): what can be read now."""
        answer, _ = self._ask(fetch(END, 1), repeatable=True)
        return answer.start, answer.head

    def offset_at(self, time_ns: int) -> int:
        """The first offset that was stored at this time (nanoseconds since 1970) or later; the end if there is none."""
        answer, _ = self._ask(offset_at(time_ns), repeatable=True)
        return int(_data(answer)["offset"])

    def newest(self, count: int) -> int:
        """The offset from which on the newest `count` messages lie (at most 10,000; fewer where there are no more)."""
        answer, _ = self._ask(newest(count), repeatable=True)
        return int(_data(answer)["offset"])

    def message(self, offset: int) -> StoredMessage:
        """One message. `NotFound` where it is removed, damaged, or not published yet."""
        return stored(self.topic, offset, self.read(offset, 1))

    def measure(self, start: int, end: int = -1, bytes_max: int = BYTES_ANY) -> Measured:
        """How many bytes lie from `start` to `end` (-1: the durable end), and at which offset about `bytes_max` of them end.

        By the index, without reading messages. That offset is above `start` if anything lies there, and at most `end`.
        """
        return measured(self._ask(measure(start, end, bytes_max), repeatable=True)[0])

    def uuid(self) -> str:
        """Of the topic as it is now: one that was deleted and made again has another."""
        self.head()
        drive = self._made
        assert drive is not None
        return str(drive.engine.link.opened.get("uuid", ""))


def _data(answer: Any) -> dict[str, Any]:
    assert isinstance(answer, Done)
    return answer.data
