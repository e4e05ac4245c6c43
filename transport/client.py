"""The client library's face: Producer, Consumer, Admin and Reader, blocking; `aio.py` has the same for asyncio."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, TypedDict, Unpack

from .address import Target
from .asker import Asker
from .block import Block
from .channel_options import END, SETTING_MAX, ChannelOptions, NewChannelOptions, Place, moved_to, on_wire
from .consumer import Consumer
from .credentials import KeyFile
from .errors import E_BAD_ARGUMENT, CorruptBlock, UsageError
from .message import Batch, Message
from .names import check_name
from .peeking import PEEK_COUNT, Look, Peek, Peeked, check_count, look_at_channel, look_at_newest
from .peeking import ask as ask_peek
from .producer import TIMEOUT_S, Producer, Receipt
from .protocol import Blocks, Done, Fetch, Manage, Measure, OffsetAt, Stats, Wire
from .stored import Fetched, StoredMessage, stored

__all__ = ["Admin", "Batch", "Consumer", "Fetched", "Measured", "Message", "Peek", "Peeked", "Producer", "Reader", "Receipt"]

BYTES_ANY: Final = (1 << 63) - 1  # no bound
NEWEST_MAX: Final = 10_000
Side = Literal["publishers", "consumers"]
SYNCS = ("always", "interval", "never")


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


class RetentionSettings(TypedDict, total=False):
    """How long a topic keeps what; -1: no such bound, None: what the broker was started with. A chunk (a log file) is the unit.

    `keep_*` bounds what every channel has finished: it goes when any of them is passed (by default beyond 1 GiB). `max_*` bounds what is
    unfinished: beyond `max_bytes` publishes are refused (E_TOPIC_FULL) with `when_full` "reject", the default; with "drop-oldest" the
    oldest chunks go although unfinished, also those older than `max_s` seconds.
    """

    keep_bytes: int | None
    keep_s: float | None
    keep_chunks: int | None
    max_bytes: int | None
    max_s: float | None
    when_full: Literal["reject", "drop-oldest"] | None


def create_topic(name: str, sync: str, retention: RetentionSettings | None = None) -> Callable[[int], Wire]:
    if sync not in SYNCS:
        raise UsageError(E_BAD_ARGUMENT, f"sync {sync!r} is none of {', '.join(SYNCS)}")
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


def seek(topic: str, channel: str, where: Place, forward: bool) -> Callable[[int], Wire]:
    return manage("seek", topic, channel, moved_to(where) | {"forward": forward})


def fetched(answer: Any, blocks: list[Block]) -> Fetched:
    assert isinstance(answer, Blocks)
    return Fetched(answer.start, answer.head, blocks, answer.next_offset)


class Admin(Asker):
    """Topics and channels by command. `timeout` in seconds, for each call; `key_file`: see `Producer`.

    A call whose link is lost raises `BrokerUnreachable`: whether it took effect is then not known.
    """

    def __init__(self, url: str | None = None, *, timeout: float = TIMEOUT_S, key_file: KeyFile = None) -> None:
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
        """Clear what waits: of a topic, what waits for its first channel; of a channel, its backlog."""
        return self._manage("empty", topic, channel)

    def seek(self, topic: str, channel: str, where: Place, forward: bool = False) -> dict[str, Any]:
        """The channel goes on from there (at least the oldest kept, at most the end): back, to read again, or forward, to leave out.

        `where`: an offset, "earliest", "latest", or a time (datetime, or seconds since 1970 as float): the first message stored then or
        later. What the channel holds and what is not finished behind it is cleared. With `forward` it never goes back.
        {"offset": where it is}. Durable when it returns.
        """
        answer, _ = self._ask(seek(topic, channel, where, forward), repeatable=True)
        return _data(answer)

    def peek(self, topic: str, channel: str | None = None, count: int = PEEK_COUNT) -> Peek:
        """Look without taking part; nothing is finished. `count`: at most so many messages of each state, up to 1,000.

        Of a channel: what it would hand out next, and what is in flight with whom, requeued, deferred. Of a topic: its newest.
        """
        look: Look
        with Reader(self._address.url, topic, timeout=self._timeout, key_file=self._address.credentials) as reader:
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

    `patient`: wait, up to `timeout`, also for a topic that failed and is started again; else that is `Refused` at once.
    `key_file`: see `Producer`.
    """

    def __init__(self, url: str | None, topic: str, *, timeout: float = TIMEOUT_S, patient: bool = False, key_file: KeyFile = None) -> None:
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
