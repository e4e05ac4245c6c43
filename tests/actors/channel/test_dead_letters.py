"""Tests of dead letters on their way to their topic: batches, refusals, pauses, and seeks in
between. The sender in these tests answers only when a test tells it to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from zsq.actors.channel import dead_letters
from zsq.actors.channel.dead_letters import TRANSITIONS, DeadLetters, LetterState, letters
from zsq.actors.channel.dying import Dead, Death
from zsq.actors.channel.failures import Cause
from zsq.actors.settings import options
from zsq.transport.block.block import Block, pack, with_place
from zsq.transport.client.core.producer_session import PendingBlock
from zsq.transport.errors import E_TOPIC_FULL, Refused
from zsq.transport.settings import ChannelSettings
from zsq.transport.wire import dead_letter as d
from zsq.transport.wire.codec import HeaderValue, pack_headers, unpack_headers
from zsq.transport.wire.protocol import DEAD

if TYPE_CHECKING:
    from tests.actors.conftest import DyingChannelHarness

S = 1_000_000_000
A = (b"a",)
FULL = Refused(E_TOPIC_FULL, "no room")


class Office:
    """A channel's core with its dead letters. `posted` holds the batches that were passed on."""

    def __init__(self, harness: DyingChannelHarness, topic: str = "t") -> None:
        self.harness = harness
        self.posted: list[tuple[str, Block, PendingBlock]] = []
        self.letters = DeadLetters(topic, "uuid", "c", self.post)

    def post(self, topic: str, blocks: Sequence[Block]) -> list[PendingBlock]:
        pending_blocks = [PendingBlock(block) for block in blocks]
        self.posted += [
            (topic, block, pending) for block, pending in zip(blocks, pending_blocks, strict=True)
        ]
        return pending_blocks

    def turn(self, seconds: float = 0.0, more: bool = True) -> None:
        self.harness.now_ns += int(seconds * S)
        self.letters.turn(
            self.harness.channel.supply, self.harness.now_ns, self.harness.wall_ns, more
        )

    def answer(self, error: Exception | None = None) -> None:
        for _, _, pending in self.posted:
            if not pending.done:
                pending.settle(0, error)  # type: ignore[arg-type]

    def alarm(self, trouble: str = "") -> str:
        return self.letters.alarm(self.harness.channel.supply, self.harness.now_ns, trouble)

    def bodies(self) -> list[int]:
        return [block.count for _, block, _ in self.posted]


@pytest.fixture
def office(dying_channel: type[DyingChannelHarness]) -> Office:
    """Return an office whose channel has four rejected messages."""
    harness = dying_channel(1)
    harness.join(A, 10)
    harness.come(4)
    harness.channel.req(A, harness.send_one().token, (), DEAD, harness.wall_ns, "why")
    return Office(harness)


def test_dead_letters_are_finished_only_when_their_copies_are_stored(office: Office) -> None:
    office.turn()
    office.turn()
    assert [topic for topic, _, _ in office.posted] == ["t.c.dead"]
    assert office.harness.dying.messages() == 4
    office.answer()
    office.turn()
    assert (
        office.harness.dying.messages(),
        office.harness.channel.counters["dead_letter_count"],
    ) == (0, 4)
    assert office.letters.state is LetterState.IDLE


def test_a_refused_batch_is_sent_again_after_a_pause_that_doubles(office: Office) -> None:
    office.turn()
    for pause_s, sent in ((1, 1), (2, 2), (4, 3)):
        office.answer(FULL)
        office.turn()
        assert office.alarm() == "4 messages wait for the dead-letter topic: E_TOPIC_FULL no room"
        office.turn(pause_s - 0.1)
        assert len(office.posted) == sent
        office.turn(0.1)
        assert len(office.posted) == sent + 1
        assert office.alarm(), "said until it has succeeded"
    office.answer()
    office.turn()
    assert office.harness.channel.counters["dead_letter_count"] == 4
    assert office.alarm() == ""


def test_the_pause_has_a_largest_length(office: Office) -> None:
    office.turn()
    for _ in range(40):
        office.answer(FULL)
        office.turn()
        office.turn(options.DEAD_RETRY_S_MAX)
    assert len(office.posted) == 41


def test_only_what_was_refused_is_sent_again(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "BLOCK_BYTES", 1)
    office.turn()
    assert office.bodies() == [1, 1, 1, 1]
    for at, (_, _, pending) in enumerate(office.posted):
        pending.settle(0, FULL if at in (1, 3) else None)
    office.turn()
    assert office.harness.channel.counters["dead_letter_count"] == 0, (
        "rows go when the whole batch is there"
    )
    office.turn(1)
    again = [
        unpack_headers(block.headers.value(0))[d.OFFSET]
        for _, block, _ in office.posted[4:]
        if block.headers is not None
    ]
    assert again == [1, 3]
    office.answer()
    office.turn()
    assert office.harness.channel.counters["dead_letter_count"] == 4


