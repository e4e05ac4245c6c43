"""Tests of the stages of a topic: pushes, gaps, seals, and credit."""

from __future__ import annotations

from typing import Any

import pytest
from support.stage_table import FAR, ONE, TWO, A, B, S, StageTable, T

from zsq.actors.settings import options
from zsq.actors.storage.stages import SealNow
from zsq.storage.log.transactions import Transaction
from zsq.transport.errors import (
    E_CHECKSUM,
    E_DISK_FULL,
    CorruptBlock,
    NotFound,
    Refused,
    UsageError,
)
from zsq.transport.wire.protocol import (
    HEARTBEAT_MS,
    LOCAL_HEARTBEAT_MS,
    Bye,
    Done,
    Failed,
    Missing,
    Seal,
    Staged,
)


@pytest.fixture
def harness() -> StageTable:
    return StageTable()


# Pushes


@pytest.mark.parametrize(
    ("numbers", "taken", "told"),
    [
        ((0, 1, 2), [0, 1, 2], []),
        ((0, 0, 1, 0), [0, 1], []),
        ((1,), [], [0]),
        ((0, 2, 3, 4), [0], [1]),  # a gap is reported once
        ((0, 2, 1, 3, 4), [0, 1], [1, 2]),
        ((0, 2, 1, 2, 4, 5), [0, 1, 2], [1, 3]),
        ((2**64 - 1,), [], [0]),
    ],
)
def test_only_the_next_block_of_a_stage_is_accepted(
    harness: StageTable, numbers: tuple[int, ...], taken: list[int], told: list[int]
) -> None:
    assert harness.open() == {
        "expected": 0,
        "sealed": 0,
        "credit_bytes": options.STAGE_CREDIT_BYTES,
        "committed": False,
    }
    assert harness.push(*numbers) == taken
    assert harness.told() == [(b"a", Missing(0, ONE, expected)) for expected in told]
    assert harness.open()["expected"] == len(taken)


def test_a_gap_is_reported_again_after_a_while(harness: StageTable) -> None:
    harness.open()
    for step_s, told in ((0, 1), (0.5, 0), (0.6, 1), (0.9, 0)):
        harness.now_ns += int(step_s * S)
        harness.push(3)
        assert len(harness.told()) == told


def test_a_gap_is_reported_at_once_on_a_new_link(harness: StageTable) -> None:
    harness.open()
    harness.push(3)
    harness.open(B)
    harness.push(4)
    assert harness.told() == [(b"a", Missing(0, ONE, 0)), (b"b", Missing(0, ONE, 0))]


def test_pushes_to_an_unknown_stage_are_dropped_and_counted(harness: StageTable) -> None:
    assert harness.push(0) == []
    assert harness.stages.statistics()["pushes_dropped"] == 1
    assert harness.told() == []


def test_arrived_blocks_are_reported_once_in_a_turn(harness: StageTable) -> None:
    harness.open()
    harness.open(B, TWO)
    harness.push(0)
    harness.push(1, 2)
    harness.push(0, stage=TWO)
    harness.stages.turn()
    assert harness.told() == [(b"a", Staged(ONE, 3)), (b"b", Staged(TWO, 1))]
    harness.stages.turn()
    assert harness.told() == []


def test_blocks_refused_by_a_full_disk_are_expected_again(harness: StageTable) -> None:
    harness.open()
    harness.push(0)
    assert harness.stages.push(ONE, 1, harness.now_ns)
    assert harness.stages.push(ONE, 2, harness.now_ns)
    harness.stages.refused(ONE, E_DISK_FULL, "no space", harness.now_ns)
    assert harness.push(3, 4) == []
    assert harness.told() == [(b"a", Failed(0, E_DISK_FULL, "no space"))], (
        "no second word that calls for an answer at once"
    )
    assert harness.open()["expected"] == 1
    assert harness.push(1, 2) == [1, 2]


def test_a_bad_block_ends_its_stage(harness: StageTable) -> None:
    harness.open()
    harness.push(0)
    harness.seal(9, 2)
    harness.stages.push(ONE, 1, harness.now_ns)
    harness.stages.kill(ONE, CorruptBlock(E_CHECKSUM, "bad"))
    assert harness.told() == [
        (b"a", Failed(0, E_CHECKSUM, "bad")),
        (b"a", Failed(9, E_CHECKSUM, "bad")),
    ]
    harness.stages.kill(ONE, CorruptBlock(E_CHECKSUM, "worse"))
    assert harness.push(1, 2) == []
    assert harness.told() == []
    for attempt in (
        lambda: harness.seal(10, 1),
        harness.open,
        lambda: harness.stages.check_parts(T, [harness.part(1)]),
    ):
        with pytest.raises(CorruptBlock, match="bad"):
            attempt()


# Seals


