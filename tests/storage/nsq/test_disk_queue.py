"""Tests of the disk queue: its promises one by one, damage, files that NSQ left, and the formats of
nsqd.
"""

from __future__ import annotations

import fcntl
import math
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import zsq
from zsq.storage.errors import Damaged, ForeignDirectory, Locked, StoreFailed
from zsq.storage.nsq.disk_queue import DiskQueue
from zsq.storage.nsq.disk_queue_format import (
    Meta,
    NsqdChannel,
    NsqdList,
    NsqdTopic,
    NsqMessage,
    data_name,
    decode_message,
    decode_meta,
    decode_nsqd,
    encode_message,
    encode_meta,
    encode_nsqd,
    encode_record,
    looks_like_message,
    meta_name,
    parse_data_name,
    parse_meta_name,
    queue_name,
)
from zsq.transport.errors import UsageError

NAME = "clicks:archive"
BODIES = [b"body %d" % number for number in range(9)]  # 10 bytes each, including the length
SIX = 60  # maximum bytes in a file: six bodies


def data(folder: Path, number: int) -> Path:
    return folder / data_name(NAME, number)


def left(folder: Path, meta: Meta | None, *contents: bytes) -> None:
    """Write metadata, and data files from number 0 on, as another program left them."""
    for number, content in enumerate(contents):
        data(folder, number).write_bytes(content)
    if meta is not None:
        (folder / meta_name(NAME)).write_bytes(encode_meta(meta))


RECORDS = b"".join(encode_record(body) for body in BODIES[:6])


# The operations


def test_first_in_first_out_over_several_files_and_openings(tmp_path: Path) -> None:
    with zsq.DiskQueue(tmp_path, NAME, max_bytes_per_file=SIX) as queue:
        assert queue.get() is None
        assert queue.put_many(BODIES) == 9
        assert (queue.depth(), len(queue), bool(queue)) == (9, 9, True)
        assert queue.peek() == queue.peek() == BODIES[0]
        assert queue.get() == BODIES[0]
    assert data(tmp_path, 0).read_bytes() == RECORDS
    assert (tmp_path / meta_name(NAME)).read_bytes() == b"8\n0,10\n1,30\n"
    with zsq.DiskQueue(tmp_path, NAME, max_bytes_per_file=SIX) as queue:
        assert queue.report.clean
        assert list(queue) == BODIES[1:]
        assert not data(tmp_path, 0).exists()
        assert queue.depth() == 0


def test_a_file_that_grows_while_it_is_read_is_read_to_its_end(tmp_path: Path) -> None:
    with DiskQueue(tmp_path, NAME, max_bytes_per_file=SIX) as queue:
        queue.put(BODIES[0])
        assert queue.peek() == BODIES[0]
        queue.put_many(BODIES[1:])  # this begins a new file
        assert list(queue) == BODIES


def test_messages_are_in_the_files_when_put_returns(tmp_path: Path) -> None:
    with DiskQueue(tmp_path, NAME) as queue:
        queue.put(b"one")
        assert data(tmp_path, 0).read_bytes() == encode_record(b"one")
        assert decode_meta((tmp_path / meta_name(NAME)).read_bytes()) == Meta(1, 0, 0, 0, 7)
        queue.get()
        assert decode_meta((tmp_path / meta_name(NAME)).read_bytes()) == Meta(0, 0, 7, 0, 7)


def test_empty_goes_on_in_the_next_file_and_delete_leaves_nothing(tmp_path: Path) -> None:
    with DiskQueue(tmp_path, NAME, max_bytes_per_file=SIX) as queue:
        queue.put_many(BODIES)
        queue.empty()
        assert (queue.depth(), queue.get()) == (0, None)
        assert [path.name for path in tmp_path.iterdir()] == [meta_name(NAME)]
        queue.put(b"next")
        assert data(tmp_path, 2).exists()
        queue.delete()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StoreFailed, match="deleted"):
        queue.put(b"more")


def test_a_closed_queue_refuses_reads(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path, NAME)
    queue.close()
    queue.close()
    with pytest.raises(StoreFailed, match="closed"):
        queue.get()


@pytest.mark.parametrize("size", [0, 1, 5, 11])
def test_a_message_outside_the_size_limits_is_refused(tmp_path: Path, size: int) -> None:
    with DiskQueue(tmp_path, NAME, min_msg_size=2, max_msg_size=10) as queue:
        if 2 <= size <= 10:
            queue.put(b"x" * size)
            assert queue.get() == b"x" * size
        else:
            with pytest.raises(UsageError, match=f"{size} bytes"):
                queue.put_many([b"fine", b"x" * size])
            assert queue.depth() == 0, "none of a batch is put that cannot be put whole"


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "a\0b", "x" * 201])
def test_each_bad_queue_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        DiskQueue(tmp_path, name)


