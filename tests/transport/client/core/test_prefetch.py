"""Tests of the prefetch and the window: what was taken is known, what is given back was not taken,
and a consumer asks for what its handlers need for a second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from zsq.transport.block.block import pack, with_place
from zsq.transport.client.blocking.client import Batch
from zsq.transport.client.core.consumer_session import ConsumerSession, LeasedBlock
from zsq.transport.client.core.prefetch import READY_MOST, Prefetch, Window
from zsq.transport.wire.protocol import Deliver, Subscribed

LEASE_S = 60.0


class Consumer:
    """A session whose deliveries go to a prefetch."""

    def __init__(self, prefetch: Prefetch) -> None:
        self.prefetch = prefetch
        self.session = ConsumerSession(10_000)
        sub = self.session.begin(1_000)
        self.session.on_word(Subscribed(sub.request, 1, 60_000, 2_000), [], 0)
        self._token = 0

    def fill(self, count: int) -> LeasedBlock:
        self._token += 1
        block = with_place(pack([b"x"] * count), 100 * self._token, 0)
        self.session.on_word(
            Deliver(self._token, ((100 * self._token, count, 1),), 60_000), [block], 0
        )
        delivery = self.session.arrived.pop()
        owner: Any = SimpleNamespace()
        self.prefetch.fill(delivery, Batch(owner, delivery).messages())
        return delivery


def test_what_was_taken_follows_from_what_waits() -> None:
    prefetch = Prefetch()
    consumer = Consumer(prefetch)
    first, second = consumer.fill(3), consumer.fill(4)
    for expected in ((1, 0), (2, 0), (3, 0), (3, 1)):
        prefetch.messages.popleft()
        prefetch.note_taken()
        assert (first.taken, second.taken) == expected


def test_the_last_messages_are_given_back_and_do_not_count_as_taken() -> None:
    prefetch = Prefetch()
    consumer, other = Consumer(prefetch), Consumer(prefetch)
    first, second, third = consumer.fill(3), other.fill(2), consumer.fill(2)
    prefetch.messages.popleft()
    assert prefetch.give_back(consumer.session, 3) == [(third, [1, 0]), (first, [2])]
    prefetch.note_taken()
    assert (first.taken, second.taken, third.taken) == (1, 0, 0)
    assert [message._batch.delivery for message in prefetch.messages] == [first, second, second]
    assert prefetch.give_back(consumer.session, 9) == [(first, [1])]


class Counted(deque[Any]):
    """Messages during whose count another thread runs."""

    meanwhile: Callable[[], object] | None = None

    def __len__(self) -> int:
        count = super().__len__()
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return count


def test_a_delivery_that_comes_during_the_count_is_not_taken() -> None:
    messages = Counted()
    prefetch = Prefetch(messages)
    consumer = Consumer(prefetch)
    filled: list[LeasedBlock] = []
    messages.meanwhile = lambda: filled.append(consumer.fill(3))
    prefetch.note_taken()
    assert [delivery.taken for delivery in filled] == [0]
    prefetch.messages.popleft()
    prefetch.note_taken()
    assert [delivery.taken for delivery in filled] == [1]


def test_a_consumer_that_asked_for_nothing_holds_nothing() -> None:
    window = Window(None)
    assert window.credit(0, LEASE_S) == 0
    window.open(4)
    assert window.credit(0, LEASE_S) == 4, "one for each handler, until they are measured"


@pytest.mark.parametrize(
    ("width", "message_s", "expected"),
    [(1, 30.0, 1), (1, 1.0, 2), (1, 0.1, 11), (8, 1.0, 16), (8, 0.5, 24), (1, 1e-6, READY_MOST)],
)
def test_the_window_is_what_the_handlers_need_for_a_second(
    width: int, message_s: float, expected: int
) -> None:
    window = Window(None)
    window.open(width)
    window.handled(message_s)
    assert window.credit(0, LEASE_S) == expected


def test_a_handler_that_slows_down_makes_the_window_small_at_once() -> None:
    window = Window(None)
    window.open(1)
    window.handled(0.001, 1_000)
    assert window.credit(0, LEASE_S) == READY_MOST
    window.handled(2.0)
    assert window.credit(0, LEASE_S) == 1
    for _ in range(60):
        window.handled(0.000_01)
    assert window.credit(0, LEASE_S) == READY_MOST


def test_no_message_waits_longer_than_a_tenth_of_a_short_lease() -> None:
    window = Window(None)
    window.open(1)
    window.handled(0.05)
    assert (window.credit(0, LEASE_S), window.credit(0, 1.0)) == (21, 3)


def test_messages_in_hand_take_nothing_away_from_the_window() -> None:
    window = Window(None)
    window.open(1)
    window.handled(0.25)
    assert [window.credit(in_hand, LEASE_S) for in_hand in (0, 1, 10, 9_000)] == [
        5,
        5,
        14,
        READY_MOST,
    ]


def test_a_fixed_window_stays_and_batches_need_the_largest() -> None:
    window = Window(7)
    window.open(1)
    window.handled(30.0)
    assert window.credit(3, LEASE_S) == 7
    window = Window(None)
    window.open_for_batches()
    window.handled(30.0)
    assert window.credit(0, LEASE_S) == READY_MOST


def test_a_channel_may_ask_for_a_smaller_window() -> None:
    window = Window(None)
    window.open(1)
    window.handled(0.01)
    assert [window.credit(0, LEASE_S), window.credit(0, LEASE_S, 0.05)] == [101, 6]
