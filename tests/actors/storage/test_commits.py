"""Tests of what storage commits to the state store, in which order, and how a commit waits for the
log.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.stage_bench import Bench

from zsq.storage.errors import DiskFull
from zsq.storage.state.state import StateBatch
from zsq.transport.block.block import pack
from zsq.transport.errors import E_DISK_FULL, Refused


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    one = Bench(str(tmp_path / "t"))
    yield one
    one.store.close()


def test_commits_wait_for_the_log_and_are_repeated_in_order_on_a_full_disk(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = bench.state
    done: list[str] = []
    bench.store.log.append([pack([b"x"] * 5)], 1)
    bench.store.log.sync()
    state.cover(5)
    state.then(lambda: done.append("first"))
    assert state.waits_for_log(4)
    assert not state.waits_for_log(5)
    written: list[StateBatch] = []
    commit = bench.store.state.commit

    def full(batch: StateBatch) -> None:
        written.append(batch)
        if len(written) < 3:
            raise DiskFull("full")
        commit(batch)

    monkeypatch.setattr(bench.store.state, "commit", full)
    state.commit(5, {})
    state.then(lambda: done.append("second"))
    assert not state.may_commit()
    told: list[str] = []
    state.on_full.append(told.append)
    for _ in range(2):
        bench.state_thread.run()
        state.on_results()
        assert done == []
        assert "no space: full" in state.trouble
        assert told[-1] == state.trouble
        with pytest.raises(Refused) as refused:
            state.check_space()
        assert refused.value.code == E_DISK_FULL
        assert not state.may_commit(), "no later batch passes it"
        assert state.is_idle(), "a stop does not wait for space"
        state.retry()
        assert not state.is_idle()
    bench.state_thread.run()
    state.on_results()
    assert done == ["first"]
    assert state.trouble == ""
    state.check_space()
    assert written[0] is written[1] is written[2]
    assert state.applied == 5
    bench.commit_state()
    assert done == ["first", "second"]
    assert state.is_idle()


def test_of_two_changes_to_a_hole_the_later_one_is_committed(bench: Bench) -> None:
    state = bench.state
    state.put_hole("c", 5, (1, 1, 0))
    state.put_hole("c", 5, None)
    state.put_hole("c", 7, None)
    state.put_hole("c", 7, (2, 2, 0))
    state.put_hole("d", 1, (1, 1, 0))
    state.drop_channel("d")
    state.then(lambda: None)
    bench.commit_state()
    table = bench.store.state.load()
    assert {name: [tuple(hole) for hole in holes] for name, holes in table.holes.items()} == {
        "c": [(7, 2, 2, 0)]
    }
