"""Tests of power cuts while one of LMDB's two meta pages (its "heads") is mended, or soon after.
Nothing acknowledged is lost, and a copy of the former pages is kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.faulty_files import FaultyFiles, PowerCut, keep_all, keep_none

from tests.storage.delayed.test_delayed_damage import (
    ALL,
    change_head,
    fall_back,
    filled,
    found_again,
    found_there,
)
from zsq.storage.delayed import delayed_recovery
from zsq.storage.delayed.delayed_recovery import (
    BAD_NAME,
    TRYING_NAME,
    finish_mending,
    mend_head,
    meta_of,
)
from zsq.storage.state.state_check import Verdict
from zsq.transport.block.block import pack

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness

MAGIC_AT = 16
DUE = 1_700_000_000_000_000_000


class WatchedFiles(FaultyFiles):
    """Files that record each change of a name while written bytes are not synced yet."""

    def __init__(self, root: str) -> None:
        self.hasty: list[str] = []
        super().__init__(root)

    def rename(self, old: str, new: str) -> None:
        self._look(old)
        super().rename(old, new)

    def remove(self, path: str) -> None:
        self._look(path)
        super().remove(path)

    def _look(self, path: str) -> None:
        if any(change.kind == "write" for change in self.pending):
            self.hasty.append(Path(path).name)


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the separate process for each examination: the damage here kills no reader, and
    processes would take most of the time.
    """
    monkeypatch.setattr(delayed_recovery, "probe", meta_of)
    monkeypatch.setattr(delayed_recovery, "examine", lambda path: Verdict([], True))


@pytest.mark.parametrize("loss", [keep_none, keep_all], ids=["none kept", "all kept"])
@pytest.mark.parametrize("byte", [MAGIC_AT, 10], ids=["magic", "flag"])
def test_a_power_cut_at_every_change_of_the_mending(
    tmp_path: Path, harness: StorageHarness, loss: object, byte: int
) -> None:
    """For a moment the file has the older meta page in both places. Then only the copy of the two
    pages contains the newest commit.
    """
    finished = False
    at = mended = 0
    while not finished:
        at += 1
        other = harness.fresh(tmp_path, at)
        filled(other)
        change_head(other, True, byte, 0 if byte == MAGIC_AT else 3)
        other.files.power_cut_at = at
        try:
            other.open()
            finished = True
        except PowerCut:
            pass
        other.abandon()
        other.files.crash(loss)  # type: ignore[arg-type]
        mended += other.path(f"delayed/{TRYING_NAME}").exists()
        assert found_there(other)[:2] == (ALL, 0), f"before change {at}"
        assert not other.path(f"delayed/{TRYING_NAME}").exists()
        assert other.path(f"delayed/{BAD_NAME}-0").exists()
        other.abandon()
    assert mended > 2, "a cut in the middle of it"


def test_a_commit_after_a_head_repair_survives_a_power_cut(harness: StorageHarness) -> None:
    """The former pages must not keep the name of an unfinished mending. Otherwise the next start
    would write them over newer pages.
    """
    filled(harness)
    change_head(harness, True, MAGIC_AT, 0)
    assert found_there(harness)[:2] == (ALL, 0)
    go_on(harness)


def go_on(harness: StorageHarness) -> None:
    """Make some commits, so that both meta pages are newer. Then cut the power, and check that the
    commits are kept.
    """
    assert harness.store is not None
    assert harness.store.delayed is not None
    for sequence in (6, 7, 8):
        harness.store.delayed.put(
            [(pack([b"%03d" % sequence], producer_id=7, sequence=sequence), DUE + sequence)], 5
        )
    harness.abandon()
    harness.files.crash(keep_none)
    assert not harness.path(f"delayed/{TRYING_NAME}").exists(), (
        "the next start would put older pages over newer ones"
    )
    harness.open()
    assert found_again(harness) == [b"%03d" % number for number in range(9)]


def test_a_commit_after_a_failed_head_repair_survives_a_power_cut(harness: StorageHarness) -> None:
    """No meta page has the newest commit. That commit is lost and reported, and the older one is
    used.
    """
    fall_back(
        harness, lambda store: store.put([(pack([b"lost"], producer_id=7, sequence=6), DUE + 6)], 5)
    )
    assert found_there(harness)[:2] == (ALL, 1)
    go_on(harness)


def test_a_commit_after_an_undone_head_repair_survives_a_power_cut(harness: StorageHarness) -> None:
    """The former pages are correct. The note of the newest commit was lost with the power, so
    nothing shows that a commit is missing.
    """
    filled(harness)
    harness.abandon_cleanly()
    harness.path("delayed/commits").unlink()
    harness.path(f"delayed/{TRYING_NAME}").write_bytes(
        harness.path("delayed/data.mdb").read_bytes()[:8192]
    )
    harness.files.reset()
    assert found_there(harness)[:2] == (ALL, 0)
    go_on(harness)


@pytest.fixture
def watched(tmp_path: Path, harness: StorageHarness) -> StorageHarness:
    """Make a closed topic with a damaged meta page."""
    (tmp_path / "watched").mkdir()
    made = type(harness)(tmp_path / "watched", files=WatchedFiles(str(tmp_path / "watched")))
    made.open()
    filled(made)
    change_head(made, True, MAGIC_AT, 0)
    return made


@pytest.mark.parametrize("commits", [6, 99])
def test_a_mended_head_is_on_disk_before_its_former_pages_are_put_away(
    watched: StorageHarness, commits: int
) -> None:
    """This also holds if the mending fails and the former pages are restored. (It fails if the
    number of commits that was noted is higher than the number in both meta pages.)
    """
    path = f"{watched.directory}/delayed"
    assert isinstance(watched.files, WatchedFiles)
    watched.files.hasty.clear()
    assert mend_head(watched.files, path, commits, meta_of if commits == 6 else lambda path: {})[
        :1
    ] == ("/" if commits == 6 else "")
    assert "rename" in watched.files.log
    assert watched.files.hasty == []


def test_a_head_that_was_put_back_is_on_disk_before_its_copy_is_removed(
    watched: StorageHarness,
) -> None:
    path = f"{watched.directory}/delayed"
    assert isinstance(watched.files, WatchedFiles)
    data = watched.path("delayed/data.mdb").read_bytes()
    watched.path(f"delayed/{TRYING_NAME}").write_bytes(data[:8192])
    watched.replace(watched.path("delayed/data.mdb"), b"\xff" * 8192 + data[8192:])
    watched.files.hasty.clear()
    finish_mending(watched.files, path)
    assert watched.path("delayed/data.mdb").read_bytes() == data
    assert "remove" in watched.files.log
    assert watched.files.hasty == []
