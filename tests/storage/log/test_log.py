"""Tests of the log without failures: offsets, times, new chunks, tickets, and reads by offset and
by time.
"""

from __future__ import annotations

import gc
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from support.faulty_files import keep_none

from zsq.storage.directory.store import StoreOptions
from zsq.storage.errors import StoreFailed
from zsq.storage.files import IOV_MAX, Files
from zsq.storage.log.log import SyncTicket
from zsq.storage.log.log_format import parse_chunk_name
from zsq.storage.log.log_reader import HINTS_MAX, OPEN_CHUNKS_MAX
from zsq.transport.block.block import Block, pack

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness


def test_offsets_are_dense_and_times_never_go_back(harness: StorageHarness) -> None:
    assert harness.log.append([pack([b"a", b"b"]), pack([b"c"])], 500) == (0, 500)
    assert harness.log.append([pack([b"d"])], 400) == (3, 500)
    assert harness.log.append([pack([b"e"])], 501) == (4, 501)
    assert harness.log.append([], 502) == (5, 502)
    blocks = harness.log.read(0, 1 << 20, harness.log.end)
    assert [(block.first_offset, block.count, block.header.time_ns) for block in blocks] == [
        (0, 2, 500),
        (2, 1, 500),
        (3, 1, 500),
        (4, 1, 501),
    ]
    assert [block.header.reserved_1 for block in blocks] == [0, 0, 0, 0], (
        "the disk form's spare field stays on disk"
    )


def test_a_block_is_read_as_it_was_appended(harness: StorageHarness) -> None:
    sent = pack(
        [b"body", b""],
        keys=[b"k", None],
        tags=[None, b"t"],
        headers=[b"\x80", None],
        times=[7, 8],
        producer_id=2**63 + 5,
        sequence=2**40,
    )
    harness.log.append([sent], 5)
    harness.sync()
    (block,) = harness.log.read(1, 1, 2)
    assert bytes(block.columns) == sent.payload
    assert block.header == sent.header._replace(first_offset=0, time_ns=5)


def test_columns_in_a_zmq_frame_are_written_as_they_are(harness: StorageHarness) -> None:
    made = pack([b"x" * 300, b"y"])
    frame = zmq.Frame(made.payload)
    harness.log.append([Block(made.header, frame, memoryview(frame.buffer))], 5)
    assert harness.log.read(0, 1, 2)[0].body.values() == [b"x" * 300, b"y"]


def test_more_pieces_than_one_call_takes(tmp_path: Path, harness: StorageHarness) -> None:
    folder = tmp_path / "big"
    folder.mkdir()
    big = type(harness)(folder, StoreOptions(reserve_bytes=0, map_bytes=1 << 20))
    big.open()
    number = IOV_MAX + 10
    big.publish(blocks=number, count=1, size=1)
    big.sync()
    assert big.files.log[-3:] == ["writev", "writev", "writev"] or big.files.log[-4:] == [
        "writev",
        "writev",
        "writev",
        "sync",
    ]
    assert big.check() == list(range(number))
    big.files.short = {big.files._calls["writev"] + 2: 100}
    with pytest.raises(Exception, match="no space"):
        big.publish(blocks=number, count=1, size=1)
    big.sent = big.sent[:number]
    big.crash(keep_none)
    assert big.check() == list(range(number))
    big.abandon()


def test_a_roll_syncs_before_it_appends(harness: StorageHarness) -> None:
    harness.publish(count=20)
    harness.files.log.clear()
    harness.publish(count=20)
    index = ["open_new", "writev"]
    create = ["open_new", "writev", "sync", "sync_folder"]
    assert harness.files.log == [
        "sync",
        "writev",
        "sync",
        "remove",
        *index,
        *create,
        "writev",
        *index,
    ]
    assert harness.log.chunks == (0, 20)
    assert harness.log.synced_end == 20
    assert harness.log.unsynced_bytes > 0
    assert sorted(filter(None, map(parse_chunk_name, harness.files.list(harness.directory)))) == [
        20
    ]


def test_an_append_never_spans_two_chunks(harness: StorageHarness) -> None:
    harness.publish(blocks=30, count=5)
    assert len(harness.log.chunks) == 1, "a call larger than a chunk has one for itself"
    harness.publish()
    assert list(harness.log.chunks) == [0, 150]


def test_a_ticket_covers_what_was_written_before_it(harness: StorageHarness) -> None:
    harness.publish()
    ticket = harness.log.begin_sync()
    harness.publish()
    ticket.run()
    assert harness.log.synced_end == 0
    assert harness.log.finish_sync(ticket) == 3
    assert harness.log.unsynced_bytes == harness.log.read(3, 1, 6)[0].length
    harness.acknowledged = 1
    harness.crash(keep_none)
    assert harness.check()[0] == 0


def test_a_roll_inside_an_outstanding_sync_completes_it(harness: StorageHarness) -> None:
    harness.publish(count=20)
    ticket = harness.log.begin_sync()
    harness.publish(count=20)
    assert ticket.done, "the roll ran it"
    ticket.run()
    assert harness.log.finish_sync(ticket) == 20
    assert harness.log.unsynced_bytes == harness.log.read(20, 1, 40)[0].length
    harness.sync()
    assert harness.log.synced_end == 40
    assert harness.log.unsynced_bytes == 0


