"""Storage's desk for reads by offset, by time and by bytes: of its channels, and of readers from outside (Spark, tail).

What cannot be read now (a chunk without rights, a mount gone for a moment) is not lost: a reader from outside is told so and may ask
again; a channel's request waits here and is tried again every second, and an alarm stands meanwhile. Publishers notice nothing.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, cast

from ..storage.errors import Damaged, Unreadable
from ..storage.log import Log
from ..transport import protocol as p
from ..transport.block import Block
from ..transport.errors import E_BAD_ARGUMENT, E_INTERNAL, Refused, UsageError
from . import options
from .port import Envelope, Mail, Port

log = logging.getLogger("zsq")

NEWEST_MAX = 10_000
WAITING_MAX: Final = 10_000  # reads of channels that cannot be done now; the oldest goes, and its channel asks when it is moved
RETRIES_MAX: Final = 64  # of them, at a time

READER_WORDS = frozenset((p.Fetch, p.OffsetAt, p.Measure, p.Beat, p.Bye))


class _Waiting(NamedTuple):
    """A channel's read that could not be done."""

    port: Port
    mail: Mail
    end: int
    bytes_max: int


class ReadDesk:
    """Handles the words of readers from outside, who see what is durable; `fetch` serves the channels too."""

    def __init__(self, store_log: Log, title: str) -> None:
        self._log = store_log
        self.alarm: Callable[[str], None] = partial(log.error, "%s: %s", title)
        self._waiting: OrderedDict[tuple[Envelope, int], _Waiting] = OrderedDict()
        self.unreadable = ""
        """Why reads wait, for health; empty while none does."""

    def fetch(self, port: Port, mail: Mail, end: int, bytes_max: int) -> None:
        """For a channel. It gets no answer before there is one: an error would make it step over what may be readable tomorrow."""
        try:
            self._fetch(port, mail, end, bytes_max)
        except Unreadable as error:
            if not self.unreadable:
                log.error("%s; reads of it wait, and are tried again", error)
            self.unreadable = f"reads of channels wait: {error}"
            self._waiting[(mail.envelope, cast("p.Fetch", mail.word).request)] = _Waiting(port, mail, end, bytes_max)
            if len(self._waiting) > WAITING_MAX:
                self._waiting.popitem(last=False)

    def tick(self) -> None:
        """About once a second: reads that wait are tried again."""
        for _ in range(min(RETRIES_MAX, len(self._waiting))):
            _, (port, mail, end, bytes_max) = self._waiting.popitem(last=False)
            self.fetch(port, mail, end, bytes_max)
        if not self._waiting:
            self.unreadable = ""

    def _fetch(self, port: Port, mail: Mail, end: int, bytes_max: int) -> None:
        """Blocks below `end`, about `bytes_max` of them at most."""
        word = cast("p.Fetch", mail.word)
        if word.offset < 0 or word.bytes_max < 0:
            raise UsageError(E_BAD_ARGUMENT, "offset and bytes_max are 0 or more")
        offset = max(word.offset, self._log.start)
        blocks = self._read(offset, min(max(1, word.bytes_max), bytes_max), end)
        next_offset = self._log.skip(blocks[-1].next_offset if blocks else offset)
        port.send(mail.envelope, p.Blocks(word.request, self._log.start, end, next_offset), blocks)

    def _read(self, offset: int, bytes_max: int, end: int) -> list[Block]:
        """Damage is set aside by the log when it is met, and stepped over by the next read; readers see the gap."""
        while True:
            try:
                return self._log.read(offset, bytes_max, end, p.FRAMES_MAX // 2)
            except Damaged as damage:
                self.alarm(str(damage))

    # Readers from outside

    def on_fetch_word(self, port: Port, mail: Mail) -> None:
        try:
            self._fetch(port, mail, self._log.synced_end, options.READER_BYTES_MAX)
        except Unreadable as error:
            raise refused(error) from None

    def _within(self, offset: int) -> int:
        return min(max(offset, self._log.start), self._log.synced_end)

    def on_offsetat_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.OffsetAt", mail.word)
        if not 0 <= word.newest <= NEWEST_MAX:
            raise UsageError(E_BAD_ARGUMENT, f"of the newest messages 1 to {NEWEST_MAX} can be asked for, not {word.newest}")
        offset = self._newest(word.newest) if word.newest else self.offset_at(word.time_ns)
        data = {"offset": offset, "start": self._log.start, "head": self._log.synced_end}
        port.send(mail.envelope, p.Done(word.request, data))

    def _newest(self, count: int) -> int:
        try:
            return self._within(self._log.reader.newest(count, self._log.synced_end))
        except Unreadable as error:
            raise refused(error) from None

    def offset_at(self, time_ns: int) -> int:
        """The first offset stored then or later, within what is kept and durable."""
        try:
            return self._within(self._log.offset_at(time_ns))
        except Unreadable as error:
            raise refused(error) from None

    def on_measure_word(self, port: Port, mail: Mail) -> None:
        word = cast("p.Measure", mail.word)
        head = self._log.synced_end
        start, end = self._within(word.start), head if word.end < 0 else self._within(word.end)
        size, offset = self._log.measure(start, max(start, end), max(1, word.bytes_max))
        port.send(mail.envelope, p.Done(word.request, {"bytes": size, "offset": offset, "start": self._log.start, "head": head}))

    def on_beat_word(self, port: Port, mail: Mail) -> None:
        port.send(mail.envelope, p.Beat())

    def on_bye_word(self, port: Port, mail: Mail) -> None:
        """Nothing is kept of a reader."""


def refused(error: Unreadable) -> Refused:
    return Refused(E_INTERNAL, f"{error}; nothing is known to be lost: mend what is wrong with the file, and ask again")
