"""The client library's face: Producer, Consumer, Admin and Reader, blocking; `aio.py` has the same for asyncio."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, Self

from .address import Address, Target, parse
from .block import Block
from .consumer import Consumer
from .drive import Drive, inherit, ours, remember
from .errors import E_BAD_ARGUMENT, E_CLOSING, CorruptBlock, Refused, UsageError
from .message import Batch, Message
from .names import check_name
from .producer import TIMEOUT_S, Producer, Receipt, check_times
from .protocol import Blocks, Done, Fetch, Manage, Stats, Wire
from .requester import RequestEngine

__all__ = ["Admin", "Batch", "Consumer", "Fetched", "Message", "Producer", "Reader", "Receipt"]

SYNCS = ("always", "interval", "never")


class Fetched(NamedTuple):
    """What a read found. `start`: oldest offset kept; `head`: the next offset to come; `blocks`: consecutive, the first one holds the
    offset that was asked for or, where that is lost or not kept any more, what follows; none if there is nothing yet.
    `next_offset`: where to read on."""

    start: int
    head: int
    blocks: list[Block]
    next_offset: int


# Requests, as words: shared with asyncio


def manage(action: str, topic: str, channel: str | None, options: dict[str, Any]) -> Callable[[int], Wire]:
    check_name(topic)
    name = "" if channel is None else check_name(channel, "channel")
    return lambda number: Manage(number, action, topic, name, options)


def create_topic(name: str, sync: str) -> Callable[[int], Wire]:
    if sync not in SYNCS:
        raise UsageError(E_BAD_ARGUMENT, f"sync {sync!r} is none of {', '.join(SYNCS)}")
    return manage("create", name, None, {"sync": sync})


def stats(topic: str | None, channel: str | None) -> Callable[[int], Wire]:
    if channel is not None and topic is None:
        raise UsageError(E_BAD_ARGUMENT, "a channel is named together with its topic")
    names = ("" if topic is None else check_name(topic), "" if channel is None else check_name(channel, "channel"))
    return lambda number: Stats(number, *names)


def fetch(offset: int, bytes_max: int) -> Callable[[int], Wire]:
    if offset < 0 or bytes_max < 1:
        raise UsageError(E_BAD_ARGUMENT, "an offset is 0 or more, bytes_max 1 or more")
    return lambda number: Fetch(number, offset, bytes_max)


def fetched(answer: Any, blocks: list[Block]) -> Fetched:
    assert isinstance(answer, Blocks)
    return Fetched(answer.start, answer.head, blocks, answer.next_offset)


class _Asker:
    """Asks one target, a request at a time for each thread. Fork-safe like the other clients."""

    def __init__(self, url: str | None, target: Target, timeout: float) -> None:
        check_times(timeout, None)
        self._address: Address = parse(url)
        self._target = target
        self._timeout = timeout
        self._closed = False
        self._made: Drive[RequestEngine] | None = None
        remember(self)

    def _ask(self, make: Callable[[int], Wire], *, repeatable: bool) -> tuple[Any, list[Block]]:
        if self._closed:
            raise Refused(E_CLOSING, "this client is closed; make a new one")
        drive = self._made
        if drive is None or drive.pid != os.getpid():
            drive = ours(lambda: self._made, self._make)
        with drive.lock:
            engine = drive.engine
            number = engine.number()
            request = engine.ask(number, make(number), repeatable=repeatable)
            if not drive.wait(lambda: request.done, time.monotonic_ns() + int(self._timeout * 1e9)):
                engine.give_up(number)
                raise engine.too_late(self._timeout)
        if request.error is not None:
            raise request.error
        return request.answer, request.blocks

    def _make(self, inherited: Drive[RequestEngine] | None) -> Drive[RequestEngine]:
        self._made = Drive(RequestEngine(self._address, self._target))
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


class Admin(_Asker):
    """Topics and channels by command. `timeout` in seconds, for each call.

    A call whose link is lost raises `BrokerUnreachable`: whether it took effect is then not known.
    """

    def __init__(self, url: str | None = None, *, timeout: float = TIMEOUT_S) -> None:
        super().__init__(url, Target("supervisor"), timeout)

    def _manage(self, action: str, topic: str, channel: str | None = None, **options: Any) -> dict[str, Any]:
        answer, _ = self._ask(manage(action, topic, channel, options), repeatable=False)
        return _data(answer)

    def create_topic(self, name: str, sync: str = "always") -> dict[str, Any]:
        """`sync`: always, interval or never. {"existed": True} if it was there; then nothing was changed."""
        answer, _ = self._ask(create_topic(name, sync), repeatable=False)
        return _data(answer)

    def create_channel(self, topic: str, channel: str) -> dict[str, Any]:
        return self._manage("create", topic, channel)

    def delete_topic(self, name: str, force: bool = False) -> dict[str, Any]:
        """Refused with E_NOT_EMPTY while messages are unfinished, unless forced."""
        return self._manage("delete", name, force=force)

    def delete_channel(self, topic: str, channel: str, force: bool = False) -> dict[str, Any]:
        """Refused with E_NOT_EMPTY while messages are unfinished, unless forced."""
        return self._manage("delete", topic, channel, force=force)

    def pause(self, topic: str, channel: str | None = None) -> dict[str, Any]:
        """A paused topic shows its channels nothing new; a paused channel delivers nothing."""
        return self._manage("pause", topic, channel)

    def unpause(self, topic: str, channel: str | None = None) -> dict[str, Any]:
        return self._manage("unpause", topic, channel)

    def empty(self, topic: str, channel: str | None = None) -> dict[str, Any]:
        """Clear what waits: of a topic, what waits for its first channel; of a channel, its backlog."""
        return self._manage("empty", topic, channel)

    def stats(self, topic: str | None = None, channel: str | None = None) -> dict[str, Any]:
        """Statistics of everything, of one topic or of one channel, freshly asked."""
        answer, _ = self._ask(stats(topic, channel), repeatable=True)
        return _data(answer)

    def ping(self) -> str:
        """The broker's health: "OK", or what is wrong with it."""
        return str(self.stats().get("health", "OK"))


class Reader(_Asker):
    """Reads a topic by offset; no channel takes part, nothing is finished. `NotFound` where there is no such topic."""

    def __init__(self, url: str | None, topic: str, *, timeout: float = TIMEOUT_S) -> None:
        super().__init__(url, Target("reader", check_name(topic), create=False), timeout)
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


def _data(answer: Any) -> dict[str, Any]:
    assert isinstance(answer, Done)
    return answer.data
