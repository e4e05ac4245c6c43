"""Tests of the cell of the lease, which processes share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from zsq.actors.bucket.lease_cell import OVER, LeaseCell


def test_without_a_lease_everything_holds(tmp_path: Path) -> None:
    cell = LeaseCell(str(tmp_path), make=True)
    assert cell.until_ns == 0
    assert cell.is_valid(1 << 62)


def test_a_lease_ends(tmp_path: Path) -> None:
    cell = LeaseCell(str(tmp_path), make=True)
    cell.write(100)
    assert cell.is_valid(99)
    assert not cell.is_valid(100)
    cell.write(OVER)
    assert not cell.is_valid(OVER)


def test_another_process_sees_it_at_once_and_a_successor_finds_it(tmp_path: Path) -> None:
    reader = LeaseCell(str(tmp_path), make=True)
    code = (
        "import sys; from zsq.actors.bucket.lease_cell import LeaseCell; "
        "LeaseCell(sys.argv[1]).write(1 << 61)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert reader.until_ns == 1 << 61
    assert LeaseCell(str(tmp_path), make=True).until_ns == 1 << 61


def test_a_topic_waits_until_the_cell_is_there(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        LeaseCell(str(tmp_path))


def test_the_file_has_no_hole_and_is_private(tmp_path: Path) -> None:
    """A write to a hole would kill the process if the disk is full."""
    LeaseCell(str(tmp_path), make=True)
    found = os.stat(tmp_path / "lease")
    assert found.st_size == 16
    assert found.st_mode & 0o777 == 0o600
