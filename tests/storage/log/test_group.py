"""Tests of groups without failures: offsets, times, how readers see marks and adopted chunks,
sizes, and recovery. A group is all blocks of one transaction. A mark is the record in the log that
ends a group.
"""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.faulty_files import keep_all, keep_none

from zsq.storage.errors import Damaged, DiskFull, StoreFailed
from zsq.storage.log.group import GROUP_APPEND_BLOCKS_MAX, StagedPart, plan_group
from zsq.storage.log.log_format import CHUNK_HEADER_BYTES, chunk_name, decode_chunk_header
from zsq.storage.log.transactions import (
    JOB_KEPT_NS,
    TRANSACTIONS_MAX,
    Adopted,
    Mark,
    StagedFile,
    StageRow,
    Transaction,
    TransactionRow,
    decode_mark,
    encode_mark,
    forgettable,
    later_of,
    superseded,
)
from zsq.storage.state.state import StateBatch
from zsq.transport.block.block import pack

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness


def part(name: str, *sizes: int, blocks: int = 1) -> StagedPart:
    return StagedPart(
        name.encode().ljust(16),
        "/s",
        tuple(
            StagedFile(i, 1, blocks, blocks, CHUNK_HEADER_BYTES + size)
            for i, size in enumerate(sizes)
        ),
    )


def named(parts: list[StagedPart]) -> str:
    return "".join(one.stage.decode().strip() for one in parts)


def test_large_parts_become_chunks_and_small_parts_are_appended() -> None:
    parts = [
        part("a", 10),
        part("b", 400),
        part("c", 30),
        part("d"),
        part("e", 20, 5),
        part("f", 100),
    ]
    plan = plan_group(parts, 400, 1000)
    assert (named(plan.appended), named(plan.adopted)) == ("acf", "be"), (
        "large ones, and those of several files; empty ones are nothing"
    )
    plan = plan_group(parts, 400, 139)
    assert (named(plan.appended), named(plan.adopted)) == ("ac", "bef"), (
        "the largest of the others until the rest fits"
    )
    assert named(plan_group(parts, 400, 140).appended) == "acf"
    many = [part("a", 10, blocks=GROUP_APPEND_BLOCKS_MAX), part("b", 5)]
    assert named(plan_group(many, 400, 1000).appended) == "b", "each block costs its time"


def test_a_mark_comes_back_and_a_damaged_one_is_refused() -> None:
    mark = Mark(
        Transaction("äpp", 2**62, "job"),
        2**60,
        10,
        4,
        (b"a" * 16, b"b" * 16),
        (Adopted(b"b" * 16, 3, 9, 2**60 + 4, 6, 128),),
        (5, 6, 7),
    )
    columns = encode_mark(mark)
    assert len(columns) % 8 == 0
    assert decode_mark(memoryview(columns)) == mark
    for bad in (b"", bytes(64), b"\3\0\0\0\x80\0\0\0", columns[8:]):
        with pytest.raises(ValueError):
            decode_mark(bad)


def test_an_appended_group_takes_one_write_and_one_sync(group_case: StorageHarness) -> None:
    group_case.publish()
    a, b = group_case.stage("a", 1), group_case.stage("b", 1, blocks=1)
    group_case.seal(b, a)
    group_case.files.log.clear()
    assert group_case.commit(1, a, b) == (3, 6, group_case.now_ns)
    assert group_case.files.log == ["writev", "sync", "remove", "remove"], (
        "one write, one sync; the files go when the state is committed"
    )
    assert group_case.log.chunks == (0,)
    assert group_case.log.unsynced_bytes == 0
    assert group_case.log.end == group_case.log.synced_end == 9
    blocks = group_case.log.read(0, 1 << 20, 9)
    assert [block.first_offset for block in blocks] == [0, 3, 5, 7]
    assert [block.header.sequence for block in blocks[1:]] == [0, 1, 0]
    assert group_case.staging.stages() == {}
    group_case.publish()
    group_case.sync()
    assert group_case.check() == [0, 1]
    group_case.restart()
    assert group_case.check() == [0, 1]


