"""Ranges: runs of offsets with their attempts, and the parts that remain after answers. No I/O.

A run is (first offset, count, attempts). In this module, the runs of a list are disjoint and
ascending. The ranges in an answer of a client need not be.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final

from ...transport.errors import E_BAD_ARGUMENT, UsageError
from ...transport.wire.protocol import RANGES_MAX

NUMBER_MAX: Final = 1 << 62

Run = tuple[int, int, int]
Range = tuple[int, int]  # (first, count)
Span = tuple[int, int]  # (from, to), the end is not included


def total(runs: Iterable[Run]) -> int:
    return sum(run[1] for run in runs)


def unread(start: int, stop: int, absent: Iterable[Sequence[int]]) -> int:
    """Return how many offsets from `start` to `stop` are in none of the `absent` spans.

    The spans are (from, to), and disjoint. The end is not included.
    """
    return max(
        0, stop - start - sum(max(0, min(high, stop) - max(low, start)) for low, high in absent)
    )


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the spans, ascending, with those joined that touch or overlap each other."""
    found: list[Span] = []
    for start, stop in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return tuple(found)


def without(ranges: Iterable[Range], gaps: Iterable[Range]) -> tuple[Range, ...]:
    """Return the parts of `ranges` that are in no gap. Both are (first, count), and ascend."""
    gaps = tuple(gaps)
    left: list[Range] = []
    for first, count in ranges:
        stop = first + count
        for gap, size in gaps:
            if gap < stop and gap + size > first:
                if gap > first:
                    left.append((first, gap - first))
                first = gap + size
        if first < stop:
            left.append((first, stop - first))
    return tuple(left)


def ranges_of(offsets: Iterable[int]) -> list[Range]:
    """Return the offsets as ranges, ascending, each offset once."""
    spans = joined((offset, offset + 1) for offset in offsets)
    return [(start, stop - start) for start, stop in spans]


def touching(ranges: Sequence[Range], start: int, stop: int) -> Sequence[Range]:
    """Return those of the ascending, disjoint ranges that touch the span from `start` to `stop`."""
    low = bisect_right(ranges, start, key=lambda one: one[0])
    if low and sum(ranges[low - 1]) > start:
        low -= 1
    return ranges[low : bisect_left(ranges, stop, lo=low, key=lambda one: one[0])]


def cut_out(runs: Iterable[Run], ranges: Sequence[Range]) -> list[Run]:
    """Return the parts of the runs, in their order, that are in none of these ranges.

    The ranges are ascending and disjoint.
    """
    left: list[Run] = []
    for run in runs:
        near = touching(ranges, run[0], run[0] + run[1])
        left += take([run], near)[1] if near else (run,)
    return left


def within(numbers: Sequence[Any]) -> bool:
    """Return True if all numbers are integers from 0 to NUMBER_MAX.

    The sum of two such numbers can still be sent and stored.
    """
    return not numbers or (
        {*map(type, numbers)} == {int} and min(numbers) >= 0 and max(numbers) <= NUMBER_MAX
    )


def check(ranges: Sequence[Range]) -> None:
    """Raise `UsageError` (E_BAD_ARGUMENT) unless these are pairs of numbers, and not too many.

    The codec ensures only that a peer sent a tuple. The numbers are limited so that the end of a
    range also fits into an answer.
    """
    try:
        good = (
            len(ranges) <= RANGES_MAX
            and {*map(len, ranges)} <= {2}
            and within([*chain.from_iterable(ranges)])
        )
    except TypeError:
        good = False
    if not good:
        raise UsageError(
            E_BAD_ARGUMENT,
            (
                f"ranges must be at most {RANGES_MAX} pairs (first offset, count) of whole numbers "
                "from 0 to 2^62"
            ),
        )


def above(runs: Iterable[Run], start: int) -> tuple[list[Run], list[Run]]:
    """Return the parts of the runs at or above `start`, and the parts below it, in their order."""
    kept: list[Run] = []
    below: list[Run] = []
    for first, count, attempts in runs:
        cut = min(max(start - first, 0), count)
        if cut:
            below.append((first, cut, attempts))
        if cut < count:
            kept.append((first + cut, count - cut, attempts))
    return kept, below


def take(runs: Sequence[Run], ranges: Sequence[Range]) -> tuple[list[Run], list[Run], list[Range]]:
    """Split `runs` by the answered `ranges`, and return (taken, left, refused).

    Empty `ranges` take all runs. Refused ranges are offsets that no run holds, or that appear
    twice. The cost is linear in both, after the ranges are sorted.
    """
    if not ranges:
        return list(runs), [], []
    taken: list[Run] = []
    left: list[Run] = []
    refused: list[Range] = []
    wanted = sorted((start, start + count) for start, count in ranges if count > 0)
    position = 0  # index in runs
    current = runs[0] if runs else None
    done = -1  # offsets below it have been processed
    for start, stop in wanted:
        if start < done:
            refused.append((start, min(stop, done) - start))
            start = done
        while start < stop:
            while current is not None and current[0] + current[1] <= start:
                left.append(current)
                position += 1
                current = runs[position] if position < len(runs) else None
            if current is None or current[0] >= stop:
                refused.append((start, stop - start))
                break
            first, count, attempts = current
            if start < first:
                refused.append((start, first - start))
                start = first
            elif start > first:
                left.append((first, start - first, attempts))
            end = min(stop, first + count)
            taken.append((start, end - start, attempts))
            if end < first + count:
                current = (end, first + count - end, attempts)
            else:
                position += 1
                current = runs[position] if position < len(runs) else None
            start = end
        done = max(done, stop)
    if current is not None:
        left.append(current)
        left.extend(runs[position + 1 :])
    return taken, left, refused
