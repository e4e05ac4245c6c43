"""Tests of a producer's session: its state table and its window."""

from __future__ import annotations

from typing import Any

import pytest

from zsq.transport.block.block import Block, decode_header, pack
from zsq.transport.client.core.producer_session import (
    PRODUCER_TABLE,
    PendingBlock,
    ProducerEvent,
    ProducerSession,
    ProducerState,
)
from zsq.transport.client.link.reaction import Reaction
from zsq.transport.errors import (
    E_CHECKSUM,
    E_CLOSING,
    E_DISK_FULL,
    E_HELLO,
    E_LIMIT,
    E_SEQUENCE,
    E_TOPIC_FAILED,
    E_TOPIC_FULL,
    Refused,
    UsageError,
)
from zsq.transport.wire.protocol import (
    WINDOW_BLOCKS_MAX,
    Beat,
    Delayed,
    Deliver,
    Duplicates,
    Stored,
    Unstored,
    Welcome,
)

CREDIT = 1 << 20


def block(number: int = 0, size: int = 1) -> Block:
    return pack([b"%d" % number + b"." * size])


def opened(*, credit: int = CREDIT, expected: int = 0) -> ProducerSession:
    session = ProducerSession(iter(range(1, 1000)))
    session.begin(1000)
    assert session.on_welcome(Welcome(1, expected, credit, 1000)) is Reaction.UP
    return session


def send(session: ProducerSession, n: int) -> list[PendingBlock]:
    pending_blocks = [PendingBlock(block(i)) for i in range(n)]
    for pending in pending_blocks:
        session.add(pending)
        assert session.take() is pending
    return pending_blocks


# The table


@pytest.mark.parametrize("state", ProducerState)
def test_each_state_has_its_row_and_can_be_lost(state: ProducerState) -> None:
    assert PRODUCER_TABLE[state][ProducerEvent.LOST].after is ProducerState.DOWN


def test_every_state_can_be_reached() -> None:
    reached = {ProducerState.DOWN}
    for _ in ProducerState:
        reached |= {to.after for state in reached for to in PRODUCER_TABLE[state].values()}
    assert reached == set(ProducerState)


@pytest.mark.parametrize(
    ("message", "state"),
    [
        (Stored(((0, 0),)), ProducerState.DOWN),
        (Stored(((0, 0),)), ProducerState.GREETING),
        (Delayed(0, 1, 1), ProducerState.GREETING),
        (Welcome(1, 0, 1, 1), ProducerState.OPEN),
        (Welcome(1, 0, 1, 1), ProducerState.DOWN),
        (Beat(), ProducerState.OPEN),
        (Deliver(1, (), 1), ProducerState.OPEN),
    ],
)
def test_a_message_not_allowed_in_its_state_is_refused(message: Any, state: ProducerState) -> None:
    session = ProducerSession(iter((1, 2)))
    session.state = state
    with pytest.raises(UsageError):
        session.on_word(message)


# The window


def test_sequences_count_blocks_from_zero() -> None:
    session = opened()
    pending_blocks = send(session, 3)
    headers = [
        decode_header(pending.wire_header(session.producer_id)) for pending in pending_blocks
    ]
    assert [(h.producer_id, h.sequence) for h in headers] == [(1, 0), (1, 1), (1, 2)]
    assert session.on_stored(Stored(((0, 10), (1, 11), (2, -1)))) is Reaction.NOTHING
    assert [(p.done, p.first_offset, p.block) for p in pending_blocks] == [
        (True, 10, None),
        (True, 11, None),
        (True, -1, None),
    ]
    assert not session.unanswered
    assert session.window_bytes == session.queue_bytes == 0