def test_an_adopted_group_is_not_written_again(group_case: StorageHarness) -> None:
    """The blocks before the group become durable with it, and the next chunk begins at the next
    append.
    """
    group_case.publish()
    a, b, c = (
        group_case.stage("a", 1, blocks=9),
        group_case.stage("b", 1),
        group_case.stage("c", 1, blocks=4),
    )
    group_case.seal(a, b, c)
    written = sum(len(change.data) for change in group_case.files.pending)
    group_case.files.log.clear()
    group = group_case.commit(1, a, b, c)
    assert group[:2] == (3, 30)
    assert group_case.log.synced_end == group_case.log.end == 33
    assert group_case.log.chunks[0:2] == (0, 7), "the small part lies in the chunk before"
    assert group_case.files.log.count("rename") == len(group_case.log.chunks) - 1
    assert group_case.files.log.count("sync_folder") == 2
    assert written < 2000
    for base in group_case.log.chunks[1:]:
        header = decode_chunk_header(
            group_case.path(chunk_name(base)).read_bytes()[:CHUNK_HEADER_BYTES]
        )
        assert (header.base_offset, header.base_time_ns, header.flags) == (base, group.time_ns, 1)
    group_case.acknowledged = 1
    group_case.crash(keep_none)
    assert group_case.check() == [0]
    group_case.publish()
    group_case.sync()
    assert group_case.log.chunks[-1] == 33
    assert group_case.check() == [0, 1]


def test_consecutive_adopted_groups_leave_no_gap_and_lose_no_mark(
    group_case: StorageHarness,
) -> None:
    """There is nothing between the groups, and no message before them. The next group takes over
    the name of the empty chunk.
    """
    for version in range(1, 5):
        key = group_case.stage(f"s{version}", version, blocks=4)
        group_case.seal(key)
        group_case.commit(version, key, lag=True)
        assert [block.first_offset for block in group_case.read_all()] == list(
            range(0, 8 * version, 2)
        )
        assert len(group_case.files._nodes) == version, "the empty chunk's file is closed"
    assert group_case.log.chunks == (0, 8, 16, 24)
    report = group_case.crash(keep_none).report
    assert report.alarms == []
    assert group_case.check() == []
    assert group_case.store is not None
    assert group_case.store.state.load().transactions["query"].version == 4


def test_an_empty_commit_writes_nothing(group_case: StorageHarness) -> None:
    key = group_case.stage("a", 1, blocks=0)
    group_case.seal(key)
    group_case.files.log.clear()
    transaction = Transaction("query", 1, "app")
    assert group_case.log.append_group(transaction, [group_case.staging.part(key)], 5_000) == (
        0,
        0,
        5_000,
    )
    assert group_case.log.append_group(transaction, [], 5_000) == (0, 0, 5_000)
    assert group_case.files.log == []


def test_time_never_goes_back_in_groups(group_case: StorageHarness) -> None:
    group_case.log.append([pack([b"x"])], 9_000)
    for version, blocks in ((1, 1), (2, 4)):
        key = group_case.stage(f"s{version}", version, blocks=blocks)
        group_case.seal(key)
        assert group_case.commit(version, key).time_ns == 9_000
    assert group_case.log.append([pack([b"y"])], 10)[1] == 9_000


def test_a_group_committed_inside_an_outstanding_sync_completes_it(
    group_case: StorageHarness,
) -> None:
    for version, blocks in ((1, 1), (2, 4)):
        key = group_case.stage(f"s{version}", version, blocks=blocks)
        group_case.seal(key)
        group_case.publish()
        ticket = group_case.log.begin_sync()
        group_case.commit(version, key)
        assert ticket.done, "the commit ran it: a failed write-back is told once only"
        ticket.run()
        assert group_case.log.finish_sync(ticket) == group_case.log.end
        assert group_case.log.unsynced_bytes == 0
    ticket = group_case.log.begin_sync()  # a sync of the adopted chunk
    group_case.publish()
    assert ticket.done, "the roll ran it: the file may be closed from here on"
    for _ in range(12):  # enough new chunks that the file of the adopted one is closed
        group_case.publish(count=15)
    ticket.run()
    group_case.log.finish_sync(ticket)
    group_case.sync()
    assert len(group_case.check()) == 15


def test_a_group_waits_for_a_sync_in_the_other_thread(group_case: StorageHarness) -> None:
    key = group_case.stage("a", 1)
    group_case.seal(key)
    group_case.publish()
    ticket = group_case.log.begin_sync()
    thread = threading.Thread(target=ticket.run)
    thread.start()
    group_case.commit(1, key)
    thread.join(10)
    group_case.log.finish_sync(ticket)
    assert group_case.check() == [0]


