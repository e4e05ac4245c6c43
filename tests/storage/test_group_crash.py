"""Power cuts at every change of the disk while blocks are staged, sealed, committed and purged; and failing calls at every n."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from zsq.storage.errors import Damaged, DiskFull, StoreFailed
from zsq.storage.faulty_files import Change, Choose, PowerCut, keep_all, keep_none

if TYPE_CHECKING:
    from tests.storage.conftest import Desk


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


def small(desk: Desk) -> None:
    """Two parts appended, the first sealed in between; other publishers before and behind; a second group whose state lags."""
    desk.publish()
    desk.sync()
    desk.publish()
    a, b = desk.stage("a", 1), desk.stage("b", 1)
    desk.seal(a, final=False)
    desk.stage("a", 1, blocks=1)
    desk.seal(a, b)
    desk.commit(1, a, b)
    desk.publish()
    c = desk.stage("c", 2, blocks=3)
    desk.seal(c)
    desk.commit(2, c, lag=True)
    desk.publish()
    desk.sync()


def mixed(desk: Desk) -> None:
    """A part of several files, a small one, a large one of one file: into a chunk with blocks that nobody synced."""
    desk.publish()
    a, b, c = desk.stage("a", 1, blocks=10), desk.stage("b", 1), desk.stage("c", 1, blocks=4)
    desk.seal(a, b, c)
    desk.publish()
    desk.commit(1, a, b, c, lag=True)
    desk.publish()
    desk.sync()


def adopted(desk: Desk) -> None:
    """Into the empty chunk of a new topic, then behind an adopted one, then behind a chunk with blocks; no part is appended."""
    a, b = desk.stage("a", 1, blocks=4), desk.stage("b", 1, blocks=9)
    desk.seal(a, b)
    desk.commit(1, a, b)
    c = desk.stage("c", 2, blocks=4)
    desk.seal(c)
    desk.commit(2, c, lag=True)
    desk.publish()
    desk.sync()
    desk.publish()
    d = desk.stage("d", 3, blocks=4)
    desk.seal(d)
    desk.commit(3, d)


def leftovers(desk: Desk) -> None:
    """Aborted, sealed and never committed, sealed in between only, and never sealed."""
    a, b = desk.stage("a", 1), desk.stage("b", 1, blocks=9)
    desk.seal(a)
    desk.seal(b, final=False)
    c = desk.stage("c", 1, blocks=7)
    desk.stage("b", 1, blocks=8)
    desk.stage("d", 1)
    desk.drop(a)
    desk.seal(c)
    desk.drop(c, lag=True)


WORKS = {work.__name__: work for work in (small, mixed, adopted, leftovers)}


def fresh(desk: Desk, root: Path, number: int) -> Desk:
    folder = root / f"run{number}"
    folder.mkdir()
    made = type(desk)(folder, desk.options)
    made.open()
    return made


def cut_at_each(desk: Desk, root: Path, work: Callable[[Desk], None]) -> Iterator[Desk]:
    """A desk for each change that the work makes, with the power gone before that change."""
    number = 0
    finished = False
    while not finished:
        number += 1
        other = fresh(desk, root, number)
        other.files.power_cut_at = number
        try:
            work(other)
            finished = True
        except PowerCut:
            pass
        yield other
        other.abandon()
    assert number > 20


def go_on(desk: Desk) -> None:
    """After a crash: what was not committed is committed, and the topic lives."""
    again = desk.after_crash()
    for version in again:
        keys = list(desk.tried[version])
        assert not any(
            block.header.producer_id == 0 and tuple(block.body.values()) in desk.tried[version][keys[0]] for block in desk.read_all()
        )
        desk.commit(version, *keys)
        desk.check()
    found = desk.check()
    desk.sent = desk.sent[: found[-1] + 1] if found else []
    desk.publish()
    desk.sync()
    desk.check()


QUICK = ("all kept", "none kept", "names only", "the oldest dropped", "torn at 300")


@pytest.mark.parametrize("loss", [loss if loss in QUICK else pytest.param(loss, marks=pytest.mark.slow) for loss in LOSSES])
@pytest.mark.parametrize("work", WORKS)
def test_power_cut_before_every_change(tmp_path: Path, group_desk: Desk, work: str, loss: str) -> None:
    for other in cut_at_each(group_desk, tmp_path, WORKS[work]):
        other.crash(LOSSES[loss]())
        other.check()
        other.crash(keep_none)  # recovery synced what it took over: a second crash changes nothing
        other.check()
        go_on(other)
        other.crash(keep_all)
        other.check()


def before_the_sync(desk: Desk) -> int:
    """A group of two blocks, appended and written, and the power gone before its sync; the size of what was written."""
    desk.publish()
    desk.sync()
    key = desk.stage("a", 1, size=10)
    desk.seal(key)
    desk.files.power_cut_at = desk.files.changes + 2
    with pytest.raises(PowerCut):
        desk.commit(1, key)
    return len(desk.files.pending[-1].data)


def test_every_byte_of_a_groups_write(tmp_path: Path, group_desk: Desk) -> None:
    """Whole blocks of it are worth nothing without the mark."""
    size = before_the_sync(fresh(group_desk, tmp_path, 1000))
    for kept in range(size + 1):
        other = fresh(group_desk, tmp_path, kept)
        before_the_sync(other)
        other.crash(torn_at(kept))
        assert other.check() == [0]
        assert other.log.end == (7 if kept == size else 3)
        go_on(other)
        other.abandon()


def test_a_group_torn_in_the_middle_is_cut_whole(group_desk: Desk) -> None:
    """Its mark is there, and a block before it is not: nothing vouches that any of it was acknowledged."""
    size = before_the_sync(group_desk)
    group_desk.abandon()
    group_desk.files.crash(keep_all)
    path = group_desk.chunk_path()
    whole = path.read_bytes()
    for byte in range(len(whole) - size, len(whole), 11):
        group_desk.flip(path, byte * 8)
        group_desk.open()
        assert group_desk.log.end == 3
        assert group_desk.check() == [0]
        group_desk.abandon()
        group_desk.replace(path, whole)
    group_desk.open()
    assert group_desk.log.end == 7
    assert group_desk.check() == [0]


@pytest.mark.parametrize("loss", ["all kept", "torn at 100", pytest.param("names only", marks=pytest.mark.slow)])
@pytest.mark.parametrize("work", ["mixed", "adopted"])
def test_power_cut_inside_recovery(tmp_path: Path, group_desk: Desk, work: str, loss: str) -> None:
    """At each change that recovery makes, after a cut in the second half of the work: the next recovery ends well all the same."""
    total = count_changes(fresh(group_desk, tmp_path, 0), WORKS[work])
    number = points = 0
    for at in range(total // 2, total + 1):
        for change in range(1, 30):
            number += 1
            other = fresh(group_desk, tmp_path, number)
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
            go_on(other)
            other.abandon()
            if finished:
                break
        else:
            raise AssertionError("recovery has more changes than this test looks at")
    assert points > 30


def count_changes(desk: Desk, work: Callable[[Desk], None]) -> int:
    work(desk)
    desk.abandon()
    return desk.files.changes


def prepared(desk: Desk, adopt: bool) -> list[bytes]:
    """Publishers' blocks, some synced; and the parts of a commit."""
    desk.publish()
    desk.sync()
    desk.publish()
    keys = [desk.stage("a", 1), desk.stage("b", 1)]
    if adopt:
        keys += [desk.stage("c", 1, blocks=10), desk.stage("d", 1, blocks=4)]
    desk.seal(*keys)
    return keys