def test_delayed_blocks_are_numbered_and_answered_among_the_others() -> None:
    session = opened()
    pending_blocks = [
        PendingBlock(block(0)),
        PendingBlock(block(1), 5_000),
        PendingBlock(block(2), 5_000),
    ]
    for pending in pending_blocks:
        session.add(pending)
        assert session.take() is pending
    assert [pending.sequence for pending in pending_blocks] == [0, 1, 2]
    assert session.on_word(Delayed(1, 9, 50)) is Reaction.NOTHING
    assert session.on_word(Delayed(2, -1, -1)) is Reaction.NOTHING
    assert session.on_word(Stored(((0, 7),))) is Reaction.NOTHING
    assert [(pending.done, pending.key, pending.first_offset) for pending in pending_blocks] == [
        (True, None, 7),
        (True, (9, 50), -1),
        (True, None, -1),
    ]
    assert (session.unanswered, session.window_bytes) == (False, 0)


def test_a_delayed_block_that_was_not_answered_is_sent_again_with_its_number_and_delay() -> None:
    session = opened()
    pending = PendingBlock(block(), 5_000)
    session.add(pending)
    assert session.take() is pending
    session.lost()
    session.begin(1000)
    session.on_welcome(Welcome(1, 1, CREDIT, 1000))
    assert session.take() is pending
    assert (pending.sequence, pending.delay_ms, pending.sends) == (0, 5_000, 2)
    session.on_word(Delayed(0, 9, 50))
    assert pending.key == (9, 50)


def test_credit_bounds_what_is_out_but_one_goes_always() -> None:
    size = block(0, 1000).length
    session = opened(credit=2 * size)
    pending_blocks = [PendingBlock(block(i, 1000)) for i in range(3)]
    for pending in pending_blocks:
        session.add(pending)
    assert (session.take(), session.take(), session.take()) == (
        pending_blocks[0],
        pending_blocks[1],
        None,
    )
    session.on_stored(Stored(((0, 0),)))
    assert session.take() is pending_blocks[2]
    small = opened(credit=1)
    small.add(pending_blocks[0])
    assert small.take() is pending_blocks[0]


def test_the_number_of_blocks_out_is_bounded_too() -> None:
    session = opened(credit=1 << 40)
    for pending in [PendingBlock(block())] * 1:
        session.add(pending)
    session.window = {i: PendingBlock(block()) for i in range(WINDOW_BLOCKS_MAX)}
    assert session.take() is None


def test_nothing_goes_before_the_welcome() -> None:
    session = ProducerSession(iter((1, 2)))
    session.add(PendingBlock(block()))
    assert session.take() is None
    session.begin(1000)
    assert session.take() is None


def test_after_a_loss_all_unanswered_go_again_in_order_with_their_numbers() -> None:
    session = opened()
    pending_blocks = send(session, 4)
    session.on_stored(Stored(((0, 0),)))
    session.lost()
    hello = session.begin(1000)
    assert hello.producer_id == 1
    # The topic has stored 1 and 2, but the answers were lost. The blocks are sent again to learn
    # their offsets.
    assert session.on_welcome(Welcome(2, 3, CREDIT, 1000)) is Reaction.UP
    assert [session.take() for _ in range(4)] == [*pending_blocks[1:], None]
    assert [pending.sequence for pending in pending_blocks[1:]] == [1, 2, 3]


@pytest.mark.parametrize("code", [E_SEQUENCE, E_CLOSING, E_HELLO])
def test_a_refusal_that_concerns_the_link_restarts_it(code: str) -> None:
    session = opened()
    pending_blocks = send(session, 2)
    assert session.on_unstored(Unstored(1, 0, code, "")) is Reaction.RESTART
    assert session.state is ProducerState.DOWN
    assert list(session.queue) == pending_blocks


def test_a_block_whose_number_could_not_be_read_is_sent_again_with_all_others() -> None:
    """The client does not know which block the topic refused. If the client left that block out, it
    would wait for its answer for ever.
    """
    session = opened()
    pending_blocks = send(session, 2)
    assert session.on_unstored(Unstored(-1, -1, E_CHECKSUM, "no header")) is Reaction.RESTART
    assert session.state is ProducerState.DOWN
    assert list(session.queue) == pending_blocks
    assert not any(pending.done for pending in pending_blocks)


