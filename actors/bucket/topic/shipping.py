"""Shipping of one topic: hands what is on disk to the archive actor, in the order of the commits.

Only synced bytes of the log and committed rows are shipped, so the bucket never runs ahead of the
disk. The rows of a commit never mention offsets beyond the log that is shipped with or before them.
`storage/bucket/shipping/tick_format.py` has the pieces.

| state | event | next | action |
|---|---|---|---|
| CLOSED | the first tick, or a pause is over | OPENING | ask what the log of ticks has |
| OPENING | the answer | OPEN | go on behind it; ship all rows, except if the answer is about this process |
| OPENING | E_BUCKET | CLOSED | ask again after a pause |
| OPENING, OPEN | E_FENCED | FENCED | refuse publishes |
| OPENING | the broker's data is a copy of another broker's | OFF | nothing is shipped |
| any but FENCED | the topic is set to archive off | OFF | nothing is shipped |
| OFF | the topic is set to archive on | CLOSED | ship all rows |
| OPEN | a piece was refused, or too many changes wait | CLOSED | ship all rows again |
| OPEN | the archive actor died | CLOSED | send the same pieces again, if they are missing |

The rows are dumped in the threads that own the stores. Each dump, and each commit, is noted there
in `_arrived`, so their order is known.

The bound. A publish waits when the oldest synced byte that is not in the bucket is older than the
bound, and it is refused after `PATIENCE_S` more. It also waits when more is not in the bucket than
the bucket takes within the bound (`sync_marks.py`), and when the offsets are used up that the log
has reserved for this topic. A topic that was never in the log is not held up until it has
caught up once.
"""

from __future__ import annotations

import logging
import random
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from ....storage.bucket.shipping.log_facts import first_unarchived, is_adopted, size_of, stored_ns
from ....storage.bucket.shipping.tick_format import CHANGES_BYTES_MAX, TICK_BYTES
from ....storage.delayed.delayed import DelayedStore
from ....storage.directory.store import Store
from ....storage.row_changes import (
    DELAYED,
    DELAYED_BEGIN,
    DELAYED_NONE,
    STATE,
    STATE_BEGIN,
    Change,
    encode_frames,
)
from ....storage.state.state import StateStore
from ....transport.errors import E_BUCKET, E_FENCED, Refused
from ....transport.wire import protocol as p
from ...runtime.pulses import ShippingPulse
from ...settings import options
from .archive_link import Answer, ArchiveLink
from .row_dumps import Entry, RowDumps
from .ship_parts import Sent, ShippingState, Threads, check_dump
from .sync_marks import MARKS_MAX, Mark, ShipPace, SyncMarks

log = logging.getLogger("zsq")

PATIENCE_S: Final = 20.0  # publishes that waited this long are refused
ALARM_S: Final = 5.0  # an alarm is raised when they have waited this long
PAUSE_S: Final = 1.0
PIECES_MAX: Final = 8  # pieces that are on their way at once
OUT_BYTES_MAX: Final = 16 * 1024 * 1024
EAGER_BYTES: Final = 1024 * 1024  # with so much new, a piece is sent at once
# The most bytes of the log in a piece that must have the rows of delayed messages too.
TOGETHER_BYTES: Final = 32 * 1024 * 1024
WAITING_BYTES_MAX: Final = 16 * 1024 * 1024  # of changes; beyond that, all rows are shipped again
# A topic that was never shipped begins with it when only this many log files are not archived.
CATCH_UP_CHUNKS: Final = 3
_S: Final = 1_000_000_000


