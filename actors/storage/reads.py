"""Reads of storage: by offset, by time and by bytes, for channels and for readers (Spark, tail).

A file that cannot be read now (a chunk without permissions, a mount that is missing for a moment)
is not lost. A reader gets an error and may try again. A channel's request waits here and is tried
again every second, and an alarm is shown meanwhile. Publishers notice nothing.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from ...storage.errors import Damaged, NotHere, OutOfReach, Unreadable
from ...storage.log.log import Log
from ...transport.block.block import Block, missing, without_bodies
from ...transport.errors import E_BAD_ARGUMENT, E_BUCKET, E_INTERNAL, Refused, UsageError, ZsqError
from ...transport.wire import protocol as p
from ..primitives.ranges import unread, without
from ..runtime.port import Envelope, Mail, Port
from ..settings import options
from .extension_point import StorageExtension

log = logging.getLogger("zsq")

NEWEST_MAX = 10_000
# The largest number of waiting reads of channels. A further read replaces the oldest one. The
# channel of the replaced read asks again when it moves to another offset.
WAITING_MAX: Final = 10_000
RETRIES_MAX: Final = 64  # waiting reads that one tick tries again


Handler = Callable[[Port, Mail, Any], None]


class _Waiting(NamedTuple):
    """A channel's read that could not be done."""

    port: Port
    mail: Mail
    message: p.Fetch


