"""Tests of power cuts during a rescue of delayed messages. The next start completes the rescue. Its
steps are durable, bounded, and run one at a time.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lmdb
import pytest
from support.faulty_files import Change, Choose, FaultyFiles, PowerCut, keep_all, keep_none
from support.lmdb_calls import LmdbCall, LmdbCalls

from tests.storage.delayed.test_delayed_power import ForgetfulFiles, all_of, make, publish, waiting
from zsq.storage.delayed import delayed_recovery
from zsq.storage.delayed import delayed_recovery as delayed_rescue
from zsq.storage.delayed.delayed import DelayedStore, Progress
from zsq.storage.delayed.delayed_format import producer_key
from zsq.storage.delayed.delayed_recovery import finish_rescue, meta_of, rescue, take_step
from zsq.storage.files import Files
from zsq.storage.state.state_check import Verdict

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness

UUID = bytes(range(16))
ROWS = 4


def newest(files: FaultyFiles) -> Choose:
    """Keep only the last change: a folder may store names in another order than the calls came."""

    def choose(number: int, change: Change) -> int:
        return keep_all(number, change) if number == len(files.pending) - 1 else 0

    return choose


LOSSES: dict[str, Callable[[FaultyFiles], Choose]] = {
    "none": lambda files: keep_none,
    "all": lambda files: keep_all,
    "newest": newest,
}


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of steps. They run in this process, because the damage here kills no
    reader.
    """
    taken: list[str] = []

    def run(step: str, *arguments: str) -> dict[str, Any]:
        taken.append(step)
        if step == "meta":
            return meta_of(arguments[0])
        old, new, _, rows_max, border = arguments
        take_step(step, old, new, os.getppid(), int(rows_max), bytes.fromhex(border))
        return {}

    monkeypatch.setattr(delayed_rescue, "_run", run)
    monkeypatch.setattr(delayed_recovery, "examine", lambda path: Verdict([], True))
    return taken


def to_be_rescued(root: Path, harness: StorageHarness) -> StorageHarness:
    """Make a topic whose next start rescues its delayed messages."""
    root.mkdir()
    made = type(harness)(root, files=ForgetfulFiles(str(root)))
    made.open()
    publish(make(made), ROWS)
    made.abandon_cleanly()
    with lmdb.open(f"{made.directory}/delayed", lock=False) as env, env.begin(write=True) as txn:
        txn.put(producer_key(8), b"a producer's row that is damaged")
    made.files.reset()
    return made


def names(harness: StorageHarness) -> set[str]:
    return {name for name in harness.files.list(harness.directory) if name.startswith("delayed")}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_power_cut_at_every_change_of_a_rescue(
    tmp_path: Path, harness: StorageHarness, loss: str
) -> None:
    """There is another power cut after the start that completed the rescue. Nothing is lost or left
    over, and the damaged files are kept.
    """
    finished = False
    at = 0
    while not finished:
        at += 1
        other = to_be_rescued(tmp_path / f"run{at}", harness)
        old = other.path("delayed/data.mdb").read_bytes()
        other.files.power_cut_at = at
        try:
            other.open()
            finished = True
        except PowerCut:
            pass
        other.crash(LOSSES[loss](other.files))
        store = other.crash(keep_none)
        assert waiting(other) == all_of(ROWS), f"before change {at}"
        assert store.delayed is not None
        assert store.delayed.summary.lost == 0
        assert store.delayed.producers[7].next_sequence == ROWS
        assert names(other) - {"delayed.attempt"} == {"delayed", "delayed.bad-0", "delayed.made"}, (
            f"before change {at}"
        )
        assert set(other.files.list(f"{other.directory}/delayed")) == {"data.mdb", "commits"}, (
            f"before change {at}"
        )
        assert other.path("delayed.bad-0/data.mdb").read_bytes() == old, (
            f"before change {at}: something was wiped"
        )
        other.abandon()
    assert at > 20


