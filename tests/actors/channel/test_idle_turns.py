"""Tests of what a channel does in a turn without work: it does not loop over its consumers, and it
sends no message that repeats a known fact.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from zsq.actors.channel.due_clock import DueClock
from zsq.actors.channel.lease import Subscriber
from zsq.transport.wire import protocol as p

if TYPE_CHECKING:
    from tests.actors.conftest import ChannelHarness

from .test_channel_actor import Shell

S = 1_000_000_000
A, B = (b"a",), (b"b",)


class Unwalked(dict[tuple[bytes, ...], Subscriber]):
    def values(self) -> Any:
        raise AssertionError("a turn may not look at each of 10,000 consumers")

    def __iter__(self) -> Any:
        self.values()


def test_a_turn_walks_over_no_consumers(harness: ChannelHarness) -> None:
    channel = harness.channel
    for number in range(10):
        harness.join((b"%d" % number,), 1)
    channel.consumers = Unwalked(channel.consumers)
    channel.rest()
    assert channel.is_wanted()
    assert not channel.waits_for_commit()
    assert channel.next_due(harness.now_ns, harness.wall_ns) > harness.now_ns


def test_a_channel_wants_messages_while_some_consumer_accepts_them(harness: ChannelHarness) -> None:
    channel = harness.channel
    assert not channel.is_wanted()
    harness.join(A, 0)
    assert not channel.is_wanted()
    harness.join(B, 2)
    assert channel.is_wanted()
    for ready, wanted in ((3, True), (0, False), (-1, False), (0, False), (1, True)):
        channel.set_ready(B, ready)
        assert channel.is_wanted() is wanted
    harness.join(B, 0)  # the same consumer joins again
    assert not channel.is_wanted()
    channel.set_ready(A, 1)
    channel.set_ready(B, 1)
    channel.unsubscribe(A)
    assert channel.is_wanted()
    channel.paused = True
    assert not channel.is_wanted()
    channel.paused = False
    channel.unsubscribe(B)
    channel.unsubscribe(B)
    assert not channel.is_wanted()


def test_the_first_who_may_be_lost_is_due(harness: ChannelHarness) -> None:
    channel = harness.channel

    def is_due_in(seconds: float) -> bool:
        """Return True if the next scan is due within a second after this time."""
        wait_ns = channel.next_due(harness.now_ns, harness.wall_ns) - harness.now_ns
        return round(seconds * S) < wait_ns <= round((seconds + 1) * S)

    assert channel.next_due(harness.now_ns, harness.wall_ns) == 0
    harness.join(A, 1, heartbeat_ns=30 * S)
    assert is_due_in(60)
    harness.join(B, 1, heartbeat_ns=10 * S)
    assert is_due_in(20)
    channel.consumers[B].seen_ns += 15 * S
    assert is_due_in(20), "the scan finds out"
    harness.scan(20)
    assert is_due_in(15)
    harness.scan(15.1)
    assert list(channel.consumers) == [A]
    assert is_due_in(24.9)
    channel.unsubscribe(A)
    assert channel.next_due(harness.now_ns, harness.wall_ns) == 0
    harness.join(A, 1, heartbeat_ns=40 * S)
    assert is_due_in(80)


def test_clocks_that_drift_are_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deferred message is due by another clock than the monotonic clock of the scan. Here the
    two clocks drift apart a little at each turn. This must not cause a new hint to the scan.
    """
    shell = Shell(0)
    looks = 0

    def wall_ns() -> int:
        nonlocal looks
        looks += 1
        return 1_700_000_000 * S + looks * 500

    now_ns = time.monotonic_ns()
    shell.channel.due_clock = DueClock(wall_ns, wall_ns)
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    shell.channel.supply.deferred.next_due_ns = 1_700_000_060 * S
    hints: list[Any] = [message for _ in range(100) for message in shell.turn("scan")]
    assert [type(message) for message in hints] == [p.Hint]
    shell.channel.supply.deferred.next_due_ns = 1_700_000_050 * S
    news: list[Any] = [*shell.turn("scan")]
    assert [message.next_due_ns < hints[0].next_due_ns - 9 * S for message in news] == [True]
