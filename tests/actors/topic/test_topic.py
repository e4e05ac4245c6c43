"""Tests of the topic's actor with ports that only record what was sent: which requests of a
producer are refused, and from whom it accepts answers.
"""

from __future__ import annotations

import time
from typing import Any, NoReturn

import pytest
from support.fake_storage import STORAGE, FakeStorage
from support.stage_bench import A

from tests.actors.channel.test_channel_actor import Wire
from zsq.actors.settings import options
from zsq.actors.settings.starts import TopicStart
from zsq.actors.storage.storage_actor import Recovered
from zsq.actors.topic.topic import TopicActor
from zsq.transport.block.block import Block, pack
from zsq.transport.client.core.packing import pack_many
from zsq.transport.errors import E_BAD_ARGUMENT, E_BAD_COMMAND, E_STANDBY, Refused, UsageError
from zsq.transport.wire import protocol as p


class Shell:
    def __init__(self) -> None:
        self.wires = {"front": Wire(), "supervisor": Wire()}
        self.storage = FakeStorage(Recovered({}, 5, -1))
        self.topic = TopicActor(7, "topic t", TopicStart(front="front", storage=STORAGE))
        parts: dict[str, Any] = {
            "open_router": self.wires.__getitem__,
            "supervisor": self.wires["supervisor"],
            "_open_storage": lambda: self.storage,
        }
        vars(self.topic).update(parts)
        self.topic.on_start()

    def hear(self, name: str, message: p.Wire, *blocks: Block) -> None:
        frames = [frame for block in blocks for frame in (block.wire_header(), block.payload)]
        self.wires[name].hear(message, A, frames)

    def hello(
        self, version: int = p.PROTOCOL_VERSION, producer_id: int = 9, heartbeat_ms: int = 30_000
    ) -> p.Wire:
        self.hear("front", p.Hello(version, producer_id, heartbeat_ms))
        (answer,) = self.wires["front"].take()
        return answer


@pytest.fixture
def shell() -> Shell:
    return Shell()


@pytest.mark.parametrize("version", [p.PROTOCOL_VERSION - 1, p.PROTOCOL_VERSION + 1])
def test_a_producer_with_another_protocol_version_is_refused(shell: Shell, version: int) -> None:
    with pytest.raises(UsageError, match="uses protocol version 1, not ") as refused:
        shell.hello(version)
    assert refused.value.code == E_BAD_COMMAND
    assert isinstance(shell.hello(), p.Welcome)


@pytest.mark.parametrize("producer_id", [0, -1, 1 << 63])
def test_a_producer_id_must_be_between_1_and_2_to_the_63(shell: Shell, producer_id: int) -> None:
    with pytest.raises(UsageError, match=r"1 to 2\^63 - 1, not"):
        shell.hello(producer_id=producer_id)
    assert isinstance(shell.hello(producer_id=(1 << 63) - 1), p.Welcome)


@pytest.mark.parametrize(
    ("asked", "given"), [(0, p.HEARTBEAT_MS_MIN), (10**9, p.HEARTBEAT_MS_MAX), (30_000, 30_000)]
)
def test_a_heartbeat_is_moved_into_its_limits(shell: Shell, asked: int, given: int) -> None:
    answer = shell.hello(heartbeat_ms=asked)
    assert isinstance(answer, p.Welcome)
    assert answer.heartbeat_ms == given


def test_a_silent_producer_is_in_no_report_although_the_topic_rests(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 10**15
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)
    welcome = shell.hello()
    assert isinstance(welcome, p.Welcome)
    now += 2 * welcome.heartbeat_ms * 1_000_000
    assert shell.topic.statistics()["producers"] == 1
    now += 1
    assert shell.topic.statistics()["producers"] == 0
    assert shell.topic.details() == {"publishers": []}


@pytest.mark.parametrize("delay_ms", [0, -1, p.DELAY_MS_MAX + 1])
def test_a_delay_outside_its_limits_is_refused(shell: Shell, delay_ms: int) -> None:
    shell.hello()
    block = pack([b"x"], producer_id=9, sequence=0)
    shell.hear("front", p.PubDelayed(delay_ms), block)
    (answer,) = shell.wires["front"].take()
    assert isinstance(answer, p.Unstored)
    assert answer.code == E_BAD_ARGUMENT
    shell.topic.on_turn()
    assert shell.storage.delayed == [], "nothing was taken"
    shell.hear("front", p.PubDelayed(p.DELAY_MS_MAX), block)
    shell.topic.on_turn()
    assert [delays_ms for _, _, delays_ms in shell.storage.delayed] == [[p.DELAY_MS_MAX]]