def test_a_missing_folder_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ForeignDirectory, match="does not exist"):
        DiskQueue(tmp_path / "gone", NAME)
    assert not (tmp_path / "gone").exists()


def test_get_waits_for_another_thread(tmp_path: Path) -> None:
    with DiskQueue(tmp_path, NAME) as queue:
        found: list[bytes | None] = []
        reader = threading.Thread(target=lambda: found.append(queue.get(timeout=20)))
        reader.start()
        queue.put(b"one")
        reader.join(20)
        assert found == [b"one"]
        assert queue.get(timeout=0.01) is None


def test_threads_put_and_get_each_once(tmp_path: Path) -> None:
    found: list[bytes] = []
    with DiskQueue(tmp_path, NAME, max_bytes_per_file=200, sync_every=50) as queue:

        def write(n: int) -> None:
            for i in range(100):
                queue.put(b"%d/%d" % (n, i))

        def read() -> None:
            for _ in range(150):
                found.append(queue.get(timeout=20) or b"")

        writers = [threading.Thread(target=write, args=(n,)) for n in range(3)]
        readers = [threading.Thread(target=read) for _ in range(2)]
        for thread in (*writers, *readers):
            thread.start()
        for thread in (*writers, *readers):
            thread.join(30)
    assert sorted(found) == sorted(b"%d/%d" % (n, i) for n in range(3) for i in range(100))


def test_with_sync_every_a_commit_comes_by_count_and_by_time(tmp_path: Path) -> None:
    meta = tmp_path / meta_name(NAME)
    with DiskQueue(tmp_path, NAME, sync_every=3, sync_timeout=3600) as queue:
        queue.put(b"one")
        queue.get()
        assert not meta.exists()
        queue.put(b"two")
        assert decode_meta(meta.read_bytes()).depth == 1
    saved = threading.Event()
    with DiskQueue(tmp_path, NAME, sync_every=1000, sync_timeout=0.02) as queue:
        queue.put(b"three")
        for _ in range(1000):
            if decode_meta(meta.read_bytes()).depth == 2 or saved.wait(0.01):
                break
        assert decode_meta(meta.read_bytes()).depth == 2


# The lock


def test_a_queue_is_opened_once(tmp_path: Path) -> None:
    with (
        DiskQueue(tmp_path, NAME),
        DiskQueue(tmp_path, "clicks"),
        pytest.raises(Locked, match="already open in this process"),
    ):
        DiskQueue(tmp_path / ".", NAME)
    DiskQueue(tmp_path, NAME).close()


def test_nsqd_and_a_disk_queue_exclude_each_other(tmp_path: Path) -> None:
    """nsqd locks its data path with flock."""
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(Locked, match="nsqd"):
            DiskQueue(tmp_path, NAME)
        fcntl.flock(fd, fcntl.LOCK_UN)
        with DiskQueue(tmp_path, NAME), pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(fd)


FORKED = """
import fcntl, os, sys
import zsq
from zsq.storage.errors import Locked, StoreFailed
folder = sys.argv[1]
with zsq.DiskQueue(folder, "jobs") as queue:
    queue.put(b"one")
    go, wait = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        refused = []
        for use in (lambda: queue.put(b"of the child"), queue.get, queue.depth, queue.sync, queue.empty, queue.delete):
            try:
                use()
            except StoreFailed as error:
                refused.append(str(error))
        assert len(refused) == 6 and "forked" in refused[0], refused
        queue.close()
        try:
            zsq.DiskQueue(folder, "jobs")
        except Locked:
            os.write(go[1], b"l")
        os.read(wait[0], 1)  # the parent has closed it, this process still lives
        os._exit(0)
    assert os.read(go[0], 1) == b"l", "its parent has the folder"
    queue.put(b"two")
with zsq.DiskQueue(folder, "jobs") as queue:
    assert list(queue) == [b"one", b"two"]
fd = os.open(folder, os.O_RDONLY)
fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
os.write(wait[1], b"e")
assert os.waitpid(pid, 0)[1] == 0
print("well")
"""


def test_a_forked_process_cannot_use_the_queue_and_does_not_hold_its_lock(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FORKED, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "well\n"), ended.stderr


# Files that were left


