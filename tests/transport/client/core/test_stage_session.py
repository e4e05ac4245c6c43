"""Tests of a stage writer's session by examples: what it does with each message."""

from __future__ import annotations

from typing import Any

import pytest

from zsq.transport.block.block import Block, pack
from zsq.transport.block.block_format import decode_header
from zsq.transport.client.core.stage_session import (
    OUT_BLOCKS_MAX,
    PAUSE_NS,
    STALL_DOUBLINGS_MAX,
    STALL_NS,
    StageSession,
)
from zsq.transport.client.core.stage_table import (
    ENDED,
    STAGE_TABLE,
    StageAction,
    StageEvent,
    StageState,
    StageTransition,
)
from zsq.transport.client.link.reaction import Reaction
from zsq.transport.errors import (
    E_BAD_ARGUMENT,
    E_BAD_BLOCK,
    E_CLOSING,
    E_DISK_FULL,
    E_NOT_FOUND,
    CorruptBlock,
    UsageError,
)
from zsq.transport.wire.protocol import (
    Done,
    Failed,
    Missing,
    Staged,
    check_transaction,
    checksum_after,
)

STAGE = b"s" * 16


def block(number: int, size: int = 20) -> Block:
    return pack([b"%0*d" % (size, number)])


LENGTH = block(0).length


def opened(
    session: StageSession,
    expected: int = 0,
    sealed: int = 0,
    credit: int = 4 * LENGTH,
    now: int = 0,
) -> Reaction:
    message = session.begin()
    return session.on_word(
        Done(
            message.request,
            {"expected": expected, "sealed": sealed, "credit_bytes": credit, "committed": False},
        ),
        now,
    )


def made(blocks: int, **more: Any) -> StageSession:
    session = StageSession(STAGE, "app", 1, window_bytes_max=more.pop("window", 40 * LENGTH))
    for number in range(blocks):
        session.add(block(number))
    assert opened(session, **more) is Reaction.UP
    return session


def taken(session: StageSession, now: int = 0) -> list[int]:
    found = []
    while (entry := session.take(now)) is not None:
        found.append(decode_header(entry.header).sequence)
    return found


def test_credit_bounds_what_is_out() -> None:
    session = made(10)
    assert taken(session) == [0, 1, 2, 3]
    session.on_word(Staged(STAGE, 2), 0)
    assert taken(session) == [4, 5]
    session.on_word(Staged(STAGE, 2), 0)
    session.on_word(Staged(STAGE, 1), 0)
    session.on_word(Staged(b"o" * 16, 6), 0)
    assert taken(session) == []


def test_an_answer_to_another_request_does_not_open_the_stage() -> None:
    """The answer may be older than the last seal. If the writer accepted it, it would send blocks
    that the storage already has.
    """
    session = StageSession(STAGE, "app", 1, window_bytes_max=40 * LENGTH)
    for number in range(5):
        session.add(block(number))
    first = session.begin()
    session.lost()
    second = session.begin()
    known = {"sealed": 0, "credit_bytes": 4 * LENGTH, "committed": False}
    assert session.on_word(Done(first.request, {"expected": 1, **known}), 0) is Reaction.NOTHING
    assert taken(session) == []
    assert session.on_word(Done(second.request, {"expected": 3, **known}), 0) is Reaction.UP
    assert taken(session) == [3, 4]


def test_an_answer_to_another_seal_is_ignored() -> None:
    """If the writer accepted the answer, it would forget blocks that the storage has not sealed, or
    give up because of an error that belongs to another request.
    """
    session = made(3)
    taken(session)
    session.finish()
    before = session.take_seal()
    session.lost()
    opened(session, expected=1)
    taken(session)
    seal = session.take_seal()
    assert before is not None
    assert seal is not None
    assert session.on_word(Done(before.request, {"messages": 3}), 0) is Reaction.NOTHING
    assert (
        session.on_word(Failed(before.request, E_NOT_FOUND, "of a link that is gone"), 0)
        is Reaction.NOTHING
    )
    assert (session.state, session.window.durable.blocks) == (StageState.OPEN, 0)
    assert session.on_word(Done(seal.request, {"messages": 3}), 0) is Reaction.NOTHING
    assert session.state is StageState.SEALED


def test_blocks_are_pushed_again_soon_however_long_nothing_arrives() -> None:
    session = made(2)
    now = 0
    for _ in range(40):
        taken(session, now)
        waits, now = session.due_ns() - now, session.due_ns()
        assert session.on_time(now) is Reaction.RENEW
        session.lost()
        opened(session, now=now)
    assert waits == STALL_NS << STALL_DOUBLINGS_MAX


def test_one_block_larger_than_the_credit_goes_alone() -> None:
    session = made(3, credit=1)
    assert taken(session) == [0]
    session.on_word(Staged(STAGE, 1), 0)
    assert taken(session) == [1]


def test_small_blocks_stay_below_the_high_water_mark() -> None:
    session = made(OUT_BLOCKS_MAX + 10, credit=1 << 40)
    assert len(taken(session)) == OUT_BLOCKS_MAX