@pytest.mark.parametrize("delay_ms", [0, 1_000])
def test_a_block_that_storage_refuses_may_be_sent_again(shell: Shell, delay_ms: int) -> None:
    shell.hello()
    message = p.PubDelayed(delay_ms) if delay_ms else p.Pub()
    block = pack([b"x"], producer_id=9, sequence=0)
    shell.storage.refusal = Refused("E_X", "why")
    shell.hear("front", message, block)
    shell.topic.on_turn()
    assert shell.wires["front"].take() == [p.Unstored(0, 0, "E_X", "why")]
    assert shell.topic.ordering.idle()
    shell.storage.refusal = None
    shell.hear("front", message, block)
    shell.topic.on_turn()
    assert len(shell.storage.appends) + len(shell.storage.delayed) == 1


def test_a_block_is_answered_and_offered_only_when_it_is_stored(shell: Shell) -> None:
    shell.hello()
    shell.hear("front", p.Attach("c", 5, 1 << 20))
    shell.hear("front", p.Pub(), pack([b"x"], producer_id=9, sequence=0))
    shell.topic.on_turn()
    assert shell.wires["front"].take() == []
    ((request, _),) = shell.storage.appends
    shell.topic.appended(request, 5, 1)
    assert shell.wires["front"].take() == [p.Stored(((0, 5),)), p.Offer(6)]


@pytest.mark.parametrize("delay_ms", [0, 1_000])
def test_a_publish_waits_while_too_much_is_not_in_the_bucket(shell: Shell, delay_ms: int) -> None:
    shell.hello()
    shell.storage.extension.is_full = True
    publish = p.PubDelayed(delay_ms) if delay_ms else p.Pub()
    shell.hear("front", publish, pack([b"x"], producer_id=9, sequence=0))
    shell.topic.on_turn()
    assert not shell.storage.appends
    assert not shell.storage.delayed
    shell.storage.extension.is_full = False
    shell.topic.on_turn()
    assert len(shell.storage.appends) + len(shell.storage.delayed) == 1


def test_a_topic_answers_its_blocks_before_its_storage_stops(shell: Shell) -> None:
    shell.hello()
    shell.hear("front", p.Pub(), pack([b"x"], producer_id=9, sequence=0))
    shell.topic.on_turn()
    shell.topic.stopping = True
    assert not shell.topic.on_stop()
    assert (shell.storage.stops, shell.wires["front"].take()) == (0, []), (
        "a block has no answer yet"
    )
    ((request, _),) = shell.storage.appends
    shell.topic.appended(request, 5, 1)
    shell.storage.is_stopped = False
    assert not shell.topic.on_stop()
    assert shell.wires["front"].take() == [p.Stored(((0, 5),)), p.Bye()]
    shell.storage.is_stopped = True
    assert shell.topic.on_stop()
    assert shell.wires["front"].take() == [], "told once"


def test_a_topic_does_not_wait_for_answers_when_another_broker_has_taken_over(
    shell: Shell,
) -> None:
    shell.hello()
    shell.hear("front", p.Pub(), pack([b"x"], producer_id=9, sequence=0))
    shell.topic.on_turn()
    shell.topic.stopping = True
    assert not shell.topic.on_stop()
    shell.storage.extension.ended = True
    assert shell.topic.on_stop()
    assert shell.wires["front"].take() == [p.Bye()]


def test_an_order_is_answered_when_storage_has_committed_it(shell: Shell) -> None:
    wire = shell.wires["supervisor"]
    shell.hear("supervisor", p.SetPaused(1, True))
    shell.hear("supervisor", p.EmptyTopic(2))
    shell.hear("supervisor", p.MovePause(3, 9))
    assert wire.take() == []
    (pause, empty, move_pause) = list(shell.storage.orders)
    assert (pause[:2], move_pause[:2]) == (("pause", True), ("move_pause", 9))
    assert shell.topic.fanout.visible_end == 5, "channels get nothing that they cannot read again"
    pause[-1](5)
    assert shell.topic.fanout.visible_end == 5
    shell.hear("supervisor", p.SetPaused(4, False))
    assert shell.topic.fanout.visible_end == 5, "until it is committed that the pause is over"
    empty[-1](5, 9)
    move_pause[-1](9)
    assert wire.take() == [
        p.Done(1, {"visible_end": 5}),
        p.BehindPause(2, 5, 9),
        p.Done(3, {"visible_end": 9}),
    ]