class Reads:
    """Serves readers as far as the extension allows, and channels up to `channels_end`.

    A request whose bytes are not on this disk waits until they are fetched (`arrived`). `stir` is
    called for heartbeats, so that a topic with a reader does not fall asleep.
    """

    def __init__(
        self,
        store_log: Log,
        channels_end: Callable[[], int],
        alarm: Callable[[str], None],
        extension: StorageExtension,
        stir: Callable[[], object] = lambda: None,
    ) -> None:
        self._extension = extension
        self._stir = stir
        self._log = store_log
        self._channels_end = channels_end
        self._alarm = alarm
        self._waiting: OrderedDict[tuple[Envelope, int], _Waiting] = OrderedDict()
        self._fetching: OrderedDict[tuple[Envelope, int], Callable[[], object]] = OrderedDict()
        self.unreadable = ""
        """The reason why reads wait, for the health report. It is empty while no read waits."""

    def route(self, port: Port) -> None:
        """Serve the readers that connect to this port."""
        port.route(p.Fetch, self.patient(self._of_primary(self.fetch)))
        port.route(p.OffsetAt, self.patient(self._of_primary(self.find_offset)))
        port.route(p.Measure, self.patient(self._of_primary(self.measure)))
        port.route(p.Beat, self._of_primary(self.beat))
        port.route(p.Bye, self.bye)

    def _of_primary(self, handle: Handler) -> Handler:
        def carry_out(port: Port, mail: Mail, message: Any) -> None:
            self._extension.check_primary()
            handle(port, mail, message)

        return carry_out

    def patient(self, handle: Handler) -> Handler:
        """Return a handler that lets a request wait while its bytes are fetched."""

        def carry_out(port: Port, mail: Mail, message: Any) -> None:
            try:
                handle(port, mail, message)
            except NotHere:
                self._wait(mail.envelope, message.request, partial(again, port, mail, message))

        def again(port: Port, mail: Mail, message: Any) -> None:
            try:
                carry_out(port, mail, message)
            except ZsqError as error:
                port.send(mail.envelope, p.Failed(message.request, error.code, error.text))

        return carry_out

    def _wait(self, envelope: Envelope, request: int, again: Callable[[], object]) -> None:
        self._fetching[(envelope, request)] = again
        if len(self._fetching) > WAITING_MAX:
            self._fetching.popitem(last=False)

    def arrived(self) -> None:
        """Try the requests again that wait for bytes which are not on this disk."""
        waiting, self._fetching = self._fetching, OrderedDict()
        for again in waiting.values():
            again()

    def fetch_for_channel(self, port: Port, mail: Mail, message: p.Fetch) -> None:
        """Answer a channel's read, or keep it until it can be answered.

        An error would make the channel skip messages that may be readable later.
        """
        try:
            self._fetch(port, mail, message, self._channels_end(), options.READ_BYTES_MAX)
        except NotHere:
            again = partial(self.fetch_for_channel, port, mail, message)
            self._wait(mail.envelope, message.request, again)
        except Unreadable as error:
            if not self.unreadable:
                log.error(
                    "%s; reads of channels wait, and the broker tries them again every second",
                    error,
                )
            self.unreadable = f"reads of channels wait: {error}"
            self._waiting[(mail.envelope, message.request)] = _Waiting(port, mail, message)
            if len(self._waiting) > WAITING_MAX:
                self._waiting.popitem(last=False)

    def tick(self) -> None:
        """Try waiting reads again. Called about once a second."""
        for _ in range(min(RETRIES_MAX, len(self._waiting))):
            _, waiting = self._waiting.popitem(last=False)
            self.fetch_for_channel(*waiting)
        if not self._waiting and not self._fetching:
            self.unreadable = ""

    def _fetch(self, port: Port, mail: Mail, message: p.Fetch, end: int, max_bytes: int) -> None:
        """Send the blocks below `end`, up to about `max_bytes` bytes."""
        if message.offset < 0 or message.max_bytes < 0:
            raise UsageError(
                E_BAD_ARGUMENT,
                (
                    f"offset and max_bytes must be 0 or more, not {message.offset} and "
                    f"{message.max_bytes}"
                ),
            )
        offset = max(message.offset, self._log.start)
        blocks = self._read(offset, min(max(1, message.max_bytes), max_bytes), end)
        next_offset = self._log.skip(blocks[-1].next_offset if blocks else offset)
        lost = without(missing(offset, blocks, next_offset), self._log.gaps)
        if not message.bodies:
            blocks = [without_bodies(block) for block in blocks]
        port.send(
            mail.envelope,
            p.Blocks(message.request, self._log.start, end, next_offset, lost),
            blocks,
        )

    def _read(self, offset: int, max_bytes: int, end: int) -> list[Block]:
        """Read blocks, and raise an alarm for each damaged place.

        The log notes damaged blocks as holes when it finds them, and the next read skips the holes.
        The reply names them as lost.
        """
        while True:
            try:
                return self._log.read(offset, max_bytes, end, p.FRAMES_MAX // 2)
            except Damaged as damage:
                self._alarm(str(damage))

    # Readers

    def fetch(self, port: Port, mail: Mail, message: p.Fetch) -> None:
        try:
            self._fetch(
                port, mail, message, self._extension.readers_end(), options.READER_BYTES_MAX
            )
        except NotHere:
            raise
        except Unreadable as error:
            raise refused(error) from None

    def _within(self, offset: int) -> int:
        return min(max(offset, self._log.start), self._extension.readers_end())

    def find_offset(self, port: Port, mail: Mail, message: p.OffsetAt) -> None:
        if not 0 <= message.newest <= NEWEST_MAX:
            raise UsageError(
                E_BAD_ARGUMENT,
                f"the number of newest messages must be 1 to {NEWEST_MAX}, not {message.newest}",
            )
        offset = self._newest(message.newest) if message.newest else self.offset_at(message.time_ns)
        data: dict[str, Any] = {
            "offset": offset,
            "start": self._log.start,
            "head": self._extension.readers_end(),
        }
        archived = self._extension.archived()
        if archived is not None:
            data["archive"] = archived._asdict()
        port.send(mail.envelope, p.Done(message.request, data))

    def _newest(self, count: int) -> int:
        try:
            return self._within(self._log.reader.newest(count, self._extension.readers_end()))
        except NotHere:
            raise
        except Unreadable as error:
            raise refused(error) from None

    def find_for_order(
        self, answer: Callable[[p.Position | p.Failed], object], order: p.FindOffset
    ) -> p.Position | None:
        """Carry out an order of the supervisor. None: `answer` is called later."""
        try:
            return p.Position(order.request, self.offset_at(order.time_ns))
        except NotHere:
            again = partial(self._find_again, answer, order)
            self._wait((b"order",), order.request, again)
            return None

    def _find_again(
        self, answer: Callable[[p.Position | p.Failed], object], order: p.FindOffset
    ) -> None:
        try:
            reply = self.find_for_order(answer, order)
        except ZsqError as error:
            answer(p.Failed(order.request, error.code, error.text))
            return
        if reply is not None:
            answer(reply)

    def offset_at(self, time_ns: int) -> int:
        """Return the first offset stored at that time or later, among kept and durable messages.

        Raises `NotHere`.
        """
        try:
            return self._within(self._log.offset_at(time_ns))
        except NotHere:
            raise
        except Unreadable as error:
            raise refused(error) from None

    def measure(self, port: Port, mail: Mail, message: p.Measure) -> None:
        head = self._extension.readers_end()
        start, end = (
            self._within(message.start),
            head if message.end < 0 else self._within(message.end),
        )
        try:
            end = max(start, end)
            size, offset = self._log.measure(start, end, max(1, message.max_bytes))
        except OutOfReach as error:
            raise refused(error) from None
        port.send(
            mail.envelope,
            p.Done(
                message.request,
                {
                    "bytes": size,
                    "offset": offset,
                    "start": self._log.start,
                    "head": head,
                    "messages": unread(start, end, self._log.absent),
                },
            ),
        )

    def beat(self, port: Port, mail: Mail, message: p.Beat) -> None:
        self._stir()
        port.send(mail.envelope, p.Beat())

    def bye(self, port: Port, mail: Mail, message: p.Bye) -> None:
        """Do nothing: storage keeps no state for a reader."""


def refused(error: Unreadable) -> Refused:
    if isinstance(error, OutOfReach):
        return Refused(E_BUCKET, str(error))
    return Refused(
        E_INTERNAL, f"{error}; nothing is known to be lost: make the file readable, then try again"
    )
