"""Tests of the feed (in a channel) together with the fan-out (in the topic): each channel gets
every block once and in order, whatever happens between the two.
"""

from __future__ import annotations

from collections import deque
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from zsq.actors.channel import feed as feed_module
from zsq.actors.channel.core import ChannelCore
from zsq.actors.channel.feed import TRANSITIONS, Feed, FeedState
from zsq.actors.channel.lease import Subscriber
from zsq.actors.settings import options
from zsq.actors.topic import fanout as fanout_module
from zsq.actors.topic.fanout import Fanout
from zsq.transport.block.block import Block, pack, with_place
from zsq.transport.wire import protocol as p

WINDOW, RING, RUN = 1600, 800, 300
BLOCK_MAX = pack([b"x" * 20] * 4).length
NUMBER = st.integers(0, 2)


def test_each_state_of_the_feed_has_its_events_in_the_table() -> None:
    """`fetch`, `read` and `caught_up` follow from the feed's own requests. The other events can
    come in any state.
    """
    assert set(TRANSITIONS) == set(FeedState)
    own = {
        FeedState.OFF: set(),
        FeedState.ATTACHED: set(),
        FeedState.BEHIND: {"fetch"},
        FeedState.READING: {"read", "caught_up"},
    }
    for state, row in TRANSITIONS.items():
        assert set(row) == {"wanted", "unwanted", "behind", "moved"} | own[state]
        assert row["unwanted"] is FeedState.OFF
        assert set(row.values()) <= set(FeedState)


def feed_in(state: FeedState) -> Feed:
    feed = Feed("c")
    if state is not FeedState.OFF:
        feed.wanted(True)
        feed.next_word(0, 0, 1)
    if state in (FeedState.BEHIND, FeedState.READING):
        feed.behind()
    if state is FeedState.READING:
        feed.next_word(0, 0, 2)
    assert feed.state is state
    return feed


