"""Tests of the model of parts: no reachable state breaks a promise, and each rule is needed."""

from __future__ import annotations

import pytest

from tests.models.parts_model import Rules, explore, find_stuck
from tests.models.search import Broken

# They only compute. On a busy machine some take minutes.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("rules", "states"),
    [
        pytest.param(Rules(messages=2), 34_587, marks=pytest.mark.long),
        pytest.param(Rules(withdrawals=1), 32_115, marks=pytest.mark.long),
        (Rules(moves=2, starts=0, finishes=1, closes=1, entries=6), 6_573),
        (Rules(finishes=1), 16_165),
        (Rules(adds=1, closes=1, moves=0, entries=3), 2_063),
        (Rules(adds=1, closes=1, starts=0), 5_653),
    ],
)
def test_no_state_of_a_small_world_breaks_a_promise(rules: Rules, states: int) -> None:
    """The exact number shows that no step has been lost by mistake."""
    assert explore(rules) == states


@pytest.mark.long
def test_no_state_of_a_larger_world_breaks_a_promise() -> None:
    assert explore(Rules(moves=2)) == 88_492


@pytest.mark.parametrize(
    ("rules", "broken", "last"),
    [
        (
            Rules(stops_first=False, starts=0),
            "an acknowledged message is lost",
            "entry 2 is created: assign part 0, hold 1 at B from 0",
        ),
        (
            Rules(ships_first=False, starts=0),
            "an acknowledged message is lost",
            "entry 2 is created: assign part 0, hold 1 at B from 0",
        ),
        (
            Rules(opens_once=False),
            "a message is stored twice",
            "the log of A has message 0",
        ),
        (
            Rules(reserves=False, messages=2),
            "two messages have the same offset",
            "A2 gives offset 0 of part 0 to message 1",
        ),
        (
            Rules(sequences_go=False, starts=0),
            "a message is stored twice",
            "the log of B has message 1",
        ),
        (
            Rules(finishes_go=False, starts=0, finishes=1),
            "a finished message is delivered again",
            "B1 sends open of part 0, hold 1",
        ),
        (
            Rules(closed_goes=False, starts=0, closes=1),
            "a closed part has a new message",
            "the log of B has message 0",
        ),
        (
            Rules(exact_sequence=False, starts=0, messages=3),
            "an acknowledged message is lost",
            "A1 acknowledges message 0 as stored before",
        ),
        (
            Rules(same_part=False, adds=1, starts=0),
            "a message is stored twice",
            "the log of B has message 0",
        ),
        (
            Rules(new_numbers=False, adds=1, closes=1, starts=0),
            "an acknowledged message is lost",
            "entry 1 is created: assign part 0, hold 1 at B from 0",
        ),
        (
            Rules(delivers_with_lease=False, finishes=1),
            "a finished message is delivered again",
            "A2 knows that its finish exists",
        ),
    ],
)
def test_without_one_rule_a_promise_is_broken(rules: Rules, broken: str, last: str) -> None:
    with pytest.raises(Broken) as found:
        explore(rules)
    assert (found.value.what, found.value.steps[-1]) == (broken, last)


def steps_until_broken(rules: Rules, broken: str) -> list[str]:
    with pytest.raises(Broken) as found:
        explore(rules)
    assert found.value.what == broken
    return found.value.steps


def test_two_assignments_of_one_hold_would_give_a_part_to_two_brokers() -> None:
    """This is why only the first assignment of a hold counts. A process that was replaced, and its
    successor that has not read what the movers want, both create one.
    """
    rules = Rules(first_assignment=False, withdrawals=1)
    assert steps_until_broken(rules, "an acknowledged message is lost") == [
        "entry 1 is created: want part 0, hold 0 to B",
        "A1 reads the directory",
        "A1 begins to move part 0",
        "A1 sends release of hold 0 at 0",
        "the log of A has release 0",
        "A2 takes over",
        "A1 knows that its release exists",
        "A1 wants to create: assign part 0, hold 1 at B from 0",
        "entry 2 is created: assign part 0, hold 1 at B from 0",
        "A2 wants to create: assign part 0, hold 1 at A from 0",
        "B1 reads the directory",
        "entry 3 is created: assign part 0, hold 1 at A from 0",
        "B1 sends open of part 0, hold 1",
        "the log of B has open 0",
        "B1 knows that its open exists",
        "B1 gives offset 0 of part 0 to message 0",
        "the log of B has message 0",
        "B1 knows that its message exists",
    ]


