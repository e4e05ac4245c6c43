"""Tests of what a peek shows of a channel, and of which consumers a channel accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.actors.conftest import ChannelHarness
from zsq.actors.channel.admission import consumer_of
from zsq.actors.channel.peeks import Peeks
from zsq.actors.settings import options
from zsq.actors.statistics.schema import COUNTERS
from zsq.transport.block.block import pack
from zsq.transport.errors import Refused, UsageError
from zsq.transport.wire import protocol as p

if TYPE_CHECKING:
    from collections.abc import Sequence

A, B, C = (b"a",), (b"b",), (b"c",)
S = 1_000_000_000


def look(
    harness: ChannelHarness,
    limit: int = 10,
    rows: Sequence[tuple[int, int, int, int]] | None = None,
) -> dict[str, Any]:
    """Peek at the channel and return the answer. `rows` are the deferred rows that the store
    returns. By default they are the rows that were committed.
    """
    peeks = Peeks("c")
    order = p.Peek(7, limit, 0, harness.end)
    message = peeks.begin(3, order, harness.channel, harness.now_ns, harness.wall_ns)
    assert (message.request, message.channel) == (3, "c")
    assert message.limit in (limit, options.PEEK_MAX)
    if rows is None:
        rows = sorted(
            (row for row in harness.kept.values() if row[3] <= message.until_ns),
            key=lambda row: row[3],
        )[:limit]
    assert peeks.answered(4, rows, harness.channel) is None
    found = peeks.answered(3, rows, harness.channel)
    assert found is not None
    assert found.request == 7
    assert peeks.answered(3, rows, harness.channel) is None, "each is answered once"
    return found.data


def held(found: dict[str, Any], state: str) -> list[tuple[int, int, int]]:
    return [
        (row["offset"], row["count"], row["attempts"])
        for row in found["held"]
        if row["state"] == state
    ]


def test_what_blocks_an_ordered_channel_is_shown_whatever_its_state() -> None:
    """Keys b and c have failed, and messages of all three keys wait."""
    harness = ChannelHarness(ordered=True)
    harness.join(A, 10)
    harness.take_in(pack([b""] * 9, keys=[b"a", b"b", b"c"] * 3))
    harness.take_in(pack([b""] * 20, keys=[b"x%d" % number for number in range(20)]))
    token = harness.send_one().token
    harness.channel.req(A, token, ((1, 1),), 1_000, harness.wall_ns, "late")
    harness.channel.req(A, token, ((2, 1),), 0, harness.wall_ns, "again")
    harness.commit()
    found = look(harness, 2)
    assert [
        (row["offset"], row["state"], row["blocks"], row.get("error"))
        for row in found["held"]
        if "blocks" in row
    ] == [(2, "requeued", 2, "again"), (1, "deferred", 2, "late")]
    assert (0, "in flight", 2) in [
        (row["offset"], row["state"], row.get("blocks")) for row in look(harness, 3)["held"]
    ]
    assert found["counts"]["in flight"] == 8
    assert [row["offset"] for row in found["held"] if row["state"] == "in flight"] == [0, 9]
    blocked = harness.channel.details(harness.now_ns, harness.wall_ns).get("blocked_by", ())
    assert [(row["offset"], row["waiting"], row["error"]) for row in blocked] == [
        (1, 2, "late"),
        (2, 2, "again"),
    ]


def test_everything_a_channel_holds_is_shown_in_its_state(harness: ChannelHarness) -> None:
    harness.join(A, 4)
    harness.come(12)
    first = harness.send_one()
    harness.channel.req(A, first.token, ((0, 1),), 0, harness.wall_ns)
    harness.channel.req(A, first.token, ((1, 1),), 90_000, harness.wall_ns)
    harness.now_ns += 2 * S
    before = harness.channel.statistics(harness.end)
    found = look(harness)
    assert harness.channel.statistics(harness.end) == before, "nothing has changed by it"
    assert held(found, "in flight") == [(2, 2, 1)]
    assert held(found, "requeued") == [(0, 1, 1)]
    assert held(found, "deferred") == [(1, 1, 1)], "not committed yet, and held here"
    (out,) = [row for row in found["held"] if row["state"] == "in flight"]
    assert (out["consumer"], out["held_ms"], out["left_ms"]) == ("a", 2_000, 58_000)
    (later,) = [row for row in found["held"] if row["state"] == "deferred"]
    assert later["due_ns"] == harness.wall_ns + 90 * S
    assert (
        found["next_offset"],
        found["head"],
        found["start"],
        found["paused"],
        found["wall_ns"],
    ) == (4, 12, 0, False, harness.wall_ns)
    assert found["counts"] == {
        "requeued": 1,
        "parked": 0,
        "in flight": 2,
        "held": 0,
        "deferred": 1,
        "dying": 0,
    }
    assert found["settings"] == harness.channel.settings.as_dict()


def test_attempts_are_those_that_were_made(harness: ChannelHarness) -> None:
    """A message that waits for redelivery has used no further attempt, whether the number of its
    attempts is in a commit or committed.
    """
    harness.join(A, 1)
    harness.come(3)
    harness.channel.req(A, harness.send_one().token, (), 0, harness.wall_ns)
    assert held(look(harness), "requeued") == [(0, 1, 1)]
    changes = harness.channel.changes()
    assert changes.holes_put == ((0, 1, 1, 0),)
    assert held(look(harness), "requeued") == [(0, 1, 1)], "committing"
    harness.channel.supply.committed()
    assert held(look(harness), "requeued") == [(0, 1, 1)], "ready"
    assert held(look(harness), "in flight") == []


def test_deferred_messages_are_shown_once_wherever_they_are_kept(harness: ChannelHarness) -> None:
    harness.join(A, 10)
    harness.come(10)
    token = harness.send_one().token
    for offset, delay_ms in ((0, 30_000), (1, 20_000), (2, 10_000), (3, 40_000)):
        harness.channel.req(A, token, ((offset, 1),), delay_ms, harness.wall_ns)
    due = [(2, 1, 1), (1, 1, 1), (0, 1, 1), (3, 1, 1)]
    assert held(look(harness), "deferred") == due
    before = dict(harness.kept)
    harness.channel.changes()
    assert held(look(harness, rows=[*before.values()]), "deferred") == due, "on their way"
    harness.channel.supply.committed()
    harness.kept = {
        offset: (offset, 1, 1, harness.wall_ns + ms * 1_000_000)
        for offset, ms in ((0, 30_000), (1, 20_000), (2, 10_000), (3, 40_000))
    }
    assert held(look(harness), "deferred") == due, "in the store"
    assert held(look(harness, limit=2), "deferred") == due[:2]
    harness.scan(25)
    found = look(harness)
    assert held(found, "requeued") == sorted(due[:2]), (
        "came due, and the store still has them: in the order of their offsets"
    )
    assert held(found, "deferred") == due[2:]
    harness.channel.seek(5)
    assert look(harness)["held"] == [], "cleared, and the store has not heard of it"


def test_a_look_is_bounded(harness: ChannelHarness) -> None:
    harness.join(A, 100)
    harness.come(*[1] * 60)
    harness.send()
    harness.join(B, 100)
    harness.come(*[1] * 60)
    harness.send()
    harness.channel.unsubscribe(A)
    found = look(harness, limit=7)
    assert [sum(row[1] for row in held(found, state)) for state in ("in flight", "requeued")] == [
        7,
        7,
    ]
    harness.come(500)
    harness.channel.set_ready(B, 1_000)
    harness.send()
    assert sum(row[1] for row in held(look(harness, limit=65), "in flight")) == 65, "a run is cut"
    peeks = Peeks("c")
    for number in range(options.FETCHES_MAX):
        peeks.begin(number, p.Peek(number, 10**9, 0, 0), harness.channel, 0, 0)
    with pytest.raises(Refused, match=f"limit of {options.FETCHES_MAX} peeks"):
        peeks.begin(99, p.Peek(99, 1, 0, 0), harness.channel, 0, 0)
    assert [peeks.failed(number) for number in (1, 1, 2, 99)] == [1, 0, 2, 0]
    assert peeks.begin(50, p.Peek(5, 10**9, 0, 0), harness.channel, 0, 0).limit == options.PEEK_MAX


# Which consumers are accepted


def sub(harness: ChannelHarness, peer: tuple[bytes, ...], **changes: Any) -> None:
    facts: dict[str, Any] = {
        "request": 1,
        "version": p.PROTOCOL_VERSION,
        "ready": 5,
        "message_timeout_ms": 0,
    }
    facts |= {"heartbeat_ms": 10_000, "label": "x"}
    harness.channel.subscribe(
        consumer_of(
            p.Sub(**(facts | changes)), peer, harness.channel, harness.now_ns, harness.wall_ns
        )
    )


def test_the_number_of_consumers_of_a_channel_is_bounded(harness: ChannelHarness) -> None:
    harness.channel.configure(type(harness.channel.settings)(max_consumers=2))
    sub(harness, A)
    sub(harness, B)
    sub(harness, B)  # the same consumer subscribes again, on the same link
    with pytest.raises(Refused, match="has 2 consumers; the limit is 2") as error:
        sub(harness, C)
    assert error.value.code == "E_LIMIT"
    harness.channel.unsubscribe(A)
    sub(harness, C)
    assert {*harness.channel.consumers} == {B, C}
    harness.channel.configure(type(harness.channel.settings)(max_consumers=1))
    assert {*harness.channel.consumers} == {B, C}, "those that are there stay"
    with pytest.raises(Refused):
        sub(harness, A)


def test_a_lost_consumer_holds_no_place(harness: ChannelHarness) -> None:
    """The channel has not heard from the consumer for two heartbeats, but the scan has not removed
    it yet. A new consumer takes its place and gets the messages that the lost consumer held.
    """
    harness.channel.configure(type(harness.channel.settings)(max_consumers=1))
    sub(harness, A)
    harness.come(5)
    assert harness.told(harness.send()) == [("a", ((0, 5, 1),))]
    harness.now_ns += 20 * S
    with pytest.raises(Refused):
        sub(harness, B)
    harness.now_ns += 1
    sub(harness, B)
    assert {*harness.channel.consumers} == {B}
    harness.commit()
    assert harness.told(harness.send()) == [("b", ((0, 5, 2),))]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"version": 2}, "protocol version 1, not 2"), ({"ready": -1}, "0 to .*, not -1"), ({"ready": p.READY_MAX + 1}, "must be 0 to"),
        ({"message_timeout_ms": 999}, "not 999 ms"), ({"message_timeout_ms": 86_400_001}, "must be 1000 to 86400000 ms"),
        ({"sample_rate": 100}, "sample rate .* not 100"), ({"sample_rate": -1}, "sample rate .* not -1"),
    ],
)  # fmt: skip
def test_a_subscription_with_a_wrong_option_is_refused(
    harness: ChannelHarness, changes: dict[str, Any], error: str
) -> None:
    with pytest.raises(UsageError, match=error):
        sub(harness, A, **changes)
    assert not harness.channel.consumers
    assert not any(harness.channel.counters[name] for name in COUNTERS)
