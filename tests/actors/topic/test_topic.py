"""The topic's shell, with ports that only note: what of a producer is refused before anything is taken, and whose answers count."""

from __future__ import annotations

from typing import Any

import pytest
from support.stage_bench import A

from tests.actors.channel.test_channel_actor import Wire
from zsq.actors.settings.starts import TopicStart
from zsq.actors.topic.topic import TopicActor
from zsq.transport.block.block import Block, pack
from zsq.transport.errors import E_BAD_ARGUMENT, E_BAD_COMMAND, UsageError
from zsq.transport.wire import protocol as p


class Shell:
    def __init__(self) -> None:
        table = {"producers": {}, "head": 5, "visible_end": -1}
        self.wires = {"storage": Wire(p.Done(1, table)), "front": Wire(), "supervisor": Wire()}
        self.topic = TopicActor(7, "topic t", TopicStart(front="front", storage="storage", closed=False))
        parts: dict[str, Any] = {
            "open_dealer": self.wires.__getitem__,
            "open_router": self.wires.__getitem__,
            "supervisor": self.wires["supervisor"],
        }
        vars(self.topic).update(parts)
        self.topic.on_start()
        self.wires["storage"].take()

    def hear(self, name: str, message: p.Wire, *blocks: Block) -> None:
        frames = [frame for block in blocks for frame in (block.wire_header(), block.payload)]
        self.wires[name].hear(message, A, frames)

    def hello(self, version: int = p.PROTOCOL_VERSION, producer_id: int = 9, heartbeat_ms: int = 30_000) -> p.Wire:
        self.hear("front", p.Hello(version, producer_id, heartbeat_ms))
        (answer,) = self.wires["front"].take()
        return answer


@pytest.fixture
def shell() -> Shell:
    return Shell()


@pytest.mark.parametrize("version", [p.PROTOCOL_VERSION - 1, p.PROTOCOL_VERSION + 1])
def test_only_this_version_is_spoken(shell: Shell, version: int) -> None:
    with pytest.raises(UsageError, match="uses protocol version 1, not ") as refused:
        shell.hello(version)
    assert refused.value.code == E_BAD_COMMAND
    assert isinstance(shell.hello(), p.Welcome)


@pytest.mark.parametrize("producer_id", [0, -1, 1 << 63])
def test_a_producer_has_a_number_of_63_bits(shell: Shell, producer_id: int) -> None:
    with pytest.raises(UsageError, match=r"1 to 2\^63 - 1, not"):
        shell.hello(producer_id=producer_id)
    assert isinstance(shell.hello(producer_id=(1 << 63) - 1), p.Welcome)


@pytest.mark.parametrize(("asked", "given"), [(0, p.HEARTBEAT_MS_MIN), (10**9, p.HEARTBEAT_MS_MAX), (30_000, 30_000)])
def test_a_heartbeat_is_brought_within_its_limits(shell: Shell, asked: int, given: int) -> None:
    answer = shell.hello(heartbeat_ms=asked)
    assert isinstance(answer, p.Welcome)
    assert answer.heartbeat_ms == given


@pytest.mark.parametrize("delay_ms", [0, -1, p.DELAY_MS_MAX + 1])
def test_a_delay_is_within_its_limits(shell: Shell, delay_ms: int) -> None:
    shell.hello()
    block = pack([b"x"], producer_id=9, sequence=0)
    shell.hear("front", p.PubDelayed(delay_ms), block)
    (answer,) = shell.wires["front"].take()
    assert isinstance(answer, p.Unstored)
    assert answer.code == E_BAD_ARGUMENT
    shell.topic.on_turn()
    assert shell.wires["storage"].take() == [], "nothing was taken"
    shell.hear("front", p.PubDelayed(p.DELAY_MS_MAX), block)
    shell.topic.on_turn()
    assert [type(message) for message in shell.wires["storage"].take()] == [p.AppendDelayed]


def test_a_failed_append_is_the_producers_and_a_failed_order_the_supervisors(shell: Shell) -> None:
    shell.hello()
    shell.hear("front", p.Pub(), pack([b"x"], producer_id=9, sequence=0))
    shell.topic.on_turn()
    (append,) = shell.wires["storage"].take()
    assert isinstance(append, p.Append)
    shell.topic._requests[append.request + 1_000] = p.EmptyTopic(77)
    shell.hear("storage", p.Failed(append.request, "E_X", "why"))
    assert [type(message) for message in shell.wires["front"].take()] == [p.Unstored]
    assert shell.wires["supervisor"].take() == []
    shell.hear("storage", p.Failed(append.request + 1_000, "E_X", "why"))
    assert shell.wires["supervisor"].take() == [p.Failed(77, "E_X", "why")]


def test_nobody_but_storage_answers_for_an_append(shell: Shell) -> None:
    answers = {p.Appended, p.Kept, p.Head, p.Done, p.Failed}
    assert set(shell.wires["storage"].routes) == answers
    assert answers.isdisjoint(shell.wires["front"].routes)
