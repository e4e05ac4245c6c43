"""The client library's face: Producer, Consumer, Admin and Reader, blocking; `aio.py` has the same for asyncio.

A blocking client that asks one target: a request and its answer at a time for each thread.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from ...errors import E_CLOSING, Refused, ZsqError
from ...names import check_name
from ...settings import ChannelOptions, NewChannelOptions, RetentionSettings
from ...wire.address import Address, DefaultTimeout, Target, parse, url_last
from ...wire.answers import (
    AuditEntry,
    ChannelConfigured,
    Chunks,
    Closed,
    DelayedCount,
    DelayedRow,
    Made,
    Moved,
    Nothing,
    OverviewAnswer,
    TopicConfigured,
)
from ...wire.credentials import KeyFile
from ..core import administration, peeking, reading
from ..core.administration import Side
from ..core.asking import Asking, Place, Question, Reply
from ..core.message import Batch, Fetched, Message, StoredMessage
from ..core.peeking import PEEK_COUNT, Peek, Peeked
from ..core.reading import BYTES_ANY, Measured
from ..core.requester import Request, RequestEngine
from .consumer import Consumer
from .drive import Drive, inherit, ours, remember
from .producer import TIMEOUT_S, Producer, Receipt, check_times

__all__ = ["Admin", "Batch", "Consumer", "Fetched", "Measured", "Message", "Peek", "Peeked", "Producer", "Reader", "Receipt"]

_T = TypeVar("_T")


class AskerBase:
    """What the blocking and the asyncio clients that ask one target are made of.

    `patient`: a topic that failed and is started again, or a limit, is waited out until the time-out; else it is refused at once.
    """

    def __init__(self, url: str | None, target: Target, timeout: float | None, *, patient: bool = False, key_file: KeyFile = None) -> None:
        check_times(timeout, None)
        self._address: Address = parse(url, key_file)
        self._target = target
        self._timeout = timeout
        self._hasty = isinstance(timeout, DefaultTimeout)
        self._patient = patient
        self._closed = False
        self._made: Any = None
        self._begin()

    def _begin(self) -> None:
        """The arguments are good."""
        return

    def _engine(self) -> RequestEngine:
        return RequestEngine(self._address, self._target, patient=self._patient)

    def _check_open(self) -> None:
        if self._closed:
            raise Refused(E_CLOSING, "this client is closed; make a new one")


class Asker(AskerBase):
    """Asks one target, a request at a time for each thread. Fork-safe like the other clients."""

    _made: Drive[RequestEngine] | None

    def _begin(self) -> None:
        remember(self)

    def _carry_out(self, asking: Asking[_T]) -> _T:
        """Ask what this call asks."""
        try:
            question = next(asking)
            while True:
                try:
                    reply = self._reply(self._send(question))
                except ZsqError as error:
                    question = asking.throw(error)
                else:
                    question = asking.send(reply)
        except StopIteration as end:
            result: _T = end.value
            return result

    def _send(self, question: Question) -> Request:
        """Send a request; `_reply` takes its answer."""
        self._check_open()
        drive = self._made
        if drive is None or drive.pid != os.getpid():
            drive = ours(lambda: self._made, self._make)
        with drive.lock:
            return drive.engine.begin(question)

    def _reply(self, request: Request) -> Reply:
        """The answer and its blocks, or what went wrong. The time-out counts from now."""
        drive = self._made
        if drive is None or drive.pid != os.getpid():
            raise Refused(E_CLOSING, "this client was closed, or belongs to the process that asked; make a new one")
        return drive.carry_out(drive.engine.reply(request, self._timeout))

    def _make(self, inherited: Drive[RequestEngine] | None) -> Drive[RequestEngine]:
        self._made = Drive(self._engine(), hasty=self._hasty)
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


class AdminBase(AskerBase):
    """What the blocking and the asyncio Admin are made of."""

    def __init__(self, url: str | None = None, *, timeout: float | None = TIMEOUT_S, key_file: KeyFile = None) -> None:
        super().__init__(url, Target("supervisor"), timeout, key_file=key_file)


class ReaderBase(AskerBase):
    """What the blocking and the asyncio Reader are made of."""

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


class Admin(AdminBase, Asker):
    """Topics and channels by command. `timeout` in seconds, for each call; `key_file`: see `Producer`.

    A call whose link is lost raises `BrokerUnreachable`: whether it took effect is then not known.
    """

    def create_topic(self, name: str, sync: str = "always", **retention: Unpack[RetentionSettings]) -> Made:
        """`sync`: always, interval or never. {"existed": True} if it was there; then nothing was changed."""
        return self._carry_out(administration.create_topic(name, sync, retention))

    def configure_topic(self, name: str, **retention: Unpack[RetentionSettings]) -> TopicConfigured:
        """How long it keeps what, see `RetentionSettings`. {"retention": all that holds now}. Durable and in effect when it returns."""
        return self._carry_out(administration.configure_topic(name, retention))

    def create_channel(self, topic: str, channel: str, **settings: Unpack[NewChannelOptions]) -> Made:
        """{"existed": True} if it was there; then nothing was changed. `UsageError` where it is there with another order, or other tags."""
        return self._carry_out(administration.create_channel(topic, channel, settings))

    def configure_channel(self, topic: str, channel: str, **settings: Unpack[ChannelOptions]) -> ChannelConfigured:
        """Change settings, see `ChannelOptions`. {"settings": all that hold now}. Durable and in effect when it returns."""
        return self._carry_out(administration.configure_channel(topic, channel, settings))

    def delete_topic(self, name: str, force: bool = False) -> Nothing:
        """Refused with E_NOT_EMPTY while messages are unfinished, unless forced."""
        return self._carry_out(administration.delete(name, None, force))

    def close_topic(self, name: str, to: Side = "publishers") -> Closed:
        """To publishers: they are refused with E_CLOSED, consumers drain it; to consumers: to both, and those that are there see the
        same error. {"closed": "publishers" or "consumers"}. Durable, and in effect everywhere, when it returns."""
        return self._carry_out(administration.close_topic(name, to))

    def open_topic(self, name: str, to: Side = "publishers") -> Closed:
        """To publishers: to all; to consumers: to these only, to go on draining it. {"closed": "" or "publishers"}."""
        return self._carry_out(administration.open_topic(name, to))

    def delete_channel(self, topic: str, channel: str, force: bool = False) -> Nothing:
        """Refused with E_NOT_EMPTY while messages are unfinished, unless forced."""
        return self._carry_out(administration.delete(topic, channel, force))

    def pause(self, topic: str, channel: str | None = None) -> Nothing:
        """A paused topic shows its channels nothing new; a paused channel delivers nothing."""
        return self._carry_out(administration.pause(topic, channel))

    def unpause(self, topic: str, channel: str | None = None) -> Nothing:
        """Let it go on where it was paused."""
        return self._carry_out(administration.unpause(topic, channel))

    def empty(self, topic: str, channel: str | None = None) -> Nothing:
        """Clear what waits: of a topic, what waits for its first channel or behind its pause; of a channel, its backlog."""
        return self._carry_out(administration.empty(topic, channel))

    def seek(self, topic: str, channel: str, where: Place, forward: bool = False, clamp: bool = False) -> Moved:
        """The channel goes on from there (at least the oldest kept): back, to read again, or forward, to leave out.

        `where`: an offset, "earliest", "latest", or a time (datetime, or seconds since 1970 as float): the first message stored then or
        later. What the channel holds and what is not finished behind it is cleared. With `forward` it never goes back. An offset beyond the
        topic's end, or a time in the future, raises `UsageError`; with `clamp` it means the end. {"offset": where it is}. Durable when it
        returns.
        """
        return self._carry_out(administration.seek(topic, channel, where, forward, clamp))

    def redrive_to(self, dead_topic: str, to: str, channel: str | None, origin: tuple[str, str, str], chosen: bool = False) -> Nothing:
        """Ask whether dead letters of `dead_topic` may be published to topic `to` (for `channel`, None: for all), as `zsq redrive` does.

        `origin`: topic, its uuid, and channel, as the letters' headers say. E_FORBIDDEN unless dead letters of that channel go to
        `dead_topic`; with `chosen` a person named `to`, and the headers decide nothing. Noted in the audit log.
        """
        return self._carry_out(administration.redrive_to(dead_topic, to, channel, origin, chosen))

    def peek(self, topic: str, channel: str | None = None, count: int = PEEK_COUNT) -> Peek:
        """Look without taking part; nothing is finished. `count`: at most so many messages of each state, up to 1,000.

        Of a channel: what it would hand out next, and what is in flight with whom, requeued, deferred. Of a topic: its newest.
        """
        with Reader(topic, url=self._address.url, timeout=self._timeout, key_file=self._address.credentials) as reader:
            held = self._carry_out(peeking.place_of(topic, channel, count))
            return reader._carry_out(peeking.look(topic, channel, held, count))

    def delayed_list(self, topic: str, after: str = "", limit: int = 1_000) -> list[DelayedRow]:
        """Delayed messages that wait, the one due next first: key, due_ns, size, body (its first 200 bytes), tag, message_key.

        At most `limit` (1,000); for more, ask with `after` the last one's key.
        """
        return self._carry_out(administration.delayed_list(topic, after, limit))

    def delayed_count(self, topic: str) -> DelayedCount:
        """What waits: messages, bytes, next_due_ns (0: nothing); and lost: what damage has cost."""
        return self._carry_out(administration.delayed_count(topic))

    def delayed_cancel(self, topic: str, keys: Sequence[str]) -> list[bool]:
        """Take delayed messages out by their keys (1,000 at most), durable when it returns. False: it does not wait (any more)."""
        return self._carry_out(administration.delayed_cancel(topic, keys))

    def delayed_cancel_all(self, topic: str) -> int:
        """Take out all that wait; how many that were. In several steps, so that others get their turn: what comes meanwhile may stay."""
        return self._carry_out(administration.delayed_cancel_all(topic))

    def topics(self) -> dict[str, list[str]]:
        """Which topics there are, each with its channels, by name. Nobody is asked for it but the supervisor."""
        return self._carry_out(administration.topics())

    def stats(self, topic: str | None = None, channel: str | None = None) -> dict[str, Any]:
        """Statistics of everything, of one topic or of one channel, freshly asked."""
        return self._carry_out(administration.stats(topic, channel))

    def overview(self, since: int = 0, *, processes: bool = False, alarms: bool = False) -> OverviewAnswer:
        """All topics and channels as they last said themselves, a second ago or ten where nothing happens: nobody is asked, so it is cheap.

        {"version", "whole", "topics": {name: (row, {channel: row})}, "broker"}; which number is which say `topic_fields` and
        `channel_fields`, there where it is the `whole`. With `since` a version: rows that changed after it; () for a topic that did not.
        """
        return self._carry_out(administration.overview(since, processes, alarms))

    def audit(self, count: int = 100, topic: str = "") -> list[AuditEntry]:
        """The newest entries of the audit log, newest first; of one topic, if it is named.

        Each has "time", "action", "topic", "channel", "options", "user", "from", "via" and "result".
        """
        return self._carry_out(administration.audit(count, topic))

    def chunks(self, topic: str) -> Chunks:
        """Of a topic's log files: {"chunks": the newest 1,000, "older": the others in a sum, "total": all}, see `zsq stats --chunks`."""
        return self._carry_out(administration.chunks(topic))

    def ping(self) -> str:
        """The broker's health: "OK", or what is wrong with it."""
        return self._carry_out(administration.ping())


