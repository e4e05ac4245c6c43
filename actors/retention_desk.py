"""Storage's desk for retention: carries out a topic's policy once a second, and refuses what would pass a bound.

Orders that must hold:

* The floor is what channels have *committed*: a channel that crashes now comes back at or above it.
* No chunk goes before a snapshot of the state is on disk that counts all of it: if the store is damaged later, producers' and
  transactions' rows are made from that and the chunks behind it. Where a full disk lets none be written, what the last one counts may go.
* The new start is committed before any file goes, and the log forgets the chunks before their files do: nobody reads what is half gone.
* Channels are told the new start by the port on which they get their blocks, so before any block from behind it.
* Files go on the housekeeping thread, a round of chunks at a time; the loop never waits for the system to give back space.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from ..storage.errors import DiskFull
from ..storage.removal import LogKeeper, finished_bytes, remove_below
from ..storage.retention import CHUNKS_A_ROUND_MAX, PARTS, Retention, View, chunk_bytes, plan, resolve
from ..storage.store import Store
from ..transport.errors import E_TOPIC_FULL, Refused
from ..transport.protocol import Dropped, Wire
from .channel_desk import ChannelDesk
from .port import Envelope
from .state_desk import StateDesk

log = logging.getLogger("zsq")

MEASURE_NS = 100_000_000  # a full topic is measured again at most so often: who is refused asks again soon
RETRY_NS = 10_000_000_000  # after files could not be removed, or a snapshot not be written


class _Jobs(Protocol):
    def submit(self, tag: Any, job: Callable[[], Any]) -> None: ...


class RetentionDesk:
    """`house` gives the thread for removals; `tell` sends a word to a channel. `delayed_bytes`: of messages that are not due yet."""

    def __init__(
        self, store: Store, uuid: bytes, state: StateDesk, channels: ChannelDesk, settings: Mapping[str, Any], title: str,
        house: Callable[[], _Jobs], tell: Callable[[Envelope, Wire], object], dropped_count: int = 0,
    ) -> None:  # fmt: skip
        self._store = store
        self._log = store.log
        self._keeper = LogKeeper(store.files, store.directory, uuid, store.log)
        self._state = state
        self._channels = channels
        self._title = title
        self._house = house
        self._tell = tell
        self._usual_chunk_bytes = store.log.chunk_bytes
        self._removing = False
        self._left_below = 0  # files below it could not be removed
        self._retry_ns = 0
        self._snapshot_out = False
        self._snapshot_retry_ns = 0
        self._unfinished = 0  # bytes, as measured when `written_bytes` of the log was `_unfinished_at`
        self._unfinished_at = 0
        self._measured_ns = 0
        self.refused_count = 0
        self.removed_bytes = 0
        self.dropped_count = dropped_count
        self.delayed_bytes: Callable[[], int] = lambda: 0
        self.in_memory = False
        self._holder: Callable[[], object] | None = None  # waits for the removal that is under way
        self._held = False
        self._ticked_at = 0  # `written_bytes` of the log
        self.policy: Retention
        self.configure(settings)

    def configure(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """In effect when it returns: for the next publish, and with the next tick."""
        self.policy = resolve(settings)
        self._log.chunk_bytes = chunk_bytes(self.policy, self._usual_chunk_bytes)
        self._measure()
        return self.policy.as_dict()

    # What comes in

    def admit(self) -> None:
        """`Refused` E_TOPIC_FULL where the bound is reached, for a publish; what was accepted before (delayed) is not asked again.

        An append holds blocks of many producers, and is refused as a whole. So it is taken where there is any room, whatever it holds:
        the bound is passed by one append at most (2 MiB, or one block), and nobody is refused for a large block of somebody else.
        """
        self.admit_bytes(1)

    def admit_delayed(self) -> None:
        """The same for what will be in the log only later: nothing drops the oldest of it, so in memory it has a bound of its own."""
        self.admit()
        if self.in_memory and self.delayed_bytes() >= self.policy.max_bytes:
            self.refused_count += 1
            text = f"delayed messages take {self.delayed_bytes()} bytes of memory, of at most {self.policy.max_bytes}"
            raise Refused(E_TOPIC_FULL, f"{text}; wait until some are due, or cancel some")

    def admit_bytes(self, total: int) -> None:
        """The same for so many bytes, all of which must fit."""
        bound = self.policy.rejects_above
        if bound < 0 or self._now_unfinished() + total <= bound:
            return
        if time.monotonic_ns() - self._measured_ns >= MEASURE_NS:
            self._measure()
            if self._now_unfinished() + total <= bound:
                return
        self.refused_count += 1
        delayed = self.delayed_bytes()
        what = f"{self._now_unfinished()} of max_bytes {bound} are not finished by all channels"
        what += f" ({delayed} of them are delayed)" if delayed else ""
        ways = "finish or empty what waits, " + ("cancel delayed messages, " if delayed else "")
        more = f"{total} bytes more would pass the topic's bound" if total > 1 else "the topic's bound is reached"
        raise Refused(E_TOPIC_FULL, f"{more}: {what}; {ways}delete a channel that nobody reads, or raise it (zsq topic set --max-bytes)")

    def _now_unfinished(self) -> int:
        """At most: what was finished since it was measured still counts. What is delayed will be in the log, and is not refused then."""
        return self._unfinished + self._log.written_bytes - self._unfinished_at + self.delayed_bytes()

    def _measure(self) -> None:
        if self.policy.rejects_above >= 0:
            self._unfinished = self._keeper.unfinished_bytes(self._channels.floor())
            self._unfinished_at = self._log.written_bytes
            self._measured_ns = time.monotonic_ns()

    # What goes

    def hold(self, then: Callable[[], object]) -> None:
        """Remove nothing from now on; `then` is called when nothing is being removed any more. An older one is forgotten."""
        self._held = True
        if self._removing:
            self._holder = then
        else:
            then()

    def release(self) -> None:
        self._held, self._holder = False, None

    def turn(self) -> None:
        """Once a turn of the loop. Memory may not wait for the next second; and chunks go behind the checkpoint only."""
        if self.in_memory and self._log.written_bytes - self._ticked_at >= self.policy.max_bytes // PARTS:
            self._ticked_at = self._log.written_bytes
            self._state.wanted = True
            self._state.then(self.tick)

    def tick(self) -> None:
        """Once a second, and when a full round was removed."""
        self._measure()
        self._remove_what_is_left()
        if self._removing or self._held:
            return
        view = self._view()
        found = plan(self.policy, view, self._keeper.last_time_ns)
        if found.roll:
            try:
                self._log.roll(view.now_ns)
            except DiskFull as error:  # it stays as it is; what is sealed already can go, and makes room
                log.debug("%s: not sealed before its time: %s", self._title, error)
        covered = self._store.keeper.covered
        if found.chunks and found.start > covered:
            self._ask_for_snapshot()
            found = plan(self.policy, view._replace(applied=covered), self._keeper.last_time_ns)
        if found.chunks:
            self._remove(found.start, found.chunks, view)

    def _ask_for_snapshot(self) -> None:
        if not self._snapshot_out and time.monotonic_ns() >= self._snapshot_retry_ns:
            self._snapshot_out = True
            self._state.read(lambda store: self._store.keeper.write(), self._snapshot_tried)

    def _snapshot_tried(self, value: object) -> None:
        self._snapshot_out = False
        if self._store.keeper.problem:
            self._snapshot_retry_ns = time.monotonic_ns() + RETRY_NS
        else:
            self.tick()

    def _view(self) -> View:
        return self._keeper.view(self.policy, self._channels.floor(), self._state.applied, time.time_ns())

    def _remove(self, start: int, chunks: int, view: View) -> None:
        """Commit that the log begins at `start`; then the chunks go.

        What is counted as dropped begins at the lowest offset that any channel had not finished: an upper bound. Rejected: counting what
        each one had finished behind that, for it may have millions of deferred rows; channels count for themselves what they lose.
        """
        self._removing = True
        dropped = max(0, start - max(view.floor, view.bases[0]))
        self._state.batch.start, self._state.batch.dropped = start, self.dropped_count + dropped
        self._state.cover(start)
        self._channels.dropped(start)
        self._state.then(partial(self._committed, start, chunks, dropped))

    def _committed(self, start: int, chunks: int, dropped: int) -> None:
        size = self._keeper.forget(start)
        self.removed_bytes += size
        self.dropped_count += dropped
        for envelope in self._channels.owners.values():
            self._tell(envelope, Dropped(start))
        if dropped:
            text = "%s: up to %d messages below offset %d are dropped that not all channels have finished: the topic's bound is passed"
            log.log(logging.DEBUG if self.in_memory else logging.WARNING, text, self._title, dropped, start)  # there it is the usual thing
        log.debug("%s: %d chunks of %d bytes below offset %d go", self._title, chunks, size, start)
        self._submit(start, chunks)

    def _submit(self, start: int, chunks: int) -> None:
        job = partial(remove_below, self._store.files, self._store.directory, start)
        self._house().submit(partial(self._removed, start, chunks), job)

    def _removed(self, start: int, chunks: int, value: int | Exception) -> None:
        """The thread is done with it."""
        self._removing = False
        if isinstance(value, OSError):
            log.error("%s: files below offset %d cannot be removed: %s; tried again in 10 s", self._title, start, value)
            self._left_below, self._retry_ns = start, time.monotonic_ns() + RETRY_NS
        elif isinstance(value, Exception):
            raise value
        elif chunks == CHUNKS_A_ROUND_MAX:
            self.tick()
        if self._holder is not None and not self._removing:
            holder, self._holder = self._holder, None
            holder()

    def _remove_what_is_left(self) -> None:
        if self._left_below and not self._removing and not self._held and time.monotonic_ns() >= self._retry_ns:
            start, self._left_below = self._left_below, 0
            self._removing = True
            self._submit(start, 0)

    def statistics(self) -> dict[str, Any]:
        view = self._view()
        return {
            "log_bytes": sum(view.sizes),
            "finished_bytes": finished_bytes(view),
            "removed_bytes": self.removed_bytes,
            "dropped_count": self.dropped_count,
            "refused_count": self.refused_count,
            "retention": self.policy.as_dict(),
        }
