"""Tests of calls that fail while blocks are staged, sealed and committed, at the n-th call for
every n: nothing has happened, or recovery completes it.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.faulty_files import Choose, keep_all, keep_none

from zsq.storage.errors import Damaged, DiskFull, StoreFailed

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness


def prepared(harness: StorageHarness, adopt: bool) -> list[bytes]:
    """Publish blocks, some of them synced, and make the parts of a commit."""
    harness.publish()
    harness.sync()
    harness.publish()
    keys = [harness.stage("a", 1), harness.stage("b", 1)]
    if adopt:
        keys += [harness.stage("c", 1, blocks=10), harness.stage("d", 1, blocks=4)]
    harness.seal(*keys)
    return keys


def nothing_happened(harness: StorageHarness, keys: list[bytes]) -> None:
    """Check that a refused commit left the topic and the stages as they were: publishing continues,
    and then the same commit succeeds.
    """
    harness.check()
    harness.publish()
    harness.sync()
    assert 1 not in harness.groups
    harness.commit(1, *keys)
    harness.publish()
    harness.sync()
    harness.check()


def finished_or_not_at_all(harness: StorageHarness, keys: list[bytes], loss: Choose) -> None:
    """Check that the log accepts nothing more, and that recovery completes the group or finds
    nothing of it.
    """
    for call in (
        lambda: harness.log.append([], 0),
        harness.log.begin_sync,
        lambda: harness.commit(1, *keys),
    ):
        with pytest.raises(StoreFailed):
            call()
    harness.crash(loss)
    harness.check()
    harness.go_on()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize(
    "call",
    [
        "writev",
        "sync",
        "rename",
        "sync_folder",
        "open_append",
        "open_read",
        "pread",
        "open_new",
        "truncate",
    ],
)
@pytest.mark.parametrize("adopt", [False, True])
def test_each_failing_call_of_a_commit(
    tmp_path: Path, group_case: StorageHarness, adopt: bool, call: str, code: int
) -> None:
    refused = failed = 0
    for number in range(1, 60):
        for loss in (keep_all, keep_none):
            other = group_case.fresh(tmp_path, number * 2 + (loss is keep_all))
            keys = prepared(other, adopt)
            planned = other.files._calls.get(call, 0) + number
            other.files.fail[call] = {planned: code}
            if call == "truncate":
                other.files.short = {other.files._calls["writev"] + (10 if adopt else 1): 70}
            outcome = ""
            try:
                other.commit(1, *keys)
            except (DiskFull, Damaged):
                outcome = "refused"
            except StoreFailed:
                outcome = "failed"
            reached = other.files._calls.get(call, 0) >= planned
            other.files.fail.clear()
            if outcome == "failed":
                failed += 1
                finished_or_not_at_all(other, keys, loss)
            elif outcome == "refused":
                refused += 1
                nothing_happened(other, keys)
            other.crash(loss)
            other.check()
            other.abandon()
        if not reached:
            break
    else:
        raise AssertionError("the commit has more calls than this test looks at")
    if call in {"writev", "sync", "open_read"} or (
        adopt and call in {"rename", "sync_folder", "open_append"}
    ):
        assert refused + failed > 0
    if call == "writev" and code == errno.ENOSPC:
        assert refused >= 2
    # A failed sync is never just refused, because it is not known what it has lost. The only
    # exception is the sync of a chunk's header: that chunk is removed again.
    if call in {"sync", "sync_folder"}:
        assert refused <= (2 if call == "sync" and code == errno.ENOSPC else 0)


@pytest.mark.parametrize("taken", [0, 1, 64, 70, 128, 200])
@pytest.mark.parametrize("adopt", [False, True])
def test_each_short_write_of_a_commit(
    tmp_path: Path, group_case: StorageHarness, adopt: bool, taken: int
) -> None:
    refused = 0
    for number in range(1, 30):
        other = group_case.fresh(tmp_path, number)
        keys = prepared(other, adopt)
        other.files.short = {other.files._calls["writev"] + number: taken}
        try:
            other.commit(1, *keys)
        except DiskFull:
            refused += 1
            other.files.short.clear()
            nothing_happened(other, keys)
        other.crash(keep_none)
        other.check()
        other.abandon()
    assert refused >= (5 if adopt else 1)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("call", ["writev", "sync", "sync_folder", "open_new", "make_folder"])
def test_a_failing_call_of_staging_breaks_no_promise(
    tmp_path: Path, group_case: StorageHarness, call: str, code: int
) -> None:
    refused = failed = 0
    for number in range(1, 40):
        other = group_case.fresh(tmp_path, number)
        other.publish()
        other.sync()
        planned = other.files._calls.get(call, 0) + number
        other.files.fail[call] = {planned: code}
        try:
            key = other.stage("a", 1)
            other.seal(key, final=False)
            other.stage("a", 1, blocks=8)
            other.seal(key)
        except DiskFull:
            refused += 1
            key = b"a".ljust(16, b"_")
            facts = other.staging.facts(key)
            other.check()
            other.staged[key] = other.staged[key][: facts.blocks]
            other.stage("a", 1, blocks=2)
            other.seal(key)
        except StoreFailed:
            failed += 1
            other.files.fail.clear()
            with pytest.raises(StoreFailed):
                other.stage("b", 1)
            other.crash(keep_none if number % 2 else keep_all)
            other.check()
            other.after_crash()
            key = other.stage("a", 1)
            other.seal(key)
        reached = other.files._calls.get(call, 0) >= planned
        other.files.fail.clear()
        other.commit(1, key)
        other.check()
        other.crash(keep_none)
        other.check()
        other.abandon()
        if not reached:
            break
    assert refused + failed > 0
    assert (refused > 0) == (code == errno.ENOSPC and call not in {"sync"})


def test_a_footer_whose_sync_failed_is_written_again(
    tmp_path: Path, group_case: StorageHarness
) -> None:
    """It is the footer of the chunk before the adopted ones. If a power cut could remove it, each
    later start would report damage.
    """
    number = 0
    while number := number + 1:
        other = group_case.fresh(tmp_path, number)
        keys = prepared(other, adopt=True)
        other.files.fail["sync"] = {other.files._calls["sync"] + number: errno.EIO}
        try:
            other.commit(1, *keys)
            break
        except StoreFailed:
            other.abandon()
        other.open()
        other.go_on()
        other.crash(keep_none)
        assert other.store is not None
        assert other.store.report.alarms == []
        other.check()
        other.abandon()
    assert number > 3


@pytest.mark.parametrize("loss", [keep_all, keep_none])
def test_the_longer_end_of_a_commit_that_was_refused_is_cut_off(
    group_case: StorageHarness, loss: Choose
) -> None:
    """The next commit may have fewer stages and a shorter mark. Then bytes of the refused commit
    must not follow its footer.
    """
    keys = prepared(group_case, adopt=True)
    group_case.files.fail["rename"] = {group_case.files._calls.get("rename", 0) + 1: errno.ENOSPC}
    with pytest.raises(DiskFull):
        group_case.commit(1, *keys)
    group_case.files.fail.clear()
    group_case.commit(1, keys[-1])
    group_case.sealed.clear()  # the other stages were dropped with their version
    assert group_case.crash(loss).report.alarms == []
    group_case.check()
    group_case.publish()
    group_case.sync()
    assert group_case.restart().report.alarms == []
    group_case.check()
