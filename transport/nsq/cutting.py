"""Runs of equal things taken apart in C: FINs of one read, messages of an MPUB; and the slow way where they are not equal. Pure."""

from __future__ import annotations

import struct
from array import array
from functools import lru_cache
from itertools import repeat
from re import compile as regex
from typing import Final

from .errors import E_BAD_BODY, E_BAD_MESSAGE, NsqError
from .limits import NsqLimits
from .wire import ID_BYTES

FIN_BYTES: Final = len(b"FIN ") + ID_BYTES + len(b"\n")
_FIN_RUN: Final = regex(rb"(?:FIN [^ \r\n]{16}\n)++")  # possessive: it keeps no places to come back to
_FIN_FRAME: Final = ((0, b"F"), (1, b"I"), (2, b"N"), (3, b" "), (FIN_BYTES - 1, b"\n"))
_CUT_MAX: Final = 1024  # messages that are cut by one format: formats are compiled and kept
_int = struct.Struct(">i").unpack_from


@lru_cache(32)
def _equal(size: int, count: int) -> struct.Struct:
    return struct.Struct(">" + f"i{size}s" * count)


def cut_equal(data: bytes, first: int, count: int, size_max: int) -> list[bytes] | None:
    """The bodies of `count` messages if they are all there and of one size, else None."""
    if len(data) < first + 4:
        return None
    size = _int(data, first)[0]
    last = first + (4 + size) * (count - 1)
    if not 0 < size <= size_max or len(data) < last + 4 + size or _int(data, last)[0] != size:
        return None
    bodies: list[bytes] = []
    for done in range(0, count, _CUT_MAX):
        now = min(count - done, _CUT_MAX)
        values = _equal(size, now).unpack_from(data, first + (4 + size) * done)
        if values[::2].count(size) != now:
            return None
        bodies += values[1::2]
    return bodies


def cut_any(data: bytes, first: int, count: int, size_max: int) -> list[bytes] | None:
    """The bodies of `count` messages if they are all there and good, else None: `Walk` then finds what is wrong, or waits."""
    bodies: list[bytes] = []
    append = bodies.append
    at, last = first, len(data) - 4
    for _ in repeat(None, count):
        if at > last:
            return None
        size = _int(data, at)[0]
        if not 0 < size <= size_max:
            return None
        at += 4
        stop = at + size
        append(data[at:stop])
        at = stop
    return bodies if at <= len(data) else None


_FIN_CUTS: Final = {1 << bits: struct.Struct("4x16sx" * (1 << bits)) for bits in range(_CUT_MAX.bit_length())}


def cut_fins(data: bytes, at: int) -> list[bytes]:
    """The ids of FINs of the usual form that follow each other from `at`, as many as are quickly found.

    How far to look is found by doubling: else a client that mixes them with others would have all it sent looked at for each.
    """
    count = 1
    while data.startswith(b"FIN ", at + count * FIN_BYTES):
        count *= 2
    count = min(count, (len(data) - at) // FIN_BYTES)
    run = data[at : at + count * FIN_BYTES]
    if not _only_fins(run, count):
        found = _FIN_RUN.match(run)
        if found is None:
            return []
        run = found.group()
        count = len(run) // FIN_BYTES
    ids: list[bytes] = []
    done = 0
    while done < count:
        now = min(1 << (count - done).bit_length() - 1, _CUT_MAX)
        ids += _FIN_CUTS[now].unpack_from(run, done * FIN_BYTES)
        done += now
    return ids


def _only_fins(run: bytes, count: int) -> bool:
    """Whether it is `count` times `FIN <16 bytes>\\n`, and nothing in the ids that would end a word or a line."""
    return (
        all(run[place::FIN_BYTES] == char * count for place, char in _FIN_FRAME)
        and len(run.translate(None, b" \r\n")) == len(run) - 2 * count
    )


class Walk:
    """The way through the messages of an MPUB that comes in pieces; positions count from the command's first byte."""

    def __init__(self, limits: NsqLimits, first: int, count: int) -> None:
        self._limits = limits
        self._first = first
        self._count = count
        self.stops = array("i")  # where messages end; four bytes each, for there may be a million

    def on(self, buffer: bytearray | memoryview) -> bool:
        """Go on as far as the bytes reach; whether it is at the end. What raised raises again."""
        size_max, have = self._limits.max_msg_size, len(buffer)
        stop_max = self._first - 4 + self._limits.max_body_size
        stops = self.stops
        at = stops[-1] if stops else self._first
        for index in range(len(stops), self._count):
            if at + 4 > have:
                return False
            size = _int(buffer, at)[0]
            if size <= 0:
                raise NsqError(E_BAD_MESSAGE, f"MPUB invalid message({index}) body size {size}")
            if size > size_max:
                raise NsqError(E_BAD_MESSAGE, f"MPUB message too big {size} > {size_max}")
            at += 4 + size
            if at > stop_max:
                raise _too_big(at - self._first + 4, self._limits)
            if at > have:
                return False
            stops.append(at)
        return True

    def missing(self, have: int) -> str:
        """What there is too little of when no more than `have` bytes come."""
        done = len(self.stops)
        if have < (self.stops[-1] if done else self._first) + 4:
            return f"message({done}) body size"
        return "message body"


def _too_big(size: int, limits: NsqLimits) -> NsqError:
    return NsqError(E_BAD_BODY, f"MPUB body too big {size} > {limits.max_body_size}")