def test_below_the_reserve_no_group_is_taken(group_case: StorageHarness) -> None:
    keys = [group_case.stage("a", 1), group_case.stage("b", 1, blocks=5)]
    group_case.seal(*keys)
    group_case.files.free = 100
    group_case.now_ns += 10**9
    with pytest.raises(DiskFull):
        group_case.commit(1, *keys)
    with pytest.raises(DiskFull):
        group_case.stage("c", 1)
    group_case.staged.pop(b"c".ljust(16, b"_"))
    group_case.files.free = 1 << 30
    group_case.commit(1, *keys)
    assert group_case.check() == []


def test_replay_knows_the_later_version_and_forgets_older_stages(
    group_case: StorageHarness,
) -> None:
    keys = [
        group_case.stage(f"s{version}", version, blocks=1 + 3 * (version % 2))
        for version in (1, 2, 3)
    ]
    zombie, next_one = group_case.stage("zombie", 3), group_case.stage("next", 4)
    group_case.seal(*keys, zombie, next_one)
    for version in (1, 2, 3):
        group_case.commit(version, keys[version - 1], lag=True)
    group_case.sealed.pop(zombie)
    group_case.crash(keep_all)
    assert list(group_case.staging.stages()) == [next_one]
    assert group_case.store is not None
    table = group_case.store.state.load()
    assert table.transactions == {"query": TransactionRow(3, "app", *group_case.groups[3])}
    assert list(table.stages) == [next_one]
    assert group_case.check() == []
    assert group_case.restart().report.notes == []


def test_a_mark_at_the_checkpoint_is_seen(group_case: StorageHarness) -> None:
    """A checkpoint includes the group's end but not its transaction, because its writer did not
    know which of the two came first.
    """
    for version, blocks in ((1, 1), (2, 4)):
        key = group_case.stage(f"s{version}", version, blocks=blocks)
        group_case.seal(key)
        group_case.commit(version, key, lag=True)
        assert group_case.store is not None
        group_case.store.state.commit(StateBatch(applied_offset=group_case.log.end))
        group_case.crash(keep_all)
        assert group_case.check() == []
        assert group_case.store.state.load().transactions["query"].version == version


