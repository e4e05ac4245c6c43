"""Tests of a stage's engine: what it does while blocks are added and no caller waits."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from zsq.transport.block.block import Block, pack
from zsq.transport.client.core.stage_engine import LOOK_NS, StageEngine
from zsq.transport.client.core.stage_session import StageSession
from zsq.transport.client.link.link_table import LinkState
from zsq.transport.errors import E_BAD_BLOCK, CorruptBlock, UsageError
from zsq.transport.wire import sockets
from zsq.transport.wire.address import Target, parse
from zsq.transport.wire.protocol import Done, Failed, Staged, Wire

STAGE = b"s" * 16


def block() -> Block:
    return pack([bytes(20)])


class Pushed:
    """An engine with a fake link and a fake push socket. `answer` is the message that is not read
    yet.
    """

    def __init__(self, run: Path, credit_blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.session = StageSession(STAGE, "app", 1, window_bytes_max=1 << 30)
        opened = {
            "expected": 0,
            "sealed": 0,
            "credit_bytes": credit_blocks * block().length,
            "committed": False,
        }
        self.session.on_word(Done(self.session.begin().request, opened), 0)
        self.engine = StageEngine(parse(f"ipc://{run}"), Target("topic", "t"), self.session, 1_000)
        self.engine.stop()
        self.pushed = self.looks = 0
        self.answer: Wire | None = None
        link = SimpleNamespace(
            up=True,
            state=LinkState.UP,
            take_in=self.take_in,
            send=lambda *_: None,
            stop=lambda _: None,
        )
        self.engine.link = cast("Any", link)
        self.engine._push = cast("Any", SimpleNamespace(close=lambda linger: None))
        monkeypatch.setattr(sockets, "send_frames", self.send)

    def send(self, _: object, __: object) -> bool:
        self.pushed += 1
        return True

    def take_in(self, now_ns: int) -> None:
        self.looks += 1
        if self.answer is not None:
            self.session.on_word(self.answer, now_ns)
            self.engine.on_received(now_ns)

    def add(self, now_ns: int) -> None:
        self.session.add(block())
        self.engine.go(now_ns)


def test_answers_are_taken_before_the_credit_is_used_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the writer took answers only when its credit is used up, it would stop pushing until a
    caller waits.
    """
    writer = Pushed(tmp_path, 10, monkeypatch)
    for number in range(100):
        writer.answer = Staged(STAGE, number)
        writer.add(1)
    assert writer.pushed == 100
    assert writer.looks < 40, "not for each block"


def test_a_writer_below_its_credit_still_learns_that_its_stage_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Pushed(tmp_path, 1_000, monkeypatch)
    writer.answer = Failed(0, E_BAD_BLOCK, "the topic is gone")
    writer.add(LOOK_NS)
    assert (writer.looks, writer.session.ended) == (0, False)
    writer.add(LOOK_NS + 1)
    assert isinstance(writer.session.error, UsageError | CorruptBlock)
    writer.engine.events.close()
