"""Shipped end: what a successor has of a topic, according to the tails of its takeover.

A successor restores all complete blocks and groups whose bytes are in ticks. The last piece may
have complete blocks behind the `end` that it names. So the end is found in the local log, which has
the same bytes at the same places (`restore.py`).

Delayed messages have ascending serials, and the meta row of their store has the next one. A
successor has the rows with serials below the meta row that was shipped last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from ....transport.block.block import IN_GROUP
from ....transport.wire.codec import unpack_value
from ...directory.store import Store
from ...errors import Damaged
from ...log.chunk import Chunk
from ...row_changes import (
    DELAYED,
    DELAYED_BEGIN,
    DELAYED_NONE,
    Frame,
    decode_frames,
    read_frames,
)
from ...rows import META, unwrap
from ..bucket import Bucket, BucketRefuses, ObjectMissing
from .ship_log import Chain, find_chain, read_index
from .tick_format import TAKEOVER, Copy, DecodedIndex, Index, Piece, Tail, log_object

READERS: Final = 8
READ_BYTES: Final = 4 * 1024 * 1024


class Takeover(NamedTuple):
    """The takeover by which a data directory lost its broker, and the log of ticks now."""

    tick: Index
    chain: Chain


def find_takeover(bucket: Bucket, own: Copy) -> Takeover | None:
    """Return the first takeover by another copy after the last epoch of `own`.

    None if there is none: this copy is the newest one. Raises `BucketError`.
    """
    chain = find_chain(bucket)
    if chain.last is None or chain.last.index.copy == own.copy:
        return None
    index = chain.last.index
    if index.archive != own.archive:
        raise BucketRefuses(
            f"{bucket.url} belongs to archive {index.archive[:8]}, and the data directory to "
            f"{own.archive[:8]}: it was shipped to another bucket"
        )
    number = index.number if index.kind == TAKEOVER else index.takeover
    found: Index | None = None
    # A restored copy that has not taken over yet has what was there when it was restored.
    while number >= max(0, own.after):
        one = read_index(bucket, number).index
        if one.copy == own.copy:
            break
        found, number = one, one.takeover
    return None if found is None else Takeover(found, chain)


def shipped_end(store: Store, tail: Tail) -> int:
    """Return the offset at which a successor's messages end."""
    reader = store.log.reader
    end = tail.end
    for base in store.log.chunks:
        following = reader.next_base(base)
        if base > tail.chunk or base in reader.remote:
            continue
        if following is not None and following <= end and base != tail.chunk:
            continue
        chunk = reader.open(base)
        size = store.files.size_of(chunk.path)
        end = max(end, _complete_end(chunk, end, tail.position if base == tail.chunk else size))
    return end


def _complete_end(chunk: Chunk, end: int, limit: int) -> int:
    """Return the offset after the last complete block or group in the first `limit` bytes."""
    if chunk.adopted:
        # The mark in its last chunk completes the group. It counts only with the chunk's footer.
        if limit < chunk.files.size_of(chunk.path):
            return end
        mark = chunk.mark_at(chunk.last_position())
        return end if mark is None else max(end, mark.next_offset)
    for stretch in chunk.walk(chunk.locate(end).position, columns=False):
        if stretch.end > limit:
            break
        header = stretch.header
        if stretch.good and header is not None and not header.flags & IN_GROUP:
            end = max(end, chunk.base_offset + header.next_offset)
    return end


# Delayed messages


def known_serials(bucket: Bucket, found: Takeover, wanted: Collection[str]) -> dict[str, int]:
    """Return the next serials of delayed messages that the successor knew, by topic.

    Reads the ticks before the takeover backwards. A topic is missing in the result if its ticks
    were removed since then. Raises `BucketAway`.
    """
    tails = found.tick.tails or {}
    serials = {uuid: 0 for uuid in wanted if uuid not in tails}
    left = set(wanted) - serials.keys()
    first = min((tails[uuid].needed for uuid in left), default=0)
    numbers = [one for one in found.chain.numbers if first <= one < found.tick.number][::-1]
    for index in _indexes(bucket, numbers):
        if not left:
            break
        for piece in index.index.pieces[::-1]:
            if piece.uuid not in left:
                continue
            try:
                serial = _serial_in(bucket, index, piece)
            except (BucketRefuses, ObjectMissing, Damaged):
                left.discard(piece.uuid)
                continue
            if serial is not None:
                serials[piece.uuid] = serial
            if serial is not None or piece.begins:
                left.discard(piece.uuid)
    return serials


def _indexes(bucket: Bucket, numbers: list[int]) -> Iterator[DecodedIndex]:
    """Yield indexes, until one was removed. `READERS` threads read ahead."""
    with ThreadPoolExecutor(READERS, thread_name_prefix="zsq-rescue") as threads:
        for start in range(0, len(numbers), READERS):
            part = numbers[start : start + READERS]
            try:
                yield from threads.map(lambda number: read_index(bucket, number), part)
            except (ObjectMissing, BucketRefuses):
                return


def _serial_in(bucket: Bucket, found: DecodedIndex, piece: Piece) -> int | None:
    """Return the last serial that a piece tells, or None."""
    serial: int | None = None
    if piece.change_bytes:
        data = bucket.read(
            log_object(found.index.number),
            found.body + piece.position + piece.range_bytes,
            piece.change_bytes,
        )
        serial = _last_serial(decode_frames(data))
    if serial is None and piece.begins and piece.base:
        serial = _last_serial(_base_frames(bucket, piece.base))
    return serial


def _base_frames(bucket: Bucket, name: str) -> Iterator[Frame]:
    position = 0
    rest = b""

    def read(size: int) -> bytes:
        nonlocal position, rest
        if not rest:
            rest = bucket.read(name, position, READ_BYTES)
            position += len(rest)
        found, rest = rest[:size], rest[size:]
        return found

    return read_frames(read)


def _last_serial(frames: Iterator[Frame]) -> int | None:
    serial: int | None = None
    for frame in frames:
        if frame.kind == DELAYED_NONE:
            serial = 0
        elif frame.kind in (DELAYED, DELAYED_BEGIN):
            for key, value in frame.changes:
                if key == META and value is not None:
                    serial = _serial_of(value)
    return serial


def _serial_of(value: bytes) -> int:
    try:
        return int(unpack_value(bytes(unwrap(META, value)))["serial"])
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"the meta row of delayed messages has a wrong form: {error}") from error
