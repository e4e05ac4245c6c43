"""Tests of how RDY is shared among the parts of a topic, with channels that the test makes."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsq.actors.gateways.nsq.ready_shares import (
    FAR_NS,
    KEEN_NS,
    PATIENCE_NS,
    PATIENCE_NS_MAX,
    TURN_NS,
    CreditOrder,
    ReadyShares,
)

MS = 1_000_000


def sharing(ready: int, parts: int) -> ReadyShares:
    made = ReadyShares()
    for part in range(parts):
        made.join(part)
    made.set_ready(ready)
    return made


@pytest.mark.parametrize(
    ("ready", "parts", "credits"),
    [
        (0, 3, {}),
        (1, 1, {0: 1}),
        (7, 1, {0: 7}),
        (3, 3, {0: 1, 1: 1, 2: 1}),
        (8, 3, {0: 3, 1: 3, 2: 2}),
        (2, 3, {0: 1, 1: 1}),
        (1, 3, {0: 1}),
        (5, 0, {}),
    ],
)
def test_credits_at_the_beginning(ready: int, parts: int, credits: dict[int, int]) -> None:
    found = sharing(ready, parts).plan(0)
    assert found == [CreditOrder(part, credit, False) for part, credit in credits.items()]


def test_a_part_that_has_used_up_its_credit_gets_what_the_idle_ones_do_not_need() -> None:
    made = sharing(8, 2)
    made.plan(0)
    made.delivered(0, 4, MS)
    assert made.plan(MS) == [CreditOrder(1, 1, True)]
    assert made.plan(MS) == [], "messages of the other part may be on their way"
    made.confirmed(1)
    assert made.plan(MS) == [CreditOrder(0, 7, False)]
    made.delivered(1, 1, MS)
    assert made.plan(MS) == [CreditOrder(0, 4, True)], "now both need theirs"
    made.confirmed(0)
    assert made.plan(MS) == [CreditOrder(1, 4, False)]


def test_a_part_that_was_busy_is_idle_after_a_second() -> None:
    made = sharing(8, 2)
    made.plan(0)
    made.delivered(0, 4, MS)
    made.plan(MS)
    made.answered(0, 4, 2 * MS)
    made.confirmed(1)
    assert made.plan(2 * MS) == [CreditOrder(0, 7, False)]
    assert made.due_ns == 2 * MS + KEEN_NS
    assert made.plan(made.due_ns - 1) == []
    assert made.plan(made.due_ns) == [CreditOrder(0, 4, True)]


def test_a_slow_consumer_keeps_its_busy_part() -> None:
    made = sharing(8, 2)
    made.plan(0)
    made.delivered(0, 4, MS)
    made.plan(MS)
    made.confirmed(1)
    made.plan(MS)
    made.delivered(0, 3, MS)
    assert made.plan(1000 * KEEN_NS) == []
    assert made.due_ns == FAR_NS, "no timer is needed until something happens"


def test_a_lower_ready_count_is_kept_while_more_messages_are_in_flight() -> None:
    made = sharing(4, 2)
    made.plan(0)
    made.delivered(0, 2, 0)
    made.delivered(1, 2, 0)
    made.set_ready(2)
    assert made.plan(0) == [CreditOrder(0, 0, True), CreditOrder(1, 0, True)]
    made.confirmed(0)
    made.confirmed(1)
    made.answered(0, 1, 0)
    assert made.plan(0) == []
    made.answered(0, 1, 0)
    assert made.plan(0) == [CreditOrder(1, 1, False)], "which is less than it has in flight"
    made.answered(1, 1, 0)
    assert made.plan(0) == [CreditOrder(0, 1, False)]


def test_a_credit_that_is_being_lowered_does_not_change() -> None:
    """Its confirmation says nothing about a later change."""
    made = sharing(8, 2)
    made.plan(0)
    made.delivered(0, 4, 0)
    assert made.plan(0) == [CreditOrder(1, 1, True)]
    made.set_ready(0)
    assert made.plan(0) == [CreditOrder(0, 0, True)]
    made.confirmed(1)
    assert made.plan(0) == [CreditOrder(1, 0, True)]


def test_a_credit_that_is_being_lowered_is_not_raised_to_less_than_before() -> None:
    made = sharing(10, 2)
    made.plan(0)
    made.delivered(0, 5, 0)
    assert made.plan(0) == [CreditOrder(1, 1, True)]
    made.join(2)
    made.delivered(1, 1, 0)
    assert made.plan(0) == [], "four more messages of part 1 may be on their way"
    made.confirmed(1)
    assert made.plan(0) == [CreditOrder(1, 4, False), CreditOrder(2, 1, False)]


def test_with_a_smaller_ready_count_there_are_fewer_turns_at_once() -> None:
    made = sharing(2, 3)
    made.plan(0)
    made.set_ready(1)
    assert made.plan(0) == [CreditOrder(1, 0, True)]


def test_a_part_that_has_messages_again_gets_short_turns_again() -> None:
    made = sharing(1, 2)
    now = 0
    for _ in range(20):
        for order in made.plan(now):
            if order.lowers:
                made.confirmed(order.part)
        now = min(made.due_ns, now + PATIENCE_NS_MAX)
    made.plan(now)
    now = made.due_ns - 1
    part = made._seats[0]
    assert made._shares[part].patience_ns == PATIENCE_NS_MAX
    made.delivered(part, 1, now)
    made.answered(part, 1, now)
    assert made.plan(now) == []
    assert made.due_ns == now + PATIENCE_NS


def test_a_turn_goes_on_while_the_others_rest() -> None:
    made = sharing(1, 2)
    made.plan(0)
    assert made.plan(PATIENCE_NS) == [CreditOrder(0, 0, True)]
    made.confirmed(0)
    made.plan(PATIENCE_NS)
    now = PATIENCE_NS + MS
    made.delivered(1, 1, now)
    made.answered(1, 1, now)
    made.plan(now)
    assert made.plan(now + PATIENCE_NS) == [], "the other part has just been empty"
    assert made.due_ns == now + 2 * PATIENCE_NS, "now it is looked at again"


def test_parts_take_turns_if_there_are_more_than_the_ready_count() -> None:
    made = sharing(1, 3)
    assert made.plan(0) == [CreditOrder(0, 1, False)]
    assert made.due_ns == PATIENCE_NS
    assert made.plan(PATIENCE_NS - 1) == []
    assert made.plan(PATIENCE_NS) == [CreditOrder(0, 0, True)]
    assert made.plan(PATIENCE_NS) == []
    made.confirmed(0)
    assert made.plan(PATIENCE_NS) == [CreditOrder(1, 1, False)]


def test_a_turn_ends_also_if_the_part_has_more_messages() -> None:
    made = sharing(1, 2)
    made.plan(0)
    now = 0
    while now < TURN_NS:
        made.delivered(0, 1, now)
        assert made.plan(now) == []
        now += MS
        made.answered(0, 1, now)
        if now < TURN_NS:
            assert made.plan(now) == []
    assert made.plan(now) == [CreditOrder(0, 0, True)]


def test_a_message_of_the_last_turn_counts_until_it_is_answered() -> None:
    made = sharing(1, 2)
    made.plan(0)
    made.delivered(0, 1, 0)
    assert made.plan(TURN_NS) == [CreditOrder(0, 0, True)]
    made.confirmed(0)
    assert made.plan(TURN_NS) == []
    made.answered(0, 1, 2 * TURN_NS)
    assert made.plan(2 * TURN_NS) == [CreditOrder(1, 1, False)]


def test_a_part_that_has_left_gives_its_turn_to_the_next_one() -> None:
    made = sharing(1, 2)
    made.plan(0)
    made.delivered(0, 1, 0)
    made.leave(0)
    assert (len(made), 0 in made, 1 in made) == (1, False, True)
    assert made.plan(1) == [CreditOrder(1, 1, False)]
    # What comes late, about a part that has left, changes nothing.
    made.leave(0)
    made.confirmed(0)
    made.delivered(0, 1, 1)
    made.answered(0, 1, 1)
    assert made.used == 1


# A model of the channels


@dataclass
class Channel:
    """A channel of one part. What is sent to it and what it sends takes time, in this order."""

    backlog: int
    credit: int = 0
    in_flight: int = 0
    to: deque[tuple[str, int]] = field(default_factory=deque)
    back: deque[str] = field(default_factory=deque)

    def turn(self) -> None:
        """Process one message, then deliver."""
        if self.to:
            what, number = self.to.popleft()
            if what == "ready":
                self.credit = number
            elif what == "touch":
                self.back.append("answer")
            else:
                self.in_flight -= number
        while self.backlog and self.in_flight < self.credit:
            self.backlog -= 1
            self.in_flight += 1
            self.back.append("deliver")


class World:
    def __init__(self, ready: int, backlogs: list[int]) -> None:
        self.sharing = sharing(ready, len(backlogs))
        self.channels = [Channel(backlog) for backlog in backlogs]
        self.now = 0
        self.held: Counter[int] = Counter()  # what the consumer has
        self.plan()

    def plan(self) -> None:
        for order in self.sharing.plan(self.now):
            to = self.channels[order.part].to
            to.append(("ready", order.ready))
            if order.lowers:
                to.append(("touch", 0))

    def step(self, part: int, what: str) -> None:
        channel = self.channels[part]
        if what == "turn":
            channel.turn()
        elif what == "hear" and channel.back:
            if channel.back.popleft() == "answer":
                self.sharing.confirmed(part)
            else:
                self.sharing.delivered(part, 1, self.now)
                self.held[part] += 1
        elif what == "finish" and self.held[part]:
            self.held[part] -= 1
            self.sharing.answered(part, 1, self.now)
            channel.to.append(("finish", 1))
        self.plan()

    def wait(self) -> None:
        """Let time pass until something is due."""
        assert self.sharing.due_ns != FAR_NS
        self.now = max(self.now + 1, self.sharing.due_ns)
        self.plan()

    @property
    def left(self) -> int:
        return sum(channel.backlog + channel.in_flight for channel in self.channels)

    def settle(self) -> None:
        """Let all that is on its way arrive."""
        while any(channel.to or channel.back for channel in self.channels):
            for part in range(len(self.channels)):
                self.step(part, "turn")
                self.step(part, "hear")

    def finish(self) -> int:
        """Finish all that the consumer has. Return how many messages this is."""
        count = self.held.total()
        for part in list(self.held.elements()):
            self.step(part, "finish")
        return count

    def drain(self) -> None:
        """Let a consumer that answers at once get all messages."""
        for _ in range(1000):
            self.settle()
            if not self.finish() and self.left:
                self.wait()
            if not self.left:
                return
        raise AssertionError(f"{self.left} messages do not come")


STEPS = st.lists(
    st.tuples(
        st.integers(0, 4), st.sampled_from(["turn", "turn", "hear", "hear", "finish", "wait"])
    ),
    max_size=200,
)


@given(st.integers(1, 9), st.lists(st.integers(0, 12), min_size=1, max_size=5), STEPS)
def test_never_more_than_the_ready_count_is_in_flight_and_no_message_is_left(
    ready: int, backlogs: list[int], steps: list[tuple[int, str]]
) -> None:
    world = World(ready, backlogs)
    for number, what in steps:
        if what != "wait":
            world.step(number % len(backlogs), what)
        elif world.sharing.due_ns != FAR_NS:
            world.wait()
        sent = sum(one.back.count("deliver") for one in world.channels)
        assert world.held.total() + sent <= ready
        assert world.sharing.used <= ready
    world.drain()


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=6),
    st.lists(st.integers(0, 5), min_size=1, max_size=5),
    STEPS,
)
def test_nothing_is_sent_while_more_is_in_flight_than_a_new_ready_count(
    counts: list[int], backlogs: list[int], steps: list[tuple[int, str]]
) -> None:
    """What was on its way when RDY was lowered still comes, and nothing else."""
    world = World(6, [10 * one for one in backlogs])
    length = max(1, len(steps) // len(counts))
    for place, (number, what) in enumerate(steps):
        if place % length == 0:
            world.sharing.set_ready(counts[place // length % len(counts)])
            world.plan()
            world.settle()
        ready, before = world.sharing.ready, world.held.total()
        if what != "wait":
            world.step(number % len(backlogs), what)
        assert world.held.total() <= max(ready, before)
    world.sharing.set_ready(1)
    world.plan()
    world.drain()


def busy(backlogs: list[int], until_ns: int) -> Counter[int]:
    """Return how many messages of each part a consumer finishes that has one credit, and needs 1 ms
    for a message.
    """
    world = World(1, backlogs)
    finished: Counter[int] = Counter()
    while world.now < until_ns:
        world.settle()
        world.now += MS
        world.plan()
        finished += world.held
        world.finish()
    return finished


def test_a_busy_part_gets_most_of_the_time_of_empty_ones() -> None:
    assert busy([100_000, 0, 0, 0], 20 * KEEN_NS)[0] >= 20 * 1000 * 0.75


def test_all_busy_parts_get_their_share() -> None:
    finished = busy([10_000] * 3, 10 * KEEN_NS)
    assert min(finished.values()) > 0.8 * max(finished.values())


def test_a_message_in_an_idle_part_comes_although_another_part_is_busy() -> None:
    assert busy([100_000, 1, 1, 1], 20 * KEEN_NS).keys() == {0, 1, 2, 3}


def test_an_idle_consumer_looks_at_each_part_soon_and_not_too_often() -> None:
    world = World(1, [0, 0, 0, 0])
    seen: list[int] = []
    while world.now < 20 * KEEN_NS:
        world.settle()
        seen += [part for part, channel in enumerate(world.channels) if channel.credit]
        world.wait()
    assert len(seen) <= 20 * KEEN_NS // PATIENCE_NS_MAX + 12
    assert seen == [number % 4 for number in range(len(seen))]
