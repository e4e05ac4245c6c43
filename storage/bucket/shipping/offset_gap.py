"""Gap of offsets: a log continues behind offsets that a lost broker may have given out, so that no
offset names two messages.

The topic is not open meanwhile. A restore leaves a gap at its end. `skip_offsets` leaves one in a
directory that this broker has had all the time: it had given the part to a broker that is lost.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Final, NamedTuple

from ...directory.store import StoreOptions, TopicIdentity, open_store
from ...errors import Damaged
from ...files import Files
from ...log.chunk import create_chunk, open_chunk
from ...log.damage import Bad, gap_before, keep_bytes
from ...log.index import INDEX_EVERY_BYTES
from ...log.log_format import (
    CHUNK_HEADER_BYTES,
    ChunkHeader,
    chunk_name,
    encode_chunk_header,
    index_name,
    parse_chunk_name,
)
from ...state.state import StateBatch
from ..archive.chunk_cache import open_cache

# It must not depend on how full the disk is. The broker checks it at its start.
OPTIONS: Final = StoreOptions(reserve_bytes=0, ring_bytes=0)


class Offsets(NamedTuple):
    """The first offset of a log, and its end."""

    start: int
    end: int


def skip_offsets(files: Files, folder: str, identity: TopicIdentity, count: int) -> Offsets:
    """Let the log of a topic continue `count` offsets behind its end.

    If it is interrupted, it may be repeated, and the gap may be larger then.
    """
    _remove_replaced_chunk(files, folder, identity.uuid_bytes)
    options = replace(OPTIONS, open_remote=open_cache(1))
    store = open_store(files, folder, options, identity)
    try:
        first, end = max(store.log.start, store.state.load().start), store.log.end
        store.log.roll(time.time_ns())
    finally:
        store.close()
    leap(files, folder, identity.uuid_bytes, gap_before(end + count, end))
    if first < end:
        return Offsets(first, end + count)
    # In a topic without messages, the gap is before the first one.
    store = open_store(files, folder, options, identity)
    try:
        end = store.log.end
        store.state.commit(StateBatch(applied_offset=end, synced_end=end, start=end))
    finally:
        store.close()
    return Offsets(end, end)


def leap(files: Files, folder: str, uuid: bytes, bad: Bad) -> None:
    """Continue behind a gap. The last chunk is empty, and a new one takes its place.

    The new one is made first, so that a log without messages is never without a chunk.
    """
    keep_bytes(files, folder, bad, time.time_ns())
    create_empty_chunk(files, folder, uuid, bad.base_offset)
    _remove(files, folder, bad.first_offset)
    files.sync_folder(folder)


def create_empty_chunk(files: Files, folder: str, uuid: bytes, base: int) -> None:
    header = ChunkHeader(base, 0, files.random_seed(), uuid)
    encoded = encode_chunk_header(header)
    create_chunk(files, folder, header, encoded, INDEX_EVERY_BYTES).close()


def _remove_replaced_chunk(files: Files, folder: str, uuid: bytes) -> None:
    """Remove the empty chunk before the last one, if an earlier attempt was interrupted in `leap`.

    If that attempt has not finished the last one either, recovery removes that instead.
    """
    bases = [base for name in files.list(folder) if (base := parse_chunk_name(name)) is not None]
    empty = sorted(bases)[-2:-1]
    if not empty or files.size_of(f"{folder}/{chunk_name(empty[0])}") > CHUNK_HEADER_BYTES:
        return
    with contextlib.suppress(Damaged):
        open_chunk(files, folder, max(bases), uuid, INDEX_EVERY_BYTES).close()
        _remove(files, folder, empty[0])


def _remove(files: Files, folder: str, base: int) -> None:
    for name in (chunk_name(base), index_name(base)):
        if files.exists(f"{folder}/{name}"):
            files.remove(f"{folder}/{name}")
