"""Tests of the marks of syncs, and of the limit of what is not in the bucket."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsq.actors.bucket.topic.sync_marks import (
    LIMIT_FIRST,
    LIMIT_LEAST,
    MARKS_MAX,
    ShipPace,
    SyncMark,
    SyncMarks,
)

S = 1_000_000_000
MIB = 1 << 20


def mark(offset: int, time_ns: int = 0) -> SyncMark:
    return SyncMark(0, 10 * offset, offset, time_ns)


def test_marks_are_kept_until_they_are_shipped() -> None:
    marks = SyncMarks()
    for offset in (3, 5, 5, 9):
        marks.note(mark(offset, offset), 3)
    assert (marks.since_ns(), marks.since_ns(5), marks.since_ns(9)) == (5, 9, 0)
    assert marks.last_within((0, 0), (0, 89)) == (0, 50)
    assert marks.last_within((0, 50), (0, 89)) is None
    assert (marks.offset_at((0, 49)), marks.offset_at((0, 95))) == (-1, 9)
    assert marks.drop(8) == (mark(5, 5), mark(5, 5))
    assert marks.drop(8) is None
    marks.age(2)
    assert marks.since_ns() == 2
    marks.age(7)
    assert marks.since_ns() == 2, "a part is never younger than it was"


def test_the_number_of_marks_is_bounded_and_their_ends_stay() -> None:
    marks = SyncMarks()
    for offset in range(1, 3 * MARKS_MAX):
        marks.note(mark(offset, offset), 0)
    assert len(marks) <= MARKS_MAX
    assert marks.since_ns() == 1
    assert marks.offset_at((1, 0)) == 3 * MARKS_MAX - 1


class Pipe:
    """A log that is written and shipped at given rates, one round at a time."""

    def __init__(self, rate: int, bound_ns: int = S) -> None:
        self.rate = rate  # bytes that the bucket takes in a second
        self.pace = ShipPace(bound_ns)
        self.marks: deque[SyncMark] = deque()
        self.written = self.taken = 0
        self.now_ns = 0
        self.ages: list[int] = []

    def run(self, seconds: float, publish: int, step_ns: int = S // 50) -> None:
        """Publish at this rate where the limit allows it, and ship."""
        for _ in range(int(seconds * S) // step_ns):
            self.now_ns += step_ns
            late = bool(self.marks) and self.now_ns - self.marks[0].time_ns > self.pace.bound_ns
            if not (self.pace.is_full(self.written) and self.marks) and not late:
                self.written += publish * step_ns // S
                shipped = self.pace.shipped
                self.marks.append(SyncMark(0, 0, 0, self.now_ns, self.written, shipped))
            self.taken = min(self.written, self.taken + self.rate * step_ns // S)
            done = [one for one in self.marks if one.written <= self.taken]
            if done:
                self.ages.append(self.now_ns - done[0].time_ns)
                self.pace.note(done[0], done[-1], self.now_ns)
                self.marks = deque(one for one in self.marks if one.written > self.taken)


@pytest.mark.parametrize("rate", [5 * MIB, 50 * MIB])
def test_publishers_that_are_too_fast_are_slowed_down_to_the_bound(rate: int) -> None:
    pipe = Pipe(rate)
    pipe.run(20, 5 * rate)
    assert max(pipe.ages) <= (1.15 if rate > LIMIT_FIRST else 4) * S, "the limit begins low"
    pipe.ages.clear()
    before = pipe.taken
    pipe.run(20, 5 * rate)
    assert max(pipe.ages) <= 1.15 * S
    assert pipe.taken - before >= 0.9 * 20 * rate, "the bucket is never idle"


def test_slow_publishers_are_never_limited() -> None:
    pipe = Pipe(50 * MIB)
    pipe.run(20, 20 * MIB)
    assert pipe.pace.limit == LIMIT_FIRST
    assert pipe.taken >= 0.99 * pipe.written


def test_the_limit_grows_when_the_bucket_is_faster_again() -> None:
    pipe = Pipe(5 * MIB)
    pipe.run(20, 100 * MIB)
    pipe.rate = 50 * MIB
    pipe.run(20, 100 * MIB)
    before = pipe.taken
    pipe.run(10, 100 * MIB)
    assert pipe.taken - before >= 0.9 * 10 * 50 * MIB


def test_a_bucket_that_was_away_does_not_limit_small_topics() -> None:
    pace = ShipPace(S)
    pace.note(SyncMark(0, 0, 1, 0, MIB // 2, 0), SyncMark(0, 0, 1, 0, MIB // 2, 0), 60 * S)
    assert pace.limit == LIMIT_FIRST
    pace.note(SyncMark(0, 0, 1, 0, 2 * MIB, 0), SyncMark(0, 0, 1, 0, 2 * MIB, 0), 60 * S)
    assert pace.limit == LIMIT_LEAST


@given(st.lists(st.tuples(st.integers(1, 1 << 30), st.integers(0, 100 * S)), max_size=50))
def test_the_limit_is_never_below_the_least(steps: list[tuple[int, int]]) -> None:
    pace, written, now_ns = ShipPace(S), 0, 0
    for size, took in steps:
        one = SyncMark(0, 0, 0, now_ns, written + size, pace.shipped)
        pace.is_full(one.written)
        written, now_ns = written + size, now_ns + took
        pace.note(one, one, now_ns)
        assert pace.shipped == written
        assert pace.limit >= LIMIT_LEAST
        assert not pace.is_full(written)
