"""Test of several producers, a topic and its storage together, with resends, lost links, failing
writes and restarts. Each block must be stored once and in order.

A producer numbers its blocks and never gives up. When it is in doubt, it opens a new link, says
Hello and sends all unanswered blocks again. Messages of the old link may still arrive. Storage
writes or refuses a block at once, and syncs later. Some blocks are delayed. They are committed
elsewhere, after a sync of what was written before them, and each of them can fail alone.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from zsq.actors.settings import options
from zsq.actors.topic.ordering import Ordering, Reply
from zsq.transport.block.block import Block, pack
from zsq.transport.errors import E_DISK_FULL
from zsq.transport.wire.protocol import Delayed, Duplicates, Stored, Unstored

S = 1_000_000_000
PRODUCER = st.integers(0, 2)
Peer = tuple[bytes, ...]


class Append(NamedTuple):
    request: int
    blocks: list[Block]


class Answer(NamedTuple):
    """An answer of storage: the offset, or None for a failure. For delayed blocks it has their
    keys.
    """

    request: int
    first_offset: int | None
    keys: list[tuple[int, int]] | None = None


class Producer:
    """The producer's side of the protocol. `links` are the pipes to the topic. Old pipes may still
    hold messages.
    """

    def __init__(self, number: int) -> None:
        self.id = number + 1
        self.made = 0
        # Sequence -> offset, or the key if the block is delayed.
        self.told: dict[int, int | tuple[int, int]] = {}
        self.delayed: set[int] = set()
        self.unanswered: dict[int, Block] = {}
        self.peer: Peer = ()
        self.links: dict[Peer, deque[Block | str]] = {}
        self.reconnect()

    def reconnect(self) -> None:
        self.peer = (b"%d-%d" % (self.id, len(self.links)),)
        self.links[self.peer] = deque(["hello", *self.unanswered.values()])

    def make(self, delayed: bool) -> None:
        block = pack([b"x"] * (1 + self.made % 3), producer_id=self.id, sequence=self.made)
        if delayed:
            self.delayed.add(self.made)
        self.made += 1
        self.unanswered[block.header.sequence] = block
        self.links[self.peer].append(block)


class OrderingMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        little = 150  # in bytes: more than one block, which has about 100
        self.small = mock.patch.multiple(
            options,
            APPEND_BYTES_LITTLE=little,
            APPEND_BYTES_MAX=250,
            APPENDS_OUT_MAX=3,
            CREDIT_BYTES=400,
            RECENT_SEQUENCES=3,
        )
        self.small.start()
        self.producers = [Producer(number) for number in range(3)]
        self.replies: dict[Peer, deque[Stored | Unstored | Delayed | Duplicates]] = {}
        self.disk: list[Block] = []
        self.kept: list[Block] = []  # delayed blocks that are durable
        self.synced = 0  # the number of blocks that are synced
        self.offered: list[tuple[int, int]] = []  # the blocks that were offered to channels
        self.start()

    def start(self) -> None:
        rows: dict[int, tuple[int, list[tuple[int, ...]]]] = {}
        offset = 0
        for block in self.disk:
            recent = rows.get(block.header.producer_id, (0, []))[1]
            rows[block.header.producer_id] = (
                block.header.sequence + 1,
                [*recent, (block.header.sequence, offset)][-2:],
            )
            offset += block.count
        for serial, block in enumerate(self.kept):
            expected, recent = rows.get(block.header.producer_id, (0, []))
            key = (block.header.sequence, 9, serial)
            rows[block.header.producer_id] = (
                max(expected, block.header.sequence + 1),
                [*recent, key][-2:],
            )
        self.ordering = Ordering(rows)
        self.synced = len(self.disk)
        # Appends that wait for a sync: (request, first offset, number of blocks on disk after it).
        self.written: deque[tuple[int, int, int]] = deque()
        # Appends of delayed blocks, with the number of blocks of the log that must be synced
        # before.
        self.delayed: deque[tuple[Append, int]] = deque()
        self.answers: deque[Answer] = deque()  # answers of storage that the topic has not read yet

    # Producers

    @rule(number=PRODUCER, kinds=st.lists(st.booleans(), min_size=1, max_size=4))
    def make(self, number: int, kinds: list[bool]) -> None:
        for delayed in kinds:
            self.producers[number].make(delayed)

    @rule(number=PRODUCER, kinds=st.lists(st.booleans(), min_size=1, max_size=4))
    def publish(self, number: int, kinds: list[bool]) -> None:
        self.make(number, kinds)
        self.to_topic(number, 9, True)
        self.append(9)

    @rule(number=PRODUCER, kinds=st.lists(st.booleans(), min_size=1, max_size=4))
    def publish_behind_a_crowd(self, number: int, kinds: list[bool]) -> None:
        """Publish while as many appends as allowed are in progress. Plain blocks must wait in the
        topic, and delayed blocks wait behind them.
        """
        for other in range(3):
            self.publish(other, [False])
        self.publish(number, kinds)

    @rule()
    def store_all(self) -> None:
        self.append(9)
        self.sync()
        self.keep(False)

    @rule(number=PRODUCER, resent=st.integers(0, 9))
    def reconnect(self, number: int, resent: int) -> None:
        self.producers[number].reconnect()
        self.to_topic(number, resent, True)

    @rule(number=PRODUCER, count=st.integers(1, 6))
    def read_replies(self, number: int, count: int) -> None:
        producer = self.producers[number]
        replies = self.replies.setdefault(producer.peer, deque())
        for _ in range(min(count, len(replies))):
            message = replies.popleft()
            if isinstance(message, Unstored):
                producer.reconnect()
                return
            if isinstance(message, Delayed):
                self.check_key(producer, message)
                producer.unanswered.pop(message.sequence, None)
                continue
            assert isinstance(message, Stored), "no block here has ids"
            for sequence, offset in message.blocks:
                self.check_answer(producer, sequence, offset)
                producer.unanswered.pop(sequence, None)

    def check_key(self, producer: Producer, message: Delayed) -> None:
        """Check that a delayed block that was answered is durable, and that every answer names the
        same key.
        """
        assert message.sequence in producer.delayed
        (serial,) = [
            serial
            for serial, block in enumerate(self.kept)
            if (block.header.producer_id, block.header.sequence) == (producer.id, message.sequence)
        ]
        assert (message.due_ns, message.serial) in ((9, serial), (-1, -1))
        assert producer.told.setdefault(message.sequence, (9, serial)) == (9, serial)

    def check_answer(self, producer: Producer, sequence: int, offset: int) -> None:
        """Check that a block that was answered as stored is on disk at that offset."""
        place = 0
        for block in self.disk[: self.synced]:
            if (block.header.producer_id, block.header.sequence) == (producer.id, sequence):
                assert offset in (place, -1)
                assert producer.told.setdefault(sequence, place) == place
                return
            place += block.count
        raise AssertionError(f"{producer.id}/{sequence} was said to be stored")

    # The topic

    @rule(number=PRODUCER, count=st.integers(1, 6), newest=st.booleans())
    def to_topic(self, number: int, count: int, newest: bool) -> None:
        producer = self.producers[number]
        waiting = [peer for peer, words in producer.links.items() if words]
        if not waiting:
            return
        peer = waiting[-1 if newest else 0]
        for _ in range(min(count, len(producer.links[peer]))):
            message = producer.links[peer].popleft()
            if isinstance(message, str):
                welcome = self.ordering.hello(peer, producer.id, 30 * S, S)
                assert welcome is not None
                assert welcome[0] > max(producer.told, default=-1), "it forgot what it has answered"
                continue
            for to, answer in self.ordering.publish(
                peer, message, S, 9 * (message.header.sequence in producer.delayed)
            ):
                self.replies.setdefault(to, deque()).append(answer)

    @rule(full=st.integers(0, 5))
    def append(self, full: int) -> None:
        """Give storage all blocks that may be appended now. The append of number `full` fails,
        because the disk is full.
        """
        number = 0
        while (handed := self.ordering.next_append()) is not None:
            request, blocks = handed
            if number == full:
                self.reply(self.ordering.failed(request, E_DISK_FULL, "full"))
            else:
                first_offset = sum(block.count for block in self.disk)
                self.disk += blocks
                self.written.append((request, first_offset, len(self.disk)))
            number += 1
        if (delayed := self.ordering.next_delayed()) is not None:
            request, blocks, delays_ms = delayed
            assert all(ms == 9 for ms in delays_ms)
            if number == full:
                self.reply(self.ordering.failed(request, E_DISK_FULL, "full"))
            else:
                self.delayed.append((Append(request, blocks), len(self.disk)))

    def reply(self, replies: list[Reply]) -> None:
        for to, message in replies:
            self.replies.setdefault(to, deque()).append(message)

    @rule(count=st.integers(1, 4))
    def from_storage(self, count: int) -> None:
        for _ in range(min(count, len(self.answers))):
            answer = self.answers.popleft()
            if answer.keys is not None:
                replies = self.ordering.kept(answer.request, answer.keys)
            elif answer.first_offset is None:
                replies = self.ordering.failed(answer.request, E_DISK_FULL, "full")
            else:
                replies, placed = self.ordering.appended(answer.request, answer.first_offset)
                self.offered += [(offset, block.count) for block, offset in placed]
            self.reply(replies)

    # Storage

    @rule()
    def sync(self) -> None:
        while self.written:
            request, first_offset, self.synced = self.written.popleft()
            self.answers.append(Answer(request, first_offset))

    @rule(full=st.booleans())
    def keep(self, full: bool) -> None:
        while self.delayed and self.delayed[0][1] <= self.synced:
            append, _ = self.delayed.popleft()
            if full:
                self.answers.append(Answer(append.request, None))
                continue
            keys = [(9, len(self.kept) + index) for index in range(len(append.blocks))]
            self.kept += append.blocks
            self.answers.append(Answer(append.request, 0, keys))

    @rule(kept=st.integers(0, 5), dice=st.integers(0, 3))
    def restart(self, kept: int, dice: int) -> None:
        """Restart storage and the topic, which are one process. Any first part of the blocks that
        were not synced may have reached the disk.
        """
        if dice == 2:
            del self.disk[self.synced + kept :]
            del self.offered[:]
            self.start()
            for producer in self.producers:
                producer.reconnect()

    # Invariants

    @invariant()
    def each_once_and_in_order(self) -> None:
        for producer in self.producers:
            stored = [
                block.header.sequence
                for block in self.disk
                if block.header.producer_id == producer.id
            ]
            kept = [
                block.header.sequence
                for block in self.kept
                if block.header.producer_id == producer.id
            ]
            assert stored == sorted(stored)
            assert set(kept) <= producer.delayed
            assert not producer.delayed & set(stored)
            assert sorted(stored + kept) == list(range(len(stored + kept))), (
                "none is stored before the one before it, whatever their kinds"
            )
        for (offset, count), (following, _) in zip(self.offered, self.offered[1:], strict=False):
            assert offset + count == following, "channels are shown all, in order"

    def teardown(self) -> None:
        try:
            for _ in range(400):
                for number, producer in enumerate(self.producers):
                    self.to_topic(number, 6, False)
                    self.append(9)
                    self.sync()
                    self.keep(False)
                    self.from_storage(4)
                    self.read_replies(number, 6)
                    if (
                        producer.unanswered
                        and not any(producer.links.values())
                        and self.ordering.idle()
                        and not self.replies[producer.peer]
                    ):
                        producer.reconnect()
                if not any(producer.unanswered for producer in self.producers):
                    break
            assert not any(producer.unanswered for producer in self.producers)
            assert len(self.disk) + len(self.kept) == sum(
                producer.made for producer in self.producers
            )
        finally:
            self.small.stop()


TestOrdering = OrderingMachine.TestCase
TestOrdering.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