def test_a_roll_learns_of_a_sync_that_failed_in_the_other_thread(harness: StorageHarness) -> None:
    harness.publish(count=20)
    harness.files.fail["sync"] = {harness.files._calls.get("sync", 0) + 1: 5}
    ticket = harness.log.begin_sync()

    def run() -> None:
        with pytest.raises(StoreFailed):
            ticket.run()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    with pytest.raises(StoreFailed):
        harness.publish(count=20)
    assert harness.log.chunks == (0,)
    assert harness.log.synced_end == 0


def test_appends_go_on_while_a_sync_runs(harness: StorageHarness) -> None:
    entered, leave = threading.Event(), threading.Event()

    class SlowFiles(Files):
        def sync(self, fd: int) -> None:
            entered.set()
            assert leave.wait(10)

    harness.publish()
    ticket = harness.log.begin_sync()
    ticket._files = SlowFiles()
    thread = threading.Thread(target=ticket.run)
    thread.start()
    assert entered.wait(10)
    harness.publish()
    harness.publish()
    leave.set()
    thread.join(10)
    assert harness.log.finish_sync(ticket) == 3
    assert harness.log.end == 9


def test_two_threads_run_one_ticket_once(harness: StorageHarness) -> None:
    harness.publish()
    before = harness.files.log.count("sync")
    ticket: SyncTicket = harness.log.begin_sync()
    threads = [threading.Thread(target=ticket.run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert harness.files.log.count("sync") == before + 1


@settings(max_examples=25, deadline=None)
@given(counts=st.lists(st.integers(1, 30), min_size=1, max_size=25), data=st.data())
def test_a_read_begins_with_the_block_of_its_offset(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], data: st.DataObject
) -> None:
    harness = fresh_harness(tmp_path_factory)
    first: list[int] = []
    for count in counts:
        first += [harness.log.end] * count
        harness.publish(count=count, size=count * 3)
        if data.draw(st.booleans()):
            harness.sync()
    if data.draw(st.booleans()):
        harness.sync()
        harness.restart()
    end = harness.log.end
    for offset in data.draw(st.lists(st.integers(0, end - 1), max_size=20)):
        limit = data.draw(st.integers(offset + 1, end))
        blocks = harness.log.read(offset, data.draw(st.sampled_from([1, 500, 5000])), limit)
        if blocks:
            assert blocks[0].first_offset == first[offset]
            assert blocks[-1].next_offset <= limit
            assert all(a.next_offset == b.first_offset for a, b in pairwise(blocks))
        else:
            assert limit < end
            assert first[limit] == first[offset]
    assert harness.log.read(end, 1, end) == []
    harness.abandon()


def fresh_harness(tmp_path_factory: pytest.TempPathFactory) -> StorageHarness:
    from_fixture = sys.modules["tests.storage.conftest"].StorageHarness
    made: StorageHarness = from_fixture(tmp_path_factory.mktemp("files"))
    made.open()
    return made


def test_only_a_bounded_number_of_chunks_is_open(harness: StorageHarness) -> None:
    for _ in range(40):
        harness.publish(count=15)
    harness.sync()
    assert len(harness.log.chunks) >= 20
    assert harness.check() == list(range(40))
    reader = harness.log._reader
    assert len(reader._sealed) <= OPEN_CHUNKS_MAX
    assert len(harness.files._nodes) <= OPEN_CHUNKS_MAX + 1
    harness.restart()
    assert harness.check() == list(range(40))
    for offset in (599, 0, 300, 299, 14, 15):
        assert harness.log.read(offset, 1, 600)[0].first_offset == offset // 15 * 15


def test_a_time_gives_the_first_offset_stored_at_or_after_it(harness: StorageHarness) -> None:
    for _ in range(30):  # publish at 1010, 1020, ... 1300
        harness.publish(count=10)
    harness.sync()
    for _ in range(2):
        assert harness.log.offset_at(0) == 0
        assert harness.log.offset_at(1010) == 0
        assert harness.log.offset_at(1011) == 10
        assert harness.log.offset_at(1155) == 150
        assert harness.log.offset_at(1300) == 290
        assert harness.log.offset_at(1301) == 300
        harness.restart()


def test_after_restart_time_goes_on_from_the_last_block(harness: StorageHarness) -> None:
    harness.log.append([pack([b"a"])], 9_000)
    harness.restart()
    assert harness.log.append([pack([b"b"])], 10) == (1, 9_000)


def test_work_per_append_does_not_depend_on_messages(
    tmp_path: Path, harness: StorageHarness
) -> None:
    folder = tmp_path / "calls"
    folder.mkdir()
    big = type(harness)(
        folder, StoreOptions(reserve_bytes=0, map_bytes=1 << 20, index_every_bytes=1)
    )
    big.open()
    big.log._files = Files()
    calls = []
    for count in (10, 10_000):
        block = pack([b"m" * 20] * count)
        big.log.append([block], 2_000)
        number = 0

        def profile(frame: object, event: str, argument: object) -> None:
            nonlocal number
            number += event in {"call", "c_call"}

        gc.disable()  # the calls of its callbacks would be counted too
        sys.setprofile(profile)
        # Append so much later that the log asks for the free space again.
        big.log.append([block], 10**12 * count)
        sys.setprofile(None)
        gc.enable()
        calls.append(number)
    assert calls[0] == calls[1]
    big.abandon()


def test_only_the_latest_positions_of_readers_are_remembered(harness: StorageHarness) -> None:
    """Each block of a long topic is read once, and each of these reads counts as another reader."""
    for _ in range(HINTS_MAX + 20):
        harness.publish(count=1)
    harness.sync()
    for offset in range(harness.log.end):
        assert harness.log.read(offset, 1, harness.log.synced_end)
    assert len(harness.log.reader._hints) <= HINTS_MAX
