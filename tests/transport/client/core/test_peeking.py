"""Tests of peeking into a fake topic: what is read, and what is shown of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import zsq
from zsq.transport.block.block import Block, pack, with_place
from zsq.transport.client.core import peeking
from zsq.transport.client.core.asking import Asking
from zsq.transport.client.core.message import Fetched
from zsq.transport.client.core.peeking import Peek, Peeked, look_at_channel, look_at_newest
from zsq.transport.wire import protocol as p
from zsq.transport.wire.codec import pack_headers
from zsq.transport.wire.dead_letter import with_address

S = 1_000_000_000
SETTINGS = {"tags": "", "max_age_s": -1}


class Topic:
    """A topic with blocks of ten messages, each stored a second after the one before. A large read
    returns two blocks.
    """

    def __init__(self, blocks: int = 10, gap: range = range(0)) -> None:
        self.blocks: list[Block] = []
        for number in range(blocks):
            first = number * 10
            tags = [b"a" if index % 5 == 0 else b"b" if index % 2 else None for index in range(10)]
            headers = [
                pack_headers({"zsq-channel": "d"}) if index == 9 else None for index in range(10)
            ]
            bodies = [b"%d" % (first + index) for index in range(10)]
            block = with_address(pack(bodies, tags=tags, headers=headers), headers)
            if number not in gap:
                self.blocks.append(with_place(block, first, (number + 1) * S))
        self.head = blocks * 10
        self.reads: list[int] = []

    def read(self, offset: int, max_bytes: int) -> Fetched:
        self.reads.append(offset)
        found = [block for block in self.blocks if block.next_offset > offset][
            : 1 if max_bytes == peeking.ONE_BLOCK else 2
        ]
        return Fetched(0, self.head, found, found[-1].next_offset if found else self.head)

    def run(self, look: Asking[Peek]) -> Peek:
        try:
            question = next(look)
            while True:
                asked = question.make(1)
                assert isinstance(asked, p.Fetch)
                start, head, blocks, next_offset, _ = self.read(asked.offset, asked.max_bytes)
                question = look.send((p.Blocks(1, start, head, next_offset), blocks))
        except StopIteration as end:
            found: Peek = end.value
            return found

    def channel(
        self,
        count: int,
        at: int = 0,
        held: Any = (),
        head: int = -1,
        wall_ns: int = 0,
        absent: Any = (),
        **settings: Any,
    ) -> Peek:
        data: Any = {
            "next_offset": at, "start": 0, "head": self.head if head < 0 else head, "wall_ns": wall_ns, "paused": False, "absent": absent,
            "settings": SETTINGS | settings, "held": held, "counts": {"requeued": 3}, "expires_s": -1, "revoked": {},
        }  # fmt: skip
        return self.run(look_at_channel("t", "c", data, count))


def offsets(found: Peek) -> list[int]:
    for one in found.messages:
        assert one.message is None or one.message.body == b"%d" % one.offset
    return [one.offset for one in found.messages]


@pytest.mark.parametrize(
    ("first", "head", "count", "expected"),
    [
        (0, 100, 3, range(3)),
        (95, 100, 10, range(95, 100)),
        (95, 97, 10, range(95, 97)),
        (7, 100, 30, range(7, 37)),
        (100, 100, 5, range(0)),
    ],
)
def test_a_look_at_a_topic_shows_the_stored_messages(
    first: int, head: int, count: int, expected: range
) -> None:
    found = Topic().run(look_at_newest("t", first, head, count))
    assert offsets(found) == list(expected)
    assert all(one.state == "stored" for one in found.messages)
    assert (found.next_offset, found.head) == (first, head)


def test_the_newest_where_some_are_lost() -> None:
    assert offsets(Topic(gap=range(4, 6)).run(look_at_newest("t", 38, 100, 6))) == [
        38,
        39,
        60,
        61,
        62,
        63,
    ]
    assert offsets(Topic(gap=range(8, 10)).run(look_at_newest("t", 78, 100, 6))) == [78, 79]


def test_a_look_ends_where_nothing_is_read_before_the_head() -> None:
    """The head may be known before all blocks below it can be read."""

    class Behind(Topic):
        def read(self, offset: int, max_bytes: int) -> Fetched:
            assert len(self.reads) < 10, "it asks for ever"
            found = super().read(offset, max_bytes)
            return found if found.blocks else Fetched(0, self.head, [], offset)

    assert offsets(Behind(3, gap=range(2, 3)).run(look_at_newest("t", 17, 30, 20))) == [17, 18, 19]
    found = Behind(3, gap=range(2, 3)).channel(20, at=17)
    assert (offsets(found), found.looked_to) == ([17, 18], 20), (
        "what was not read was not looked at"
    )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [13, 14, 15, 16, 17, 18, 20]),  # 19 is addressed to another channel
        ({"tags": "a"}, [15, 20, 25, 30, 35, 40, 45]),
        ({"tags": "a||b"}, [13, 15, 17, 20, 21, 23, 25]),
        ({"tags": "z"}, []),
        # The time is second 11, and block 5 was stored at second 6.
        (
            {"max_age_s": 5.5},
            [50, 51, 52, 53, 54, 55, 56],
        ),
        ({"max_age_s": 5.5, "tags": "a"}, [50, 55, 60, 65, 70, 75, 80]),
    ],
)
def test_a_look_shows_what_a_channel_would_deliver_next(
    settings: dict[str, Any], expected: list[int]
) -> None:
    found = Topic().channel(7, at=13, wall_ns=11 * S, **settings)
    assert offsets(found) == expected
    assert all((one.state, one.attempts) == ("new", 0) for one in found.messages)
    assert found.looked_to == (expected[-1] + 1 if expected else 100)
    assert found.counts == {"requeued": 3}


def test_a_message_for_this_channel_only_is_shown() -> None:
    topic = Topic()
    data: Any = {
        "next_offset": 8,
        "start": 0,
        "head": 12,
        "wall_ns": 0,
        "absent": (),
        "paused": True,
        "settings": SETTINGS,
        "expires_s": -1,
        "revoked": {},
        "held": (),
        "counts": {},
    }
    found = topic.run(look_at_channel("t", "d", data, 5))
    assert (offsets(found), found.paused) == ([8, 9, 10, 11], True)


def test_a_peek_stops_at_the_visible_end_and_after_a_number_of_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert offsets(Topic().channel(100, at=13, head=16)) == [13, 14, 15]
    assert Topic(0).channel(5) == Peek([], 0, 0, 0, False, {"requeued": 3})
    topic = Topic()
    monkeypatch.setattr(peeking, "LOOK_BYTES_MAX", topic.blocks[0].length * 3)
    found = topic.channel(1, tags="z")
    assert (found.messages, found.looked_to, topic.reads) == ([], 30, [0, 10])


def test_held_messages_are_shown_with_their_consumer_and_time_left() -> None:
    held = [
        {
            "state": "in flight",
            "offset": 2,
            "count": 2,
            "attempts": 1,
            "consumer": "me",
            "held_ms": 1_500,
            "left_ms": 58_500,
        },
        {"state": "requeued", "offset": 7, "count": 1, "attempts": 3},
        {"state": "parked", "offset": 9, "count": 1, "attempts": 0},
        {"state": "deferred", "offset": 45, "count": 1, "attempts": 2, "due_ns": 7 * S},
    ]
    topic = Topic(gap=range(4, 5))
    found = topic.channel(1, at=60, held=held)
    assert [(one.offset, one.state) for one in found.messages] == [
        (7, "requeued"), (9, "parked"), (60, "new"), (2, "in flight"), (3, "in flight"), (45, "deferred"),
    ]  # fmt: skip
    assert found.messages[3] == Peeked(
        2, "in flight", found.messages[3].message, 1, "me", 1.5, 58.5
    )
    assert found.messages[3].message is not None
    assert found.messages[3].message.body == b"2"
    assert found.messages[5] == Peeked(45, "deferred", None, 2, due_ns=7 * S), "it is lost"
    assert topic.reads == [2, 45, 60], "one read for what lies together"


@pytest.mark.parametrize("count", [0, -1, 1_001, True, 2.5])
def test_a_peek_has_a_limit(broker: Any, count: Any) -> None:
    with zsq.Admin(broker.url) as admin, pytest.raises(zsq.UsageError, match="1 to 1000 messages"):
        admin.peek("t", "c", count=count)


def test_seek_takes_offsets_names_and_times_and_refuses_others(broker: Any) -> None:
    places: list[Any] = [5, "earliest", "latest", 12.5]
    with zsq.Admin(broker.url) as admin:
        for place in places:
            admin.seek("t", "c", place)
        for wrong in (-1, "soon", True, None, 1e300, float("nan")):
            with pytest.raises(zsq.UsageError, match="a place must be"):
                admin.seek("t", "c", wrong)  # type: ignore[arg-type]

    async def the_same() -> None:
        async with zsq.aio.Admin(broker.url) as admin:
            for place in places:
                await admin.seek("t", "c", place, forward=True)

    asyncio.run(the_same())
    words = [message.options for message in broker.heard if type(message) is p.Manage]
    expected: list[dict[str, Any]] = [
        {"offset": 5},
        {"offset": 0},
        {"offset": 1 << 62},
        {"time_ns": 12_500_000_000},
    ]
    assert words == expected + [one | {"forward": True} for one in expected]


def test_messages_that_the_channel_will_skip_are_not_shown() -> None:
    assert offsets(Topic().channel(4, absent=((1, 3), (4, 13)))) == [0, 3, 13, 14]