def test_an_assignment_without_a_release_would_take_a_part_from_its_holder() -> None:
    """This is why a broker waits for its log before it creates an assignment: the directory does
    not refuse the requests of a process that was replaced.
    """
    rules = Rules(assigns_confirmed=False)
    assert steps_until_broken(rules, "an acknowledged message is lost") == [
        "entry 1 is created: want part 0, hold 0 to B",
        "A2 takes over",
        "A1 reads the directory",
        "A1 begins to move part 0",
        "A1 sends release of hold 0 at 0",
        "A1 wants to create: assign part 0, hold 1 at B from 0",
        "entry 2 is created: assign part 0, hold 1 at B from 0",
        "A2 gives offset 2 of part 0 to message 0",
        "the log of A has message 2",
        "A2 knows that its message exists",
    ]


def test_a_broker_that_forgets_a_hold_would_open_it_again() -> None:
    """This is why a hold is never forgotten. A2 has read the directory before it took over."""
    rules = Rules(keeps_hold=False)
    assert steps_until_broken(rules, "an acknowledged message is lost") == [
        "entry 1 is created: want part 0, hold 0 to B",
        "A1 reads the directory",
        "A1 begins to move part 0",
        "A1 sends release of hold 0 at 0",
        "the log of A has release 0",
        "A1 knows that its release exists",
        "A1 wants to create: assign part 0, hold 1 at B from 0",
        "entry 2 is created: assign part 0, hold 1 at B from 0",
        "A1 reads the directory",
        "A1 sends forget",
        "the log of A has forget 0",
        "A2 takes over",
        "A2 sends open of part 0, hold 0",
        "the log of A has open 0",
        "A2 knows that its open exists",
        "A2 gives offset 0 of part 0 to message 0",
        "the log of A has message 0",
        "A2 knows that its message exists",
    ]


def test_offsets_given_out_before_the_part_is_open_would_be_given_out_again() -> None:
    """This is why a broker waits for its log before it gives out offsets: `open` reserves them."""
    rules = Rules(opens_first=False, messages=2)
    assert steps_until_broken(rules, "two messages have the same offset")[-5:] == [
        "A1 sends open of part 0, hold 1",
        "A1 gives offset 0 of part 0 to message 0",
        "A2 reads the directory",
        "A2 sends open of part 0, hold 1",
        "A2 gives offset 0 of part 0 to message 1",
    ]


def test_a_producer_that_believes_too_early_in_a_close_would_publish_twice() -> None:
    """This is why a broker says that a part is closed only when its log says so."""
    rules = Rules(says_closed_late=False, adds=1, closes=1, moves=0, entries=3)
    assert steps_until_broken(rules, "a message is stored twice") == [
        "entry 1 is created: add part 1, hold 0 at B from 0",
        "A2 takes over",
        "A1 sends close",
        "A1 refuses message 0: closed",
        "A2 gives offset 2 of part 0 to message 0",
        "the log of A has message 2",
        "B1 reads the directory",
        "B1 sends open of part 1, hold 0",
        "the log of B has open 0",
        "B1 knows that its open exists",
        "B1 gives offset 0 of part 1 to message 0",
        "the log of B has message 0",
    ]


def test_every_move_can_be_completed_after_any_death() -> None:
    assert find_stuck(Rules(messages=0, withdrawals=1)) == []


def test_a_release_without_an_assignment_would_leave_the_part_without_a_broker() -> None:
    """This is why a successor creates the assignment that is missing."""
    assert find_stuck(Rules(messages=0, successor_assigns=False)) == [
        "entry 1 is created: want part 0, hold 0 to B",
        "A1 reads the directory",
        "A1 begins to move part 0",
        "A1 sends release of hold 0 at 0",
        "the log of A has release 0",
    ]
