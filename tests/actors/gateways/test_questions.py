"""Tests of the requests that wait for the supervisor: fair turns, bounds, and what is dropped."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsq.actors.gateways.limiter import Bound
from zsq.actors.gateways.questions import PATIENCE_NS, Questions, WaitingClient
from zsq.transport.errors import E_LIMIT, Refused

AHEAD = 2
# A holder's client asks (with or without others that ask the same), a turn is taken, the oldest or
# the newest request is answered, or a client leaves.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from(["a1", "a2", "b1"]), st.sampled_from([None, 7])),
        st.tuples(st.sampled_from(["next", "oldest", "newest"])),
        st.tuples(st.just("left"), st.sampled_from(["a1", "a2", "b1"])),
    ),
    max_size=60,
)


def questions(each: int = 50, size: int = 1_000) -> Questions:
    return Questions(Bound(2 * each, each), Bound(2 * size, size), AHEAD)


@given(STEPS)
def test_each_request_of_a_client_that_stays_is_answered_once(steps: list[tuple[str, ...]]) -> None:
    waiting, open_tickets, request = questions(), list[int](), 0
    asked, answered, ahead = set[WaitingClient](), Counter[WaitingClient](), dict[int, str]()

    def take_turns() -> None:
        while (turn := waiting.next(1)) is not None:
            ticket, (holder,) = turn
            ahead[ticket] = holder
            open_tickets.append(ticket)
            assert Counter(ahead.values())[holder] <= AHEAD

    def answer(ticket: int) -> None:
        open_tickets.remove(ticket)
        del ahead[ticket]
        for asker in waiting.answered(ticket):
            answered[asker] += 1
        assert waiting.answered(ticket) == []

    for step in steps:
        if step[0] == "ask":
            request += 1
            asker = WaitingClient(step[1].encode(), request)
            waiting.ask(step[1][0], asker, (step[1][0],), 1, step[2])
            asked.add(asker)
        elif step[0] == "left":
            waiting.left(step[1].encode())
            asked = {asker for asker in asked if asker.client != step[1].encode()}
        elif step[0] == "next":
            take_turns()
        elif open_tickets:
            answer(open_tickets[0 if step[0] == "oldest" else -1])
    while waiting.waiting() or open_tickets:
        take_turns()
        answer(open_tickets[0])
    assert all(answered[asker] == 1 for asker in asked)
    assert max(answered.values(), default=0) <= 1
    assert len(waiting) == 0


def test_a_holder_with_many_requests_leaves_the_others_their_turns() -> None:
    waiting = questions()
    for number in range(40):
        waiting.ask("greedy", WaitingClient(b"g", number), ("greedy",), 1)
    waiting.ask("other", WaitingClient(b"o", 1), ("other",), 1)
    turns = [waiting.next(1) for _ in range(4)]
    assert [turn[1][0] if turn else None for turn in turns] == ["greedy", "other", "greedy", None]
    assert turns[0] is not None
    waiting.answered(turns[0][0])
    assert waiting.next(1) is not None


def test_requests_and_their_bytes_are_bounded_for_each_holder() -> None:
    waiting = questions(each=3, size=10)
    for number in range(3):
        waiting.ask("greedy", WaitingClient(b"g", number), (), 1)
    with pytest.raises(Refused, match=rf"{E_LIMIT} the limit of 3 unanswered requests for greedy"):
        waiting.ask("greedy", WaitingClient(b"g", 3), (), 1)
    with pytest.raises(Refused, match="limit of 10 bytes of unanswered requests for other"):
        waiting.ask("other", WaitingClient(b"o", 1), (), 11)
    waiting.ask("other", WaitingClient(b"o", 1), (), 10)
    waiting.left(b"g")
    assert len(waiting) == 1
    assert [turn[0] for turn in [waiting.next(1)] if turn] == [1]
    assert waiting.next(1) is None, "nothing of the client that left is sent"


def test_equal_requests_that_wait_become_one() -> None:
    waiting = questions()
    for number in range(10):
        waiting.ask("a", WaitingClient(b"%d" % (number % 2), number), ("a",), 1, "stats")
    first = waiting.next(1)
    assert first is not None
    waiting.ask(
        "a", WaitingClient(b"3", 11), ("a",), 1, "stats"
    )  # the first one may be computed already
    assert len(waiting.answered(first[0])) == 10
    second = waiting.next(1)
    assert second is not None
    assert waiting.answered(second[0]) == [WaitingClient(b"3", 11)]


def test_an_answer_that_never_comes_frees_its_place() -> None:
    waiting = questions()
    waiting.ask("a", WaitingClient(b"a", 1), (), 1)
    turn = waiting.next(1)
    assert turn is not None
    assert waiting.expire(PATIENCE_NS) == []
    assert waiting.expire(PATIENCE_NS + 2) == [turn[0]]
    assert len(waiting) == 0
