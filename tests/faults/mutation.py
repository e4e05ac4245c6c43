"""Nearly correct inputs: bytes of the real encoders with a few changes, and values of the right
types at the limits of their range.

All inputs are derived from one `random.Random`, so a seed and a number identify an input. Random
bytes would be refused at the first byte, and prove little. So each input begins as a correct one,
and most changes are small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

INPUT_BYTES_MAX: Final = 1 << 20
EDGES: Final = (
    0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 63, 64, 100, 127, 128, 255, 256, 1023, 1024, 4095, 4096, 10_000, 10_001, 32_767, 32_768, 65_535,
    65_536, (1 << 24) - 1, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 53, (1 << 62) - 1, 1 << 62, (1 << 63) - 1,
    1 << 63, (1 << 64) - 1, -1, -2, -32, -33, -128, -129, -32_769, -(1 << 31), -(1 << 31) - 1, -(1 << 62), -(1 << 63),
)  # fmt: skip
_WIDTHS: Final = {1: 0xFF, 2: 0xFFFF, 4: 0xFFFF_FFFF, 8: 0xFFFF_FFFF_FFFF_FFFF}
_TEXTS: Final = (
    "",
    "a",
    ".",
    "..",
    "clicks",
    "c#ephemeral",
    "#ephemeral",
    "ä€😀",
    "x" * 64,
    "x" * 65,
    "../../etc",
    "a/b",
    "\0",
    "\n",
    "0",
    "-1",
    "{}",
)
_BYTES: Final = (b"", b"\0", b"a", b"\xff" * 16, bytes(16), bytes(range(16)), b"x" * 300)


class Mutator:
    """Makes inputs from one random generator."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self._again = 0
        self._changes: Sequence[Callable[[bytearray], None]] = (
            self._flip, self._flip, self._set, self._number, self._number, self._cut, self._insert, self._repeat, self._swap,
        )  # fmt: skip

    def below(self, limit: int) -> int:
        """Return a number from 0 to `limit` - 1; `limit` must be above 0. It is twice as fast as
        `randrange`, and its numbers are distributed evenly enough.
        """
        return int(self.random.random() * limit)

    def one(self, of: Sequence[Any]) -> Any:
        return of[int(self.random.random() * len(of))]

    def chance(self, of: int) -> bool:
        return self.random.random() * of < 1

    # Bytes

    def changed(self, data: bytes) -> bytes:
        """Return the data with one to four changes, mostly one."""
        found = bytearray(data)
        while True:
            self.one(self._changes)(found)
            if self.random.random() < 0.6:
                return bytes(found)

    def spliced(self, one: bytes, other: bytes) -> bytes:
        """Return the beginning of one input and the end of another."""
        return one[: self.below(len(one) + 1)] + other[self.below(len(other) + 1) :]

    def grown(self, data: bytes) -> bytes:
        """Return a copy in which a piece is repeated very often, up to 1 MiB."""
        start = self.below(len(data) + 1)
        piece = data[start : start + 1 + self.below(8)] or b"\x91"
        return data[:start] + piece * self.below(INPUT_BYTES_MAX // len(piece)) + data[start:]

    def bytes_like(self, corpus: Sequence[bytes]) -> bytes:
        """Return an input from the corpus, with small changes."""
        dice = self.random.random()
        data: bytes = self.one(corpus)
        if dice < 0.02:
            return data
        if dice < 0.9:
            return self.changed(data)
        if dice < 0.98:
            return self.changed(self.spliced(data, self.one(corpus)))
        return self.random.randbytes(self.below(200)) if dice < 0.9995 else self.grown(data)

    def _flip(self, data: bytearray) -> None:
        if data:
            data[self.below(len(data))] ^= 1 << self.below(8)

    def _set(self, data: bytearray) -> None:
        if data:
            data[self.below(len(data))] = self.one((0, 1, 0x7F, 0x80, 0xFF, self.below(256)))

    def _number(self, data: bytearray) -> None:
        """Replace the bytes at a place where a whole number may be."""
        width: int = self.one((1, 2, 4, 4, 8, 8))
        if len(data) < width:
            return
        at = self.below(len(data) - width + 1)
        at -= at % width if self.chance(2) else 0
        value = self.one(EDGES) if self.chance(2) else self.below(len(data) + 16)
        data[at : at + width] = (value & _WIDTHS[width]).to_bytes(
            width, "little" if self.chance(2) else "big"
        )

    def _cut(self, data: bytearray) -> None:
        start = self.below(len(data) + 1)
        del data[start : None if self.chance(2) else start + 1 + self.below(16)]

    def _insert(self, data: bytearray) -> None:
        at = self.below(len(data) + 1)
        data[at:at] = self.random.randbytes(1 + self.below(8))

    def _repeat(self, data: bytearray) -> None:
        start = self.below(len(data) + 1)
        piece = data[start : start + 1 + self.below(8)] or b"\x91"
        data[start:start] = piece * (1 << self.below(12) if self.chance(8) else 1 + self.below(4))

    def _swap(self, data: bytearray) -> None:
        """Exchange two pieces."""
        one, other = sorted((self.below(len(data) + 1), self.below(len(data) + 1)))
        size = self.below(min(other - one, 32) + 1)
        data[one : one + size], data[other : other + size] = (
            data[other : other + size],
            data[one : one + size],
        )

    # Values

    def whole(self) -> int:
        """Return a number that msgpack can encode. Often it is one that was used just before,
        because many checks compare two numbers.
        """
        if self.chance(4):
            return self._again
        if self.chance(2):
            self._again = int(self.one(EDGES))
        else:
            self._again = (
                self.below(12)
                if self.chance(2)
                else max(-(1 << 63), min((1 << 64) - 1, int(self.one(EDGES)) + self.below(5) - 2))
            )
        return self._again

    def text(self) -> str:
        return str(self.one(_TEXTS)) if not self.chance(200) else "x" * (1 << self.below(18))

    def leaf(self) -> Any:
        dice = self.below(8)
        if dice < 3:
            return self.whole()
        if dice < 5:
            return self.text()
        if dice == 5:
            return self.one(_BYTES)
        return self.one((None, True, False, 0.5, -0.0, float("inf"), float("nan"), 1e300))

    def value(self, depth: int = 0) -> Any:
        """Return a value of any of msgpack's types. Lists are tuples, as the codec makes them."""
        dice = self.below(8)
        if dice < 5 or depth > 3:
            return self.leaf()
        if dice == 5:
            return {
                self.leaf() if self.chance(4) else self.text(): self.value(depth + 1)
                for _ in range(self.below(4))
            }
        if dice == 6 and self.chance(30):
            return self.deep()
        return tuple(self.value(depth + 1) for _ in range(self.below(4)))

    def deep(self) -> Any:
        """Return deeply nested tuples and maps."""
        found: Any = self.leaf()
        for _ in range(self.one((10, 30, 40, 100, 200))):
            found = (found,) if self.chance(2) else {"a": found}
        return found

    def like(self, value: Any, depth: int = 0) -> Any:
        """Return a value of the same shape. Sometimes one part of it has another type."""
        if self.chance(12):
            return self.value(depth)
        kind = type(value)
        if kind is bool:
            return self.chance(2)
        if kind is int:
            return value if self.chance(3) else self.whole()
        if kind is str:
            return value if self.chance(2) else self.text()
        if kind is bytes:
            return value if self.chance(2) else self.one(_BYTES)
        if kind is tuple:
            if self.chance(4):
                # Repeat the first element.
                value = (self.like(value[0], depth + 1),) * self.below(4) if value else value
            parts = [self.like(part, depth + 1) for part in value if not self.chance(12)]
            return tuple(
                parts
                + ([self.like(self.one(parts), depth + 1)] if parts and self.chance(4) else [])
            )
        if kind is dict:
            kept = {
                key: self.like(part, depth + 1)
                for key, part in value.items()
                if not self.chance(10)
            }
            return kept if not self.chance(6) else {**kept, self.leaf(): self.value(depth + 1)}
        return value if self.chance(2) else self.leaf()


def deep_frame(op: int, fields: int, levels: int, at: int = 0) -> bytes:
    """Return the frame of a message with so many fields, one of which is deeply nested."""
    deep = b"\x91" * levels + b"\x80"
    return bytes([0x91 + fields, op]) + b"\x05" * at + deep + b"\x05" * (fields - at - 1)
