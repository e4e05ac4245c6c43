"""Tests of the model of leases and patience: no reachable state breaks a promise, and each rule is
needed.
"""

from __future__ import annotations

import pytest

from tests.models.search import Broken
from tests.models.standby_model import Rules, explore, find_stuck

# They only compute. On a busy machine some take minutes.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("rules", "states"),
    [
        pytest.param(Rules(), 60_734, marks=pytest.mark.long),
        (Rules(ticks=1, messages=2, bound=0), 11_820),
        pytest.param(Rules(sync=True, drift=0), 40_685, marks=pytest.mark.long),
        pytest.param(Rules(ticks=1, starts=2, drift=0), 55_941, marks=pytest.mark.long),
        (Rules(ticks=1, handovers=1, drift=0), 14_966),
        (Rules(ticks=0, starts=2, handovers=1, drift=0), 29_760),
    ],
)
def test_no_state_of_a_small_world_breaks_a_promise(rules: Rules, states: int) -> None:
    """The exact number shows that no step has been lost by mistake."""
    assert explore(rules) == states


@pytest.mark.long
def test_no_state_of_a_larger_world_breaks_a_promise() -> None:
    assert explore(Rules(sync=True, ticks=1, starts=2, drift=0)) == 71_083


def test_a_primary_that_keeps_its_times_is_never_held_up() -> None:
    """Its lease never ends, because it is longer than the period and an answer together."""
    assert explore(Rules(prompt=True, lease=3, patience=4)) == 19_115
    with pytest.raises(Broken, match="a prompt primary has no lease"):
        explore(Rules(prompt=True, lease=2, patience=4))


TWO = "a broker may acknowledge although another one has taken over"


@pytest.mark.parametrize(
    ("rules", "broken", "last"),
    [
        (Rules(lease=3, ticks=0), TWO, "creation of 3 by B1 is carried out"),
        (Rules(checks_lease=False, ticks=0), TWO, "creation of 3 by B1 is carried out"),
        (Rules(waits_from_start=False, ticks=0), TWO, "creation of 3 by B1 is carried out"),
        (Rules(stops_fenced=False, ticks=1), TWO, "A0 finds that 3 is taken"),
        (Rules(clock_goes_on=False, ticks=0), TWO, "creation of 3 by B1 is carried out"),
        (
            Rules(holds_at_bound=False, messages=2),
            "an acknowledgement ignores the bound",
            "A1 takes message 1",
        ),
        (
            Rules(ships_before_release=False, ticks=0, handovers=1),
            "a handover loses an acknowledged message",
            "creation of 3 by A0 is carried out",
        ),
        (
            Rules(silent_after_release=False, ticks=0, handovers=1),
            "a broker may acknowledge after its release",
            "creation of 3 by A0 is carried out",
        ),
    ],
)
def test_without_one_rule_a_promise_is_broken(rules: Rules, broken: str, last: str) -> None:
    with pytest.raises(Broken) as found:
        explore(rules)
    assert (found.value.what, found.value.steps[-1]) == (broken, last)


def steps_until_broken(rules: Rules, broken: str = TWO) -> list[str]:
    with pytest.raises(Broken) as found:
        explore(rules)
    assert found.value.what == broken
    return found.value.steps


def test_a_lease_from_the_end_of_a_creation_would_outlive_the_patience() -> None:
    """The standby sees the tick before its writer gets the answer."""
    assert steps_until_broken(Rules(from_begin=False, ticks=1)) == [
        "A0 sends tick 3",
        "creation of 3 by A0 is carried out",
        "B1 starts as a standby",
        "B1 begins to read",
        "B1 has read up to 4",
        "time passes",
        "time passes, and patience counts it twice",
        "A0 has created 3",
        "B1 wants to take over at 4",
        "creation of 4 by B1 is carried out",
    ]


def test_a_tick_behind_a_missing_one_would_give_a_lease_that_nobody_sees() -> None:
    """This is why only the ticks before the first missing one renew the lease."""
    assert steps_until_broken(Rules(prefix_only=False)) == [
        "A0 sends tick 3",
        "B1 starts as a standby",
        "B1 begins to read",
        "B1 has read up to 3",
        "time passes",
        "time passes, and patience counts it twice",
        "A0 sends tick 4",
        "A0 has created 4",
        "B1 wants to take over at 3",
        "creation of 3 by B1 is carried out",
    ]


def test_a_standby_that_notes_when_it_began_to_read_would_be_too_early() -> None:
    """The tick that it sees may have begun after that."""
    assert steps_until_broken(Rules(notes_answer=False, ticks=1)) == [
        "B1 starts as a standby",
        "B1 begins to read",
        "time passes",
        "A0 sends tick 3",
        "A0 has created 3",
        "B1 has read up to 4",
        "time passes, and patience counts it twice",
        "B1 wants to take over at 4",
        "creation of 4 by B1 is carried out",
    ]


def test_a_restarted_shipper_would_renew_the_lease_of_a_lost_epoch() -> None:
    """This is why it takes over before it sets a lease."""
    assert steps_until_broken(Rules(takes_over_first=False, ticks=0, starts=2)) == [
        "B1 starts as a standby",
        "B1 begins to read",
        "B1 has read up to 3",
        "time passes",
        "time passes, and patience counts it twice",
        "the shipper of A0 is restarted as A2",
        "B1 wants to take over at 3",
        "creation of 3 by B1 is carried out",
    ]


def test_a_broker_that_has_released_would_undo_its_handover() -> None:
    rules = Rules(waits_after_release=False, ticks=0, starts=2, handovers=1, drift=0)
    assert steps_until_broken(rules, "a handover is undone by the broker that released") == [
        "A0 hands over, and acknowledges nothing more",
        "A0 sends released 3",
        "creation of 3 by A0 is carried out",
        "the shipper of A0 is restarted as A1",
        "A1 wants to take over at 4",
        "creation of 4 by A1 is carried out",
    ]


@pytest.mark.parametrize(
    ("rules", "tried"),
    [
        (Rules(ticks=1, messages=0, starts=2, deaths=1, drift=0), 4_695),
        (Rules(ticks=0, messages=0, starts=2, deaths=1, handovers=1, drift=0), 6_491),
    ],
)
def test_a_standby_takes_over_from_every_state(rules: Rules, tried: int) -> None:
    """The primary is dead, the standby runs, and the store answers."""
    assert find_stuck(rules) == (tried, [])


def test_a_log_that_was_released_to_nobody_would_stay_without_a_primary() -> None:
    """This is why a broker that has released may take over again with patience."""
    rules = Rules(takes_back=False, ticks=0, messages=0, deaths=1, handovers=1, drift=0)
    assert find_stuck(rules)[1] == [
        "A0 hands over, and acknowledges nothing more",
        "A0 sends released 3",
        "A0 dies",
        "A1 starts as a standby",
    ]
