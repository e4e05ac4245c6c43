"""The stages of a topic: pushes, gaps, seals, credit; case by case."""

from __future__ import annotations

from typing import Any

import pytest
from support.stage_table import FAR, ONE, TWO, A, B, S, StageTable, T

from zsq.actors import options
from zsq.actors.stage import Transaction
from zsq.actors.stages import SealNow
from zsq.transport.errors import E_CHECKSUM, E_DISK_FULL, CorruptBlock, NotFound, Refused, UsageError
from zsq.transport.protocol import HEARTBEAT_MS, LOCAL_HEARTBEAT_MS, Bye, Done, Failed, Missing, Seal, Staged


@pytest.fixture
def desk() -> StageTable:
    return StageTable()


# Pushes


@pytest.mark.parametrize(
    ("numbers", "taken", "told"),
    [
        ((0, 1, 2), [0, 1, 2], []),
        ((0, 0, 1, 0), [0, 1], []),
        ((1,), [], [0]),
        ((0, 2, 3, 4), [0], [1]),  # a gap is told once
        ((0, 2, 1, 3, 4), [0, 1], [1, 2]),
        ((0, 2, 1, 2, 4, 5), [0, 1, 2], [1, 3]),
        ((2**64 - 1,), [], [0]),
    ],
)
def test_exactly_the_next_block_is_taken(desk: StageTable, numbers: tuple[int, ...], taken: list[int], told: list[int]) -> None:
    assert desk.open() == {"expected": 0, "sealed": 0, "credit_bytes": options.STAGE_CREDIT_BYTES, "committed": False}
    assert desk.push(*numbers) == taken
    assert desk.told() == [(b"a", Missing(0, ONE, expected)) for expected in told]
    assert desk.open()["expected"] == len(taken)


def test_a_gap_is_told_again_after_a_while(desk: StageTable) -> None:
    desk.open()
    for step_s, told in ((0, 1), (0.5, 0), (0.6, 1), (0.9, 0)):
        desk.now_ns += int(step_s * S)
        desk.push(3)
        assert len(desk.told()) == told


def test_a_gap_is_told_on_a_new_link_at_once(desk: StageTable) -> None:
    desk.open()
    desk.push(3)
    desk.open(B)
    desk.push(4)
    assert desk.told() == [(b"a", Missing(0, ONE, 0)), (b"b", Missing(0, ONE, 0))]


def test_what_nobody_opened_is_dropped_and_counted(desk: StageTable) -> None:
    assert desk.push(0) == []
    assert desk.stages.statistics()["pushes_dropped"] == 1
    assert desk.told() == []


def test_what_arrived_is_told_once_a_turn(desk: StageTable) -> None:
    desk.open()
    desk.open(B, TWO)
    desk.push(0)
    desk.push(1, 2)
    desk.push(0, stage=TWO)
    desk.stages.turn()
    assert desk.told() == [(b"a", Staged(ONE, 3)), (b"b", Staged(TWO, 1))]
    desk.stages.turn()
    assert desk.told() == []


def test_a_full_disk_takes_back_what_was_not_written(desk: StageTable) -> None:
    desk.open()
    desk.push(0)
    assert desk.stages.push(ONE, 1, desk.now_ns)
    assert desk.stages.push(ONE, 2, desk.now_ns)
    desk.stages.refused(ONE, E_DISK_FULL, "no space", desk.now_ns)
    assert desk.push(3, 4) == []
    assert desk.told() == [(b"a", Failed(0, E_DISK_FULL, "no space"))], "no second word that calls for an answer at once"
    assert desk.open()["expected"] == 1
    assert desk.push(1, 2) == [1, 2]


def test_a_bad_block_is_the_end_of_its_stage(desk: StageTable) -> None:
    desk.open()
    desk.push(0)
    desk.seal(9, 2)
    desk.stages.push(ONE, 1, desk.now_ns)
    desk.stages.kill(ONE, CorruptBlock(E_CHECKSUM, "bad"))
    assert desk.told() == [(b"a", Failed(0, E_CHECKSUM, "bad")), (b"a", Failed(9, E_CHECKSUM, "bad"))]
    desk.stages.kill(ONE, CorruptBlock(E_CHECKSUM, "worse"))
    assert desk.push(1, 2) == []
    assert desk.told() == []
    for attempt in (lambda: desk.seal(10, 1), desk.open, lambda: desk.stages.check_parts(T, [desk.part(1)])):
        with pytest.raises(CorruptBlock, match="bad"):
            attempt()


# Seals


