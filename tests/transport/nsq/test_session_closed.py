"""Tests of a producer's session when its topic is closed: all waiting blocks fail at once, except
those that may be stored already.
"""

from __future__ import annotations

from zsq.transport.block.block import pack
from zsq.transport.client.core.producer_session import PendingBlock, ProducerSession, ProducerState
from zsq.transport.client.link.reaction import Reaction
from zsq.transport.errors import E_CLOSED, E_DISK_FULL, E_SEQUENCE
from zsq.transport.wire.protocol import Stored, Unstored, Welcome


def opened(sent: int, waiting: int) -> tuple[ProducerSession, list[PendingBlock]]:
    """Return a session with `sent` unanswered blocks, and with `waiting` blocks that wait for
    credit.
    """
    session = ProducerSession(iter(range(1, 1000)))
    session.begin(1000)
    pending_blocks = [PendingBlock(pack([b"x"])) for _ in range(sent + waiting)]
    session.on_welcome(Welcome(1, 0, sent * pending_blocks[0].length, 1000))
    for pending in pending_blocks:
        session.add(pending)
    while session.take() is not None:
        pass
    assert (len(session.window), len(session.queue)) == (sent, waiting)
    return session, pending_blocks


def codes(pending_blocks: list[PendingBlock]) -> list[str | None]:
    return [pending.error.code if pending.error is not None else None for pending in pending_blocks]


def test_all_waiting_blocks_fail_with_the_first_refused_one() -> None:
    session, pending_blocks = opened(1, 3)
    assert session.on_word(Unstored(0, 0, E_CLOSED, "closed")) is Reaction.NOTHING
    assert codes(pending_blocks) == [E_CLOSED] * 4
    assert session.refused == pending_blocks
    assert not session.unanswered
    assert (session.queue_bytes, session.window_bytes) == (0, 0)


def test_blocks_sent_after_the_refused_one_fail_and_the_link_restarts() -> None:
    session, pending_blocks = opened(3, 2)
    assert session.on_word(Unstored(0, 0, E_CLOSED, "closed")) is Reaction.RENEW
    assert codes(pending_blocks) == [E_CLOSED] * 5
    assert session.state is ProducerState.DOWN
    assert not session.unanswered


def test_blocks_sent_before_the_refused_one_are_still_awaited() -> None:
    session, pending_blocks = opened(3, 2)
    assert session.on_word(Unstored(1, 1, E_CLOSED, "closed")) is Reaction.NOTHING
    assert codes(pending_blocks) == [None, E_CLOSED, E_CLOSED, E_CLOSED, E_CLOSED]
    assert not pending_blocks[0].done
    assert session.on_word(Unstored(2, 1, E_SEQUENCE, "")) is Reaction.NOTHING, (
        "an answer to what was given up already"
    )
    assert session.on_word(Stored(((0, 42),))) is Reaction.RENEW
    assert pending_blocks[0].first_offset == 42


def test_over_a_lost_link_what_may_be_stored_is_asked_for_again() -> None:
    session, pending_blocks = opened(2, 1)
    session.on_word(Unstored(1, 1, E_CLOSED, "closed"))
    session.lost()
    session.begin(1000)
    session.on_welcome(Welcome(2, 1, 1 << 20, 1000))
    assert session.take() is pending_blocks[0]
    assert session.take() is None
    session.on_word(Stored(((0, 7),)))
    assert pending_blocks[0].first_offset == 7


def test_other_refusals_leave_what_waits() -> None:
    session, pending_blocks = opened(1, 3)
    session.on_word(Unstored(0, 0, E_DISK_FULL, "full"))
    assert codes(pending_blocks) == [E_DISK_FULL, None, None, None]
    assert len(session.queue) == 3