def nothing_happened(desk: Desk, keys: list[bytes]) -> None:
    """A refused commit leaves the topic and the stages as they were: publishers go on, and then the same commit succeeds."""
    desk.check()
    desk.publish()
    desk.sync()
    assert 1 not in desk.groups
    desk.commit(1, *keys)
    desk.publish()
    desk.sync()
    desk.check()


def finished_or_not_at_all(desk: Desk, keys: list[bytes], loss: Choose) -> None:
    """The log takes nothing more; recovery makes the group whole or finds nothing of it."""
    for call in (lambda: desk.log.append([], 0), desk.log.begin_sync, lambda: desk.commit(1, *keys)):
        with pytest.raises(StoreFailed):
            call()
    desk.crash(loss)
    desk.check()
    go_on(desk)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("call", ["writev", "sync", "rename", "sync_folder", "open_append", "open_read", "pread", "open_new", "truncate"])
@pytest.mark.parametrize("adopt", [False, True])
def test_each_failing_call_of_a_commit(tmp_path: Path, group_desk: Desk, adopt: bool, call: str, code: int) -> None:
    refused = failed = 0
    for number in range(1, 60):
        for loss in (keep_all, keep_none):
            other = fresh(group_desk, tmp_path, number * 2 + (loss is keep_all))
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
    if call in {"writev", "sync", "open_read"} or (adopt and call in {"rename", "sync_folder", "open_append"}):
        assert refused + failed > 0
    if call == "writev" and code == errno.ENOSPC:
        assert refused >= 2
    if call in {"sync", "sync_folder"}:  # what a failed sync has lost is not known; but for the header of a chunk that is removed again
        assert refused <= (2 if call == "sync" and code == errno.ENOSPC else 0)


@pytest.mark.parametrize("taken", [0, 1, 64, 70, 128, 200])
@pytest.mark.parametrize("adopt", [False, True])
def test_each_short_write_of_a_commit(tmp_path: Path, group_desk: Desk, adopt: bool, taken: int) -> None:
    refused = 0
    for number in range(1, 30):
        other = fresh(group_desk, tmp_path, number)
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
def test_each_failing_call_of_staging(tmp_path: Path, group_desk: Desk, call: str, code: int) -> None:
    refused = failed = 0
    for number in range(1, 40):
        other = fresh(group_desk, tmp_path, number)
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
