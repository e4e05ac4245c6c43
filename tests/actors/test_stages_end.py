"""How stages end: parts of a commit, superseded, aborted, expired; and how they come back after a restart."""

from __future__ import annotations

from typing import Any

import pytest
from support.stage_table import FAR, ONE, TWO, A, B, S, StageTable, T

from zsq.actors.stage import Transaction
from zsq.transport.errors import NotFound, UsageError, ZsqError
from zsq.transport.protocol import Done, Failed


@pytest.fixture
def desk() -> StageTable:
    return StageTable()


def test_the_parts_of_a_commit(desk: StageTable) -> None:
    desk.sealed(2)
    desk.sealed(0, TWO, B)
    assert desk.stages.check_parts(T, (desk.part(2), desk.part(0, TWO))) == [ONE], "an empty part writes nothing"
    assert desk.stages.messages([ONE, TWO]) == 3


@pytest.mark.parametrize(
    ("transaction", "parts", "code"),
    [
        (T, (b"x",), "E_BAD_ARGUMENT"),
        (T, ((ONE, 2, 3, "4", 5),), "E_BAD_ARGUMENT"),
        (T, ((TWO, 0, 0, 0, 0),), "E_NOT_FOUND"),
        (("app", 8, "app"), None, "E_BAD_ARGUMENT"),
        (("other", 7, "app"), None, "E_BAD_ARGUMENT"),
        (T, ((ONE, 1, 3, 0, 0),), "E_BAD_ARGUMENT"),
    ],
)
def test_parts_that_cannot_be_committed(desk: StageTable, transaction: Transaction, parts: Any, code: str) -> None:
    desk.sealed(2)
    with pytest.raises(ZsqError) as caught:
        desk.stages.check_parts(transaction, (desk.part(2),) if parts is None else parts)
    assert caught.value.code == code
    with pytest.raises(UsageError, match="twice"):
        desk.stages.check_parts(T, (desk.part(2), desk.part(2)))


def test_a_part_that_is_not_finally_sealed_is_not_committed(desk: StageTable) -> None:
    desk.open()
    desk.push(0)
    desk.seal(1, 1, final=False)
    desk.sync()
    with pytest.raises(UsageError, match="finally"):
        desk.stages.check_parts(T, (desk.part(1),))


def test_a_stage_that_the_commit_did_not_name_is_superseded(desk: StageTable) -> None:
    desk.sealed(1)
    desk.open(B, TWO)
    desk.open(FAR, b"3" * 16, ("app", 6, "app"))
    desk.open(FAR, b"4" * 16, ("app", 8, "app"))
    desk.push(0, stage=TWO)
    desk.seal(4, 3, stage=TWO, peer=B)
    assert desk.stages.of("app", 7) == [ONE, TWO]
    gone = desk.stages.of("app", 7, older=True)
    assert gone == [ONE, TWO, b"3" * 16]
    desk.stages.forget(gone, "", superseded=True)
    assert desk.told() == [(b"b", Done(4, {"messages": 0, "superseded": True}))]
    desk.seal(5, 3, stage=TWO, peer=B)
    assert desk.told() == [(b"b", Done(5, {"messages": 0, "superseded": True}))]
    assert desk.push(1, stage=TWO) == []
    desk.stages.turn()
    assert desk.told() == []
    credit = desk.open(FAR, b"4" * 16, ("app", 8, "app"))["credit_bytes"]
    assert desk.stages._granted == credit


def test_an_aborted_stage_is_gone(desk: StageTable) -> None:
    desk.open()
    desk.push(0)
    desk.seal(5, 2)
    desk.stages.forget(desk.stages.known([ONE, TWO, ONE]), "aborted")
    assert desk.told() == [(b"a", Failed(5, "E_NOT_FOUND", "aborted"))]
    assert desk.stages._granted == 0
    with pytest.raises(NotFound):
        desk.seal(6, 1)
    desk.stages.sealed(ONE, 1, False)  # its sync comes back late


def orphans(desk: StageTable, after_s: int, *, open_s: int = 10, sealed_s: int = 100) -> list[bytes]:
    return desk.stages.orphans(desk.now_ns + after_s * S, open_s * S, sealed_s * S)


def test_stages_in_use_are_no_orphans(desk: StageTable) -> None:
    desk.open()
    desk.open(B, TWO)
    assert orphans(desk, 10) == []
    assert orphans(desk, 11) == [ONE, TWO]
    desk.now_ns += 8 * S
    desk.stages.seen(A, desk.now_ns)  # its writer computes for long: the link beats
    assert orphans(desk, 10) == [TWO]
    desk.stages.bye(A)
    assert orphans(desk, 10) == [TWO], "the time counts from the end of the link"
    assert orphans(desk, 11) == [ONE, TWO]


def test_a_stage_that_is_being_sealed_is_no_orphan(desk: StageTable) -> None:
    desk.open()
    desk.push(0)
    desk.seal(1, 1)
    assert desk.stages.is_sealing(ONE)
    assert orphans(desk, 1_000) == []


def test_sealed_stages_are_kept_while_their_transaction_is_at_work(desk: StageTable) -> None:
    desk.sealed(1)
    other: Transaction = ("another", 1, "job")
    desk.stages.recovered(b"3" * 16, other, (2, 3, 100, 5), True, desk.now_ns)
    desk.now_ns += 90 * S
    desk.open(B, TWO)
    assert orphans(desk, 11) == [b"3" * 16, TWO]
    assert orphans(desk, 101) == [ONE, b"3" * 16, TWO]


def test_the_time_of_a_recovered_stage_begins_anew(desk: StageTable) -> None:
    desk.now_ns += 1_000_000 * S
    desk.stages.recovered(ONE, T, (2, 3, 100, 5), False, desk.now_ns)
    assert orphans(desk, 10) == []
    assert orphans(desk, 11) == [ONE]


def test_what_was_recovered_goes_on(desk: StageTable) -> None:
    word = desk.seal_of(0, 2)
    desk.stages.recovered(ONE, T, (2, 3, word.size_bytes, word.checksum), False, desk.now_ns)
    desk.stages.recovered(TWO, T, (2, 3, word.size_bytes, word.checksum), True, desk.now_ns)
    assert desk.open() | {"credit_bytes": 0} == {"expected": 2, "sealed": 2, "credit_bytes": 0, "committed": False}
    assert desk.push(0, 1, 2) == [2]
    assert desk.push(2, stage=TWO) == []
    desk.seal(5, 3)
    desk.blocks[ONE] = list(map(desk.block, range(3)))
    assert desk.sync().final
    assert desk.stages.check_parts(T, (desk.part(3), desk.part(2, TWO))) == [ONE, TWO]
    assert desk.stages.statistics() == {
        "stages": 2,
        "staged_bytes": desk.part(3)[3] + word.size_bytes,
        "stage_links": 1,
        "pushes_dropped": 1,
    }
