"""Producers' rows in storage: each commit carries what changed, and the forgotten are bounded."""

from __future__ import annotations

import pytest

from zsq.actors import options
from zsq.actors.producer_table import ProducerTable
from zsq.storage.state import producer_after

S = 1_000_000_000
WEEK = options.PRODUCER_KEPT_S * S


def test_a_commit_carries_what_changed_since_the_last_one() -> None:
    table = ProducerTable({7: producer_after(None, 4, 40, S)})
    assert table.take(S) == ({}, [])
    table.stored([(7, 5, 50), (8, 0, 60)], 2 * S)
    assert table.changed == {7, 8}
    rows, gone = table.take(2 * S)
    assert ({pid: row.next_sequence for pid, row in rows.items()}, gone) == ({7: 6, 8: 1}, [])
    assert table.sequences()[7][0] == 6
    assert table.take(2 * S) == ({}, [])


def test_who_was_not_there_for_long_is_forgotten() -> None:
    table = ProducerTable({7: producer_after(None, 4, 40, S), 8: producer_after(None, 4, 40, S + 1)})
    table.stored([(7, 5, 50)], S)
    assert table.take(S + WEEK + 1) == ({}, [7])
    assert len(table) == 1


def test_too_many_are_forgotten_by_a_thousand_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "PRODUCERS_MAX", 500)
    table = ProducerTable({})
    table.stored([(pid, 0, pid) for pid in range(100, 1_601)], S)
    table.stored([(50, 0, 9)], 0)
    rows, gone = table.take(2 * S)
    assert (len(gone), len(rows), gone[0]) == (1_000, 502, 50)
    assert table.take(3 * S) == ({}, [])
