"""Test of `scripts/mutate`: one removal from start to end."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutate.__main__ import main


@pytest.mark.long
def test_a_removal_is_caught_and_one_that_no_test_asked_sees_survives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`storage/test_files.py` notices the removal of a sync in `storage/files.py`. It runs no code
    of `storage/space.py`, so a removal there survives.
    """
    common = ["--folder", str(tmp_path), "--tests", "storage/test_files.py", "--jobs", "1"]
    assert main([*common, "--only", "os.fdatasync(fd)"]) == 0
    said = capsys.readouterr().out
    assert "caught by tests/storage/test_files.py::test_" in said
    assert "1 of 1 removals caught by a test" in said
    assert (
        main([*common, "--resume", "--only", "storage/space.py", "--only", "os.fdatasync(fd)"]) == 1
    )
    said = capsys.readouterr().out
    assert "SURVIVOR" in said
    assert "0 tests run over it" in said
