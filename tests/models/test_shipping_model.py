"""Tests of the model of shipping: no reachable state breaks a promise, and each rule is needed."""

from __future__ import annotations

import pytest

from tests.models.shipping_model import Broken, Rules, explore


def test_no_state_of_a_small_world_breaks_a_promise() -> None:
    assert explore(Rules(numbers=3, crashes=0)) > 30_000


@pytest.mark.slow
def test_no_state_of_a_larger_world_breaks_a_promise() -> None:
    """By hand, with 4 numbers 801,907 states were visited, and with 6 numbers 2,599,368."""
    assert explore(Rules(numbers=3)) > 150_000


@pytest.mark.parametrize(
    ("rules", "broken", "last"),
    [
        (Rules(creates_if_absent=False), "two messages have the same offset", "A takes message 1 at 0"),
        (Rules(reads_boundary=False), "two messages have the same offset", "A takes message 1 at 0"),
        (Rules(boundary_first=False), "an acknowledged message is lost", "object 0 is removed"),
        (Rules(reserves=False), "two messages have the same offset", "B takes message 1 at 0"),
        (Rules(acknowledges_created=False), "an acknowledged message is lost", "A takes message 0 at 0"),
    ],
)  # fmt: skip
def test_without_one_rule_a_promise_is_broken(rules: Rules, broken: str, last: str) -> None:
    with pytest.raises(Broken) as found:
        explore(rules)
    assert (found.value.what, found.value.steps[-1]) == (broken, last)


def test_a_stalled_writer_can_create_a_name_that_was_removed() -> None:
    """This is why a writer reads the boundary after each creation."""
    with pytest.raises(Broken) as found:
        explore(Rules(reads_boundary=False))
    assert found.value.steps == [
        "A takes over",
        "B takes over",
        "creation of 0 by B succeeds",
        "B takes message 0 at 0",
        "B makes boundary 1",
        "object 0 is removed",
        "creation of 0 by A succeeds",
        "A takes message 1 at 0",
    ]
