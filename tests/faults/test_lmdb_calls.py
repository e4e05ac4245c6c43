"""Tests of the hook for LMDB's calls: the hook sees the calls in order, and makes those fail that a
test chooses.
"""

from __future__ import annotations

import errno
from pathlib import Path

import lmdb
import pytest
from support.lmdb_calls import LmdbCall, LmdbCalls


def put(env: lmdb.Environment, count: int) -> None:
    with env.begin(write=True) as transaction:
        for number in range(count):
            transaction.put(b"%d" % number, b"x" * 500)


def test_a_commit_is_pages_then_a_sync_then_a_durable_meta_page(tmp_path: Path) -> None:
    seen: list[LmdbCall] = []

    def see(call: LmdbCall) -> int:
        seen.append(call)
        return 0

    with LmdbCalls(see), lmdb.open(str(tmp_path / "one")) as env:
        seen.clear()
        put(env, 100)
        kinds = [(call.kind, call.durable) for call in seen]
        synced = kinds.index(("sync", False))
        assert synced > 0
        assert set(kinds[:synced]) == {("write", False)}
        assert kinds[synced + 1 :] == [("write", True)]
        assert sum(len(call.data) for call in seen[:synced]) > 50_000
    count = len(seen)
    with lmdb.open(str(tmp_path / "two")) as env:
        put(env, 1)
    assert len(seen) == count, "the table is as it was"


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_call_fails_where_it_is_told_to(tmp_path: Path, kind: str) -> None:
    failing = False
    with (
        LmdbCalls(lambda call: errno.ENOSPC if failing and call.kind == kind else 0),
        lmdb.open(str(tmp_path)) as env,
    ):
        put(env, 1)
        failing = True
        with pytest.raises(lmdb.Error, match="No space left"):
            put(env, 3)
        failing = False
        with env.begin() as transaction:
            assert transaction.get(b"2") is None


def test_replaying_the_calls_gives_the_same_file(tmp_path: Path) -> None:
    image = bytearray()

    def take(call: LmdbCall) -> int:
        if call.kind == "write" and call.path.endswith("data.mdb"):
            image.extend(bytes(max(0, call.position + len(call.data) - len(image))))
            image[call.position : call.position + len(call.data)] = call.data
        return 0

    with LmdbCalls(take), lmdb.open(str(tmp_path)) as env:
        for count in (3, 50, 7):
            put(env, count)
    found = (tmp_path / "data.mdb").read_bytes()
    assert found[: len(image)] == image
    assert not any(found[len(image) :])


def test_a_hook_that_fails_fails_the_call(tmp_path: Path) -> None:
    calls = LmdbCalls(lambda call: 0)
    with calls, lmdb.open(str(tmp_path)) as env:
        calls.hook = lambda call: len(call.data) // 0
        with pytest.raises(lmdb.Error, match="Input/output"):
            put(env, 1)
        assert isinstance(calls.error, ZeroDivisionError)
