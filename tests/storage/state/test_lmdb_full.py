"""Tests of LMDB on a full disk. If there is no space for its data pages, the commit has changed
nothing. If there is none for the meta page, the outcome is unknown, and the store has failed.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from support.lmdb_calls import LmdbCall, LmdbCalls

from zsq.storage.delayed.delayed import DelayedStore
from zsq.storage.errors import DiskFull, StoreFailed
from zsq.storage.state.state import StateBatch, StateStore
from zsq.transport.block.block import pack

CODES = [errno.ENOSPC, errno.EDQUOT]


class Disk:
    """A disk that is full for some calls. `full`: the kind of calls that fail. "head" means writes
    of LMDB's meta page.
    """

    def __init__(self, code: int) -> None:
        self.code = code
        self.full = ""

    def __call__(self, call: LmdbCall) -> int:
        kind = "head" if call.durable else call.kind
        return self.code if kind == self.full else 0


@pytest.mark.parametrize("code", CODES)
def test_a_commit_that_finds_no_space_is_tried_again(tmp_path: Path, code: int) -> None:
    disk = Disk(code)
    with LmdbCalls(disk):
        state = StateStore(str(tmp_path), create=True)
        state.create(bytes(16), 0)
        for disk.full in ("write", "sync"):
            with pytest.raises(DiskFull):
                state.commit(StateBatch(paused_end=5))
            assert state.load().paused_end == -1
        disk.full = ""
        state.commit(StateBatch(paused_end=5))
        assert state.load().paused_end == 5
        state.close()


@pytest.mark.parametrize("code", CODES)
def test_a_commit_whose_head_finds_no_space_ends_the_store(tmp_path: Path, code: int) -> None:
    disk = Disk(code)
    with LmdbCalls(disk):
        state = StateStore(str(tmp_path), create=True)
        state.create(bytes(16), 0)
        disk.full = "head"
        with pytest.raises(StoreFailed):
            state.commit(StateBatch(paused_end=5))
        disk.full = ""
        with pytest.raises(StoreFailed):
            state.commit(StateBatch(paused_end=5))
        state.close()


@pytest.mark.parametrize("code", CODES)
def test_a_full_disk_refuses_a_delayed_message_and_stores_it_later(
    tmp_path: Path, code: int
) -> None:
    disk = Disk(code)
    one, two = (pack([b"a"], producer_id=1, sequence=sequence) for sequence in (0, 1))
    with LmdbCalls(disk):
        delayed = DelayedStore(str(tmp_path), bytes(16), create=True)
        for disk.full in ("write", "sync"):
            with pytest.raises(DiskFull):
                delayed.put([(one, 5)], 1)
        disk.full = ""
        delayed.put([(one, 5)], 1)
        disk.full = "head"
        with pytest.raises(StoreFailed):
            delayed.put([(two, 5)], 1)
        delayed.close()


def test_a_store_that_cannot_be_created_raises_the_reason(tmp_path: Path) -> None:
    disk = Disk(errno.ENOSPC)
    with LmdbCalls(disk):
        state = StateStore(str(tmp_path), create=True)
        disk.full = "sync"
        with pytest.raises(DiskFull):
            state.create(bytes(16), 0)
        state.close()