@pytest.mark.parametrize(
    ("state", "window_bytes", "message"),
    [
        (FeedState.OFF, 0, None),
        (FeedState.ATTACHED, 0, None),
        (FeedState.BEHIND, 0, p.Fetch(3, 0, options.WINDOW_BYTES_MAX)),
        (
            FeedState.BEHIND,
            options.WINDOW_BYTES_MAX // 2,
            p.Fetch(3, 0, options.WINDOW_BYTES_MAX // 2),
        ),
        (FeedState.BEHIND, options.WINDOW_BYTES_MAX // 2 + 1, None),
        (FeedState.READING, 0, None),
    ],
)
def test_a_read_is_asked_for_only_when_the_window_has_room(
    state: FeedState, window_bytes: int, message: p.Wire | None
) -> None:
    assert feed_in(state).next_word(0, window_bytes, 3) == message


def test_credit_is_a_running_total_of_what_came_and_what_has_room() -> None:
    feed = Feed("c")
    feed.wanted(True)
    assert feed.next_word(7, 0, 1) == p.Attach("c", 7, options.WINDOW_BYTES_MAX)
    quarter = options.WINDOW_BYTES_MAX // 4
    assert feed.came(quarter)
    assert feed.next_word(9, quarter, 2) is None
    assert feed.next_word(9, 0, 3) == p.Credit(options.WINDOW_BYTES_MAX + quarter)
    assert feed.wanted(False) == p.Attach("c", -1, 0)
    assert not feed.came(5)
    feed.wanted(True)
    assert feed.next_word(9, 0, 4) == p.Attach("c", 9, options.WINDOW_BYTES_MAX + quarter + 5)


@pytest.mark.parametrize(
    ("request_number", "caught_up", "taken", "state"),
    [
        (2, False, True, FeedState.BEHIND),
        (2, True, True, FeedState.ATTACHED),
        (1, True, False, FeedState.READING),
    ],
)
def test_only_the_answer_to_the_outstanding_read_changes_the_state(
    request_number: int, caught_up: bool, taken: bool, state: FeedState
) -> None:
    feed = feed_in(FeedState.READING)
    assert feed.read(request_number, caught_up) is taken
    assert feed.state is state
    assert not feed_in(FeedState.BEHIND).read(2, True)


@pytest.mark.parametrize("state", list(FeedState))
def test_a_channel_that_was_moved_reads_from_its_new_place(state: FeedState) -> None:
    """An answer to a read from the old position must be ignored, because its blocks would look like
    a gap.
    """
    feed = feed_in(state)
    feed.moved()
    assert feed.state is (FeedState.OFF if state is FeedState.OFF else FeedState.BEHIND)
    assert not feed.read(2, True)
    if state is not FeedState.OFF:
        assert feed.next_word(7, 0, 9) == p.Fetch(9, 7, options.WINDOW_BYTES_MAX)
        assert not feed.read(2, True)
        assert feed.read(9, True)


class ChannelShell:
    """A channel that is connected to its feed as in the channel actor, with queues in place of
    sockets.
    """

    def __init__(self, start: int) -> None:
        self.start = start
        self.delivery = ChannelCore(1, start, (), {}, paused=False)
        self.feed = Feed("c")
        self.request = 0
        self.down: deque[p.Wire] = deque()  # messages to the topic
        self.fetches: deque[p.Fetch] = deque()
        self.reads: deque[tuple[p.Blocks, list[Block]]] = deque()
        self.up: deque[tuple[p.Wire, list[Block]]] = deque()  # messages from the topic
        self.got: list[int] = []

    def turn(self) -> None:
        self.delivery.rest()
        detach = self.feed.wanted(self.delivery.is_wanted())
        if detach is not None:
            self.down.append(detach)
        self.request += 1
        message = self.feed.next_word(
            self.delivery.supply.window_end, self.delivery.supply.window_bytes, self.request
        )
        if isinstance(message, p.Fetch):
            self.fetches.append(message)
        elif message is not None:
            self.down.append(message)

    def join(self, ready: int) -> None:
        self.delivery.subscribe(Subscriber((b"c",), "", ready, 10**12, 10**12, 0, 0))

    def consume(self, pending_blocks: int) -> None:
        for _ in range(pending_blocks):
            pending = self.delivery.next_delivery(0, 0)
            if pending is None:
                return
            for first, count, _ in pending.runs:
                self.got.extend(range(first, first + count))
            self.delivery.fin(pending.peer, pending.token, ())

    def seek(self, offset: int) -> None:
        self.start, self.got = offset, []
        self.delivery.seek(offset)
        self.delivery.changes()
        self.delivery.supply.committed()
        self.feed.moved()

    def from_topic(self) -> None:
        message, blocks = self.up.popleft()
        if isinstance(message, p.Behind):
            self.feed.behind()
        elif self.feed.came(sum(block.length for block in blocks)):
            for block in blocks:
                if not self.delivery.supply.offer(block):
                    self.feed.behind()
                    return

    def from_storage(self) -> None:
        message, blocks = self.reads.popleft()
        if self.feed.read(message.request, not blocks or blocks[-1].next_offset >= message.head):
            for block in blocks:
                self.delivery.supply.offer(block, from_storage=True)


class FeedMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patches: list[Any] = [
            mock.patch.multiple(options, WINDOW_BYTES_MAX=WINDOW, RING_BYTES_MAX=RING),
            mock.patch.object(feed_module, "WINDOW_BYTES_MAX", WINDOW),
            mock.patch.object(fanout_module, "RUN_BYTES_MAX", RUN),
        ]
        for patch in self.patches:
            patch.start()
        self.log: list[Block] = []
        self.end = 0  # The end of the log. The topic may not know it yet.
        # Messages from storage to the topic: ends of the log, and blocks that were appended.
        self.words: deque[int | Block] = deque()
        self.fanout = Fanout(0)
        self.channels: list[ChannelShell] = []

    @initialize(
        blocks=st.integers(0, 12), starts=st.lists(st.integers(0, 5), min_size=3, max_size=3)
    )
    def begin(self, blocks: int, starts: list[int]) -> None:
        self.publish(blocks, 9)
        for start in starts:
            self.channels.append(ChannelShell(min(start, self.end)))
            self.channels[-1].join(10)

    # The topic and storage

    @rule(blocks=st.integers(1, 12), size=st.integers(0, 20))
    def publish(self, blocks: int, size: int) -> None:
        self.words.extend(self.stored(blocks, size))
        self.hear()

    @rule(blocks=st.integers(1, 12), size=st.integers(0, 20))
    def commit(self, blocks: int, size: int) -> None:
        """Append the blocks in storage only. The topic learns just the new end of the log."""
        self.stored(blocks, size)
        self.words.append(self.end)

    def stored(self, blocks: int, size: int) -> list[Block]:
        found = []
        for i in range(blocks):
            found.append(with_place(pack([b"x" * size] * (1 + i % 4)), self.end, 0))
            self.end = found[-1].next_offset
        self.log += found
        return found

    @rule()
    def hear(self) -> None:
        while self.words:
            message = self.words.popleft()
            if isinstance(message, Block):
                self.fanout.add(message, message.first_offset, 0)
            else:
                self.fanout.advance(message)
        self.offer()

    def offer(self) -> None:
        for peer, blocks in self.fanout.offers():
            channel = self.channels[peer[0][0]]
            if not blocks:
                channel.up.append((p.Behind(self.fanout.end), []))
            elif sum(block.length for _, on_way in channel.up for block in on_way) > WINDOW // 3:
                self.fanout.detach(peer)  # this happens when the pipe to the channel is full
            else:
                channel.up.append((p.Offer(self.fanout.end), blocks))
        self.fanout.trim()
        assert self.fanout._ring_bytes <= RING
        for place in self.fanout._places.values():
            assert place.sent - place.granted < BLOCK_MAX or place.next_offset < 0

    @rule(number=NUMBER)
    def to_topic(self, number: int) -> None:
        channel = self.channels[number]
        if not channel.down:
            return
        message = channel.down.popleft()
        peer = (bytes([number]),)
        if isinstance(message, p.Attach):
            known = self.fanout.attach(peer, message.next_offset, message.credit_bytes)
        else:
            assert isinstance(message, p.Credit)
            known = self.fanout.credit(peer, message.credit_bytes)
        if not known:
            channel.up.append((p.Behind(self.fanout.end), []))
        self.offer()

    @rule(number=NUMBER)
    def to_storage(self, number: int) -> None:
        channel = self.channels[number]
        if not channel.fetches:
            return
        message = channel.fetches.popleft()
        found: list[Block] = []
        end = self.end if self.fanout.visible_end < 0 else min(self.end, self.fanout.visible_end)
        for block in self.log:
            if (
                message.offset < block.next_offset <= end
                and sum(b.length for b in found) < message.max_bytes
            ):
                found.append(block)
        channel.reads.append(
            (
                p.Blocks(
                    message.request, 0, end, found[-1].next_offset if found else message.offset
                ),
                found,
            )
        )

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.hear()
        if not paused or self.fanout.visible_end < 0:
            self.fanout.visible_end = self.fanout.head if paused else -1
        self.offer()

    # The channels

    @rule(number=NUMBER)
    def from_topic(self, number: int) -> None:
        if self.channels[number].up:
            self.channels[number].from_topic()

    @rule(number=NUMBER)
    def from_storage(self, number: int) -> None:
        if self.channels[number].reads:
            self.channels[number].from_storage()

    @rule(number=NUMBER)
    def turn(self, number: int) -> None:
        self.channels[number].turn()

    @rule(number=NUMBER, pending_blocks=st.integers(1, 30))
    def consume(self, number: int, pending_blocks: int) -> None:
        self.channels[number].consume(pending_blocks)

    @rule(number=NUMBER, offset=st.integers(0, 60))
    def seek(self, number: int, offset: int) -> None:
        end = self.end if self.fanout.visible_end < 0 else min(self.end, self.fanout.visible_end)
        self.channels[number].seek(min(offset, end))

    @rule(number=NUMBER, ready=st.sampled_from([0, 1, 10]))
    def change(self, number: int, ready: int) -> None:
        """Between two turns the only consumer leaves and another one joins."""
        self.channels[number].join(ready)

    @rule(number=NUMBER)
    def leave(self, number: int) -> None:
        self.channels[number].delivery.unsubscribe((b"c",))

    @rule(number=NUMBER, ready=st.sampled_from([0, 10]))
    def set_ready(self, number: int, ready: int) -> None:
        if self.channels[number].delivery.consumers:
            self.channels[number].delivery.set_ready((b"c",), ready)

    @rule(consuming=st.booleans())
    def settle(self, consuming: bool) -> None:
        """If nothing new is published, the exchange of messages must end soon. No side may go on
        asking for blocks that do not exist.
        """
        self.hear()
        for _ in range(60 + 4 * len(self.log)):
            for number, channel in enumerate(self.channels):
                self.to_topic(number)
                self.to_storage(number)
                self.from_storage(number)
                self.from_topic(number)
                if consuming:
                    channel.consume(1_000)
                channel.turn()
            if not any(c.down or c.fetches or c.reads or c.up for c in self.channels):
                break
        else:
            raise AssertionError("no end of words")
        for channel in self.channels:
            if consuming and channel.delivery.is_wanted():
                assert channel.got == list(
                    range(channel.start, max(channel.start, self.fanout.end))
                )

    # Invariants

    @invariant()
    def each_in_order(self) -> None:
        for channel in self.channels:
            assert channel.got == list(range(channel.start, channel.start + len(channel.got)))
            assert channel.delivery.counters["lost_count"] == 0
            assert channel.delivery.supply.window_bytes <= WINDOW + BLOCK_MAX
            assert channel.delivery.supply.window_bytes == sum(
                block.length for block in channel.delivery.supply._window
            )

    def teardown(self) -> None:
        try:
            self.pause(False)
            for channel in self.channels:
                channel.join(10)
            if self.channels:
                self.settle(True)
        finally:
            for patch in self.patches:
                patch.stop()


TestFeed = FeedMachine.TestCase
TestFeed.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
