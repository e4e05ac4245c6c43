"""Tests with bits that flip in the broker's memory: no consumer may receive them. Each place that
computes a new checksum from stored bytes checks the old checksum first.

The blocks of these tests are kept in byte arrays, so that a test can change what a channel, the
ring or the dead letters hold.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.actors.conftest import ChannelHarness, DyingChannelHarness
from zsq.actors.channel.dead_letters import letters
from zsq.actors.channel.lease import OutgoingDelivery
from zsq.transport.block import block as block_module
from zsq.transport.block.block import Block, cut, gather, pack, with_place
from zsq.transport.errors import CorruptBlock

ME = (b"me",)


def in_memory(block: Block) -> Block:
    """Return a copy of the block whose payload can be changed."""
    return Block(block.header, bytearray(block.payload))


def flip(block: Block, what: bytes) -> None:
    at = bytes(block.payload).index(what)
    block.payload[at] ^= 0x40


def full(count: int = 40) -> Block:
    bodies = [b"body %04d" % i * (i % 3 + 1) for i in range(count)]
    keys = [None if i % 5 == 0 else b"key %d" % i for i in range(count)]
    return pack(
        bodies,
        keys=keys,
        tags=[b"tag"] * count,
        headers=[b"h%d" % i for i in range(count)],
        times=range(count),
    )


def seven(block: Block, start: int) -> Block:
    return cut(block, start, start + 7)


def eight(block: Block, start: int) -> Block:
    return gather([(block, start, start + 3), (block, start + 5, start + 10)])


def rows(block: Block) -> list[Any]:
    columns = [
        column and column.values() for column in (block.body, block.key, block.tag, block.headers)
    ]
    return [columns, [block.time_of(i) for i in range(block.count)]]


@pytest.mark.parametrize("checked_before", [False, True])
def test_a_slice_is_right_or_refused_wherever_a_byte_changes(
    checked_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_module, "PIECE_BYTES", 64)
    whole = full()
    found = 0
    for at in range(len(whole.payload) - 8):
        start = at % 30
        block = in_memory(whole)
        if checked_before:
            block.check()
        block.payload[at] ^= 1 << at % 8
        for make in (seven, eight):
            try:
                made = make(block, start)
            except CorruptBlock:
                found += 1
                continue
            assert rows(made) == rows(make(whole, start))
            assert checked_before, "the first check covers all of the block"
    assert found


def test_only_the_pieces_of_a_slice_are_checked_again() -> None:
    block = in_memory(pack([bytes(1_000)] * 1_000))
    cut(block, 0, 10)
    block.payload[500_000] ^= 1
    cut(block, 10, 20)
    with pytest.raises(CorruptBlock, match="do not match their checksum"):
        cut(block, 490, 510)


class Bits(ChannelHarness):
    """A channel whose storage is intact, whatever happens to its memory."""

    def __init__(self, next_offset: int = 0, **settings: Any) -> None:
        super().__init__(next_offset, **settings)
        self.stored: list[Block] = []
        self.held: list[Block] = []
        self.got: dict[int, tuple[bytes | None, int]] = {}

    def publish(self, block: Block) -> Block:
        """Publish the block and return the copy in memory that the channel holds."""
        placed = with_place(block, self.end, self.wall_ns)
        self.stored.append(placed)
        self.end = placed.next_offset
        held = in_memory(placed)
        assert self.channel.supply.offer(held)
        return held

    def storage(self) -> None:
        """Answer what the channel requests from storage."""
        supply = self.channel.supply
        if supply.reread:
            supply.reread = False
            for block in self.stored:
                supply.offer(block, from_storage=True)
        for offset in sorted(supply.wanted):
            for block in self.stored:
                if block.first_offset <= offset < block.next_offset:
                    supply.shelve(block)

    def run(self) -> None:
        """Deliver, finish, commit and read until no more messages are delivered."""
        for _ in range(14):
            for pending in self.send():
                self.take(pending)
                self.channel.fin(pending.peer, pending.token, ())
            self.commit()
            self.storage()

    def take(self, pending: OutgoingDelivery) -> None:
        bodies = iter(pending.block.body.values())
        for first, count, attempts in pending.runs:
            for offset in range(first, first + count):
                self.got[offset] = next(bodies), attempts

    def all_is_right(self) -> None:
        assert self.got == {offset: (b"message %04d" % offset, 1) for offset in range(self.end)}


def messages(first: int, count: int, **columns: Any) -> Block:
    return pack([b"message %04d" % i for i in range(first, first + count)], **columns)


CASES: dict[str, Callable[[], Bits]] = {
    "plain": Bits,
    "tags": lambda: Bits(tags="a||b"),
    "ordered": lambda: Bits(ordered=True),
    "priorities": lambda: Bits(priorities=2),
    # A message that could not be sent has not used an attempt.
    "one attempt": lambda: Bits(max_attempts=1),
}


@pytest.mark.parametrize("kind", CASES)
def test_a_flip_before_the_first_slice_is_read_from_storage(kind: str) -> None:
    harness = CASES[kind]()
    harness.join(ME, 7)
    held = harness.publish(messages(0, 40, tags=[b"a"] * 40, keys=[b"k%d" % i for i in range(40)]))
    flip(held, b"message 0020")
    harness.run()
    harness.all_is_right()
    assert harness.channel.supply.corrupt_count == 1


@pytest.mark.parametrize("kind", CASES)
def test_a_flip_after_the_first_slice_is_read_from_storage(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_module, "PIECE_BYTES", 64)
    harness = CASES[kind]()
    harness.join(ME, 7)
    held = harness.publish(messages(0, 40, tags=[b"a"] * 40, keys=[b"k%d" % i for i in range(40)]))
    pending = harness.channel.next_delivery(harness.now_ns, harness.wall_ns)
    assert pending is not None
    harness.take(pending)
    flip(held, b"message 0020")
    harness.channel.fin(ME, pending.token, ())
    harness.run()
    harness.all_is_right()
    assert harness.channel.supply.corrupt_count >= 1


def test_a_flipped_tag_skips_no_message() -> None:
    harness = Bits(tags="wanted")
    harness.join(ME, 100)
    held = harness.publish(messages(0, 10, tags=[b"wanted"] * 10))
    flip(held, b"wanted")
    harness.run()
    harness.all_is_right()
    assert harness.channel.counters["tag_skipped_count"] == 0


def test_a_flip_in_what_was_requeued_is_read_from_storage() -> None:
    harness = Bits()
    harness.join(ME, 40)
    held = harness.publish(messages(0, 40))
    pending = harness.send_one()
    assert pending.block is held, "it goes out whole"
    harness.channel.req(ME, pending.token, (), 0, harness.wall_ns)
    flip(held, b"message 0020")
    harness.run()
    assert {body for body, _ in harness.got.values()} == {b"message %04d" % i for i in range(40)}
    assert {attempts for _, attempts in harness.got.values()} == {2}


def test_a_block_refused_for_a_flipped_bit_is_read_from_storage_again() -> None:
    """The consumer finds the flipped bit, leaves and joins again. The channel must not send it the
    same bytes again and again.
    """
    harness = Bits()
    harness.join(ME, 40)
    held = harness.publish(messages(0, 40))
    held.check()  # a delivery of a part of the block would also check it
    flip(held, b"message 0020")
    pending = harness.send_one()
    with pytest.raises(CorruptBlock):
        pending.block.check()
    harness.channel.unsubscribe(ME)
    harness.join(ME, 40)
    harness.run()
    assert {body for body, _ in harness.got.values()} == {b"message %04d" % i for i in range(40)}


def test_a_message_with_a_flipped_bit_does_not_become_a_dead_letter() -> None:
    harness = DyingChannelHarness(1)
    harness.join(ME, 3)
    block = in_memory(with_place(messages(0, 3), 0, 7))
    harness.channel.supply.offer(block)
    pending = harness.send_one()
    harness.channel.req(ME, pending.token, (), 0, harness.wall_ns)
    flip(block, b"message 0001")
    supply = harness.channel.supply
    assert supply.next_dead() == [], "it is read again first"
    assert supply.wanted == {0}
    sound = in_memory(with_place(messages(0, 3), 0, 7))
    supply.shelve(sound)
    batch = supply.next_dead()
    flip(sound, b"message 0001")
    with pytest.raises(CorruptBlock):
        letters(batch, "t", "u", "c", 1)
    supply.take_back_dead()
    assert (supply.dying.messages(), supply.dying.out) == (3, ())
    assert supply.next_dead() == []
    supply.shelve(with_place(messages(0, 3), 0, 7))
    (letter,) = letters(supply.next_dead(), "t", "u", "c", 1)
    assert letter.body.values() == [b"message 0000", b"message 0001", b"message 0002"]


def test_random_flips_and_settings_deliver_every_message_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(block_module, "PIECE_BYTES", 64)
    for seed in range(60):
        dice = random.Random(seed)
        harness = CASES[dice.choice(["plain", "tags", "ordered", "priorities"])]()
        harness.join(ME, dice.randint(1, 30))
        held = [
            harness.publish(
                messages(i * 20, 20, tags=[b"a"] * 20, keys=[b"k%d" % j for j in range(20)])
            )
            for i in range(3)
        ]
        for _ in range(2):
            pending = harness.channel.next_delivery(harness.now_ns, harness.wall_ns)
            if pending is not None:
                harness.channel.req(ME, pending.token, (), 0, harness.wall_ns)
            victim = dice.choice(held)
            victim.payload[dice.randrange(len(victim.payload) - 8)] ^= 1 << dice.randrange(8)
        for _ in range(200):
            harness.channel.rest()
            pending = harness.channel.next_delivery(harness.now_ns, harness.wall_ns)
            if pending is not None and is_sound(pending.block):
                harness.take(pending)
                harness.channel.fin(ME, pending.token, ())
            elif pending is not None:
                harness.channel.unsubscribe(ME)
                harness.join(ME, 10)
            harness.commit()
            harness.storage()
        assert {offset: body for offset, (body, _) in harness.got.items()} == {
            i: b"message %04d" % i for i in range(60)
        }, seed


def is_sound(block: Block) -> bool:
    """Return True if a consumer would accept the block."""
    try:
        block.check()
    except CorruptBlock:
        return False
    return True


@pytest.mark.parametrize(("first", "room"), [(0, 7), (5, 100)], ids=["its beginning", "its end"])
def test_a_block_with_a_flip_stays_in_the_window_when_a_part_of_it_is_next(
    first: int, room: int
) -> None:
    harness = Bits(first)
    harness.join(ME, room)
    held = in_memory(with_place(messages(0, 40), 0, harness.wall_ns))
    assert harness.channel.supply.offer(held)
    flip(held, b"message 0020")
    assert harness.channel.next_delivery(harness.now_ns, harness.wall_ns) is None
    assert (harness.channel.supply.next_offset, harness.channel.supply.reread) == (first, True)
