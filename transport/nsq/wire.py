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


@lru_cache(64)
def _cut_ids(count: int) -> struct.Struct:
    return struct.Struct("16s" * count)


def message_ids(offsets: Sequence[int]) -> tuple[bytes, ...]:
    """`message_id` of many: one conversion to hexadecimal, then cut."""
    digits = struct.pack(f">{len(offsets)}Q", *offsets).hex().encode()
    return _cut_ids(len(offsets)).unpack(digits)


def encode_messages(bodies: Sequence[bytes], offsets: Sequence[int], attempts: int | Sequence[int], times: int | Sequence[int]) -> bytes:
    """The frames of these messages as one byte string; `attempts` and `times` (ns) may be one number for all."""
    count = len(bodies)
    if not count:
        return b""
    ids = message_ids(offsets)
    sizes = [size + _HEAD_OVERHEAD for size in map(len, bodies)]
    if isinstance(attempts, int) and isinstance(times, int) and sizes.count(sizes[0]) == count:
        head = _HEAD.pack(sizes[0], MESSAGE, times, min(attempts, ATTEMPTS_MAX))
        return b"".join(chain.from_iterable(zip(repeat(head, count), ids, bodies, strict=True)))
    tries = map(min, _each(attempts, count), repeat(ATTEMPTS_MAX))
    heads = map(_HEAD.pack, sizes, repeat(MESSAGE), _each(times, count), tries)
    return b"".join(chain.from_iterable(zip(heads, ids, bodies, strict=True)))


def _each(value: int | Sequence[int], count: int) -> Iterable[int]:
    return repeat(value, count) if isinstance(value, int) else value
