"""Frames to a client of NSQ, and message ids. Pure; nothing is done once per message but in C.

frame     int32 size (of type and data) | int32 type | data           all big-endian
message   int64 time in ns | uint16 attempts | 16 hex digits of id | body       is the data of a frame of type 2
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain, repeat
from typing import Final

from .errors import NsqError

MAGIC: Final = b"  V2"
RESPONSE: Final = 0
ERROR: Final = 1
MESSAGE: Final = 2
ID_BYTES: Final = 16
ATTEMPTS_MAX: Final = (1 << 16) - 1

_FRAME: Final = struct.Struct(">ii")
_HEAD: Final = struct.Struct(">iiqH")  # size, type, time, attempts
_HEAD_OVERHEAD: Final = _HEAD.size - 4 + ID_BYTES  # of a frame's size, besides the body


def frame(kind: int, data: bytes) -> bytes:
    return _FRAME.pack(len(data) + 4, kind) + data


OK: Final = frame(RESPONSE, b"OK")
CLOSE_WAIT: Final = frame(RESPONSE, b"CLOSE_WAIT")
HEARTBEAT: Final = frame(RESPONSE, b"_heartbeat_")


def error_frame(error: NsqError) -> bytes:
    """Nothing at all for an error without a code: then the connection just ends."""
    return frame(ERROR, error.data) if error.code else b""


def message_id(offset: int) -> bytes:
    return b"%016x" % offset


def message_offsets(ids: Sequence[bytes]) -> tuple[int, ...]:
    """The offsets behind ids of 16 bytes, in one go; ValueError if one is not hexadecimal: then no message ever had it."""
    numbers = bytes.fromhex(b"".join(ids).decode("ascii"))
    if len(numbers) != len(ids) * ID_BYTES // 2:  # white space is passed over
        raise ValueError("an id of a message has 16 hexadecimal digits")
    return struct.unpack(f">{len(ids)}Q", numbers)


@lru_cache(16)  # few: one for a thousand messages takes 32 KB, and to make one again costs 20 ns a message
def _cut(size: int, count: int) -> struct.Struct:
    return struct.Struct(f"{size}s" * count)


@lru_cache(4)
def _heads(count: int) -> struct.Struct:
    return struct.Struct(">" + _HEAD.format.removeprefix(">") * count)


def message_ids(offsets: Sequence[int]) -> tuple[bytes, ...]:
    """`message_id` of many: one conversion to hexadecimal, then cut."""
    count = len(offsets)
    digits = struct.pack(f">{count}Q", *offsets).hex().encode()
    return _cut(ID_BYTES, count).unpack(digits)


def encode_messages(bodies: Sequence[bytes], ids: Sequence[bytes], attempts: int | Sequence[int], times: int | Sequence[int]) -> bytes:
    """The frames of these messages as one byte string; `attempts` and `times` (ns) may be one number for all.

    The pieces of all frames are laid into one list, a kind of piece at a time by slices with a step, and joined. ValueError if there
    are not as many of each.
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
        fields = chain.from_iterable(zip(sizes, repeat(MESSAGE, count), _each(times, count), tries, strict=True))
        pieces = [b""] * (3 * count)
        pieces[0::3] = _cut(_HEAD.size, count).unpack(_heads(count).pack(*fields))
    step = len(pieces) // count
    pieces[step - 2 :: step] = ids
    pieces[step - 1 :: step] = bodies
    return b"".join(pieces)


def _each(value: int | Sequence[int], count: int) -> Iterable[int]:
    return repeat(value, count) if isinstance(value, int) else value
