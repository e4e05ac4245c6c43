"""What goes with the state store's commits: the snapshot, and a note of starts that came to nothing.

*The snapshot* is written at once, before a commit returns, where it would be wrong in a way that redelivery does not heal: the channels
that there are, a pause, where a first channel begins, a cursor that was moved back, which chunks are gone, which parts of a batch were
sealed. All else (cursors, holes, producers, transactions) is up to date again after a replay of the log and some redeliveries, and waits:
a minute, or as many as the snapshot has MiB, so that it never writes more than some 17 KB a second. A full disk keeps no commit from
its answer. But what a replay needs must be there: no chunk goes before a snapshot is on disk that counts all of it (`covered`).

*Starts.* LMDB may die of a flipped bit, with the whole process (SIGBUS). `DIR/state.starts` counts starts since the last commit that
succeeded, and keeps the times of the last ones that were not ended in order. After one start without a commit, the next one makes one
at once, to know. After two, or too many within a minute, the store is examined in a process of its own before it is opened. A start that
came to a few commits is none of those many: it has used all pages that were free. The file is never synced: it is about dying processes,
not about power.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import Final

from . import documents
from .errors import Damaged
from .files import Files
from .snapshot import encode_snapshot, write_snapshot
from .state import StateBatch, StateStore, Table

SNAPSHOT_EVERY_S: Final = 60.0
SNAPSHOT_LATEST_S: Final = 15 * 60.0
SNAPSHOT_STEP_BYTES: Final = 1024 * 1024  # so many more, and the next one is SNAPSHOT_EVERY_S later
STARTS_NAME: Final = "state.starts"
UNPROVEN_MAX: Final = 2  # starts without a commit; from then on the store is examined first
STARTS_MAX: Final = 6
STARTS_WITHIN_S: Final = 60.0
PROVEN_COMMITS: Final = 4  # LMDB uses pages again that were freed two commits before
_NOTE_BYTES_MAX: Final = 4096
_NS: Final = 1_000_000_000


class Starts:
    """The note of starts. `begin` reads it and adds this one."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._path = f"{directory}/{STARTS_NAME}"
        self._times: list[int] = []
        self._commits = 0
        self.unproven = 0

    def begin(self, now_ns: int) -> int:
        """How many starts before this one came to no commit."""
        self.unproven, times = self._read()
        self._times = [one for one in times if now_ns - STARTS_WITHIN_S * _NS < one <= now_ns]
        before = self.unproven
        if len(self._times) >= STARTS_MAX:
            before = max(before, UNPROVEN_MAX)
            self._times = []
        self._times.append(now_ns)
        self._write(self.unproven + 1)
        return before

    def committed(self) -> None:
        self.proven()
        self._commits += 1
        if self._commits == PROVEN_COMMITS:
            self._times = self._times[:-1]
            self._write(0)

    def proven(self) -> None:
        """A commit succeeded, or the store was found to be sound."""
        if self.unproven:
            self._write(0)

    def distrust(self) -> None:
        """Something is wrong with the store: it is to be examined at the next start."""
        self._write(UNPROVEN_MAX)

    def end(self) -> None:
        """In order."""
        self._times = []
        self._write(0)

    def _read(self) -> tuple[int, list[int]]:
        try:
            found = documents.loads(self._files.read_note(self._path, _NOTE_BYTES_MAX) or '{"unproven": 0, "starts": []}')
            return int(found["unproven"]), [int(one) for one in found["starts"]]
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return 0, []  # torn by the death that it was to note

    def _write(self, unproven: int) -> None:
        self.unproven = unproven
        data = json.dumps({"unproven": unproven, "starts": self._times}).encode()
        with contextlib.suppress(OSError):  # a full disk must not keep a topic from starting
            self._files.note(self._path, data)


class StateKeeper:
    """Of one open store, used where its commits are: in its thread. `problem`: why there is no new snapshot; empty: there is one.

    `covered`: from which offset on a store that is made again replays the log; -1: there was no snapshot yet since it was opened.
    """

    def __init__(self, files: Files, directory: str, uuid: bytes, state: StateStore, table: Table, starts: Starts) -> None:
        self._files = files
        self._directory = directory
        self._uuid = uuid
        self._state = state
        self._starts = starts
        self._known = {name: _facts(row) for name, row in table.channels.items()}
        self._next_s = 0.0
        self._stale = True
        self.problem = ""
        self.covered = -1
        self._applied = table.applied_offset
        self.written_bytes = 0
        self._size = 0
        state.on_committed = self._committed

    def _committed(self, batch: StateBatch) -> None:
        self._starts.committed()
        self._stale = True
        self._applied = self._applied if batch.applied_offset is None else batch.applied_offset
        urgent = bool(batch.channel_drops) or {batch.paused_end, batch.waiting, batch.start} != {None}
        # A part that was sealed for good is nobody's to send again: its row, and with it its files, shall not be forgotten.
        urgent = urgent or (self._size < SNAPSHOT_STEP_BYTES and any(row.final for row in batch.stage_puts.values()))
        for name in batch.channel_drops:
            self._known.pop(name, None)
        for name, row in batch.channel_puts.items():
            facts = _facts(row)
            before = self._known.get(name)
            urgent = urgent or before is None or before[0] != facts[0] or facts[1] < before[1]
            self._known[name] = facts
        if urgent:
            self.write()

    def is_due(self) -> bool:
        """Asked now and then from any thread; then `write` is to be called in the store's."""
        return self._stale and time.monotonic() >= self._next_s

    def write(self) -> None:
        """A snapshot of what is committed. Best effort."""
        data = encode_snapshot(self._uuid, time.time_ns(), self._state.small_rows(), self._state.deferred_totals(self._known))
        pause_s = SNAPSHOT_EVERY_S * (1 + len(data) // SNAPSHOT_STEP_BYTES)
        self._size = len(data)
        self._next_s = time.monotonic() + min(pause_s, SNAPSHOT_LATEST_S)
        try:
            write_snapshot(self._files, self._directory, data)
        except OSError as error:
            self.problem = f"{self._directory}: no new snapshot of the state: {error}"
            return
        self._stale = False
        self.covered = self._applied
        self.problem = ""
        self.written_bytes += len(data)

    def distrust(self) -> None:
        self._starts.distrust()

    def close(self) -> None:
        """After the last commit, while the store is still open."""
        if self._stale:
            with contextlib.suppress(Damaged):
                self.write()
        self._starts.end()


def _facts(row: dict[str, object]) -> tuple[bool, int]:
    """What of a channel's row a snapshot must have: whether it is paused, and where it is, if that goes back."""
    following = row.get("next", 0)
    return bool(row.get("paused")), following if isinstance(following, int) else 0