@pytest.mark.parametrize("step", ["forward", "backward", "producers"])
def test_a_rescue_that_a_power_cut_ended_goes_on_behind_the_steps_that_were_done(
    tmp_path: Path,
    harness: StorageHarness,
    steps: list[str],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    """A rescue of many rows takes longer than a start may take. If each start began it again, it
    would never end.
    """
    other = to_be_rescued(tmp_path / "one", harness)
    run = delayed_rescue._run

    def cut(name: str, *arguments: str) -> object:
        if name == step:
            raise PowerCut(step)
        return run(name, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(delayed_rescue, "_run", cut)
        with pytest.raises(PowerCut):
            other.open()
    other.crash(keep_none)
    assert waiting(other) == all_of(ROWS)
    assert steps == ["meta", "meta", "forward", "backward", "producers"], (
        "each once; a look at the heads goes before"
    )
    other.abandon()


def test_a_rescue_that_was_asked_for_is_done_once(tmp_path: Path, harness: StorageHarness) -> None:
    """The request must not come back after a power cut, because then a sound environment would be
    rescued, and renamed to `.bad`.
    """
    made = harness.fresh(tmp_path, 1)
    publish(make(made), ROWS)
    made.abandon_cleanly()
    made.path("delayed.attempt").write_bytes(b"rescue")
    made.files.reset()
    assert any(
        "was saved: 0 delayed messages are lost" in alarm for alarm in made.open().report.alarms
    )
    assert made.crash(keep_none).report.alarms == []
    assert waiting(made) == all_of(ROWS)
    made.abandon()


# Names


def environment(folder: Path) -> DelayedStore:
    folder.mkdir(exist_ok=True)
    store = DelayedStore(str(folder / "delayed"), UUID, map_bytes=1 << 20, create=True)
    publish(store, 100)
    store.close()
    return store


def test_when_a_rescue_has_returned_all_names_are_on_disk(tmp_path: Path) -> None:
    """Code that looks at the folder later, without another start, finds the messages under their
    final name.
    """
    environment(tmp_path / "a")
    files = ForgetfulFiles(str(tmp_path / "a"))
    assert rescue(files, files.root, UUID, 5, Progress(), lambda store: None) == (
        f"{files.root}/delayed.bad-0",
        0,
    )
    files.crash(keep_none)
    assert files.list(files.root) == ["delayed", "delayed.bad-0"]
    assert files.list(f"{files.root}/delayed") == ["data.mdb"]


def test_when_a_rescue_was_finished_all_names_are_on_disk(tmp_path: Path) -> None:
    store = environment(tmp_path / "a")
    os.rename(store.path, store.path + ".ready")
    files = ForgetfulFiles(str(tmp_path / "a"))
    finish_rescue(files, files.root)
    files.crash(keep_none)
    assert files.list(files.root) == ["delayed"]


# A step


@pytest.fixture
def paths(tmp_path: Path) -> tuple[str, str]:
    """Make an environment, and a new one to which its messages are saved."""
    old = environment(tmp_path / "a").path
    DelayedStore(old + ".rescue", UUID, create=True).close()
    return old, old + ".rescue"


def saved(path: str) -> tuple[int, int]:
    """Return the number of messages and of commits."""
    with contextlib.closing(DelayedStore(path, UUID)) as store:
        return store.progress.messages, store.progress.commits


def test_rows_saved_by_a_step_are_on_disk_before_the_step_counts(paths: tuple[str, str]) -> None:
    """A completed step is not repeated, so a power cut must not lose its rows."""
    calls: list[LmdbCall] = []

    def see(call: LmdbCall) -> int:
        calls.append(call)
        return 0

    with LmdbCalls(see):
        take_step("forward", *paths, os.getppid(), 50, b"")
    kinds = [(call.kind, call.durable) for call in calls]
    assert saved(paths[1]) == (100, 3), "the last one finds nothing more"
    assert kinds.count(("write", True)) == kinds.count(("sync", False)) == 3
    heads = [at for at, kind in enumerate(kinds) if kind == ("write", True)]
    assert all(kinds[at - 1] == ("sync", False) for at in heads), (
        "its pages before the head that names them"
    )


def test_a_commit_of_a_step_is_bounded_by_its_bytes_too(
    paths: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this limit, a thousand rows of 1 MiB each would be in memory at once, and a kill
    would lose all of them.
    """
    size = 100
    monkeypatch.setattr(delayed_rescue, "BATCH_BYTES", 10 * size)
    take_step("forward", *paths, os.getppid(), 1_000, b"")
    messages, commits = saved(paths[1])
    assert messages == 100
    assert 100 // 10 <= commits <= 21, "of rows with somewhat more than 100 bytes"


def test_a_step_waits_for_the_one_that_a_killed_parent_left(
    paths: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB's own lock is off. Two processes that write at the same time would overwrite each
    other's pages.
    """
    files = Files()
    held = files.lock(f"{paths[1]}/{delayed_rescue.STEP_LOCK_NAME}")
    looked: list[int] = []

    def sleep(seconds: float) -> None:
        looked.append(saved(paths[1])[0])
        if len(looked) == 3:
            files.close(held)

    monkeypatch.setattr(time, "sleep", sleep)
    take_step("forward", *paths, os.getppid(), 10, b"")
    assert looked == [0, 0, 0]
    assert saved(paths[1])[0] == 100
    files.close(files.lock(f"{paths[1]}/{delayed_rescue.STEP_LOCK_NAME}"))
