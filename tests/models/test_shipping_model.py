"""Tests of the model of shipping: no reachable state breaks a promise, and each rule is needed."""

from __future__ import annotations

import pytest

from tests.models.search import Broken
from tests.models.shipping_model import Rules, explore

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("rules", "states"),
    [
        pytest.param(Rules(empty=1), 49_149, marks=pytest.mark.long),
        (Rules(messages=1, processes=3, crashes=1), 9_709),
        (Rules(messages=1, processes=3, restarts=1), 6_955),
        (Rules(messages=3, window=3), 18_761),
        (Rules(collections=2), 5_345),
    ],
)
def test_no_state_of_a_small_world_breaks_a_promise(rules: Rules, states: int) -> None:
    """The exact number shows that no step has been lost by mistake."""
    assert explore(rules) == states


@pytest.mark.long
@pytest.mark.parametrize(
    ("rules", "states"),
    [(Rules(processes=3, crashes=1), 125_377), (Rules(processes=3, restarts=1), 108_472)],
)
def test_no_state_of_a_larger_world_breaks_a_promise(rules: Rules, states: int) -> None:
    assert explore(rules) == states


@pytest.mark.parametrize(
    ("rules", "broken", "last"),
    [
        (
            Rules(creates_if_absent=False),
            "two primaries count different objects under one number",
            "B2 takes over at 0",
        ),
        (Rules(counts_prefix=False), "an acknowledged message is lost", "A1 has created 4"),
        (Rules(skips_window=False), "the log cannot be read", "B2 takes over at 1"),
        (Rules(bounds_counted=False), "an acknowledged message is lost", "A1 has created 3"),
        (Rules(boundary_first=False), "an acknowledged message is lost", "object 3 is removed"),
        (Rules(reserves=False), "two messages have the same offset", "B2 takes message 1 at 0"),
        (
            Rules(acknowledges_created=False),
            "an acknowledged message is lost",
            "A1 takes message 0 at 0",
        ),
    ],
)
def test_without_one_rule_a_promise_is_broken(rules: Rules, broken: str, last: str) -> None:
    with pytest.raises(Broken) as found:
        explore(rules)
    assert (found.value.what, found.value.steps[-1]) == (broken, last)


def steps_until_broken(rules: Rules) -> list[str]:
    with pytest.raises(Broken) as found:
        explore(rules)
    return found.value.steps


def test_a_stalled_primary_would_create_the_number_of_a_removed_takeover() -> None:
    """This is why takeovers are never removed."""
    assert steps_until_broken(Rules(keeps_takeovers=False)) == [
        "A1 wants to take over at 0",
        "A1 takes over at 0",
        "A1 takes message 0 at 0",
        "A1 ships 3",
        "B2 wants to take over at 3",
        "B2 takes over at 3",
        "B2 takes message 1 at 2",
        "B2 ships 6",
        "B2 has created 6",
        "B2 makes boundary 6",
        "object 3 is removed",
        "A1 has created 3",
    ]


def test_a_stalled_takeover_would_get_a_number_whose_object_was_removed() -> None:
    """This is why a process reads the boundary after it has created its takeover."""
    assert steps_until_broken(Rules(reads_boundary=False)) == [
        "A1 wants to take over at 0",
        "A1 takes over at 0",
        "A1 takes message 0 at 0",
        "A1 ships 3",
        "A1 takes message 1 at 1",
        "A1 ships 4",
        "A1 has created 4",
        "B2 wants to take over at 3",
        "A1 has created 3",
        "A1 makes boundary 4",
        "object 3 is removed",
        "B2 takes over at 3",
    ]


def test_a_late_takeover_below_the_boundary_would_mislead_a_reader() -> None:
    """This is why a reader reads the boundary again when it has read the log.

    The first takeover of B2 has failed, but its request takes effect once more. B2 still reads from
    boundary 0, believes that its own old takeover counts, and goes on behind the window of that.
    """
    assert steps_until_broken(Rules(reads_twice=False, empty=1)) == [
        "A1 reads boundary 0",
        "A1 wants to take over at 0",
        "A1 takes over at 0",
        "A1 takes message 0 at 0",
        "A1 ships 3",
        "A1 takes message 1 at 1",
        "A1 ships 4",
        "A1 has created 4",
        "B2 reads boundary 0",
        "B2 wants to take over at 3",
        "A1 has created 3",
        "A1 ships 5",
        "A1 has created 5",
        "B2 has not taken over at 3",
        "A1 makes boundary 4",
        "object 3 is removed",
        "creation of 3 by B2 is carried out",
        "B2 wants to take over at 6",
        "B2 takes over at 6",
    ]
