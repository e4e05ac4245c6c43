"""Tests of when an ephemeral channel reports its end, and how often."""

from __future__ import annotations

from zsq.actors.channel.last_consumer import LastConsumer
from zsq.actors.settings.options import EPHEMERAL_UNUSED_S

S = 1_000_000_000
UNUSED = int(EPHEMERAL_UNUSED_S * S)


def test_the_last_consumer_that_leaves_ends_the_channel() -> None:
    last = LastConsumer(5)
    assert [last.look(count, 10) for count in (0, 1, 2, 1)] == [False] * 4
    assert not last.over
    assert last.look(0, 11)
    assert last.over


def test_an_ephemeral_channel_without_consumers_ends_after_a_while() -> None:
    last = LastConsumer(5)
    assert not last.look(0, 5 + UNUSED - 1)
    assert last.look(0, 5 + UNUSED)


def test_a_channel_with_a_consumer_does_not_end_however_long_it_is_idle() -> None:
    last = LastConsumer(0)
    assert not last.look(1, 10 * UNUSED)


def test_the_end_is_reported_each_second_and_never_taken_back() -> None:
    last = LastConsumer(0)
    last.look(1, 1)
    assert [
        last.look(count, at)
        for count, at in ((0, S), (0, S + 1), (1, 2 * S - 1), (1, 2 * S), (0, 2 * S + 1))
    ] == [
        True,
        False,
        False,
        True,
        False,
    ]
    assert last.over
