"""Delayed messages of a topic: kept until they are due, then moved to the log.

They can also be listed, counted and cancelled. Requests and orders:

| message | action |
|---|---|
| `append` | when the producer's earlier blocks are synced: commit, then notify the topic |
| Scan | answer Scanned at once, with the next due time; if a message is due and may move, begin a move |
| ListDelayed, CountDelayed | answer from a read |
| CancelDelayed | wait until no move is under way; answer after the commit |

A move:

| state | event | next | action |
|---|---|---|---|
| IDLE | due (a scan; the topic is open and not sealed) | READING | read a bounded number of rows that are due by now |
| READING | read | WRITTEN | append them to the log; give the topic the new head when the log is synced up to it |
| READING | nothing to move (cancelled before, or sealed meanwhile) | IDLE | |
| READING | the disk is full | IDLE | a later scan tries again; an alarm until it succeeds |
| WRITTEN | synced | REMOVING | remove their rows |
| REMOVING | the disk is full | REMOVING | try again each second |
| REMOVING | removed | IDLE | send the next due time to the scan loop |

While a move is in WRITTEN or REMOVING, its messages are both in the log and in the store of delayed
messages. The state store's checkpoint must not pass them (`blocks_checkpoint`), and nothing is
cancelled. After a crash in such a state, recovery decides (see `storage/delayed/delayed.py`).

Due times are wall-clock times, and only this module looks at them. If the clock is set forward,
this is noticed within DELAYED_LOOK_NS.

One thread does all work with the store of delayed messages (an LMDB environment). It starts with
the first delayed message, and its jobs run in order.

A count is always known and a list can be read at any time. A cancellation waits for a move that is
under way, because the messages of a move are in two places. For a message that has moved or was
cancelled before, the answer is False.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple

from ...storage.delayed.delayed import DelayedStore, DelayedSummary
from ...storage.delayed.delayed_format import DelayedKey, DelayedRow
from ...storage.directory.store import Store
from ...storage.errors import DiskFull, StoreFailed
from ...storage.log.log_format import BAD_SUFFIX, DELAYED_NAME
from ...storage.space import Shortage, Space
from ...transport.block.block import Block
from ...transport.block.block_format import REVOCABLE
from ...transport.errors import E_DISK_FULL, E_LIMIT, Refused
from ...transport.wire import protocol as p
from ...transport.wire.lifetime import revoke_keys
from ..runtime.port import Mail, Port
from ..runtime.pulses import DelayedPulse
from ..runtime.worker_thread import Jobs
from ..settings import options
from .aging import aged_block
from .extension_point import StorageExtension
from .storage_listener import StorageListener

log = logging.getLogger("zsq")

_MS: Final = 1_000_000


class MoveState(Enum):
    IDLE = "idle"
    READING = "reading"
    WRITTEN = "written"
    REMOVING = "removing"


MOVES: Final[dict[MoveState, dict[str, MoveState]]] = {
    MoveState.IDLE: {"due": MoveState.READING},
    MoveState.READING: {
        "read": MoveState.WRITTEN,
        "nothing": MoveState.IDLE,
        "full": MoveState.IDLE,
    },
    MoveState.WRITTEN: {"synced": MoveState.REMOVING},
    MoveState.REMOVING: {"full": MoveState.REMOVING, "removed": MoveState.IDLE},
}


class Clock(NamedTuple):
    wall_ns: Callable[[], int] = time.time_ns
    monotonic_ns: Callable[[], int] = time.monotonic_ns


class _Put(NamedTuple):
    """Delayed blocks that wait until the log is synced up to `end`."""

    request: int
    end: int
    blocks: list[tuple[Block, int]]
    stored: Callable[[int], None] | None = None  # called with the time when they are stored


class DelayedMessages:
    """The delayed messages of one topic.

    `listener` is the topic. `moved` is called with the log's end after an append. `hint` is called
    with the monotonic time at which a scan is needed, and `answer` with the answer to an order. No
    move begins while the extension forbids it. Call `resume` when this may have changed.
    """

    def __init__(
        self, store: Store, title: str, thread: Jobs, listener: StorageListener,
        extension: StorageExtension, moved: Callable[[int], None], hint: Callable[[int], None],
        answer: Callable[[p.Done | p.Failed], None], shortage: Shortage, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self._extension = extension
        self._held = False  # the last scan found due messages that may not move
        self.state = MoveState.IDLE
        self._open = False  # the topic is open, and messages may go to the log
        self._store = store
        self._title = title
        self._thread = thread
        self._listener = listener
        self._moved = moved
        self._hint = hint
        self._answer = answer
        self._clock = clock or Clock()
        self._space = Space(store.files, store.directory, store.reserve_bytes)
        self._puts: deque[_Put] = deque()
        self._putting = False
        self._coming = 0  # messages of the waiting and running puts
        self._coming_bytes = 0
        self._waiting: deque[Callable[[], None]] = deque()
        self._rows: list[DelayedRow] = []  # the rows of the move under way
        self._end = 0  # end of the log, including these rows
        self._freed = False  # rows were removed since the file was shrunk
        self._lost = 0  # messages that this process found damaged; recovery reports other losses
        # The reason why due messages cannot be moved to the log while space is short.
        self.full = ""
        self._shortage = shortage
        self.moved_count = 0
        self.summary = store.delayed.summary if store.delayed is not None else DelayedSummary()

    # Storing

    def producers(self) -> dict[int, tuple[int, tuple[tuple[int, int, int], ...]]]:
        """Return the next sequence and the last blocks (sequence, due time, serial) of each
        producer.

        This is used at the start of the process. Only producers of delayed messages are included.
        """
        if self._store.delayed is None:
            return {}
        return {
            pid: (row.next_sequence, row.recent)
            for pid, row in self._store.delayed.producers.items()
        }

    def append(
        self,
        request: int,
        blocks: Sequence[Block],
        delays_ms: Sequence[int],
        end: int,
        stored: Callable[[int], None] | None = None,
    ) -> None:
        """Queue blocks with their delays until the log is synced up to `end`.

        `stored` is called with the time of the commit. There may be no blocks, if all messages were
        stored before. They are answered in their turn.

        Raises `DiskFull` if there is no space; then no block is accepted.
        """
        now = self._clock.wall_ns()
        size = sum(block.header.length for block in blocks)
        self._space.take(size, now)
        due = [
            (block, now + delay_ms * _MS) for block, delay_ms in zip(blocks, delays_ms, strict=True)
        ]
        self._coming += sum(block.count for block in blocks)
        self._coming_bytes += size
        self._puts.append(_Put(request, end, due, stored))

    def waiting_bytes(self) -> int:
        """Return the size of messages that wait to be due or to be stored."""
        return self.summary.bytes + self._coming_bytes

    def waits_for_log(self, synced_end: int) -> bool:
        return bool(self._puts) and self._puts[0].end > synced_end

    def turn(self, synced_end: int) -> None:
        """Do what the log's sync allows now."""
        if self.state is MoveState.WRITTEN and self._end <= synced_end:
            self._go("synced")
            self._remove()
        if not self._putting and self._puts and self._puts[0].end <= synced_end:
            ready = []
            while self._puts and self._puts[0].end <= synced_end:
                ready.append(self._puts.popleft())
            blocks = [pair for put in ready for pair in put.blocks]
            now = self._clock.wall_ns()
            if not blocks:
                self._answer_puts(ready, now, [])
                return
            self._putting = True
            self.submit(partial(self._kept, ready, now), lambda: self._use().put(blocks, now))

    def _answer_puts(self, puts: list[_Put], now_ns: int, keys: Any) -> None:
        at = 0
        for put in puts:
            if put.stored is not None:
                put.stored(now_ns)
            stored = [tuple(key) for key in keys[at : at + len(put.blocks)]]
            self._extension.when_confirmable(
                partial(self._listener.delayed_stored, put.request, stored)
            )
            at += len(put.blocks)

    def _kept(self, puts: list[_Put], now_ns: int, keys: Any) -> None:
        self._putting = False
        self._coming -= sum(block.count for put in puts for block, _ in put.blocks)
        self._coming_bytes -= sum(block.header.length for put in puts for block, _ in put.blocks)
        if isinstance(keys, DiskFull):
            self._space.forget()
            self._shortage.refused(
                keys, sum(len(put.blocks) for put in puts), self._clock.monotonic_ns()
            )
            for put in puts:
                self._listener.delayed_failed(put.request, E_DISK_FULL, str(keys))
            return
        self._check(keys)
        before = self.summary.next_due_ns
        self._answer_puts(puts, now_ns, keys)
        self.look()
        if self.summary.next_due_ns and (not before or self.summary.next_due_ns < before):
            self._hint(self._next_scan_ns())

    # Moves

    def scan(self, port: Port, mail: Mail, message: p.Scan) -> None:
        now = self._clock.wall_ns()
        is_due = self._open and self.state is MoveState.IDLE and 0 < self.summary.next_due_ns <= now
        dirty = is_due and self._may_move()
        self._held = is_due and not dirty
        if dirty:
            self._go("due")
            self.submit(
                partial(self._read, now),
                lambda: self._use().due(now, options.DELAYED_MOVE_BYTES, options.DELAYED_MOVE_ROWS),
            )
        port.send(mail.envelope, p.Scanned(message.request, dirty, self._next_scan_ns()))

    def _may_move(self) -> bool:
        return self._extension.may_move(options.DELAYED_MOVE_ROWS)

    def _next_scan_ns(self) -> int:
        """Return the monotonic time of the next scan, or 0 to wait for a hint."""
        now = self._clock.monotonic_ns()
        if self.state is not MoveState.IDLE:
            # The end of the move sends a hint. This time is for the case that the hint is lost.
            return now + options.DELAYED_RETRY_NS
        if not self.summary.next_due_ns:
            return 0
        wait = max(0, self.summary.next_due_ns - self._clock.wall_ns())
        if self.full or self._held or not self._open:
            wait = max(wait, options.DELAYED_RETRY_NS)
        return now + min(wait, options.DELAYED_LOOK_NS)

    def _read(self, now_ns: int, rows: Any) -> None:
        """Append the rows to the log. Their time in the log is not earlier than their due times."""
        self._check(rows)
        self.look()
        if not rows or not self._open:
            self._go("nothing")
            self._idle()
            return
        assert all(row.key.due_ns <= now_ns for row in rows)
        try:
            moved_ns = max(now_ns, self._clock.wall_ns())
            self._store.log.append([aged_block(row, moved_ns) for row in rows], moved_ns)
        except DiskFull as error:
            if not self.full:
                log.error(
                    "%s: delayed messages are due and wait, because there is no space for them: %s",
                    self._title,
                    error,
                )
            self.full = f"delayed messages are due and wait for space: {error}"
            self._go("full")
            self._idle()
            return
        self.full = ""
        self._rows = rows
        self._end = self._store.log.end
        self._go("read")
        self._moved(self._end)

    def moving_bytes(self) -> int:
        """Return the size of the move that is under way."""
        return sum(row.block.length for row in self._rows)

    def _remove(self) -> None:
        keys = [row.key for row in self._rows]
        self.submit(self._removed, lambda: self._use().remove(keys, known=True))

    def _removed(self, value: Any) -> None:
        if isinstance(value, DiskFull):
            if not self.full:
                text = (
                    "%s: no space to record which delayed messages are in the log now; the "
                    "broker tries again: %s"
                )
                log.error(text, self._title, value)
            self.full = (
                "no space to record which delayed messages are in the log now; finishes wait: "
                f"{value}"
            )
            self._go("full")
            return
        self._check(value)
        self.full = ""
        self._freed = True
        self.moved_count += sum(row.block.count for row in self._rows)
        self._rows = []
        self.look()
        self._go("removed")
        self._idle()

    def _idle(self) -> None:
        """Run the jobs that waited for the end of the move, and request the next scan."""
        while self._waiting:
            self._waiting.popleft()()
        if self.summary.next_due_ns:
            self._hint(self._next_scan_ns())

    def tick(self) -> None:
        """Free unused space, and try again after a full disk. This is called once a second."""
        if self._freed and not self._thread.pending:
            self._freed = False
            self.submit(self._shrunk, lambda: self._use().shrink(self._store.files))
        if self.state is MoveState.REMOVING and self.full and not self._thread.pending:
            self._remove()

    def _shrunk(self, value: Any) -> None:
        self._check(value)
        if value:
            log.debug("%s: the delayed messages' file was made smaller", self._title)

    def opened(self, is_open: bool) -> None:
        """Allow or forbid moves to the log.

        They are forbidden until the topic has opened, and while it is sealed to be deleted.
        """
        self._open = is_open
        if is_open and self.summary.next_due_ns:
            self._hint(self._next_scan_ns())

    def resume(self) -> None:
        """Request a scan if due messages were held, and may move now."""
        if self._held and self._may_move():
            self._held = False
            self._hint(self._next_scan_ns())

    def blocks_checkpoint(self) -> bool:
        """Return True while the log has messages whose rows are still here."""
        return self.state in (MoveState.WRITTEN, MoveState.REMOVING)

    # Orders

    def count(self, message: p.CountDelayed) -> p.Done:
        return p.Done(message.request, self.summary._asdict())

    def list_some(self, message: p.ListDelayed) -> p.Done | None:
        if self._store.delayed is None:
            return p.Done(message.request, {"messages": ()})
        key = DelayedKey(*message.after) if message.after else None
        limit = message.limit
        self.submit(
            partial(self._listed, message.request),
            lambda: self._use().listed(key, limit, options.DELAYED_LIST_BODY_BYTES),
        )
        return None

    def _listed(self, request: int, rows: Any) -> None:
        self._check(rows)
        messages = tuple(
            {"delayed_key": row.key.text(), "due_ns": row.key.due_ns, "size": row.size, "body": row.body,
             "key": row.message_key, "tag": row.message_tag}
            for row in rows
        )  # fmt: skip
        self._answer(p.Done(request, {"messages": messages}))

    def cancel(self, message: p.CancelDelayed) -> p.Done | None:
        if message.revoke_keys:
            return self._cancel_revoked(message)
        keys = [DelayedKey(*key) for key in message.keys]
        if self._store.delayed is None:
            return p.Done(
                message.request,
                {"cancelled": 0, "more": False}
                if message.all
                else {"cancelled": (False,) * len(keys)},
            )

        def work() -> int | list[bool]:
            if message.all:
                return self._use().cancel_some(
                    options.DELAYED_CANCEL_ROWS, options.DELAYED_CANCEL_BYTES
                )
            return self._use().cancel(keys)

        self._when_idle(partial(self.submit, partial(self._cancelled, message.request), work))
        return None

    def _cancel_revoked(self, message: p.CancelDelayed) -> p.Done | None:
        """Cancel the messages with these revoke keys, of some rows.

        The keys are in the headers, so all rows are looked at, but only the blocks with the flag
        are read. An index of the keys was rejected: it would cost a row for each message.
        """
        if self._store.delayed is None:
            return p.Done(message.request, {"cancelled": 0, "after": ()})
        keys = frozenset(message.revoke_keys)
        start = DelayedKey(*message.after) if message.after else None

        def with_keys(block: Block) -> list[int]:
            return [index for index, key in enumerate(revoke_keys(block)) if key in keys]

        def work() -> tuple[int, tuple[int, ...]]:
            store = self._use()
            found, last = store.matching(start, options.DELAYED_LOOK_ROWS, REVOCABLE, with_keys)
            count = sum(store.cancel(found)) if found else 0
            return count, () if last is None else tuple(last)

        self._when_idle(partial(self.submit, partial(self._revoked, message.request), work))
        return None

    def _revoked(self, request: int, value: Any) -> None:
        if self._was_full(request, value):
            return
        self._check(value)
        count, after = value
        self._freed = self._freed or count > 0
        self.look()
        self._answer(p.Done(request, {"cancelled": count, "after": after}))

    def _was_full(self, request: int, value: Any) -> bool:
        """Answer that the disk was full, if it was."""
        if not isinstance(value, DiskFull):
            return False
        text = f"no message was cancelled, because there is no space to record it: {value}"
        self._answer(p.Failed(request, E_DISK_FULL, text))
        return True

    def _cancelled(self, request: int, value: Any) -> None:
        if self._was_full(request, value):
            return
        self._check(value)
        self._freed = True
        self.look()
        if isinstance(value, int):
            self._answer(p.Done(request, {"cancelled": value, "more": self.summary.messages > 0}))
        else:
            self._answer(p.Done(request, {"cancelled": tuple(value)}))

    # Helpers

    def _when_idle(self, job: Callable[[], None]) -> None:
        """Run the job now, or when the move under way has ended."""
        if self.state is MoveState.IDLE:
            job()
        elif len(self._waiting) >= options.WAITERS_MAX:
            raise Refused(
                E_LIMIT,
                (
                    f"{options.WAITERS_MAX} requests to cancel delayed messages wait, which is the "
                    "limit; try again later"
                ),
            )
        else:
            self._waiting.append(job)

    def _go(self, event: str) -> None:
        self.state = MOVES[self.state][event]

    def _use(self) -> DelayedStore:
        """Return the store, and create it if it does not exist. This runs in the thread."""
        return self._store.make_delayed(self._clock.wall_ns())

    def read(self, job: Callable[[Any], Any], then: Callable[[Any], None]) -> None:
        """Run a job with the store in its thread. The argument is None without a store."""
        if self._store.delayed is None:
            then(job(None))
        else:
            self.submit(then, lambda: job(self._use()))

    def submit(self, then: Callable[[Any], None], job: Callable[[], Any]) -> None:
        self._thread.submit(then, job)

    def on_results(self) -> None:
        """Process the thread's results when its socket is readable."""
        for then, value in self._thread.results():
            then(value)

    def _check(self, value: Any) -> None:
        """Raise `StoreFailed` if `value` is an exception.

        The process ends, and the next process of the topic checks the environment.
        """
        if isinstance(value, Exception):
            raise StoreFailed(f"the store of delayed messages failed: {value}") from value

    def look(self) -> None:
        assert self._store.delayed is not None
        lost = self._store.delayed.summary.lost - self.summary.lost
        if lost > 0:
            self._lost += lost
            log.error("%s: %d delayed messages are lost because of damage", self._title, lost)
        self.summary = self._store.delayed.summary

    def is_idle(self) -> bool:
        """Return True when no work is under way, or when only a full disk prevents the rest of it.

        Recovery then does that rest at the next start.
        """
        moving = self.state is not MoveState.IDLE and not (
            self.state is MoveState.REMOVING and self.full
        )
        return not moving and not self._puts and not self._thread.pending

    def _alarm(self) -> str:
        lost = (
            f"{self._lost} delayed messages are lost because of damage: see "
            f"{DELAYED_NAME}-*{BAD_SUFFIX} in the topic's directory"
        )
        return "; ".join([self.full] * bool(self.full) + [lost] * bool(self._lost))

    def statistics(self) -> DelayedPulse:
        return {
            # This includes messages that are not answered yet, because a topic with them is not
            # deleted.
            "delayed_count": self.summary.messages + self._coming,
            "delayed_bytes": self.summary.bytes,
            "delayed_next_due_ns": self.summary.next_due_ns,
            "delayed_lost": self.summary.lost,
            "delayed_moved": self.moved_count,
            "delayed_alarm": self._alarm(),
            "delayed_full": self.full,
        }


Sequences = Mapping[int, tuple[int, tuple[tuple[int, ...], ...]]]


def sequences(stored: Sequences, delayed: Sequences) -> Sequences:
    """Return each producer's next sequence and last blocks, for plain and delayed blocks together.

    The sequence of a producer counts both kinds.
    """
    merged = dict(stored.items())
    for producer_id, (expected, recent) in delayed.items():
        known, places = stored.get(producer_id, (0, ()))
        merged[producer_id] = max(known, expected), tuple(sorted((*places, *recent)))
    return merged
