"""Tests of the finish memory: a message that was finished is finished once more if it comes back
after a lost link, and the program does not see it again.
"""

from __future__ import annotations

from typing import Any

import pytest

from zsq.transport.block.block import Block, pack, with_place
from zsq.transport.client.core.confirm import Confirm
from zsq.transport.client.core.consumer_session import EVERY, ConsumerSession, LeasedBlock
from zsq.transport.client.core.finish_memory import FinishMemory
from zsq.transport.wire.protocol import Answer, Deliver, Fin, Subscribed


def block(first: int, count: int, time_ns: int = 7) -> Block:
    return with_place(pack([b"x"] * count), first, time_ns)


def opened(*, ordered: bool = False) -> ConsumerSession:
    session = ConsumerSession(100)
    session.remembers = True
    join(session, ordered=ordered)
    return session


def join(session: ConsumerSession, *, ordered: bool = False) -> None:
    sub = session.begin(1_000)
    session.on_word(Subscribed(sub.request, 1, 5_000, 2_000, ordered), [], 0)
    told(session)


def deliver(session: ConsumerSession, token: int, blocks: Block) -> LeasedBlock | None:
    run = (blocks.first_offset, blocks.count, 1)
    session.on_word(Deliver(token, (run,), 5_000), [blocks], 0)
    return session.arrived.pop() if session.arrived else None


def told(session: ConsumerSession) -> list[Any]:
    words = session.collect()
    found = list(words)
    words.clear()
    return found


def test_a_finish_that_was_not_confirmed_is_sent_again() -> None:
    session = opened()
    delivery = deliver(session, 1, block(0, 4))
    assert delivery is not None
    delivery.finish(1)
    delivery.finish(2)
    told(session)
    session.lost()
    join(session)
    again = deliver(session, 9, block(0, 4))
    assert again is not None
    assert told(session) == [Fin(0, 9, ((1, 2),))]
    assert again.answered == {1, 2}
    assert deliver(session, 10, block(0, 4)) is not None
    assert told(session) == [], "once"


def test_a_delivery_of_finished_messages_does_not_arrive() -> None:
    session = opened()
    delivery = deliver(session, 1, block(0, 4))
    assert delivery is not None
    delivery.finish(EVERY)
    told(session)
    session.lost()
    join(session)
    assert deliver(session, 9, block(0, 4)) is None
    assert told(session) == [Fin(0, 9, ())]
    assert session.unanswered == 0


def test_a_confirmed_finish_is_forgotten() -> None:
    session = opened()
    delivery = deliver(session, 1, block(0, 2))
    assert delivery is not None
    delivery.finish(EVERY)
    confirm = session.barrier()
    request = told(session)[-1].request
    session.on_word(Answer(request, 0, ()), [], 0)
    assert confirm.done
    session.lost()
    join(session)
    assert deliver(session, 9, block(0, 2)) is not None, "somebody has moved the channel back"


def test_a_finish_after_the_link_was_lost_is_for_the_next_delivery() -> None:
    session = opened()
    delivery = deliver(session, 1, block(0, 2))
    assert delivery is not None
    session.lost()
    join(session)
    again = deliver(session, 9, block(0, 2))
    assert again is not None
    delivery.finish(0)
    assert told(session) == [Fin(0, 9, ((0, 1),))]
    assert 0 in again.answered
    assert session.stale_count == 0


def test_in_an_ordered_channel_messages_follow_an_earlier_one_that_comes_again() -> None:
    session = opened(ordered=True)
    first, second = deliver(session, 1, block(0, 1)), deliver(session, 2, block(1, 1))
    assert first is not None
    assert second is not None
    first.finish(0)
    told(session)
    session.lost()
    join(session, ordered=True)
    assert deliver(session, 8, block(0, 1)) is not None, "its finish was sent, and may be lost"
    assert deliver(session, 9, block(1, 1)) is not None
    second.finish(0)
    assert told(session) == [Fin(0, 9, ())], "its handler worked when it came back"


def test_another_message_with_the_offset_is_handled() -> None:
    session = opened()
    delivery = deliver(session, 1, block(0, 2))
    assert delivery is not None
    delivery.finish(EVERY)
    told(session)
    session.lost()
    join(session)
    assert deliver(session, 9, block(0, 2, time_ns=8)) is not None
    assert told(session) == []


@pytest.mark.parametrize(
    ("memory", "kept"),
    [(FinishMemory(messages_max=3), 2), (FinishMemory(max_bytes=10), 0), (FinishMemory(), 10)],
)
def test_the_memory_is_bounded(memory: FinishMemory, kept: int) -> None:
    session = opened()
    deliveries = [deliver(session, number + 1, block(2 * number, 2)) for number in range(5)]
    for delivery in deliveries:
        assert delivery is not None
        memory.sent(delivery, range(2), Confirm())
    memory.lost(0)
    back = [memory.came_back(delivery, 1) for delivery in deliveries if delivery is not None]
    assert sum(map(len, back)) == kept


def test_a_finish_whose_failure_the_program_learned_is_not_repeated() -> None:
    """It may have undone its work, and waits for the message."""
    session = opened()
    delivery = deliver(session, 1, block(0, 2))
    assert delivery is not None
    confirm = session.finish_sync(delivery, [0])
    delivery.finish(1)
    told(session)
    session.lost()
    assert confirm.error is not None
    join(session)
    again = deliver(session, 9, block(0, 2))
    assert again is not None
    assert again.answered == {1}
    assert session.take_missed() == 1, "the other one is sent again, and will be confirmed"


def test_after_a_flush_that_failed_messages_come_again() -> None:
    session = opened()
    delivery = deliver(session, 1, block(0, 2))
    assert delivery is not None
    delivery.finish(EVERY)
    told(session)
    session.lost()
    assert session.take_missed() == 2
    join(session)
    again = deliver(session, 9, block(0, 2))
    assert again is not None
    assert again.answered == set()
