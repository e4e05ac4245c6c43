"""Tests of power cuts before every change of the disk while blocks are staged, sealed, committed
and purged, and of calls that fail: for every n, the n-th call fails.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.faulty_files import Change, Choose, PowerCut, keep_all, keep_none

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness


def drop_one(number: int) -> Choose:
    return lambda i, change: 0 if i == number else len(change.data) or 1


def only_one(number: int) -> Choose:
    return lambda i, change: (len(change.data) or 1) if i == number else 0


def torn_at(unit: int) -> Choose:
    return lambda i, change: min(unit, len(change.data)) if change.kind == "write" else 1


def names_only(i: int, change: Change) -> int:
    return 0 if change.kind in {"write", "truncate"} else 1


def bytes_only(i: int, change: Change) -> int:
    return len(change.data) or 1 if change.kind in {"write", "truncate"} else 0


LOSSES: dict[str, Callable[[], Choose]] = {
    "all kept": lambda: keep_all,
    "none kept": lambda: keep_none,
    "names only": lambda: names_only,
    "bytes only": lambda: bytes_only,
    "the oldest dropped": lambda: drop_one(0),
    "the second dropped": lambda: drop_one(1),
    "the third dropped": lambda: drop_one(2),
    "only the oldest": lambda: only_one(0),
    "only the second": lambda: only_one(1),
    "only the third": lambda: only_one(2),
    "torn at 8": lambda: torn_at(8),
    "torn at 64": lambda: torn_at(64),
    "torn at 100": lambda: torn_at(100),
    "torn at 300": lambda: torn_at(300),
}


def small(harness: StorageHarness) -> None:
    """Append two parts, the first of which had an interim seal. Other blocks are published before
    and after. The state of a second group is not committed.
    """
    harness.publish()
    harness.sync()
    harness.publish()
    a, b = harness.stage("a", 1), harness.stage("b", 1)
    harness.seal(a, final=False)
    harness.stage("a", 1, blocks=1)
    harness.seal(a, b)
    harness.commit(1, a, b)
    harness.publish()
    c = harness.stage("c", 2, blocks=3)
    harness.seal(c)
    harness.commit(2, c, lag=True)
    harness.publish()
    harness.sync()


def mixed(harness: StorageHarness) -> None:
    """Commit three parts: one of several files, a small one, and a large one of one file. The last
    chunk has blocks that are not synced.
    """
    harness.publish()
    a, b, c = (
        harness.stage("a", 1, blocks=10),
        harness.stage("b", 1),
        harness.stage("c", 1, blocks=4),
    )
    harness.seal(a, b, c)
    harness.publish()
    harness.commit(1, a, b, c, lag=True)
    harness.publish()
    harness.sync()


def adopted(harness: StorageHarness) -> None:
    """Commit groups without an appended part: into the empty chunk of a new topic, after an adopted
    chunk, and after a chunk with blocks.
    """
    a, b = harness.stage("a", 1, blocks=4), harness.stage("b", 1, blocks=9)
    harness.seal(a, b)
    harness.commit(1, a, b)
    c = harness.stage("c", 2, blocks=4)
    harness.seal(c)
    harness.commit(2, c, lag=True)
    harness.publish()
    harness.sync()
    harness.publish()
    d = harness.stage("d", 3, blocks=4)
    harness.seal(d)
    harness.commit(3, d)


def leftovers(harness: StorageHarness) -> None:
    """Leave stages in each state: aborted, sealed and never committed, with an interim seal only,
    and never sealed.
    """
    a, b = harness.stage("a", 1), harness.stage("b", 1, blocks=9)
    harness.seal(a)
    harness.seal(b, final=False)
    c = harness.stage("c", 1, blocks=7)
    harness.stage("b", 1, blocks=8)
    harness.stage("d", 1)
    harness.drop(a)
    harness.seal(c)
    harness.drop(c, lag=True)


WORKS = {work.__name__: work for work in (small, mixed, adopted, leftovers)}


def cut_at_each(
    harness: StorageHarness, root: Path, work: Callable[[StorageHarness], None]
) -> Iterator[StorageHarness]:
    """Yield a harness for each change of the disk that the work makes, with a power cut before that
    change.
    """
    number = 0
    finished = False
    while not finished:
        number += 1
        other = harness.fresh(root, number)
        other.files.power_cut_at = number
        try:
            work(other)
            finished = True
        except PowerCut:
            pass
        yield other
        other.abandon()
    assert number > 20


# The other losses take four minutes more. They run if ZSQ_TEST_WHOLE is set. `scripts/prove
# crash-states` tries all of them on staged groups, and more.
QUICK = ("all kept", "none kept", "names only", "the oldest dropped", "torn at 300")


@pytest.mark.parametrize("loss", LOSSES if "ZSQ_TEST_WHOLE" in os.environ else QUICK)
@pytest.mark.parametrize("work", WORKS)
def test_promises_hold_after_a_power_cut_before_any_change(
    tmp_path: Path, group_case: StorageHarness, work: str, loss: str
) -> None:
    for other in cut_at_each(group_case, tmp_path, WORKS[work]):
        other.crash(LOSSES[loss]())
        other.check()
        # Recovery synced everything that it uses, so a second crash changes nothing.
        other.crash(keep_none)
        other.check()
        other.go_on()
        other.crash(keep_all)
        other.check()


def test_power_cuts_alone_raise_no_alarm(tmp_path: Path, group_case: StorageHarness) -> None:
    """Recovery writes a footer after an unfinished commit. It must be on disk before the log
    continues in another chunk.
    """
    for other in cut_at_each(group_case, tmp_path, mixed):
        for loss in (keep_all, keep_none):
            other.crash(loss)
            other.go_on()
        other.crash(keep_none)
        assert other.store is not None
        assert other.store.report.alarms == []


def before_the_sync(harness: StorageHarness) -> int:
    """Append a group of two blocks, and cut the power after its write and before its sync. Return
    the size of the write.
    """
    harness.publish()
    harness.sync()
    key = harness.stage("a", 1, size=10)
    harness.seal(key)
    harness.files.power_cut_at = harness.files.changes + 2
    with pytest.raises(PowerCut):
        harness.commit(1, key)
    return len(harness.files.pending[-1].data)


def test_every_byte_of_a_groups_write(tmp_path: Path, group_case: StorageHarness) -> None:
    """Without the mark, complete blocks of the group do not count."""
    size = before_the_sync(group_case.fresh(tmp_path, 1000))
    for kept in range(size + 1):
        other = group_case.fresh(tmp_path, kept)
        before_the_sync(other)
        other.crash(torn_at(kept))
        assert other.check() == [0]
        assert other.log.end == (7 if kept == size else 3)
        other.go_on()
        other.abandon()


def test_a_group_torn_in_the_middle_is_cut_whole(group_case: StorageHarness) -> None:
    """The mark is complete, but a block before it is not. Nothing proves that any part of the group
    was acknowledged.
    """
    size = before_the_sync(group_case)
    group_case.abandon()
    group_case.files.crash(keep_all)
    path = group_case.chunk_path()
    whole = path.read_bytes()
    for byte in range(len(whole) - size, len(whole), 11):
        group_case.flip(path, byte * 8)
        group_case.open()
        assert group_case.log.end == 3
        assert group_case.check() == [0]
        group_case.abandon()
        group_case.replace(path, whole)
    group_case.open()
    assert group_case.log.end == 7
    assert group_case.check() == [0]


@pytest.mark.parametrize(
    "loss", ["all kept", "torn at 100", pytest.param("names only", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("work", ["mixed", "adopted"])
def test_promises_hold_after_a_power_cut_inside_recovery(
    tmp_path: Path, group_case: StorageHarness, work: str, loss: str
) -> None:
    """The first cut is in the second half of the work. Then the power is cut at each change that
    recovery makes, and the next recovery succeeds.
    """
    total = count_changes(group_case.fresh(tmp_path, 0), WORKS[work])
    number = points = 0
    for at in range(total // 2, total + 1):
        for change in range(1, 30):
            number += 1
            other = group_case.fresh(tmp_path, number)
            other.files.power_cut_at = at
            with contextlib.suppress(PowerCut):
                WORKS[work](other)
            other.abandon()
            other.files.crash(LOSSES[loss]())
            other.files.power_cut_at = change
            try:
                other.open()
                finished = True
            except PowerCut:
                finished = False
                points += 1
                other.files.power_cut_at = 0
            other.crash(keep_none if change % 2 else keep_all)
            other.check()
            other.go_on()
            other.abandon()
            if finished:
                break
        else:
            raise AssertionError("recovery has more changes than this test looks at")
    assert points > 30


def count_changes(harness: StorageHarness, work: Callable[[StorageHarness], None]) -> int:
    work(harness)
    harness.abandon()
    return harness.files.changes
