"""Tests of the removal of chunks: all chunks before the committed start are removed, even after a
crash, but never the last one.
"""

from __future__ import annotations

import errno
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.faulty_files import Choose, PowerCut, keep_all, keep_none

from zsq.storage.log.log_format import bad_name, chunk_name, index_name
from zsq.storage.log.removal import LogKeeper, finished_bytes, remove_below
from zsq.storage.state.channel_row import ChannelRow
from zsq.storage.state.state import StateBatch, StateStore
from zsq.transport.settings import Retention

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness


def fill(harness: StorageHarness) -> int:
    """Make some chunks. All of them are synced and counted by the checkpoint, and two have a `.bad`
    file. Return the first offset of the fourth chunk.
    """
    while len(harness.log.chunks) < 6:
        harness.publish(blocks=2)
    harness.sync()
    assert harness.store is not None
    harness.store.state.commit(StateBatch(applied_offset=harness.log.end))
    harness.files.write_file(harness.directory + "/" + bad_name(harness.log.chunks[1], 128), b"bad")
    harness.files.write_file(harness.directory + "/" + bad_name(harness.log.chunks[4], 128), b"bad")
    harness.files.sync_folder(harness.directory)
    return harness.log.chunks[3]


def remove(harness: StorageHarness, start: int) -> None:
    assert harness.store is not None
    harness.store.state.commit(StateBatch(start=start))
    harness.log.forget(start)
    remove_below(harness.files, harness.directory, start)


def log_names(harness: StorageHarness) -> list[str]:
    return [name for name in harness.files.list(harness.directory) if name[:1].isdigit()]


def check(harness: StorageHarness, start: int) -> None:
    """Check that the log has every message from `start` on, and that there are no other files."""
    assert harness.log.start == start
    blocks = harness.read_all()
    assert not harness.damage
    assert blocks[0].first_offset == start
    for before, after in pairwise(blocks):
        assert before.next_offset == after.first_offset
    assert blocks[-1].next_offset == harness.log.end
    for block in blocks:
        assert tuple(block.body.values()) == harness.sent[block.header.sequence]
    assert [name for name in log_names(harness) if int(name[:20]) < start] == []


def test_chunks_are_removed_with_all_their_other_files(harness: StorageHarness) -> None:
    start = fill(harness)
    before = log_names(harness)
    bases = harness.log.chunks
    assert {index_name(bases[0]), bad_name(bases[1], 128)} <= set(before)
    remove(harness, start)
    check(harness, start)
    assert log_names(harness) == [name for name in before if int(name[:20]) >= start]
    assert bad_name(bases[4], 128) in log_names(harness)
    harness.restart()
    check(harness, start)
    harness.publish()
    harness.sync()
    check(harness, start)


def test_the_oldest_chunk_is_removed_first_and_after_its_other_files(
    harness: StorageHarness,
) -> None:
    """With this order, an interrupted removal leaves a log without a gap, and no other file without
    its chunk.
    """
    start = fill(harness)
    bases = harness.log.chunks[:3]
    gone: list[str] = []
    remove_one = harness.files.remove

    def remove_noted(path: str) -> None:
        gone.append(path.rpartition("/")[2])
        remove_one(path)

    harness.files.remove = remove_noted  # type: ignore[method-assign]
    remove(harness, start)
    assert [int(name[:20]) for name in gone] == sorted(int(name[:20]) for name in gone)
    for base in bases:
        mine = [name for name in gone if int(name[:20]) == base]
        assert mine[-1] == chunk_name(base)


@pytest.mark.parametrize("loss", [keep_all, keep_none])
def test_a_power_cut_during_a_removal_leaves_a_whole_log(
    tmp_path: Path, harness: StorageHarness, loss: Choose
) -> None:
    finished = False
    for at in range(1, 20):
        (tmp_path / f"run{at}").mkdir()
        other = type(harness)(tmp_path / f"run{at}")
        other.open()
        start = fill(other)
        other.files.power_cut_at = other.files.changes + at
        try:
            remove(other, start)
            finished = True
        except PowerCut:
            finished = False
        other.crash(loss)
        check(other, start)
        other.crash(keep_none)  # recovery made its removals durable
        check(other, start)
        other.abandon()
    assert finished, "more points than a removal has changes"


def test_removed_chunks_do_not_come_back_after_a_power_cut(harness: StorageHarness) -> None:
    """If they came back, they would occupy space until the next start, and a backup would have
    chunks that the state does not know.
    """
    start = fill(harness)
    remove(harness, start)
    harness.abandon()
    harness.files.crash(keep_none)
    assert [name for name in log_names(harness) if int(name[:20]) < start] == []
    harness.open()
    check(harness, start)


