"""Shipping of one topic: hands what is on disk to the archive actor, in the order of the commits.

Only synced bytes of the log and committed rows are shipped, so the bucket never runs ahead of the
disk. The rows of a commit never mention offsets beyond the log that is shipped with or before them.
`storage/bucket/shipping/tick_format.py` has the pieces.

| state | event | next | action |
|---|---|---|---|
| CLOSED | the first tick, or a pause is over | OPENING | ask what the log of ticks has |
| OPENING | the answer | OPEN | go on behind it; ship all rows, except if the answer is about this process |
| OPENING | the bucket is away | CLOSED | ask again after a pause |
| OPENING, OPEN | another copy has taken over | FENCED | refuse publishes |
| OPENING | the data is a copy of another broker's | OFF | nothing is shipped |
| CLOSED, OPENING, OPEN | the topic is set to archive off | OFF | nothing is shipped |
| OFF | the topic is set to archive on | CLOSED | ship all rows |
| OPEN | a piece was refused | CLOSED | ship all rows again, after a pause |
| OPENING, OPEN | the archive actor died | CLOSED | send the same pieces again, if they are missing |

A topic has two more machines: `base_dump.py` has all rows, from the wish for them until a piece has
them. The parts are `change_queue.py` (commits), `log_cursor.py` (bytes of the log),
`piece_window.py` (pieces on their way), `offset_reserve.py` and `ship_bound.py` (who waits).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any, ClassVar

from ....storage.bucket.shipping.log_facts import first_unarchived, stored_ns
from ....storage.bucket.shipping.tick_format import CHANGES_BYTES_MAX, TICK_BYTES
from ....storage.row_changes import DELAYED, DELAYED_BEGIN, STATE, Change, encode_frames
from ....transport.errors import E_BUCKET, E_FENCED, Refused
from ....transport.units import NS_PER_S
from ....transport.wire import protocol as p
from ...storage.extension_point import ExtendedStorage
from .archive_link import Answer, ArchiveLink
from .base_dump import BaseDump
from .change_queue import ChangeQueue, Entry
from .log_cursor import LogCursor
from .offset_reserve import OffsetReserve
from .piece_window import PieceWindow, Sent, Shipped
from .row_dumps import INLINE_BYTES, RowDumps
from .ship_bound import ShipBound, earliest
from .sync_marks import SyncMarks

log = logging.getLogger("zsq")


@dataclass(slots=True)
class ShipLimits:
    """The limits of shipping. Tests make them small."""

    piece_bytes: int = TICK_BYTES
    """The most bytes of the log in a piece."""
    together_bytes: int = 32 * 1024 * 1024
    """The same in a piece that must have the rows about them too."""
    changes_bytes: int = CHANGES_BYTES_MAX
    """The most bytes of changes in a piece."""
    eager_bytes: int = 1024 * 1024
    """With so much new, a piece is sent at once."""
    waiting_bytes: int = 16 * 1024 * 1024
    """The most bytes of changes that wait. Beyond them, all rows are shipped again."""
    inline_bytes: int = INLINE_BYTES
    """All rows of a store go to a file if they have more bytes."""
    patience_s: float = 20.0
    """Publishes that waited this long are refused."""
    pause_s: float = 1.0
    """The pause after the archive actor refused something."""


class ShippingState(Enum):
    CLOSED = "closed"
    OPENING = "opening"
    OPEN = "open"
    FENCED = "fenced"
    OFF = "off"


class ShippingEvent(Enum):
    DUE = "the first tick, or a pause is over"
    ANSWERED = "the answer"
    AWAY = "the bucket is away"
    TAKEN_OVER = "another copy has taken over"
    FOREIGN = "the data is a copy of another broker's"
    TURNED_OFF = "the topic is set to archive off"
    TURNED_ON = "the topic is set to archive on"
    REFUSED = "a piece was refused"
    GONE = "the archive actor died"


class Shipping:
    """The shipping of one topic. `on_shipped` is called when more of it is in the log of ticks.

    `is_urgent` is True if publishes are answered only after they are shipped.
    """

    def __init__(
        self,
        storage: ExtendedStorage,
        uuid: str,
        link: ArchiveLink,
        lag_s: float,
        on_shipped: Callable[[], object],
        *,
        is_urgent: bool,
        is_on: bool = True,
        limits: ShipLimits | None = None,
    ) -> None:
        self._storage = storage
        self._store = store = storage.store
        self._uuid = uuid
        self._link = link
        self._on_shipped = on_shipped
        self._limits = limits = limits or ShipLimits()
        self.is_urgent = is_urgent
        self.state = ShippingState.CLOSED
        self.trouble = ""
        self.is_known = False
        """True when the archive actor has told what the log of ticks has."""
        self._retry_ns = 0  # in CLOSED
        self._window = PieceWindow()
        self.shipped = Shipped()
        self._queue = ChangeQueue()
        self._marks = SyncMarks()
        self._cursor = LogCursor(store, self._marks, self.shipped)
        self.reserve = OffsetReserve(store.log, self.shipped)
        self._bound = ShipBound(
            store.log, self._marks, self._queue, self.reserve, self.shipped, lag_s,
            limits.patience_s,
        )  # fmt: skip
        # All topics send their pieces at the multiples of the period, so one tick has them all.
        self._period_ns = self._bound.lag_ns // 2
        self._period = 0
        # Callers of `then`, with the end of the log and the serial that they wait for.
        self._waiters: deque[tuple[int, int, Callable[[], object]]] = deque()
        self._dumps = RowDumps(store.files, store.directory, limits.inline_bytes)
        self._base = BaseDump(
            storage, self._dumps, self._queue, link, uuid,
            self.push, self._dump_failed, partial(self._happen, ShippingEvent.REFUSED),
        )  # fmt: skip
        link.handle(p.ShipAgain, self._again)
        if not is_on:
            self.state, self.is_known = ShippingState.OFF, True
            self._queue.close()
            return
        store.state.on_changes = partial(self._queue.note_changes, STATE)
        if store.delayed is not None:
            store.delayed.on_changes = partial(self._queue.note_changes, DELAYED)
            self._queue.note_unknown_delayed()
        self._bound.note_sync(force=True)

    def _happen(self, event: ShippingEvent, *details: Any) -> None:
        """Change the state, and do what the table says. Other events change nothing."""
        if (step := self.TABLE.get((self.state, event))) is not None:
            self.state, action = step
            action(self, *details)

    def set_bound(self, lag_s: float) -> None:
        self._bound.set(lag_s)
        self._period_ns = self._bound.lag_ns // 2  # until the archive actor tells another one

    def turn(self, *, is_on: bool) -> None:
        """Ship the topic from now on, or no longer."""
        self._happen(ShippingEvent.TURNED_ON if is_on else ShippingEvent.TURNED_OFF)

    # Actions of the table

    def _ask(self) -> None:
        self._link.ask(partial(p.OpenShipping, uuid=self._uuid), self._opened)

    def _open(self, tail: Mapping[str, Any]) -> None:
        """Ship from now on what the log of ticks does not have. It has the topic up to `tail`."""
        self.is_known = True
        if self.trouble:
            log.warning("%s: shipped to the bucket again", self._storage.title)
        self.trouble = ""
        self._go_on_behind(tail)
        self._on_shipped()
        self.tick()
        self.push()  # it reserves offsets

    def _pause(self, why: str) -> None:
        self._note(why)
        self._retry_ns = time.monotonic_ns() + int(self._limits.pause_s * NS_PER_S)

    def _begin_again(self, why: str) -> None:
        """Begin a new stream after a pause."""
        self._pause(why)
        self._begin_stream()
        self._drop_changes()

    def _reopen(self) -> None:
        self._retry_ns = 0

    def _fence(self, why: str) -> None:
        """Ship and accept nothing any more. Those who wait for the bucket are never called."""
        log.error("%s: publishing ends: %s", self._storage.title, why)
        self.trouble, self.is_known = why, True
        self._forget_all()
        self._waiters.clear()
        self.reserve.retry()  # `check` refuses them

    def _turn_off(self) -> None:
        """Forget what waits to be shipped. Nobody waits for it any more."""
        self.trouble, self.is_known = "", True
        self._forget_all()
        self._bound.release()
        self._marks.clear()
        while self._waiters:
            self._waiters.popleft()[2]()
        self.reserve.retry()
        self._on_shipped()

    def _turn_on(self) -> None:
        self._retry_ns = 0
        self._queue.is_open = True
        self.shipped.is_caught_up = False
        self._bound.note_sync(force=True)

    TABLE: ClassVar[
        Mapping[tuple[ShippingState, ShippingEvent], tuple[ShippingState, Callable[..., None]]]
    ] = {
        (ShippingState.CLOSED, ShippingEvent.DUE): (ShippingState.OPENING, _ask),
        (ShippingState.OPENING, ShippingEvent.ANSWERED): (ShippingState.OPEN, _open),
        (ShippingState.OPENING, ShippingEvent.AWAY): (ShippingState.CLOSED, _pause),
        (ShippingState.OPENING, ShippingEvent.TAKEN_OVER): (ShippingState.FENCED, _fence),
        (ShippingState.OPEN, ShippingEvent.TAKEN_OVER): (ShippingState.FENCED, _fence),
        (ShippingState.OPENING, ShippingEvent.FOREIGN): (ShippingState.OFF, _turn_off),
        (ShippingState.CLOSED, ShippingEvent.TURNED_OFF): (ShippingState.OFF, _turn_off),
        (ShippingState.OPENING, ShippingEvent.TURNED_OFF): (ShippingState.OFF, _turn_off),
        (ShippingState.OPEN, ShippingEvent.TURNED_OFF): (ShippingState.OFF, _turn_off),
        (ShippingState.OFF, ShippingEvent.TURNED_ON): (ShippingState.CLOSED, _turn_on),
        (ShippingState.OPEN, ShippingEvent.REFUSED): (ShippingState.CLOSED, _begin_again),
        (ShippingState.OPENING, ShippingEvent.GONE): (ShippingState.CLOSED, _reopen),
        (ShippingState.OPEN, ShippingEvent.GONE): (ShippingState.CLOSED, _reopen),
    }

    def _begin_stream(self, *, lacks_base: bool = False) -> None:
        """Forget the pieces on their way. All rows have what was in those that are lost."""
        for sent in self._window.out:
            self._link.drop(sent.request)
        self._window = PieceWindow(self.shipped.serial, lacks_base)

    def _drop_changes(self) -> None:
        """Forget the changes that wait, because they are too many. All rows are shipped later."""
        self._queue.clear()
        self._base.drop()

    def _forget_all(self) -> None:
        """Forget what waits to be shipped, because nothing is shipped any more."""
        self._begin_stream()
        self._queue.close()
        self._base.drop()
        self._store.state.on_changes = None
        if self._store.delayed is not None:
            self._store.delayed.on_changes = None

    def _note(self, why: str) -> None:
        if not self.trouble:
            log.warning(
                "%s: not shipped to the bucket: %s; the broker tries again",
                self._storage.title, why,
            )  # fmt: skip
        self.trouble = why

    def _dump_failed(self, why: str) -> None:
        self._note(why)
        self._queue.clear()

    # What happens on the disk

    def delayed_made(self) -> None:
        """Note that the topic has a store of delayed messages now, which is empty."""
        store = self._store.delayed
        assert store is not None
        if self._queue.is_open:
            rows: list[Change] = [row for batch in store.dump() for row in batch]
            frames = tuple(encode_frames(DELAYED_BEGIN, rows))
            self._queue.note(Entry(DELAYED, frames, time.monotonic_ns(), begins=True))
            store.on_changes = partial(self._queue.note_changes, DELAYED)

    def synced(self) -> None:
        """Note that more of the log is synced."""
        self._note_sync()
        self._push_if_eager()

    def _note_sync(self) -> None:
        if self.state is not ShippingState.OFF:
            self._bound.note_sync()

    def _drain(self) -> None:
        """Take what the threads noted."""
        self._queue.drain(self._base.takes)
        # The upload of many rows takes long, and must not be overtaken by the changes meanwhile.
        share = 4 if self._base.is_begun else 1
        if self._queue.size > share * self._limits.waiting_bytes:
            self._drop_changes()

    # The link

    def gone(self) -> None:
        """Open the link again, because the archive actor died."""
        self._base.gone()
        self._happen(ShippingEvent.GONE)

    def next_ns(self) -> int:
        """Return the monotonic time of the next call of `tick`."""
        now = time.monotonic_ns()
        if self.state is ShippingState.CLOSED:
            return max(self._retry_ns, now)
        return (now // self._period_ns + 1) * self._period_ns

    def tick(self) -> None:
        """Open the link. At the beginning of a period, send what is new."""
        now = time.monotonic_ns()
        if now >= self._retry_ns:
            self._happen(ShippingEvent.DUE)
        self._drain()
        self._note_sync()
        if self._bound.is_commit_overdue:
            self.reserve.retry()  # `check` refuses them
        if self.state is ShippingState.OPEN:
            self._base.begin()
            period = now // self._period_ns
            if period != self._period:
                self._period = period
                self.push()

    def _opened(self, answer: Answer) -> None:
        if isinstance(answer, p.Failed):
            is_fenced = answer.code == E_FENCED
            event = ShippingEvent.TAKEN_OVER if is_fenced else ShippingEvent.AWAY
            self._happen(event, answer.text)
            return
        tail = dict(answer.data)
        self._period_ns = tail.pop("period_ns", self._period_ns)
        end = self._store.log.end
        if tail.get("writes", True) is False:
            self._happen(ShippingEvent.FOREIGN)
        elif tail and tail["end"] > end:
            self._happen(
                ShippingEvent.TAKEN_OVER,
                f"the bucket has messages up to offset {tail['end']}, and the data directory ends "
                f"at {end}: it is an older copy; restore the broker with zsq restore",
            )
        else:
            self._happen(ShippingEvent.ANSWERED, tail)

    def _go_on_behind(self, tail: Mapping[str, Any]) -> None:
        """Send again what the log of ticks does not have, and go on behind it."""
        if tail and tail["stream"] == self._window.stream:
            arrived = self._window.take_up_to(tail["sequence"])
            for sent in self._window.out:
                self._send(sent)
            for sent in arrived:  # this may send new pieces, which must follow
                self._confirm(sent)
            return
        self._begin_stream(lacks_base=not tail)
        self._base.need()
        log_start, log_end = self._store.log.start, self._store.log.end
        # A topic without messages is protected from its first one on.
        self.shipped.is_caught_up = log_end == log_start
        if tail:
            self.shipped.end = tail["end"]
            self.reserve.begin(tail["reserved"])
            self._cursor.begin((tail["chunk"], tail["position"]), tail["end"])
            # Without rows in the log of ticks, the topic has not caught up yet.
            self.shipped.is_caught_up |= tail["base_number"] >= 0
            self._bound.note_shipped()
            self._marks.age(stored_ns(self._store.log, self.shipped.end))
        else:
            self.shipped.end = first = first_unarchived(self._store)
            self.reserve.begin(-1)
            self._cursor.begin((first, 0), first)

    def _again(self, message: p.ShipAgain) -> None:
        """Ship again what is in old ticks, so that they can be removed."""
        if self.state is not ShippingState.OPEN:
            return
        if message.begins:
            self._base.need()
        if self._store.log.chunks[-1] < message.roll_below:
            self._storage.roll()
            self._note_sync()
        self.tick()

    # Pieces

    def _new_bytes(self) -> int:
        """Return about how much is not in a piece yet."""
        return self._cursor.new_bytes(self._limits.eager_bytes) + self._queue.size

    @property
    def _is_news(self) -> bool:
        if self._cursor.is_behind or self.reserve.is_low:
            return True
        if not self._base.is_none:
            return self._base.is_ready
        return bool(self._queue) or self._cursor.first_kept() > self._cursor.kept_from

    @property
    def _waits_for_base(self) -> bool:
        """True while no piece may be sent, because the first one must have all rows.

        Without the rows, a restore could not use the messages, although they count as shipped.
        """
        return self._window.lacks_base and not self._base.is_ready

    @property
    def _waits_for_dump(self) -> bool:
        """True until all rows are dumped, if some are about delayed messages.

        Messages that were delayed are in the log when they are due. A broker that is restored with
        them and without the rows about them would not know their producer. If the producer sent
        them again, it would store them twice. If the rows are so many that they are uploaded first,
        the log does not wait for them: publishers would wait too long.
        """
        is_dumped = self._base.is_none or self._base.is_complete
        return self._store.delayed is not None and not is_dumped

    @property
    def _waits_for_start(self) -> bool:
        """True until all rows can go with the next piece, if messages have expired that were never
        shipped.

        Only the rows say that the log begins behind them. A broker that is restored with what
        follows, and without these rows, would miss them.
        """
        is_ready = self._base.is_none or self._base.is_ready
        return self._cursor.is_start_missing and not is_ready

    @property
    def _goes_together(self) -> bool:
        """True if the next piece must have all of the log, and the rows about it."""
        return (
            (self._base.is_ready and self._store.delayed is not None)
            or (self._queue.delayed > 0 and self._base.is_none)
            or self._cursor.is_start_missing
        )

    def push(self) -> None:
        """Send pieces with what is new, as far as the window allows."""
        self._drain()
        self._note_sync()
        if self.state is ShippingState.OPEN and not self._cursor.waits_for_archive:
            self._base.upload(self._window.stream)
        while (
            self.state is ShippingState.OPEN
            and not self._window.is_full
            and self._is_news
            and not self._cursor.waits_for_archive
            and not self._waits_for_base
            and not self._waits_for_dump
            and not self._waits_for_start
        ):
            if not self._push_one():
                return

    def _push_if_eager(self) -> None:
        """Send what is new at once, if somebody waits for it or much is new."""
        if self.is_urgent or self._new_bytes() >= self._limits.eager_bytes or self.reserve.is_low:
            self.push()

    def _push_one(self) -> bool:
        """Send one piece. Return True if more may follow at once."""
        limits, window, base = self._limits, self._window, self._base
        oldest_ns = self._unsent_ns or time.monotonic_ns()
        together = self._goes_together
        stretch = self._cursor.next_stretch(
            limits.together_bytes if together else limits.piece_bytes
        )
        begins = not stretch.is_full and base.is_ready
        base_object, changes = base.take() if begins else ("", [])
        size = sum(map(len, changes))
        if base.is_none and not stretch.is_full:
            wanted_bytes = limits.changes_bytes if together else limits.eager_bytes
            size = self._queue.take(wanted_bytes, limits.changes_bytes, changes)
        if size > limits.changes_bytes:
            self._happen(
                ShippingEvent.REFUSED,
                f"a commit has {size} bytes of changes, and {limits.changes_bytes} can be sent",
            )
            return False
        window.lacks_base = window.lacks_base and not begins
        window.sequence += 1
        if base.is_none:
            window.serial = self._queue.taken_serial
            if not self._queue:  # the rows of all archived chunks are in the pieces
                self._cursor.kept_from = self._cursor.first_kept()
        message = p.Ship(
            0, self._uuid, self._store.directory, window.stream, window.sequence, begins,
            base_object, stretch.end, self.reserve.ask(stretch.end), self._cursor.kept_from,
            tuple(stretch.ranges), oldest_ns, self._is_awaited, b"".join(changes),
        )  # fmt: skip
        self._cursor.advance(stretch)
        sent = Sent(message, stretch.place, window.serial, size=size + stretch.size)
        window.out.append(sent)
        self._send(sent)
        return stretch.is_full or bool(self._queue)

    def _send(self, sent: Sent) -> None:
        self._link.drop(sent.request)
        sent.request = self._link.ask(
            lambda request: replace(sent.message, request=request), partial(self._answered, sent)
        )

    def _answered(self, sent: Sent, answer: Answer) -> None:
        if isinstance(answer, p.Failed):
            is_fenced = answer.code == E_FENCED
            event = ShippingEvent.TAKEN_OVER if is_fenced else ShippingEvent.REFUSED
            self._happen(event, answer.text)
            return
        # The log has this piece, so it has all earlier ones of the stream: without them, the piece
        # would have been refused. An earlier answer may have been lost with a broken connection.
        arrived = self._window.take_up_to(sent.message.sequence)
        assert arrived
        self._period_ns = answer.data.get("period_ns", self._period_ns)
        for earlier in arrived:
            self._link.drop(earlier.request)
        for earlier in arrived:
            self._confirm(earlier)
        self._push_if_eager()

    def _confirm(self, sent: Sent) -> None:
        shipped = self.shipped
        shipped.end = max(shipped.end, sent.message.end)
        shipped.serial = max(shipped.serial, sent.serial)
        # It was caught up when this piece was made.
        shipped.is_caught_up = shipped.is_caught_up or sent.message.begins
        self._bound.note_shipped()
        self._queue.shipped(shipped.serial)
        while self._waiters and self._has(*self._waiters[0][:2]):
            self._waiters.popleft()[2]()
        self.reserve.confirm(sent.message.reserved)
        self._on_shipped()

    def _has(self, end: int, serial: int) -> bool:
        """Return True if the log of ticks has so much of the log, this entry, and all before."""
        shipped = self.shipped
        return shipped.is_caught_up and end <= shipped.end and serial <= shipped.serial

    # Who waits

    @property
    def _is_bound(self) -> bool:
        """True if others wait for what is not shipped."""
        return self.state is not ShippingState.OFF and self.shipped.is_caught_up

    @property
    def _is_awaited(self) -> bool:
        """True if somebody waits for the next piece."""
        runs_out = self.shipped.is_caught_up and self.reserve.is_nearly_used
        return self.is_urgent or self._bound.held_ns > 0 or runs_out

    def then(self, action: Callable[[], object], *, is_promised: bool = False) -> None:
        """Call `action` when all that is synced and committed now is in the log of ticks.

        It is called at once if this topic is not shipped, and never if another copy of the broker
        has taken over. While a topic catches up, only what `is_promised` to be in the bucket waits.
        """
        if self.state is ShippingState.OFF or not (is_promised or self.shipped.is_caught_up):
            action()
            return
        if self.is_fenced:
            return
        self._drain()
        end, serial = self._store.log.synced_end, self._queue.serial
        if not self._waiters and self._has(end, serial):
            action()
            return
        self._waiters.append((end, serial, action))
        if self.is_urgent:
            self.push()

    def may_commit(self, messages: int, commit: Callable[[], object]) -> bool:
        """Return True if the topic may give out so many offsets. Otherwise `commit` is called when
        it may.
        """
        if not self._is_bound or not self.reserve.lacks(messages):
            return True
        self.reserve.wait(messages, commit)
        self.push()
        return False

    def publishes_must_wait(self, messages: int = 0) -> bool:
        """Return True if publishes must wait, because too much is not shipped.

        After the patience this returns False, and `check` refuses them.
        """
        if not self._is_bound:
            self._bound.release()
            return False
        if self.is_fenced or not self._bound.is_reached(messages):
            return False
        if self.state is ShippingState.OPEN:
            self.push()
        return not self._bound.is_overdue

    def may_move(self, messages: int) -> bool:
        """Return True if delayed messages may move to the log now."""
        if self.publishes_must_wait(messages):
            return False
        try:
            self.check()
        except Refused:
            return False
        return True

    def check(self) -> None:
        """Raise `Refused` if publishes have waited too long for the bucket."""
        if self.is_fenced:
            raise Refused(E_FENCED, f"nothing is published any more: {self.trouble}")
        if self.shipped.is_caught_up and self._bound.is_overdue:
            raise Refused(E_BUCKET, self.waiting())

    def waiting(self) -> str:
        """Return why publishes wait, or ""."""
        return self._bound.waiting(self.trouble, is_known=self.is_known)

    # Reports and the end

    @property
    def _unsent_ns(self) -> int:
        """Since when the oldest part that is in no piece waits (monotonic), 0 for none."""
        synced_ns = self._marks.since_ns(self._cursor.end)
        return earliest(synced_ns, self._queue.oldest_ns, self._base.oldest_ns)

    @property
    def _oldest_ns(self) -> int:
        """Since when the oldest part that is not shipped waits (monotonic), 0 for none."""
        return earliest(
            self._marks.since_ns(),
            self._queue.oldest_ns,
            self._base.oldest_ns,
            self._window.oldest_ns,
        )

    @property
    def is_active(self) -> bool:
        """True while something is not shipped, so that `tick` must be called."""
        if self.state in (ShippingState.OFF, ShippingState.FENCED):
            return False
        return (
            self.state is not ShippingState.OPEN
            or bool(self._window.out or len(self._queue) or self._marks)
            or not self._base.is_none
            or self._is_news
        )

    @property
    def is_fenced(self) -> bool:
        """True if another copy of this broker has taken over."""
        return self.state is ShippingState.FENCED

    @property
    def is_off(self) -> bool:
        """True if this topic is not shipped."""
        return self.state is ShippingState.OFF

    def alarms(self) -> list[str]:
        if self.is_fenced:
            return [f"publishing ended: {self.trouble}"]
        return [self.waiting()] if self._bound.is_alarm else []

    def statistics(self) -> dict[str, Any]:
        now, oldest = time.monotonic_ns(), self._oldest_ns
        return {
            "shipping": self.state.value if self.shipped.is_caught_up else "catching up",
            "shipped_end": max(self.shipped.end, 0),
            "ship_lag_s": round((now - oldest) / NS_PER_S, 3) if oldest else 0.0,
        }

    def end(self) -> None:
        """Remove temporary files."""
        self._dumps.remove()
