"""Tests that an export is on disk when the command reports success, that it gets its final name
only then, and that two commands cannot use one data directory.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.faulty_files import keep_none
from support.hasty import HastyFiles

from tests.compat.test_export import OPTIONS, Topic, queue
from zsq.apps.nsqd import nsqd_export
from zsq.apps.nsqd.nsqd_export import ExportOptions, export_nsqd
from zsq.apps.nsqd.nsqd_import import import_nsqd
from zsq.storage.errors import Locked
from zsq.storage.files import Files
from zsq.storage.nsq.disk_queue import DiskQueue


def test_an_export_is_on_disk_when_it_is_told(tmp_path: Path) -> None:
    topic = Topic(tmp_path / "data")
    files = HastyFiles(str(tmp_path))
    export_nsqd(files, tmp_path / "out", tmp_path / "data", (), ExportOptions())
    assert [one for one in files.hasty if one.startswith(f"{tmp_path}/out:")] == []
    files.crash(keep_none)
    assert [message.body for message in queue(tmp_path / "out", "t")] == topic.bodies
    assert (tmp_path / "out/nsqd.dat").exists()


@pytest.mark.parametrize(("count", "size"), [(7, 1 << 30), (1 << 30, 40)])
def test_an_export_holds_a_bounded_part_of_the_messages_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, size: int
) -> None:
    monkeypatch.setattr(nsqd_export, "BATCH_COUNT", count)
    monkeypatch.setattr(nsqd_export, "BATCH_BYTES", size)
    batches: list[int] = []
    real = DiskQueue.put_many

    def put_many(self: DiskQueue, messages: list[bytes]) -> int:
        batches.append(len(messages))
        return real(self, messages)

    monkeypatch.setattr(DiskQueue, "put_many", put_many)
    topic = Topic(tmp_path / "data")
    topic.export(tmp_path / "out")
    assert sum(batches) == 60
    assert max(batches) <= 7


def test_two_do_not_work_in_one_data_directory(tmp_path: Path) -> None:
    topic = Topic(tmp_path / "data")
    topic.export(tmp_path / "out")
    held = Files().lock(f"{tmp_path}/data/lock")
    try:
        with pytest.raises(Locked):
            topic.export(tmp_path / "other")
        with pytest.raises(Locked):
            import_nsqd(Files(), str(tmp_path / "out"), tmp_path / "data", options=OPTIONS)
    finally:
        Files().close(held)
