"""Tests of opening a directory: the lock, the identity, the report of recovery, producers that are
brought up to date, and the calls of the operating system.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.faulty_files import keep_all

from zsq.storage.directory.store import (
    StoreOptions,
    TopicIdentity,
    check_writable,
    create_store,
    open_store,
)
from zsq.storage.errors import DiskFull, ForeignDirectory, Locked, StoreFailed
from zsq.storage.files import Files
from zsq.storage.log.log_format import IDENTITY_NAME, LOCK_NAME, STATE_NAME
from zsq.storage.state.channel_row import ChannelRow
from zsq.storage.state.state import ProducerRow, StateBatch
from zsq.transport.block.block import pack

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness

HOLDER = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(fd, fcntl.LOCK_EX)
os.ftruncate(fd, 0)
os.write(fd, b"%d" % os.getpid())
print("held", flush=True)
sys.stdin.read()
"""


def test_another_process_holds_the_lock(harness: StorageHarness) -> None:
    harness.abandon_cleanly()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(harness.path(LOCK_NAME))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(Locked, match=str(holder.pid)) as locked:
            harness.open()
        assert locked.value.pid == holder.pid
        assert holder.stdin is not None
        holder.stdin.close()
    harness.open()
    with pytest.raises(Locked, match=str(os.getpid())):
        open_store(
            Files(),
            harness.directory,
            harness.options,
            TopicIdentity("clicks", "00112233445566778899aabbccddeeff"),
        )


def test_a_missing_directory_is_not_made(tmp_path: Path) -> None:
    identity = TopicIdentity("t", "0" * 32)
    with pytest.raises(ForeignDirectory):
        open_store(Files(), f"{tmp_path}/t", StoreOptions(), identity)
    (tmp_path / "t").mkdir()
    with pytest.raises(ForeignDirectory):
        open_store(Files(), f"{tmp_path}/t", StoreOptions(), identity)
    assert list((tmp_path / "t").iterdir()) == []
    with pytest.raises(ForeignDirectory):
        create_store(Files(), f"{tmp_path}/t", identity)


@pytest.mark.parametrize(
    "other",
    [
        TopicIdentity("clacks", "00112233445566778899aabbccddeeff"),
        TopicIdentity("clicks", "f" * 32),
    ],
)
def test_another_topics_directory_is_refused(harness: StorageHarness, other: TopicIdentity) -> None:
    harness.abandon_cleanly()
    with pytest.raises(ForeignDirectory, match="belongs to topic 'clicks'"):
        open_store(harness.files, harness.directory, harness.options, other)
    harness.open()


def test_a_store_keeps_its_messages_on_the_real_file_system(
    tmp_path_factory: pytest.TempPathFactory, files: Files
) -> None:
    tmp_path = tmp_path_factory.mktemp("real")
    identity = TopicIdentity("t", "0123456789abcdef0123456789abcdef", base_offset=5000)
    create_store(files, f"{tmp_path}/t", identity)
    for turn in range(3):
        store = open_store(files, f"{tmp_path}/t", StoreOptions(reserve_bytes=0), identity)
        assert store.log.start == 5000
        assert store.log.end == 5000 + 2 * turn
        store.log.append([pack([b"a", b"b"])], 7)
        ticket = store.log.begin_sync()
        ticket.run()
        assert store.log.finish_sync(ticket) == 5002 + 2 * turn
        store.close()
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == [
        "00000000000000005000.chunk",
        "00000000000000005000.index",
        "lock",
        "state",
        "state.snapshot",
        "state.starts",
        "topic",
    ]
    assert (tmp_path / "t").stat().st_mode & 0o777 == 0o700


def test_producers_are_brought_up_to_date_from_the_headers(harness: StorageHarness) -> None:
    for _ in range(6):
        harness.publish(count=10)
        harness.sync()
    assert len(harness.log.chunks) > 1
    assert harness.store is not None
    harness.store.state.commit(
        StateBatch(applied_offset=20, producers={77: ProducerRow(2, 5, ((0, 0), (1, 10)))})
    )
    report = harness.crash(keep_all).report
    assert report.replayed_blocks == 4
    assert harness.store is not None
    table = harness.store.state.load()
    assert table.producers[77] == ProducerRow(6, 1060, tuple((i, i * 10) for i in range(6)))
    assert table.applied_offset == 60
    assert harness.restart().report.replayed_blocks == 0


def test_recovery_is_idempotent(harness: StorageHarness) -> None:
    harness.publish(blocks=3)
    first = harness.crash(keep_all).report
    assert first.end == 9
    assert harness.crash(keep_all).report.end == 9
    assert harness.restart().report.rewritten_bytes == 0


def test_state_ahead_of_the_log_is_told_and_set_back(harness: StorageHarness) -> None:
    harness.publish()
    harness.sync()
    assert harness.store is not None
    batch = StateBatch(
        channel_puts={"c": ChannelRow(50), "d": ChannelRow(2)},
        hole_puts=[("c", 40, 1, 1, 0), ("c", 1, 1, 1, 0)],
    )
    batch.waiting, batch.paused_end = 60, 70
    harness.store.state.commit(batch)
    report = harness.restart().report
    assert len(report.alarms) == 3
    assert harness.store is not None
    table = harness.store.state.load()
    assert table.channels == {"c": ChannelRow(3), "d": ChannelRow(2)}
    assert [hole.start for hole in table.holes["c"]] == [1]
    assert (table.waiting, table.paused_end) == (3, 3)
    assert harness.restart().report.alarms == []