class Reader(ReaderBase, Asker):
    """Reads a topic by offset; no channel takes part, nothing is finished. `NotFound` where there is no such topic.

    `url`: see `Producer`. `patient`: wait, up to `timeout`, also for a topic that failed and is started again; else that is `Refused`
    at once.
    `key_file`: see `Producer`.
    """

    def read(self, offset: int, bytes_max: int = 1 << 20) -> Fetched:
        """Blocks from the one that holds `offset` on, about `bytes_max` of them (at least one, if there is one)."""
        return self._carry_out(reading.read(offset, bytes_max))

    def head(self) -> tuple[int, int]:
        """(oldest offset kept, next offset to come): what can be read now."""
        return self._carry_out(reading.head())

    def offset_at(self, time_ns: int) -> int:
        """The first offset that was stored at this time (nanoseconds since 1970) or later; the end if there is none."""
        return self._carry_out(reading.offset_at(time_ns))

    def newest(self, count: int) -> int:
        """The offset from which on the newest `count` messages lie (at most 10,000; fewer where there are no more)."""
        return self._carry_out(reading.newest(count))

    def message(self, offset: int) -> StoredMessage:
        """One message. `NotFound` where it is removed, damaged, or not published yet."""
        return self._carry_out(reading.message(self.topic, offset))

    def measure(self, start: int, end: int = -1, bytes_max: int = BYTES_ANY) -> Measured:
        """How many bytes lie from `start` to `end` (-1: the durable end), and at which offset about `bytes_max` of them end.

        By the index, without reading messages. That offset is above `start` if anything lies there, and at most `end`.
        """
        return self._carry_out(reading.measure(start, end, bytes_max))

    def uuid(self) -> str:
        """Of the topic as it is now: one that was deleted and made again has another."""
        self.head()
        assert self._made is not None
        return self._made.engine.uuid
