"""Tests of small parts that are merged before their commit: which parts, in which order, and that
no crash or full disk leaves half of a merge.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.faulty_files import Choose, PowerCut, keep_all, keep_none

from zsq.storage.errors import Damaged, DiskFull, StoreFailed
from zsq.storage.log import group, merging
from zsq.storage.log.group import StagedPart, placed, plan_group, plan_merge
from zsq.storage.log.log_format import CHUNK_HEADER_BYTES, STAGING_NAME
from zsq.storage.log.transactions import StagedFile

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness


def part(name: str, *sizes: int, blocks: int = 1) -> StagedPart:
    files = tuple(
        StagedFile(i, 1, blocks, blocks, CHUNK_HEADER_BYTES + size) for i, size in enumerate(sizes)
    )
    return StagedPart(name.encode().ljust(16), "/s", files)


def named(parts: list[StagedPart]) -> str:
    return "".join(one.stage.decode().strip() for one in parts)


def test_small_parts_are_merged_only_when_a_limit_is_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group, "GROUP_APPEND_FILES_MAX", 4)
    monkeypatch.setattr(group, "GROUP_APPEND_BLOCKS_MAX", 6)
    monkeypatch.setattr(group, "ADOPTED_FILES_FEW", 3)
    monkeypatch.setattr(group, "MERGE_BELOW_BYTES", 1_000)
    few = [
        part("a", 10),
        part("b", 400),
        part("c", 30),
        part("d"),
        part("e", 20, 5),
        part("f", 100),
    ]
    assert plan_merge(few, 400, 140) == []
    assert named(plan_merge(few, 400, 139)) == "acf", "too many bytes: all the small ones"
    assert named(plan_merge([*few, part("g", 1), part("h", 1)], 400, 1000)) == "acfgh", (
        "too many files"
    )
    assert named(plan_merge([*few, part("g", 1, blocks=4)], 400, 1000)) == "acfg", "too many blocks"
    many = [*few, part("g", 999), part("h", 1000)]
    assert named(plan_merge(many, 400, 1000)) == "bg", (
        "too many chunks, those of two files among them: but the really large ones"
    )
    assert named(plan_merge(many, 400, 100)) == "abcfg"


def test_a_merged_part_takes_the_place_of_its_parts() -> None:
    parts = [part("a", 10), part("b", 400), part("c", 30)]
    merged = group.Merged(part("m", 40), frozenset({parts[0].stage, parts[2].stage}))
    assert placed(parts, None) is parts
    assert named(list(placed(parts, merged))) == "mb"
    assert named(plan_group(placed(parts, merged), 400, 100).appended) == "m"


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "STEP_BYTES", 500)
    monkeypatch.setattr(merging, "PIECE_BYTES", 300)


def prepared(harness: StorageHarness, parts: int = 12) -> list[bytes]:
    """Publish blocks, some of them synced, and make a commit with too many parts to be appended.
    One part is large, and one has several files.
    """
    harness.publish()
    harness.sync()
    harness.publish()
    keys = [harness.stage(f"p{n}", 1, blocks=1 + n % 2) for n in range(parts)]
    keys.insert(3, harness.stage("large", 1, blocks=4))
    keys.insert(5, harness.stage("files", 1, blocks=10))
    harness.seal(*keys)
    return keys


def staged_names(harness: StorageHarness) -> list[str]:
    return harness.files.list(f"{harness.directory}/{STAGING_NAME}")


@pytest.mark.usefixtures("small_steps")
def test_a_merged_commit_has_all_in_order_in_few_chunks(group_case: StorageHarness) -> None:
    harness = group_case
    keys = prepared(harness)
    small = [key for key in keys if key.startswith(b"p")]
    wanted = [bodies for key in (*small, keys[3], keys[5]) for bodies in harness.staged[key]]
    before = len(harness.log.chunks)
    made = harness.commit(1, *keys, merge=True)
    files = -(-sum(len(harness.tried[1][key]) for key in small) * 160 // 1024)
    assert len(harness.log.chunks) - before <= 1 + files + 1 + 3 < len(small)
    found = [block for block in harness.read_all() if not block.header.producer_id]
    assert [tuple(block.body.values()) for block in found] == wanted
    assert found[0].first_offset == made.first_offset
    harness.publish()
    harness.sync()
    harness.check()
    assert staged_names(harness) == []
    mark = next(mark for _, mark in harness.log.headers(0) if mark is not None)
    assert mark.parts == tuple(keys), "the mark names the stages, so that replay drops their rows"
    harness.restart()
    harness.check()


def test_a_merge_of_what_is_small_all_the_same_is_appended(
    group_case: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "GROUP_APPEND_FILES_MAX", 1)
    harness = group_case
    keys = [harness.stage(name, 1, blocks=1) for name in "ab"]
    harness.seal(*keys)
    opened = harness.files._calls.get("open_new", 0)
    harness.commit(1, *keys, merge=True)
    assert harness.files._calls["open_new"] == opened + 1, "it was merged"
    assert len(harness.log.chunks) == 1
    harness.check()
    assert staged_names(harness) == []


def work(harness: StorageHarness) -> None:
    harness.commit(1, *prepared(harness), merge=True, lag=True)
    harness.publish()
    harness.sync()


def drop_one(number: int) -> Choose:
    return lambda i, change: 0 if i == number else len(change.data) or 1


LOSSES = {
    "all": keep_all,
    "none": keep_none,
    "the oldest dropped": drop_one(0),
    "the third dropped": drop_one(2),
}


def fresh(harness: StorageHarness, root: Path, number: int) -> StorageHarness:
    folder = root / f"run{number}"
    folder.mkdir()
    made = type(harness)(folder, harness.options)
    made.open()
    return made


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("loss", LOSSES)
def test_a_power_cut_before_any_change_leaves_parts_or_the_group(
    tmp_path: Path, group_case: StorageHarness, loss: str
) -> None:
    """Afterwards, either the sealed parts are present, or the whole group is. The merge leaves no
    files, and can be repeated.
    """
    number, finished = 0, False
    before = _changes_before_the_commit(fresh(group_case, tmp_path, 0))
    while not finished:
        number += 1
        other = fresh(group_case, tmp_path, number)
        other.files.power_cut_at = before + number
        try:
            work(other)
            finished = True
        except PowerCut:
            pass
        other.crash(LOSSES[loss])
        other.check()
        other.crash(keep_none)
        other.check()
        for version in other.after_crash():
            other.commit(version, *other.tried[version], merge=True)
            other.check()
        other.crash(keep_none)
        other.check()
        other.abandon()
    assert number > 25


def _changes_before_the_commit(harness: StorageHarness) -> int:
    prepared(harness)
    harness.abandon()
    return harness.files.changes


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize(
    "call", ["open_new", "writev", "sync", "sync_folder", "open_read", "pread"]
)
def test_each_failing_call_of_a_merge(
    tmp_path: Path, group_case: StorageHarness, call: str, code: int
) -> None:
    refused = failed = 0
    for number in range(1, 80):
        other = fresh(group_case, tmp_path, number)
        keys = prepared(other)
        parts = [other.staging.part(key) for key in keys]
        names = staged_names(other)
        merge = other.log.begin_merge(parts)
        assert merge is not None
        planned = other.files._calls.get(call, 0) + number
        other.files.fail[call] = {planned: code}
        try:
            while not merge.done:
                merge.step()
        except (DiskFull, Damaged):
            refused += 1
            other.files.fail.clear()
            assert staged_names(other) == names
            other.commit(1, *keys, merge=True)
        except StoreFailed:
            failed += 1
            other.files.fail.clear()
            other.crash(keep_none)
            other.check()
            assert 1 not in other.after_crash(), "nothing was tried"
            assert staged_names(other) == names
        reached = other.files._calls.get(call, 0) >= planned
        other.files.fail.clear()
        if merge.done:
            merge.discard()
        other.check()
        other.abandon()
        if not reached:
            break
    else:
        raise AssertionError("the merge has more calls than this test looks at")
    assert refused + failed > 0
    expected = call != "sync" and (
        (code == errno.ENOSPC and call not in {"open_read", "pread"})
        or call in {"open_read", "pread"}
    )
    if code == errno.EIO:
        assert (refused > 0) == (call in {"open_read", "pread"})
    elif call in {"open_new", "writev"}:
        assert (refused > 0, failed) == (expected, 0)


@pytest.mark.usefixtures("small_steps")
def test_a_merged_part_is_on_disk(group_case: StorageHarness) -> None:
    """The commit syncs each of these files once more, but has only a few bytes to write then."""
    harness = group_case
    merge = harness.log.begin_merge([harness.staging.part(key) for key in prepared(harness)])
    assert merge is not None
    while not merge.done:
        merge.step()
    part = merge.merged.part
    assert len(part.files) > 1
    before = [Path(part.path(file)).read_bytes()[: file.data_end] for file in part.files]
    harness.abandon()
    harness.files.crash(keep_none)
    assert [Path(part.path(file)).read_bytes()[: file.data_end] for file in part.files] == before


def test_a_damaged_part_is_named_and_nothing_is_left(group_case: StorageHarness) -> None:
    harness = group_case
    keys = prepared(harness)
    names = staged_names(harness)
    path = Path(harness.staging.part(keys[-1]).path(harness.staging.part(keys[-1]).files[0]))
    data = bytearray(path.read_bytes())
    data[CHUNK_HEADER_BYTES + 80] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(Damaged, match=keys[-1].hex()):
        harness.commit(1, *keys, merge=True)
    assert staged_names(harness) == names
    harness.publish()
    harness.sync()
    assert harness.log.synced_end == 9


def test_a_merge_that_is_given_up_leaves_nothing(
    group_case: StorageHarness, small_steps: None
) -> None:
    harness = group_case
    keys = prepared(harness)
    names = staged_names(harness)
    merge = harness.log.begin_merge([harness.staging.part(key) for key in keys])
    assert merge is not None
    merge.step()
    assert len(staged_names(harness)) > len(names)
    merge.discard()
    assert staged_names(harness) == names
    harness.commit(1, *keys, merge=True)
    harness.check()


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("buffers_max", [4, 1024])
def test_each_step_of_a_merge_is_bounded_and_synced(
    group_case: StorageHarness, monkeypatch: pytest.MonkeyPatch, buffers_max: int
) -> None:
    """A seal can run in the same thread between two steps. Its sync then does not wait for bytes
    that the merge has not synced.
    """
    harness = group_case
    keys = prepared(harness)
    harness.sync()
    harness.files.sync_folder(harness.directory)
    writes: list[tuple[int, int]] = []
    real = harness.files.writev

    def writev(fd: int, buffers: Sequence[Any], position: int) -> None:
        writes.append((len(buffers), sum(len(memoryview(one).cast("B")) for one in buffers)))
        real(fd, buffers, position)

    monkeypatch.setattr(harness.files, "writev", writev)
    monkeypatch.setattr(merging, "IOV_MAX", buffers_max)
    merge = harness.log.begin_merge([harness.staging.part(key) for key in keys])
    assert merge is not None
    block = 160
    steps = 0
    while not merge.done:
        writes.clear()
        merge.step()
        steps += 1
        assert (
            sum(size for _, size in writes) < merging.STEP_BYTES + merging.PIECE_BYTES + block + 400
        )
        assert max(size for _, size in writes) < merging.PIECE_BYTES + block
        assert max(count for count, _ in writes) <= buffers_max
        assert not [
            change
            for change in harness.files.pending
            if change.kind == "write" and len(change.data) > 128
        ], "blocks not synced"
    assert steps > 2
    assert not [change for change in harness.files.pending if change.kind == "create"], (
        "their names too"
    )
    assert all(file.data_end <= 1024 for file in merge.merged.part.files), (
        "no file larger than a chunk"
    )
    merge.discard()