@pytest.mark.parametrize(
    ("before", "named", "final", "asked"),
    [(2, 2, True, SealNow(ONE, True)), (2, 2, False, SealNow(ONE, False)), (3, 2, False, SealNow(ONE, False)), (0, 0, True, None)],
)
def test_a_seal_of_what_has_arrived(desk: StageTable, before: int, named: int, final: bool, asked: SealNow | None) -> None:
    desk.open()
    desk.push(*range(before))
    desk.seal(5, named, final=final)
    if asked is not None or final:
        assert desk.told() == []
        assert desk.sync() == (asked or SealNow(ONE, True))
    messages = sum(1 + number % 3 for number in range(before))
    assert desk.told() == [(b"a", Done(5, {"messages": messages}))]
    assert desk.open()["sealed"] == before
    assert desk.push(before) == ([] if final else [before])


def test_a_seal_waits_for_what_is_on_its_way(desk: StageTable) -> None:
    desk.open()
    desk.push(0)
    desk.seal(5, 3)
    for number in (1, 2):
        assert desk.stages.seals == []
        desk.now_ns += int(options.STAGE_SEAL_WAIT_S * S * 0.9)
        desk.stages.tick(desk.now_ns - 1)
        assert desk.told() == []
        desk.stages.seen(A, desk.now_ns)
        desk.push(number)
    assert desk.sync().final
    assert desk.told() == [(b"a", Done(5, {"messages": 6}))]


def test_a_seal_has_its_time_from_when_it_came(desk: StageTable) -> None:
    desk.open()
    desk.push(0)
    desk.now_ns += 9 * S
    desk.seal(5, 3)
    desk.stages.tick(desk.now_ns + S)
    assert desk.told() == []


def test_a_seal_names_what_does_not_come(desk: StageTable) -> None:
    desk.open()
    desk.push(0)
    desk.seal(5, 3)
    desk.seal(6, 1, final=False)
    desk.now_ns += int(options.STAGE_SEAL_WAIT_S * S) + 1
    desk.stages.tick(desk.now_ns)
    assert desk.told() == [(b"a", Missing(5, ONE, 1))]
    desk.push(1, 2)
    desk.sync()
    assert desk.told() == [(b"a", Done(6, {"messages": 6}))]


def test_one_seal_of_a_stage_is_carried_out_at_a_time(desk: StageTable) -> None:
    desk.open()
    desk.push(0)
    desk.seal(5, 1, final=False)
    desk.push(1)
    desk.seal(6, 2)
    assert desk.push(2) == [], "the final seal agrees with what came"
    assert desk.stages.seals == [SealNow(ONE, False)]
    desk.stages.seals.clear()
    desk.stages.sealed(ONE, 1, False)
    assert desk.told() == [(b"a", Done(5, {"messages": 3}))]
    assert desk.sync() == SealNow(ONE, True)
    assert desk.told() == [(b"a", Done(6, {"messages": 3}))]


def test_only_what_the_row_says_is_durable(desk: StageTable) -> None:
    desk.open()
    desk.push(0)
    desk.seal(5, 1, final=False)
    desk.push(1)
    desk.stages.sealed(ONE, 1, False)
    assert desk.open()["sealed"] == 1
    desk.stages.sealed(ONE, 2, False)  # of a stage of that name that was dropped
    assert desk.open()["sealed"] == 1


def test_a_full_disk_lets_a_seal_be_asked_again(desk: StageTable) -> None:
    desk.open()
    desk.push(0)
    desk.seal(5, 1)
    desk.stages.seals.clear()
    desk.stages.unsealed(ONE, E_DISK_FULL, "no space")
    assert desk.told() == [(b"a", Failed(5, E_DISK_FULL, "no space"))]
    assert desk.push(1) == [1]
    desk.seal(6, 2)
    assert desk.sync().final
    assert desk.told() == [(b"a", Done(6, {"messages": 3}))]


@pytest.mark.parametrize(
    "change", [{"size_bytes": 1}, {"checksum": 1}, {"blocks": 1, "final": True}, {"size_bytes": 0, "blocks": 2, "checksum": 0}]
)
def test_a_seal_that_does_not_agree_is_refused(desk: StageTable, change: dict[str, Any]) -> None:
    desk.open()
    desk.push(0, 1)
    word = desk.seal_of(5, 2)
    fields = {name: getattr(word, name) for name in ("request", "stage", "blocks", "size_bytes", "checksum", "final")}
    desk.stages.seal(A, Seal(**(fields | change)), desk.now_ns)
    ((_, refusal),) = desk.told()
    assert isinstance(refusal, Failed)
    assert refusal.code == "E_BAD_ARGUMENT"
    assert desk.stages.seals == []
    desk.seal(6, 2)
    desk.sync()
    assert desk.told() == [(b"a", Done(6, {"messages": 3}))]


