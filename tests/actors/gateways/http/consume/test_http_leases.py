"""Tests of the leases of messages that were received over HTTP: the table of tokens, their ends,
and a model that random steps are compared with.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsq.actors.gateways.http.consume.leases import (
    ANSWERED,
    ANSWERED_MAX,
    OUTCOMES,
    AnsweredLease,
    HttpLease,
    HttpLeases,
    Outcome,
    Token,
    TokenState,
    Verb,
    parse_token,
)
from zsq.transport.client.core.confirm import Confirm

LEASE_NS = 100


def answer(leases: HttpLeases[Any], verb: Verb, number: int) -> None:
    leases.answer(number, AnsweredLease(verb, leases.lease(number), Confirm()))


def in_state(state: TokenState) -> tuple[HttpLeases[str], int]:
    leases: HttpLeases[str] = HttpLeases(LEASE_NS)
    number = leases.add("delivery", 0, "holder", 0)
    for verb, answered in ANSWERED.items():
        if answered is state:
            answer(leases, verb, number)
    if state is TokenState.ENDED:
        leases.expire(LEASE_NS)
    return leases, number


@pytest.mark.parametrize(
    ("state", "finish", "requeue", "touch"),
    [
        (TokenState.LEASED, Outcome.CARRY_OUT, Outcome.CARRY_OUT, Outcome.CARRY_OUT),
        (TokenState.FINISHED, Outcome.REPEAT, Outcome.CONFLICT, Outcome.CONFLICT),
        (TokenState.REQUEUED, Outcome.CONFLICT, Outcome.REPEAT, Outcome.CONFLICT),
        (TokenState.ENDED, Outcome.GONE, Outcome.GONE, Outcome.GONE),
    ],
)
def test_each_request_has_its_outcome_in_each_state(
    state: TokenState, finish: Outcome, requeue: Outcome, touch: Outcome
) -> None:
    leases, number = in_state(state)
    assert leases.state(number, 1) is state
    outcomes = [leases.outcome(verb, number, 1) for verb in Verb]
    assert outcomes == [finish, requeue, touch]


def test_the_table_has_an_outcome_for_each_state() -> None:
    assert {verb: set(row) for verb, row in OUTCOMES.items()} == {
        verb: set(TokenState) for verb in Verb
    }


def test_a_lease_that_is_over_has_ended_before_it_is_taken_away() -> None:
    leases: HttpLeases[str] = HttpLeases(LEASE_NS)
    number = leases.add("delivery", 0, "holder", 0)
    assert leases.state(number, LEASE_NS - 1) is TokenState.LEASED
    assert leases.state(number, LEASE_NS) is TokenState.ENDED
    assert leases.expire(LEASE_NS - 1) == []
    assert leases.expire(LEASE_NS) == [HttpLease("delivery", 0, "holder", LEASE_NS)]


def test_the_number_of_remembered_answers_is_bounded() -> None:
    leases: HttpLeases[str] = HttpLeases(LEASE_NS)
    numbers = [leases.add("delivery", at, "holder", 0) for at in range(ANSWERED_MAX + 1)]
    for number in numbers:
        answer(leases, Verb.FINISH, number)
    assert leases.state(numbers[0], 0) is TokenState.ENDED, "the oldest is forgotten"
    assert leases.state(numbers[1], 0) is TokenState.FINISHED
    assert not leases


@given(st.text(alphabet="0123456789abcdef", min_size=8, max_size=8), *[st.integers(0, 1 << 63)] * 2)
def test_a_token_is_parsed_as_it_was_written(gateway: str, subscription: int, number: int) -> None:
    token = Token(gateway, subscription, number)
    assert parse_token(str(token)) == token


@pytest.mark.parametrize("text", ["", "1-1-1", "00000000-1-1 ", "00000000-1", "0000000G-1-1"])
def test_other_texts_are_no_tokens(text: str) -> None:
    assert parse_token(text) is None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "finish", "requeue", "touch", "lost", "give back"]),
        st.integers(0, 5),
        st.integers(0, 60),
    )
)


@given(STEPS)
def test_random_steps_agree_with_a_model(steps: list[tuple[str, int, int]]) -> None:
    """The model has the end of each lease, and the answers. Deliveries are named by links."""
    leases: HttpLeases[int] = HttpLeases(LEASE_NS)
    now_ns = 0
    due: dict[int, int] = {}
    answers: dict[int, TokenState] = {}
    link: dict[int, int] = {}
    for step, which, later_ns in steps:
        now_ns += later_ns
        over = {number for number, due_ns in due.items() if due_ns <= now_ns}
        ended = leases.expire(now_ns)
        assert len(ended) == len(over)
        assert [lease.due_ns for lease in ended] == sorted(lease.due_ns for lease in ended)
        for number in over:
            del due[number]
        number = list(link)[which % len(link)] if link else 0
        if step == "add":
            number = leases.add(which, 0, "holder", now_ns)
            assert number not in link, "a number is used once"
            due[number], link[number] = now_ns + LEASE_NS, which
        elif step == "lost":
            lost = {one for one in due if link[one] == which}
            assert len(leases.forget(which.__eq__)) == len(lost)
            for one in lost:
                del due[one]
        elif step == "give back":
            assert (leases.end(number) is not None) == (number in due)
            due.pop(number, None)
            answers.pop(number, None)
        elif number in due:
            assert leases.state(number, now_ns) is TokenState.LEASED
            if step == "touch":
                leases.extend(number, now_ns)
                due[number] = now_ns + LEASE_NS
            else:
                verb = Verb.FINISH if step == "finish" else Verb.REQUEUE
                answer(leases, verb, number)
                del due[number]
                answers[number] = ANSWERED[verb]
        for one in link:
            expected = TokenState.LEASED if one in due else answers.get(one, TokenState.ENDED)
            assert leases.state(one, now_ns) is expected
        assert len(leases) == len(due)
        assert leases.due_ns == min(due.values(), default=None)