@pytest.mark.parametrize("code", [E_DISK_FULL, E_LIMIT, E_CHECKSUM, E_TOPIC_FAILED])
def test_the_last_block_refused_frees_its_number(code: str) -> None:
    session = opened()
    first, second = send(session, 2)
    assert session.on_unstored(Unstored(1, 1, code, "no")) is Reaction.NOTHING
    assert second.done
    assert second.error is not None
    assert second.error.code == code
    assert session.refused == [second]
    [third] = send(session, 1)
    assert (third.sequence, session.producer_id, first.done) == (1, 1, False)


def test_a_refused_block_with_later_ones_settles_under_a_new_id() -> None:
    session = opened()
    first, second, third, fourth = send(session, 4)
    assert session.on_unstored(Unstored(1, 1, E_DISK_FULL, "full")) is Reaction.NOTHING
    assert session.state is ProducerState.SETTLING
    assert session.on_unstored(Unstored(2, 1, E_SEQUENCE, "gap")) is Reaction.NOTHING
    assert session.take() is None, "what has no number waits until the old ones are settled"
    assert session.on_stored(Stored(((0, 0),))) is Reaction.RENEW
    assert (session.producer_id, session.next_sequence, session.state) == (2, 0, ProducerState.DOWN)
    session.begin(1000)
    session.on_welcome(Welcome(1, 0, CREDIT, 1000))
    assert (session.take(), session.take()) == (third, fourth)
    assert (third.sequence, fourth.sequence) == (0, 1)
    assert first.done
    assert second.error is not None


def test_blocks_queued_again_behind_a_refused_block_are_queued_once() -> None:
    session = opened()
    pending_blocks = send(session, 4)
    session.lost()
    session.begin(1000)
    session.on_welcome(Welcome(2, 0, CREDIT, 1000))
    assert [session.take(), session.take(), session.take()] == pending_blocks[:3]
    assert session.on_unstored(Unstored(1, 1, E_DISK_FULL, "full")) is Reaction.NOTHING
    assert list(session.queue) == pending_blocks[2:], "each once, without the number it had"
    assert [pending.sequence for pending in pending_blocks[2:]] == [-1, -1]
    assert session.on_stored(Stored(((0, 0),))) is Reaction.RENEW


def test_the_sequence_of_a_block_sent_twice_is_not_used_again() -> None:
    session = opened()
    send(session, 1)
    session.lost()
    session.begin(1000)
    session.on_welcome(Welcome(2, 0, CREDIT, 1000))
    assert session.take() is not None
    assert session.on_unstored(Unstored(0, 0, E_DISK_FULL, "full")) is Reaction.RENEW
    assert session.producer_id == 2


def test_settling_survives_a_loss() -> None:
    session = opened()
    first, _, third = send(session, 3)
    session.on_unstored(Unstored(1, 1, E_DISK_FULL, "full"))
    session.lost()
    assert session.begin(1000).producer_id == 1
    assert session.on_welcome(Welcome(2, 0, CREDIT, 1000)) is Reaction.UP
    assert (session.take(), session.take()) == (first, None)
    assert session.on_stored(Stored(((0, 5),))) is Reaction.RENEW
    assert third.sequence == -1


def test_a_topic_that_forgot_gets_a_new_producer() -> None:
    session = opened()
    send(session, 3)
    session.on_stored(Stored(((0, 0), (1, 1))))
    session.lost()
    session.begin(1000)
    assert session.on_welcome(Welcome(2, 1, CREDIT, 1000)) is Reaction.RENEW
    assert (session.producer_id, session.forgotten) == (2, 1)
    assert [pending.sequence for pending in session.queue] == [-1]


def test_a_topic_that_forgot_is_noticed_also_where_all_that_waits_was_never_sent() -> None:
    session = opened()
    send(session, 2)
    session.on_stored(Stored(((0, 0), (1, 1))))
    session.lost()
    session.add(PendingBlock(block()))
    session.begin(1000)
    assert session.on_welcome(Welcome(2, 1, CREDIT, 1000)) is Reaction.RENEW
    assert (session.producer_id, session.forgotten) == (2, 1)


def test_a_producer_id_in_use_is_replaced() -> None:
    session = ProducerSession(iter((1, 2)))
    session.begin(1000)
    assert session.on_welcome(Welcome(1, 7, CREDIT, 1000)) is Reaction.RENEW
    assert session.producer_id == 2


