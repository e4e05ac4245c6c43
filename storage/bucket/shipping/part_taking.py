"""Taking over of a part of a topic from the broker that had it: its directory and its objects.

The other broker has released the part: its topic has ended, its bucket has all of it, and nobody
changes that. So this is a restore of one topic, as after a lost disk, into a directory of this
broker. The objects of the archive are copied to this broker's bucket, by the store itself if both
are in the same one. So each broker's prefix is complete, and the other one may remove its objects
when this broker has shipped the part.

It may be repeated: what an earlier attempt left is removed first.

Nobody can publish to the part meanwhile. So most of the archive is copied ahead, while the other
broker still has the part (`copy_ahead`). Then only those chunks are left that were archived since.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from ...directory.store import TopicIdentity
from ...documents import loads
from ...errors import Damaged
from ...files import TEMPORARY_SUFFIX, Files
from ...foreign import uuid_of
from ...log.chunk import ArchivedChunk
from ...log.log_format import STATE_NAME
from ...state.state import StateBatch, StateStore
from ..archive.archive_format import CHUNKS, chunk_object, index_object, segments_of
from ..archive.chunk_objects import ChunkObjects
from ..archive.manifests import newest_manifest
from ..bucket import Bucket, BucketAway, BucketRefuses, BucketUnfit, ObjectMissing
from ..object_copy import ObjectCopier
from .restore import RestoredTopic, Target, restore_topics
from .tick_reader import TickReader

GIVEN: Final = "given"
LEFT: Final = ("new", "live")  # states of a part that its broker had when it was forgotten
COPIES: Final = 8  # objects that are copied at a time
ROUNDS_MAX: Final = 10  # of copies ahead: each one has what was archived during the one before


class Wanted(NamedTuple):
    """A part that is to be taken over. `log` is the uuid of its log.

    The other broker's log of ticks has had `tick` since it released the part. `directory` is the
    new directory of the part. `place` identifies the archive of this broker.

    `reserve` is 0 if the other broker has released the part. Otherwise it was forgotten, and this
    many offsets behind what its bucket has are left out, because it may have given them out.
    """

    name: str
    log: str
    tick: int
    directory: str
    place: int
    reserve: int = 0


class ChunkCopier:
    """Copies the archived chunks of one log. `scratch` is what names of temporary files begin with.

    `copied` has the chunks that the target has for certain, by the names of their objects.
    """

    def __init__(
        self, files: Files, source: Bucket, target: Bucket, log: str, scratch: str
    ) -> None:
        self._copier = ObjectCopier(files, source, target, scratch)
        self._objects = ChunkObjects(files, target)
        self._target = target
        self._log = log
        self.copied: set[str] = set()

    def name(self, row: ArchivedChunk) -> str:
        return chunk_object(self._log, row.base_offset, row.crc)

    def copy(self, row: ArchivedChunk) -> None:
        """Copy a chunk, and read back its size, its index, and one of its segments.

        The other broker removes its objects afterwards, so this is checked as an upload is.
        """
        name = self.name(row)
        self._copier.copy(name)
        self._copier.copy(index_object(self._log, row.base_offset, row.crc))
        if self._target.size(name) != row.size:
            raise BucketUnfit(f"{self._target.url}/{name} is not what was copied")
        self._objects.read_segment(self._log, row, row.crc % segments_of(row.size))
        self.copied.add(name)

    def copy_all(self, rows: Iterable[ArchivedChunk], copy: Callable[[ArchivedChunk], None]) -> int:
        """Copy the chunks that were not copied yet, some at a time. Return their number."""
        left = [row for row in rows if self.name(row) not in self.copied]
        with ThreadPoolExecutor(COPIES, thread_name_prefix="zsq-take") as threads:
            list(threads.map(copy, left))
        return len(left)


class CopiesAhead:
    """The chunks that were copied ahead, of each log. One thread at a time uses it for a log.

    `removing` has the logs whose objects are being removed from the target: the part was here
    before.
    """

    def __init__(
        self, files: Files, target: Bucket, folder: str, removing: AbstractSet[str]
    ) -> None:
        self._files = files
        self._target = target
        self._folder = folder
        self._removing = removing
        self._copied: dict[str, set[str]] = {}

    def copy(self, source: Bucket, name: str) -> str:
        """Copy the archive of a part that another broker still has. Return the uuid of its log.

        What was copied is kept if this fails, and is not copied again. Chunks that expire meanwhile
        are left out. Raises `BucketError`, or `Damaged`.
        """
        log = self._log_of(source, name)
        if log in self._removing:
            raise BucketAway("what the part left here earlier is being removed")
        copier = ChunkCopier(self._files, source, self._target, log, f"{self._folder}/ahead-{log}-")
        copier.copied = self._copied.setdefault(log, copier.copied)

        def copy(row: ArchivedChunk) -> None:
            with contextlib.suppress(ObjectMissing):
                copier.copy(row)

        for _ in range(ROUNDS_MAX):
            manifest = newest_manifest(source, log)
            if manifest is None or not copier.copy_all(manifest.chunks, copy):
                break
        return log

    def take(self, log: str) -> AbstractSet[str]:
        """Return the chunks of this log that were copied, and forget them."""
        return self._copied.pop(log, frozenset())

    @staticmethod
    def _log_of(source: Bucket, name: str) -> str:
        reader = TickReader(source)
        try:
            reader.read()
            log_uuid = uuid_of(loads(reader.registry())["topics"][name]["uuid"])
        except (ValueError, KeyError, TypeError) as error:
            raise BucketAway(f"{source.url} does not have part {name} yet") from error
        finally:
            reader.close()
        return log_uuid


def take_part(
    files: Files,
    source: Bucket,
    target: Bucket,
    wanted: Wanted,
    copied: AbstractSet[str] = frozenset(),
) -> tuple[Mapping[str, Any], RestoredTopic]:
    """Make the directory of a part. Return its row in the other broker's registry, and the report.

    `copied` are the objects of chunks that were copied ahead. Those that are gone since are copied
    again.
    Raises `BucketError`, `Damaged`, or `OSError`. The directory does not exist then.
    """
    partial = wanted.directory + TEMPORARY_SUFFIX
    for path in (partial, wanted.directory):
        if files.exists(path):
            files.remove_tree(path)
    reader = TickReader(source)
    try:
        reader.read()
        if reader.last.index.number < wanted.tick:
            raise BucketAway(
                f"{source.url}: the log of ticks ends at tick {reader.last.index.number}, before "
                f"tick {wanted.tick}, with which the part was given"
            )
        row = _row(source, reader, wanted)
        shipped = reader.topics[wanted.log]
        if wanted.reserve:
            shipped.reserved = max(shipped.reserved, shipped.end + wanted.reserve)
        else:
            # Its broker gives out no more offsets, and all that it gave out are in its bucket.
            shipped.reserved = 0
        identity = TopicIdentity(wanted.name, wanted.log, int(row["base_offset"]))
        (restored,) = restore_topics(files, source, reader, {wanted.log: Target(identity, partial)})
    finally:
        reader.close()
    if restored.problems:
        raise Damaged(f"{source.url}: part {wanted.name}: {'; '.join(restored.problems)}")
    copier = ChunkCopier(files, source, target, wanted.log, f"{partial}/")
    if copied:
        copier.copied.update(copied & set(target.names(f"{CHUNKS}/{wanted.log}/")))
    _take_archive(copier, partial, wanted.place)
    files.rename(partial, wanted.directory)
    files.sync_folder(wanted.directory.rpartition("/")[0])
    return row, restored


def _row(source: Bucket, reader: TickReader, wanted: Wanted) -> Mapping[str, Any]:
    """Return the row of the part, which says that it was released."""
    try:
        row = loads(reader.registry())["topics"][wanted.name]
        states = (GIVEN, *LEFT) if wanted.reserve else (GIVEN,)
        good = row["uuid"] == wanted.log and row["state"] in states
    except (ValueError, KeyError, TypeError):
        good = False
    shipped = reader.topics.get(wanted.log)
    if not good or shipped is None or shipped.begins < 0:
        raise BucketRefuses(
            f"{source.url} does not have part {wanted.name} as its broker gave it, with the log "
            f"{wanted.log}"
        )
    return row  # type: ignore[no-any-return]


def _take_archive(copier: ChunkCopier, directory: str, place: int) -> None:
    """Copy the archived chunks, and write in the part's rows that they are in this archive."""
    state = StateStore(f"{directory}/{STATE_NAME}")
    try:
        rows = list(state.load().archived.values())
        copier.copy_all(rows, copier.copy)
        state.commit(StateBatch(archived=[row._replace(place=place) for row in rows]))
    finally:
        state.close()