def test_close_leaves_a_checkpoint(harness: StorageHarness) -> None:
    harness.publish()
    report = harness.restart().report
    assert (report.end, report.rewritten_bytes, report.scanned_bytes > 0) == (3, 0, True)
    assert harness.check() == [0]


def test_the_log_refuses_after_close(harness: StorageHarness) -> None:
    log = harness.log
    harness.abandon_cleanly()
    with pytest.raises(StoreFailed):
        log.append([pack([b"x"])], 1)


def test_an_io_error_while_opening_is_named(harness: StorageHarness) -> None:
    harness.publish()
    harness.abandon_cleanly()
    harness.files.fail["sync_folder"] = {harness.files._calls.get("sync_folder", 0) + 1: 5}
    with pytest.raises(StoreFailed):
        harness.open()
    harness.open()
    assert harness.check() == [0]


def test_each_call_to_the_operating_system_does_what_it_promises(
    tmp_path: Path, files: Files
) -> None:
    path = f"{tmp_path}/file"
    fd = files.open_new(path)
    with pytest.raises(FileExistsError):
        files.open_new(path)
    files.writev(fd, [b"abc", memoryview(b"defg")], 2)
    assert files.pread(fd, 100, 0) == b"\0\0abcdefg"
    files.truncate(fd, 4)
    assert files.size(fd) == 4
    files.sync(fd)
    files.sync_all([fd])
    files.sync_all([fd] * 20)
    with pytest.raises(OSError, match="Bad file descriptor"):
        files.sync_all([fd, 9_999, fd])
    files.advise_sequential(fd)
    files.advise_done(fd, 0, 4)
    files.close(fd)
    assert not os.get_inheritable(files.open_append(path))
    assert files.read_file(path, 3) == b"\0\0a"
    assert 0 < files.free_bytes(path) < files.total_bytes(path)
    assert len({files.random_seed() for _ in range(10)}) > 1


def test_a_write_that_stops_early_is_a_short_write(tmp_path: Path) -> None:
    """The kernel makes the short write: the test limits the size of files."""
    program = (
        "import resource, signal, sys\n"
        "from zsq.storage.errors import ShortWrite\n"
        "from zsq.storage.files import Files\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5, 5))\n"
        "try:\n"
        "    Files().writev(Files().open_new(sys.argv[1]), [b'abc', b'defg'], 0)\n"
        "except ShortWrite as error:\n"
        "    print(error.written)\n"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-c", program, f"{tmp_path}/file"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.stdout == "5\n"


def test_a_store_can_be_closed_on_a_full_disk(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert harness.store is not None
    harness.publish()
    harness.sync()

    def full(batch: StateBatch) -> None:
        raise DiskFull("by plan")

    monkeypatch.setattr(harness.store.state, "commit", full)
    harness.store.close()
    report = harness.open().report
    assert (report.alarms, report.replayed_blocks) == ([], 1)


def test_a_missing_state_folder_is_made_again_where_chunks_are(harness: StorageHarness) -> None:
    harness.publish(blocks=3)
    harness.sync()
    harness.abandon_cleanly()
    shutil.rmtree(harness.path(STATE_NAME))
    harness.files.reset()
    report = harness.open().report
    assert any(
        "the state store was damaged" in alarm and "set aside" not in alarm
        for alarm in report.alarms
    )
    assert harness.check() == [0, 1, 2]


def test_a_full_disk_keeps_no_topic_from_starting_for_its_identity(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.publish()
    harness.sync()
    harness.abandon_cleanly()
    harness.path(IDENTITY_NAME).write_bytes(b"rotten")
    harness.files.reset()
    with monkeypatch.context() as full:
        full.setattr(
            harness.files,
            "write_file",
            lambda path, data: (_ for _ in ()).throw(OSError(errno.ENOSPC, "by plan")),
        )
        report = harness.open().report
    assert any("the next start tries again" in note for note in report.notes)
    assert harness.check() == [0]
    assert any("has been rewritten" in note for note in harness.restart().report.notes)


@pytest.mark.parametrize("call", ["truncate", "sync", "writev"])
def test_a_start_that_fails_leaves_nothing_open(harness: StorageHarness, call: str) -> None:
    """A broker's process would end anyway. But a program that embeds a store, or repairs a topic,
    continues.
    """
    harness.publish()
    harness.sync()
    harness.publish(2)
    harness.abandon()
    harness.files.crash(lambda number, change: min(100, len(change.data)) or 1)
    harness.files.fail[call] = dict.fromkeys(range(1, 9), errno.EIO)
    with pytest.raises(StoreFailed):
        harness.open()
    assert not harness.files._nodes
    assert not harness.files._locks


def test_a_new_topic_on_a_full_disk_says_so(harness: StorageHarness) -> None:
    harness.files.fail["make_folder"] = {1: errno.ENOSPC}
    with pytest.raises(DiskFull):
        create_store(harness.files, f"{harness.root}/other", TopicIdentity("other", "0" * 32))


@pytest.mark.parametrize("call", ["writev", "sync"])
def test_a_directory_that_cannot_be_written_is_refused(harness: StorageHarness, call: str) -> None:
    harness.files.fail[call] = {harness.files.log.count(call) + 1: errno.EIO}
    with pytest.raises(StoreFailed, match="cannot be written"):
        check_writable(harness.files, harness.directory)
    before = os.listdir(harness.directory)
    check_writable(harness.files, harness.directory)
    assert os.listdir(harness.directory) == before


def test_a_full_disk_does_not_keep_a_topic_from_starting(harness: StorageHarness) -> None:
    harness.files.fail["writev"] = {harness.files.log.count("writev") + 1: errno.ENOSPC}
    check_writable(harness.files, harness.directory)
