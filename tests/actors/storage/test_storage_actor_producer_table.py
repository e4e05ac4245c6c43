"""Tests of producers' rows in storage: each commit carries the rows that changed, and the number of
producers forgotten at once is bounded.
"""

from __future__ import annotations

import pytest

from zsq.actors.settings import options
from zsq.actors.storage.storage_actor import SEQUENCE_MAX, ProducerTable, checked
from zsq.storage.state.state import producer_after
from zsq.transport.block.block import DELAYED, IN_GROUP, MARK, Block, pack
from zsq.transport.block.block_format import ADDRESSED
from zsq.transport.errors import UsageError

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


def test_a_producer_that_was_away_for_a_week_is_forgotten() -> None:
    table = ProducerTable(
        {7: producer_after(None, 4, 40, S), 8: producer_after(None, 4, 40, S + 1)}
    )
    table.stored([(7, 5, 50)], S)
    assert table.take(S + WEEK + 1) == ({}, [7])
    assert len(table) == 1


def test_one_commit_forgets_at_most_a_thousand_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "PRODUCERS_MAX", 500)
    table = ProducerTable({})
    table.stored([(pid, 0, pid) for pid in range(100, 1_601)], S)
    table.stored([(50, 0, 9)], 0)
    rows, gone = table.take(2 * S)
    assert (len(gone), len(rows), gone[0]) == (1_000, 502, 50)
    assert table.take(3 * S) == ({}, [])


@pytest.mark.parametrize(
    "wrong",
    [
        {"sequence": (1 << 64) - 1},
        {"sequence": SEQUENCE_MAX},
        {"flags": IN_GROUP},
        {"flags": MARK},
        {"flags": DELAYED},
    ],
)
def test_blocks_that_recovery_would_misread_are_refused(wrong: dict[str, int]) -> None:
    """A producer's row cannot hold 2^64 as the next sequence. Recovery cuts off the log at a block
    of a group whose mark is missing.
    """
    good = [
        pack([b"x"], sequence=SEQUENCE_MAX - 1),
        Block(pack([b"x"]).header._replace(flags=ADDRESSED), b""),
    ]
    assert checked(good) is good
    with pytest.raises(UsageError, match="E_BAD_BLOCK"):
        checked([good[0], Block(good[0].header._replace(**wrong), b"")])
