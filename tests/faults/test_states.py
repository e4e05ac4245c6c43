"""Tests of the model of power cuts: it generates exactly the disks that it describes, and the check
finds a disk that breaks a promise.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lmdb
import pytest
from support.faulty_files import FaultyFiles

from .crash_states import Prover, Result, work_folder
from .recording import RecordingFiles, Trace
from .states import continued, fates, prefixes, tree_of
from .subject import Recorded


def trees(trace: Trace, steps: int) -> list[dict[str, bytes | None]]:
    disk = list(prefixes(trace))[steps]
    return [tree_of(disk, fate) for fate in fates(disk, random.Random(1))]


def test_a_file_that_was_written_is_there_in_part_or_not(tmp_path: Path) -> None:
    files = RecordingFiles(str(tmp_path))
    with files.recording(lambda: None) as trace:
        fd = files.open_new(f"{files.root}/a")
        files.writev(fd, [b"x" * 600], 0)
        files.sync(fd)
        files.sync_folder(files.root)
        files.close(fd)
    assert trees(trace, 0) == [{}]
    found = trees(trace, 2)
    for content in (
        b"x" * 600,
        b"",
        bytes(600),
        b"x" * 512,
        b"x" * 512 + bytes(88),
        bytes(512) + b"x" * 88,
    ):
        assert {"/a": content} in found
    assert {} in found
    assert {tuple(tree.items()) for tree in trees(trace, 3)} == {(), (("/a", b"x" * 600),)}
    assert trees(trace, 4) == [{"/a": b"x" * 600}]


def test_a_rename_is_one_change_and_may_leave_the_old_name_in_another_folder(
    tmp_path: Path,
) -> None:
    files = RecordingFiles(str(tmp_path))
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a").write_bytes(b"a")
    with files.recording(lambda: None) as trace:
        files.rename(f"{files.root}/in/a", f"{files.root}/b")
        files.sync_folder(files.root)
    assert {"/in": None, "/in/a": b"a"} in trees(trace, 1)
    assert {"/in": None, "/b": b"a"} in trees(trace, 1)
    assert {"/in": None, "/in/a": b"a", "/b": b"a"} in trees(trace, 1)
    assert {"/in": None} not in trees(trace, 1)
    assert trees(trace, 2) == [{"/in": None, "/b": b"a"}]


def test_a_commit_of_lmdb_is_there_or_not(tmp_path: Path) -> None:
    files = RecordingFiles(str(tmp_path))
    (tmp_path / "env").mkdir()
    with files.recording(lambda: None) as trace, lmdb.open(f"{files.root}/env", lock=False) as env:
        files.sync_folder(f"{files.root}/env")
        with env.begin(write=True) as transaction:
            # Only this first commit syncs the meta pages of a new environment.
            transaction.put(b"first", b"")
        before = len(trace.steps)
        with env.begin(write=True) as transaction:
            transaction.put(b"k", b"v" * 9_000)
    assert [step.kind for step in trace.steps[before:]] == ["write", "sync", "write"]
    assert trace.steps[-1].durable
    for steps, values in ((before + 1, [None]), (before + 2, [None]), (before + 3, [b"v" * 9_000])):
        for number, tree in enumerate(trees(trace, steps)):
            folder = tmp_path / f"{steps}-{number}"
            folder.mkdir()
            (folder / "data.mdb").write_bytes(tree["/env/data.mdb"] or b"")
            with lmdb.open(str(folder), lock=False) as again, again.begin() as reading:
                assert reading.get(b"k") in values


def test_unsynced_bytes_of_a_dead_process_may_still_be_lost(tmp_path: Path) -> None:
    files = RecordingFiles(str(tmp_path))
    with files.recording(lambda: None) as trace:
        fd = files.open_new(f"{files.root}/a")
        files.sync_folder(files.root)
        files.writev(fd, [b"a"], 0)
        files.close(fd)
    with RecordingFiles(str(tmp_path)).recording(lambda: None) as inner:
        again = inner
    both = continued(list(prefixes(trace))[-1], again)
    assert {"/a": b""} in trees(both, 0)
    files = RecordingFiles(str(tmp_path))
    with files.recording(lambda: None) as inner:
        fd = files.open_append(f"{files.root}/a")
        files.sync(fd)
        files.close(fd)
    both = continued(list(prefixes(trace))[-1], inner)
    assert trees(both, 1) == [{"/a": b"a"}]


class Note:
    """A subject that promises that a line is in a file. If `careful`, it promises this only after
    the folder of the file is synced.
    """

    def __init__(self, files: FaultyFiles, promised: bool = False) -> None:
        self.files = files
        self.promised = promised

    def promise(self) -> Any:
        return self.promised

    def recover(self) -> None:
        pass

    def work(self, *, careful: bool) -> None:
        self.files.write_file(f"{self.files.root}/note", b"a line")
        if careful:
            self.files.sync_folder(self.files.root)
        self.promised = True

    def live(self) -> None:
        assert not self.promised or self.files.exists(f"{self.files.root}/note"), "the note is lost"

    verify = live

    def abandon(self) -> None:
        pass


@pytest.mark.parametrize("careful", [False, True])
def test_a_folder_that_is_not_synced_is_found(tmp_path: Path, careful: bool) -> None:
    files = RecordingFiles(str(tmp_path))
    note = Note(files)
    with files.recording(note.promise) as trace:
        note.work(careful=careful)
    result = Result()
    with work_folder() as folder:
        prover = Prover(Recorded("note", trace, Note), folder)
        for disk in prover.disks():
            prover.prove(disk, 0, result)
    assert len(result.disks) > 5
    assert bool(result.violations) is not careful
    assert all("the note is lost" in what for _, what in result.violations)
