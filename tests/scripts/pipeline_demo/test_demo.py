"""Tests of the demo's check: it must find a lost, doubled or altered row, by its content."""

from __future__ import annotations

from typing import Final

import pytest

from pipeline_demo.flights import (
    COLUMNS,
    Carrier,
    Tally,
    add_up,
    add_up_hours,
    carrier_of,
    message_of,
    number_of,
)

HEAD: Final = ",".join(COLUMNS[1:]).encode()
ROWS: Final = [
    b"2013,1,1,517,515,2,830,819,%s,%s,1545,N14228" % row
    for row in ((b"11", b"UA"), (b"-4", b"AA"), (b"", b"UA"), (b"20", b"UA"))
]
BODIES: Final = [message_of(number, row) for number, row in enumerate(ROWS)]


def test_a_message_has_its_number_and_its_row() -> None:
    assert BODIES[1].startswith(b"1,2013,1,1,")
    assert [number_of(body) for body in BODIES] == [0, 1, 2, 3]
    assert [carrier_of(row) for row in ROWS] == [b"UA", b"AA", b"UA", b"UA"]


def test_rows_are_added_up_by_carrier() -> None:
    found = add_up(ROWS)
    assert found == {"UA": Carrier(3, 2, 31), "AA": Carrier(1, 1, -4)}
    assert found["UA"].mean_delay_minutes == 15.5
    assert Carrier().mean_delay_minutes == 0.0


def test_the_tally_agrees_when_all_is_there() -> None:
    tally = Tally(BODIES)
    tally.add(reversed(BODIES))
    assert tally.exactly_once
    tally.add(BODIES[:1])
    assert tally.complete
    assert not tally.exactly_once
    assert (tally.missing, tally.repeated, tally.strangers) == (0, 1, 0)


@pytest.mark.parametrize(
    "stranger", [b"0,2013,another row", b"no number", b"", b"99," + ROWS[0], b"-1," + ROWS[3]]
)
def test_the_tally_finds_what_is_lost_or_altered(stranger: bytes) -> None:
    tally = Tally(BODIES)
    tally.add([*BODIES[1:], stranger])
    assert (tally.missing, tally.repeated, tally.strangers) == (1, 0, 1)
    assert not tally.complete


def test_rows_are_added_up_by_hour_and_carrier() -> None:
    late = b"2013,12,31,NA,2359,NA,NA,5,NA,UA,1,N1"
    found = add_up_hours([*ROWS, late])
    assert found[("2013-01-01 05", "UA")] == Carrier(3, 2, 31)
    assert found[("2013-12-31 23", "UA")] == Carrier(1, 0, 0)
