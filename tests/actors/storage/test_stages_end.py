"""Tests of how stages end: committed, superseded, aborted or expired. They also check how stages
come back after a restart.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.stage_table import FAR, ONE, TWO, A, B, S, StageTable, T

from zsq.actors.storage import stages
from zsq.storage.log.transactions import Transaction
from zsq.transport.errors import E_BAD_ARGUMENT, NotFound, UsageError, ZsqError
from zsq.transport.wire.protocol import Done, Failed


@pytest.fixture
def harness() -> StageTable:
    return StageTable()


def test_only_parts_with_messages_are_written_by_a_commit(harness: StageTable) -> None:
    harness.sealed(2)
    harness.sealed(0, TWO, B)
    assert harness.stages.check_parts(T, (harness.part(2), harness.part(0, TWO))) == [ONE], (
        "an empty part writes nothing"
    )
    assert harness.stages.messages([ONE, TWO]) == 3


@pytest.mark.parametrize(
    ("transaction", "parts", "code"),
    [
        (T, (b"x",), "E_BAD_ARGUMENT"),
        (T, ((ONE, 2, 3, "4", 5),), "E_BAD_ARGUMENT"),
        (T, ((TWO, 0, 0, 0, 0),), "E_NOT_FOUND"),
        (Transaction("app", 8, "app"), None, "E_BAD_ARGUMENT"),
        (Transaction("other", 7, "app"), None, "E_BAD_ARGUMENT"),
        (T, ((ONE, 1, 3, 0, 0),), "E_BAD_ARGUMENT"),
    ],
)
def test_parts_that_do_not_match_their_stages_are_refused(
    harness: StageTable, transaction: Transaction, parts: Any, code: str
) -> None:
    harness.sealed(2)
    with pytest.raises(ZsqError) as caught:
        harness.stages.check_parts(transaction, (harness.part(2),) if parts is None else parts)
    assert caught.value.code == code
    with pytest.raises(UsageError, match="twice"):
        harness.stages.check_parts(T, (harness.part(2), harness.part(2)))


def test_a_commit_names_a_bounded_number_of_parts(
    harness: StageTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "STAGE_PARTS_MAX", 2)
    with pytest.raises(UsageError, match="at most 2 parts") as refused:
        harness.stages.check_parts(T, [()] * 3)
    assert refused.value.code == E_BAD_ARGUMENT
    with pytest.raises(UsageError, match="a part must be"):
        harness.stages.check_parts(T, [()] * 2)


def test_a_part_that_is_not_finally_sealed_is_not_committed(harness: StageTable) -> None:
    """Its writer has sealed it at a former primary, so a sink must write it again."""
    harness.open()
    harness.push(0)
    harness.seal(1, 1, final=False)
    harness.sync()
    with pytest.raises(NotFound, match="finally sealed at this broker"):
        harness.stages.check_parts(T, (harness.part(1),))


def test_a_stage_that_the_commit_did_not_name_is_superseded(harness: StageTable) -> None:
    harness.sealed(1)
    harness.open(B, TWO)
    harness.open(FAR, b"3" * 16, Transaction("app", 6, "app"))
    harness.open(FAR, b"4" * 16, Transaction("app", 8, "app"))
    harness.push(0, stage=TWO)
    harness.seal(4, 3, stage=TWO, peer=B)
    assert harness.stages.of("app", 7) == [ONE, TWO]
    gone = harness.stages.of("app", 7, older=True)
    assert gone == [ONE, TWO, b"3" * 16]
    harness.stages.forget(gone, "", superseded=True)
    assert harness.told() == [(b"b", Done(4, {"messages": 0, "superseded": True}))]
    harness.seal(5, 3, stage=TWO, peer=B)
    assert harness.told() == [(b"b", Done(5, {"messages": 0, "superseded": True}))]
    assert harness.push(1, stage=TWO) == []
    harness.stages.turn()
    assert harness.told() == []
    credit = harness.open(FAR, b"4" * 16, Transaction("app", 8, "app"))["credit_bytes"]
    assert harness.stages._granted == credit


def test_an_aborted_stage_is_forgotten_and_its_seal_fails(harness: StageTable) -> None:
    harness.open()
    harness.push(0)
    harness.seal(5, 2)
    harness.stages.forget(harness.stages.known([ONE, TWO, ONE]), "aborted")
    assert harness.told() == [(b"a", Failed(5, "E_NOT_FOUND", "aborted"))]
    assert harness.stages._granted == 0
    with pytest.raises(NotFound):
        harness.seal(6, 1)
    harness.stages.sealed(ONE, 1, False)  # the result of its sync comes late


def orphans(
    harness: StageTable, after_s: int, *, open_s: int = 10, sealed_s: int = 100
) -> list[bytes]:
    return harness.stages.orphans(harness.now_ns + after_s * S, open_s * S, sealed_s * S)


def test_stages_whose_writer_is_connected_do_not_expire(harness: StageTable) -> None:
    harness.open()
    harness.open(B, TWO)
    assert orphans(harness, 10) == []
    assert orphans(harness, 11) == [ONE, TWO]
    harness.now_ns += 8 * S
    # Its writer computes for a long time, but the link sends heartbeats.
    harness.stages.seen(A, harness.now_ns)
    assert orphans(harness, 10) == [TWO]
    harness.stages.bye(A)
    assert orphans(harness, 10) == [TWO], "the time counts from the end of the link"
    assert orphans(harness, 11) == [ONE, TWO]


def test_a_stage_that_is_being_sealed_does_not_expire(harness: StageTable) -> None:
    harness.open()
    harness.push(0)
    harness.seal(1, 1)
    assert harness.stages.is_sealing(ONE)
    assert orphans(harness, 1_000) == []


def test_sealed_stages_are_kept_while_their_transaction_is_active(harness: StageTable) -> None:
    harness.sealed(1)
    other: Transaction = Transaction("another", 1, "job")
    harness.stages.recovered(b"3" * 16, other, (2, 3, 100, 5), True, harness.now_ns)
    harness.now_ns += 90 * S
    harness.open(B, TWO)
    assert orphans(harness, 11) == [b"3" * 16, TWO]
    assert orphans(harness, 101) == [ONE, b"3" * 16, TWO]


def test_the_time_limit_of_a_recovered_stage_begins_at_the_start(harness: StageTable) -> None:
    harness.now_ns += 1_000_000 * S
    harness.stages.recovered(ONE, T, (2, 3, 100, 5), False, harness.now_ns)
    assert orphans(harness, 10) == []
    assert orphans(harness, 11) == [ONE]


def test_a_recovered_stage_continues_after_its_sealed_blocks(harness: StageTable) -> None:
    message = harness.seal_of(0, 2)
    harness.stages.recovered(
        ONE, T, (2, 3, message.size_bytes, message.checksum), False, harness.now_ns
    )
    harness.stages.recovered(
        TWO, T, (2, 3, message.size_bytes, message.checksum), True, harness.now_ns
    )
    assert harness.open() | {"credit_bytes": 0} == {
        "expected": 2,
        "sealed": 2,
        "credit_bytes": 0,
        "committed": False,
    }
    assert harness.push(0, 1, 2) == [2]
    assert harness.push(2, stage=TWO) == []
    harness.seal(5, 3)
    harness.blocks[ONE] = list(map(harness.block, range(3)))
    assert harness.sync().final
    assert harness.stages.check_parts(T, (harness.part(3), harness.part(2, TWO))) == [ONE, TWO]
    assert harness.stages.statistics() == {
        "stages": 2,
        "staged_bytes": harness.part(3)[3] + message.size_bytes,
        "stage_links": 1,
        "pushes_dropped": 1,
    }