def test_names_that_come_back_alone_are_removed_too(harness: StorageHarness) -> None:
    """A power cut may undo any of the removals that were not synced: here the chunk stays removed,
    and its other files are back.
    """
    start = fill(harness)
    bases = harness.log.chunks
    remove(harness, start)
    harness.files.write_file(f"{harness.directory}/{index_name(bases[0])}", b"index")
    harness.files.write_file(f"{harness.directory}/{bad_name(bases[1], 128)}", b"bad")
    harness.files.write_file(f"{harness.directory}/{chunk_name(bases[2])}", b"chunk")
    store = harness.restart()
    check(harness, start)
    assert any("removed" in note for note in store.report.notes)


def test_no_chunk_is_removed_before_the_commit(harness: StorageHarness) -> None:
    fill(harness)
    before = log_names(harness)
    harness.crash(keep_all)
    assert harness.log.start == 0
    assert [name for name in log_names(harness) if name.endswith(".chunk")] == [
        name for name in before if name.endswith(".chunk")
    ]


def test_a_start_beyond_the_log_takes_all_but_the_last_chunk(harness: StorageHarness) -> None:
    """This cannot happen, because the state is never ahead of the log. But if it happened, the last
    chunk would be kept.
    """
    fill(harness)
    last = harness.log.chunks[-1]
    harness.abandon_cleanly()
    remove_below(harness.files, harness.directory, 10**9)
    harness.open()
    check(harness, last)


@pytest.mark.parametrize("start", [0, 1])
def test_nothing_is_removed_when_no_chunk_lies_below_the_start(
    harness: StorageHarness, start: int
) -> None:
    fill(harness)
    before = log_names(harness)
    harness.log.forget(start)
    assert remove_below(harness.files, harness.directory, start) == 0
    assert log_names(harness) == before
    assert harness.log.start == 0


def test_other_names_are_left_alone(harness: StorageHarness) -> None:
    start = fill(harness)
    others = [
        "topic",
        "lock",
        "state",
        "notes.txt",
        "1.chunk",
        "0" * 20,
        "0" * 20 + ".txt",
        "x" * 20 + ".chunk",
    ]
    for name in others[3:]:
        harness.files.write_file(f"{harness.directory}/{name}", b"")
    remove(harness, start)
    assert set(others) <= set(harness.files.list(harness.directory))


def test_chunks_that_could_not_be_removed_are_removed_the_next_time(
    harness: StorageHarness,
) -> None:
    start = fill(harness)
    harness.files.fail["remove"] = {harness.files._calls.get("remove", 0) + 3: errno.EIO}
    with pytest.raises(OSError, match="EIO"):
        remove(harness, start)
    left = [name for name in log_names(harness) if int(name[:20]) < start]
    assert left
    assert harness.log.start == start
    assert remove_below(harness.files, harness.directory, start) == len(left)
    check(harness, start)


def test_a_read_at_a_removed_offset_begins_with_what_follows(harness: StorageHarness) -> None:
    """The reads begin at the end of a removed chunk, inside it, and before it. None of them reports
    damage or a missing file.
    """
    start = fill(harness)
    harness.restart()  # so that reads come from the files, not from the ring
    log = harness.log
    first_of_kept = log.read(start, 1, log.end)[0]
    for offset in (0, log.chunks[1], log.chunks[2]):
        assert log.read(offset, 10**6, log.end)
    inside = log.chunks[2]
    remove(harness, start)
    for offset in (start, 0, 1, inside, inside + 1, start - 1):
        assert log.read(offset, 1, log.end)[0].first_offset == first_of_kept.first_offset == start
    assert log.holes == ()
    assert log.measure(0, log.end, 1 << 60) == log.measure(start, log.end, 1 << 60)
    assert log.offset_at(0) == start


def test_the_sizes_of_the_log_agree_with_its_files(harness: StorageHarness) -> None:
    start = fill(harness)
    log = harness.log
    keeper = LogKeeper(harness.files, harness.directory, b"\0" * 16, log)
    shown = keeper.view(
        Retention(keep_time_s=1), floor=log.chunks[2] + 1, applied=log.end, now_ns=harness.now_ns
    )
    files = [Path(f"{harness.directory}/{chunk_name(base)}").stat().st_size for base in log.chunks]
    assert list(shown.sizes) == files
    assert finished_bytes(shown) == files[0] + files[1]
    assert finished_bytes(shown._replace(floor=log.end)) == sum(files)
    rest = log.measure(log.chunks[2] + 1, log.chunks[3], 1 << 60)[0]
    assert 0 < rest <= files[2]
    assert keeper.unfinished_bytes(log.chunks[2] + 1) == rest + sum(files[3:])
    assert keeper.unfinished_bytes(log.end) == 0
    assert keeper.unfinished_bytes(log.end - 1) < files[-1]
    removed = keeper.forget(start)
    assert removed == sum(files[:3])
    assert keeper.forget(start) == 0
    assert keeper.unfinished_bytes(0) == keeper.unfinished_bytes(start)


