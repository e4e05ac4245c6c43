"""Tests of one NSQ consumer's subscription, with deliveries that the test makes: what it keeps of
them, and for how long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from zsq.actors.gateways.nsq.in_flight import LATE_NS, REQUEUED_MAX
from zsq.actors.gateways.nsq.reporting_session import ANSWERED_MAX
from zsq.actors.gateways.nsq.subscription import (
    SUBSCRIPTION_TABLE,
    Subscription,
    SubscriptionEvent,
    SubscriptionState,
)
from zsq.actors.gateways.nsq.trunks import Trunks
from zsq.transport.block.block import pack, with_place
from zsq.transport.client.core.consumer_session import ALL
from zsq.transport.nsq.wire import message_ids
from zsq.transport.wire.protocol import EXPIRED, Answer, Deliver, Fin, Subscribed

MS = 1_000_000
TIMEOUT_MS = 5_000


class Consumer:
    """A consumer that a channel has accepted. There is no channel behind it."""

    def __init__(self, folder: Path) -> None:
        self.handed = 0
        self.refused: list[tuple[str, bytes]] = []
        self.trunks = Trunks("gateway")
        self.subscription = Subscription(
            self.trunks, f"ipc://{folder}", "t", "c", "me", 0, 900_000, 0, self._hand, lambda why: None,
            lambda verb, message_id: self.refused.append((verb, message_id)), lambda why: None,
        )  # fmt: skip
        self.session = self.subscription.session
        asked = self.session.begin(1_000)
        self.session.on_word(Subscribed(asked.request, 1, TIMEOUT_MS, 2_000), [], 0)

    def _hand(self, frames: bytes, count: int) -> None:
        self.handed += count

    def deliver(self, token: int, first: int, count: int, now_ns: int) -> list[bytes]:
        """Deliver messages and return their ids."""
        block = with_place(pack([b"x"] * count), first, 0)
        self.session.on_word(Deliver(token, ((first, count, 1),), TIMEOUT_MS), [block], now_ns)
        self.subscription.settle()
        return list(message_ids(range(first, first + count)))

    def sweep(self) -> None:
        """Do what the timer does."""
        self.subscription.sweep()


def consuming_with(folder: Path, work: Callable[[Consumer], None]) -> None:
    async def run() -> None:
        consumer = Consumer(folder)
        try:
            work(consumer)
        finally:
            consumer.subscription.stop()
            consumer.trunks.close()

    uvloop.run(run())


def test_messages_whose_lease_ended_are_no_longer_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a lease ends, the channel gives the message to another consumer. The subscription waits
    a moment longer, so that the channel's own report can come first. A client that never answers
    must not use up memory.
    """
    now = begun = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)

    def work(consumer: Consumer) -> None:
        nonlocal now
        ids = consumer.deliver(7, 0, 3, now)
        now = begun + TIMEOUT_MS * MS + LATE_NS - 1
        consumer.sweep()
        assert consumer.subscription.in_flight == 3
        assert consumer.subscription.finish(ids[:1]) == [], "it came in time, for all we know"
        now += 1
        consumer.sweep()
        assert consumer.subscription.in_flight == 0
        assert consumer.subscription.finish(ids[1:]) == ids[1:], (
            "the client is told that they are not in flight"
        )
        assert not consumer.session.held

    consuming_with(tmp_path, work)


def test_messages_expire_by_themselves(tmp_path: Path) -> None:
    """The time begins with the first message in flight."""

    async def run() -> None:
        consumer = Consumer(tmp_path)
        expired: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        session = cast("Any", consumer.session)
        session.requeue = lambda delivery, indexes, delay_ms: expired.set_result(delay_ms)
        block = with_place(pack([b"x", b"y"]), 0, 0)
        consumer.session.on_word(Deliver(7, ((0, 2, 1),), 1_000), [block], time.monotonic_ns())
        consumer.subscription.settle()
        assert consumer.subscription.touch(message_ids([0])[0]), "so that the other one is returned"
        assert await asyncio.wait_for(expired, 10) == EXPIRED
        consumer.subscription.stop()
        consumer.trunks.close()

    uvloop.run(run())


