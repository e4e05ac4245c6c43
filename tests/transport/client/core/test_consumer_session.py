"""Tests of a consumer's session: its state table, its ranges, and that no message is finished twice
or under the wrong lease.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zsq.transport.block.block import Block, pack, with_place
from zsq.transport.client.core.consumer_session import (
    ALL,
    CONSUMER_TABLE,
    EVERY,
    ConsumerEvent,
    ConsumerSession,
    ConsumerState,
    LeasedBlock,
)
from zsq.transport.client.link.reaction import Reaction
from zsq.transport.errors import E_DISK_FULL, E_LEASE, CorruptBlock, LeaseLost, UsageError
from zsq.transport.wire.protocol import (
    UNBEGUN,
    Answer,
    Beat,
    Begun,
    Deliver,
    Failed,
    Fin,
    Ready,
    Req,
    Stored,
    Subscribed,
    Touch,
)


def block(first: int, count: int) -> Block:
    return with_place(pack([b"%d" % i for i in range(first, first + count)]), first, 0)


def opened(ready: int = 100, *, reports: bool = True) -> ConsumerSession:
    session = ConsumerSession(ready, label="me", reports=reports)
    sub = session.begin(1000)
    assert (sub.ready, sub.label, sub.message_timeout_ms) == (ready, "me", 0)
    assert session.on_word(Subscribed(sub.request, 1, 5000, 2000), [], 0) is Reaction.UP
    assert (session.message_timeout_ms, session.heartbeat_ms) == (5000, 2000)
    return session


def deliver(session: ConsumerSession, token: int, *runs: tuple[int, int, int]) -> LeasedBlock:
    count = sum(run[1] for run in runs)
    session.on_word(Deliver(token, runs, 5000), [block(runs[0][0], count)], 10)
    return session.arrived.pop()


def told(session: ConsumerSession) -> list[Any]:
    words = session.collect()
    found = list(words)
    words.clear()
    return found


# The table


def test_every_state_can_be_reached_and_lost() -> None:
    reached = {ConsumerState.DOWN}
    for _ in ConsumerState:
        reached |= {to.after for state in reached for to in CONSUMER_TABLE[state].values()}
    assert reached == set(ConsumerState)
    assert all(
        row[ConsumerEvent.LOST].after is ConsumerState.DOWN for row in CONSUMER_TABLE.values()
    )


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (ConsumerState.DOWN, Deliver(1, ((0, 1, 1),), 1)),
        (ConsumerState.JOINING, Deliver(1, ((0, 1, 1),), 1)),
        (ConsumerState.JOINING, Answer(0, 1, ())),
        (ConsumerState.OPEN, Subscribed(1, 1, 1, 1)),
        (ConsumerState.OPEN, Stored(())),
        (ConsumerState.OPEN, Beat()),
    ],
)
def test_a_message_not_allowed_in_its_state_is_refused(state: ConsumerState, message: Any) -> None:
    session = ConsumerSession(10)
    session.state = state
    with pytest.raises(UsageError):
        session.on_word(message, [block(0, 1)] if type(message) is Deliver else [], 0)


# Deliveries


def test_each_impossible_delivery_is_refused() -> None:
    session = opened()
    good = block(0, 3)
    for message, blocks in (
        (Deliver(1, ((0, 3, 1),), 1), []),
        (Deliver(1, ((0, 3, 1),), 1), [good, good]),
        (Deliver(1, ((0, 2, 1),), 1), [good]),
        (Deliver(1, ((0, 4, 1), (9, -1, 1)), 1), [good]),
        (Deliver(1, ((0, 3),), 1), [good]),  # type: ignore[arg-type]
        (Deliver(1, (("a", 3, 1),), 1), [good]),  # type: ignore[arg-type]
    ):
        with pytest.raises(UsageError):
            session.on_word(message, blocks, 0)
    broken = bytearray(good.columns)
    broken[0] ^= 1
    with pytest.raises(CorruptBlock):
        session.on_word(Deliver(1, ((0, 3, 1),), 1), [Block(good.header, bytes(broken))], 0)
    assert not session.held


def test_a_delivery_knows_offset_and_attempts_of_each_message() -> None:
    delivery = deliver(opened(), 7, (10, 2, 1), (50, 1, 3), (20, 2, 2))
    assert [delivery.offset(i) for i in range(5)] == [10, 11, 50, 20, 21]
    assert [delivery.attempts(i) for i in range(5)] == [1, 1, 3, 2, 2]
    with pytest.raises(IndexError):
        delivery.offset(5)
    with pytest.raises(IndexError):
        delivery.attempts(5)
    assert delivery.ranges([1, 2, 3]) == ((11, 1), (50, 1), (20, 1))
    assert delivery.ranges([0, 1, 3, 4]) == ((10, 2), (20, 2))
    assert delivery.ranges(range(5)) == ()


# What was begun


def test_a_lease_runs_from_the_report_that_its_message_was_begun() -> None:
    session = opened()
    delivery = deliver(session, 7, (10, 4, 1))
    assert not delivery.expired(0, 10**18), "held, so there is no lease"
    delivery.take(2)
    session.report(100)
    assert told(session) == [Begun(0, 7, ((10, 2),))]
    assert not delivery.expired(1, 100 + 4_999_999_999)
    assert delivery.expired(1, 100 + 5_000_000_000)
    assert not delivery.expired(2, 10**18)
    session.touch(delivery, 3_000, [1])
    assert told(session) == [Touch(0, 7, ((11, 1),))]
    assert not delivery.expired(1, 3_000 + 4_999_999_999)
    assert delivery.expired(0, 3_000 + 4_999_999_999)


def test_what_is_answered_before_the_report_is_not_reported() -> None:
    session = opened()
    delivery = deliver(session, 7, (10, 4, 1))
    delivery.take(3)
    delivery.finish(0)
    session.collect()
    delivery.finish(1)
    session.report(100)
    assert told(session) == [
        Fin(0, 7, ((10, 1),)),
        Begun(0, 7, ((12, 1),)),
        Fin(0, 7, ((11, 1),)),
    ]
    delivery.take(4)
    delivery.finish(EVERY)
    session.collect()
    session.report(200)
    assert told(session) == [Fin(0, 7, ((12, 2),))]


def test_a_consumer_without_reports_tells_nothing() -> None:
    session = opened(reports=False)
    delivery = deliver(session, 7, (10, 4, 1))
    delivery.take(4)
    session.report(100)
    assert told(session) == []


def test_given_back_messages_use_no_attempt() -> None:
    session = opened()
    delivery = deliver(session, 7, (10, 4, 1))
    session.give_back(delivery, [2, 3])
    assert told(session) == [Req(0, 7, ((12, 2),), UNBEGUN)]
    assert session.unanswered == 2


# Answers


def test_the_finishes_of_a_delivery_are_sent_as_one_message() -> None:
    session = opened()
    delivery = deliver(session, 7, (100, 10, 1))
    assert delivery.finish(3)
    assert not delivery.finish(5)
    delivery.finish(4)
    assert told(session) == [Fin(0, 7, ((103, 3),))]
    delivery.finish(4)
    assert told(session) == [], "told once"
    delivery.finish(EVERY)
    delivery.finish(0)
    assert told(session) == [Fin(0, 7, ((100, 3), (106, 4)))]
    assert not session.held
    delivery.finish(EVERY)
    assert told(session) == []
    assert session.unconfirmed == 10


def test_a_whole_delivery_needs_no_ranges() -> None:
    session = opened()
    for token, finish in ((7, [EVERY]), (8, [2, 0, 1]), (9, [0, 0, 1, 2])):
        delivery = deliver(session, token, (0, 3, 1))
        for index in finish:
            delivery.finish(index)
        assert told(session) == [Fin(0, token, ())]
        assert delivery.unanswered() == ()


def test_a_requeue_covers_only_what_is_not_answered_yet() -> None:
    session = opened()
    delivery = deliver(session, 7, (0, 4, 1))
    delivery.finish(1)
    session.requeue(delivery, delivery.unanswered(), 500)
    session.touch(delivery, 0)
    session.requeue(delivery, [0], 500)
    assert told(session) == [Fin(0, 7, ((1, 1),)), Req(0, 7, ((0, 1), (2, 2)), 500), Touch(0, 7)]


def test_a_confirmed_finish_ends_with_the_answer_of_the_broker() -> None:
    session = opened()
    delivery = deliver(session, 7, (0, 4, 1))
    confirm = session.finish_sync(delivery, [2])
    [fin] = told(session)
    assert fin.ranges == ((2, 1),)
    session.on_word(Answer(fin.request, 7, ()), [], 0)
    assert (confirm.done, confirm.error, session.unconfirmed) == (True, None, 0)
    late = session.finish_sync(delivery, [0])
    [fin] = told(session)
    session.on_word(Answer(fin.request, 7, ((0, 1),)), [], 0)
    assert isinstance(late.error, LeaseLost)
    again = session.finish_sync(delivery, [2])
    [fin] = told(session)
    assert (fin.token, fin.ranges) == (0, ()), "told before: a barrier confirms it"
    session.on_word(Failed(fin.request, E_DISK_FULL, "no"), [], 0)
    assert again.error is not None


def test_a_barrier_confirms_the_answers_sent_before_it() -> None:
    session = opened()
    assert session.barrier().done, "nothing to wait for"
    one, two = deliver(session, 7, (0, 4, 1)), deliver(session, 8, (4, 2, 1))
    one.finish(EVERY)
    first = session.barrier()
    two.finish(EVERY)
    second = session.barrier()
    words = told(session)
    assert [message.token for message in words] == [7, 0, 8, 0]
    session.on_word(Answer(words[1].request, 0, ()), [], 0)
    assert (first.done, second.done, session.unconfirmed) == (True, False, 2)
    session.on_word(Answer(words[3].request, 0, ()), [], 0)
    assert (second.done, session.unconfirmed) == (True, 0)


def test_refused_plain_finishes_are_counted() -> None:
    session = opened()
    deliver(session, 7, (0, 4, 1))
    session.on_word(Answer(0, 7, ((0, 2), (3, 1))), [], 0)
    assert session.stale_count == 3
    session.on_word(Answer(0, 7, ((ALL, 0),)), [], 0)
    assert session.stale_count == 7


def test_a_lost_link_voids_everything() -> None:
    session = opened()
    delivery = deliver(session, 7, (0, 4, 1))
    delivery.finish(0)
    confirm = session.barrier()
    told(session)
    session.on_word(Deliver(8, ((4, 1, 1),), 1), [block(4, 1)], 0)
    delivery.finish(1)
    assert delivery.live
    session.lost()
    assert isinstance(confirm.error, LeaseLost)
    assert (
        len(session.arrived),
        len(session.held),
        session.unconfirmed,
        session.unconfirmed_lost,
    ) == (0, 0, 0, 1)
    assert not delivery.live
    session.begin(1000)
    session.on_word(Subscribed(1, 1, 1, 1), [], 0)
    delivery.finish(2)
    session.touch(delivery, 0)
    session.requeue(delivery, [3], 0)
    late = session.finish_sync(delivery, [3])
    assert told(session) == []
    assert session.stale_count == 4
    assert late.error is not None
    assert late.error.code == E_LEASE


def test_a_leaving_session_takes_no_more_messages_but_still_finishes() -> None:
    session = opened()
    delivery = deliver(session, 7, (0, 1, 1))
    session.leave()
    session.leave()
    session.on_word(Deliver(8, ((4, 1, 1),), 1), [block(4, 1)], 0)
    assert not session.arrived
    delivery.finish(0)
    assert told(session) == [Ready(0), Fin(0, 7, ())]


def test_a_ready_count_that_changes_while_the_channel_accepts_the_consumer_is_sent() -> None:
    session = ConsumerSession(0)
    sub = session.begin(1000)
    session.set_ready(4)
    assert told(session) == []
    session.on_word(Subscribed(sub.request, 1, 5000, 2000), [], 0)
    assert told(session) == [Ready(4)]


def test_a_new_ready_count_is_sent_and_a_wrong_one_is_refused() -> None:
    session = opened()
    session.set_ready(7)
    assert told(session) == [Ready(7)]
    for wrong in (-1, 1_000_000):
        with pytest.raises(UsageError):
            session.set_ready(wrong)
    with pytest.raises(UsageError):
        ConsumerSession(-1)


# Random sequences of answers and losses

ACTIONS = (
    "deliver",
    "deliver",
    "finish",
    "finish",
    "finish",
    "whole",
    "requeue",
    "sync",
    "tell",
    "tell",
    "barrier",
    "lose",
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 7), st.integers(0, 5)), max_size=50)
)
def test_each_message_is_answered_at_most_once_and_under_its_lease(
    script: list[tuple[str, int, int]],
) -> None:
    """A model of the channel knows all leases. An answer may name only messages that are leased
    with its token on this link.
    """
    session = opened()
    deliveries: list[LeasedBlock] = []
    leases: dict[int, set[int]] = {}
    outcomes: Counter[tuple[int, int]] = Counter()  # (token, offset) -> answers
    asked: Counter[tuple[int, int]] = Counter()
    token = 100

    def send() -> None:
        for message in told(session):
            if isinstance(message, Fin | Req) and message.token:
                held = leases[message.token]
                offsets = (
                    {o for first, n in message.ranges for o in range(first, first + n)}
                    if message.ranges
                    else set(held)
                )
                assert offsets
                assert offsets <= held, "not ours, or answered before"
                held -= offsets
                outcomes.update((message.token, offset) for offset in offsets)
            if isinstance(message, Fin) and message.request:
                session.on_word(Answer(message.request, message.token, ()), [], 0)

    for action, which, index in script:
        delivery = deliveries[which % len(deliveries)] if deliveries else None
        if action == "deliver":
            token += 1
            runs = ((which * 10, 2, 1), (100 + which * 10, 4, 2))
            leases[token] = {offset for first, n, _ in runs for offset in range(first, first + n)}
            deliveries.append(deliver(session, token, *runs))
        elif action == "tell":
            send()
        elif action == "barrier":
            session.barrier()
        elif action == "lose":
            session.lost()
            leases.clear()
            sub = session.begin(1000)
            session.on_word(Subscribed(sub.request, 1, 1, 1), [], 0)
        elif delivery is not None:
            if action in ("finish", "sync", "requeue"):
                asked[delivery.token, delivery.offset(index)] += 1
            if action == "finish":
                delivery.finish(index)
            elif action == "sync":
                session.finish_sync(delivery, [index])
            elif action == "requeue":
                session.requeue(delivery, [index], 0)
            else:
                delivery.finish(EVERY)
                asked.update((delivery.token, delivery.offset(i)) for i in range(6))
    send()
    assert all(count == 1 for count in outcomes.values())
    assert set(outcomes) <= set(asked)
    for lease, held in leases.items():
        live = {offset for known, offset in asked if known == lease}
        assert not live & held, "everything asked for under a lease that still lives was told"
