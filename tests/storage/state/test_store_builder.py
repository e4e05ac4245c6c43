"""Tests of building a store again: its frames, its limits, and what is durable at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.lmdb_calls import LmdbCall, LmdbCalls
from support.row_copy import build_store, stored_rows

from zsq.storage import environment
from zsq.storage.errors import Damaged, DiskFull, StoreFailed
from zsq.storage.files import Files
from zsq.storage.row_changes import (
    DELAYED,
    DELAYED_BEGIN,
    DELAYED_NONE,
    STATE,
    STATE_BEGIN,
    Frame,
)
from zsq.storage.state import store_builder
from zsq.storage.state.store_builder import StoreBuilder

STREAM = [
    Frame(STATE_BEGIN, [(b"a", b"1"), (b"b", b"2")]),
    Frame(DELAYED_BEGIN, [(b"x", b"3")]),
    Frame(STATE, [(b"a", None), (b"c", b"4"), (b"missing", None)]),
    Frame(DELAYED, [(b"y", b"5"), (b"x", b"6")]),
]


def test_one_stream_builds_both_stores(tmp_path: Path, files: Files) -> None:
    builders = [
        StoreBuilder(files, str(tmp_path / name), kind)
        for name, kind in (("state", STATE), ("delayed", DELAYED))
    ]
    for frame in STREAM:
        for builder in builders:
            builder.take(frame)
    assert [builder.finish() for builder in builders] == [True, True]
    assert stored_rows(str(tmp_path / "state")) == [(b"b", b"2"), (b"c", b"4")]
    assert stored_rows(str(tmp_path / "delayed")) == [(b"x", b"6"), (b"y", b"5")]
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["data.mdb"]


def test_a_second_dump_replaces_all_rows(tmp_path: Path, files: Files) -> None:
    path = str(tmp_path / "state")
    assert build_store(files, path, STATE, [*STREAM, Frame(STATE_BEGIN, [(b"z", b"")])])
    assert stored_rows(path) == [(b"z", b"")]


def test_a_topic_may_have_no_delayed_store(tmp_path: Path, files: Files) -> None:
    path = str(tmp_path / "delayed")
    none = Frame(DELAYED_NONE, [])
    assert not build_store(files, path, DELAYED, [none])
    assert not build_store(files, path, DELAYED, [*STREAM, none])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Damaged, match="before the dump"):
        build_store(files, path, DELAYED, [*STREAM, none, STREAM[-1]])
    assert build_store(files, path, DELAYED, [none, *STREAM])
    assert stored_rows(path) == [(b"x", b"6"), (b"y", b"5")]


def test_a_stream_without_a_dump_builds_nothing(tmp_path: Path, files: Files) -> None:
    path = str(tmp_path / "state")
    with pytest.raises(Damaged, match="before the dump"):
        build_store(files, path, STATE, STREAM[2:])
    with pytest.raises(Damaged, match="no dump"):
        build_store(files, path, STATE, [STREAM[1], Frame(DELAYED_NONE, [])])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_left_alone(tmp_path: Path, files: Files) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "data.mdb").write_bytes(b"precious")
    with pytest.raises(StoreFailed, match="could not be built"):
        build_store(files, str(tmp_path / "state"), STATE, STREAM)
    assert (tmp_path / "state" / "data.mdb").read_bytes() == b"precious"


def test_the_map_grows_and_commits_are_bounded(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(b"%05d" % number, bytes(700)) for number in range(2_000)]
    monkeypatch.setattr(store_builder, "COMMIT_BYTES", 100_000)
    monkeypatch.setattr(store_builder, "COMMIT_ROWS", 120)
    builder = StoreBuilder(files, str(tmp_path / "state"), STATE, 1 << 15)
    builder.take(Frame(STATE_BEGIN, [*rows]))
    builder.take(Frame(STATE, [(b"large", bytes(9 << 20)), *((key, None) for key, _ in rows[::2])]))
    assert builder.finish()
    assert stored_rows(str(tmp_path / "state")) == [*rows[1::2], (b"large", bytes(9 << 20))]
    monkeypatch.setattr(environment, "MAP_BYTES_MAX", 1 << 20)
    builder = StoreBuilder(files, str(tmp_path / "other"), STATE, 1 << 15)
    with pytest.raises(DiskFull, match="limit of 1048576 bytes"):
        builder.take(Frame(STATE_BEGIN, [*rows]))
    builder.close()
    assert len(stored_rows(str(tmp_path / "other"))) >= 120


def test_all_is_synced_at_the_end(tmp_path: Path) -> None:
    calls: list[str] = []

    class Watched(Files):
        def sync_folder(self, path: str) -> None:
            calls.append("folder")
            super().sync_folder(path)

    def seen(call: LmdbCall) -> int:
        calls.append(call.kind)
        return 0

    with LmdbCalls(seen):
        assert build_store(Watched(), str(tmp_path / "state"), STATE, STREAM)
    assert "write" in calls
    assert calls[-2:] == ["sync", "folder"]
    assert calls.count("sync") == 1, "one sync at the end is enough"


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_full_disk_is_reported(tmp_path: Path, files: Files, kind: str) -> None:
    with LmdbCalls(lambda call: 28 if call.kind == kind else 0), pytest.raises(DiskFull):
        build_store(files, str(tmp_path / "state"), STATE, STREAM)


def test_a_system_error_is_translated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, path: str) -> None:
        raise OSError(5, "by plan")

    monkeypatch.setattr(Files, "sync_folder", refuse)
    with pytest.raises(StoreFailed, match="by plan"):
        build_store(Files(), str(tmp_path / "state"), STATE, STREAM)
