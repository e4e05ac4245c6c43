"""Tests of what a primary owes to its standbys."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from zsq.actors.bucket.archive.primacy import Primacy
from zsq.actors.bucket.lease_cell import OVER, LeaseCell
from zsq.storage.bucket.shipping.standbys import (
    LOOK_S,
    NO_STANDBY,
    SOON_LOOK_S,
    SOON_LOOKS,
    Notice,
    terms_for,
)

S = 1_000_000_000
SLOW = Notice("a" * 32, "one", (), 10.0, 5)
FAST = Notice("b" * 32, "two", (), 2.0, 6)


@pytest.fixture
def cell(tmp_path: Path) -> LeaseCell:
    return LeaseCell(str(tmp_path), make=True)


@pytest.fixture
def primacy(cell: LeaseCell) -> Primacy:
    return Primacy(cell, ("tcp://one:4153",))


def test_without_a_standby_there_is_no_lease_and_no_heartbeat(
    primacy: Primacy, cell: LeaseCell
) -> None:
    assert not primacy.looked({})
    primacy.exists(5 * S, NO_STANDBY)
    assert cell.until_ns == 0
    assert primacy.beats_at(5 * S) == 0


def test_the_lease_is_there_before_a_tick_says_it(primacy: Primacy, cell: LeaseCell) -> None:
    primacy.exists(5 * S, NO_STANDBY)
    assert primacy.looked({"a": SLOW})
    assert cell.until_ns == 5 * S + terms_for(10.0).lease_ns
    assert primacy.beats_at(5 * S) == 7 * S
    primacy.exists(6 * S, primacy.terms)
    assert cell.until_ns == 6 * S + terms_for(10.0).lease_ns


def test_the_lease_is_over_before_the_first_tick_of_a_process_says_one(
    primacy: Primacy, cell: LeaseCell
) -> None:
    """An earlier process may have left the cell without a lease."""
    cell.write(0)
    primacy.begins(NO_STANDBY)
    assert cell.until_ns == 0
    primacy.begins(terms_for(10.0))
    assert cell.until_ns == OVER
    primacy.looked({"a": SLOW})
    primacy.exists(5 * S, primacy.terms)
    assert cell.until_ns == 12 * S


def test_a_lease_counts_from_the_begin_of_a_tick_and_never_goes_back(
    primacy: Primacy, cell: LeaseCell
) -> None:
    primacy.looked({"a": SLOW})
    for begun_s in (6, 9, 8):
        primacy.exists(begun_s * S, primacy.terms)
    assert cell.until_ns == 9 * S + terms_for(10.0).lease_ns


def test_a_less_patient_standby_makes_the_lease_shorter_at_once(
    primacy: Primacy, cell: LeaseCell
) -> None:
    primacy.looked({"a": SLOW})
    old = primacy.terms
    primacy.exists(6 * S, old)
    assert primacy.looked({"a": SLOW, "b": FAST})
    assert cell.until_ns == 6 * S + terms_for(2.0).lease_ns
    primacy.exists(7 * S, old)  # a tick that was begun before it was known
    assert cell.until_ns == 7 * S + terms_for(2.0).lease_ns


def test_the_lease_stays_until_a_tick_says_that_there_is_no_standby(
    primacy: Primacy, cell: LeaseCell
) -> None:
    primacy.looked({"a": SLOW})
    old = primacy.terms
    primacy.exists(6 * S, old)
    assert primacy.looked({})
    assert cell.until_ns == 6 * S + old.lease_ns
    primacy.exists(7 * S, old)
    assert cell.until_ns, "this tick has a lease"
    primacy.exists(8 * S, NO_STANDBY)
    assert cell.until_ns == 0


def test_a_tick_without_a_lease_does_not_end_a_newer_one(primacy: Primacy, cell: LeaseCell) -> None:
    primacy.looked({"a": SLOW})
    primacy.exists(6 * S, NO_STANDBY)  # it was begun before the standby was known
    assert cell.until_ns


def test_a_broker_that_has_lost_never_has_a_lease_again(primacy: Primacy, cell: LeaseCell) -> None:
    primacy.looked({"a": SLOW})
    primacy.exists(6 * S, primacy.terms)
    primacy.end()
    assert cell.until_ns == OVER
    primacy.exists(7 * S, primacy.terms)
    primacy.looked({})
    primacy.exists(8 * S, NO_STANDBY)
    assert cell.until_ns == OVER


def test_all_processes_know_the_patience_of_the_standby(primacy: Primacy, cell: LeaseCell) -> None:
    primacy.looked({})
    assert cell.patience_ns == 0
    primacy.begins(terms_for(10.0))
    assert cell.patience_ns == 10 * S
    primacy.looked({"a": SLOW, "b": FAST})
    assert cell.patience_ns == 2 * S
    primacy.looked({})
    assert cell.patience_ns == 2 * S, "the lease goes on until a tick says that there is no standby"


def test_the_addresses_of_all_standbys_are_known(primacy: Primacy) -> None:
    assert primacy.standby_addresses == ""
    primacy.looked(
        {
            "b": FAST._replace(addresses=("tcp://two:1", "tcp://both:1")),
            "a": SLOW._replace(addresses=("tcp://both:1", "tcp://one:1")),
        }
    )
    assert primacy.standby_addresses == "tcp://both:1,tcp://one:1,tcp://two:1"
    primacy.looked({})
    assert primacy.standby_addresses == ""


def looks(primacy: Primacy, begin_ns: int, end_ns: int) -> list[int]:
    """Return when it looks for standbys, if it is asked each 0.1 s."""
    return [now for now in range(begin_ns, end_ns, S // 10) if primacy.must_look(now)]


def test_a_primary_looks_often_at_first_and_then_from_time_to_time(primacy: Primacy) -> None:
    found = looks(primacy, S, 300 * S)
    soon, step = int(SOON_LOOK_S * S), int(LOOK_S * S)
    assert found[: SOON_LOOKS + 1] == [S + soon * index for index in range(SOON_LOOKS + 1)]
    later = found[SOON_LOOKS:]
    assert len(later) > 5
    assert all(two - one == step for one, two in itertools.pairwise(later))


def test_a_primary_looks_often_when_a_standby_is_gone(primacy: Primacy) -> None:
    primacy.looked({"a": SLOW, "b": FAST})
    last = looks(primacy, S, 300 * S)[-1]
    primacy.looked({"a": SLOW, "b": FAST})
    assert looks(primacy, last + 1, last + int(LOOK_S * S)) == []
    primacy.looked({"a": SLOW})
    begin = last + int(LOOK_S * S)
    soon = int(SOON_LOOK_S * S)
    assert looks(primacy, begin, begin + 3 * soon) == [begin, begin + soon, begin + 2 * soon]