def test_a_pushed_block_has_its_number_in_the_header() -> None:
    session = made(0)
    session.add(pack([b"a", b"b"], producer_id=5, sequence=9, first_offset=7, time_ns=8))
    entry = session.take(0)
    assert entry is not None
    header = decode_header(entry.header)
    assert (
        header.producer_id,
        header.sequence,
        header.first_offset,
        header.time_ns,
        header.flags,
        header.count,
    ) == (0, 0, 0, 0, 0, 2)


def test_the_window_bounds_what_is_kept() -> None:
    session = made(0, window=4 * LENGTH, credit=1 << 20)
    for number in range(4):
        assert session.window.has_room(LENGTH)
        session.add(block(number))
    assert not session.window.has_room(1)
    taken(session)
    seal = session.take_seal()
    assert seal is not None
    assert (seal.blocks, seal.size_bytes, seal.final) == (4, 4 * LENGTH, False)
    session.on_word(Staged(STAGE, 4), 0)
    assert not session.window.has_room(1), "arrived is not durable"
    session.on_word(Done(seal.request, {"messages": 4}), 0)
    assert session.window.has_room(4 * LENGTH)
    assert session.window.held_bytes == 0
    session.add(block(4, 2000))
    assert session.window.held_bytes > 4 * LENGTH, "one alone may be larger"


def test_interim_seals_come_one_at_a_time_and_by_size() -> None:
    session = made(20, window=16 * LENGTH, credit=1 << 20)
    assert session.take_seal() is None, "nothing is sent"
    taken(session)
    first = session.take_seal()
    assert first is not None
    session.add(block(20))
    taken(session)
    assert session.take_seal() is None
    session.on_word(Done(first.request, {"messages": 20}), 0)
    assert session.take_seal() is None, "too little since"
    session.pressed = True
    second = session.take_seal()
    assert second is not None
    assert (second.blocks, second.final) == (21, False)


def test_the_final_seal_has_the_totals_of_the_stage() -> None:
    session = made(3)
    session.finish()
    assert session.take_seal() is None, "not all is sent"
    taken(session)
    seal = session.take_seal()
    assert seal is not None
    checksum = 0
    for number in range(3):
        checksum = checksum_after(checksum, block(number).header.columns_crc)
    assert (seal.stage, seal.blocks, seal.size_bytes, seal.checksum, seal.final) == (
        STAGE,
        3,
        3 * LENGTH,
        checksum,
        True,
    )
    assert session.on_word(Done(seal.request, {"messages": 3}), 0) is Reaction.NOTHING
    assert session.state is StageState.SEALED
    assert session.part() == (STAGE, 3, 3, 3 * LENGTH, checksum)


def test_a_final_seal_with_the_wrong_count_fails() -> None:
    session = made(3)
    session.finish()
    taken(session)
    seal = session.take_seal()
    assert seal is not None
    session.on_word(Done(seal.request, {"messages": 2}), 0)
    assert session.state is StageState.FAILED


def test_pushing_goes_back_to_the_block_that_storage_misses() -> None:
    session = made(4)
    assert taken(session) == [0, 1, 2, 3]
    session.on_word(Missing(0, STAGE, 1), 0)
    assert taken(session) == [1, 2, 3]
    assert session.on_word(Missing(0, STAGE, 0), 0) is Reaction.RENEW, (
        "storage knows less than it said"
    )
    assert session.on_word(Missing(0, STAGE, 9), 0) is Reaction.RENEW


def test_a_seal_that_misses_something_is_asked_again() -> None:
    session = made(3)
    session.finish()
    taken(session)
    seal = session.take_seal()
    assert seal is not None
    session.on_word(Missing(seal.request + 5, STAGE, 0), 0)
    assert taken(session) == []
    session.on_word(Missing(seal.request, STAGE, 2), 0)
    assert session.take_seal() is None
    assert taken(session) == [2]
    again = session.take_seal()
    assert again is not None
    assert again.request > seal.request


def test_an_old_copy_that_arrives_before_the_new_one_is_pushed() -> None:
    session = made(6)
    taken(session)
    session.on_word(Missing(0, STAGE, 1), 0)
    entry = session.take(0)
    assert entry is not None
    session.on_word(Staged(STAGE, 5), 0)
    assert taken(session) == [5]


def test_after_a_lost_link_the_writer_continues_where_storage_says() -> None:
    session = made(8, credit=1 << 20)
    taken(session)
    session.on_word(Staged(STAGE, 6), 0)
    session.lost()
    assert session.take(0) is None
    assert opened(session, expected=3, sealed=2) is Reaction.UP
    assert session.window.durable.blocks == 2
    assert taken(session)[0] == 3


def test_a_loss_of_durable_blocks_is_an_error() -> None:
    session = made(8, credit=1 << 20)
    taken(session)
    session.pressed = True
    seal = session.take_seal()
    assert seal is not None
    session.on_word(Done(seal.request, {"messages": 8}), 0)
    session.lost()
    opened(session)
    assert session.state is StageState.FAILED
    assert session.error is not None
    assert session.error.code == E_NOT_FOUND


