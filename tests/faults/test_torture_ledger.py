"""Tests of the torture's ledger (`support/torture`): it complains about each broken promise. A
complaint about anything else fails a torture.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.history import body_of
from support.torture import ledger as l
from support.torture.audit import Audit
from support.torture.ledger import SLOT, Ledger, Shape

C, D = 0, 1
SHAPE = Shape(
    slots=4, lanes=2, topics=("t", "u"), channels=((0, "c"), (1, "d")), consumers=2, ordered=D
)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger", SHAPE)


@pytest.fixture
def bodies(ledger: Ledger) -> list[bytes]:
    """Publish messages 512 to 521 (slot 1) to topic t, and return their bodies."""
    return ledger.open_slot(1, l.BLOCK, 0, 10)


def get(
    ledger: Ledger, bodies: list[bytes], consumer: int = 0, attempts: int = 1, first: int = 0
) -> tuple[list[int], list[int]]:
    return ledger.got(C, consumer, [(first, len(bodies), attempts)], bodies)


def store(audit: Audit, bodies: list[bytes], first: int = 0) -> None:
    for index, body in enumerate(bodies):
        audit._message(0, audit.topics[0], first + index, body)


def complaint(ledger: Ledger) -> str:
    found = ledger.complained()
    assert found, "nobody complained"
    return found[0]


def test_a_message_that_was_never_sent_is_reported(ledger: Ledger, bodies: list[bytes]) -> None:
    get(ledger, [body_of(2 * SLOT)])
    assert "never sent" in complaint(ledger)


def test_a_message_of_another_topic_is_reported(ledger: Ledger, bodies: list[bytes]) -> None:
    ledger.got(D, 0, [(0, 10, 1)], bodies)
    assert "never sent there" in complaint(ledger)


def test_a_changed_body_is_reported(ledger: Ledger, bodies: list[bytes]) -> None:
    assert get(ledger, [bodies[5][:-1] + b"y"])[0] == [-1]
    assert "changed" in complaint(ledger)


def test_a_delayed_message_that_is_early(ledger: Ledger) -> None:
    late = ledger.open_slot(2, l.DELAYED, 0, 1, time.time_ns() + 60_000_000_000)
    get(ledger, late)
    assert "before it is due" in complaint(ledger)


def test_attempts_that_fall_are_reported(ledger: Ledger, bodies: list[bytes]) -> None:
    get(ledger, bodies, attempts=3)
    get(ledger, bodies, attempts=2)
    assert "fell from 3 to 2" in complaint(ledger)


def test_an_offset_with_two_messages_is_reported(ledger: Ledger, bodies: list[bytes]) -> None:
    ledger.acknowledged(1, 0)
    get(ledger, bodies, first=1)
    assert "offset 1 named 513, and now c gets 512" in complaint(ledger)


def test_a_message_comes_again_after_its_own_confirmed_finish(
    ledger: Ledger, bodies: list[bytes]
) -> None:
    ledger.confirmed(C, 0, get(ledger, bodies)[0])
    get(ledger, bodies, attempts=2)
    assert "came again (attempt 2) to consumer 0, which had finished it" in complaint(ledger)


def test_a_finish_confirmed_to_two_consumers_is_reported(
    ledger: Ledger, bodies: list[bytes]
) -> None:
    for consumer in (0, 1):
        numbers, _ = get(ledger, bodies, consumer)
        ledger.confirmed(C, consumer, numbers)
    assert "confirmed to consumer 0 and again to 1" in complaint(ledger)


def test_a_finish_confirmed_under_an_old_lease(ledger: Ledger, bodies: list[bytes]) -> None:
    numbers, _ = get(ledger, bodies)
    get(ledger, bodies, consumer=1, attempts=2)
    ledger.confirmed(C, 0, numbers)
    assert "another has a later attempt" in complaint(ledger)


def test_a_lost_message_is_reported(ledger: Ledger, bodies: list[bytes]) -> None:
    ledger.acknowledged(1, 0)
    assert Audit(ledger, "").settled()["lost"] == 10
    assert "acknowledged and is lost" in complaint(ledger)


def test_a_block_stored_in_part_is_reported(ledger: Ledger, bodies: list[bytes]) -> None:
    audit = Audit(ledger, "")
    store(audit, bodies[:4])
    audit.settled()
    assert "stored in part: 4 of 10" in complaint(ledger)


def test_a_message_stored_twice_is_reported(ledger: Ledger, bodies: list[bytes]) -> None:
    audit = Audit(ledger, "")
    store(audit, bodies)
    store(audit, bodies[:1], first=10)
    assert "512 is stored twice" in complaint(ledger)


def test_a_transaction_stored_in_part_is_reported(ledger: Ledger) -> None:
    audit = Audit(ledger, "")
    store(audit, ledger.open_slot(1, l.STAGED, 0, 3, group=7))
    ledger.open_slot(2, l.STAGED, 0, 3, group=7)
    audit.settled()
    assert any("transaction 7 is stored in part: 1 of 2" in text for text in ledger.complained())


def test_blocks_of_a_producer_out_of_order_are_reported(
    ledger: Ledger, bodies: list[bytes]
) -> None:
    audit = Audit(ledger, "")
    store(audit, ledger.open_slot(2, l.BLOCK, 0, 1))
    store(audit, bodies, first=1)
    assert "block 1 of a producer comes after its block 2" in complaint(ledger)


def test_messages_never_finished_are_reported(ledger: Ledger, bodies: list[bytes]) -> None:
    audit = Audit(ledger, "")
    ledger.acknowledged(1, 0)
    store(audit, bodies)
    ledger.told(C, get(ledger, bodies)[0][:8])
    audit.settled()
    assert "2 of block 1 (10 messages, 10 delivered) were never finished" in complaint(ledger)


def test_a_message_that_overtakes_its_predecessor_is_returned_as_out_of_order(
    ledger: Ledger,
) -> None:
    bodies = ledger.open_slot(1, l.BLOCK, 1, l.KEYS + 6)
    assert ledger.keys(1) == [f"0-{index % l.KEYS}" for index in range(l.KEYS + 6)]
    assert ledger.got(D, 0, [(0, l.KEYS, 1)], bodies[: l.KEYS])[1] == []
    assert ledger.got(D, 0, [(l.KEYS, 2, 1)], bodies[l.KEYS : l.KEYS + 2])[1] == [], (
        "their predecessors are in the same hands"
    )
    assert ledger.got(D, 1, [(l.KEYS + 2, 2, 1)], bodies[l.KEYS + 2 : l.KEYS + 4])[1] == [0, 1], (
        "somebody else has theirs"
    )
    ledger.told(D, range(SLOT, SLOT + l.KEYS))
    assert ledger.got(D, 1, [(l.KEYS + 4, 2, 1)], bodies[l.KEYS + 4 :])[1] == []
    assert ledger.complained() == []
