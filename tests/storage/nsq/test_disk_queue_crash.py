"""Tests of the disk queue with power cuts before every change of the disk, and on a disk that is
full or fails: its promises hold.
"""

from __future__ import annotations

import contextlib
import errno
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.faulty_files import Change, Choose, FaultyFiles, PowerCut, keep_all, keep_none

from zsq.storage.errors import DiskFull, StoreFailed
from zsq.storage.nsq.disk_queue import DiskQueue
from zsq.storage.nsq.disk_queue_format import data_name, meta_name

pytestmark = pytest.mark.slow

NAME = "jobs"
Step = tuple[str, int]
STEPS: tuple[Step, ...] = (
    ("put", 3), ("get", 1), ("many", 4), ("get", 4), ("put", 2), ("empty", 0), ("many", 5), ("get", 2), ("sync", 0), ("put", 3), ("get", 3),
)  # fmt: skip


def some(seed: int) -> Choose:
    """Keep a random part of the pending changes."""
    chance = random.Random(seed)

    def choose(number: int, change: Change) -> int:
        return chance.choice((0, 1, max(len(change.data) // 2, 1), max(len(change.data), 1)))

    return choose


class Life:
    """Uses a queue, and records what must survive a power cut. Messages are numbered from 0 as they
    are put.
    """

    def __init__(self, root: Path, sync_every: int) -> None:
        self.files = FaultyFiles(str(root))
        self.root = str(root)
        self.sync_every = sync_every
        self.put_begun = self.put_done = self.put_safe = 0
        self.got_begun = self.got_done = self.got_safe = 0

    def open(self) -> DiskQueue:
        return DiskQueue(
            self.root,
            NAME,
            max_bytes_per_file=40,
            sync_every=self.sync_every,
            sync_timeout=3600.0,
            files=self.files,
        )

    def live(self, queue: DiskQueue) -> None:
        for verb, count in STEPS:
            self.step(queue, verb, count)
            if not queue._operations:
                self.put_safe, self.got_safe = self.put_done, self.got_done

    def step(self, queue: DiskQueue, verb: str, count: int) -> None:
        if verb == "many":
            numbers = range(self.put_done, self.put_done + count)
            self.put_begun += count
            queue.put_many([b"message %d" % number for number in numbers])
            self.put_done += count
        elif verb == "empty":
            self.got_begun = self.put_done
            queue.empty()
            self.got_done = self.put_done
        elif verb == "sync":
            queue.sync()
        for _ in range(count if verb == "put" else 0):
            self.put_begun += 1
            queue.put(b"message %d" % self.put_done)
            self.put_done += 1
            if self.sync_every == 1:
                self.put_safe = self.put_done
        for _ in range(count if verb == "get" else 0):
            self.got_begun += 1
            assert queue.get() == b"message %d" % self.got_done
            self.got_done += 1
            if self.sync_every == 1:
                self.got_safe = self.got_done

    def check(self, queue: DiskQueue) -> None:
        depth = queue.depth()
        messages = list(queue)
        assert depth == len(messages) or queue.report.notes
        found = [
            int(message.split()[1])
            for message in messages
            if re.fullmatch(rb"message \d+", message)
        ]
        # Records have no checksum. So a record that was not synced may contain zeros after a power
        # cut, and then the records after it cannot be found.
        torn = next(
            (
                number
                for number, one in enumerate(messages)
                if not re.fullmatch(rb"message \d+", one)
            ),
            len(messages),
        )
        assert torn == len(messages) or not found or found[0] + torn >= self.put_safe
        found = found[:torn]
        assert queue.depth() == 0
        assert found == list(range(found[0], found[-1] + 1)) if found else True
        first, end = (found[0], found[-1] + 1) if found else (self.got_begun, self.put_begun)
        assert self.got_safe <= first <= self.got_begun, (
            "what was got comes again, or what was not got is lost"
        )
        assert end <= self.put_begun
        assert end >= self.put_safe or (not found and self.got_begun >= self.put_safe), (
            "what was put is lost"
        )


def renames_only(number: int, change: Change) -> int:
    """Keep only the renames of the metadata. A data file that was made before is missing, and one
    that was removed before is back.
    """
    made = [name for _, name, node in change.entries if node is not None]
    return int(change.kind == "rename" or (change.kind == "create" and made[0].endswith(".tmp")))


@pytest.mark.parametrize("sync_every", [1, 4])
@pytest.mark.parametrize("kept", ["none", "all", "some", "renames"])
def test_power_is_cut_at_every_change(tmp_path: Path, sync_every: int, kept: str) -> None:
    choices: dict[str, Callable[[int], Choose]] = {
        "none": lambda k: keep_none, "all": lambda k: keep_all, "some": some, "renames": lambda k: renames_only,
    }  # fmt: skip
    choose = choices[kept]
    change = 0
    while True:
        change += 1
        root = tmp_path / str(change)
        root.mkdir()
        life = Life(root, sync_every)
        queue = life.open()
        life.files.power_cut_at = change
        try:
            life.live(queue)
            queue.close()
            break
        except PowerCut:
            pass
        with contextlib.suppress(PowerCut):
            queue.close()
        life.files.crash(choose(change))
        with life.open() as queue:
            life.check(queue)
            queue.put(b"message %d" % life.put_begun)  # the queue can be used again
            assert queue.get() == b"message %d" % life.put_begun
        assert len([path for path in root.iterdir() if path.suffix != ".bad"]) <= 2, (
            "files that were read are removed"
        )
    assert change > 60


def metadata_only(number: int, change: Change) -> int:
    """Keep only the changes to the metadata's names."""
    return int(any(meta_name(NAME) in name for _, name, _ in change.entries))


def test_a_queue_that_was_deleted_does_not_come_back(tmp_path: Path) -> None:
    """Data files without metadata would be read from the first one on."""
    files = FaultyFiles(str(tmp_path))
    queue = DiskQueue(tmp_path, NAME, max_bytes_per_file=40, files=files)
    queue.put_many([b"message %d" % number for number in range(9)])
    queue.delete()
    files.crash(metadata_only)
    with DiskQueue(tmp_path, NAME, files=files) as queue:
        assert list(queue) == []


def test_bytes_that_were_set_aside_are_kept_wherever_power_is_cut(tmp_path: Path) -> None:
    """The queue renames a damaged file to `.bad`. If the file kept its old name while the metadata
    is ahead of it, the next start would treat it as a file that was read, and remove it.
    """
    change = 0
    got = None
    while got is None:
        change += 1
        root = tmp_path / str(change)
        root.mkdir()
        files = FaultyFiles(str(root))
        with DiskQueue(root, NAME, max_bytes_per_file=40, files=files) as queue:
            queue.put_many([b"message %d" % number for number in range(9)])
        damaged = b"\xff" + (root / data_name(NAME, 0)).read_bytes()[1:]
        (root / data_name(NAME, 0)).write_bytes(damaged)
        files.reset()
        queue = DiskQueue(root, NAME, max_bytes_per_file=40, files=files)
        files.power_cut_at = files.changes + change
        with contextlib.suppress(PowerCut):
            got = queue.get()
        files.power_cut_at = 1
        with contextlib.suppress(PowerCut):
            queue.close()
        files.crash(metadata_only)
        with DiskQueue(root, NAME, max_bytes_per_file=40, files=files) as queue:
            assert list(queue)[-5:] == [b"message %d" % number for number in range(4, 9)]
        assert damaged in [path.read_bytes() for path in root.iterdir()], (
            "what cannot be read is kept"
        )
    assert got == b"message 3"
    assert change > 4


def test_a_crash_in_recovery_is_one_more_crash(tmp_path: Path) -> None:
    for change in range(1, 40):
        root = tmp_path / str(change)
        root.mkdir()
        life = Life(root, 100)
        queue = life.open()
        life.step(queue, "many", 7)
        life.put_safe = 0
        life.files.power_cut_at = 1
        with pytest.raises(PowerCut):
            queue.close()
        life.files.crash(keep_all)
        life.files.power_cut_at = change
        try:
            queue = life.open()
        except PowerCut:
            life.files.crash(some(change))
            queue = life.open()
        life.files.power_cut_at = 0
        life.check(queue)
        queue.close()


def test_a_process_that_dies_loses_nothing_that_was_put(tmp_path: Path) -> None:
    life = Life(tmp_path, 1000)
    queue = life.open()
    life.step(queue, "many", 9)
    life.step(queue, "get", 2)
    # The process dies without closing the queue, and the machine continues.
    life.files.power_cut_at = 1
    with pytest.raises(PowerCut):
        queue.close()
    life.files.crash(keep_all)
    life.put_safe = 9
    with life.open() as queue:
        life.check(queue)


def test_salvaged_messages_are_on_disk_after_the_next_opening(tmp_path: Path) -> None:
    """First the process dies, so all messages are in the page cache only. After the next opening
    the power is cut.
    """
    life = Life(tmp_path, 1000)
    queue = life.open()
    life.step(queue, "many", 7)
    life.files.power_cut_at = 1
    with pytest.raises(PowerCut):
        queue.close()
    life.files.power_cut_at = 0
    queue = life.open()
    assert queue.depth() == 7
    life.files.power_cut_at = 1
    with contextlib.suppress(PowerCut):
        queue.close()
    life.files.crash(keep_none)
    life.put_safe = 7
    with life.open() as queue:
        life.check(queue)


@pytest.mark.parametrize("number", range(1, 12))
def test_a_failed_sync_ends_the_queue(tmp_path: Path, number: int) -> None:
    life = Life(tmp_path, 1)
    queue = life.open()
    life.files.fail = {"sync": {number: errno.EIO}}
    with pytest.raises(StoreFailed):
        life.live(queue)
    with pytest.raises(StoreFailed):
        queue.put(b"message")
    with pytest.raises(StoreFailed):
        queue.get()
    queue.close()
    life.files.crash(keep_none)
    with life.open() as queue:
        life.check(queue)


@pytest.mark.parametrize("call", ["writev", "open_new", "sync_folder"])
@pytest.mark.parametrize("number", range(1, 14))
def test_a_full_disk_refuses_and_stores_nothing(tmp_path: Path, call: str, number: int) -> None:
    """Whichever call fails because the disk is full, the put is either refused or done, and no
    message is doubled or missing.
    """
    files = FaultyFiles(str(tmp_path))
    stored: list[bytes] = []
    got: list[bytes] = []
    with DiskQueue(tmp_path, NAME, max_bytes_per_file=40, files=files) as queue:
        files.fail = {call: {number: errno.ENOSPC}}
        for turn in range(8):
            message = b"message %d" % turn
            try:
                queue.put(message)
                stored.append(message)
            except DiskFull:
                files.fail = {}
            if turn % 3 == 2:
                found = queue.get()
                assert found is not None
                got.append(found)
        assert queue.depth() == len(stored) - len(got)
    files.crash(keep_none)
    with DiskQueue(tmp_path, NAME, max_bytes_per_file=40, files=files) as queue:
        assert got + list(queue) == stored


@pytest.mark.parametrize("sync_every", [1, 4])
@pytest.mark.parametrize("call", ["writev", "open_new"])
def test_a_batch_without_space_says_how_many_messages_are_stored(
    tmp_path: Path, call: str, sync_every: int
) -> None:
    """Any call may fail permanently because the disk is full. Before and after a crash, the queue
    has exactly as many messages as the error said.
    """
    said = set()
    for number in range(1, 40):
        root = tmp_path / str(number)
        root.mkdir()
        files = FaultyFiles(str(root))
        with DiskQueue(
            root,
            NAME,
            max_bytes_per_file=40,
            sync_every=sync_every,
            sync_timeout=3600.0,
            files=files,
        ) as queue:
            queue.put_many([b"message 0", b"message 1"])
            begun = [count for count, name in enumerate(files.log) if name == call]
            files.fail = {call: dict.fromkeys(range(len(begun) + number, 1000), errno.ENOSPC)}
            batch = [b"message %d" % (2 + one) for one in range(9)]
            try:
                queue.put_many(batch)
            except DiskFull as error:
                found = re.search(r"(\d) of 9 messages were stored", str(error))
                stored = int(found[1]) if found else -1
            else:
                stored = 9
            said.add(stored)
            files.fail = {}
            assert queue.depth() == 2 + stored
        files.crash(keep_none)
        with DiskQueue(root, NAME, max_bytes_per_file=40, files=files) as queue:
            assert list(queue) == [b"message 0", b"message 1", *batch[:stored]]
        if stored == 9:
            break
    assert {0, 9} < said or call == "open_new"


def test_a_batch_within_a_file_is_taken_back_whole(tmp_path: Path) -> None:
    files = FaultyFiles(str(tmp_path))
    with DiskQueue(tmp_path, NAME, files=files) as queue:
        queue.put(b"first")
        # The metadata is written as a new file.
        files.fail = {"open_new": dict.fromkeys(range(1, 100), errno.ENOSPC)}
        with pytest.raises(DiskFull, match="0 of 3 messages were stored"):
            queue.put_many([b"one", b"two", b"three"])
        files.fail = {}
        assert queue.depth() == 1
        queue.put(b"second")
    files.crash(keep_none)
    with DiskQueue(tmp_path, NAME, files=files) as queue:
        assert list(queue) == [b"first", b"second"]


def test_reading_goes_on_while_the_disk_is_full(tmp_path: Path) -> None:
    files = FaultyFiles(str(tmp_path))
    with DiskQueue(tmp_path, NAME, max_bytes_per_file=40, files=files) as queue:
        queue.put_many([b"message %d" % number for number in range(9)])
        before = len(list(tmp_path.iterdir()))
        files.fail = {"writev": dict.fromkeys(range(1, 100), errno.ENOSPC)}
        with pytest.raises(DiskFull):
            queue.put(b"one more")
        assert [queue.get() for _ in range(9)] == [b"message %d" % number for number in range(9)]
        assert len(list(tmp_path.iterdir())) < before, "files that were read free their space"
        files.fail = {}
        queue.put(b"again")
        assert list(queue) == [b"again"]


def test_a_short_write_is_cut_back(tmp_path: Path) -> None:
    files = FaultyFiles(str(tmp_path))
    with DiskQueue(tmp_path, NAME, files=files) as queue:
        queue.put(b"first")
        files.short = {len([call for call in files.log if call == "writev"]) + 1: 6}
        with pytest.raises(DiskFull):
            queue.put(b"second")
        queue.put(b"third")
        assert list(queue) == [b"first", b"third"]


def test_an_unreadable_page_costs_only_later_messages_of_its_file(tmp_path: Path) -> None:
    files = FaultyFiles(str(tmp_path))
    with DiskQueue(tmp_path, NAME, max_bytes_per_file=40, files=files) as queue:
        queue.put_many([b"message %d" % number for number in range(9)])
        # The unreadable byte is in the second of the file's three records.
        files.unreadable = (
            f"{NAME}.diskqueue.000001.dat",
            14,
        )
        assert list(queue) == [b"message %d" % number for number in (0, 1, 2, 3, 6, 7, 8)]
        assert "cannot be read" not in queue.report.notes
        assert (tmp_path / f"{NAME}.diskqueue.000001.dat.bad").exists()
        assert queue.depth() == 0
