"""Tests of the rows of ephemeral channels: they are kept in memory and give the same answers as the
state store.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from zsq.actors.storage.channels import MemoryRows
from zsq.storage.state.channel_row import ChannelRow
from zsq.storage.state.state import DeferredTotal, HoleRow
from zsq.transport.wire.protocol import Save

ROW = ChannelRow(5)


def save(
    *puts: tuple[int, int, int, int],
    gone: tuple[int, ...] = (),
    clear: bool = False,
    more: bool = False,
) -> Save:
    return Save(1, "c", {}, puts, gone, clear, more)


def made() -> MemoryRows:
    rows = MemoryRows()
    rows.make("c", ROW)
    return rows


def test_a_save_replaces_the_row_and_a_drop_removes_it() -> None:
    rows = made()
    rows.save("c", ChannelRow(9), [save()])
    assert rows.rows["c"] == ChannelRow(9)
    assert "c" in rows
    rows.drop("c")
    assert not rows
    assert "c" not in rows


def test_only_deferred_holes_are_kept() -> None:
    rows = made()
    rows.save("c", ROW, [save((1, 2, 1, 0), (3, 4, 1, 700), (7, 1, 2, 600))])
    assert rows.deferred("c") == DeferredTotal(2, 5, 3, 600)
    assert list(rows.deferred_rows("c")) == [HoleRow(3, 4, 1, 700), HoleRow(7, 1, 2, 600)]
    rows.save("c", ROW, [save((7, 1, 2, 0), gone=(3,))])
    assert rows.deferred("c") == DeferredTotal()


def test_clear_is_applied_before_the_puts_of_all_pages() -> None:
    rows = made()
    rows.save("c", ROW, [save((1, 1, 1, 100))])
    rows.save("c", ROW, [save((2, 1, 1, 200), clear=True), save((3, 1, 1, 300), clear=True)])
    assert rows.due("c", 1_000, 10) == ([HoleRow(2, 1, 1, 200), HoleRow(3, 1, 1, 300)], 0)


def test_a_channel_created_again_has_no_rows_of_the_old_one() -> None:
    rows = made()
    rows.save("c", ChannelRow(9), [save((1, 1, 1, 100))])
    rows.make("c", ChannelRow(20))
    assert (rows.rows["c"], rows.deferred("c").rows) == (ChannelRow(20), 0)


PUTS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 3), st.integers(1, 3), st.integers(0, 40)),
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(
    PUTS,
    st.lists(st.integers(0, 9), max_size=4),
    st.integers(0, 40),
    st.integers(0, 6),
)
def test_due_rows_are_those_that_a_plain_model_returns(
    puts: list[Any], gone: list[int], until: int, limit: int
) -> None:
    """A simple model returns what `StateStore.due` promises: the rows that are due, at most
    `limit`, and the due time of the next row.
    """
    rows = made()
    kept: dict[int, HoleRow] = {}
    rows.save("c", ROW, [save(*puts), save(gone=tuple(gone))])
    for start, count, attempts, due_ns in puts:
        kept.pop(start, None)
        if due_ns:
            kept[start] = HoleRow(start, count, attempts, due_ns)
    for start in gone:
        kept.pop(start, None)
    named, following = rows.due("c", until, limit)
    by_due = sorted(kept.values(), key=lambda row: (row.due_ns, row.start))
    assert named == [row for row in by_due if row.due_ns <= until][:limit]
    assert following == min((row.due_ns for row in by_due if row not in named), default=0)


def test_due_rows_are_those_that_the_state_store_returns(tmp_path: Path) -> None:
    from zsq.storage.state.state import StateBatch, StateStore

    puts = [(start, 1, 1, due) for start, due in enumerate((50, 10, 30, 30, 900, 20, 950))]
    (tmp_path / "state").mkdir()
    store = StateStore(str(tmp_path / "state"), create=True)
    store.create(b"u" * 16, 0)
    store.commit(
        StateBatch(channel_puts={"c": ChannelRow(9)}, hole_puts=[("c", *put) for put in puts])
    )
    rows = made()
    rows.save("c", ROW, [save(*puts)])
    try:
        for until in (0, 10, 30, 49, 60):
            for limit in (0, 1, 3, 5, 9):
                found, following = rows.due("c", until, limit)
                expected, then = store.due("c", until, limit)
                assert (sorted(found), following) == (sorted(expected), then), (until, limit)
    finally:
        store.close()