def test_finishes_are_not_confirmed_to_nsq_clients(tmp_path: Path) -> None:
    """NSQ has no such answer, and each confirmation would cost a commit."""

    def work(consumer: Consumer) -> None:
        ids = consumer.deliver(7, 0, 2, time.monotonic_ns())
        assert consumer.subscription.finish(ids) == []
        assert list(consumer.session.collect()) == [Fin(0, 7, ())]
        assert consumer.session.unconfirmed == 0

    consuming_with(tmp_path, work)


def test_the_number_of_remembered_answers_is_bounded(tmp_path: Path) -> None:
    """The answers are kept to know what a later refusal is about. A client that returns all
    messages again and again must not fill the memory with them.
    """

    def work(consumer: Consumer) -> None:
        half = REQUEUED_MAX // 2 + 1
        ids = consumer.deliver(7, 0, half, time.monotonic_ns())
        ids += consumer.deliver(8, half, half, time.monotonic_ns())
        assert all(consumer.subscription.requeue(message_id, 0) for message_id in ids)
        consumer.session.on_word(Answer(0, 7, ((0, len(ids)),)), [], 0)
        verbs = ["FIN"] * 2 + ["REQ"] * REQUEUED_MAX
        assert consumer.refused == list(zip(verbs, ids, strict=True))

    consuming_with(tmp_path, work)


def test_the_number_of_deliveries_remembered_as_answered_is_bounded(tmp_path: Path) -> None:
    def work(consumer: Consumer) -> None:
        tokens = range(7, 8 + ANSWERED_MAX)
        for token in tokens:
            ids = consumer.deliver(token, 10 * token, 2, time.monotonic_ns())
            assert consumer.subscription.finish(ids) == []
            consumer.session.collect()
        assert list(consumer.session.answered) == list(tokens[1:])

    consuming_with(tmp_path, work)


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([SubscriptionEvent.LEAVE], SubscriptionState.OPENING),
        ([SubscriptionEvent.ACCEPTED, SubscriptionEvent.ACCEPTED], SubscriptionState.OPEN),
        ([SubscriptionEvent.ACCEPTED, SubscriptionEvent.LEAVE], SubscriptionState.LEFT),
        ([SubscriptionEvent.FAILED, SubscriptionEvent.ACCEPTED], SubscriptionState.OVER),
        ([SubscriptionEvent.LOST, SubscriptionEvent.FAILED], SubscriptionState.STOPPED),
    ],
)
def test_the_states_of_a_subscription(
    events: list[SubscriptionEvent], state: SubscriptionState
) -> None:
    now = SubscriptionState.OPENING
    for event in events:
        step = SUBSCRIPTION_TABLE[now].get(event)
        now = step.after if step is not None else now
    assert now is state


def test_every_state_of_a_subscription_can_be_stopped_once() -> None:
    for state, steps in SUBSCRIPTION_TABLE.items():
        ends = {
            steps[event].after
            for event in (SubscriptionEvent.STOP, SubscriptionEvent.LOST)
            if event in steps
        }
        assert ends == (
            set() if state is SubscriptionState.STOPPED else {SubscriptionState.STOPPED}
        )
    assert set(SUBSCRIPTION_TABLE) == set(SubscriptionState)


def test_a_refused_delivery_is_the_one_whose_token_it_names(tmp_path: Path) -> None:
    def work(consumer: Consumer) -> None:
        first, second = (
            consumer.deliver(token, 10 * token, 2, time.monotonic_ns()) for token in (7, 8)
        )
        for one in (first[0], second[0]):
            assert consumer.subscription.touch(one)
        consumer.session.on_word(Answer(0, 8, ((ALL, 0),)), [], 0)
        assert consumer.refused == [("TOUCH", second[0])]
        assert consumer.subscription.finish([*first, *second]) == second, (
            "only the messages of the other one are still in flight"
        )

    consuming_with(tmp_path, work)
