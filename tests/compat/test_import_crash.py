"""Tests of an import that is interrupted at any change of the disk, or by a full disk. After the
next run the result is the same as after a single run.
"""

from __future__ import annotations

import errno
from contextlib import nullcontext
from pathlib import Path

import pytest
from support.faulty_files import Choose, FaultyFiles, PowerCut, keep_all, keep_none
from support.nsqd import Backlog, backlogs, contents, message, write_nsqd

from zsq.actors.supervisor.import_remains import clear_imports_at_start
from zsq.actors.supervisor.topics.registry import Registry
from zsq.apps.nsqd.nsqd_import import import_nsqd
from zsq.storage.directory.store import StoreOptions
from zsq.storage.errors import DiskFull, StorageError
from zsq.storage.files import Files
from zsq.storage.nsq.disk_queue_format import NsqdChannel, NsqdList, NsqdTopic
from zsq.transport.errors import ZsqError

OPTIONS = StoreOptions(reserve_bytes=0, map_bytes=1 << 20)
LISTED = NsqdList(
    (NsqdTopic("t", True, (NsqdChannel("c", True), NsqdChannel("d"))), NsqdTopic("u"))
)
QUEUES = {
    "t": [[message(1), message(2)]],
    "t:c": [[message(3, 1)], [message(4)]],
    "t:d": [[message(number, number % 2) for number in range(10, 20)]],
    "u": [[message(5)]],
}


def plain(found: dict[str, Backlog]) -> dict[str, object]:
    return {
        name: (one.paused, one.waiting, one.channels, one.stopped, one.times, one.ids)
        for name, one in found.items()
    }


def arrange(root: Path) -> tuple[Path, Path]:
    root.mkdir()
    data_dir = root / "data"
    data_dir.mkdir()
    registry = Registry(Files(), data_dir, 0)
    registry.open()
    return write_nsqd(root / "nsqd", LISTED, QUEUES), data_dir


@pytest.mark.parametrize(
    ("choose", "step"),
    [
        (keep_none, 9),
        (keep_all, 10),
        pytest.param(keep_none, 1, marks=pytest.mark.slow),
        pytest.param(keep_all, 1, marks=pytest.mark.slow),
    ],
)
def test_a_crash_anywhere_and_a_second_run(tmp_path: Path, choose: Choose, step: int) -> None:
    source, data_dir = arrange(tmp_path / "once")
    files = FaultyFiles(str(tmp_path / "once"))
    import_nsqd(files, str(source), data_dir, options=OPTIONS)
    changes = files.changes
    wanted = plain(backlogs(data_dir))
    committed = 0
    for change in sorted({*range(step, changes + 1, step), *range(changes - 20, changes + 2)}):
        root = tmp_path / f"{change}"
        source, data_dir = arrange(root)
        before = contents(source)
        files = FaultyFiles(str(root))
        files.power_cut_at = change
        # In the last round, the import ends before the power fails.
        with pytest.raises(PowerCut) if change <= changes else nullcontext():
            import_nsqd(files, str(source), data_dir, options=OPTIONS)
        files.crash(choose)
        registry = Registry(Files(), data_dir, 0)
        registry.open()
        assert sorted(registry.topics) in ([], ["t", "u"]), "all of it or nothing"
        again = import_nsqd(files, str(source), data_dir, options=OPTIONS)
        assert again.again == bool(registry.topics)
        committed += again.again
        assert plain(backlogs(data_dir)) == wanted
        assert len(list((data_dir / "topics").iterdir())) == 2, "nothing is left over"
        if not again.again:
            assert not (data_dir / "import.tmp").exists()
        assert contents(source) == before
    assert changes > 60
    assert committed


