"""Retention and upkeep of a topic's log.

`RetentionRunner` applies the topic's policy once a second, and refuses publishes that exceed a
bound. Rules that must hold:

* The floor counts only what channels have *committed*. A channel that crashes now continues at or
  above the floor.
* No chunk is removed before a snapshot of the state on disk covers all of it. If the store is
  damaged later, the rows of producers and transactions are rebuilt from the snapshot and the chunks
  after it. If a full disk prevents a snapshot, the chunks that the last one covers may be removed.
* The new start is committed before any file is removed, and the log forgets the chunks before their
  files are removed: no reader sees a chunk that is half removed.
* Channels get the new start through the port on which they get their blocks, so they get it before
  any block that follows the new start.
* If an extension keeps sealed chunks in another place, their files are removed before the messages
  expire. If it cannot remove them there, none of these chunks expires.
* The housekeeping thread removes files, a round of chunks at a time. The loop never waits for the
  system to free space.

`LogUpkeep` drops old blocks from the ring, and keeps the statistics of chunks, the copies of
damaged blocks, the checks of old chunks, and alarms. It works once a second and never delays a
publisher, because the housekeeping thread reads and writes the files. That thread does one job at a
time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, cast

from ...storage.directory.store import Store
from ...storage.errors import DiskFull
from ...storage.log.removal import LogKeeper, finished_bytes, remove_archived, remove_below
from ...storage.log.survey import Found
from ...storage.retention import (
    CHUNKS_A_ROUND_MAX,
    PARTS,
    LogView,
    chunk_bytes,
    global_policy,
    is_ripe,
    plan,
    plan_local,
)
from ...transport.errors import E_TOPIC_FULL, Refused
from ...transport.settings import NONE, Retention, TopicOptions
from ...transport.wire.protocol import Dropped, Wire
from ..runtime.port import Envelope
from ..runtime.pulses import RetentionPulse, UpkeepPulse
from ..runtime.worker_thread import Jobs
from .channels import Channels
from .commits import StateCommits
from .extension_point import StorageExtension

log = logging.getLogger("zsq")

# The shortest time between two measurements of a full topic. Refused clients soon try again.
MEASURE_NS = 100_000_000
FULL_SAID_NS = 60_000_000_000  # the time between two log lines about a topic that stays full
ALARMS_MAX: Final = 20  # alarms that health shows; the process's log has all of them
ALARM_CHARACTERS_MAX: Final = 300
RETRY_NS = 10_000_000_000  # the delay after a failed removal or a failed snapshot


class RetentionRunner:
    """Applies a topic's retention policy.

    `housekeeping` removes files. `tell` sends a message to a channel. `delayed_bytes` and
    `staged_bytes` count messages that will enter the log later.
    """

    def __init__(
        self, store: Store, uuid: bytes, state: StateCommits, channels: Channels, policy: Retention, title: str,
        housekeeping: Jobs, tell: Callable[[Envelope, Wire], object], delayed_bytes: Callable[[], int],
        staged_bytes: Callable[[], int], *, dropped_count: int, in_memory: bool, extension: StorageExtension,
    ) -> None:  # fmt: skip
        self._store = store
        self._log = store.log
        self._keeper = LogKeeper(store.files, store.directory, uuid, store.log)
        self._state = state
        self._channels = channels
        self._title = title
        self._extension = extension
        self._housekeeping = housekeeping
        self._tell = tell
        self._usual_chunk_bytes = store.log.chunk_bytes
        self._removing = False
        self._left_below = 0  # files below this offset could not be removed
        self._retry_ns = 0
        self._snapshot_out = False
        self._snapshot_retry_ns = 0
        # The unfinished bytes at the last measurement. The log's `written_bytes` was then
        # `_unfinished_at`.
        self._unfinished = 0
        self._unfinished_at = 0
        self._measured_ns = 0
        self.refused_count = 0
        # The reason why publishes are refused. It is empty while the topic's bound is not reached.
        self.full = ""
        self._wanted_bytes = 0
        self._full_said_ns = 0
        self.removed_bytes = 0
        self.dropped_count = dropped_count
        self.delayed_bytes = delayed_bytes
        self.staged_bytes = staged_bytes
        self.in_memory = in_memory
        # Called when the removal that is under way has ended.
        self._holder: Callable[[], object] | None = None
        self._held = False
        self._ticked_at = 0  # `written_bytes` of the log at the last tick
        self.policy = policy
        self.configure(policy)

    def configure(self, policy: Retention) -> dict[str, object]:
        """Apply a policy to the next publish and the next tick."""
        self.policy = policy
        self._log.chunk_bytes = chunk_bytes(self.policy, self._usual_chunk_bytes)
        self._measure()
        return {**self.policy.as_dict()}

    # Admission

    def admit(self) -> None:
        """Raise `Refused` (E_TOPIC_FULL) for a publish if the topic's bound is reached.

        Delayed messages that were accepted before are not checked again. An append holds blocks of
        many producers and is refused as a whole. So it is accepted if there is any room, whatever
        its size. Only one append can exceed the bound (by 2 MiB, or by one block), and no producer
        is refused because of another producer's large block.
        """
        self.admit_bytes(1)

    def admit_delayed(self) -> None:
        """Raise `Refused` as `admit` does, for messages that enter the log only later.

        No rule drops the oldest of them, so in a topic in memory they have a separate bound.
        """
        self.admit()
        if self.in_memory and self.delayed_bytes() >= self.policy.max_bytes:
            text = (
                f"delayed messages use {self.delayed_bytes()} bytes of memory; the limit is "
                f"max_bytes {self.policy.max_bytes}"
            )
            raise self._full(f"{text}; wait until some are due, or cancel some", 0)

    def admit_staged(self, total: int) -> None:
        """Raise `Refused` as `admit` does, for blocks that a writer stages.

        They count from now on, so their commit is not refused later. A topic that drops its oldest
        messages when it is full cannot drop parts of a stage. In such a topic the bound applies
        only to the stages.
        """
        bound = self.policy.max_bytes
        if bound >= 0 and self.staged_bytes() + total > bound:
            self.refused_count += 1
            text = (
                f"{total} more bytes would exceed the topic's bound: {self.staged_bytes()} of "
                f"max_bytes {bound} are staged already"
            )
            raise Refused(
                E_TOPIC_FULL,
                f"{text}; commit or abort stages, or raise the bound (zsq topic set --max-bytes)",
            )
        self.admit_bytes(total)

    def admit_bytes(self, total: int) -> None:
        """Raise `Refused` as `admit` does, for `total` bytes, all of which must fit."""
        bound = self.policy.rejects_above
        if bound < 0 or self._now_unfinished() + total <= bound:
            return
        if time.monotonic_ns() - self._measured_ns >= MEASURE_NS:
            self._measure()
            if self._now_unfinished() + total <= bound:
                return
        delayed, staged = self.delayed_bytes(), self.staged_bytes()
        unfinished = (
            f"{self._now_unfinished()} bytes of max_bytes {bound} are not finished by all channels"
        )
        unfinished += f" ({delayed} of them are delayed)" if delayed else ""
        unfinished += f" ({staged} of them are staged)" if staged else ""
        ways = (
            "finish or empty waiting messages, "
            + ("cancel delayed messages, " if delayed else "")
            + ("commit or abort stages, " if staged else "")
        )
        more = (
            f"{total} more bytes would exceed the topic's bound"
            if total > 1
            else "the topic's bound is reached"
        )
        raise self._full(
            (
                f"{more}: {unfinished}; {ways}delete a channel that nobody reads, or raise the "
                "bound (zsq topic set --max-bytes)"
            ),
            total,
        )

    def _full(self, text: str, wanted_bytes: int) -> Refused:
        """Count a refusal and remember it for the health report.

        It is logged at once, then once a minute while it lasts.
        """
        self.refused_count += 1
        self.full, self._wanted_bytes = text, wanted_bytes
        now = time.monotonic_ns()
        if not self._full_said_ns or now - self._full_said_ns >= FULL_SAID_NS:
            self._full_said_ns = now
            log.warning(
                "%s: publishes are refused (%d so far): %s", self._title, self.refused_count, text
            )
        return Refused(E_TOPIC_FULL, text)

    def _look_for_room(self) -> None:
        """Clear the refusal if what was refused last would fit now. Called once a second."""
        bound = self.policy.rejects_above
        if not self.full or (
            self._wanted_bytes and 0 <= bound < self._now_unfinished() + self._wanted_bytes
        ):
            return
        if (
            not self._wanted_bytes
            and self.in_memory
            and self.delayed_bytes() >= self.policy.max_bytes
        ):
            return
        log.warning(
            "%s: there is room again below the topic's bound; %d publishes were refused so far",
            self._title,
            self.refused_count,
        )
        self.full, self._full_said_ns = "", 0

    def _now_unfinished(self) -> int:
        """Return an upper bound: messages finished since the last measurement still count.

        Delayed and staged messages were admitted and will be in the log, so they count too.
        """
        return (
            self._unfinished
            + self._log.written_bytes
            - self._unfinished_at
            + self.delayed_bytes()
            + self.staged_bytes()
        )

    def _measure(self) -> None:
        if self.policy.rejects_above >= 0:
            self._unfinished = self._keeper.unfinished_bytes(self._channels.floor())
            self._unfinished_at = self._log.written_bytes
            self._measured_ns = time.monotonic_ns()

    # Removal

    def hold(self, then: Callable[[], object]) -> None:
        """Remove nothing from now on. Call `then` once no removal is under way.

        This `then` replaces an earlier one.
        """
        self._held = True
        if self._removing:
            self._holder = then
        else:
            then()

    def release(self) -> None:
        self._held, self._holder = False, None

    def turn(self) -> None:
        """Request a tick early if the topic is in memory and grew by a part of its bound.

        Such a topic cannot wait for the next second. A commit comes before the tick, because only
        chunks that the last commit covers are removed.
        """
        if (
            self.in_memory
            and self._log.written_bytes - self._ticked_at >= self.policy.max_bytes // PARTS
        ):
            self._ticked_at = self._log.written_bytes
            self._state.then(self.tick)

    def tick(self) -> None:
        """Remove what the policy removes. This is called once a second and after a full round."""
        self._measure()
        self._look_for_room()
        self._remove_what_is_left()
        if self._removing or self._held:
            return
        view = self._view()
        policy = self._expiry()
        removal = plan(policy, view, self._keeper.last_time_ns)
        if removal.roll or (policy is not self.policy and is_ripe(self.policy, view)):
            try:
                self._log.roll(view.now_ns)
            # The chunk stays open. Chunks that are sealed can be removed and make room.
            except DiskFull as error:
                log.debug("%s: a chunk cannot be sealed early: %s", self._title, error)
        covered = self._store.keeper.covered
        if removal.chunks and removal.start > covered:
            self._ask_for_snapshot()
            removal = plan(policy, view._replace(applied=covered), self._keeper.last_time_ns)
        if removal.chunks:
            self._remove(removal.start, removal.chunks, view)
        elif self._extension.archives:
            self._leave_disk(view)

    def _expiry(self) -> Retention:
        """Return the policy by which messages expire, on the disk and elsewhere."""
        if self._extension.archives:
            return global_policy(self.policy)
        if self._extension.keeps_remote:
            return replace(self.policy, keep_bytes=NONE, keep_time_s=NONE, keep_chunks=NONE)
        return self.policy

    def _leave_disk(self, view: LogView) -> None:
        """Remove the files of archived chunks that exceed the policy's limits for the disk."""
        extension, covered = self._extension, self._store.keeper.covered
        remote = self._log.reader.remote
        first = next(n for n, base in enumerate(view.bases) if base not in remote)
        last_time_ns = self._keeper.last_time_ns
        may = extension.leavable(view.bases[:-1], view.applied)
        keep = plan_local(self.policy, view, first, may, last_time_ns)
        if keep > first and view.bases[keep] >= covered:
            self._ask_for_snapshot()
            may = extension.leavable(view.bases[:-1], covered)
            keep = plan_local(self.policy, view, first, may, last_time_ns)
        keep = min(keep, first + CHUNKS_A_ROUND_MAX)
        if keep <= first:
            return
        gone = [base for base in view.bases[first:keep] if base not in remote]
        extension.leave(gone)
        size = self._keeper.left(gone)
        log.debug("%s: %d files of %d bytes leave the disk", self._title, len(gone), size)
        self._removing = True
        job = partial(remove_archived, self._store.files, self._store.directory, gone)
        self._housekeeping.submit(self._left, job)

    def _left(self, value: int | Exception) -> None:
        """Go on when the thread has removed the files of archived chunks, or failed."""
        if isinstance(value, OSError):
            log.error(
                "%s: files that were archived cannot be removed: %s; the next start tries again",
                self._title,
                value,
            )
            value = 0
        elif isinstance(value, Exception):
            raise value
        self._removed(0, value, value)

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

    def _view(self) -> LogView:
        return self._keeper.view(
            self.policy, self._channels.floor(), self._state.applied, time.time_ns()
        )

    def _remove(self, start: int, chunks: int, view: LogView) -> None:
        """Commit that the log begins at `start`, then remove the chunks.

        The number of dropped messages counts from the lowest offset that some channel had not
        finished, so it is an upper bound. Rejected: counting what each channel had finished above
        that offset, because a channel may have millions of deferred rows. Each channel itself
        counts the messages that it loses.
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
            text = (
                "%s: dropped up to %d messages below offset %d that not all channels had "
                "finished, because the topic exceeds its bound"
            )
            # Topics in memory drop messages often, so this is no warning for them.
            log.log(
                logging.DEBUG if self.in_memory else logging.WARNING,
                text,
                self._title,
                dropped,
                start,
            )
        log.debug(
            "%s: %d chunks of %d bytes below offset %d are removed",
            self._title,
            chunks,
            size,
            start,
        )
        self._submit(start, chunks)

    def _submit(self, start: int, chunks: int) -> None:
        job = partial(remove_below, self._store.files, self._store.directory, start)
        self._housekeeping.submit(partial(self._removed, start, chunks), job)

    def _removed(self, start: int, chunks: int, value: int | Exception) -> None:
        """Go on when the thread has removed the files or failed."""
        self._removing = False
        if isinstance(value, OSError):
            log.error(
                "%s: files below offset %d cannot be removed: %s; the broker tries again in 10 s",
                self._title,
                start,
                value,
            )
            self._left_below, self._retry_ns = start, time.monotonic_ns() + RETRY_NS
        elif isinstance(value, Exception):
            raise value
        elif chunks == CHUNKS_A_ROUND_MAX:
            self.tick()
        if self._holder is not None and not self._removing:
            holder, self._holder = self._holder, None
            holder()

    def _remove_what_is_left(self) -> None:
        if (
            self._left_below
            and not self._removing
            and not self._held
            and time.monotonic_ns() >= self._retry_ns
        ):
            start, self._left_below = self._left_below, 0
            self._removing = True
            self._submit(start, 0)

    def statistics(self) -> RetentionPulse:
        view = self._keeper.on_disk(self._view())
        log_bytes, finished = sum(view.sizes), finished_bytes(view)
        return {
            "log_bytes": log_bytes,
            "finished_bytes": finished,
            "held_bytes": log_bytes - finished if view.floor < view.end else 0,
            "removed_bytes": self.removed_bytes,
            "dropped_count": self.dropped_count,
            "refused_count": self.refused_count,
            "topic_full": self.full,
            "settings": cast("TopicOptions", self.policy.as_dict()),
        }


class LogUpkeep:
    """Upkeep of a topic's log.

    `alarms` are texts for people. Damage that is already known at the next start raises no alarm.
    """

    def __init__(
        self, store: Store, title: str, housekeeping: Jobs, *, is_woken: bool = False
    ) -> None:
        self._log = store.log
        self._report = store.report
        self._title = title
        self._housekeeping = housekeeping
        self._surveying = False
        self.alarms: list[str] = []
        self.more_alarms = 0
        self._corrupt_told = 0
        # A topic may wake every minute, so its sentence is written only at the level `debug`.
        level = logging.DEBUG if is_woken else logging.INFO
        log.log(level, "%s: %s", title, store.report.sentence())
        for note in store.report.notes:
            log.info("%s: %s", title, note)
        for alarm in store.report.alarms:
            self.alarm(alarm)

    def alarm(self, text: str) -> None:
        """Write an alarm to the log once, and show it in health until the next start."""
        log.error("%s: %s", self._title, text)
        if len(self.alarms) < ALARMS_MAX:
            self.alarms.append(text[:ALARM_CHARACTERS_MAX])
        else:
            self.more_alarms += 1

    def tick(self, now_ns: int, steady_ns: int | None = None) -> None:
        """Do the upkeep that is due. This is called about once a second.

        `now_ns` is wall-clock time, which jumps when the clock is set. So ages and rates use
        `steady_ns`, the monotonic time.
        """
        reader = self._log.reader
        if reader.ring.corrupt_count != self._corrupt_told:
            self._corrupt_told = reader.ring.corrupt_count
            self.alarm(
                "a block changed in storage's memory and was read from the file instead: test "
                "this machine's memory"
            )
        steady_ns = time.monotonic_ns() if steady_ns is None else steady_ns
        reader.ring.expire(steady_ns)
        reader.book.tick(steady_ns)
        job = reader.damage.take(now_ns)
        if job is not None:
            self._housekeeping.submit(self._kept, job)
        self._survey()

    def _kept(self, sentences: list[str] | Exception) -> None:
        for line in (
            [f"copies of damaged blocks cannot be kept: {sentences}"]
            if isinstance(sentences, Exception)
            else sentences
        ):
            log.error("%s: %s", self._title, line)

    def _survey(self) -> None:
        job = None if self._surveying else self._log.survey.take()
        if job is not None:
            self._surveying = True
            self._housekeeping.submit(self._surveyed, job)

    def _surveyed(self, findings: Sequence[Found] | Exception) -> None:
        self._surveying = False
        if isinstance(findings, Exception):
            log.error("%s: old chunks cannot be checked: %s", self._title, findings)
            return
        for alarm in self._log.survey.learn(findings):
            self.alarm(alarm)
        self._survey()

    def statistics(self, troubles: Sequence[str]) -> UpkeepPulse:
        """Return the statistics. `troubles` are alarms that last as long as their causes."""
        damage = self._log.reader.damage
        more = [f"and {self.more_alarms} more, see the log"] if self.more_alarms else []
        return {
            "chunks": len(self._log.reader.bases),
            "damaged_blocks": damage.blocks,
            "lost_messages": damage.messages,
            "ring_bytes": self._log.reader.ring.bytes,
            "alarms": [*self.alarms, *more, *troubles],
            "recovery": {"text": self._report.sentence(), "duration_ms": self._report.duration_ms},
        }