@pytest.mark.parametrize(
    ("before", "named", "final", "asked"),
    [
        (2, 2, True, SealNow(ONE, True)),
        (2, 2, False, SealNow(ONE, False)),
        (3, 2, False, SealNow(ONE, False)),
        (0, 0, True, None),
    ],
)
def test_a_seal_of_arrived_blocks_is_answered_when_they_are_synced(
    harness: StageTable, before: int, named: int, final: bool, asked: SealNow | None
) -> None:
    harness.open()
    harness.push(*range(before))
    harness.seal(5, named, final=final)
    if asked is not None or final:
        assert harness.told() == []
        assert harness.sync() == (asked or SealNow(ONE, True))
    messages = sum(1 + number % 3 for number in range(before))
    assert harness.told() == [(b"a", Done(5, {"messages": messages}))]
    assert harness.open()["sealed"] == before
    assert harness.push(before) == ([] if final else [before])


def test_a_seal_waits_for_blocks_that_have_not_arrived(harness: StageTable) -> None:
    harness.open()
    harness.push(0)
    harness.seal(5, 3)
    for number in (1, 2):
        assert harness.stages.seals == []
        harness.now_ns += int(options.STAGE_SEAL_WAIT_S * S * 0.9)
        harness.stages.tick(harness.now_ns - 1)
        assert harness.told() == []
        harness.stages.seen(A, harness.now_ns)
        harness.push(number)
    assert harness.sync().final
    assert harness.told() == [(b"a", Done(5, {"messages": 6}))]


def test_the_time_limit_of_a_seal_begins_at_its_arrival(harness: StageTable) -> None:
    harness.open()
    harness.push(0)
    harness.now_ns += 9 * S
    harness.seal(5, 3)
    harness.stages.tick(harness.now_ns + S)
    assert harness.told() == []


def test_a_seal_is_answered_with_the_block_that_is_missing(harness: StageTable) -> None:
    harness.open()
    harness.push(0)
    harness.seal(5, 3)
    harness.seal(6, 1, final=False)
    harness.now_ns += int(options.STAGE_SEAL_WAIT_S * S) + 1
    harness.stages.tick(harness.now_ns)
    assert harness.told() == [(b"a", Missing(5, ONE, 1))]
    harness.push(1, 2)
    harness.sync()
    assert harness.told() == [(b"a", Done(6, {"messages": 6}))]


def test_seals_of_one_stage_are_carried_out_one_at_a_time(harness: StageTable) -> None:
    harness.open()
    harness.push(0)
    harness.seal(5, 1, final=False)
    harness.push(1)
    harness.seal(6, 2)
    assert harness.push(2) == [], "the final seal agrees with what came"
    assert harness.stages.seals == [SealNow(ONE, False)]
    harness.stages.seals.clear()
    harness.stages.sealed(ONE, 1, False)
    assert harness.told() == [(b"a", Done(5, {"messages": 3}))]
    assert harness.sync() == SealNow(ONE, True)
    assert harness.told() == [(b"a", Done(6, {"messages": 3}))]


def test_only_blocks_counted_in_the_row_are_reported_as_sealed(harness: StageTable) -> None:
    harness.open()
    harness.push(0)
    harness.seal(5, 1, final=False)
    harness.push(1)
    harness.stages.sealed(ONE, 1, False)
    assert harness.open()["sealed"] == 1
    # This answers a seal of a dropped stage with the same name.
    harness.stages.sealed(ONE, 2, False)
    assert harness.open()["sealed"] == 1


def test_a_seal_that_failed_on_a_full_disk_can_be_requested_again(harness: StageTable) -> None:
    harness.open()
    harness.push(0)
    harness.seal(5, 1)
    harness.stages.seals.clear()
    harness.stages.unsealed(ONE, E_DISK_FULL, "no space")
    assert harness.told() == [(b"a", Failed(5, E_DISK_FULL, "no space"))]
    assert harness.push(1) == [1]
    harness.seal(6, 2)
    assert harness.sync().final
    assert harness.told() == [(b"a", Done(6, {"messages": 3}))]


@pytest.mark.parametrize(
    "change",
    [
        {"size_bytes": 1},
        {"checksum": 1},
        {"blocks": 1, "final": True},
        {"size_bytes": 0, "blocks": 2, "checksum": 0},
    ],
)
def test_a_seal_that_does_not_match_the_blocks_is_refused(
    harness: StageTable, change: dict[str, Any]
) -> None:
    harness.open()
    harness.push(0, 1)
    message = harness.seal_of(5, 2)
    fields = {
        name: getattr(message, name)
        for name in ("request", "stage", "blocks", "size_bytes", "checksum", "final")
    }
    harness.stages.seal(A, Seal(**(fields | change)), harness.now_ns)
    ((_, refusal),) = harness.told()
    assert isinstance(refusal, Failed)
    assert refusal.code == "E_BAD_ARGUMENT"
    assert harness.stages.seals == []
    harness.seal(6, 2)
    harness.sync()
    assert harness.told() == [(b"a", Done(6, {"messages": 3}))]


