"""Tests of one NSQ consumer of a topic with parts, without a broker: which parts it reads, what it
keeps of their deliveries, and how the gateway learns of new parts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from zsq.actors.gateways.nsq.in_flight import LATE_NS
from zsq.actors.gateways.nsq.local_parts import LocalParts, parts_by_topic
from zsq.actors.gateways.nsq.subscription import Subscription
from zsq.actors.gateways.nsq.trunks import Trunks
from zsq.transport.block.block import pack, with_place
from zsq.transport.client.core.consumer_session import ALL, ConsumerSession
from zsq.transport.client.core.topic_legs import Leg
from zsq.transport.errors import E_NOT_FOUND, E_TIMEOUT, NotFound, ZsqError
from zsq.transport.nsq.wire import id_base, message_ids
from zsq.transport.wire.protocol import (
    EXPIRED,
    Answer,
    Deliver,
    Fin,
    Ready,
    Req,
    Spread,
    Subscribed,
    Touch,
    Wire,
)
from zsq.transport.wire.spread import HasParts

TIMEOUT_MS = 5_000


def spread(parts: int) -> Spread:
    return Spread(
        1, "t", "u", tuple((number, 0) for number in range(parts)), ((0, ("tcp://h:1",)),)
    )


class Consumer:
    """A consumer of a topic with parts, which channels accept. There are no channels behind it."""

    def __init__(self, folder: Path, parts: int, ready: int = 0) -> None:
        self.answers: list[str] = []
        self.lost: list[str] = []
        self.handed = 0
        self.refused: list[tuple[str, bytes]] = []
        self.trunks = Trunks("gateway")
        self.subscription = Subscription(
            self.trunks, f"ipc://{folder}", "t", "c", "me", 0, 900_000, 0, self._hand, self.answers.append,
            lambda verb, message_id: self.refused.append((verb, message_id)), self.lost.append,
            here=lambda spread: [number for number, _ in spread.parts],
        )  # fmt: skip
        self.engine = self.subscription.engine
        self.whole = self.engine.legs[0]
        self.whole.on_refused(HasParts(spread(parts)))
        for leg in self.engine.legs:
            self.open(leg)
        self.settle()
        self.subscription.set_ready(ready)

    def _hand(self, frames: bytes, count: int) -> None:
        self.handed += count

    def stop(self) -> None:
        self.subscription.stop()
        self.trunks.close()

    def open(self, leg: Leg) -> None:
        asked = leg.session.begin(1_000)
        assert asked.ready == 0, "a link begins without a credit"
        leg.session.on_word(Subscribed(asked.request, 1, TIMEOUT_MS, 2_000), [], 0)

    def session(self, part: int) -> ConsumerSession:
        return next(leg.session for leg in self.engine.legs if leg.session.part == part)

    def settle(self) -> None:
        self.subscription.settle()

    def sent(self, part: int) -> list[Wire]:
        """Return what was sent to a part since the last call."""
        words = self.session(part).collect()
        found = list(words)
        words.clear()
        return found

    def deliver(self, part: int, token: int, first: int, count: int) -> list[bytes]:
        """Deliver messages and return their ids."""
        block = with_place(pack([b"x"] * count), first, 0)
        message = Deliver(token, ((first, count, 1),), TIMEOUT_MS)
        self.session(part).on_word(message, [block], time.monotonic_ns())
        self.settle()
        start = id_base(part) + first
        return list(message_ids(range(start, start + count)))

    def confirm(self, part: int, word: Wire) -> None:
        """Answer the question that follows a lowered credit."""
        assert isinstance(word, Touch)
        self.session(part).on_word(Answer(word.request, 0, ((ALL, 0),)), [], 0)
        self.settle()


def consuming_with(
    folder: Path, work: Callable[[Consumer], None], parts: int = 2, ready: int = 0
) -> None:
    async def run() -> None:
        consumer = Consumer(folder, parts, ready)
        try:
            work(consumer)
        finally:
            consumer.stop()

    uvloop.run(run())


def test_messages_are_answered_to_their_part(tmp_path: Path) -> None:
    def work(consumer: Consumer) -> None:
        one = consumer.deliver(0, 7, 5, 2)
        two = consumer.deliver(1, 7, 5, 2)
        assert consumer.handed == consumer.subscription.in_flight == 4
        consumer.sent(0)
        consumer.sent(1)
        assert consumer.subscription.finish([two[0], one[1], b"0200000000000005"]) == [
            b"0200000000000005"
        ]
        assert consumer.subscription.requeue(two[1], 90)
        assert consumer.subscription.shares.in_flight == 1
        assert consumer.subscription.touch(one[0])
        assert consumer.sent(0) == [Touch(0, 7), Fin(0, 7, ((6, 1),))]
        assert consumer.sent(1) == [Fin(0, 7, ((5, 1),)), Req(0, 7, ((6, 1),), 90, "")]

    consuming_with(tmp_path, work, ready=4)


def test_a_whole_delivery_with_several_runs_is_answered_to_its_part(tmp_path: Path) -> None:
    def work(consumer: Consumer) -> None:
        block = with_place(pack([b"x"] * 3), 5, 0)
        message = Deliver(9, ((5, 2, 1), (9, 1, 2)), TIMEOUT_MS)
        consumer.session(1).on_word(message, [block], time.monotonic_ns())
        consumer.settle()
        ids = message_ids([id_base(1) + offset for offset in (5, 6, 9)])
        assert consumer.subscription.finish(list(ids[1:])) == []
        assert Fin(0, 9, ((6, 1), (9, 1))) in consumer.sent(1)

    consuming_with(tmp_path, work, ready=4)


def test_a_refusal_is_of_its_part(tmp_path: Path) -> None:
    """The channels of two parts may give the same tokens."""

    def work(consumer: Consumer) -> None:
        one, two = consumer.deliver(0, 7, 5, 2), consumer.deliver(1, 7, 5, 2)
        for message_id in (one[0], two[0]):
            assert consumer.subscription.touch(message_id)
        consumer.session(1).on_word(Answer(0, 7, ((ALL, 0),)), [], 0)
        assert consumer.refused == [("TOUCH", two[0])]
        assert consumer.subscription.finish([*one, *two]) == two
        consumer.session(0).collect()
        consumer.session(0).on_word(Answer(0, 7, ((6, 1),)), [], 0)
        assert consumer.refused[1:] == [("FIN", one[1])]
        consumer.session(0).on_word(Answer(0, 7, ((ALL, 0),)), [], 0)
        assert consumer.refused[2:] == [("FIN", one[0]), ("FIN", one[1])]

    consuming_with(tmp_path, work, ready=4)


def test_ready_is_divided_and_a_credit_moves_when_the_channel_has_confirmed(tmp_path: Path) -> None:
    def work(consumer: Consumer) -> None:
        assert consumer.sent(0) == consumer.sent(1) == [Ready(2)]
        ids = consumer.deliver(0, 7, 0, 2)
        lowered = consumer.sent(1)
        assert lowered[0] == Ready(1)
        assert consumer.sent(0) == []
        consumer.confirm(1, lowered[1])
        assert consumer.refused == [], "the question is no answer of the client"
        assert consumer.sent(0) == [Ready(3)]
        consumer.deliver(0, 8, 2, 1)
        assert consumer.subscription.in_flight == 3
        assert consumer.subscription.finish(ids) == []
        consumer.subscription.leave()
        assert consumer.sent(0)[0] == Ready(0)
        assert consumer.sent(1)[0] == Ready(0)

    consuming_with(tmp_path, work, ready=4)


def test_messages_that_wait_for_the_clients_socket_count(tmp_path: Path) -> None:
    def work(consumer: Consumer) -> None:
        consumer.subscription.pause(True)
        consumer.deliver(0, 7, 0, 1)
        assert consumer.handed == 0
        assert consumer.subscription.shares.used == 1
        assert consumer.sent(0) == [Ready(1)]
        consumer.subscription.pause(False)
        assert consumer.handed == 1

    consuming_with(tmp_path, work, ready=1)


def test_expired_messages_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = begun = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)

    def work(consumer: Consumer) -> None:
        nonlocal now
        consumer.deliver(0, 7, 0, 2)
        assert consumer.subscription.shares.used == 4
        now = begun + TIMEOUT_MS * 1_000_000 + LATE_NS
        consumer.subscription.sweep()
        assert consumer.subscription.in_flight == 0
        assert consumer.subscription.shares.in_flight == 0
        assert not consumer.session(0).held

    consuming_with(tmp_path, work, ready=4)


def test_a_message_whose_neighbour_was_touched_expires_at_its_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = begun = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)

    def work(consumer: Consumer) -> None:
        nonlocal now
        ids = consumer.deliver(1, 7, 5, 2)
        now = begun + TIMEOUT_MS * 500_000
        assert consumer.subscription.touch(ids[0])
        consumer.sent(1)
        now = begun + TIMEOUT_MS * 1_000_000
        consumer.subscription.sweep()
        assert consumer.sent(1) == [Req(0, 7, ((6, 1),), EXPIRED, "")]

    consuming_with(tmp_path, work, ready=4)


def test_turns_end_by_themselves(tmp_path: Path) -> None:
    """Nothing else happens while all parts are empty."""

    async def run() -> None:
        consumer = Consumer(tmp_path, 2, 1)
        consumer.subscription._turner._found = lambda: None  # the links cannot reach anything
        moved = asyncio.Event()
        session = cast("Any", consumer.session(0))
        lower = session.lower_ready

        def lowered(ready: int) -> object:
            moved.set()
            return lower(ready)

        session.lower_ready = lowered
        await asyncio.wait_for(moved.wait(), 10)
        consumer.stop()

    uvloop.run(run())


def test_a_lost_part_takes_only_its_own_messages_along(tmp_path: Path) -> None:
    def work(consumer: Consumer) -> None:
        one, two = consumer.deliver(0, 7, 0, 2), consumer.deliver(1, 7, 0, 2)
        leg = consumer.engine.legs[1]
        leg.on_lost()
        assert consumer.subscription.finish([*one, *two]) == two
        assert Ready(4) in consumer.sent(0), "the other part gets all of RDY"
        consumer.open(leg)
        consumer.settle()
        lowered = consumer.sent(0)
        assert lowered[0] == Ready(3)
        consumer.confirm(0, lowered[1])
        assert consumer.sent(1) == [Ready(1)]

    consuming_with(tmp_path, work, ready=4)


def test_a_new_part_is_read_with_its_share(tmp_path: Path) -> None:
    def work(consumer: Consumer) -> None:
        assert consumer.subscription.parts == frozenset({0, 1})
        consumer.sent(0)
        consumer.sent(1)
        consumer.whole.on_refused(HasParts(spread(3)))
        consumer.open(consumer.engine.legs[2])
        consumer.settle()
        assert consumer.subscription.parts == frozenset({0, 1, 2})
        assert consumer.sent(0) == []
        lowered = consumer.sent(1)
        assert lowered[0] == Ready(1)
        assert consumer.sent(2) == []
        consumer.confirm(1, lowered[1])
        assert consumer.sent(2) == [Ready(1)]

    consuming_with(tmp_path, work, ready=4)


def test_a_consumer_without_parts_is_accepted(tmp_path: Path) -> None:
    def work(consumer: Consumer) -> None:
        assert consumer.answers == [""]
        assert consumer.subscription.parts == frozenset()

    consuming_with(tmp_path, work, parts=0, ready=4)


@pytest.mark.parametrize(("opened", "answer"), [(1, ""), (0, E_TIMEOUT)])
def test_a_part_that_does_not_start_does_not_keep_the_others_from_the_client(
    tmp_path: Path, opened: int, answer: str
) -> None:
    async def run() -> None:
        answers: list[str] = []
        trunks = Trunks("gateway")
        subscription = Subscription(
            trunks, f"ipc://{tmp_path}", "t", "c", "me", 0, 900_000, 0, lambda *_: None, answers.append,
            lambda *_: None, lambda why: None, here=lambda spread: [0, 1],
        )  # fmt: skip
        subscription.engine.legs[0].on_refused(HasParts(spread(2)))
        for leg in subscription.engine.legs[:opened]:
            leg.link.state = cast("Any", type(leg.link.state).UP)
        subscription.settle()
        assert answers == []
        subscription.on_late()
        assert [one.partition(" ")[0] for one in answers] == [answer]
        for leg in subscription.engine.legs:
            leg.link.state = cast("Any", type(leg.link.state).IDLE)
        subscription.stop()
        trunks.close()

    uvloop.run(run())


def test_a_deleted_topic_ends_the_subscription(tmp_path: Path) -> None:
    def work(consumer: Consumer) -> None:
        ids = consumer.deliver(0, 7, 0, 2)
        consumer.whole.on_refused(NotFound(E_NOT_FOUND, "no such topic"))
        consumer.settle()
        assert consumer.lost == ["E_NOT_FOUND no such topic"]
        assert consumer.subscription.finish(ids) == ids

    consuming_with(tmp_path, work, ready=4)


# The gateway


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], {}),
        (["t", "u#ephemeral"], {}),
        (["t#0", "t#12", "u#3", "t#999"], {"t": {0, 12}, "u": {3}}),
    ],
)
def test_the_parts_among_names(names: list[str], found: dict[str, set[int]]) -> None:
    assert parts_by_topic(names) == found


class Broker:
    """A broker with the number 4."""

    def __init__(self) -> None:
        self.fails = 0
        self.asked = 0
        self.names: list[str] = []
        self.number: int | None = 4
        self.listed = asyncio.Event()

    async def cluster(self) -> Any:
        self.asked += 1
        if self.fails:
            self.fails -= 1
            raise ZsqError(E_TIMEOUT, "no answer")
        return {"brokers": [{"number": one, "me": one == self.number} for one in (3, 4)]}

    async def topics(self) -> dict[str, Collection[str]]:
        self.asked += 1
        self.listed.set()
        if self.fails:
            self.fails -= 1
            raise ZsqError(E_TIMEOUT, "no answer")
        return dict.fromkeys(self.names, ())


class Reader:
    def __init__(self, topic: str, parts: Collection[int] | None) -> None:
        self.topic = topic
        self.parts = None if parts is None else frozenset(parts)
        self.looked = asyncio.Event()

    def look_for_parts(self) -> None:
        self.looked.set()


def gateway_with(
    broker: Broker, readers: list[Reader], work: Callable[[LocalParts], Awaitable[None]]
) -> None:
    async def run() -> None:
        parts = LocalParts(cast("Any", broker), lambda: cast("Any", readers), pause_s=0.0)
        try:
            await work(parts)
        finally:
            await parts.close()

    uvloop.run(run())


PLACES = Spread(1, "t", "u", ((0, 3), (1, 4), (2, 4)), ())


def test_the_parts_here_are_those_of_this_brokers_number() -> None:
    broker = Broker()
    broker.fails = 1

    async def work(parts: LocalParts) -> None:
        assert parts.of(PLACES) is None
        for _ in range(2):
            assert parts._asking is not None
            await parts._asking
            if broker.asked == 1:
                assert parts.of(PLACES) is None, "it failed, so it is asked again"
        assert parts.of(PLACES) == [1, 2]
        assert broker.asked == 2, "the number never changes"

    gateway_with(broker, [], work)


def test_a_broker_without_a_number_is_asked_again() -> None:
    broker = Broker()
    broker.number = None

    async def work(parts: LocalParts) -> None:
        parts.of(PLACES)
        assert parts._asking is not None
        await parts._asking
        assert parts.of(PLACES) is None

    gateway_with(broker, [], work)


def test_only_consumers_whose_parts_have_changed_ask() -> None:
    async def work(parts: LocalParts) -> None:
        same, more, fewer, plain = (
            Reader("t", {0}),
            Reader("u", {0}),
            Reader("v", {0}),
            Reader("t", None),
        )
        readers.extend([same, more, fewer, plain])
        parts.look()
        await asyncio.wait_for(more.looked.wait(), 10)
        await asyncio.wait_for(fewer.looked.wait(), 10)
        assert not same.looked.is_set()
        assert not plain.looked.is_set()

    readers: list[Reader] = []
    broker = Broker()
    broker.names = ["t#0", "u#0", "u#1"]
    broker.fails = 0
    gateway_with(broker, readers, work)


def test_a_change_during_a_look_is_looked_at_too() -> None:
    async def work(parts: LocalParts) -> None:
        parts.look()
        await asyncio.wait_for(broker.listed.wait(), 10)
        broker.names.append("t#1")
        parts.look()
        await asyncio.wait_for(reader.looked.wait(), 10)

    broker = Broker()
    broker.names = ["t#0"]
    broker.fails = 1
    reader = Reader("t", {0})
    gateway_with(broker, [reader], work)


def test_a_broker_that_does_not_answer_ends_no_look() -> None:
    async def work(parts: LocalParts) -> None:
        parts.look()
        assert parts._looking is not None
        await parts._looking

    broker = Broker()
    broker.fails = 1
    gateway_with(broker, [Reader("t", {0})], work)


def test_without_consumers_of_parts_the_broker_is_not_asked() -> None:
    async def work(parts: LocalParts) -> None:
        parts.look()
        assert parts._looking is not None
        await parts._looking
        assert broker.asked == 0

    broker = Broker()
    gateway_with(broker, [Reader("t", None)], work)