@pytest.mark.parametrize(
    "call", ["writev", "open_new", "make_folder", "sync", "rename", "sync_folder"]
)
def test_a_disk_that_refuses_leaves_nothing_half(tmp_path: Path, call: str) -> None:
    for number in range(1, 60, 9):
        root = tmp_path / f"{call}{number}"
        source, data_dir = arrange(root)
        files = FaultyFiles(str(root))
        files.fail = {call: {number: errno.ENOSPC}}
        try:
            report = import_nsqd(files, str(source), data_dir, options=OPTIONS)
        except (StorageError, ZsqError, OSError):
            files.fail = {}
            registry = Registry(Files(), data_dir, 0)
            registry.open()
            # Both topics exist if only the sync after the commit failed.
            assert sorted(registry.topics) in (
                [],
                ["t", "u"],
            )
            report = import_nsqd(files, str(source), data_dir, options=OPTIONS)
        assert not report.again or call == "sync_folder"
        assert len(plain(backlogs(data_dir))) == 2


def test_an_abandoned_import_takes_no_numbers_from_other_topics(tmp_path: Path) -> None:
    """If a broker creates a topic between the crash and the second run, that topic gets a number
    and a folder of its own.
    """
    source, data_dir = arrange(tmp_path / "a")

    class Stopping(Files):
        def rename(self, old: str, new: str) -> None:
            if new.endswith("topics/000002"):
                raise OSError(errno.EIO, "by plan")
            super().rename(old, new)

    with pytest.raises(OSError, match="by plan"):
        import_nsqd(Stopping(), str(source), data_dir, options=OPTIONS)
    assert [path.name for path in (data_dir / "topics").iterdir()] == ["000001"], (
        "it stopped while they were moved in"
    )
    registry = Registry(Files(), data_dir, 0)
    registry.open()
    assert not Path(registry.folder(registry.add("other", "always"))).exists()
    registry.topics.pop("other")
    registry.save()
    import_nsqd(Files(), str(source), data_dir, options=OPTIONS)
    assert sorted(backlogs(data_dir)) == ["t", "u"]


@pytest.mark.parametrize("stopped_at", ["topics/000001", "topics/000002", "import.tmp/000002"])
def test_a_broker_that_is_started_clears_what_a_killed_import_left(
    tmp_path: Path, stopped_at: str, caplog: pytest.LogCaptureFixture
) -> None:
    source, data_dir = arrange(tmp_path / "a")

    class Killed(Files):
        def rename(self, old: str, new: str) -> None:
            if new.endswith(stopped_at):
                raise OSError(errno.EIO, "by plan")
            super().rename(old, new)

    files = Killed()
    with pytest.raises((OSError, StorageError), match="by plan"):
        import_nsqd(files, str(source), data_dir, options=OPTIONS)
    assert (data_dir / "import.tmp").exists()
    registry = Registry(Files(), data_dir, 0)
    registry.open()
    assert registry.add("other", "always").number == 3, "its numbers are not given again"
    (data_dir / "topics/000003").mkdir()
    clear_imports_at_start(Files(), data_dir, registry)
    assert not (data_dir / "import.tmp").exists()
    assert [path.name for path in (data_dir / "topics").iterdir()] == ["000003"]
    assert not registry.imports
    assert "run `zsq import-nsqd` again" in caplog.text
    caplog.clear()
    again = Registry(Files(), data_dir, 0)
    again.open()
    assert not again.imports
    clear_imports_at_start(Files(), data_dir, again)
    assert not caplog.text


def test_remains_of_an_import_that_cannot_be_removed_prevent_no_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, data_dir = arrange(tmp_path / "a")
    registry = Registry(Files(), data_dir, 0)
    registry.open()
    (data_dir / "import.tmp").mkdir()

    class Refusing(Files):
        def remove_tree(self, path: str) -> None:
            raise OSError(errno.EACCES, "by plan")

    clear_imports_at_start(Refusing(), data_dir, registry)
    assert "cannot remove the files of an unfinished import" in caplog.text


def test_a_full_disk_in_the_middle_gives_its_space_back(tmp_path: Path) -> None:
    source, data_dir = arrange(tmp_path / "a")
    files = FaultyFiles(str(tmp_path / "a"))
    files.free = 3_000

    def less(path: str) -> int:
        files.free -= 1_000
        return files.free

    files.free_bytes = less  # type: ignore[method-assign]
    with pytest.raises(DiskFull):
        import_nsqd(files, str(source), data_dir, options=OPTIONS)
    assert not (data_dir / "import.tmp").exists()
