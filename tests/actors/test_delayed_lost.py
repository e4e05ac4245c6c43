"""Delayed messages that damage cost: an alarm, as soon as they are found."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from zsq.actors.delayed_desk import DelayedDesk
from zsq.storage.delayed import DelayedStore
from zsq.storage.delayed_format import DelayedRow, encode_row
from zsq.storage.files import Files
from zsq.transport.block import pack


def test_messages_that_damage_cost_are_an_alarm(tmp_path: Path) -> None:
    delayed = DelayedStore(str(tmp_path / "delayed"), bytes(16), create=True)
    store = SimpleNamespace(files=Files(), directory=str(tmp_path), reserve_bytes=0, delayed=delayed)
    nothing = [lambda *_: None] * 5
    desk = DelayedDesk(store, "storage t", *nothing)  # type: ignore[arg-type]
    block = pack([b"a", b"b"], producer_id=7)
    (key,) = delayed.put([(block, 10)], 5)
    desk.look()
    assert desk.statistics()["delayed_alarm"] == ""
    delayed._drop_damaged([(*encode_row(DelayedRow(key, block)), "it is damaged")])
    delayed._drop_damaged([])
    desk.look()
    assert desk.statistics()["delayed_lost"] == 2
    assert desk.statistics()["delayed_alarm"].startswith("damage cost 2 delayed messages")
    delayed.close()
