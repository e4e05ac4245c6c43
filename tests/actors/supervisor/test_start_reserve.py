"""Tests of the bytes that the broker keeps for the start of a process on a full disk."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from zsq.actors.supervisor.start_reserve import BYTES_MAX, NAME, StartReserve


def test_the_reserve_is_kept_and_lent_only_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = StartReserve(tmp_path)
    reserve.lend()  # there is none yet
    reserve.keep()
    assert (tmp_path / NAME).stat().st_blocks * 512 >= BYTES_MAX
    reserve.lend()
    assert (tmp_path / NAME).stat().st_size == BYTES_MAX, "there is room"
    full = SimpleNamespace(f_bavail=0, f_frsize=4096, f_blocks=1 << 20)
    with monkeypatch.context() as patched:
        patched.setattr(os, "statvfs", lambda path: full)
        reserve.lend()
    assert (tmp_path / NAME).stat().st_size == 0
    reserve.keep()
    assert (tmp_path / NAME).stat().st_size == BYTES_MAX


def test_a_small_disk_keeps_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = SimpleNamespace(f_bavail=1 << 12, f_frsize=4096, f_blocks=1 << 14)
    monkeypatch.setattr(os, "statvfs", lambda path: small)
    StartReserve(tmp_path).keep()
    assert (tmp_path / NAME).stat().st_size == 1 << 20


def test_a_folder_that_is_gone_raises_nothing(tmp_path: Path) -> None:
    reserve = StartReserve(tmp_path / "gone")
    reserve.keep()
    reserve.lend()
