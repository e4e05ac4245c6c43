"""Tests of a backup's manifest and files: what is checked, what is refused, and which files are not
copied again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

import pytest
from support.faulty_files import FaultyFiles, keep_none

from zsq.storage.checks import backup
from zsq.storage.checks.backup import (
    FileRow,
    Manifest,
    Writer,
    check_file,
    copy_file,
    decode_manifest,
    encode_manifest,
    read_manifest,
    walk,
)
from zsq.storage.errors import Damaged, ForeignDirectory
from zsq.storage.files import Files

FILES: Final = Files()
CHUNK: Final = "topics/000001/00000000000000000000.chunk"


def nothing(count: int) -> None:
    """A progress callback that does nothing."""


def manifest(*files: FileRow) -> Manifest:
    return Manifest(
        "1.0",
        "/data",
        "a" * 32,
        5,
        6,
        topics={"t": {"number": 1, "uuid": "b" * 32, "start": 0, "end": 9}},
        files=list(files),
    )


def test_a_manifest_comes_back() -> None:
    made = manifest(FileRow("registry.json", 3, 0xDEADBEEF), FileRow(CHUNK, 10, 1))
    assert decode_manifest(encode_manifest(made), "m") == made
    assert made.bytes == 13


def test_each_byte_of_a_manifest_counts() -> None:
    raw = encode_manifest(manifest(FileRow("registry.json", 3, 7)))
    wanted = decode_manifest(raw, "m")
    for position in range(len(raw)):
        changed = bytearray(raw)
        changed[position] ^= 0x04
        try:
            assert decode_manifest(bytes(changed), "m") == wanted, "white space may be another"
        except (Damaged, ForeignDirectory):
            continue


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{",
        b'{"backup": "other"}',
        b'{"backup": "zsq", "version": 2}',
        b"\xff",
        b"[" * 9999,
    ],
)
def test_each_text_that_is_no_manifest_is_refused(raw: bytes) -> None:
    with pytest.raises((Damaged, ForeignDirectory)):
        decode_manifest(raw, "m")


@pytest.mark.parametrize(
    "path", ["../etc/passwd", "/etc/passwd", "a/../../b", "a//b", "", ".", "a\0b", 7]
)
def test_each_manifest_path_that_leads_out_is_refused(path: Any) -> None:
    """The checksum of the manifest is correct, as if somebody had changed it on purpose."""
    data = json.loads(encode_manifest(manifest(FileRow("x", 1, 1))))
    data["files"][0][0] = path
    head = {key: data.pop(key) for key in ("backup", "version", "checksum")}
    from zsq.storage.checks.backup import _checksum

    raw = json.dumps(head | data | {"checksum": _checksum(data)}).encode()
    with pytest.raises(Damaged):
        decode_manifest(raw, "m")


def test_a_manifest_of_another_version_says_what_to_do() -> None:
    """Everything else in the manifest is correct."""
    raw = encode_manifest(manifest(FileRow("x", 1, 1)))
    with pytest.raises(
        ForeignDirectory, match="version 2, and this zsq reads only version 1; use a newer"
    ):
        decode_manifest(raw.replace(b'"version": 1', b'"version": 2'), "m")


def test_a_copy_is_synced_at_its_end_and_after_every_few_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a disk got the whole copy at once, the broker's own syncs would have to wait for it."""
    monkeypatch.setattr(backup, "PIECE_BYTES", 1_000)
    monkeypatch.setattr(backup, "SYNC_BYTES", 4_000)
    data = os.urandom(10_500)
    (tmp_path / "a").write_bytes(data)
    files = FaultyFiles(str(tmp_path))
    unsynced: list[int] = []

    def look(count: int) -> None:
        unsynced.append(sum(len(change.data) for change in files.pending))

    copy_file(files, f"{tmp_path}/a", f"{tmp_path}/b", None, look)
    assert max(unsynced) < 4_000
    files.sync_folder(str(tmp_path))
    files.crash(keep_none)
    assert (tmp_path / "b").read_bytes() == data


def test_an_unfinished_backup_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ForeignDirectory, match="is an unfinished backup"):
        read_manifest(FILES, f"{tmp_path}.partial")
    with pytest.raises(ForeignDirectory, match="not a zsq backup"):
        read_manifest(FILES, str(tmp_path))


