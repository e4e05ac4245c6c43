"""Tests of the checks of a broker's messages before a client uses them: after a wrong message the
link is opened again, and no thread of the user's program ends.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from zsq.transport.block.block import pack
from zsq.transport.client.core.consumer_session import ConsumerSession
from zsq.transport.client.core.producer_session import PendingBlock, ProducerSession
from zsq.transport.errors import UsageError
from zsq.transport.wire.protocol import (
    HEARTBEAT_MS_MAX,
    HEARTBEAT_MS_MIN,
    Answer,
    Deliver,
    Stored,
    Subscribed,
    Welcome,
)
from zsq.transport.wire.rows import NUMBER_MAX, check_rows, heartbeat

WRONG: list[Any] = [
    (5,), (None,), ((1,),), ((1, 2, 3, 4),), (("a", "b"),), ((1.0, 2),), ((True, 2),), (((1,), 2),), ((NUMBER_MAX + 1, 2),), ((-2, 2),),
]  # fmt: skip


@pytest.mark.parametrize("rows", WRONG)
def test_rows_of_anything_else_are_refused(rows: Any) -> None:
    for width in (2, 3):
        with pytest.raises(UsageError, match="E_BAD_COMMAND"):
            check_rows(rows, width, "things")


def test_rows_of_numbers_raise_nothing() -> None:
    check_rows((), 2, "things")
    check_rows(((-1, 0), (NUMBER_MAX, 5)), 2, "things")


@pytest.mark.parametrize("rows", WRONG)
def test_an_invalid_message_to_a_producer_is_refused_and_has_no_effect(rows: Any) -> None:
    session = ProducerSession(itertools.count(1))
    session.begin(30_000)
    session.on_word(Welcome(1, 0, 1 << 20, 30_000))
    session.add(PendingBlock(pack([b"x"])))
    pending = session.take()
    with pytest.raises(UsageError):
        session.on_word(Stored(rows))
    assert pending is not None
    assert not pending.done


@pytest.mark.parametrize("rows", [*WRONG, ((1 << 62, 2, 1), (1 << 63, 1, 1))])
def test_an_invalid_message_to_a_consumer_is_refused_and_has_no_effect(rows: Any) -> None:
    session = ConsumerSession(10)
    sub = session.begin(30_000)
    session.on_word(Subscribed(sub.request, 1, 60_000, 30_000), [], 0)
    with pytest.raises(UsageError):
        session.on_word(Deliver(5, rows, 60_000), [pack([b"a", b"b", b"c"])], 0)
    with pytest.raises(UsageError):
        session.on_word(Answer(1, 5, rows), [], 0)
    assert not session.held


def test_a_heartbeat_is_within_its_bounds() -> None:
    assert [heartbeat(told) for told in (-1, 0, 1_500, 1 << 62)] == [
        HEARTBEAT_MS_MIN,
        HEARTBEAT_MS_MIN,
        1_500,
        HEARTBEAT_MS_MAX,
    ]