def test_a_topic_that_cannot_be_waits_for_a_setting(
    dying_channel: type[DyingChannelHarness],
) -> None:
    harness = dying_channel(1)
    harness.join(A, 10)
    harness.come(4)
    harness.channel.req(A, harness.send_one().token, (), 0, harness.wall_ns)
    office = Office(harness, "t" * 64)
    office.turn()
    assert "set dead_letter_topic of channel 'c'" in office.alarm()
    harness.channel.configure(ChannelSettings(max_attempts=1, dead_letter_topic="other"))
    office.letters.try_now()
    office.turn()
    assert [topic for topic, _, _ in office.posted] == ["other"]


def test_a_seek_ends_what_is_on_its_way(office: Office) -> None:
    office.turn()
    office.harness.channel.seek(4)
    office.harness.commit()
    office.harness.come(4)
    office.harness.channel.req(A, office.harness.send_one().token, (), 0, office.harness.wall_ns)
    office.answer()  # the answer to the batch from before the seek
    office.turn()
    assert office.harness.channel.counters["dead_letter_count"] == 0
    assert len(office.posted) == 2
    office.answer()
    office.turn()
    assert office.harness.channel.counters["dead_letter_count"] == 4
    office.answer(FULL)


def test_a_seek_ends_a_pause_too(office: Office) -> None:
    office.turn()
    office.answer(FULL)
    office.turn()
    office.harness.channel.seek(4)
    office.turn(60)
    assert (len(office.posted), office.letters.state, office.alarm()) == (1, LetterState.IDLE, "")


def test_at_the_end_answers_are_taken_and_nothing_is_sent(office: Office) -> None:
    office.turn(more=False)
    assert office.posted == []
    office.turn()
    office.harness.come(4)
    office.harness.channel.req(A, office.harness.send_one().token, (), 0, office.harness.wall_ns)
    office.answer()
    office.turn(more=False)
    assert office.harness.channel.counters["dead_letter_count"] == 4
    assert len(office.posted) == 1


def test_an_alarm_is_raised_when_the_dead_letter_topic_does_not_answer(office: Office) -> None:
    office.turn()
    office.turn(options.DEAD_SILENT_S)
    assert office.alarm("nobody answers") == ""
    office.turn(0.1)
    assert (
        office.alarm("nobody answers")
        == "4 messages wait for the dead-letter topic: nobody answers"
    )
    assert office.alarm() == "4 messages wait for the dead-letter topic: no answer"


def test_each_state_is_reached_and_left() -> None:
    assert set(TRANSITIONS) == set(LetterState)
    assert {after for events in TRANSITIONS.values() for after in events.values()} == set(
        LetterState
    )


def test_letters_keep_what_the_message_was() -> None:
    own = [pack_headers({"h": 1}), None, None]
    block = with_place(pack([b"a", b"b", b"c"], keys=[b"k", None, b""], headers=own), 10, 77)
    timed = with_place(pack([b"d"], tags=[b"g"], times=[55]), 90, 78)
    batch = [
        Dead(Death((10, 2, 3), d.ATTEMPTS, Cause("e", "me", "line 1")), (block, 0, 2)),
        Dead(Death((90, 1, 1), d.REJECT, Cause("")), (timed, 0, 1)),
    ]
    (found,) = letters(batch, "t", "u", "c", 99)
    assert found.body.values() == [b"a", b"b", b"d"]
    assert found.key is not None
    assert found.key.values() == [b"k", None, None]
    assert found.tag is not None
    assert found.tag.values() == [None, None, b"g"]
    assert [found.time_of(index) for index in range(3)] == [77, 77, 55]
    assert found.headers is not None
    told = {
        d.TOPIC: "t",
        d.UUID: "u",
        d.CHANNEL: "c",
        d.ATTEMPTS_MADE: 3,
        d.REASON: d.ATTEMPTS,
        d.ERROR: "e",
        d.TIME: 99,
        d.OFFSET: 11,
    }
    where: dict[str, HeaderValue] = {d.CONSUMER: "me", d.TRACEBACK: "line 1"}
    assert [unpack_headers(value) for value in found.headers.values()] == [
        told | where | {"h": 1, d.OFFSET: 10},
        told | where,
        told | {d.ATTEMPTS_MADE: 1, d.REASON: d.REJECT, d.ERROR: "", d.OFFSET: 90},
    ]


def test_large_letters_go_in_several_blocks() -> None:
    block = with_place(pack([b"x" * 1_000_000] * 3 + [b"y"]), 0, 0)
    found = letters([Dead(Death((0, 4, 1), d.REJECT, Cause("")), (block, 0, 4))], "t", "u", "c", 0)
    assert [one.count for one in found] == [1, 1, 2]
