"""What a channel shows to somebody who looks, and who may take part in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from zsq.actors import options
from zsq.actors.lease import COUNTERS
from zsq.actors.peeks import Peeks
from zsq.actors.subscribing import consumer_of
from zsq.transport import protocol as p
from zsq.transport.errors import Refused, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.actors.conftest import Desk

A, B, C = (b"a",), (b"b",), (b"c",)
S = 1_000_000_000


def look(desk: Desk, limit: int = 10, rows: Sequence[tuple[int, int, int, int]] | None = None) -> dict[str, Any]:
    """`rows`: what the store names; default: what was committed."""
    peeks = Peeks("c")
    order = p.Order(7, "peek", {"limit": limit, "start": 0, "head": desk.end})
    word = peeks.begin(3, order, desk.channel, desk.now_ns, desk.wall_ns)
    assert (word.request, word.channel, word.limit) == (3, "c", limit)
    if rows is None:
        rows = sorted((row for row in desk.kept.values() if row[3] <= word.until_ns), key=lambda row: row[3])[:limit]
    assert peeks.answered(4, rows, desk.channel) is None
    found = peeks.answered(3, rows, desk.channel)
    assert found is not None
    assert found[0] == 7
    assert peeks.answered(3, rows, desk.channel) is None, "each is answered once"
    return found[1]


def held(found: dict[str, Any], state: str) -> list[tuple[int, int, int]]:
    return [(row["offset"], row["count"], row["attempts"]) for row in found["held"] if row["state"] == state]


def test_everything_a_channel_holds_is_shown_in_its_state(desk: Desk) -> None:
    desk.join(A, 4)
    desk.come(12)
    first = desk.send_one()
    desk.channel.req(A, first.token, ((0, 1),), 0, desk.wall_ns)
    desk.channel.req(A, first.token, ((1, 1),), 90_000, desk.wall_ns)
    desk.now_ns += 2 * S
    before = desk.channel.statistics(desk.end)
    found = look(desk)
    assert desk.channel.statistics(desk.end) == before, "nothing has changed by it"
    assert held(found, "in flight") == [(2, 2, 1)]
    assert held(found, "requeued") == [(0, 1, 1)]
    assert held(found, "deferred") == [(1, 1, 1)], "not committed yet, and held here"
    (out,) = [row for row in found["held"] if row["state"] == "in flight"]
    assert (out["consumer"], out["held_ms"], out["left_ms"]) == ("a", 2_000, 58_000)
    (later,) = [row for row in found["held"] if row["state"] == "deferred"]
    assert later["due_ns"] == desk.wall_ns + 90 * S
    assert (found["next_offset"], found["head"], found["start"], found["paused"], found["wall_ns"]) == (4, 12, 0, False, desk.wall_ns)
    assert found["counts"] == {"requeued": 1, "parked": 0, "in flight": 2, "deferred": 1, "dying": 0}
    assert found["settings"] == desk.channel.settings.as_dict()


def test_attempts_are_those_that_were_made(desk: Desk) -> None:
    """What was promised a next number, or has it already, was not delivered under it."""
    desk.join(A, 1)
    desk.come(3)
    desk.channel.req(A, desk.send_one().token, (), 0, desk.wall_ns)
    assert held(look(desk), "requeued") == [(0, 1, 1)]
    changes = desk.channel.changes()
    assert changes.holes_put == ((0, 1, 2, 0),)
    assert held(look(desk), "requeued") == [(0, 1, 1)], "promised"
    desk.channel.supply.committed()
    assert held(look(desk), "requeued") == [(0, 1, 1)], "ready"
    assert held(look(desk), "in flight") == []


def test_deferred_ones_are_shown_once_wherever_they_are(desk: Desk) -> None:
    desk.join(A, 10)
    desk.come(10)
    token = desk.send_one().token
    for offset, delay_ms in ((0, 30_000), (1, 20_000), (2, 10_000), (3, 40_000)):
        desk.channel.req(A, token, ((offset, 1),), delay_ms, desk.wall_ns)
    due = [(2, 1, 1), (1, 1, 1), (0, 1, 1), (3, 1, 1)]
    assert held(look(desk), "deferred") == due
    before = dict(desk.kept)
    desk.channel.changes()
    assert held(look(desk, rows=[*before.values()]), "deferred") == due, "on their way"
    desk.channel.supply.committed()
    desk.kept = {
        offset: (offset, 1, 1, desk.wall_ns + ms * 1_000_000) for offset, ms in ((0, 30_000), (1, 20_000), (2, 10_000), (3, 40_000))
    }
    assert held(look(desk), "deferred") == due, "in the store"
    assert held(look(desk, limit=2), "deferred") == due[:2]
    desk.scan(25)
    found = look(desk)
    assert held(found, "requeued") == due[:2], "came due, and the store still has them"
    assert held(found, "deferred") == due[2:]
    desk.channel.seek(5)
    assert look(desk)["held"] == [], "cleared, and the store has not heard of it"


def test_a_look_is_bounded(desk: Desk) -> None:
    desk.join(A, 100)
    desk.come(*[1] * 60)
    desk.send()
    desk.join(B, 100)
    desk.come(*[1] * 60)
    desk.send()
    desk.channel.unsubscribe(A)
    found = look(desk, limit=7)
    assert [sum(row[1] for row in held(found, state)) for state in ("in flight", "requeued")] == [7, 7]
    desk.come(500)
    desk.channel.set_ready(B, 1_000)
    desk.send()
    assert sum(row[1] for row in held(look(desk, limit=65), "in flight")) == 65, "a run is cut"
    peeks = Peeks("c")
    for number in range(options.FETCHES_MAX):
        peeks.begin(number, p.Order(number, "peek", {"limit": 10**9, "start": 0, "head": 0}), desk.channel, 0, 0)
    with pytest.raises(Refused, match="several others are looking"):
        peeks.begin(99, p.Order(99, "peek", {"limit": 1, "start": 0, "head": 0}), desk.channel, 0, 0)
    assert [peeks.failed(number) for number in (1, 1, 2, 99)] == [1, 0, 2, 0]
    assert peeks.begin(50, p.Order(5, "peek", {"limit": 10**9, "start": 0, "head": 0}), desk.channel, 0, 0).limit == options.PEEK_MAX


# Who may take part


def sub(desk: Desk, peer: tuple[bytes, ...], **changes: Any) -> None:
    facts: dict[str, Any] = {"request": 1, "version": p.PROTOCOL_VERSION, "ready": 5, "message_timeout_ms": 0}
    facts |= {"heartbeat_ms": 10_000, "label": "x"}
    desk.channel.subscribe(consumer_of(p.Sub(**(facts | changes)), peer, desk.channel, desk.now_ns, desk.wall_ns))


def test_a_channel_takes_so_many_consumers(desk: Desk) -> None:
    desk.channel.configure(type(desk.channel.settings)(max_consumers=2))
    sub(desk, A)
    sub(desk, B)
    sub(desk, B)  # again, on the same link
    with pytest.raises(Refused, match="has 2 consumers, and takes 2 at a time") as error:
        sub(desk, C)
    assert error.value.code == "E_LIMIT"
    desk.channel.unsubscribe(A)
    sub(desk, C)
    assert {*desk.channel.consumers} == {B, C}
    desk.channel.configure(type(desk.channel.settings)(max_consumers=1))
    assert {*desk.channel.consumers} == {B, C}, "those that are there stay"
    with pytest.raises(Refused):
        sub(desk, A)


def test_a_lost_consumer_holds_no_place(desk: Desk) -> None:
    """It was not heard of for two heartbeats, and the scan has not come yet: who takes its place gets what it held."""
    desk.channel.configure(type(desk.channel.settings)(max_consumers=1))
    sub(desk, A)
    desk.come(5)
    assert desk.told(desk.send()) == [("a", ((0, 5, 1),))]
    desk.now_ns += 20 * S
    with pytest.raises(Refused):
        sub(desk, B)
    desk.now_ns += 1
    sub(desk, B)
    assert {*desk.channel.consumers} == {B}
    desk.commit()
    assert desk.told(desk.send()) == [("b", ((0, 5, 2),))]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"version": 2}, "protocol version 2"), ({"ready": -1}, "ready -1"), ({"ready": p.READY_MAX + 1}, "is outside of 0 to"),
        ({"message_timeout_ms": 999}, "999 ms"), ({"message_timeout_ms": 900_001}, "is outside of 1000 to 900000 ms"),
        ({"sample_rate": 100}, "sample rate"), ({"sample_rate": -1}, "sample rate"),
    ],
)  # fmt: skip
def test_what_a_consumer_cannot_ask_for(desk: Desk, changes: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        sub(desk, A, **changes)
    assert not desk.channel.consumers
    assert not any(desk.channel.counters[name] for name in COUNTERS)