def test_a_topic_that_fails_leaves_its_files_to_the_next_process(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []

    def end_at_once(code: int) -> NoReturn:
        codes.append(code)
        raise SystemExit

    monkeypatch.setattr(shell.topic, "end_at_once", end_at_once)
    with pytest.raises(SystemExit):
        shell.topic.on_end()
    assert (codes, shell.storage.orders) == ([4], [])


def test_a_dead_gateway_is_forgotten_by_the_topic_and_by_its_storage(shell: Shell) -> None:
    shell.hello()
    assert shell.topic.ordering.peers() == [A]
    shell.topic.on_gone(A[0].decode())
    assert shell.topic.ordering.peers() == []
    assert shell.storage.orders == [("gone", A[0].decode())]


def test_a_close_is_answered_when_all_blocks_are_answered(shell: Shell) -> None:
    shell.hello()
    shell.hear("front", p.Pub(), pack([b"x"], producer_id=9, sequence=0))
    shell.topic.on_turn()
    shell.hear("supervisor", p.SetClosed(1, to_publishers=True, to_consumers=False))
    shell.topic.on_turn()
    assert shell.storage.orders == [("close", True)]
    assert shell.wires["supervisor"].take() == [], "a block has no answer yet"
    ((request, _),) = shell.storage.appends
    shell.topic.appended(request, 5, 1)
    shell.topic.on_turn()
    assert shell.wires["supervisor"].take() == [p.Done(1, {})]


def test_a_repeated_block_is_not_answered_while_the_lease_is_over(shell: Shell) -> None:
    assert isinstance(shell.hello(), p.Welcome)
    shell.hear("front", p.Pub(), pack([b"x"], producer_id=9, sequence=0))
    shell.topic.on_turn()
    shell.topic.appended(1, 5, 0)
    assert p.Stored(((0, 5),)) in shell.wires["front"].take()
    shell.storage.extension.holds = True
    shell.hear("front", p.Pub(), pack([b"x"], producer_id=9, sequence=0))
    assert shell.wires["front"].take() == [p.Bye()]
    shell.hear("front", p.Hello(p.PROTOCOL_VERSION, 9, 30_000))
    shell.topic.on_turn()
    assert shell.wires["front"].take() == []
    shell.storage.extension.holds = False
    shell.topic.on_turn()
    (welcome,) = shell.wires["front"].take()
    assert isinstance(welcome, p.Welcome)
    shell.hear("front", p.Pub(), pack([b"x"], producer_id=9, sequence=0))
    assert shell.wires["front"].take() == [p.Stored(((0, 5),))]


def test_a_producer_that_waits_for_the_lease_is_told_why(shell: Shell) -> None:
    shell.storage.extension.holds = True
    shell.hear("front", p.Hello(p.PROTOCOL_VERSION, 9, 30_000))
    shell.topic.on_turn()
    assert shell.wires["front"].take() == []
    shell.storage.extension.refused = Refused(E_STANDBY, "the bucket is away")
    shell.topic.on_turn()
    assert shell.wires["front"].take() == [p.Failed(0, E_STANDBY, "the bucket is away")]
    shell.topic.on_turn()
    assert shell.wires["front"].take() == []


def test_one_turn_looks_up_a_bounded_number_of_ids(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest follows at once, after what has arrived meanwhile."""
    monkeypatch.setattr("zsq.actors.topic.ordering.IDS_AN_APPEND", 2)
    monkeypatch.setattr("zsq.actors.topic.topic.IDS_AN_APPEND", 2)
    monkeypatch.setattr(options, "APPEND_BYTES_LITTLE", 0)
    shell.hello()
    for sequence in range(3):
        headers = [{"zsq-dedupe-id": f"{sequence}-{index}"} for index in range(2)]
        [block] = pack_many([b"x"] * 2, None, None, headers)
        header = block.header._replace(producer_id=9, sequence=sequence)
        shell.hear("front", p.Pub(), Block(header, block.payload, block.columns))
    shell.topic.every(60_000, lambda: None)
    for turn in range(1, 4):
        shell.topic.on_turn()
        assert len(shell.storage.appends) == turn
        assert shell.topic._wait_ms() == 0
    shell.topic.on_turn()
    assert shell.topic._wait_ms() > 0