def test_the_time_of_a_chunks_last_message_is_known(harness: StorageHarness) -> None:
    fill(harness)
    identity = bytes.fromhex("00112233445566778899aabbccddeeff")
    keeper = LogKeeper(harness.files, harness.directory, identity, harness.log)
    last = {}
    for block in harness.read_all():
        chunk = max(i for i, base in enumerate(harness.log.chunks) if base <= block.first_offset)
        last[chunk] = block.header.time_ns
    assert [keeper.last_time_ns(chunk) for chunk in range(6)] == [last[chunk] for chunk in range(6)]
    by_age = keeper.view(Retention(keep_time_s=1), 0, 0, harness.now_ns)
    assert (
        by_age.first_time_ns
        == next(
            b for b in harness.read_all() if b.first_offset == harness.log.chunks[5]
        ).header.time_ns
    )
    # This chunk's footer cannot be read, so its time is taken from the next chunk. That time is
    # later, so the chunk is kept longer, not shorter.
    path = harness.chunk_path(harness.log.chunks[2])
    path.write_bytes(path.read_bytes()[:-1])
    keeper = LogKeeper(harness.files, harness.directory, identity, harness.log)
    assert keeper.last_time_ns(2) == last[3]
    path.unlink()
    keeper = LogKeeper(harness.files, harness.directory, identity, harness.log)
    assert keeper.last_time_ns(2) == last[3]
    assert keeper.view(Retention(), 0, 0, 0).sizes[2] == 0


def test_a_roll_seals_only_a_chunk_that_holds_messages(harness: StorageHarness) -> None:
    harness.log.roll(5)
    assert list(harness.log.chunks) == [0], "an empty chunk is not sealed"
    harness.publish(blocks=2)
    end = harness.log.end
    harness.log.roll(harness.now_ns)
    assert list(harness.log.chunks) == [0, end]
    assert harness.log.synced_end == end
    harness.publish()
    harness.sync()
    harness.restart()
    assert [block.first_offset for block in harness.read_all()] == [0, 3, end]
    remove(harness, end)
    check(harness, end)


holes = st.dictionaries(
    st.integers(0, 40), st.tuples(st.integers(1, 9), st.sampled_from([0, 99])), max_size=8
)


@given(holes, st.integers(0, 60), st.integers(0, 60))
def test_the_floor_is_the_first_unfinished_that_is_still_there(
    tmp_path_factory: pytest.TempPathFactory,
    given_holes: dict[int, tuple[int, int]],
    following: int,
    start: int,
) -> None:
    """A range of deferred messages may begin before the start. Its part before the start does not
    matter, but its part after the start counts.
    """
    rows = []
    end = 0
    for first, (count, due_ns) in sorted(given_holes.items()):
        if first >= end:
            rows.append(("c", first, count, 1, due_ns))
            end = first + count
    state = StateStore(str(tmp_path_factory.mktemp("floor")), 1 << 20, create=True)
    try:
        state.create(bytes(16), 0)
        others = [(other, 0, 9, 1, due_ns) for other, due_ns in (("b", 0), ("d", 0))]
        batch = StateBatch(hole_puts=rows + others, start=start)
        batch.channel_puts = {name: ChannelRow(following) for name in "bcd"}
        state.commit(batch)
        unfinished = {
            offset for _, first, count, _, _ in rows for offset in range(first, first + count)
        }
        assert state.first_unfinished("c") == min(
            [offset for offset in unfinished if offset >= start] + [max(start, following)]
        )
    finally:
        state.close()


def test_a_group_whose_first_chunks_are_gone_is_no_alarm(group_case: StorageHarness) -> None:
    """The mark of the last chunk names all chunks that were adopted with it, and the chunk before
    them. Each start looks for them.
    """
    harness = group_case
    harness.publish()
    keys = [harness.stage(name, 1, blocks=8, size=60) for name in "abc"]
    harness.seal(*keys)
    harness.commit(1, *keys)
    chunks = harness.log.chunks
    assert len(chunks) > 4, "all three were adopted"
    remove(harness, chunks[-1])
    store = harness.restart()
    assert store.report.alarms == []
    assert not [note for note in store.report.notes if "cannot be sealed" in note]
    assert list(harness.log.chunks) == [chunks[-1]]
    assert harness.read_all()[0].first_offset == chunks[-1]