@pytest.mark.parametrize(
    "data",
    [
        {"expected": 3, "sealed": 0, "credit_bytes": 1},
        {"expected": 1, "sealed": 2, "credit_bytes": 1},
    ],
)
def test_a_stage_written_by_another_writer_fails(data: dict[str, int]) -> None:
    session = StageSession(STAGE, "app", 1)
    session.add(block(0))
    session.add(block(1))
    session.on_word(Done(session.begin().request, data), 0)
    assert session.state is StageState.FAILED


def test_an_answer_without_its_figures_is_refused() -> None:
    session = StageSession(STAGE, "app", 1)
    with pytest.raises(UsageError, match="expected, sealed"):
        session.on_word(Done(session.begin().request, {}), 0)


def test_a_stage_that_is_committed_already_sends_nothing_more() -> None:
    session = StageSession(STAGE, "app", 1)
    session.add(block(0))
    assert session.on_word(Done(session.begin().request, {"committed": True}), 0) is Reaction.UP
    session.add(block(1))
    assert (session.state, session.take(0), session.take_seal(), session.window.total.blocks) == (
        StageState.COMMITTED,
        None,
        None,
        1,
    )


def test_a_superseded_stage_counts_as_committed() -> None:
    session = made(1)
    session.finish()
    taken(session)
    seal = session.take_seal()
    assert seal is not None
    session.on_word(Done(seal.request, {"messages": 0, "superseded": True}), 0)
    assert session.state is StageState.COMMITTED


def test_a_full_disk_is_waited_out() -> None:
    session = made(6)
    taken(session)
    session.on_word(Staged(STAGE, 1), 0)
    session.on_word(Failed(0, E_DISK_FULL, "full"), 10)
    assert session.state is StageState.PAUSED
    assert session.refusal is not None
    session.on_word(Missing(0, STAGE, 2), 11)
    assert taken(session) == []
    assert session.due_ns() == 10 + PAUSE_NS
    assert session.on_time(9 + PAUSE_NS) is Reaction.NOTHING
    assert taken(session) == []
    session.on_time(10 + PAUSE_NS)
    assert taken(session) == [2, 3, 4, 5]
    session.on_word(Staged(STAGE, 3), 0)
    assert session.refusal is None


def test_a_seal_refused_for_the_moment_is_asked_again() -> None:
    session = made(2)
    session.finish()
    taken(session)
    seal = session.take_seal()
    assert seal is not None
    session.on_word(Failed(seal.request, E_DISK_FULL, "full"), 0)
    assert session.take_seal() is None
    session.on_time(PAUSE_NS)
    taken(session)
    assert session.take_seal() is not None


def test_other_failures_are_final() -> None:
    session = made(2)
    assert session.on_word(Failed(77, E_BAD_BLOCK, "of nobody"), 0) is Reaction.NOTHING
    assert session.on_word(Failed(0, E_CLOSING, "stopping"), 0) is Reaction.RESTART
    session.on_word(Failed(0, E_BAD_BLOCK, "bad"), 0)
    assert session.state is StageState.FAILED
    assert isinstance(session.error, UsageError)
    session.fail(CorruptBlock("E_CHECKSUM", "later"))
    assert isinstance(session.error, UsageError), "the first one counts"


def test_a_stalled_session_is_renewed_with_a_growing_timeout() -> None:
    session = made(2, now=5)
    taken(session, 7)
    assert session.due_ns() == 7 + STALL_NS
    assert session.on_time(6 + STALL_NS) is Reaction.NOTHING
    session.on_word(Staged(STAGE, 1), 9)
    assert session.due_ns() == 9 + STALL_NS
    assert session.on_time(9 + STALL_NS) is Reaction.RENEW
    session.lost()
    opened(session, expected=1, now=20)
    taken(session, 21)
    assert session.due_ns() == 21 + 2 * STALL_NS, "a slow network gets longer"
    session.on_word(Staged(STAGE, 2), 22)
    assert session.due_ns() > 1 << 60, "nothing is out"


def test_the_table_is_whole() -> None:
    assert set(STAGE_TABLE) == set(StageState)
    for state, row in STAGE_TABLE.items():
        assert StageEvent.LOST in row
        assert StageEvent.FAIL in row
        assert state not in ENDED or set(row.values()) == {StageTransition(state)}
    used = {action for row in STAGE_TABLE.values() for to in row.values() for action in to.actions}
    assert used == set(StageAction)


@pytest.mark.parametrize(
    ("app", "version", "kind"),
    [
        ("", 0, "app"),
        ("é" * 129, 0, "app"),
        ("a", -1, "app"),
        ("a", 1 << 63, "app"),
        ("a", 0, "x"),
        (b"a", 0, "app"),
    ],
)
def test_each_name_of_no_transaction_is_refused(app: Any, version: int, kind: str) -> None:
    with pytest.raises(UsageError, match="transaction") as caught:
        check_transaction(app, version, kind)
    assert caught.value.code == E_BAD_ARGUMENT
    check_transaction("é" * 128, (1 << 63) - 1, "job")
