"""Test of a channel that filters by tags, addresses, age and samples, against a model that knows
the properties and the state of each message.

Whatever order the rules run in, and after crashes too, the following must hold. A delivered message
is wanted and was not too old at that moment. A skipped message is unwanted, too old or left out of
a sample, and it is counted under the first reason that applies. No message is delivered to two
consumers at a time, and none is delivered again after its finish was committed. In the end each
message was finished or skipped.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from zsq.actors.channel.core import ChannelCore
from zsq.actors.channel.lease import Changes, Subscriber
from zsq.actors.settings import options
from zsq.transport.block.block import Block, gather, pack, with_place
from zsq.transport.settings import ChannelSettings
from zsq.transport.wire.codec import CHANNEL_HEADER, pack_headers
from zsq.transport.wire.dead_letter import with_address

S = 1_000_000_000
PEERS: list[tuple[bytes, ...]] = [(b"a",), (b"b",), (b"c",)]
MESSAGE = st.tuples(
    st.sampled_from([None, b"x", b"y", b"z"]), st.sampled_from([None, None, "me", "other"])
)
NEW, LEASED, AGAIN, FINISHED = "new", "leased", "again", "finished"
COUNTERS = {
    "tag": "tag_skipped_count",
    "address": "addressed_skipped_count",
    "old": "expired_count",
    "sampled": "sampled_count",
}
SMALL: dict[str, Any] = {
    "CACHE_BYTES_MAX": 400,
    "HOLE_ROWS_MAX": 12,
    "GATHER_COUNT_MAX": 6,
    "GATHER_BYTES_MAX": 40,
    "LOOKS_MAX": 30,
}


class ChoiceMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.small = mock.patch.multiple(options, **SMALL)
        self.small.start()
        self.log: list[Block] = []
        self.messages: list[tuple[bytes | None, str | None]] = []
        self.states: list[str] = []
        self.now_ns = 1_000 * S
        self.random = random.Random(7)
        self.pending: tuple[Changes, list[str], Counter[str], dict[str, int]] | None = None
        self.safe: tuple[list[str], Counter[str]] = ([], Counter())
        self.stored: tuple[int, dict[int, tuple[int, int]], dict[str, int]] = (0, {}, {})
        self.lives = 0

    @initialize(
        tags=st.sampled_from(["", "x", "x||y"]),
        max_age_s=st.sampled_from([-1, 30.0]),
        rates=st.lists(st.sampled_from([0, 0, 50]), min_size=3, max_size=3),
    )
    def begin(self, tags: str, max_age_s: float, rates: list[int]) -> None:
        self.settings = ChannelSettings(tags=tags, max_age_s=max_age_s)
        self.rates = dict(zip(PEERS, rates, strict=True))
        self.start()

    def start(self) -> None:
        self.lives += 1
        offset, rows, counters = self.stored
        holes = [(start, *row, 0) for start, row in rows.items()]
        self.channel = ChannelCore(
            self.lives,
            offset,
            holes,
            dict(counters),
            False,
            None,
            self.settings,
            "me",
            self.random.random,
        )
        self.leases: dict[int, tuple[tuple[bytes, ...], list[int]]] = {}
        self.pending = None
        self.states, self.skipped = list(self.safe[0]), Counter(self.safe[1])
        self.states = [AGAIN if state == LEASED else state for state in self.states]
        self.states += [NEW] * (len(self.messages) - len(self.states))
        for peer in PEERS:
            self.join(peer, 4)

    @rule(peer=st.sampled_from(PEERS), ready=st.integers(0, 9))
    def join(self, peer: tuple[bytes, ...], ready: int) -> None:
        for token in [token for token, lease in self.leases.items() if lease[0] == peer]:
            self.give_back(token)
        rate = self.rates[peer]
        self.channel.subscribe(
            Subscriber(peer, "", ready, 60 * S, 10_000 * S, self.now_ns, 0, sample_rate=rate)
        )

    def give_back(self, token: int) -> None:
        for offset in self.leases.pop(token)[1]:
            self.states[offset] = AGAIN

    @precondition(lambda self: len(self.messages) < 60)
    @rule(messages=st.lists(MESSAGE, min_size=1, max_size=9), flag=st.booleans())
    def publish(self, messages: list[tuple[bytes | None, str | None]], flag: bool) -> None:
        """If `flag` is True, the messages of the block may have addresses. Otherwise they have
        none.
        """
        if not flag:
            messages = [(tag, None) for tag, _ in messages]
        bodies = [b"%d" % (len(self.messages) + i) for i in range(len(messages))]
        headers = [
            None if channel is None else pack_headers({CHANNEL_HEADER: channel})
            for _, channel in messages
        ]
        tags = [tag for tag, _ in messages]
        block = with_address(pack(bodies, tags=tags, headers=headers), headers)
        self.log.append(with_place(block, len(self.messages), self.now_ns))
        self.messages += messages
        self.states += [NEW] * len(messages)

    def block_of(self, offset: int) -> Block:
        return next(block for block in self.log if block.first_offset <= offset < block.next_offset)

    def age_s(self, offset: int) -> float:
        return (self.now_ns - self.block_of(offset).header.time_ns) / S

    def unwanted(self, offset: int) -> str:
        """Return the first reason to skip the message, or "" if it is wanted."""
        tag, address = self.messages[offset]
        if address not in (None, "me"):
            return "address"
        if self.settings.tags and (tag or b"").decode() not in self.settings.tags.split("||"):
            return "tag"
        return "old" if self.is_old(offset) else ""

    def is_old(self, offset: int) -> bool:
        return self.settings.max_age_s > 0 and self.age_s(offset) > self.settings.max_age_s

    @rule(blocks=st.integers(1, 4))
    def feed(self, blocks: int) -> None:
        supply = self.channel.supply
        for _ in range(blocks):
            if supply.window_end < len(self.messages):
                assert supply.offer(self.block_of(supply.window_end))
        for offset in sorted(supply.wanted)[:blocks]:
            supply.shelve(self.block_of(offset))

    @rule(times=st.integers(1, 4))
    def deliver(self, times: int) -> None:
        self.channel.rest()
        if not self.channel.is_wanted():
            return
        for _ in range(times):
            before = self.channel.supply.next_offset
            counted = {reason: self.channel.counters[name] for reason, name in COUNTERS.items()}
            pending = self.channel.next_delivery(self.now_ns, self.now_ns)
            got = (
                []
                if pending is None
                else [
                    offset
                    for start, count, _ in pending.runs
                    for offset in range(start, start + count)
                ]
            )
            for offset in got:
                assert not self.is_old(offset)
                assert self.states[offset] == AGAIN or (
                    self.states[offset] == NEW and not self.unwanted(offset)
                )
                self.states[offset] = LEASED
            if pending is not None:
                assert gather(pending.parts).body.values() == [b"%d" % offset for offset in got]
                self.leases[pending.token] = pending.peer, got
                assert (
                    self.channel.consumers[pending.peer].in_flight
                    <= self.channel.consumers[pending.peer].ready
                )
            self.passed(before, counted)
            if pending is None:
                return

    def passed(self, before: int, counted: dict[str, int]) -> None:
        """Update the model with the messages that the cursor has passed since `before`, and with
        the redeliveries that were given up.
        """
        reasons: Counter[str] = Counter()
        for offset in range(before, self.channel.supply.next_offset):
            if self.states[offset] == NEW:
                reasons[self.unwanted(offset) or "sampled"] += 1
                self.states[offset] = FINISHED
        again = self.channel.supply.again
        held = {
            offset for start, count, _ in again.unsent() for offset in range(start, start + count)
        }
        for offset, state in enumerate(self.states):
            if state == AGAIN and offset not in held:
                assert self.is_old(offset)
                reasons["old"] += 1
                self.states[offset] = FINISHED
        assert {
            reason: self.channel.counters[name] - counted[reason]
            for reason, name in COUNTERS.items()
        } == {reason: reasons[reason] for reason in COUNTERS}
        assert not reasons["sampled"] or any(self.rates.values())
        self.skipped += reasons

    @precondition(lambda self: self.leases)
    @rule(number=st.integers(0, 9), requeue=st.booleans(), part=st.booleans())
    def answer(self, number: int, requeue: bool, part: bool) -> None:
        token = list(self.leases)[number % len(self.leases)]
        peer, offsets = self.leases[token]
        ranges = [(offsets[0], 1)] if part else []
        refused = (
            self.channel.req(peer, token, ranges, 0, self.now_ns)
            if requeue
            else self.channel.fin(peer, token, ranges)
        )
        assert not refused
        for offset in offsets[:1] if part else list(offsets):
            self.states[offset] = AGAIN if requeue else FINISHED
            offsets.remove(offset)
        if not offsets:
            del self.leases[token]

    @rule(seconds=st.sampled_from([1, 20, 61]))
    def scan(self, seconds: int) -> None:
        """Advance the clock. After a minute all leases have ended."""
        self.now_ns += seconds * S
        self.channel.scan(self.now_ns, self.now_ns)
        for token in [token for token in self.leases if token not in self.channel._leases]:
            self.give_back(token)

    # Commits and crashes

    @rule()
    def commit(self) -> None:
        if self.pending is None:
            self.pending = (
                self.channel.changes(),
                list(self.states),
                Counter(self.skipped),
                dict(self.channel.counters),
            )
        else:
            self.store()
            self.channel.supply.committed()

    def store(self) -> None:
        assert self.pending is not None
        changes, states, skipped, counters = self.pending
        rows = {
            start: row for start, row in self.stored[1].items() if start not in changes.holes_gone
        }
        rows |= {start: (count, attempts) for start, count, attempts, _ in changes.holes_put}
        self.stored = changes.next_offset, rows, counters
        self.safe = states, skipped
        self.pending = None
        unfinished = sorted(start + i for start, row in rows.items() for i in range(row[0]))
        assert unfinished == [
            offset for offset in range(changes.next_offset) if states[offset] != FINISHED
        ]

    @rule(dice=st.integers(0, 3), written=st.booleans())
    def crash(self, dice: int, written: bool) -> None:
        if dice == 3:
            if self.pending is not None and written:
                self.store()
            self.start()

    @invariant()
    def statistics_agree(self) -> None:
        if self.lives:
            found: Mapping[str, Any] = self.channel.statistics(len(self.messages))
            assert found["depth"] == self.states.count(NEW) + self.states.count(AGAIN)
            assert found["in_flight_count"] == self.states.count(LEASED)
            assert {reason: found[name] for reason, name in COUNTERS.items()} == {
                reason: self.skipped[reason] for reason in COUNTERS
            }

    def teardown(self) -> None:
        try:
            if self.lives:
                self.end()
        finally:
            self.small.stop()

    def end(self) -> None:
        for peer in PEERS:
            self.join(peer, 100)
        for _ in range(150):
            if set(self.states) <= {FINISHED}:
                break
            self.commit()
            self.feed(4)
            self.deliver(4)
            for _ in range(len(self.leases)):
                self.answer(0, False, False)
        assert set(self.states) <= {FINISHED}
        for _ in range(3):
            self.commit()
        assert self.stored[:2] == (len(self.messages), {})


TestChoice = ChoiceMachine.TestCase
TestChoice.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
