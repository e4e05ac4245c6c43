"""Tests of the disk queue at its limits: garbage after records, little space, many reads, and many
messages to count.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from support.faulty_files import FaultyFiles

from zsq.storage.errors import DiskFull
from zsq.storage.files import Files
from zsq.storage.nsq.disk_queue import DiskQueue
from zsq.storage.nsq.disk_queue_format import Meta, data_name, encode_meta, encode_record, meta_name
from zsq.storage.nsq.disk_queue_recovery import QueueFiles, doubt_about

NAME = "jobs"
BODIES = [b"message %d" % number for number in range(8)]  # 13 bytes each, including the length
RECORDS = b"".join(map(encode_record, BODIES[:3]))


def left(folder: Path, meta: Meta, *contents: bytes) -> None:
    for number, content in enumerate(contents):
        (folder / data_name(NAME, number)).write_bytes(content)
    (folder / meta_name(NAME)).write_bytes(encode_meta(meta))


def bad(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(".bad"))


@pytest.mark.parametrize("rubbish", [1, 3, 4])
def test_a_few_bytes_behind_the_last_record_cost_no_other_file(
    tmp_path: Path, rubbish: int
) -> None:
    """The rubbish is shorter than the length field of a record, and the file is not written any
    more.
    """
    left(tmp_path, Meta(4, 0, 0, 1, 13), RECORDS + b"\xff" * rubbish, encode_record(BODIES[3]))
    with DiskQueue(tmp_path, NAME) as queue:
        assert list(queue) == BODIES[:4]
        assert bad(tmp_path) == [f"{data_name(NAME, 0)}.bad"]


def test_an_impossible_length_at_the_end_is_no_unfinished_write(tmp_path: Path) -> None:
    """The bytes are not cut off: the queue did not write them, so nobody knows what they are."""
    rubbish = b"\x7f\xff\xff\xff and more"
    left(tmp_path, Meta(3, 0, 0, 0, len(RECORDS)), RECORDS + rubbish)
    with DiskQueue(tmp_path, NAME) as queue:
        assert queue.report.cut_bytes == 0
        assert any("no message can be read" in note for note in queue.report.notes)
        assert list(queue) == BODIES[:3]
        queue.put(BODIES[3])
        assert list(queue) == BODIES[3:4]
    (aside,) = bad(tmp_path)
    assert (tmp_path / aside).read_bytes() == RECORDS + rubbish


def test_records_are_read_many_at_a_time(tmp_path: Path) -> None:
    files = FaultyFiles(str(tmp_path))
    with DiskQueue(tmp_path, NAME, files=files) as queue:
        queue.put_many(BODIES * 100)
        before = files._calls.get("pread", 0)
        assert len(list(queue)) == 800
        assert files._calls["pread"] - before < 10


def test_bytes_of_a_refused_put_are_gone_when_a_smaller_one_follows(tmp_path: Path) -> None:
    """The end of the refused record would follow the smaller one, in a file that is read to its
    end.
    """
    files = FaultyFiles(str(tmp_path))
    with DiskQueue(tmp_path, NAME, max_bytes_per_file=100, files=files) as queue:
        queue.put(BODIES[0])
        files.short = {files._calls["writev"] + 1: 80}
        with pytest.raises(DiskFull):
            # This record would end at position 93. Seven of the other records end at 91, and the
            # eighth goes into the next file.
            queue.put(b"x" * 80)
        for body in BODIES[1:]:
            queue.put(body)
        assert list(queue) == BODIES
        assert (queue.depth(), bad(tmp_path)) == (0, [])


def test_the_name_of_a_file_is_synced_before_metadata_count_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This also holds if the folder's first sync failed because the disk was full."""
    files = FaultyFiles(str(tmp_path))
    unnamed: list[str] = []
    real = files.rename

    def rename(old: str, new: str) -> None:
        made = [
            name for change in files.pending for _, name, node in change.entries if node is not None
        ]
        unnamed.extend(name for name in made if name.endswith(".dat") and name != Path(new).name)
        real(old, new)

    monkeypatch.setattr(files, "rename", rename)
    with DiskQueue(tmp_path, NAME, files=files) as queue:
        files.fail = {"sync_folder": {files._calls.get("sync_folder", 0) + 1: errno.ENOSPC}}
        with pytest.raises(DiskFull):
            queue.put(BODIES[0])
        queue.put(BODIES[1])
        assert list(queue) == [BODIES[1]]
    assert unnamed == []


def test_more_than_can_be_counted_at_a_start_is_believed(tmp_path: Path) -> None:
    """The metadata is believed if nothing contradicts it. Checking it would mean reading hundreds
    of gigabytes, which takes hours.
    """
    meta = Meta(2, 0, 0, 0, len(RECORDS))
    left(tmp_path, meta, RECORDS)
    place = QueueFiles(Files(), str(tmp_path), NAME, 1, 1000)
    assert doubt_about(place, meta, [0], check_bytes_max=len(RECORDS) - 1) == ""
    assert "there are 3 from its read position on" in doubt_about(
        place, meta, [0], check_bytes_max=len(RECORDS)
    )