class Shipping:
    """The shipping of one topic. `shipped` is called when more of it is in the log of ticks.

    `is_urgent` is True if publishes are answered only after they are shipped.
    """

    def __init__(
        self,
        store: Store,
        uuid: str,
        title: str,
        link: ArchiveLink,
        threads: Threads,
        lag_s: float,
        shipped: Callable[[], object],
        roll: Callable[[], object],
        *,
        is_urgent: bool,
        is_on: bool = True,
    ) -> None:
        self._store = store
        self._log = store.log
        self._begun_end = store.log.end
        self._uuid = uuid
        self._title = title
        self._link = link
        self._threads = threads
        self._lag_ns = int(lag_s * _S)
        # All topics send their pieces at the multiples of the period, so one tick has them all.
        self._period_ns = self._lag_ns // 2
        self._period = 0
        self._shipped = shipped
        self._roll = roll
        self.is_urgent = is_urgent
        self.state = ShippingState.CLOSED
        self.trouble = ""
        self._retry_ns = 0
        self._stream = random.getrandbits(62)
        self._sequence = 0  # of the last piece that was made
        self._place = (-1, 0)  # the next byte of the log to put into a piece
        self.is_known = False
        """True when the archive actor has told what the log of ticks has."""
        self._enforced = True
        self._is_first = False  # the log of ticks has nothing of this topic
        self._arrived: deque[Entry] = deque()  # filled by the threads of the stores
        self._queue: deque[Entry] = deque()
        self._queue_bytes = 0
        self._queue_delayed = 0  # entries about delayed messages in the queue
        # The serial of the last entry taken from `_arrived`. Entry 1 are the rows at the start.
        self._serial = 1
        self._pieced_serial = 0  # the entries up to this one are in the pieces so far
        self._base: dict[int, Entry] = {}
        self._dumping = False
        self._needs_base = True
        self._base_object = ""
        self._base_retry_ns = 0
        self._joined = False  # both dumps are in one file, which is or was uploaded
        self._uploading = False
        self._upload_serial = 0  # identifies the base that is uploaded
        self._out: deque[Sent] = deque()
        self._marks = SyncMarks()
        self._pace = ShipPace(self._lag_ns)
        # Commits of delayed messages that are not shipped: their serials, and their times.
        self._delayed_marks: deque[tuple[int, int]] = deque()
        self._waiters: deque[tuple[int, int, Callable[[], object]]] = deque()
        self._wanted = 0  # offsets that publishes or a commit wait for
        self.promised: Callable[[], int] = lambda: 0
        """Returns the number of offsets that are reserved for commits that are being merged."""
        self._reserving: list[Callable[[], object]] = []
        self._reserving_ns = 0  # since when the first of them waits
        self._held_ns = 0  # since when publishes wait
        self.shipped_end = -1
        self.shipped_serial = 0
        self.reserved = -1
        self._pieced_end = -1
        self._pieced_reserved = -1
        self._pieced_kept = 0
        self._dumps = RowDumps(store.files, store.directory)
        self._dumps.remove()
        link.handle(p.ShipAgain, self._again)
        if not is_on:
            self.state, self.is_known = ShippingState.OFF, True
            return
        store.state.on_changes = partial(self._changed, STATE)
        if store.delayed is not None:
            store.delayed.on_changes = partial(self._changed, DELAYED)
            # Those of the process before may not be in the bucket until the first rows are.
            self._delayed_marks.append((self._serial, time.monotonic_ns()))
        self._note_synced(force=True)

    def set_bound(self, lag_s: float) -> None:
        self._lag_ns = self._pace.bound_ns = int(lag_s * _S)
        self._period_ns = self._lag_ns // 2  # until the archive actor tells another one

    def turn(self, *, is_on: bool) -> None:
        """Ship the topic from now on, or no longer."""
        if is_on and self.state is ShippingState.OFF:
            self.state, self.trouble, self._retry_ns = ShippingState.CLOSED, "", 0
            self._needs_base, self._enforced = True, False
            self._note_synced(force=True)
        elif not is_on and self.state not in (ShippingState.OFF, ShippingState.FENCED):
            self._turn_off()

    def _turn_off(self) -> None:
        """Forget what waits to be shipped. Nobody waits for it any more."""
        self.state, self.is_known, self.trouble = ShippingState.OFF, True, ""
        self._forget_all()
        self._begin_stream()
        self._held_ns = 0
        self._marks.clear()
        self._delayed_marks.clear()
        self._fire_all()
        self._fire_reserving()
        self._shipped()

    # What happens on the disk

    def _changed(self, kind: int, changes: list[Change]) -> None:
        """Note a commit. A thread of a store calls this."""
        if self.state in (ShippingState.OFF, ShippingState.FENCED):
            return
        frames = tuple(encode_frames(kind, changes))
        if frames:
            self._arrived.append(Entry(kind, frames, time.monotonic_ns()))

    def delayed_made(self) -> None:
        """Note that the topic has a store of delayed messages now, which is empty."""
        store = self._store.delayed
        assert store is not None
        if self.state in (ShippingState.OFF, ShippingState.FENCED):
            return
        rows: list[Change] = [row for batch in store.dump() for row in batch]
        frames = tuple(encode_frames(DELAYED_BEGIN, rows))
        self._arrived.append(Entry(DELAYED, frames, time.monotonic_ns(), begins=True))
        store.on_changes = partial(self._changed, DELAYED)

    def synced(self) -> None:
        """Note that more of the log is synced."""
        self._note_synced()
        if self.is_urgent or self._new_bytes() >= EAGER_BYTES or self._reserve_is_low():
            self.push()

    def _note_synced(self, *, force: bool = False) -> None:
        if self.state is not ShippingState.OFF:
            synced = self._log.written_bytes - self._log.unsynced_bytes
            now_ns, shipped = time.monotonic_ns(), self._pace.shipped
            mark = Mark(*self._log.synced_place, now_ns, synced, shipped)
            self._marks.note(mark, self.shipped_end, force=force)

    def _drain(self) -> None:
        """Take what the threads noted. A dump replaces all earlier changes of its store."""
        while self._arrived:
            entry = self._arrived.popleft()
            # Also a store that was made after the last dump.
            is_later = self._joined or (entry.kind not in self._base and not self._dumping)
            if not entry.begins or is_later:
                self._enqueue(entry)
                continue
            self._base[entry.kind] = entry
            kept = [one for one in self._queue if one.kind != entry.kind]
            self._queue = deque(kept)
            self._queue_bytes = sum(one.size for one in kept)
            self._queue_delayed = sum(one.kind == DELAYED for one in kept)
        # The upload of many rows takes long, and must not be overtaken by the changes meanwhile.
        share = 4 if self._base or self._dumping else 1
        if self._queue_bytes > share * WAITING_BYTES_MAX:
            self._drop_changes()

    def _enqueue(self, entry: Entry) -> None:
        self._serial += 1
        self._queue.append(replace(entry, serial=self._serial))
        self._queue_bytes += entry.size
        if entry.kind != DELAYED:
            return
        self._queue_delayed += 1
        time_ns = entry.time_ns
        if len(self._delayed_marks) >= MARKS_MAX:
            time_ns = self._delayed_marks.pop()[1]
        self._delayed_marks.append((self._serial, time_ns))

    def _drop_changes(self) -> None:
        """Forget the changes that wait, because they are too many. All rows are shipped later."""
        self._queue.clear()
        self._queue_bytes = self._queue_delayed = 0
        self._forget_base()
        self._needs_base = True

    def _forget_base(self) -> None:
        self._base, self._base_object, self._joined = {}, "", False
        self._upload_serial += 1

    # All rows

    def _begin_base(self) -> None:
        """Dump all rows of both stores, in their threads."""
        self._needs_base, self._dumping = False, True
        self._forget_base()
        self._threads.read_state(partial(self._dump, STATE, STATE_BEGIN), self._state_dumped)

    def _state_dumped(self, value: Any) -> None:
        check_dump(value)
        if value:
            self._dump_failed(value)
            return
        self._threads.read_delayed(
            partial(self._dump, DELAYED, DELAYED_BEGIN), self._delayed_dumped
        )

    def _delayed_dumped(self, value: Any) -> None:
        check_dump(value)
        if value:
            self._dump_failed(value)
            return
        self._drain()
        self._dumping = False
        self.push()

    def _dump_failed(self, why: str) -> None:
        """Dump all rows again after a pause."""
        self._note(why)
        self._drain()
        self._dumping = False
        self._drop_changes()
        self._base_retry_ns = time.monotonic_ns() + int(PAUSE_S * _S)

    def _dump(self, kind: int, begin: int, store: StateStore | DelayedStore | None) -> str:
        """Note all rows of a store, in its thread. Many rows go to a file.

        Return why that file cannot be written, or "".
        """
        if store is None:
            frames = tuple(encode_frames(DELAYED_NONE))
            # If the store is made at this moment, it must follow.
            self._arrived.appendleft(Entry(kind, frames, time.monotonic_ns(), begins=True))
            return ""
        try:
            frames, path = self._dumps.dump(kind, begin, store)
        except OSError as error:
            return f"the rows of the topic cannot be written to a file: {error}"
        store.on_changes = partial(self._changed, kind)
        self._arrived.append(Entry(kind, frames, time.monotonic_ns(), begins=True, path=path))
        return ""

    # The link

    def gone(self) -> None:
        """Open the link again, because the archive actor died."""
        self._uploading = False
        if self._base_object:  # the next process does not know that a piece will name it
            self._drop_changes()
        if self.state in (ShippingState.OPENING, ShippingState.OPEN):
            self.state = ShippingState.CLOSED
            self._retry_ns = 0

    def _close(self, why: str) -> None:
        """Begin a new stream after a pause."""
        self._note(why)
        for sent in self._out:
            self._link.drop(sent.request)
        self._begin_stream()
        self._drop_changes()
        self.state = ShippingState.CLOSED
        self._retry_ns = time.monotonic_ns() + int(PAUSE_S * _S)

    def _begin_stream(self) -> None:
        self._out.clear()
        self._stream, self._sequence = random.getrandbits(62), 0
        # What was in the pieces that are lost is shipped with all rows.
        self._pieced_serial, self._pieced_kept = self.shipped_serial, 0

    def _note(self, why: str) -> None:
        if not self.trouble:
            log.warning(
                "%s: not shipped to the bucket: %s; the broker tries again", self._title, why
            )
        self.trouble = why

    def next_ns(self) -> int:
        """Return the monotonic time of the next call of `tick`."""
        now = time.monotonic_ns()
        if self.state is ShippingState.CLOSED:
            return max(self._retry_ns, now)
        return (now // self._period_ns + 1) * self._period_ns

    def tick(self) -> None:
        """Open the link. At the beginning of a period, send what is new."""
        now = time.monotonic_ns()
        if self.state is ShippingState.CLOSED and now >= self._retry_ns:
            self.state = ShippingState.OPENING
            self._link.ask(partial(p.OpenShipping, uuid=self._uuid), self._opened)
        self._drain()
        self._note_synced()
        if self._reserving and now - self._reserving_ns > PATIENCE_S * _S:
            self._fire_reserving()  # `check` refuses them
        if self.state is ShippingState.OPEN:
            if self._needs_base and not self._dumping and now >= self._base_retry_ns:
                self._begin_base()
            period = now // self._period_ns
            if period != self._period:
                self._period = period
                self.push()

    def _opened(self, answer: Answer) -> None:
        if self.state is not ShippingState.OPENING:
            return
        if isinstance(answer, p.Failed):
            if answer.code == E_FENCED:
                self._fence(answer.text)
                return
            self.state = ShippingState.CLOSED
            self._retry_ns = time.monotonic_ns() + int(PAUSE_S * _S)
            self._note(answer.text)
            return
        found = dict(answer.data)
        self._period_ns = found.pop("period_ns", self._period_ns)
        if found.get("writes", True) is False:
            self._turn_off()
            return
        if found and found["end"] > self._log.end:
            self._fence(
                f"the bucket has messages up to offset {found['end']}, and the data directory ends "
                f"at {self._log.end}: it is an older copy; restore the broker with zsq restore"
            )
            return
        self.state = ShippingState.OPEN
        self.is_known = True
        if self.trouble:
            log.warning("%s: shipped to the bucket again", self._title)
        self.trouble = ""
        self._go_on_behind(found)
        self._shipped()
        self.tick()
        self.push()  # it reserves offsets

    def _go_on_behind(self, found: Any) -> None:
        """Send again what the log of ticks does not have, and go on behind it."""
        if found and found["stream"] == self._stream:
            there: list[Sent] = []
            while self._out and self._out[0].message.sequence <= found["sequence"]:
                there.append(self._out.popleft())
            for sent in self._out:
                self._link.drop(sent.request)
                self._send(sent)
            for sent in there:  # this may send new pieces, which must follow
                self._confirm(sent)
            return
        self._begin_stream()
        self._needs_base = True
        self._is_first = not found
        if found:
            self._place = (found["chunk"], found["position"])
            self.reserved = self._pieced_reserved = found["reserved"]
            self.shipped_end = self._pieced_end = found["end"]
            # Without rows in the log of ticks, the topic has not caught up yet.
            self._enforced = found["base_number"] >= 0 or self._log.end == self._log.start
            self._drop_marks()
            self._marks.age(stored_ns(self._log, self.shipped_end))
        else:
            self._place = (first_unarchived(self._store), 0)
            self.reserved = self._pieced_reserved = -1
            self.shipped_end = self._pieced_end = self._place[0]
            # A topic without messages is protected from its first one on.
            self._enforced = self._log.end == self._log.start

    def _fence(self, why: str) -> None:
        log.error("%s: publishing ends: %s", self._title, why)
        self.state, self.trouble = ShippingState.FENCED, why
        self.is_known = True
        self._forget_all()
        self._waiters.clear()
        self._fire_reserving()  # `check` refuses them

    def _forget_all(self) -> None:
        """Forget what waits to be shipped, because nothing is shipped any more."""
        for sent in self._out:
            self._link.drop(sent.request)
        self._out.clear()
        self._arrived.clear()
        self._drop_changes()
        self._store.state.on_changes = None
        if self._store.delayed is not None:
            self._store.delayed.on_changes = None

    def _again(self, message: p.ShipAgain) -> None:
        if self.state is not ShippingState.OPEN:
            return
        if message.begins and not self._awaits_base():
            self._needs_base = True
        if self._log.chunks[-1] < message.roll_below:
            self._roll()
            self._note_synced()
        self.tick()

    # Pieces

    def _new_bytes(self) -> int:
        """Return about how much is not in a piece yet."""
        chunk, position, _ = self._log.synced_place
        new = position - self._place[1] if chunk == self._place[0] else EAGER_BYTES
        return new + self._queue_bytes

    def _reserve_is_low(self) -> bool:
        return self._taken_end + self._wanted + options.SHIP_RESERVE // 2 > self._pieced_reserved

    def _has_base(self) -> bool:
        return len(self._base) == 2 and not self._dumping

    def _awaits_base(self) -> bool:
        """Return True while the changes in the queue wait for a dump of all rows."""
        return self._needs_base or self._dumping or bool(self._base)

    def _is_news(self) -> bool:
        if self._goal() > self._place or self._reserve_is_low():
            return True
        if self._has_base():
            return not self._base_needs_upload()
        if self._awaits_base():
            return False
        return bool(self._queue) or self._kept_from() > self._pieced_kept

    def _goal(self) -> tuple[int, int]:
        """Return the place up to which the log can be shipped.

        A chunk without messages is left out. It cannot be ended, so the log of ticks could not
        become shorter than to the tick that has it.
        """
        chunk, position, offset = self._log.synced_place
        return chunk, position if offset > chunk else 0

    def _waits_for_archive(self) -> bool:
        """Return True if old log files go to the archive first, instead of in ticks too."""
        if self._enforced:
            return False
        archived, bases = self._store.archived, self._log.chunks
        return sum(base not in archived for base in bases) > CATCH_UP_CHUNKS

    def _lacks_base(self) -> bool:
        """Return True while no piece may be sent, because the first one must have all rows.

        Without the rows, a restore could not use the messages, although they count as shipped.
        """
        return self._is_first and (not self._has_base() or self._base_needs_upload())

    def _waits_for_dump(self) -> bool:
        """Return True until all rows are dumped, if some are about delayed messages.

        Messages that were delayed are in the log when they are due. A broker that is restored with
        them and without the rows about them would not know their producer. If the producer sent
        them again, it would store them twice. If the rows are so many that they are uploaded first,
        the log does not wait for them: publishers would wait too long.
        """
        return self._store.delayed is not None and self._awaits_base() and not self._has_base()

    def _waits_for_start(self) -> bool:
        """Return True until all rows can go with the next piece, if messages have expired that were
        never shipped.

        Only the rows say that the log begins behind them. A broker that is restored with what
        follows, and without these rows, would miss them.
        """
        return self._is_start_missing() and self._awaits_base() and not self._is_base_ready()

    def _is_start_missing(self) -> bool:
        return self._pieced_end < self._log.start

    def _is_base_ready(self) -> bool:
        return self._has_base() and not self._base_needs_upload()

    def _goes_together(self) -> bool:
        """Return True if the next piece must have all of the log, and the rows about it."""
        rows = self._is_base_ready() and self._store.delayed is not None
        return (
            rows
            or (self._queue_delayed > 0 and not self._awaits_base())
            or self._is_start_missing()
        )

    def push(self) -> None:
        """Send pieces with what is new, as far as the window allows."""
        self._drain()
        self._note_synced()
        if self.state is ShippingState.OPEN and self._base_needs_upload():
            self._upload_base()
        while (
            self.state is ShippingState.OPEN
            and len(self._out) < PIECES_MAX
            and sum(sent.size for sent in self._out) < OUT_BYTES_MAX
            and self._is_news()
            and not self._waits_for_archive()
            and not self._lacks_base()
            and not self._waits_for_dump()
            and not self._waits_for_start()
        ):
            if not self._push_one():
                return

    def _base_needs_upload(self) -> bool:
        return (
            self._has_base()
            and any(entry.path for entry in self._base.values())
            and not self._base_object
        )

    def _upload_base(self) -> None:
        if self._uploading or self._waits_for_archive():
            return
        if not self._joined:
            try:
                self._dumps.join(self._base)
                self._joined = True
            except OSError as error:
                self._dump_failed(f"the rows of the topic cannot be written to a file: {error}")
                return
        self._uploading = True
        self._link.ask(
            partial(p.ShipBase, uuid=self._uuid, stream=self._stream, path=self._dumps.joined_path),
            partial(self._base_uploaded, self._upload_serial),
        )

    def _base_uploaded(self, serial: int, answer: Answer) -> None:
        self._uploading = False
        if self.state is not ShippingState.OPEN:
            return
        if serial != self._upload_serial:  # these are not the rows that wait now
            self.push()
            return
        if isinstance(answer, p.Failed):
            self._close(answer.text)
            return
        self._base_object = answer.data["base"]
        self._dumps.remove_joined()
        self.push()

    def _push_one(self) -> bool:
        """Send one piece. Return True if more may follow at once."""
        oldest = self._unsent_ns() or time.monotonic_ns()
        together = self._goes_together()
        ranges, place, is_full = self._ranges(TOGETHER_BYTES if together else TICK_BYTES)
        end = self._end_at(place)
        begins = False
        base_object = ""
        changes: list[bytes] = []
        size = 0
        if not is_full and self._is_base_ready():
            begins = True
            if not self._base_object:
                changes = [one for kind in (STATE, DELAYED) for one in self._base[kind].frames]
                size = sum(map(len, changes))
        if begins or not (is_full or self._awaits_base()):
            while self._queue and size < (CHANGES_BYTES_MAX if together else EAGER_BYTES):
                entry = self._queue[0]
                if changes and size + entry.size > CHANGES_BYTES_MAX:
                    break
                self._queue.popleft()
                self._queue_bytes -= entry.size
                self._queue_delayed -= entry.kind == DELAYED
                changes += entry.frames
                size += entry.size
        if size > CHANGES_BYTES_MAX:
            self._close(
                f"a commit has {size} bytes of changes, and {CHANGES_BYTES_MAX} can be sent"
            )
            return False
        if begins:
            base_object, self._base_object = self._base_object, ""
            self._is_first = False
            self._forget_base()
        self._sequence += 1
        self._pieced_reserved = max(self._pieced_reserved, self._wanted_reserve(end))
        if not self._awaits_base():
            last = self._queue[0].serial - 1 if self._queue else self._serial
            self._pieced_serial = last
            if not self._queue:  # the rows of all archived chunks are in the pieces
                self._pieced_kept = self._kept_from()
        message = p.Ship(
            0, self._uuid, self._store.directory, self._stream, self._sequence, begins,
            base_object, end, self._pieced_reserved, self._pieced_kept,
            tuple(ranges), oldest, self._is_awaited(), b"".join(changes),
        )  # fmt: skip
        self._place, self._pieced_end = place, end
        sent = Sent(
            message, place, self._pieced_serial, size=size + sum(one[2] - one[1] for one in ranges)
        )
        self._out.append(sent)
        self._send(sent)
        return is_full or bool(self._queue)

    def _send(self, sent: Sent) -> None:
        sent.request = self._link.ask(
            lambda request: replace(sent.message, request=request), partial(self._answered, sent)
        )

    def _wanted_reserve(self, end: int) -> int:
        # A fast topic must not wait for offsets. Those that a restore has skipped do not count:
        # otherwise each takeover would skip twice as many as the one before.
        recent = max(0, self._log.end - max(self.shipped_end, self._begun_end))
        return max(end, self._taken_end) + self._wanted + max(options.SHIP_RESERVE, 2 * recent)

    @property
    def _taken_end(self) -> int:
        """The end of the offsets that are given out or promised."""
        return self._log.end + self.promised()

    def _kept_from(self) -> int:
        """Return the first offset that is in no archived chunk at the start of the log."""
        archived, bases = self._store.archived, self._log.reader.bases
        first = bisect_left(bases, self._pieced_kept)
        return next(bases[at] for at in range(first, len(bases)) if bases[at] not in archived)

    def _ranges(self, bytes_max: int) -> tuple[list[tuple[int, int, int]], tuple[int, int], bool]:
        """Return the next ranges of the log, where they end, and whether more is left."""
        active, synced_position = self._goal()
        chunk, position = self._place
        if chunk < self._log.chunks[0]:  # retention has removed it
            chunk, position = self._log.chunks[0], 0
        found: list[tuple[int, int, int]] = []
        left = bytes_max
        while True:
            if chunk != active and (
                self._is_in_archive(chunk, position) or chunk not in self._log.chunks
            ):
                following = self._log.reader.next_base(chunk)
                chunk, position = (active, 0) if following is None else (following, 0)
                continue
            stop = synced_position if chunk == active else size_of(self._store, chunk)
            take = min(stop - position, left)
            if take > 0:
                found.append((chunk, position, position + take))
                position += take
                left -= take
            if position < stop:
                return (*self._cut_at_mark(found, (chunk, position)), True)
            if chunk == active:
                return found, (chunk, position), False
            following = self._log.reader.next_base(chunk)
            assert following is not None
            chunk, position = following, 0

    def _is_in_archive(self, chunk: int, position: int) -> bool:
        """Return True if a chunk is in the archive, and a restore will know this.

        The end of a chunk is shipped if its first bytes are, up to `position`. Otherwise a restore
        would find it without its footer, until the rows about it are shipped.
        """
        row = self._store.archived.get(chunk)
        if row is None:
            return False
        # A chunk whose file may leave the disk is in a manifest.
        is_listed = chunk in self._log.reader.remote
        is_known = chunk < self._pieced_kept or (
            row.next_offset <= self.shipped_end and not position
        )
        return is_listed or is_known or not self._enforced

    def _cut_at_mark(
        self, ranges: list[tuple[int, int, int]], place: tuple[int, int]
    ) -> tuple[list[tuple[int, int, int]], tuple[int, int]]:
        """Cut the ranges at the last sync, so that they end between two blocks, if there is one."""
        cut = self._marks.last_within(self._place, place)
        if cut is None:
            return ranges, place
        chunk, position = cut
        kept = [one for one in ranges if one[0] < chunk]
        kept += [(chunk, one[1], min(one[2], position)) for one in ranges if one[0] == chunk]
        return [one for one in kept if one[1] < one[2]], (chunk, position)

    def _end_at(self, place: tuple[int, int]) -> int:
        """Return the offset up to which the log is covered at this place.

        It is never inside a group, because a restore keeps what is below it.
        """
        if place >= self._goal():
            return max(self._pieced_end, self._log.synced_end)
        end = max(self._pieced_end, self._marks.offset_at(place))
        return place[0] if place[0] > end and not is_adopted(self._store, place[0]) else end

    # Answers

    def _answered(self, sent: Sent, answer: Answer) -> None:
        if isinstance(answer, p.Failed):
            if answer.code == E_FENCED:
                self._fence(answer.text)
            elif self.state is ShippingState.OPEN:
                self._close(answer.text)
            return
        assert self._out
        # The log has this piece, so it has all earlier ones of the stream: without them, the piece
        # would have been refused. An earlier answer may have been lost with a broken connection.
        there = [self._out.popleft()]
        while there[-1] is not sent:
            self._link.drop(there[-1].request)
            there.append(self._out.popleft())
        self._period_ns = answer.data.get("period_ns", self._period_ns)
        for one in there:
            self._confirm(one)
        if self.is_urgent or self._new_bytes() >= EAGER_BYTES or self._reserve_is_low():
            self.push()

    def _confirm(self, sent: Sent) -> None:
        self.shipped_end = max(self.shipped_end, sent.message.end)
        self.shipped_serial = max(self.shipped_serial, sent.serial)
        self.reserved = max(self.reserved, sent.message.reserved)
        if sent.message.begins:
            self._enforced = True  # it was caught up when this piece was made
        self._drop_marks()
        while self._delayed_marks and self._delayed_marks[0][0] <= self.shipped_serial:
            self._delayed_marks.popleft()
        while (
            self._waiters
            and self._waiters[0][0] <= self.shipped_end
            and self._waiters[0][1] <= self.shipped_serial
        ):
            self._waiters.popleft()[2]()
        if self._taken_end + self._wanted <= self.reserved:
            self._wanted = 0
            if self._reserving:
                self._reserving_ns = 0
                self._fire_reserving()
        self._shipped()

    def _drop_marks(self) -> None:
        if (dropped := self._marks.drop(self.shipped_end)) is not None:
            self._pace.note(*dropped, time.monotonic_ns())

    def _fire_all(self) -> None:
        while self._waiters:
            self._waiters.popleft()[2]()

    def _fire_reserving(self) -> None:
        """Let the commits that wait for offsets try again."""
        reserving, self._reserving = self._reserving, []
        for action in reserving:
            action()
        if not self._reserving:
            self._reserving_ns = 0

    def then(self, action: Callable[[], object]) -> None:
        """Call `action` when all that is synced and committed now is in the log of ticks.

        It is called at once if this topic is not shipped, and never if another copy of the broker
        has taken over.
        """
        if self.state is ShippingState.OFF or not self._enforced:
            action()
            return
        if self.state is ShippingState.FENCED:
            return
        self._drain()
        end, serial = self._log.synced_end, self._serial
        if not self._waiters and end <= self.shipped_end and serial <= self.shipped_serial:
            action()
            return
        self._waiters.append((end, serial, action))
        if self.is_urgent:
            self.push()

    def reserve(self, messages: int, then: Callable[[], object]) -> bool:
        """Return True if the topic may give out so many offsets. Otherwise `then` is called when
        it may.
        """
        if self.state is ShippingState.OFF or not self._enforced:
            return True
        if self._taken_end + messages <= self.reserved:
            return True
        self._wanted = max(self._wanted, messages)
        self._reserving.append(then)
        self._reserving_ns = self._reserving_ns or time.monotonic_ns()
        self.push()
        return False

    # The bound

    def _oldest_ns(self) -> int:
        """Return since when the oldest part that is not shipped waits (monotonic), 0 for none."""
        times = [self._marks.since_ns()]
        if self._queue:
            times.append(self._queue[0].time_ns)
        times += [entry.time_ns for entry in self._base.values()]
        times += [sent.message.oldest_ns for sent in list(self._out)[:1]]
        return min(filter(None, times), default=0)

    def _unsent_ns(self) -> int:
        """Return since when the oldest part that is in no piece waits (monotonic), 0 for none."""
        times = [self._marks.since_ns(self._pieced_end)]
        if self._queue:
            times.append(self._queue[0].time_ns)
        times += [entry.time_ns for entry in self._base.values()]
        return min(filter(None, times), default=0)

    def _oldest_message_ns(self) -> int:
        """Return since when the oldest message that is not shipped waits, 0 for none."""
        times = [self._marks.since_ns()]
        times += [self._delayed_marks[0][1]] if self._delayed_marks else []
        return min(filter(None, times), default=0)

    def _is_late(self, now_ns: int) -> bool:
        """Return True if the oldest synced message that is not shipped is older than the bound."""
        oldest = self._oldest_message_ns()
        return oldest > 0 and now_ns - oldest > self._lag_ns

    def _is_awaited(self) -> bool:
        """Return True if somebody waits for the next piece."""
        runs_out = self.reserved < self._taken_end + self._wanted + options.SHIP_RESERVE // 4
        return self.is_urgent or self._held_ns > 0 or (self._enforced and runs_out)

    def holds(self, messages: int = 0) -> bool:
        """Return True if publishes must wait, because too much is not shipped.

        After `PATIENCE_S` this returns False, and `check` refuses them.
        """
        if self.state is ShippingState.OFF or not self._enforced:
            self._held_ns = 0
            return False
        now = time.monotonic_ns()
        runs_out = self._taken_end + messages > self.reserved
        if runs_out:
            self._wanted = max(self._wanted, messages)
        is_full = bool(self._marks) and self._pace.is_full(self._log.written_bytes)
        is_late = self._is_late(now) or runs_out or is_full
        if not is_late and self.state is not ShippingState.FENCED:
            self._held_ns = 0
            return False
        self._held_ns = self._held_ns or now
        if self.state is ShippingState.OPEN:
            self.push()
        return self.state is not ShippingState.FENCED and not self._is_overdue(now)

    def _is_overdue(self, now_ns: int) -> bool:
        since = min(filter(None, (self._held_ns, self._reserving_ns)), default=0)
        return since > 0 and now_ns - since > PATIENCE_S * _S

    def may_move(self, messages: int) -> bool:
        """Return True if delayed messages may move to the log now."""
        if self.holds(messages):
            return False
        try:
            self.check()
        except Refused:
            return False
        return True

    def check(self) -> None:
        """Raise `Refused` if publishes have waited too long for the bucket."""
        if self.state is ShippingState.FENCED:
            raise Refused(E_FENCED, f"nothing is published any more: {self.trouble}")
        if self._enforced and self._is_overdue(time.monotonic_ns()):
            raise Refused(E_BUCKET, self.waiting())

    def waiting(self) -> str:
        """Return why publishes wait, or ""."""
        since = self._held_ns or self._reserving_ns
        if not since:
            return ""
        if not self.is_known:
            why = self.trouble or "the broker has no answer from the bucket"
            return f"publishing waits until the topic knows what the bucket has: {why}"
        oldest = self._oldest_message_ns() or since
        late_s = (time.monotonic_ns() - oldest) / _S
        why = f": {self.trouble}" if self.trouble else ""
        return (
            f"publishing waits, because the oldest message that the bucket does not have is "
            f"{late_s:.1f} s old, and --bucket-lag is {self._lag_ns / _S:g} s{why}"
        )

    # Reports and the end

    @property
    def is_active(self) -> bool:
        """True while something is not shipped, so that `tick` must be called."""
        if self.state in (ShippingState.OFF, ShippingState.FENCED):
            return False
        return (
            self.state is not ShippingState.OPEN
            or bool(self._out or self._queue or self._arrived or self._base or self._marks)
            or self._needs_base
            or self._dumping
            or self._is_news()
        )

    @property
    def is_fenced(self) -> bool:
        """True if another copy of this broker has taken over."""
        return self.state is ShippingState.FENCED

    @property
    def is_off(self) -> bool:
        """True if this topic is not shipped, because its data is a copy of another broker's."""
        return self.state is ShippingState.OFF

    def is_idle(self) -> bool:
        """Return True if everything is in the log of ticks."""
        return not self.is_active

    def alarms(self) -> list[str]:
        if self.state is ShippingState.FENCED:
            return [f"publishing ended: {self.trouble}"]
        if self._held_ns and time.monotonic_ns() - self._held_ns > ALARM_S * _S:
            return [self.waiting()]
        return []

    def statistics(self) -> ShippingPulse:
        now, oldest = time.monotonic_ns(), self._oldest_ns()
        return {
            "shipping": self.state.value if self._enforced else "catching up",
            "is_shipping": self.is_active,
            "is_shipped_at_end": False,
            "shipped_end": max(self.shipped_end, 0),
            "ship_lag_s": round((now - oldest) / _S, 3) if oldest else 0.0,
        }

    def end(self) -> None:
        """Remove temporary files."""
        self._dumps.remove()
