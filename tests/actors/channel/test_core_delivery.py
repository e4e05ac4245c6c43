"""Tests of deliveries by the channel core: credit, turns, and answers under a lease."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from zsq.actors.channel.core import UNKNOWN_DELIVERY, ChannelCore
from zsq.actors.channel.lease import Subscriber
from zsq.actors.settings import options
from zsq.transport.block.block import pack
from zsq.transport.errors import UsageError

if TYPE_CHECKING:
    from tests.actors.conftest import ChannelHarness

A, B = (b"a",), (b"b",)
ALL: tuple[tuple[int, int], ...] = ()

# Credit and turns


@pytest.mark.parametrize(
    ("ready", "blocks", "sent"),
    [
        ({"a": 0}, [5], []),
        ({"a": 3}, [5], [("a", 0, 3)]),
        ({"a": 5}, [5], [("a", 0, 5)]),
        ({"a": 9}, [5], [("a", 0, 5)]),
        ({"a": 9}, [5, 5], [("a", 0, 5), ("a", 5, 4)]),
        ({"a": 2, "b": 2}, [5], [("a", 0, 2), ("b", 2, 2)]),
        ({"a": 10, "b": 10}, [5, 5], [("a", 0, 5), ("b", 5, 5)]),
        ({"a": 10, "b": 0, "c": 10}, [5, 5], [("a", 0, 5), ("c", 5, 5)]),
        (
            {"a": 9, "b": 9, "c": 9},
            [3, 3, 3, 3],
            [("a", 0, 3), ("b", 3, 3), ("c", 6, 3), ("a", 9, 3)],
        ),
    ],
)
def test_credit_is_kept_and_consumers_take_turns(
    harness: ChannelHarness,
    ready: dict[str, int],
    blocks: list[int],
    sent: list[tuple[str, int, int]],
) -> None:
    for name, credit in ready.items():
        harness.join((name.encode(),), credit)
    harness.come(*blocks)
    assert harness.told(harness.send()) == [
        (name, ((first, count, 1),)) for name, first, count in sent
    ]
    assert harness.stats()[1] == sum(count for _, _, count in sent)


def test_more_credit_sends_more_and_less_sends_none(harness: ChannelHarness) -> None:
    harness.join(A, 2)
    harness.come(10)
    first = harness.send_one()
    harness.channel.set_ready(A, 4)
    assert harness.told(harness.send()) == [("a", ((2, 2, 1),))]
    harness.channel.set_ready(A, 1)
    harness.channel.fin(A, first.token, ALL)
    assert harness.send() == []
    harness.channel.set_ready(A, -5)
    assert not harness.channel.is_wanted()


def test_consumers_that_back_off_are_counted_until_they_go_on_or_leave(
    harness: ChannelHarness,
) -> None:
    harness.join(A, 2)
    harness.join(B, 2)
    channel, second = harness.channel, 1_000_000_000

    def shown() -> tuple[int, list[float | None]]:
        rows = [consumer.statistics(second)["backoff_s"] for consumer in channel.consumers.values()]
        return channel.statistics(0)["backing_off_count"], rows

    assert shown() == (0, [None, None])
    channel.set_ready(A, 0, 9 * second)
    channel.set_ready(B, 0, 3 * second)
    assert shown() == (2, [8, 2])
    channel.set_ready(A, 1, second)
    assert shown() == (2, [0, 2]), "its probe is under way"
    channel.set_ready(A, 2)
    assert shown() == (1, [None, 2])
    channel.unsubscribe(B)
    assert shown() == (0, [None])
    channel.set_ready(A, 2, -second)
    assert shown() == (0, [None]), "a client may send anything"


def test_a_channel_without_messages_does_not_change_whose_turn_it_is(
    harness: ChannelHarness,
) -> None:
    harness.join(A, 1)
    harness.join(B, 1)
    assert harness.send() == []
    harness.come(1)
    assert harness.told(harness.send()) == [("a", ((0, 1, 1),))]


def test_tokens_are_of_this_incarnation_and_never_used_twice(harness: ChannelHarness) -> None:
    harness.join(A, 100)
    harness.come(1, 1, 1)
    tokens = [pending.token for pending in harness.send()]
    assert len(set(tokens)) == 3
    assert {token >> 32 for token in tokens} == {5}


# Answers


@pytest.mark.parametrize(
    ("peer", "stale", "ranges", "refused", "in_flight"),
    [
        (A, False, ALL, (), 0),
        (A, False, ((2, 3),), (), 7),
        (A, False, ((0, 2), (8, 2)), (), 6),
        (A, False, ((8, 4),), ((10, 2),), 8),
        (A, False, ((1, 1), (1, 1)), ((1, 1),), 9),
        (A, False, ((50, 1),), ((50, 1),), 10),
        (A, True, ALL, (UNKNOWN_DELIVERY,), 10),
        (A, True, ((1, 2),), ((1, 2),), 10),
        (B, False, ALL, (UNKNOWN_DELIVERY,), 10),
        (B, False, ((1, 2),), ((1, 2),), 10),
    ],
)
@pytest.mark.parametrize("verb", ["fin", "req"])
def test_answers_are_taken_under_the_lease_only(
    harness: ChannelHarness,
    verb: str,
    peer: tuple[bytes, ...],
    stale: bool,
    ranges: Any,
    refused: Any,
    in_flight: int,
) -> None:
    harness.join(A, 10)
    harness.join(B, 0)
    harness.come(10)
    token = harness.send_one().token + stale
    if verb == "fin":
        found = harness.channel.fin(peer, token, ranges)
        assert harness.channel.counters["finish_count"] == 10 - in_flight
    else:
        found = harness.channel.req(peer, token, ranges, 0, harness.wall_ns)
        assert harness.channel.counters["requeue_count"] == 10 - in_flight
    assert tuple(found) == refused
    assert harness.stats() == (0 if verb == "fin" else 10 - in_flight, in_flight, 0)
    assert harness.channel.consumers[A].in_flight == in_flight


@pytest.mark.parametrize(
    "ranges",
    [((1,),), (("a", 1),), ((1.5, 1),), (1, 2), ((1, 2, 3),), ((None, 1),), ((1, 1),) * 10_001],
)
def test_ranges_that_are_none_are_refused_and_change_nothing(
    harness: ChannelHarness, ranges: Any
) -> None:
    harness.join(A, 10)
    harness.come(10)
    token = harness.send_one().token
    with pytest.raises(UsageError):
        harness.channel.fin(A, token, ranges)
    with pytest.raises(UsageError):
        harness.channel.req(A, token, ranges, 0, 0)
    assert harness.stats() == (0, 10, 0)


def test_an_answer_after_the_timeout_changes_nothing(harness: ChannelHarness) -> None:
    harness.join(A, 10)
    harness.come(10)
    old = harness.send_one()
    assert harness.scan(61)
    assert harness.channel.fin(A, old.token, ALL) == (UNKNOWN_DELIVERY,)
    assert harness.channel.fin(A, old.token, [(3, 2)]) == ((3, 2),)
    assert harness.channel.touch(A, old.token, harness.now_ns) == (UNKNOWN_DELIVERY,)
    harness.commit()
    new = harness.send_one()
    assert new.runs == ((0, 10, 2),)
    assert harness.channel.fin(A, old.token, ALL) == (UNKNOWN_DELIVERY,)
    assert harness.stats() == (0, 10, 0)


def test_each_message_of_a_gathered_delivery_is_answered_by_itself(harness: ChannelHarness) -> None:
    """Messages that are requeued one by one are gathered into one delivery. Its runs are in the
    order of the commits in which they were requeued, and by offset within one commit.
    """
    harness.join(A, 10)
    harness.come(10)
    token = harness.send_one().token
    for offsets in ((7,), (5, 2)):
        for offset in offsets:
            harness.channel.req(A, token, [(offset, 1)], 0, harness.wall_ns)
        harness.commit()
    harness.channel.fin(A, token, ALL)
    pending = harness.send_one()
    assert pending.runs == ((7, 1, 2), (2, 1, 2), (5, 1, 2))
    assert not harness.channel.fin(A, pending.token, [(2, 1)])
    assert not harness.channel.fin(A, pending.token, [(5, 1), (7, 1)])
    assert harness.stats() == (0, 0, 0)


def test_messages_that_storage_does_not_have_are_skipped() -> None:
    """The log is damaged at its start and between two blocks. The cursor skips the missing offsets,
    counts them as lost, and continues with the next block.
    """
    channel = ChannelCore(1, 0, (), {}, paused=False)
    channel.subscribe(Subscriber((b"a",), "", 100, 60, 60, 0, 0))
    channel.supply.step_over(3)
    assert (channel.supply.next_offset, channel.supply.window_end) == (3, 3)
    assert channel.supply.offer(pack([b"3", b"4"], first_offset=3), from_storage=True)
    channel.supply.step_over(8)
    assert channel.supply.offer(pack([b"8"], first_offset=8), from_storage=True)
    first, second = channel.next_delivery(0, 0), channel.next_delivery(0, 0)
    assert first is not None
    assert second is not None
    assert (first.runs, second.runs) == (((3, 2, 1),), ((8, 1, 1),))
    assert channel.counters["lost_count"] == 3 + 3
    assert channel.next_delivery(0, 0) is None


def test_a_consumer_that_does_not_answer_holds_a_bound_of_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Credit counts messages. Without a limit in bytes, a consumer that never reads could hold as
    many messages of one megabyte as its credit allows.
    """
    monkeypatch.setattr(options, "CONSUMER_BYTES_MAX", 1_000)
    channel = ChannelCore(1, 0, (), {}, paused=False)
    channel.subscribe(Subscriber(A, "", 100, 60, 60, 0, 0))
    for offset in range(3):
        assert channel.supply.offer(pack([b"x" * 900], first_offset=offset))
    first, second = channel.next_delivery(0, 0), channel.next_delivery(0, 0)
    assert first is not None
    assert second is not None, "the first was below the bound"
    assert channel.next_delivery(0, 0) is None
    assert not channel.fin(A, first.token, ())
    assert channel.next_delivery(0, 0) is not None
