"""Frames to NSQ clients, and message ids.

frame     int32 size (of type and data) | int32 type | data
message   int64 time in ns | uint16 attempts | 16 hex digits of id | body

A message is the data of a frame of type 2. All numbers are big-endian. Nothing here does I/O. All
work for single messages runs in C.

An id is the message's offset. If the topic has parts, the first two digits are the number of the
part, and the other 14 are the offset, so an id is unique within its topic. This costs nothing: a
topic has at most 256 parts, and an offset needs no more than 54 bits (`core/message.py`). Ids that
the gateway makes up would need a table, and would mean nothing to a user who has one from a log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain, repeat
from typing import Final

from ..names import PART_SHIFT, PARTS_MAX
from .errors import NsqError

MAGIC: Final = b"  V2"
RESPONSE: Final = 0
ERROR: Final = 1
MESSAGE: Final = 2
ID_BYTES: Final = 16
ATTEMPTS_MAX: Final = (1 << 16) - 1

_FRAME: Final = struct.Struct(">ii")
_HEAD: Final = struct.Struct(">iiqH")  # size, type, time, attempts
_HEAD_OVERHEAD: Final = _HEAD.size - 4 + ID_BYTES  # the part of a frame's size that is not the body


def frame(kind: int, data: bytes) -> bytes:
    return _FRAME.pack(len(data) + 4, kind) + data


OK: Final = frame(RESPONSE, b"OK")
CLOSE_WAIT: Final = frame(RESPONSE, b"CLOSE_WAIT")
HEARTBEAT: Final = frame(RESPONSE, b"_heartbeat_")


def error_frame(error: NsqError) -> bytes:
    """Return the frame of an error.

    It is empty for an error without a code. In that case the connection ends without a frame.
    """
    return frame(ERROR, error.data) if error.code else b""


assert 1 << (64 - PART_SHIFT) >= PARTS_MAX


def id_base(part: int | None) -> int:
    """Return what is added to the offsets of a part in its ids: 0 if the topic has no parts."""
    return 0 if part is None else part << PART_SHIFT


def message_id(offset: int) -> bytes:
    return b"%016x" % offset


def message_offsets(ids: Sequence[bytes]) -> tuple[int, ...]:
    """Return the numbers of ids of 16 bytes: the offsets, and `id_base` of the part.

    Raises `ValueError` if an id is not hexadecimal. No message ever had such an id.
    """
    numbers = bytes.fromhex(b"".join(ids).decode("ascii"))
    if len(numbers) != len(ids) * ID_BYTES // 2:  # fromhex() skips white space
        raise ValueError("a message id must have 16 hexadecimal digits")
    return struct.unpack(f">{len(ids)}Q", numbers)


# Few formats are kept, because the format for 1000 messages takes 32 KB. To make a format takes
# only 20 ns for each message.
@lru_cache(16)
def _cut(size: int, count: int) -> struct.Struct:
    return struct.Struct(f"{size}s" * count)


@lru_cache(4)
def _heads(count: int) -> struct.Struct:
    return struct.Struct(">" + _HEAD.format.removeprefix(">") * count)


def message_ids(offsets: Sequence[int]) -> tuple[bytes, ...]:
    """Return the `message_id` of each offset (and `id_base`), by one conversion to hexadecimal."""
    count = len(offsets)
    digits = struct.pack(f">{count}Q", *offsets).hex().encode()
    return _cut(ID_BYTES, count).unpack(digits)


def encode_messages(
    bodies: Sequence[bytes],
    ids: Sequence[bytes],
    attempts: int | Sequence[int],
    times: int | Sequence[int],
) -> bytes:
    """Return the frames of these messages as one byte string.

    `attempts` and `times` (ns) may be one number for all messages. The pieces of all frames are put
    into one list, which is joined. For each kind of piece, one assignment to a slice with a step
    sets the pieces of all frames. Raises `ValueError` if the lengths differ.
    """
    count = len(bodies)
    if not count:
        return b""
    sizes = [size + _HEAD_OVERHEAD for size in map(len, bodies)]
    if isinstance(attempts, int) and isinstance(times, int):
        head = _HEAD.pack(sizes[0], MESSAGE, times, min(attempts, ATTEMPTS_MAX))
        if sizes.count(sizes[0]) == count:
            pieces = [head] * (3 * count)
        else:
            pieces = [head[4:]] * (4 * count)
            pieces[0::4] = _cut(4, count).unpack(struct.pack(f">{count}i", *sizes))
    else:
        tries = map(min, _each(attempts, count), repeat(ATTEMPTS_MAX))
        fields = chain.from_iterable(
            zip(sizes, repeat(MESSAGE, count), _each(times, count), tries, strict=True)
        )
        pieces = [b""] * (3 * count)
        pieces[0::3] = _cut(_HEAD.size, count).unpack(_heads(count).pack(*fields))
    step = len(pieces) // count
    pieces[step - 2 :: step] = ids
    pieces[step - 1 :: step] = bodies
    return b"".join(pieces)


def _each(value: int | Sequence[int], count: int) -> Iterable[int]:
    return repeat(value, count) if isinstance(value, int) else value
