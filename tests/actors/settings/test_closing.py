"""Tests of topics that are closed to publishers or consumers: the table of states, its drawing at
the top of the file, and the orders that are refused.
"""

from __future__ import annotations

import itertools

from zsq.actors.settings import closing
from zsq.actors.settings.closing import (
    CLOSED,
    DRAINING,
    OPEN,
    STATES,
    TRANSITIONS,
    after,
    to_consumers,
    to_publishers,
)
from zsq.transport.wire.admin_requests import CloseRequest, OpenRequest

ACTIONS = ("close", "open")
SIDES = ("publishers", "consumers")
NAMES = {OPEN: "open", DRAINING: "draining", CLOSED: "closed"}


def test_every_state_takes_every_order() -> None:
    for state in STATES:
        assert TRANSITIONS[state].keys() == set(itertools.product(ACTIONS, SIDES))


def test_the_table_in_the_head_is_the_table() -> None:
    rows = [
        line.strip("| ").split(" | ")
        for line in (closing.__doc__ or "").splitlines()
        if line.startswith("| ")
    ]
    assert rows[0] == [
        "state",
        *(f"{action} to {side}" for action, side in itertools.product(ACTIONS, SIDES)),
    ]
    drawn = [[row[0].split(":")[0], *row[1:]] for row in rows[1:]]
    assert drawn == [
        [
            NAMES[state],
            *(NAMES[TRANSITIONS[state][order]] for order in itertools.product(ACTIONS, SIDES)),
        ]
        for state in STATES
    ]


def test_nothing_is_closed_to_consumers_alone() -> None:
    assert all(to_publishers(state) for state in STATES if to_consumers(state))
    assert [to_publishers(state) for state in STATES] == [False, True, True]
    assert [to_consumers(state) for state in STATES] == [False, False, True]


def test_a_topic_is_closed_step_by_step_and_opened_again() -> None:
    state = after(OPEN, CloseRequest("t"))
    assert state == DRAINING
    state = after(state, CloseRequest("t", to="consumers"))
    assert state == CLOSED
    assert after(state, OpenRequest("t", to="consumers")) == DRAINING
    assert after(state, OpenRequest("t")) == OPEN
