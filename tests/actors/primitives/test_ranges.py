"""Tests of runs of offsets against sets of offsets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsq.actors.primitives.ranges import NUMBER_MAX, Range, Run, check, take, total
from zsq.transport.errors import UsageError
from zsq.transport.wire import codec
from zsq.transport.wire.protocol import Answer


@st.composite
def runs_of(draw: st.DrawFn) -> list[Run]:
    """Draw disjoint, ascending runs, of which some are adjacent."""
    runs = []
    position = 0
    for gap, count, attempts in draw(
        st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6), st.integers(1, 3)), max_size=8)
    ):
        runs.append((position + gap, count, attempts))
        position += gap + count
    return runs


ASKED = st.lists(st.tuples(st.integers(-3, 40), st.integers(-2, 9)), max_size=8)


def spread(runs: list[Run]) -> dict[int, int]:
    found = {start + i: attempts for start, count, attempts in runs for i in range(count)}
    assert len(found) == total(runs), "an offset in two runs"
    return found


def offsets(ranges: list[Range]) -> list[int]:
    return sorted(start + i for start, count in ranges for i in range(count))


@given(runs_of(), ASKED.filter(bool))
def test_take_is_set_arithmetic(runs: list[Run], ranges: list[Range]) -> None:
    taken, left, refused = take(runs, ranges)
    held = spread(runs)
    asked = offsets(ranges)
    assert spread(taken) == {o: held[o] for o in held if o in asked}
    assert spread(left) == {o: held[o] for o in held if o not in asked}
    for o in held:  # an offset that is asked for twice is no longer there the second time
        if o in asked:
            asked.remove(o)
    assert offsets(refused) == asked
    assert taken == sorted(taken)
    assert left == sorted(left)
    assert all(count > 0 for _, count, _ in [*taken, *left])


@given(runs_of())
def test_no_ranges_take_all(runs: list[Run]) -> None:
    assert take(runs, ()) == (runs, [], [])


def test_ranges_that_could_not_be_said_in_an_answer_are_refused() -> None:
    """Both ranges begin at the highest offset that a protocol message can carry. In an earlier
    version, the refused part of the second range began beyond that offset. It could not be sent,
    and the channel ended.
    """
    first, second = ((1 << 64) - 1, 10), ((1 << 64) - 1, 20)
    for wrong in (
        (first, second),
        ((-5, 3),),
        ((5, -1),),
        ((5, 1, 1),),
        ((5,),),
        ((5, True),),
        (5,),
    ):
        with pytest.raises(UsageError, match="E_BAD_ARGUMENT"):
            check(wrong)  # type: ignore[arg-type]
    largest = ((NUMBER_MAX, NUMBER_MAX), (NUMBER_MAX, 20), (0, 0))
    check(largest)
    check(())
    refused = take([(5, 3, 1)], largest)[2]
    assert codec.decode(codec.encode(Answer(1, 1, tuple(refused)))) == Answer(1, 1, tuple(refused))
