"""Tests of the check of an environment in a separate process: a sound environment passes, damage is
reported, and nothing is changed.
"""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import lmdb
import pytest
from support.lmdb_calls import LmdbCalls

from zsq.storage.environment import Environment
from zsq.storage.errors import Damaged
from zsq.storage.rows import wrap
from zsq.storage.state import state_check
from zsq.storage.state.channel_row import ChannelRow
from zsq.storage.state.state import ProducerRow, StateBatch, StateStore
from zsq.storage.state.state_check import check_environment, examine, findings
from zsq.storage.state.state_rows import deferred_key, hole_key, total_key


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    store = StateStore(str(tmp_path / "state"), 1 << 20, create=True)
    store.create(bytes(16), waiting=0)
    for turn in range(5):  # some commits, so that there are free pages
        store.commit(
            StateBatch(
                channel_puts={"a": ChannelRow(1_000 + turn)},
                hole_puts=[("a", i, 1, turn, 5 + i % 2 * 1_000) for i in range(300)]
                + [("a", 300 + i, 1, turn, 0) for i in range(300)],
                producers={turn: ProducerRow(1, 2, ((0, 0),))},
            )
        )
    store.close()
    return tmp_path / "state"


def tamper(folder: Path, change: Any) -> None:
    with lmdb.open(str(folder), lock=False) as env, env.begin(write=True) as txn:
        change(txn)


def test_a_sound_environment_passes_and_is_not_changed(folder: Path) -> None:
    before = (folder / "data.mdb").read_bytes()
    assert check_environment(str(folder)) == []
    assert (folder / "data.mdb").read_bytes() == before
    assert [path.name for path in folder.parent.iterdir()] == ["state"], "the copy is left over"


KEYS = {"deferred": deferred_key("a", 5), "hole": hole_key("a", 305), "total": total_key("a")}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("what", ["gone", "changed", "garbage"])
def test_rows_that_differ_from_what_was_written_are_found(
    folder: Path, key: str, what: str
) -> None:
    value = bytes(24)
    changes: dict[str, Any] = {
        "gone": lambda txn: txn.delete(KEYS[key]),
        "changed": lambda txn: txn.put(KEYS[key], wrap(KEYS[key], value)),
        "garbage": lambda txn: txn.put(KEYS[key], b"garbage"),
    }
    tamper(folder, changes[what])
    assert findings(str(folder)) != []
    if what == "gone":
        assert check_environment(str(folder)) == findings(str(folder))


def test_an_environment_of_another_kind_is_checked_too(tmp_path: Path) -> None:
    """The check works for every environment whose values begin with ZSQ's checksum and length, such
    as the delayed messages.
    """
    tamper(
        tmp_path, lambda txn: [txn.put(b"%d" % i, wrap(b"%d" % i, bytes(i))) for i in range(500)]
    )
    assert findings(str(tmp_path)) == []
    tamper(tmp_path, lambda txn: txn.put(b"7", b"x" + wrap(b"7", bytes(7))[1:]))
    assert "b'7'" in findings(str(tmp_path))[0]


def test_a_missing_or_garbage_environment_is_reported(tmp_path: Path) -> None:
    assert check_environment(str(tmp_path)) == [f"{tmp_path} has no data.mdb"]
    (tmp_path / "data.mdb").write_bytes(b"garbage" * 4_096)
    assert len(findings(str(tmp_path))) == 1


def test_a_check_that_dies_or_hangs_is_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    program.touch(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    for text, finding, finished in [
        ("kill -BUS $$", "SIGBUS", True),
        ("kill -KILL $$", "SIGKILL", False),
        ("read x < /dev/tty || exec tail -f /dev/null", "within 0.5 s", False),
        ("echo oops >&2; exit 3", "oops", False),
        ("echo '[\"bad\"]'; exit 1", "bad", True),
    ]:
        program.write_text(f"#!/bin/sh\n{text}\n")
        verdict = examine(str(folder), 0.5)
        assert finding in verdict.findings[0]
        assert verdict.finished == finished
    program.unlink()
    assert not examine(str(folder)).finished


def test_the_copy_goes_with_whatever_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    program.touch(0o700)
    copy = Path(f"{folder}{state_check.COPY_SUFFIX}")
    monkeypatch.setattr(sys, "executable", str(program))
    for text in ("kill -BUS $$", "exec tail -f /dev/null"):
        program.write_text(f"#!/bin/sh\nmkdir {copy} && echo > {copy}/data.mdb\n{text}\n")
        assert examine(str(folder), 1.0).findings
        assert not copy.exists()


def test_a_large_one_is_not_copied_and_gets_more_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []
    real = subprocess.run

    def run(command: list[str], *, timeout: float, **named: Any) -> Any:
        limits.append(timeout)
        return real(command, timeout=60, **named)

    def copied(*given: object) -> None:
        raise AssertionError

    size = (folder / "data.mdb").stat().st_size
    assert examine(str(folder)).note == ""
    monkeypatch.setattr(state_check, "TRIAL_BYTES_MAX", size - 1)
    monkeypatch.setattr(state_check, "_copy", copied)
    assert findings(str(folder)) == []
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(state_check, "CHECK_BYTES_S", size / 20)
    verdict = examine(str(folder))
    assert (verdict.findings, verdict.finished, f"{size} bytes" in verdict.note) == ([], True, True)
    assert check_environment(str(folder)) == []
    monkeypatch.setattr(state_check, "CHECK_BYTES_S", size / 500)
    assert examine(str(folder)).finished
    assert check_environment(str(folder)) == []
    assert limits == [80, 80, state_check.CHECK_S_MAX, 560]


def test_a_failing_commit_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading does not use the lists of free pages. Only a commit does."""

    def fail(self: Environment, work: Any) -> None:
        raise Damaged(f"{self.path}: by plan")

    monkeypatch.setattr(Environment, "write", fail)
    assert findings(str(folder)) == [f"{folder}: a commit to a copy fails: by plan"]


def test_a_disk_without_space_for_the_copys_commits_is_no_damage(folder: Path) -> None:
    with LmdbCalls(lambda call: errno.ENOSPC if state_check.COPY_SUFFIX in call.path else 0):
        assert findings(str(folder)) == []
