"""Tests of the check of an LMDB environment: which environments are too large to try a commit, how
much is reported, and files that LMDB itself would not open.
"""

from __future__ import annotations

import struct
from pathlib import Path

import lmdb
import pytest

from zsq.storage.files import Files
from zsq.storage.lmdb_pages import wrong_pages
from zsq.storage.rows import wrap
from zsq.storage.state import state_check

PAGE = 4_096
HEAD = struct.Struct("=IIQQ IHH5Q IHH5Q QQ")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make an LMDB environment that belongs to no topic: ten rows with their checksums."""
    with (
        lmdb.open(str(tmp_path), lock=False, map_size=1 << 20) as env,
        env.begin(write=True) as txn,
    ):
        for number in range(10):
            txn.put(b"%d" % number, wrap(b"%d" % number, b"value"))
    return tmp_path


def test_no_copy_is_made_of_what_is_too_large(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def write_to_a_copy(path: str) -> list[str]:
        tried.append(path)
        return []

    monkeypatch.setattr(state_check, "_write_to_a_copy", write_to_a_copy)
    size = (folder / "data.mdb").stat().st_size
    for limit, asked in ((size, 1), (size - 1, 0)):
        monkeypatch.setattr(state_check, "TRIAL_BYTES_MAX", limit)
        tried.clear()
        assert state_check.findings(str(folder)) == []
        assert len(tried) == asked
        assert bool(state_check.examine(str(folder)).note) == (not asked), "and it is said"


def test_the_number_of_findings_about_one_store_is_bounded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lmdb.open(str(folder), lock=False) as env, env.begin(write=True) as txn:
        for number in range(10):
            txn.put(b"%d" % number, b"garbage")
    assert len(state_check.findings(str(folder))) >= 10
    monkeypatch.setattr(state_check, "_FINDINGS_MAX", 3)
    assert len(state_check.findings(str(folder))) == 3


@pytest.mark.parametrize("size", [0, 10, 100, PAGE, 2 * PAGE - 1])
def test_a_file_that_ends_in_its_heads_is_lmdb_s_to_refuse(folder: Path, size: int) -> None:
    path = folder / "data.mdb"
    path.write_bytes(path.read_bytes()[:size])
    assert wrong_pages(Files(), str(path)) == []


@pytest.mark.parametrize("field", [0, 1])
def test_heads_of_another_kind_or_version_are_not_walked(folder: Path, field: int) -> None:
    """The meaning of the other fields of such a meta page is not known."""
    path = folder / "data.mdb"
    data = bytearray(path.read_bytes())
    for at in (0, PAGE):
        head = list(HEAD.unpack_from(data, at + 16))
        head[19] = 1  # the root page of the rows: it is not a leaf
        HEAD.pack_into(data, at + 16, *head)
    path.write_bytes(data)
    assert wrong_pages(Files(), str(path)) != []
    head = list(HEAD.unpack_from(data, PAGE + 16))
    head[field] ^= 2
    HEAD.pack_into(data, PAGE + 16, *head)
    path.write_bytes(data)
    assert wrong_pages(Files(), str(path)) == []
