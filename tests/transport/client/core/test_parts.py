"""Tests of clients of a topic with parts, without a broker: where blocks go, and what is asked."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zsq.transport.block.block import pack
from zsq.transport.client.blocking.producer import Receipt
from zsq.transport.client.core import administration
from zsq.transport.client.core.asking import PartAnswers, Question, combined, for_parts
from zsq.transport.client.core.consumer_session import ConsumerSession, ConsumerState
from zsq.transport.client.core.lane import Lane
from zsq.transport.client.core.pieces import rows_of
from zsq.transport.client.core.producer_engine import ProducerEngine, flat
from zsq.transport.client.core.producer_session import PendingBlock
from zsq.transport.client.core.redrive import Origin
from zsq.transport.client.core.subscription import ConsumerEngine
from zsq.transport.client.core.topic_legs import SOON_NS
from zsq.transport.errors import (
    E_CLOSED,
    E_FORBIDDEN,
    E_LIMIT,
    E_NOT_FOUND,
    E_TIMEOUT,
    BrokerUnreachable,
    NotFound,
    Refused,
    UsageError,
    ZsqError,
)
from zsq.transport.names import channel_missing, part_name
from zsq.transport.wire.addresses import parse_all
from zsq.transport.wire.protocol import Done, Fetch, Manage, Spread, Stats, Wire
from zsq.transport.wire.spread import PARTS_ASKED_NS, HasParts, KeyParts

A, B = "tcp://127.0.0.1:1", "tcp://127.0.0.1:2"


def part_in(key: bytes, count: int) -> int:
    return KeyParts(count).of(key)


def spread(count: int) -> Spread:
    return Spread(1, "t", "u", tuple((i, i % 2) for i in range(count)), ((0, (A,)), (1, (B,))))


@pytest.fixture
def engine() -> Iterator[ProducerEngine]:
    made = ProducerEngine(parse_all(A, transport="tcp"), 10**15, 1 << 20, 1000, None)
    yield made
    made.stop()
    made.events.close()


def spread_out(engine: ProducerEngine, count: int) -> Lane:
    lane = engine.lane("t")
    lane.on_refused(HasParts(spread(count)))
    return lane


def queued(engine: ProducerEngine) -> dict[str, list[PendingBlock]]:
    found = {name: list(lane.session.queue) for name, lane in engine.lanes.items()}
    return {name: blocks for name, blocks in found.items() if blocks}


def keys_in(blocks: list[PendingBlock]) -> list[bytes | None]:
    found: list[bytes | None] = []
    for pending in blocks:
        assert pending.block is not None
        column = pending.block.key
        count = pending.block.count
        found += [None] * count if column is None else [column.value(i) for i in range(count)]
    return found


class Owner:
    """A producer that never waits."""


# Producers


def test_blocks_that_wait_go_to_the_parts_of_their_keys(engine: ProducerEngine) -> None:
    keys = [b"k%d" % number for number in range(40)]
    lane = engine.lane("t")
    pending = PendingBlock(pack([b"x"] * 40, keys=keys))
    lane.push(pending, 1)
    spread_out(engine, 4)
    there = queued(engine)
    assert set(there) == {part_name("t", part_in(key, 4)) for key in keys}
    for name, blocks in there.items():
        assert keys_in(blocks) == [key for key in keys if part_name("t", part_in(key, 4)) == name]
    receipt = Receipt(Owner(), (pending,), 0, 40)
    assert not receipt.done
    for offset, piece in enumerate(flat([pending])):
        assert not pending.done
        piece.settle(offset * 100)
    assert receipt.done
    assert receipt.offset == -1
    assert sum(count for _, _, count in receipt.places) == 40
    assert {part for part, _, _ in receipt.places} == {part_in(key, 4) for key in keys}


def test_a_block_with_one_key_stays_whole_and_has_its_part(engine: ProducerEngine) -> None:
    lane = spread_out(engine, 4)
    pending = PendingBlock(pack([b"x", b"y"], keys=[b"a", b"a"]))
    lane.push(pending, 1)
    part = part_in(b"a", 4)
    assert queued(engine) == {part_name("t", part): [pending]}
    pending.settle(7)
    receipt = Receipt(Owner(), (pending,), 1, 1)
    assert (receipt.part, receipt.offset) == (part, 8)


def test_blocks_without_keys_take_turns(engine: ProducerEngine) -> None:
    lane = spread_out(engine, 3)
    for _ in range(6):
        lane.push(PendingBlock(pack([b"x"])), 1)
    assert [len(blocks) for blocks in queued(engine).values()] == [2, 2, 2]


def test_programs_that_publish_once_do_not_all_use_the_same_part() -> None:
    used: set[str] = set()
    for _ in range(60):
        engine = ProducerEngine(parse_all(A, transport="tcp"), 10**15, 1 << 20, 1000, None)
        spread_out(engine, 3).push(PendingBlock(pack([b"x"])), 1)
        used |= queued(engine).keys()
        engine.stop()
        engine.events.close()
    assert used == {"t#0", "t#1", "t#2"}


def test_blocks_without_keys_leave_out_a_part_whose_broker_is_gone(engine: ProducerEngine) -> None:
    """A topic with parts must take messages while one of its brokers is down."""
    lane = spread_out(engine, 3)
    gone = engine.lanes["t#1"].link
    gone.start(1)
    gone.restart(1, "the connection was lost")
    assert gone.waiting
    for _ in range(6):
        lane.push(PendingBlock(pack([b"x"])), 1)
    assert {name: len(blocks) for name, blocks in queued(engine).items()} == {"t#0": 3, "t#2": 3}


def test_the_first_error_of_a_piece_is_that_of_the_block(engine: ProducerEngine) -> None:
    lane = spread_out(engine, 2)
    keys = [b"k%d" % number for number in range(20)]
    pending = PendingBlock(pack([b"x"] * 20, keys=keys))
    lane.push(pending, 1)
    first, second = pending.pieces
    second.settle(-1, Refused(E_LIMIT, "full"))
    assert not pending.done
    first.settle(5)
    assert pending.done
    assert isinstance(pending.error, Refused)


def test_a_publish_that_is_given_up_withdraws_its_pieces(engine: ProducerEngine) -> None:
    lane = spread_out(engine, 2)
    pending = PendingBlock(pack([b"x"] * 9, keys=[b"k%d" % number for number in range(9)]))
    lane.push(pending, 1)
    told: list[bool] = []

    def error(sent: bool) -> ZsqError:
        told.append(sent)
        return Refused(E_LIMIT, "late")

    engine.give_up((pending,), error)
    assert told == [False]
    assert queued(engine) == {}
    assert pending.done


def test_lingering_messages_go_to_the_part_of_their_key(engine: ProducerEngine) -> None:
    spread_out(engine, 4)
    pending, index = engine.linger("t", b"x", (b"a", None, None))
    again, second = engine.linger("t", b"y", (b"a", None, None))
    assert (pending is again, index, second) == (True, 0, 1)
    engine.seal_all(1)
    assert queued(engine) == {part_name("t", part_in(b"a", 4)): [pending]}


def test_lingering_messages_without_keys_fill_one_block(engine: ProducerEngine) -> None:
    spread_out(engine, 4)
    blocks = {id(engine.linger("t", b"x", None)[0]) for _ in range(10)}
    assert len(blocks) == 1, "they would be many small blocks otherwise"
    engine.seal_all(1)
    assert len({id(engine.linger("t", b"x", None)[0]) for _ in range(10)} | blocks) == 2


def test_blocks_that_were_sent_to_the_topic_before_it_had_parts_fail(
    engine: ProducerEngine,
) -> None:
    """They may be stored in a topic of this name that had no parts, so they are not sent again."""
    lane = engine.lane("t")
    sent, unsent = PendingBlock(pack([b"x"])), PendingBlock(pack([b"y"]))
    lane.push(sent, 1)
    sent.sends = 1
    lane.push(unsent, 1)
    spread_out(engine, 2)
    assert isinstance(sent.error, HasParts)
    assert not unsent.done
    assert list(queued(engine).values()) == [[unsent]]


def test_a_deleted_topic_is_asked_for_again(engine: ProducerEngine) -> None:
    lane = spread_out(engine, 2)
    pending = PendingBlock(pack([b"x"], keys=[b"a"]))
    lane.push(pending, 1)
    part = engine.lanes[part_name("t", part_in(b"a", 2))]
    part.on_refused(NotFound(E_NOT_FOUND, "deleted"))
    assert isinstance(pending.error, NotFound)
    assert lane.parts is None


def test_new_parts_are_used_after_they_are_known(
    engine: ProducerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = spread_out(engine, 1)
    starts: list[int] = []
    monkeypatch.setattr(lane.link, "start", starts.append)
    assert lane.parts is not None
    lane.push(PendingBlock(pack([b"x"])), 4)
    assert starts == [], "the parts are known"
    lane.parts.ask_soon()
    lane.push(PendingBlock(pack([b"x"])), 5)
    lane.push(PendingBlock(pack([b"x"])), 5 + PARTS_ASKED_NS - 1)
    assert starts == [5], "once a minute"
    lane.push(PendingBlock(pack([b"x"])), 5 + PARTS_ASKED_NS)
    assert starts == [5, 5 + PARTS_ASKED_NS]
    spread_out(engine, 8)
    for _ in range(8):
        lane.push(PendingBlock(pack([b"x"])), 6)
    assert len(queued(engine)) == 8


def run_to_end(steps: Any) -> Any:
    with pytest.raises(StopIteration) as ended:
        next(steps)
    return ended.value.value


def test_messages_are_sorted_by_part_before_they_are_packed(engine: ProducerEngine) -> None:
    spread_out(engine, 4)
    keys = [b"k%d" % (number % 10) for number in range(40)] + [None]
    bodies = [b"%d" % number for number in range(41)]
    tags = [b"t%d" % number for number in range(41)]
    columns: dict[str, Any] = {"keys": keys, "tags": tags, "headers": {"a": "b"}}
    made = run_to_end(engine.push_many("t", bodies, 0, 1.0, **columns))
    assert all(not pending.pieces for pending in made), "no block is cut"
    assert sum(pending.count for pending in made) == 41
    for name, blocks in queued(engine).items():
        for pending in blocks:
            assert pending.block is not None
            column = pending.block.key
            found = [int(body or b"") for body in pending.block.body.values()]
            assert found == sorted(found)
            for place, number in enumerate(found):
                assert (None if column is None else column.value(place)) == keys[number]
                assert pending.block.tag is not None
                assert pending.block.tag.value(place) == tags[number]
                key = keys[number]
                assert key is None or part_name("t", part_in(key, 4)) == name


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"tags": ["a"]}, "1 tags for 2 messages"),
        ({"keys": [b"a"]}, "1 keys for 2 messages"),
        ({"keys": [b"a", 7]}, "a key must be text or bytes, not int"),
        ({"keys": [b"a", []]}, "a key must be text or bytes, not list"),
        ({"keys": [b"a", b"x" * 300_000]}, "over the limit"),
        ({"key": b"k"}, "give one of them"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_queued(
    engine: ProducerEngine, wrong: dict[str, Any], why: str
) -> None:
    spread_out(engine, 2)
    columns: dict[str, Any] = {"keys": [b"k0", b"k1"]}
    with pytest.raises(UsageError, match=why):
        engine.push_many("t", [b"x", b"y"], 0, 1.0, **(columns | wrong))
    assert queued(engine) == {}


def test_packing_changes_nothing_of_the_engine(engine: ProducerEngine) -> None:
    """It runs without the lock, while other threads may turn the engine."""
    steps = engine.push_many("new", [b"x"], 0, 1.0, keys=[b"k"])
    assert engine.lanes == {}
    assert run_to_end(steps)[0].count == 1


@given(st.data())
@settings(max_examples=50)
def test_pieces_have_the_rows_of_the_block(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 8))
    text = st.none() | st.binary(min_size=1, max_size=4)
    column = st.none() | st.lists(text, min_size=count, max_size=count)
    keys, tags = data.draw(column), data.draw(column)
    times = data.draw(st.none() | st.lists(st.integers(0, 9), min_size=count, max_size=count))
    bodies = [b"%d" % index for index in range(count)]
    block = pack(bodies, keys=keys, tags=tags, times=times)
    rows = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))
    cut = rows_of(block, rows)
    for place, row in enumerate(rows):
        assert cut.body.value(place) == bodies[row]
        for mine, all_of in ((cut.key, block.key), (cut.tag, block.tag)):
            assert (mine is None) == (all_of is None)
            if mine is not None and all_of is not None:
                assert mine.value(place) == all_of.value(row)
        assert times is None or cut.time_of(place) == times[row]


def test_a_closed_part_gets_no_messages(engine: ProducerEngine) -> None:
    lane = engine.lane("t")
    lane.on_refused(HasParts(replace(spread(3), closed=(1,))))
    for number in range(30):
        lane.push(PendingBlock(pack([b"x"])), 1)
        lane.push(PendingBlock(pack([b"x"], keys=[b"k%d" % number])), 1)
    assert set(queued(engine)) == {"t#0", "t#2"}


def test_a_part_that_refuses_because_it_is_closed_is_asked_about_at_once(
    engine: ProducerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = spread_out(engine, 2)
    starts: list[int] = []
    monkeypatch.setattr(lane.link, "start", starts.append)
    engine.lanes["t#1"].session.add(PendingBlock(pack([b"x"])))
    engine.lanes["t#1"].on_refused(Refused(E_CLOSED, "closed"))
    lane.push(PendingBlock(pack([b"x"])), 7)
    assert starts == [7]


def test_a_publish_fails_when_all_parts_are_closed(engine: ProducerEngine) -> None:
    lane = engine.lane("t")
    pending = PendingBlock(pack([b"x"]))
    lane.push(pending, 1)
    lane.on_refused(HasParts(replace(spread(2), closed=(0, 1))))
    assert pending.error is not None
    assert pending.error.code == E_CLOSED


def removed(number: int, count: int) -> HasParts:
    """Return the answer of a broker after this part of so many was removed."""
    known = spread(count)
    left = tuple(part for part in known.parts if part[0] != number)
    return HasParts(replace(known, parts=left, removed=(number,)))


def test_blocks_that_wait_for_a_part_that_was_removed_go_to_the_others(
    engine: ProducerEngine,
) -> None:
    lane = spread_out(engine, 3)
    keys = [b"k%d" % number for number in range(40)]
    pending = PendingBlock(pack([b"x"] * 40, keys=keys))
    lane.push(pending, 1)
    gone = engine.lanes["t#1"]
    sent = gone.session.queue[0]
    gone.push(PendingBlock(pack([b"y"], keys=[b"late"])), 1)
    sent.sends = 1
    gone.on_refused(removed(1, 3))
    assert sent.error is not None
    assert "part t#1 was removed" in sent.error.text
    there = queued(engine)
    assert set(there) == {"t#0", "t#2"}
    late = part_name("t", KeyParts(3, [1]).of(b"late"))
    assert b"late" in keys_in(there[late])
    lane.push(PendingBlock(pack([b"x"] * 40, keys=keys)), 2)
    assert set(queued(engine)) == {"t#0", "t#2"}


def test_a_producer_that_names_a_part_learns_that_it_was_removed(engine: ProducerEngine) -> None:
    pending = PendingBlock(pack([b"x"]))
    lane = engine.lane("t#1")
    lane.push(pending, 1)
    lane.on_refused(removed(1, 3))
    assert isinstance(pending.error, NotFound)
    assert not queued(engine)


# Consumers


@pytest.fixture
def consumer() -> Iterator[ConsumerEngine]:
    made = ConsumerEngine(
        parse_all(A, transport="tcp"), "t", "c", ConsumerSession(100), None, {},
        ConsumerSession,
    )  # fmt: skip
    yield made
    made.stop()
    made.events.close()


def test_a_consumer_subscribes_to_each_part(consumer: ConsumerEngine) -> None:
    consumer.legs[0].on_refused(HasParts(spread(4)))
    assert [leg.target.topic for leg in consumer.legs] == ["t#0", "t#1", "t#2", "t#3"]
    assert [leg.session.part for leg in consumer.legs] == [0, 1, 2, 3]
    assert sum(leg.session.ready for leg in consumer.legs) == 100
    assert consumer.error is None
    assert not consumer.open
    for leg in consumer.legs:
        leg.session.state = ConsumerState.OPEN
    assert consumer.open


def test_new_parts_join_and_known_ones_stay(consumer: ConsumerEngine) -> None:
    whole = consumer.legs[0]
    whole.on_refused(HasParts(spread(2)))
    before = list(consumer.legs)
    whole.on_refused(HasParts(spread(3)))
    assert consumer.legs[:2] == before
    assert len(consumer.legs) == 3
    assert whole.link.busy is not None
    assert not whole.link.busy(), "asking for new parts must not create a topic without parts"


def test_deliveries_of_the_parts_take_turns(consumer: ConsumerEngine) -> None:
    consumer.legs[0].on_refused(HasParts(spread(2)))
    for name, leg in zip("ab", consumer.legs, strict=True):
        leg.session.arrived.extend(cast("Any", f"{name}{number}") for number in range(2))
    taken = [str(consumer._next()) for _ in range(4)]
    assert taken[0][0] != taken[1][0]
    assert sorted(taken) == ["a0", "a1", "b0", "b1"]
    assert consumer._next() is None


def test_one_lost_part_keeps_the_messages_of_the_others(consumer: ConsumerEngine) -> None:
    voids: list[int] = []
    consumer.on_void = lambda: voids.append(1)
    whole = consumer.legs[0]
    whole.on_lost()
    assert voids == [1]
    whole.on_refused(HasParts(spread(2)))
    consumer.legs[0].on_lost()
    assert voids == [1]


def test_a_consumer_waits_while_one_part_is_up(consumer: ConsumerEngine) -> None:
    consumer.legs[0].on_refused(HasParts(spread(2)))
    assert consumer.unreachable(1.0) < 1 << 62
    consumer.legs[1].link.state = cast("Any", type(consumer.legs[1].link.state).UP)
    assert consumer.unreachable(1.0) == 1 << 62
    consumer.legs[1].link.state = cast("Any", type(consumer.legs[1].link.state).IDLE)


def test_a_deleted_topic_ends_the_subscription_of_all_parts(consumer: ConsumerEngine) -> None:
    whole = consumer.legs[0]
    whole.on_refused(HasParts(spread(2)))
    consumer.legs[1].on_refused(NotFound(E_NOT_FOUND, "deleted"))
    assert consumer.legs == [whole]
    with pytest.raises(NotFound):
        consumer.raise_refused()


def test_a_consumer_leaves_a_part_that_was_removed(consumer: ConsumerEngine) -> None:
    consumer.legs[0].on_refused(HasParts(spread(3)))
    gone = next(leg for leg in consumer.legs if leg.target.topic == "t#1")
    gone.on_refused(removed(1, 3))
    consumer.raise_refused()
    assert [leg.target.topic for leg in consumer.legs] == ["t#0", "t#2"]


def test_a_consumer_that_cannot_use_parts_says_so(consumer: ConsumerEngine) -> None:
    consumer.has_more = False
    consumer.legs[0].on_refused(HasParts(spread(2)))
    with pytest.raises(HasParts, match="E_PARTS"):
        consumer.raise_refused()


def test_a_consumer_goes_on_with_a_topic_without_parts_of_the_same_name(
    consumer: ConsumerEngine,
) -> None:
    """The topic was deleted and created again between two questions."""
    whole = consumer.legs[0]
    whole.on_refused(HasParts(spread(2)))
    whole.on_up(1)
    assert consumer.legs == [whole]
    assert not consumer.has_parts


# Consumers that stay at one broker


@pytest.fixture
def local() -> Iterator[ConsumerEngine]:
    """Return a consumer of the parts of broker 0."""
    made = ConsumerEngine(
        parse_all(A, transport="tcp"), "t", "c", ConsumerSession(100), None, {},
        lambda ready: ConsumerSession(1), lambda spread: [n for n, broker in spread.parts if broker == 0],
    )  # fmt: skip
    yield made
    made.stop()
    made.events.close()


def names(consumer: ConsumerEngine) -> list[str]:
    return [leg.target.topic for leg in consumer.legs]


def test_a_local_consumer_subscribes_only_to_chosen_parts(local: ConsumerEngine) -> None:
    local.legs[0].on_refused(HasParts(spread(4)))
    assert names(local) == ["t#0", "t#2"]
    assert all(leg.link.stays for leg in local.legs)


def test_a_local_consumer_without_parts_is_open_and_asks_again(local: ConsumerEngine) -> None:
    whole = local.legs[0]
    whole.on_refused(HasParts(replace(spread(4), parts=((0, 1), (1, 1)))))
    assert (local.has_parts, local.legs, local.open, local.up) == (True, [], True, 0)
    local.unreachable(1.0)
    assert "no link" in local.too_late(1.0, "no link to").text
    assert local.topics[0].ask_ns <= time.monotonic_ns() + PARTS_ASKED_NS
    whole.on_refused(HasParts(spread(1)))
    assert names(local) == ["t#0"]
    assert not local.open


def test_a_consumer_that_does_not_know_its_parts_yet_asks_again_soon() -> None:
    made = ConsumerEngine(
        parse_all(A, transport="tcp"), "t", "c", ConsumerSession(100), None, {},
        lambda ready: ConsumerSession(1), lambda spread: None,
    )  # fmt: skip
    try:
        whole = made.legs[0]
        started: list[int] = []
        cast("Any", whole.link).start = started.append
        whole.on_refused(HasParts(spread(4)))
        assert (made.legs, made.has_parts, made.open, made.error) == ([whole], False, False, None)
        made.timers(time.monotonic_ns() + SOON_NS)
        assert len(started) == 1
    finally:
        made.stop()
        made.events.close()


def test_parts_are_asked_for_when_that_is_wanted(
    local: ConsumerEngine, consumer: ConsumerEngine
) -> None:
    started: list[int] = []
    for one in (local, consumer):
        cast("Any", one.legs[0].link).start = started.append
    local.legs[0].on_refused(HasParts(spread(1)))
    local.timers(time.monotonic_ns())
    assert started == []
    for one in (local, consumer):
        one.ask_parts()
        one.timers(time.monotonic_ns())
    assert len(started) == 1, "the other one has no parts"


@pytest.mark.parametrize("error", [HasParts(spread(2)), Refused(E_CLOSED, "closed")])
def test_a_part_that_has_left_or_is_closed_does_not_end_a_local_consumer(
    local: ConsumerEngine, error: ZsqError
) -> None:
    voids: list[int | None] = []
    local.on_part_void = lambda session: voids.append(session.part)
    whole = local.legs[0]
    whole.on_refused(HasParts(spread(4)))
    first = local.legs[0]
    first.on_refused(error)
    assert names(local) == ["t#2"]
    assert first.link not in local.links
    assert (local.error, voids) == (None, [0])
    first.on_refused(error)
    whole.on_refused(HasParts(spread(4)))
    assert names(local) == ["t#2", "t#0"], "it is chosen again"


def test_the_messages_of_a_lost_part_are_void(local: ConsumerEngine) -> None:
    voids: list[int | None] = []
    local.on_part_void = lambda session: voids.append(session.part)
    local.legs[0].on_refused(HasParts(spread(4)))
    local.legs[1].on_lost()
    assert voids == [2]


@pytest.mark.parametrize("who", ["the topic", "a part"])
def test_a_deleted_topic_ends_a_local_consumer(local: ConsumerEngine, who: str) -> None:
    whole = local.legs[0]
    whole.on_refused(HasParts(spread(4)))
    (whole if who == "the topic" else local.legs[1]).on_refused(NotFound(E_NOT_FOUND, "deleted"))
    assert local.legs == [whole]
    assert local.error is not None
    assert local.error.code == E_NOT_FOUND


def test_a_local_consumer_does_not_create_a_deleted_channel_again(local: ConsumerEngine) -> None:
    local.legs[0].on_refused(HasParts(spread(4)))
    leg = local.legs[0]
    assert leg.link.busy is not None
    assert leg.link.busy(), "the channel of a new part is created"
    leg.on_up(1)
    assert not leg.link.busy()


# Requests


def question(action: str, topic: str, **options: object) -> Question:
    return Question(lambda number: Manage(number, action, topic, "c", options))


def asked(one: Question) -> Wire:
    return one.make(9)


def test_an_order_goes_to_all_parts_at_their_brokers() -> None:
    there = for_parts(question("pause", "t"), spread(3))
    assert [urls for urls, _ in there] == [(A,), (B,), (A,)]
    assert [asked(one) for _, one in there] == [
        Manage(9, "pause", f"t#{number}", "c", {}) for number in range(3)
    ]


def test_a_question_about_a_part_goes_to_its_broker() -> None:
    ((urls, one),) = for_parts(question("peek", "t#1"), spread(3))
    assert urls == (B,)
    assert asked(one) == Manage(9, "peek", "t#1", "c", {})
    with pytest.raises(NotFound, match="no part 3"):
        for_parts(question("peek", "t#3"), spread(3))


@pytest.mark.parametrize(
    ("one", "possible"),
    [
        (question("seek", "t", offset=0), True),
        (question("seek", "t", time_ns=5), True),
        (question("seek", "t", offset=1 << 62), True),
        (question("seek", "t", offset=17), False),
        (question("peek", "t", limit=1), False),
        (next(administration.redrive_to("t", "u", None, Origin("u", "0" * 32, "c"))), False),
        (Question(lambda number: Stats(number, "t", "")), True),
        (Question(lambda number: Fetch(number, 0, 1)), False),
    ],
)
def test_what_makes_no_sense_for_several_parts_is_refused(one: Question, possible: bool) -> None:
    if possible:
        assert len(for_parts(one, spread(3))) == 3
    else:
        with pytest.raises(HasParts):
            for_parts(one, spread(3))


def test_the_replies_of_the_parts_are_one_reply() -> None:
    made = combined([(Done(1, {"existed": True}), []), (Done(5, {"existed": False}), [])])
    assert made == (Done(1, {"existed": False}), [])
    stats = combined([(Done(1, {"topics": [1]}), []), (Done(5, {"topics": [2, 3]}), [])])
    assert stats == (Done(1, {"topics": [1, 2, 3]}), [])


AWAY = BrokerUnreachable(E_TIMEOUT, "no answer")
LACKING = NotFound(E_NOT_FOUND, channel_missing("t", "c"))


def answered(one: Question, errors: Mapping[str, ZsqError]) -> tuple[PartAnswers, list[str]]:
    """Ask 4 parts, of which some answer with errors. Return which parts were asked."""
    answers, parts = PartAnswers(one, spread(4)), []
    for part in answers:
        parts.append(part.part)
        if part.part in errors:
            answers.fail(part, errors[part.part])
        else:
            answers.add(part, (Done(1, {"topics": [part.part]}), []))
    return answers, parts


def test_an_order_goes_on_without_a_broker_that_is_away_and_says_so() -> None:
    answers, parts = answered(question("pause", "t"), {"t#1": AWAY})
    assert parts == ["t#0", "t#1", "t#2"], "the broker of t#1 and t#3 costs one time-out"
    with pytest.raises(BrokerUnreachable, match=r"^E_TIMEOUT t#0 and t#2 did this, but t#1 and t"):
        answers.combined()


def test_an_order_ends_with_the_first_refusal() -> None:
    refused = Refused(E_FORBIDDEN, "not permitted")
    with pytest.raises(Refused, match="t#0 and t#1 did this, but t#2 and t#3 did not"):
        answered(question("pause", "t"), {"t#2": refused})
    with pytest.raises(Refused, match=r"^E_FORBIDDEN not permitted$"):
        answered(question("pause", "t"), {"t#0": refused})


def test_a_repeated_deletion_succeeds_where_something_is_left() -> None:
    lacking = {"t#0": LACKING, "t#3": LACKING}
    assert answered(question("delete", "t"), lacking)[0].combined()
    with pytest.raises(NotFound, match="t#1 and t#2 did this, but t#0 and t#3 did not"):
        answered(question("pause", "t"), lacking)[0].combined()
    with pytest.raises(NotFound, match=r"^E_NOT_FOUND channel 'c' of topic 't' does not exist$"):
        answered(question("delete", "t"), {f"t#{n}": LACKING for n in range(4)})[0].combined()


def test_a_seek_returns_the_place_in_each_part() -> None:
    answers = PartAnswers(question("seek", "t", offset=0), spread(2))
    for number, part in enumerate(answers):
        answers.add(part, (Done(1, {"offset": number}), []))
    assert answers.combined() == (Done(1, {"offset": -1, "parts": {"t#0": 0, "t#1": 1}}), [])


def test_statistics_name_the_parts_that_are_missing_only_if_that_was_asked_for() -> None:
    errors = {"t#1": AWAY, "t#2": LACKING}
    strict = Question(lambda number: Stats(number, "t", "c"))
    with pytest.raises(BrokerUnreachable, match=r"^E_TIMEOUT no answer$"):
        answered(strict, errors)[0].combined()
    answers, _ = answered(strict._replace(partial=True), errors)
    assert (answers.timeout(10.0), answers.timeout(None), answers.timeout(0.5)) == (2, 2, 0.5)
    found = {"topics": ["t#0"], "unanswered": dict.fromkeys(["t#1", "t#3"], "E_TIMEOUT no answer")}
    assert answers.combined() == (Done(1, found), [])
    gone = {f"t#{number}": AWAY for number in range(4)}
    with pytest.raises(BrokerUnreachable):
        answered(strict._replace(partial=True), gone)[0].combined()
