"""Tests of the disk queue's metadata, which has no checksum: whichever bit or digit of it changes,
no unread message is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from zsq.storage.nsq import disk_queue_recovery
from zsq.storage.nsq.disk_queue import DiskQueue
from zsq.storage.nsq.disk_queue_format import (
    Meta,
    data_name,
    decode_meta,
    encode_meta,
    encode_record,
    meta_name,
)

NAME = "jobs"
BODIES = [b"message %d of forty" % (number + 100) for number in range(40)]
RECORD_BYTES = len(encode_record(BODIES[0]))


def arrange(folder: Path, read: int, meta: bytes | None = None) -> bytes:
    """Write forty messages in four files, of which `read` are read. Return the correct metadata."""
    folder.mkdir()
    for number in range(read // 10, 4):
        data = b"".join(map(encode_record, BODIES[number * 10 : number * 10 + 10]))
        (folder / data_name(NAME, number)).write_bytes(data)
    right = encode_meta(Meta(40 - read, read // 10, read % 10 * RECORD_BYTES, 3, 10 * RECORD_BYTES))
    (folder / meta_name(NAME)).write_bytes(right if meta is None else meta)
    return right


def turned(right: bytes) -> Iterator[bytes]:
    """Yield the metadata with each bit flipped, and with each digit replaced."""
    for at, byte in enumerate(right):
        others = {byte ^ 1 << bit for bit in range(8)} | (
            set(b"0123456789") if chr(byte).isdigit() else set()
        )
        for other in others - {byte}:
            yield right[:at] + bytes([other]) + right[at + 1 :]


def data_files(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in folder.glob("*.dat*") if ".meta." not in path.name
    }


@pytest.mark.parametrize("read", [0, 13, 30])
def test_a_turned_bit_loses_nothing_that_was_not_read(tmp_path: Path, read: int) -> None:
    right = arrange(tmp_path / "right", read)
    for case, meta in enumerate(turned(right)):
        folder = tmp_path / str(case)
        arrange(folder, read, meta)
        before = data_files(folder)
        with DiskQueue(folder, NAME) as queue:
            assert before.items() <= data_files(folder).items(), (
                f"{meta!r}: opening took something away"
            )
            found = list(queue)
        assert [body for body in found if body in BODIES[read:]] == BODIES[read:], f"{meta!r}"
        assert len(set(found)) == len(found)
        assert not list(folder.glob("*.bad"))


@pytest.mark.parametrize("read", [0, 13])
def test_opening_removes_nothing_also_of_a_queue_that_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: int
) -> None:
    monkeypatch.setattr(disk_queue_recovery, "CHECK_BYTES_MAX", 0)
    for case, meta in enumerate(turned(arrange(tmp_path / "right", read))):
        folder = tmp_path / str(case)
        arrange(folder, read, meta)
        before = data_files(folder)
        for _ in range(2):  # a second time too, with the metadata that the first start wrote
            with DiskQueue(folder, NAME):
                assert before.items() <= data_files(folder).items(), f"{meta!r}"


def test_a_file_that_was_read_goes_where_the_depth_agrees(tmp_path: Path) -> None:
    arrange(tmp_path / "a", 0, encode_meta(Meta(30, 1, 0, 3, 10 * RECORD_BYTES)))
    with DiskQueue(tmp_path / "a", NAME) as queue:
        assert not (tmp_path / "a" / data_name(NAME, 0)).exists()
        assert list(queue) == BODIES[10:]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("40\n8,0\n3,250", "the read position after the write position"),
        ("40\n0,400\n3,250", "which ends at 2"),
        ("40\n2,0\n3,250", "40 messages"),
    ],
)
def test_wrong_metadata_are_reported_with_the_reason(tmp_path: Path, line: str, said: str) -> None:
    right = decode_meta(arrange(tmp_path / "right", 0))
    arrange(tmp_path / "a", 0, f"{line.rpartition(',')[0]},{right.write_position}\n".encode())
    with DiskQueue(tmp_path / "a", NAME) as queue:
        assert said in queue.report.notes[0]
        assert queue.depth() == 40


@pytest.mark.parametrize(
    "line",
    [
        "40\n0,0\n1" + "0" * 200 + ",0",
        f"40\n{1 << 63},0\n{1 << 63},0",
        f"{-(1 << 63) - 1}\n0,0\n0,0",
    ],
)
def test_numbers_that_nsqd_cannot_have_written_are_damage(tmp_path: Path, line: str) -> None:
    """In an earlier version, messages after such a file number were lost at the next opening,
    because the metadata was too long to be read.
    """
    (tmp_path / meta_name(NAME)).write_bytes(f"{line}\n".encode())
    with DiskQueue(tmp_path, NAME) as queue:
        assert queue.report.notes
        queue.put(b"new")
    with DiskQueue(tmp_path, NAME) as queue:
        assert list(queue) == [b"new"]


def test_a_write_position_inside_a_message_cuts_nothing_off(tmp_path: Path) -> None:
    """The bytes there may look like the length of an unfinished record."""
    bodies = [b"\0\0\1\0" * 6] * 5
    data = b"".join(map(encode_record, bodies))
    for position in range(len(data)):
        folder = tmp_path / str(position)
        folder.mkdir()
        (folder / data_name(NAME, 0)).write_bytes(data)
        (folder / meta_name(NAME)).write_bytes(encode_meta(Meta(5, 0, 0, 0, position)))
        with DiskQueue(folder, NAME) as queue:
            assert (folder / data_name(NAME, 0)).read_bytes() == data
            assert list(queue) == bodies


def test_a_name_with_a_number_beyond_what_nsqd_counts_to_is_not_the_queues(tmp_path: Path) -> None:
    """The metadata for a file with a higher number could not be read again."""
    other = tmp_path / f"{NAME}.diskqueue.{'9' * 20}.dat"
    other.write_bytes(b"somebody's")
    for body in BODIES[:3]:
        with DiskQueue(tmp_path, NAME) as queue:
            queue.put(body)
            assert not queue.report.notes
    with DiskQueue(tmp_path, NAME) as queue:
        assert list(queue) == BODIES[:3]
    assert other.read_bytes() == b"somebody's"