@pytest.mark.parametrize(
    ("meta", "contents", "expected", "write_file"),
    [
        # There is no metadata. NSQ would overwrite the files.
        (
            None,
            (RECORDS, RECORDS[:20]),
            [*BODIES[:6], *BODIES[:2]],
            2,
        ),
        (Meta(2, 0, 0, 0, 20), (RECORDS,), BODIES[:6], 1),  # the metadata is older than the data
        # The metadata does not include the new file.
        (
            Meta(2, 0, 0, 0, 20),
            (RECORDS, RECORDS[:10]),
            [*BODIES[:6], BODIES[0]],
            2,
        ),
        (Meta(9, 0, 10, 0, 60), (RECORDS[:40],), BODIES[1:4], 1),  # a part of the data is lost
        # The last write is unfinished.
        (
            Meta(6, 0, 0, 0, 60),
            (RECORDS + b"\0\0\0\x06bo",),
            BODIES[:6],
            1,
        ),
        (Meta(6, 0, 0, 0, 60), (RECORDS + b"\0\0",), BODIES[:6], 1),
        # Of the last write, only the new size of the file reached the disk, so the file ends with
        # zeros.
        (
            Meta(6, 0, 0, 0, 60),
            (RECORDS + bytes(50),),
            BODIES[:6],
            1,
        ),
        (Meta(-3, 0, 10, 0, 60), (RECORDS,), BODIES[1:6], 0),  # the count is wrong
        # The read position or the depth is wrong: some messages may come twice, none is lost.
        (
            Meta(5, 0, 60, 0, 60),
            (RECORDS,),
            BODIES[:6],
            0,
        ),
        # The read position is after the write position, and there is no file at all.
        (Meta(6, 3, 70, 3, 60), (), [], 3),
    ],
)
def test_data_counts_and_not_the_metadata(
    tmp_path: Path,
    meta: Meta | None,
    contents: tuple[bytes, ...],
    expected: list[bytes],
    write_file: int,
) -> None:
    left(tmp_path, meta, *contents)
    with DiskQueue(tmp_path, NAME) as queue:
        assert queue.report.notes
        assert queue.depth() == len(expected)
        assert queue._meta.write_file in (write_file, write_file + 1)
    with DiskQueue(tmp_path, NAME) as queue:
        assert not queue.report.notes, "what was found is written down, once"
        queue.put(b"new")
        assert list(queue) == [*expected, b"new"]
    assert not list(tmp_path.glob("*.bad"))


def test_metadata_that_cannot_be_read_costs_nothing(tmp_path: Path) -> None:
    left(tmp_path, None, RECORDS)
    (tmp_path / meta_name(NAME)).write_bytes(b"6\n0,0\n0,")
    with DiskQueue(tmp_path, NAME) as queue:
        assert list(queue) == BODIES[:6]


def test_files_that_were_read_are_removed_and_a_missing_one_is_stepped_over(tmp_path: Path) -> None:
    left(tmp_path, Meta(2, 2, 0, 3, 20), RECORDS, RECORDS, b"", RECORDS[:20])
    data(tmp_path, 2).unlink()
    with DiskQueue(tmp_path, NAME) as queue:
        assert not data(tmp_path, 0).exists()
        assert not data(tmp_path, 1).exists()
        assert list(queue) == BODIES[:2]


def test_a_temporary_file_of_a_crash_is_not_read_and_goes_with_the_next_commit(
    tmp_path: Path,
) -> None:
    left(tmp_path, Meta(6, 0, 0, 0, 60), RECORDS)
    temporary = tmp_path / (meta_name(NAME) + ".tmp")
    temporary.write_bytes(encode_meta(Meta(0, 0, 60, 0, 60)))
    with DiskQueue(tmp_path, NAME) as queue:
        assert queue.get() == BODIES[0]
        assert not temporary.exists()


@pytest.mark.parametrize("length", [0, -1, 2**31 - 1, 200])
def test_a_record_that_cannot_be_sets_its_file_aside(tmp_path: Path, length: int) -> None:
    broken = RECORDS[:20] + length.to_bytes(4, "big", signed=True) + RECORDS[24:]
    left(tmp_path, Meta(12, 0, 0, 1, 60), broken, RECORDS)
    with DiskQueue(tmp_path, NAME, max_msg_size=100) as queue:
        assert list(queue) == [*BODIES[:2], *BODIES[:6]]
        assert queue.depth() == 0
        assert "set aside" in queue.report.notes[-1]
    assert Path(f"{data(tmp_path, 0)}.bad").read_bytes() == broken