def test_only_what_was_never_sent_can_be_withdrawn() -> None:
    session = opened()
    [sent] = send(session, 1)
    waiting, foreign = PendingBlock(block()), PendingBlock(block())
    session.add(waiting)
    assert not session.withdraw(sent)
    assert not session.withdraw(foreign)
    assert session.withdraw(waiting)
    assert session.queue_bytes == 0


def test_fail_ends_all_and_gives_up_numbers_that_may_be_stored() -> None:
    session = opened()
    [sent] = send(session, 1)
    session.lost()
    waiting = PendingBlock(block())
    session.add(waiting)
    session.fail(Refused(E_TOPIC_FAILED, "broken"))
    assert sent.error is waiting.error is not None
    assert session.producer_id == 2
    assert not session.unanswered


def test_the_patient_wait_for_room_under_the_same_number() -> None:
    session = ProducerSession(iter(range(1, 100)), patient=True)
    pending_blocks = [PendingBlock(pack([b"%d" % number])) for number in range(3)]
    for pending in pending_blocks:
        session.add(pending)
    session.begin(1_000)
    assert session.on_word(Welcome(1, 0, 1 << 20, 1_000)) is Reaction.UP
    assert [session.take() for _ in range(3)] == pending_blocks
    for _ in range(3):
        assert session.on_word(Unstored(0, 0, E_TOPIC_FULL, "full")) is Reaction.LATER
        session.lost()
        session.begin(1_000)
        assert session.on_word(Welcome(1, 0, 1 << 20, 1_000)) is Reaction.UP
        assert session.take() is pending_blocks[0]
        assert session.take() is None, "one at a time asks whether there is room"
    assert [pending.sequence for pending in pending_blocks] == [0, 1, 2]
    assert session.on_word(Stored(((0, 40),))) is Reaction.NOTHING
    assert [session.take(), session.take()] == pending_blocks[1:], (
        "there is room again: all that the credit allows"
    )
    assert pending_blocks[0].done
    assert session.no_room is None
    hasty = ProducerSession(iter(range(1, 100)))
    hasty.add(pending := PendingBlock(pack([b"x"])))
    hasty.begin(1_000)
    hasty.on_word(Welcome(1, 0, 1 << 20, 1_000))
    assert hasty.take() is pending
    assert hasty.on_word(Unstored(0, 0, E_TOPIC_FULL, "full")) is Reaction.NOTHING
    assert pending.error is not None


def test_a_duplicate_has_the_offset_of_the_first_message() -> None:
    session = opened()
    pending = PendingBlock(pack([b"%d" % number for number in range(5)]))
    session.add(pending)
    session.take()
    session.on_word(Duplicates(0, 70, -1, -1, ((1, 8), (3, -1))))
    assert pending.done
    assert [pending.offset_of(index) for index in range(5)] == [70, 8, 71, -1, 72]
    assert pending.stored_count == 3


@pytest.mark.parametrize(("expected", "lost"), [(0, 1), (1, 0), (2, 0)])
def test_blocks_of_which_nothing_was_stored_are_not_missed(expected: int, lost: int) -> None:
    """They leave no trace in the topic. A topic that expects less has lost a stored block."""
    session = opened()
    send(session, 3)
    session.on_word(Stored(((0, 5),)))
    session.on_word(Duplicates(1, -1, -1, -1, ((0, 3),)))
    session.on_word(Duplicates(2, -1, -1, -1, ((0, 4),)))
    session.lost()
    session.begin(1000)
    producer_id = session.producer_id
    assert session.on_welcome(Welcome(1, expected, CREDIT, 1000)) is Reaction.RENEW
    assert session.producer_id != producer_id
    assert session.forgotten == lost


def test_a_stored_block_after_them_is_missed() -> None:
    session = opened()
    send(session, 2)
    session.on_word(Duplicates(0, -1, -1, -1, ((0, 3),)))
    session.on_word(Stored(((1, 5),)))
    session.lost()
    session.begin(1000)
    session.on_welcome(Welcome(1, 0, CREDIT, 1000))
    assert session.forgotten == 1
