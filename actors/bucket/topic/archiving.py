"""Archiving: which sealed chunks go to the bucket, and which files may leave the disk.

`Archiver` hands sealed chunks to the archive actor, oldest first, and commits a row for each one
that was uploaded and verified. Then the bucket's manifest is written. Rules that must hold:

* The file of a chunk leaves the disk only when its row is committed, a snapshot of the state
  contains the row, the manifest in the bucket lists it, and the chunk is below the offset from
  which a rebuilt state replays the log.
* What expired is removed from the bucket only after a manifest without it exists.
* A bucket that is away stops nothing but archiving. Files stay until it is back.
* A row counts only for the archive in which the chunk is (`place`). So nothing leaves the disk
  because an earlier bucket has it.
* Nothing is uploaded before the first manifest of this process is written. If the bucket has the
  archive of another copy of the topic (E_FENCED), nothing is written there any more.

| a chunk is | event | next |
|---|---|---|
| sealed | a place is free, and no pause | uploading |
| uploading | uploaded | its row is in the next commit |
| uploading | failed, or the archive actor died | sealed, after a pause |
| in the commit | committed | archived; a manifest is due |
| archived in another place | its file is still on the disk | sealed |
| archived | the log's start passes it | its row's removal is in the next commit; a manifest is due |
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from ....storage.bucket.archive.chunk_cache import ChunkCache, Segment
from ....storage.directory.store import Store
from ....storage.log.chunk import ArchivedChunk
from ....storage.log.index import INDEX_EVERY_BYTES
from ....storage.log.log_format import chunk_name
from ....transport.errors import E_CHECKSUM, E_FENCED
from ....transport.units import NS_PER_S
from ....transport.wire import protocol as p
from ...storage.commits import StateCommits
from .archive_link import ArchiveLink

log = logging.getLogger("zsq")

UPLOADS_MAX: Final = 2
# The pause after a failure. It doubles with each further one, up to PAUSE_S_MAX.
PAUSE_S: Final = 2.0
PAUSE_S_MAX: Final = 60.0
MANIFEST_S: Final = 5.0  # the shortest time between two manifests


class Archiver:
    """The archive of one topic.

    `arrived` is called when fetched segments have arrived, or could not be fetched. `when_shipped`
    calls its argument when all that is committed now is in the log of ticks.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        uuid: str,
        title: str,
        state: StateCommits,
        link: ArchiveLink,
        arrived: Callable[[], object],
        when_shipped: Callable[[Callable[[], object]], object] = lambda action: action(),
        *,
        is_on: bool,
    ) -> None:
        assert isinstance(store.remote, ChunkCache)
        self._store = store
        self._cache = store.remote
        self._log = store.log
        self._name = name
        self._uuid = uuid
        self._title = title
        self._state = state
        self._link = link
        self._arrived = arrived
        self._when_shipped = when_shipped
        self.is_on = is_on
        """False if the topic's setting says that new chunks are not archived."""
        self._uploading: set[int] = set()
        self._committing: set[int] = set()
        self._unfit: dict[int, str] = {}
        self._unsafe: set[int] = set()
        self._expiring: set[int] = set()
        self._manifest_due = True
        self._manifest_out = False
        self._listed: frozenset[int] = frozenset()
        self._place = 0  # the archive that the archive actor uses, or 0 while that is not known
        self._last_place = 0
        self._writes = True
        self._asking = False
        self._began = False  # True after the first manifest of this process
        self._fenced = ""
        self._gone: list[ArchivedChunk] = []  # expired, and still in the bucket
        self._manifest_ns = 0
        self._pause_s = PAUSE_S
        self._retry_ns = 0
        self.trouble = ""
        self._removable = 0  # what is below may be removed from the bucket
        when_shipped(partial(self._may_remove, store.log.start))

    def gone(self) -> None:
        """Ask again for what the archive actor has not answered, because it died.

        The link has forgotten its requests.
        """
        self._uploading.clear()
        self._manifest_due, self._manifest_out = True, False
        self._place, self._asking, self._began = 0, False, False
        self._cache.interrupted()
        self.fetch()

    def tick(self) -> None:
        """Upload, commit and list what is due. This is called about once a second."""
        if not self._store.keeper.problem:
            self._unsafe.clear()
        self._expire()
        if time.monotonic_ns() < self._retry_ns:
            return
        if not self._place:
            self._ask_place()
        elif self._writes and not self._fenced and (self.is_on or self._store.archived):
            self._write_manifest()
            self._upload()

    def _ask_place(self) -> None:
        # A topic without sealed chunks needs no bucket yet.
        if not self._asking and (self._store.archived or len(self._log.chunks) > 1):
            self._asking = True
            self._link.ask(p.OpenArchive, self._opened)

    def _opened(self, answer: p.Done | p.Failed) -> None:
        self._asking = False
        if isinstance(answer, p.Failed):
            self._failed(answer.text)
            for segment in self._cache.take_wanted():
                self._cache.failed(segment, answer.text)
            self._arrived()
            return
        self._place, self._writes = answer.data["place"], answer.data["writes"]
        if self._place != self._last_place:  # its manifest is another one, too
            self._last_place, self._listed = self._place, frozenset()
            self._manifest_due, self._began = True, False
        self.tick()
        self.fetch()

    def _failed(self, text: str) -> None:
        if not self.trouble:
            log.error(
                "%s: chunks cannot be archived: %s; the broker tries again", self._title, text
            )
        self.trouble = f"chunks cannot be archived: {text}"
        self._retry_ns = time.monotonic_ns() + int(self._pause_s * NS_PER_S)
        self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)

    def _succeeded(self) -> None:
        if self.trouble:
            log.warning("%s: chunks are archived again", self._title)
        self.trouble, self._pause_s = "", PAUSE_S

    # Uploads

    def _waiting(self) -> list[int]:
        """Return the sealed chunks that are not archived, oldest first."""
        known, remote = self._store.archived, self._log.reader.remote
        place = self._place
        return [
            base
            for base in self._log.chunks[:-1]
            if (base not in known or (place and known[base].place != place))
            and base not in remote
            and base not in self._committing
            and base not in self._unfit
        ]

    def _upload(self) -> None:
        if not self.is_on or not self._began or self._fenced:
            return
        for base in self._waiting():
            if len(self._uploading) >= UPLOADS_MAX:
                return
            if base not in self._uploading:
                self._uploading.add(base)
                self._link.ask(
                    partial(
                        p.UploadChunk,
                        uuid=self._uuid,
                        folder=self._store.directory,
                        base_offset=base,
                        index_every_bytes=INDEX_EVERY_BYTES,
                    ),
                    partial(self._uploaded, base),
                )

    def _uploaded(self, base: int, answer: p.Done | p.Failed) -> None:
        self._uploading.discard(base)
        if isinstance(answer, p.Done) and base not in self._log.chunks:
            self._gone.append(ArchivedChunk(*answer.data["chunk"]))
            self._manifest_due = True
        following = self._log.reader.next_base(base)
        if base not in self._log.chunks or following is None:
            return  # it expired meanwhile
        if isinstance(answer, p.Failed) and answer.code == E_CHECKSUM:
            self._unfit[base] = f"a log file is damaged and is not archived: {answer.text}"
            log.error("%s: %s", self._title, self._unfit[base])
            return
        if isinstance(answer, p.Failed):
            self._failed(answer.text)
            return
        row = ArchivedChunk(*answer.data["chunk"])
        if row.place != self._place:
            self._place = 0  # the archive actor uses another archive now
            return
        if self._log.skip(row.next_offset) < following:
            self._unfit[base] = (
                f"{self._store.directory}/{chunk_name(base)} is damaged and is not archived: it "
                f"ends at offset {row.next_offset}, and the next chunk begins at {following}"
            )
            log.error("%s: %s", self._title, self._unfit[base])
            return
        self._committing.add(base)
        self._state.batch.archived.append(row)
        self._state.then(partial(self._committed, row))

    def _committed(self, row: ArchivedChunk) -> None:
        self._committing.discard(row.base_offset)
        self._store.archived[row.base_offset] = row
        if self._store.keeper.problem:
            self._unsafe.add(row.base_offset)
        self._manifest_due = True
        self._succeeded()
        self._upload()

    # Removal

    def _expire(self) -> None:
        """Remove the rows of chunks that the log's start has passed."""
        start = self._log.start
        gone = [
            base
            for base, row in self._store.archived.items()
            if row.next_offset <= start and base not in self._expiring
        ]
        if gone:
            self._expiring.update(gone)
            self._state.batch.archived_gone += gone
            self._state.then(partial(self._expired, gone))

    def _expired(self, gone: Sequence[int]) -> None:
        rows = [self._store.archived.pop(base) for base in gone]
        self._expiring.difference_update(gone)
        self._cache.forget_below(self._log.start)
        # A broker that is restored without this commit still has the rows of these chunks.
        self._when_shipped(partial(self._expiry_shipped, rows, self._log.start))

    def _expiry_shipped(self, rows: Sequence[ArchivedChunk], start: int) -> None:
        self._gone += [row for row in rows if row.place == self._place]
        self._may_remove(start)

    def _may_remove(self, start: int) -> None:
        """Note that a restored broker would know that the log begins at `start`."""
        self._removable = max(self._removable, start)
        self._manifest_due = True

    def _write_manifest(self) -> None:
        now = time.monotonic_ns()
        if not self._manifest_due or self._manifest_out or now < self._manifest_ns:
            return
        self._manifest_due, self._manifest_out = False, True
        self._manifest_ns = now + int(MANIFEST_S * NS_PER_S)
        rows = [
            (base, row)
            for base, row in sorted(self._store.archived.items())
            if row.place == self._place
        ]
        gone, self._gone = self._gone, []
        self._link.ask(
            partial(
                p.WriteManifest,
                topic=self._name,
                uuid=self._uuid,
                start=self._log.start,
                end=self._log.synced_end,
                chunks=tuple(tuple(row) for _, row in rows),
                gone=tuple(tuple(row) for row in gone),
                removable=min(self._removable, self._log.start),
            ),
            partial(self._manifest_tried, frozenset(base for base, _ in rows), gone),
        )

    def _manifest_tried(
        self, bases: frozenset[int], gone: list[ArchivedChunk], answer: p.Done | p.Failed
    ) -> None:
        self._manifest_out = False
        if isinstance(answer, p.Done):
            self._listed, self._began = bases, True
            self._succeeded()
            self._upload()
            return
        self._manifest_due = True
        self._gone += gone
        if answer.code == E_FENCED:
            self._fenced = answer.text
            log.error("%s: archiving ends: %s", self._title, answer.text)
        else:
            self._failed(answer.text)

    def leavable(self, bases: Sequence[int], covered: int) -> int:
        """Return how many of the first of `bases` may leave the disk, or have left it.

        A rebuilt state replays the log from `covered` on.
        """
        for number, base in enumerate(bases):
            row = self._store.archived.get(base)
            if row is None or base in self._unsafe or base in self._expiring:
                return number
            if base in self._log.reader.remote:
                continue
            if row.place != self._place or self._fenced or not self._writes:
                return number
            # A start also reads the block before `covered`.
            if row.next_offset >= covered or base not in self._listed:
                return number
        return len(bases)

    def leave(self, bases: Sequence[int]) -> None:
        """Read these chunks from the bucket from now on, because their files are removed."""
        self._log.reader.leave([self._store.archived[base] for base in bases])

    # Reads

    def fetch(self) -> None:
        """Ask for the segments that reads wait for. This is called on each turn of the loop."""
        if not self._place:
            if self._cache.is_wanting:
                self._ask_place()
            return
        failed = False
        for segment in self._cache.take_wanted():
            row = self._store.archived.get(segment.base_offset)
            why = "" if row is not None else "the chunk has expired"
            if row is not None and row.place != self._place:
                why = "they are in another bucket, which the broker used before"
            if why or row is None:
                self._cache.failed(segment, why)
                failed = True
                continue
            self._link.ask(
                partial(
                    p.FetchSegment,
                    uuid=self._uuid,
                    chunk=tuple(row),
                    number=segment.number,
                    path=self._cache.path(segment),
                ),
                partial(self._fetched, segment),
            )
        if failed:
            self._arrived()

    def _fetched(self, segment: Segment, answer: p.Done | p.Failed) -> None:
        if isinstance(answer, p.Failed):
            self._cache.failed(segment, answer.text)
        else:
            self._cache.arrived(segment, answer.data["bytes"])
        self._arrived()

    # Reports

    def is_idle(self) -> bool:
        """Return True if nothing is left to upload or to list."""
        if not self._store.archived and len(self._log.chunks) == 1:
            return True
        if self._fenced or not self._writes or not (self.is_on or self._store.archived):
            return True
        return not (
            self._manifest_due
            or self._manifest_out
            or self._uploading
            or self._committing
            or self._expiring
            or (self.is_on and self._waiting())
        )

    def alarms(self) -> list[str]:
        alarms = [*filter(None, [self.trouble]), *list(self._unfit.values())[:10]]
        if self._fenced:
            alarms.append(f"nothing more is archived: {self._fenced}")
        elif self._place and not self._writes:
            alarms.append(
                "the bucket is the archive of another broker, and this broker's data is a copy of "
                "that one's: it reads from the bucket, and archives nothing"
            )
        remote = self._log.reader.remote.values()
        elsewhere = [row for row in remote if row.place != self._place] if self._place else []
        if elsewhere:
            alarms.append(
                f"the messages from offset {min(elsewhere).base_offset} to "
                f"{max(elsewhere).next_offset} are only in another bucket, which the broker used "
                "before: start it with that one to read them"
            )
        return alarms

    def listed_end(self) -> int:
        """Return the offset up to which the manifest in the bucket lists all kept messages."""
        end = self._log.start
        for base in self._log.chunks[:-1]:
            row = self._store.archived.get(base)
            if row is None or base not in self._listed:
                break
            end = row.next_offset
        return end

    def statistics(self) -> dict[str, Any]:
        archived = self._store.archived
        facts = self._log.reader.book.facts
        waiting = self._waiting() if self.is_on else []
        return {
            "archived_chunks": len(archived),
            "archived_bytes": sum(row.size for row in archived.values()),
            "unarchived_bytes": sum(facts[base].bytes for base in waiting if base in facts),
        }