def test_a_bad_write_file_is_left_for_a_new_one(tmp_path: Path) -> None:
    left(tmp_path, Meta(6, 0, 0, 0, 60), RECORDS[:20] + b"\xff" * 40)
    with DiskQueue(tmp_path, NAME) as queue:
        assert [queue.get(), queue.get(), queue.get()] == [*BODIES[:2], None]
        queue.put(b"new")
        assert queue.get() == b"new"
        assert data(tmp_path, 1).exists()


# Formats


def test_file_names_of_nsqd_are_made_and_parsed() -> None:
    assert queue_name("a.b", "c#ephemeral") == "a.b:c#ephemeral"
    assert data_name("t:c", 7) == "t:c.diskqueue.000007.dat"
    for name, number in (("t", 0), ("t:c", 1_000_000), ("x.diskqueue.000001.dat", 3)):
        assert parse_data_name(data_name(name, number)) == (name, number)
    for other in (
        "t.diskqueue.meta.dat",
        "t.diskqueue.07.dat",
        "t.diskqueue.000007.dat.bad",
        "nsqd.dat",
        ".diskqueue.000001.dat",
    ):
        assert parse_data_name(other) is None
    assert parse_meta_name(meta_name("t:c")) == "t:c"
    assert parse_meta_name("t.diskqueue.000001.dat") is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"1\n2,3\n",
        b"a\n0,0\n0,0\n",
        b"1\n0,0\n0,0\nmore",
        b"1\n-1,0\n0,0\n",
        b"1\n0\n0,0\n",
        b"\xff",
    ],
)
def test_each_damaged_metadata_file_is_refused(text: bytes) -> None:
    with pytest.raises(Damaged):
        decode_meta(text)


def test_messages_and_topic_lists_come_back_as_they_were_written() -> None:
    message = NsqMessage(1_700_000_000_000_000_000, 70_000, b"0123456789abcdef", b"body")
    payload = encode_message(message)
    assert decode_message(payload) == message._replace(attempts=65_535)
    assert len(payload) == 30
    with pytest.raises(Damaged):
        decode_message(payload[:25])
    assert looks_like_message(b"??" + encode_record(payload), 2, 100)
    assert not looks_like_message(b"??" + encode_record(payload), 1, 100)
    assert not looks_like_message(encode_record(payload), 0, 29)
    found = NsqdList((NsqdTopic("t", True, (NsqdChannel("c", True),)), NsqdTopic("u")), "1.3.0")
    assert decode_nsqd(encode_nsqd(found)) == found
    assert decode_nsqd(b'{"topics":null,"version":"1.3.0"}') == NsqdList((), "1.3.0")
    for wrong in (b"", b"[]", b'{"version":"1.3.0"}', b'{"topics":[{}]}', b'{"topics":[1]}'):
        with pytest.raises(ForeignDirectory):
            decode_nsqd(wrong)


@pytest.mark.parametrize("far", [10**9, 10**18])
def test_a_file_number_that_is_far_off_is_not_counted_up_to(tmp_path: Path, far: int) -> None:
    """Metadata has no checksum. If the queue counted up to that number file by file, and changed
    the metadata each time, it would never end.
    """
    left(tmp_path, Meta(6, far, 0, far, 0), RECORDS)
    with DiskQueue(tmp_path, NAME) as queue:
        assert list(queue) == BODIES[:6]
        queue.put(b"new")
        assert list(queue) == [b"new"]


def test_a_name_that_is_far_off_is_not_counted_up_to(tmp_path: Path) -> None:
    left(tmp_path, Meta(0, 1, 0, 1, 0), RECORDS)
    data(tmp_path, 0).rename(data(tmp_path, 10**18))
    with DiskQueue(tmp_path, NAME) as queue:
        assert list(queue) == BODIES[:6]
        queue.put(b"new")
        assert list(queue) == [b"new"]


@pytest.mark.parametrize("timeout", [None, math.inf, 1e300])
def test_a_read_without_a_time_out_waits_for_the_next_message(
    tmp_path: Path, timeout: float | None
) -> None:
    with DiskQueue(tmp_path, NAME) as queue, ThreadPoolExecutor(2) as pool:
        looking = pool.submit(queue.peek, timeout)
        assert not looking.done()
        queue.put(b"one")
        assert looking.result(20) == b"one"
        assert queue.get(timeout) == b"one"
        reading = pool.submit(queue.get, timeout)
        queue.put(b"two")
        assert reading.result(20) == b"two"