def test_a_copy_is_checked(tmp_path: Path) -> None:
    source, target = str(tmp_path / "a"), str(tmp_path / "b")
    Path(source).write_bytes(os.urandom(3_000_000))
    done: list[int] = []
    size, crc = copy_file(FILES, source, target, None, done.append)
    assert (size, sum(done)) == (3_000_000, 3_000_000)
    row = FileRow("b", size, crc)
    assert check_file(FILES, target, row, nothing) == ""
    assert "has 3000000 bytes" in check_file(FILES, target, row._replace(bytes=5), nothing)
    with open(target, "r+b") as file:
        file.seek(2_000_000)
        byte = file.read(1)[0]
        file.seek(2_000_000)
        file.write(bytes([byte ^ 1]))
    assert "checksum" in check_file(FILES, target, row, nothing)
    os.unlink(target)
    assert "cannot be opened" in check_file(FILES, target, row, nothing)
    assert (
        copy_file(FILES, source, target, 1_500_000, nothing)[0]
        == os.stat(target).st_size
        == 1_500_000
    )
    with pytest.raises(Damaged, match="were synced"):
        copy_file(FILES, source, str(tmp_path / "c"), 3_000_001, nothing)


def sealed(seed: bytes, size: int = 1000) -> bytes:
    return seed * 128 + bytes(size) + b"ZSQF" + seed * 60


@pytest.mark.parametrize(
    ("old", "new", "linked"),
    [
        (sealed(b"1"), sealed(b"1"), True),
        (sealed(b"1"), sealed(b"2"), False),
        (sealed(b"1"), sealed(b"1", 1001), False),
        (b"1" * 1192, b"1" * 1192, False),
        (sealed(b"1")[-150:], sealed(b"1")[-150:], False),
    ],
    ids=["the same", "another seed", "longer", "not sealed", "too short"],
)  # fmt: skip
def test_a_sealed_chunk_is_not_copied_twice(
    old: bytes, new: bytes, linked: bool, tmp_path: Path
) -> None:
    for folder, data in (("live", old), ("one/data", b""), ("two", b"")):
        (tmp_path / folder / "topics/000001").mkdir(parents=True)
        if data:
            (tmp_path / folder / CHUNK).write_bytes(data)
    os.rmdir(tmp_path / "one/data/topics/000001")
    first = Writer(FILES, str(tmp_path / "one/data"), nothing)
    first.copy(str(tmp_path / "live" / CHUNK), CHUNK)
    first.copy(str(tmp_path / "live" / CHUNK), "topics/000001/other")
    (tmp_path / "live" / CHUNK).write_bytes(new)
    second = Writer(
        FILES, str(tmp_path / "two"), nothing, (str(tmp_path / "one"), manifest(*first.rows))
    )
    row = second.copy(str(tmp_path / "live" / CHUNK), CHUNK)
    assert row.linked is linked
    assert (os.stat(tmp_path / "two" / CHUNK).st_nlink == 2) is linked
    assert (tmp_path / "two" / CHUNK).read_bytes() == new
    assert check_file(FILES, str(tmp_path / "two" / CHUNK), row, nothing) == ""
    assert not second.copy(str(tmp_path / "live" / CHUNK), "topics/000001/other").linked, (
        "only chunks never change"
    )
    assert (
        not Writer(
            FILES, str(tmp_path / "two"), nothing, (str(tmp_path / "one"), manifest(*first.rows))
        )
        .copy(str(tmp_path / "live" / CHUNK), "topics/000001/00000000000000000009.chunk", len(new))
        .linked
    )


def test_folders_are_made_synced_and_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(Files, "sync_folder", lambda self, path: synced.append(path))
    writer = Writer(FILES, str(tmp_path), nothing)
    writer.write("topics/000001/state/data.mdb", b"x")
    writer.write("topics/000002/topic", b"y")
    writer.drop("topics/000001")
    writer.write("registry.json", b"{}")
    writer.finish()
    assert [row.path for row in writer.rows] == ["topics/000002/topic", "registry.json"]
    assert sorted(walk(FILES, str(tmp_path))) == ["registry.json", "topics/000002/topic"]
    assert synced == [str(tmp_path), f"{tmp_path}/topics", f"{tmp_path}/topics/000002"]
    assert list(walk(FILES, str(tmp_path), ("topics",))) == ["registry.json"]