def test_a_repeated_seal_is_answered_like_the_first(desk: StageTable) -> None:
    desk.sealed(2)
    desk.seal(6, 2)
    assert desk.told() == [(b"a", Done(6, {"messages": 3}))]
    desk.seal(7, 3)
    ((_, refusal),) = desk.told()
    assert isinstance(refusal, Failed)
    assert desk.stages.seals == []


def test_a_seal_is_of_the_latest_link_only(desk: StageTable) -> None:
    desk.open()
    desk.push(0)
    desk.seal(5, 2)
    desk.open(B)
    desk.push(1)
    desk.stages.turn()
    assert desk.told() == [(b"b", Staged(ONE, 2))]
    desk.seal(6, 2)
    assert desk.told() == [(b"a", Bye())]
    desk.seal(7, 2, peer=B)
    desk.sync()
    assert desk.told() == [(b"b", Done(7, {"messages": 3}))]


def test_a_seal_of_what_is_not_there(desk: StageTable) -> None:
    with pytest.raises(NotFound):
        desk.seal(5, 0)


# Links


def test_credit_comes_of_one_pool(desk: StageTable) -> None:
    """The first get what they can use, the last of hundreds enough for a block at a time."""
    peers = [(b"%d" % n,) for n in range(options.STAGE_WRITERS_MAX)]
    granted = [desk.open(peer, b"%016d" % n)["credit_bytes"] for n, peer in enumerate(peers)]
    assert granted[0] == options.STAGE_CREDIT_BYTES
    assert granted == sorted(granted, reverse=True)
    assert granted[-1] == options.STAGE_CREDIT_BYTES_MIN
    assert sum(granted) <= 2 * options.STAGE_CREDIT_POOL_BYTES
    with pytest.raises(Refused, match="E_LIMIT"):
        desk.open(A, ONE)
    again = desk.open(peers[-1], b"%016d" % (len(peers) - 1))
    assert again["credit_bytes"] == options.STAGE_CREDIT_BYTES_MIN, "to its own share"
    for peer in peers:
        desk.stages.bye(peer)
    assert desk.stages._granted == 0
    assert desk.open()["credit_bytes"] == options.STAGE_CREDIT_BYTES


def test_one_writers_credit_is_bounded_however_large_the_pool(desk: StageTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "STAGE_CREDIT_POOL_BYTES", 100 * options.STAGE_CREDIT_BYTES)
    assert desk.open()["credit_bytes"] == options.STAGE_CREDIT_BYTES


@pytest.mark.parametrize(("peer", "heartbeat_ms"), [(A, LOCAL_HEARTBEAT_MS), (FAR, HEARTBEAT_MS)])
def test_a_silent_link_loses_its_credit_and_not_its_stage(desk: StageTable, peer: tuple[bytes, ...], heartbeat_ms: int) -> None:
    desk.open(peer)
    desk.now_ns += 2 * heartbeat_ms * 1_000_000
    desk.push(0)  # a sign of life
    desk.stages.tick(desk.now_ns + 1)
    desk.now_ns += 2 * heartbeat_ms * 1_000_000
    desk.stages.tick(desk.now_ns)
    assert desk.told() == []
    desk.stages.tick(desk.now_ns + 1)
    assert desk.told() == [(peer[0], Bye())]
    assert desk.stages._granted == 0
    assert desk.stages.peers() == []
    assert desk.push(1) == [1]
    assert desk.open(peer)["expected"] == 2


def test_who_is_behind_a_gateway_goes_with_it(desk: StageTable) -> None:
    desk.open()
    desk.open(FAR, TWO)
    desk.stages.gone(FAR[0])
    assert desk.stages.peers() == [A]


def test_stages_and_links_are_bounded(desk: StageTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "STAGES_MAX", 3)
    monkeypatch.setattr(options, "STAGES_PER_LINK_MAX", 2)
    monkeypatch.setattr(options, "STAGE_LINKS_MAX", 2)
    desk.open(A, ONE)
    desk.open(A, TWO)
    with pytest.raises(Refused, match="a link carries"):
        desk.open(A, b"3" * 16)
    desk.open(B, b"3" * 16)
    with pytest.raises(Refused, match="stages"):
        desk.open(B, b"4" * 16)
    with pytest.raises(Refused, match="links"):
        desk.open(FAR, ONE)
    desk.open(B, b"3" * 16)  # a link that is there goes on
    for number in range(options.STAGE_SEALS_MAX):
        desk.seal(number, 1)
    with pytest.raises(Refused, match="seals"):
        desk.seal(99, 1)


@pytest.mark.parametrize(("stage", "transaction"), [(b"short", T), (ONE, ("app", 8, "app")), (ONE, ("app", 7, "job"))])
def test_an_opening_that_cannot_be(desk: StageTable, stage: bytes, transaction: Transaction) -> None:
    desk.open()
    with pytest.raises(UsageError):
        desk.stages.check_open(stage, transaction)
