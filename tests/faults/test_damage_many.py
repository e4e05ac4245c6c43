"""Tests with thousands of flipped bits, and with other damage that a disk or a person can do to a
topic's files. The cases in the list below once broke a promise.
"""

from __future__ import annotations

import sys

import pytest
from faults import damage
from faults.damage_lives import RICH, TINY, make

pytestmark = pytest.mark.slow

FLIPS = 4_000
LMDB_FLIPS = 500
OTHERS = 600
SEED = 1


def test_some_flipped_bits_and_other_damage_break_no_promise() -> None:
    summary = damage.run(60, 20, 12, SEED + 1, 1, sys.stdout)
    assert not summary.violations, summary.violations[0]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_thousands_of_flipped_bits_break_no_promise() -> None:
    """The cases run in a separate process, because LMDB may crash it. A violation says how to
    repeat its case.
    """
    summary = damage.run(FLIPS, OTHERS, LMDB_FLIPS, SEED, 1, sys.stdout)
    damage.report(summary, 0, SEED, 1, sys.stdout)
    assert not summary.violations, summary.violations[0]
    assert sum(summary.total("flip ").values()) >= FLIPS
    assert sum(summary.total("flip in LMDB ").values()) >= LMDB_FLIPS - 20
    assert sum(summary.total().values()) >= FLIPS + LMDB_FLIPS + OTHERS - 100
    assert set(summary.total()) >= {"harmless", "lost", "told", "rebuilt", "refused"}, (
        "not all that can come of damage was seen"
    )


def test_a_specimen_has_all_kinds_and_is_the_same_each_time(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("specimens")
    rich, again = (make(RICH, f"{folder}/{number}") for number in range(2))
    assert rich.tree == again.tree
    assert rich.staged
    assert rich.delayed
    assert rich.unfinished
    assert rich.transactions
    assert len(rich.chunks()) > 4
    bits = {
        1 << bit
        for block in rich.blocks.values()
        for bit in range(7)
        if block.header.columns >> bit & 1
    }
    assert bits == {1, 2, 4, 8, 16, 32}, "columns and bitmaps"
    flags = {rich.tree[block.path][block.position + 6] for block in rich.blocks.values()}
    assert {0, 16, 64} <= flags, "groups, and what was published with a delay"
    assert len(make(TINY, f"{folder}/tiny").chunks()) == 3


@pytest.mark.parametrize(
    "case",
    [
        # An adopted chunk ends within its own header. The start was refused.
        "1|cut|00000000000000000049.chunk|74",
        # A block is stored twice. It was read twice, and the end of the log was moved back.
        "0|again|00000000000000000000.chunk|0",
        "0|copy|00000000000000000000.chunk|0|1",  # a block was written over another one
        # A copy of a chunk has an offset in the middle of another chunk as its name. The messages
        # of the other chunk counted as lost.
        "0|double|00000000000000000000.chunk|3",
        # Fsck mistook this for damage that was known already.
        "3|copy|00000000000000000000.chunk|0|1",
        # An adopted chunk has a bad block before its bad end.
        "1|garbage|00000000000000000049.chunk|792|512",
        "1|gone|delayed/",  # the folder is missing; the loss was not noticed
        # The file is an older one; a start rebuilt the state, but fsck found nothing.
        "1|stale|state/data.mdb|2",
        # The flipped bit is in the name of a deferred row. This row and the rows after it were left
        # out when they were read by offset.
        "1|flip|state/data.mdb|123273",
        # The flipped bit is in the number that a page contains of itself. A start crashed, and fsck
        # found nothing.
        "2|flip|state/data.mdb|98306",
        # The flipped bit is in the size of a row. Every start failed again when it deleted the row.
        "2|flip|delayed/data.mdb|191496",
        # The flipped bit is in the header of a page. LMDB's Python binding raised an error that
        # does not mention damage.
        "3|flip|delayed/data.mdb|98424",
    ],
)
def test_each_damage_that_once_broke_a_promise_is_handled_now(
    case: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert damage.replay(case, str(tmp_path_factory.mktemp("damage"))) == 0
