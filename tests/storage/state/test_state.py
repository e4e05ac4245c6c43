"""Tests of the state store: what is committed is read again, damage is reported, and a full map
grows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zsq.storage.errors import Damaged, DiskFull, ForeignDirectory
from zsq.storage.log.transactions import StagedFile, StageRow, TransactionRow
from zsq.storage.rows import wrap
from zsq.storage.state import state_transaction
from zsq.storage.state.channel_row import ChannelRow
from zsq.storage.state.state import (
    DeferredTotal,
    HoleRow,
    ProducerRow,
    StateBatch,
    StateStore,
    Table,
    producer_after,
)
from zsq.storage.state.state_rows import RECENT_MAX, deferred_key, due_key

UUID = bytes(range(16))
ROW = ChannelRow(10, created_ns=5, counters={"finished": 7})


@pytest.fixture
def state(tmp_path: Path) -> StateStore:
    return fresh(tmp_path)


def fresh(folder: Path, map_bytes: int = 1 << 20) -> StateStore:
    store = StateStore(str(folder), map_bytes, create=True)
    store.create(UUID, waiting=4)
    return store


def test_a_new_store_begins_at_its_first_offset(state: StateStore) -> None:
    assert state.load() == Table(applied_offset=4, synced_end=4, waiting=4, start=4)
    assert state.uuid() == UUID


def test_rows_of_every_kind_come_back_as_committed(state: StateStore, tmp_path: Path) -> None:
    producer = ProducerRow(9, 100, ((7, 70), (8, 80)))
    stage = StageRow(
        "query", 7, "app", 1, 2, 6, 800, 2**32 - 1, True, (StagedFile(3, 9, 2, 6, 928),), 50
    )
    transaction = TransactionRow(7, "app", 12, 6, 90)
    state.commit(
        StateBatch(
            stage_puts={b"s" * 16: stage, b"t" * 16: stage._replace(files=())},
            transactions={"query": transaction, "jöb": transaction._replace(kind="job")},

            channel_puts={"a": ROW, "a.b": replace(ROW, created_ns=4)},
            hole_puts=[("a", 5, 2, 1, 0), ("a", 300, 1, 2, 0), ("a.b", 5, 1, 1, 0)],
            producers={2**63 + 1: producer},
            applied_offset=20, paused_end=15, waiting=6,
        )
    )  # fmt: skip
    state.close()
    state = StateStore(str(tmp_path))
    table = state.load()
    assert table.channels == {"a": ROW, "a.b": replace(ROW, created_ns=4)}
    assert table.holes == {
        "a": [HoleRow(5, 2, 1, 0), HoleRow(300, 1, 2, 0)],
        "a.b": [HoleRow(5, 1, 1, 0)],
    }
    assert table.producers == {2**63 + 1: producer}
    assert table.stages == {b"s" * 16: stage, b"t" * 16: stage._replace(files=())}
    assert table.stages[b"s" * 16].files[0].data_end == 928
    assert table.transactions == {"query": transaction, "jöb": transaction._replace(kind="job")}
    assert (table.applied_offset, table.synced_end, table.paused_end, table.waiting) == (
        20,
        20,
        15,
        6,
    )
    gone = StateBatch(
        stage_gones=[b"s" * 16, b"t" * 16, b"u" * 16], transactions_gone=["query", "jöb", "nobody"]
    )
    state.commit(gone)
    state.commit(
        StateBatch(
            channel_drops=["a"],
            hole_gones=[("a.b", 5), ("nobody", 1)],
            producers_gone=[2**63 + 1, 5],
            paused_end=-1,
        )
    )
    assert state.load() == Table(
        channels={"a.b": replace(ROW, created_ns=4)},
        applied_offset=20,
        synced_end=20,
        waiting=6,
        start=4,
    )


def test_a_dropped_channel_may_be_made_again_in_the_same_commit(state: StateStore) -> None:
    state.commit(StateBatch(channel_puts={"a": ROW}, hole_puts=[("a", 1, 1, 1, 0)]))
    state.commit(StateBatch(channel_drops=["a"], channel_puts={"a": replace(ROW, created_ns=9)}))
    assert state.load().channels == {"a": replace(ROW, created_ns=9)}
    assert state.load().holes == {}


def test_a_full_map_grows(tmp_path: Path) -> None:
    state = fresh(tmp_path, 64 * 1024)
    for turn in range(5):
        state.commit(
            StateBatch(hole_puts=[("c", turn * 10_000 + i, 1, 1, 0) for i in range(2_000)])
        )
    assert state.map_bytes > 64 * 1024
    assert len(state.load().holes["c"]) == 10_000
    state.close()
    state = StateStore(str(tmp_path), 64 * 1024)
    assert len(state.load().holes["c"]) == 10_000
    state.commit(StateBatch(hole_puts=[("d", i, 1, 1, 0) for i in range(5_000)]))
    assert len(state.load().holes["d"]) == 5_000


def test_a_map_at_its_limit_refuses_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zsq.storage.environment.MAP_BYTES_MAX", 128 * 1024)
    state = fresh(tmp_path, 64 * 1024)
    state.commit(StateBatch(hole_puts=[("c", 1, 1, 1, 0)]))
    with pytest.raises(DiskFull, match="limit of 131072 bytes"):
        state.commit(StateBatch(hole_puts=[("c", 10 + i, 1, 1, 0) for i in range(5_000)]))
    assert state.map_bytes == 128 * 1024
    assert len(state.load().holes["c"]) == 1
    state.commit(StateBatch(hole_puts=[("c", 2, 1, 1, 0)]))
    assert len(state.load().holes["c"]) == 2
    state.close()


def tamper(folder: Path, change: Any) -> None:
    env = lmdb.open(str(folder), lock=False)
    with env.begin(write=True) as txn:
        change(txn)
    env.close()


def keys(txn: Any) -> list[bytes]:
    return [bytes(key) for key in txn.cursor().iternext(keys=True, values=False)]


def test_each_flipped_bit_of_a_value_is_detected(state: StateStore, tmp_path: Path) -> None:
    state.commit(
        StateBatch(
            channel_puts={"a": ROW},
            hole_puts=[("a", 5, 2, 1, 0)],
            producers={1: ProducerRow(1, 2, ((0, 0),))},
        )
    )
    state.close()
    values: dict[bytes, bytes] = {}
    tamper(tmp_path, lambda txn: values.update({key: bytes(txn.get(key)) for key in keys(txn)}))
    assert len(values) == 4
    for key, value in values.items():
        for bit in range(len(value) * 8):
            changed = bytearray(value)
            changed[bit >> 3] ^= 1 << (bit & 7)
            tamper(tmp_path, lambda txn, key=key, changed=changed: txn.put(key, bytes(changed)))
            store = StateStore(str(tmp_path))
            with pytest.raises(Damaged):
                store.load()
            store.close()
        tamper(tmp_path, lambda txn, key=key, value=value: txn.put(key, value))
    store = StateStore(str(tmp_path))
    assert store.load().channels == {"a": ROW}


@pytest.mark.parametrize("what", ["gone", "moved", "old", "doubled", "swapped"])
def test_rows_that_vanish_move_or_come_back(state: StateStore, tmp_path: Path, what: str) -> None:
    """Each value is correct in itself. Only the sum over all rows, or the key inside the value,
    shows the change.
    """
    state.commit(StateBatch(hole_puts=[("a", 5, 2, 1, 0), ("a", 9, 2, 1, 0)]))
    state.close()
    old: list[bytes] = []
    first = b"ha\0" + (5).to_bytes(8, "big")
    second = b"ha\0" + (9).to_bytes(8, "big")
    tamper(tmp_path, lambda txn: old.append(bytes(txn.get(first))))
    state = StateStore(str(tmp_path))
    state.commit(StateBatch(hole_puts=[("a", 5, 1, 2, 0)]))
    state.close()
    changes: dict[str, Any] = {
        "gone": lambda txn: txn.delete(first),
        "moved": lambda txn: txn.put(second, bytes(txn.get(first))),
        "old": lambda txn: txn.put(first, old[0]),
        "doubled": lambda txn: txn.put(b"ha\0" + (6).to_bytes(8, "big"), old[0]),
    }
    changes["swapped"] = lambda txn: (
        txn.put(b"x", txn.get(first)),
        txn.put(first, txn.get(second)),
        txn.put(second, txn.pop(b"x")),
    )
    tamper(tmp_path, changes[what])
    state = StateStore(str(tmp_path))
    with pytest.raises(Damaged):
        state.load()


def test_a_missing_or_garbage_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ForeignDirectory):
        StateStore(str(tmp_path / "none"))
    folder = tmp_path / "garbage"
    folder.mkdir()
    (folder / "data.mdb").write_bytes(b"garbage" * 4096)
    with pytest.raises(Damaged):
        StateStore(str(folder)).load()


def test_a_producer_row_remembers_its_last_blocks() -> None:
    row = None
    for sequence in range(RECENT_MAX + 5):
        row = producer_after(row, sequence, sequence * 10, 1_000 + sequence)
    assert row is not None
    assert row.next_sequence == RECENT_MAX + 5
    assert row.used_ns == 1_000 + RECENT_MAX + 4
    assert row.recent == tuple((i, i * 10) for i in range(5, RECENT_MAX + 5))


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("hole"), st.sampled_from("ab"), st.integers(0, 5), st.integers(1, 9)),
        st.tuples(st.just("gone"), st.sampled_from("ab"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("drop"), st.sampled_from("ab"), st.just(0), st.just(0)),
        st.tuples(st.just("channel"), st.sampled_from("ab"), st.integers(0, 5), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=30, deadline=None)
@given(operations=OPERATIONS)
def test_the_store_agrees_with_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, str, int, int]]
) -> None:
    state = fresh(tmp_path_factory.mktemp("state"))
    channels: dict[str, ChannelRow] = {}
    holes: dict[tuple[str, int], HoleRow] = {}
    for kind, name, number, count in operations:
        if kind == "hole":
            holes[name, number] = HoleRow(number, count, 1, 0)
            state.commit(StateBatch(hole_puts=[(name, number, count, 1, 0)]))
        elif kind == "gone":
            holes.pop((name, number), None)
            state.commit(StateBatch(hole_gones=[(name, number)]))
        elif kind == "channel":
            channels[name] = ChannelRow(number)
            state.commit(StateBatch(channel_puts={name: channels[name]}))
        else:
            channels.pop(name, None)
            holes = {key: row for key, row in holes.items() if key[0] != name}
            state.commit(StateBatch(channel_drops=[name]))
    table = state.load()
    assert table.channels == channels
    assert {(name, row.start): row for name, rows in table.holes.items() for row in rows} == holes
    state.close()


# Deferred rows


def test_deferred_rows_lie_by_start_and_by_due_time(state: StateStore) -> None:
    state.commit(
        StateBatch(
            channel_puts={"c": ChannelRow(50)},
            hole_puts=[("c", i, 2, 3, 1_000 - i) for i in range(0, 20, 2)],
        )
    )
    total = state.load().deferred["c"]
    assert total == state.deferred("c") == DeferredTotal(10, 20, 0, 982)
    assert state.due("c", 985, 2) == ([HoleRow(18, 2, 3, 982), HoleRow(16, 2, 3, 984)], 986)
    state.commit(
        StateBatch(hole_puts=[("c", 0, 2, 4, 0), ("c", 18, 2, 3, 5)], hole_gones=[("c", 2)])
    )
    assert state.deferred("c") == DeferredTotal(8, 16, 4, 5)
    assert state.holes("c") == [HoleRow(0, 2, 4, 0)]
    state.commit(StateBatch(hole_puts=[("c", 0, 2, 4, 9)]))
    assert (state.holes("c"), state.first_unfinished("c")) == ([], 4), (
        "the store begins at 4: what lies below holds nothing back"
    )
    assert [row.start for row in state.deferred_rows("c")] == [0, *range(4, 20, 2)]
    state.commit(StateBatch(deferred_clears=["c"]))
    assert (state.load().deferred, state.first_unfinished("c"), state.due("c", 10**18, 9)) == (
        {},
        50,
        ([], 0),
    )
    assert state.walk() == []


def test_a_row_that_lost_its_due_time_is_noticed_when_the_others_are_gone(
    state: StateStore, tmp_path: Path
) -> None:
    state.commit(
        StateBatch(
            channel_puts={"c": ChannelRow(50)}, hole_puts=[("c", i, 1, 1, 10 + i) for i in range(3)]
        )
    )
    state.close()
    key = due_key("c", 11, 1)
    tamper(
        tmp_path,
        lambda txn: (txn.pop(key), txn.put(due_key("c", 11, 7), wrap(due_key("c", 11, 7), b""))),
    )
    state = StateStore(str(tmp_path))
    with pytest.raises(Damaged):
        state.due("c", 100, 100)
    assert state.walk() != []


@pytest.mark.parametrize("how", ["clear", "drop"])
def test_many_are_cleared_at_once_and_removed_by_and_by(
    state: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(state_transaction, "CLEAR_ROWS_MAX", 10)
    monkeypatch.setattr(state_transaction, "COLLECT_ROWS_MAX", 30)
    rows = [("c", i, 1, 1, 10 + i) for i in range(100)]
    state.commit(
        StateBatch(
            channel_puts={"c": ChannelRow(500), "d": ChannelRow(5)},
            hole_puts=[*rows, ("d", 1, 1, 1, 5)],
        )
    )
    for turn in range(2):
        if how == "clear":
            state.commit(StateBatch(deferred_clears=["c"], hole_puts=[("c", 5, 1, 2, 7)]))
        else:
            state.commit(StateBatch(channel_drops=["c"]))
            assert "c" not in state.load().deferred
            state.commit(
                StateBatch(channel_puts={"c": ChannelRow(500)}, hole_puts=[("c", 5, 1, 2, 7)])
            )
        assert state.garbage
        assert state.due("c", 10**18, 1_000) == ([HoleRow(5, 1, 2, 7)], 0)
        assert list(state.deferred_rows("c")) == [HoleRow(5, 1, 2, 7)]
        assert state.load().deferred["c"] == DeferredTotal(1, 1, 5, 7)
        assert state.first_unfinished("c") == 5
        assert state.walk() == []
        state.commit(StateBatch(hole_puts=rows))
        state.close()
        state = StateStore(str(tmp_path))
        assert state.load().deferred["c"].rows == 100
        assert state.garbage == (turn == 1 or state.load().garbage > 0)
    commits = 0
    while state.garbage:
        commits += 1
        assert commits < 10
        state.commit(StateBatch())
    assert state.load().garbage == 0
    assert state.walk() == []
    assert state.deferred("c").rows == 100
    assert state.deferred("d").rows == 1


def flip_in_place(folder: Path, key: bytes, bit: int) -> None:
    """Flip a bit of a key where LMDB keeps it. The row stays in its place, so the keys are now in
    the wrong order.
    """
    data = bytearray((folder / "data.mdb").read_bytes())
    at = data.find(key)
    while at >= 0:
        # The value after the key begins with checksum, length and a copy of the key.
        if data[at + len(key) + 6 :].startswith(key):
            data[at + bit // 8] ^= 1 << bit % 8
        at = data.find(key, at + 1)
    (folder / "data.mdb").write_bytes(data)


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("bit", range(0, 128, 7))
def test_a_bit_in_a_due_time_defers_nothing_for_ever(
    state: StateStore, tmp_path: Path, row: int, bit: int
) -> None:
    state.commit(
        StateBatch(
            channel_puts={"c": ChannelRow(50)}, hole_puts=[("c", i, 1, 1, 10 + i) for i in range(3)]
        )
    )
    state.close()
    key = due_key("c", 10 + row, row)
    flip_in_place(tmp_path, key, bit + 8 * (len(key) - 16))
    state = StateStore(str(tmp_path))
    with pytest.raises(Damaged):
        state.due("c", 100, 100)
    if row == 0:
        with pytest.raises(Damaged):
            state.load()
    state.close()


@pytest.mark.parametrize("bit", range(0, 64, 5))
def test_a_bit_in_the_lowest_deferred_start_is_noticed(
    state: StateStore, tmp_path: Path, bit: int
) -> None:
    state.commit(
        StateBatch(
            channel_puts={"c": ChannelRow(50)},
            hole_puts=[("c", i, 1, 1, 100 - i) for i in range(20, 23)],
        )
    )
    state.close()
    key = deferred_key("c", 20)
    flip_in_place(tmp_path, key, bit + 8 * (len(key) - 8))
    state = StateStore(str(tmp_path))
    for read in (state.load, lambda: state.first_unfinished("c")):
        with pytest.raises(Damaged):
            read()
    state.close()


def found_of(state: StateStore, channel: str) -> list[Any]:
    """Return the result of each way to read the deferred rows, or None for a way that reports
    damage.
    """
    reads: list[Callable[[], object]] = [
        lambda: list(state.deferred_rows(channel)),
        lambda: state.first_unfinished(channel),
        lambda: state.due(channel, 20, 9),
        lambda: state.deferred(channel),
        lambda: state.load().deferred[channel],
    ]
    found: list[Any] = []
    for read in reads:
        try:
            found.append(read())
        except Damaged:
            found.append(None)
    return found


@pytest.mark.parametrize("name", ["bb", "cc", "dd"])
@pytest.mark.parametrize("row", [10, 11, 13, 14])
def test_a_bit_in_the_name_of_a_deferred_row_hides_none(
    state: StateStore, tmp_path: Path, name: str, row: int
) -> None:
    """The changed key could end the range of rows too early, let it begin too late, or mislead the
    search for another channel.
    """
    names = ["bb", "cc", "dd"]
    holes = [(one, start, 1, 1, 10 + start) for one in names for start in range(10, 15)]
    state.commit(StateBatch(channel_puts={one: ChannelRow(50) for one in names}, hole_puts=holes))
    state.close()
    sound = (tmp_path / "data.mdb").read_bytes()
    rows = [HoleRow(start, 1, 1, 10 + start) for start in range(10, 15)]
    true = [rows, 10, ([rows[0]], 21), DeferredTotal(5, 5, 10, 20), DeferredTotal(5, 5, 10, 20)]
    for key in (deferred_key(name, row), due_key(name, 10 + row, row)):
        for bit in range(8 * 4):
            (tmp_path / "data.mdb").write_bytes(sound)
            flip_in_place(tmp_path, key, bit)
            state = StateStore(str(tmp_path))
            for one in names:
                found = found_of(state, one)
                assert all(
                    is_ in (None, should) for is_, should in zip(found, true, strict=True)
                ), (key, bit, one, found)
            state.close()


def test_a_damaged_value_behind_a_due_time_is_noticed(state: StateStore, tmp_path: Path) -> None:
    state.commit(StateBatch(channel_puts={"c": ChannelRow(50)}, hole_puts=[("c", 1, 1, 1, 10)]))
    state.close()
    key = due_key("c", 10, 1)
    tamper(tmp_path, lambda txn: txn.put(key, b"x" + bytes(txn.get(key))[1:]))
    state = StateStore(str(tmp_path))
    with pytest.raises(Damaged):
        state.due("c", 100, 100)
    state.close()