def test_a_part_that_is_not_what_was_sealed_is_refused(group_case: StorageHarness) -> None:
    """A part is missing, too short, or has a wrong byte. The commit changes nothing, and the other
    parts can be committed without this one.
    """
    good = [group_case.stage("a", 1), group_case.stage("b", 1, blocks=4)]
    bad = [group_case.stage("c", 1), group_case.stage("d", 1, blocks=4)]
    group_case.seal(*good, *bad)
    paths = [Path(file.path) for key in bad for file in group_case.staging._stages[key].files]
    for key, path in zip(bad, paths, strict=True):
        whole = path.read_bytes()
        other = Path(group_case.staging._stages[good[1]].files[0].path).read_bytes()
        for data in (
            None,
            other + bytes(500),
            whole[:100],
            whole[:200],
            whole[: len(whole) // 2],
            b"x" * len(whole),
        ):
            path.unlink(missing_ok=True)
            if data is not None:
                path.write_bytes(data)
            with pytest.raises(Damaged):
                group_case.commit(1, *good, key)
            assert group_case.log.end == 0
        path.write_bytes(whole)
        group_case.files.unreadable = (path.name, 3 if key is bad[1] else 150)
        with pytest.raises(Damaged):
            group_case.commit(1, *good, key)
    group_case.drop(*bad)
    group_case.commit(1, *good)
    assert group_case.check() == []


def test_a_wrong_byte_in_an_appended_part_is_noticed_before_it_is_stored(
    group_case: StorageHarness,
) -> None:
    key = group_case.stage("a", 1)
    group_case.seal(key)
    (file,) = group_case.staging._stages[key].files
    path = Path(file.path)
    whole = path.read_bytes()
    for byte in range(CHUNK_HEADER_BYTES, file.data_end):
        path.write_bytes(whole[:byte] + bytes([whole[byte] ^ 4]) + whole[byte + 1 :])
        with pytest.raises(Damaged):
            group_case.commit(1, key)
    path.write_bytes(whole)
    group_case.commit(1, key)
    assert group_case.check() == []


def test_the_later_transaction_wins_and_older_stages_are_superseded() -> None:
    old = TransactionRow(3, "app", 10, 5, 7)
    assert later_of(None, old) == old
    assert later_of(old, old._replace(version=2, first_offset=1)) == old
    assert later_of(old, old._replace(version=4)).version == 4
    rows = {
        bytes([i]): StageRow(app, version, "app", 0, 0, 0, 0, 0, True, (), 0)
        for i, (app, version) in enumerate([("a", 1), ("a", 2), ("b", 1), ("a", 3)])
    }
    assert superseded(rows, "a", 2) == [b"\0", b"\1"]


def test_jobs_are_forgotten_after_a_week_or_when_there_is_no_room() -> None:
    now = 10 * JOB_KEPT_NS
    rows = {f"q{i}": TransactionRow(1, "app", 0, 0, 0) for i in range(5)}
    rows |= {f"j{i}": TransactionRow(1, "job", 0, 0, now - i * JOB_KEPT_NS // 3) for i in range(6)}
    assert forgettable(rows, now) == ["j5", "j4"]
    many = {f"q{i}": rows["q0"] for i in range(TRANSACTIONS_MAX - 5)} | rows
    assert forgettable(many, now) == ["j5", "j4"]
    assert forgettable(many | {"q-1": rows["q0"], "q-2": rows["q0"], "q-3": rows["q0"]}, now) == [
        "j5",
        "j4",
        "j3",
        "j2",
        "j1",
    ]


def test_a_failed_mark_leaves_nothing_behind_the_footer(group_case: StorageHarness) -> None:
    """The first try has written bytes after the footer. They are cut off, because readers expect a
    footer at the end of the file.
    """
    keys = [group_case.stage(name, 1, blocks=5) for name in "abcd"]
    group_case.seal(*keys)
    group_case.files.fail["rename"] = {group_case.files.log.count("rename") + 1: errno.ENOSPC}
    with pytest.raises(DiskFull):
        group_case.commit(1, *keys)
    group_case.drop(*keys[:3])
    del group_case.tried[1]
    group_case.commit(1, keys[3])
    group_case.restart()
    last = group_case.chunk_path(group_case.log.chunks[-1]).read_bytes()
    assert last[-64:-60] == b"ZSQF"
    assert group_case.check() == []


def test_recovery_finishes_a_commit_and_says_so(group_case: StorageHarness) -> None:
    """After the recovery, all files are in their places, with durable names, and the chunk before
    them has its footer.
    """
    keys = [group_case.stage(name, 1, blocks=5) for name in "abc"]
    group_case.seal(*keys)
    group_case.publish()
    group_case.files.fail["rename"] = {group_case.files.log.count("rename") + 2: errno.EIO}
    with pytest.raises(StoreFailed):
        group_case.commit(1, *keys)
    group_case.crash(keep_all)
    log = group_case.files.log
    assert log[log.index("rename") :][:3] == ["rename", "rename", "sync_folder"]
    assert group_case.store is not None
    report = group_case.store.report
    assert any("2 files were moved into place" in note for note in report.notes)
    assert report.alarms == []
    group_case.sync()
    assert group_case.check() == [0]
    for base in group_case.log.chunks:
        assert group_case.chunk_path(base).read_bytes()[-64:-60] == b"ZSQF"
    assert group_case.restart().report.notes == []


def test_a_refused_group_does_not_change_the_chunk_before_it(group_case: StorageHarness) -> None:
    keys = [group_case.stage("a", 1, blocks=5), group_case.stage("b", 2, blocks=5)]
    group_case.seal(*keys)
    group_case.commit(1, keys[0])
    group_case.files.fail["rename"] = {group_case.files._calls["rename"] + 1: errno.ENOSPC}
    with pytest.raises(DiskFull):
        group_case.commit(2, keys[1])
    assert group_case.chunk_path().read_bytes()[-64:-60] == b"ZSQF"
    group_case.commit(2, keys[1])
    assert group_case.check() == []


def test_an_empty_commit_is_remembered_after_a_mark_before_it(group_case: StorageHarness) -> None:
    """The empty commit has a row and no mark. The last mark is read again at each start."""
    key = group_case.stage("a", 1)
    group_case.seal(key)
    group = group_case.commit(1, key)
    assert group_case.store is not None
    row = TransactionRow(2, "app", group_case.log.end, 0, group.time_ns)
    group_case.store.state.commit(StateBatch(transactions={"query": row}))
    for _ in range(2):
        group_case.restart()
        assert group_case.store.state.load().transactions == {"query": row}
