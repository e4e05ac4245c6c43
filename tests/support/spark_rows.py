"""The rows that Spark writes in tests, and a check of the rows in a topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import zsq


def value_of(number: int, size: int) -> bytes:
    return b"%012d:" % number + bytes([65 + number % 26]) * size


def numbers_in(url: str, topic: str, size: int) -> Counter[int]:
    """Return how often each number is in the topic. Each value is compared to the byte."""
    found: Counter[int] = Counter()
    offset = 0
    with zsq.Reader(topic, url=url) as reader:
        while True:
            read = reader.read(offset, 1 << 20)
            for block in read.blocks:
                assert block.first_offset == offset, (
                    f"offsets jump from {offset} to {block.first_offset}"
                )
                offset = block.next_offset
                for body in block.body.values():
                    assert body is not None
                    number = int(bytes(body[:12]))
                    assert body == value_of(number, size), (
                        f"a value was changed: {bytes(body[:80])!r}"
                    )
                    found[number] += 1
            if not read.blocks or offset >= read.head:
                return found


def exactly_once(url: str, topic: str, expected: Iterable[int], size: int) -> None:
    found = numbers_in(url, topic, size)
    twice = [number for number, times in found.items() if times > 1]
    assert not twice, f"{len(twice)} rows more than once: {sorted(twice)[:10]}"
    wanted = set(expected)
    missing = wanted - found.keys()
    assert not missing, f"{len(missing)} of {len(wanted)} rows lost: {sorted(missing)[:10]}"
    foreign = found.keys() - wanted
    assert not foreign, f"{len(foreign)} rows that no committed batch had: {sorted(foreign)[:10]}"
