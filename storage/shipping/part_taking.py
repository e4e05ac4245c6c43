"""Taking over of a part of a topic from the broker that had it: its directory and its objects.

The other broker has released the part: its topic has ended, its bucket has all of it, and nobody
changes that. So this is a restore of one topic, as after a lost disk, into a directory of this
broker. The objects of the archive are copied to this broker's bucket, by the store itself if both
are in the same one. So each broker's prefix is complete, and the other one may remove its objects
when this broker has shipped the part.

It may be repeated: what an earlier attempt left is removed first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from ..archive.archive_format import chunk_object, index_object, segments_of
from ..archive.chunk_objects import ChunkObjects
from ..bucket.bucket import Bucket, BucketAway, BucketRefuses, BucketUnfit
from ..bucket.object_copy import ObjectCopier
from ..directory.store import TopicIdentity
from ..errors import Damaged
from ..files import Files
from ..log.chunk import ArchivedChunk
from ..log.log_format import STATE_NAME, TEMPORARY_SUFFIX
from ..state.state import StateBatch, StateStore
from .restore import RestoredTopic, Target, restore_topics
from .tick_reader import TickReader

GIVEN: Final = "given"
COPIES: Final = 8  # objects that are copied at a time


class Wanted(NamedTuple):
    """A part that is to be taken over. `log` is the uuid of its log.

    The other broker's log of ticks has had `tick` since it released the part. `directory` is the
    new directory of the part. `place` identifies the archive of this broker.
    """

    name: str
    log: str
    tick: int
    directory: str
    place: int


def take_part(
    files: Files, source: Bucket, target: Bucket, wanted: Wanted
) -> tuple[Mapping[str, Any], RestoredTopic]:
    """Make the directory of a part. Return its row in the other broker's registry, and the report.

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
        # Its broker gives out no more offsets, and all that it gave out are in its bucket.
        reader.topics[wanted.log].reserved = 0
        identity = TopicIdentity(wanted.name, wanted.log, int(row["base_offset"]))
        (found,) = restore_topics(files, source, reader, {wanted.log: Target(identity, partial)})
    finally:
        reader.close()
    if found.problems:
        raise Damaged(f"{source.url}: part {wanted.name}: {'; '.join(found.problems)}")
    _take_archive(files, source, target, wanted, partial)
    files.rename(partial, wanted.directory)
    files.sync_folder(wanted.directory.rpartition("/")[0])
    return row, found


def _row(source: Bucket, reader: TickReader, wanted: Wanted) -> Mapping[str, Any]:
    """Return the row of the part, which says that it was released."""
    try:
        row = json.loads(reader.registry())["topics"][wanted.name]
        good = row["uuid"] == wanted.log and row["state"] == GIVEN
    except (ValueError, KeyError, TypeError):
        good = False
    shipped = reader.topics.get(wanted.log)
    if not good or shipped is None or shipped.begins < 0:
        raise BucketRefuses(
            f"{source.url} does not have part {wanted.name} as its broker gave it, with the log "
            f"{wanted.log}"
        )
    return row  # type: ignore[no-any-return]


def _take_archive(
    files: Files, source: Bucket, target: Bucket, wanted: Wanted, directory: str
) -> None:
    """Copy the archived chunks, and write in the part's rows that they are in this archive."""
    state = StateStore(f"{directory}/{STATE_NAME}")
    try:
        rows = list(state.load().archived.values())
        copier = ObjectCopier(files, source, target, f"{directory}/")

        objects = ChunkObjects(files, target)

        def copy(row: ArchivedChunk) -> None:
            """Copy a chunk, and read back its size, its index, and one of its segments.

            The other broker removes its objects afterwards, so this is checked as an upload is.
            """
            name = chunk_object(wanted.log, row.base_offset, row.crc)
            copier.copy(name)
            copier.copy(index_object(wanted.log, row.base_offset, row.crc))
            if target.size(name) != row.size:
                raise BucketUnfit(f"{target.url}/{name} is not what was copied")
            objects.read_segment(wanted.log, row, row.crc % segments_of(row.size))

        with ThreadPoolExecutor(COPIES, thread_name_prefix="zsq-take") as threads:
            list(threads.map(copy, rows))
        state.commit(StateBatch(archived=[row._replace(place=wanted.place) for row in rows]))
    finally:
        state.close()
