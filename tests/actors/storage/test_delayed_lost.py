"""Test that delayed messages lost by damage raise an alarm as soon as the loss is found."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from support.fake_storage import Listener
from support.scripted_extension import plain
from support.stage_bench import Thread

from zsq.actors.storage.delayed import DelayedMessages
from zsq.storage.delayed.delayed import DelayedStore
from zsq.storage.delayed.delayed_format import DelayedRow, encode_row
from zsq.storage.files import Files
from zsq.storage.space import Shortage
from zsq.transport.block.block import pack


def ignore(*_: Any) -> None:
    """Stand in for the functions that inform the topic, the log and the scan loop."""


def test_delayed_messages_lost_by_damage_raise_an_alarm(tmp_path: Path) -> None:
    delayed = DelayedStore(str(tmp_path / "delayed"), bytes(16), create=True)
    store = SimpleNamespace(
        files=Files(), directory=str(tmp_path), reserve_bytes=0, delayed=delayed
    )
    harness = DelayedMessages(
        cast("Any", store),
        "storage t",
        Thread(),
        Listener(),
        plain(),
        ignore,
        ignore,
        ignore,
        Shortage(),
    )
    block = pack([b"a", b"b"], producer_id=7)
    (key,) = delayed.put([(block, 10)], 5)
    harness.look()
    assert harness.statistics()["delayed_alarm"] == ""
    delayed._drop_damaged([(*encode_row(DelayedRow(key, block)), "it is damaged")])
    delayed._drop_damaged([])
    harness.look()
    assert harness.statistics()["delayed_lost"] == 2
    assert harness.statistics()["delayed_alarm"].startswith(
        "2 delayed messages are lost because of damage: see "
    )
    delayed.close()