def test_a_repeated_seal_is_answered_like_the_first(harness: StageTable) -> None:
    harness.sealed(2)
    harness.seal(6, 2)
    assert harness.told() == [(b"a", Done(6, {"messages": 3}))]
    harness.seal(7, 3)
    ((_, refusal),) = harness.told()
    assert isinstance(refusal, Failed)
    assert harness.stages.seals == []


def test_only_the_latest_link_of_a_stage_can_seal(harness: StageTable) -> None:
    harness.open()
    harness.push(0)
    harness.seal(5, 2)
    harness.open(B)
    harness.push(1)
    harness.stages.turn()
    assert harness.told() == [(b"b", Staged(ONE, 2))]
    harness.seal(6, 2)
    assert harness.told() == [(b"a", Bye())]
    harness.seal(7, 2, peer=B)
    harness.sync()
    assert harness.told() == [(b"b", Done(7, {"messages": 3}))]


def test_a_seal_of_an_unknown_stage_is_not_found(harness: StageTable) -> None:
    with pytest.raises(NotFound):
        harness.seal(5, 0)


# Links


def test_all_writers_share_one_pool_of_credit(harness: StageTable) -> None:
    """The first writers get as much credit as they can use. The last of several hundred get enough
    for one block at a time.
    """
    peers = [(b"%d" % n,) for n in range(options.STAGE_WRITERS_MAX)]
    granted = [harness.open(peer, b"%016d" % n)["credit_bytes"] for n, peer in enumerate(peers)]
    assert granted[0] == options.STAGE_CREDIT_BYTES
    assert granted == sorted(granted, reverse=True)
    assert granted[-1] == options.STAGE_CREDIT_BYTES_MIN
    assert sum(granted) <= 2 * options.STAGE_CREDIT_POOL_BYTES
    with pytest.raises(Refused, match="E_LIMIT"):
        harness.open(A, ONE)
    again = harness.open(peers[-1], b"%016d" % (len(peers) - 1))
    assert again["credit_bytes"] == options.STAGE_CREDIT_BYTES_MIN, "to its own share"
    for peer in peers:
        harness.stages.bye(peer)
    assert harness.stages._granted == 0
    assert harness.open()["credit_bytes"] == options.STAGE_CREDIT_BYTES


def test_one_writers_credit_is_bounded_however_large_the_pool(
    harness: StageTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "STAGE_CREDIT_POOL_BYTES", 100 * options.STAGE_CREDIT_BYTES)
    assert harness.open()["credit_bytes"] == options.STAGE_CREDIT_BYTES


@pytest.mark.parametrize(("peer", "heartbeat_ms"), [(A, LOCAL_HEARTBEAT_MS), (FAR, HEARTBEAT_MS)])
def test_a_silent_link_loses_its_credit_and_not_its_stage(
    harness: StageTable, peer: tuple[bytes, ...], heartbeat_ms: int
) -> None:
    harness.open(peer)
    harness.now_ns += 2 * heartbeat_ms * 1_000_000
    harness.push(0)  # this push shows that the writer is alive
    harness.stages.tick(harness.now_ns + 1)
    harness.now_ns += 2 * heartbeat_ms * 1_000_000
    harness.stages.tick(harness.now_ns)
    assert harness.told() == []
    harness.stages.tick(harness.now_ns + 1)
    assert harness.told() == [(peer[0], Bye())]
    assert harness.stages._granted == 0
    assert harness.stages.peers() == []
    assert harness.push(1) == [1]
    assert harness.open(peer)["expected"] == 2


def test_links_through_a_gateway_end_with_it(harness: StageTable) -> None:
    harness.open()
    harness.open(FAR, TWO)
    harness.stages.gone(FAR[0])
    assert harness.stages.peers() == [A]


def test_stages_and_links_are_bounded(harness: StageTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "STAGES_MAX", 3)
    monkeypatch.setattr(options, "STAGES_PER_LINK_MAX", 2)
    monkeypatch.setattr(options, "STAGE_LINKS_MAX", 2)
    harness.open(A, ONE)
    harness.open(A, TWO)
    with pytest.raises(Refused, match=r"the connection has .* stages, which is the limit"):
        harness.open(A, b"3" * 16)
    harness.open(B, b"3" * 16)
    with pytest.raises(Refused, match="stages"):
        harness.open(B, b"4" * 16)
    with pytest.raises(Refused, match="connections of stage writers, which is the limit"):
        harness.open(FAR, ONE)
    harness.open(B, b"3" * 16)  # a link that exists continues
    for number in range(options.STAGE_SEALS_MAX):
        harness.seal(number, 1)
    with pytest.raises(Refused, match="seals"):
        harness.seal(99, 1)


@pytest.mark.parametrize(
    ("stage", "transaction"),
    [(b"short", T), (ONE, Transaction("app", 8, "app")), (ONE, Transaction("app", 7, "job"))],
)
def test_an_invalid_opening_of_a_stage_is_refused(
    harness: StageTable, stage: bytes, transaction: Transaction
) -> None:
    harness.open()
    with pytest.raises(UsageError):
        harness.stages.check_open(stage, transaction)
