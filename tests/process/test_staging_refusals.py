"""Tests of misbehaving stage writers: what they send changes nothing, is answered with the reason,
and needs no memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.broker import Broker, wait_for
from support.stages import (
    TOPIC,
    RawStage,
    blocks_of,
    bodies_of,
    private_bytes,
    staged_files,
    stored,
    topic_row,
    write,
)

from zsq.transport.block.block import Block, pack
from zsq.transport.client.blocking.stage_writer import StageCommitter
from zsq.transport.wire import protocol as p
from zsq.transport.wire.codec import block_frames, encode

STAGE = b"0123456789abcdef"
MEMORY_MAX = 64 * 1024 * 1024


@pytest.fixture(params=["ipc", "tcp"])
def raw(own_broker: Broker, request: pytest.FixtureRequest) -> Iterator[RawStage]:
    one = RawStage(own_broker, over_tcp=request.param == "tcp")
    yield one
    one.close()


def still_takes_stages(broker: Broker) -> None:
    before = stored(broker.ipc)
    part = write(broker.ipc, [b"fine"], app="after")
    with StageCommitter(TOPIC, url=broker.ipc) as committer:
        committer.commit("after", 1, [part])
    assert stored(broker.ipc) == [*before, b"fine"]


def numbered(count: int, first: int = 0) -> list[Block]:
    return [pack([b"%d" % n], sequence=n) for n in range(first, first + count)]


def test_storage_answers_each_message_of_a_stage_writer(own_broker: Broker, raw: RawStage) -> None:
    assert raw.open(STAGE) == {
        "expected": 0,
        "sealed": 0,
        "credit_bytes": 4 << 20,
        "committed": False,
    }
    blocks = numbered(5)
    raw.push(STAGE, blocks[:2])
    raw.hear_staged(STAGE, 2)
    raw.push(STAGE, blocks[3:])
    assert raw.hear() == p.Missing(0, STAGE, 2)
    raw.push(STAGE, blocks)
    raw.hear_staged(STAGE, 5)
    checksum = 0
    for block in blocks:
        checksum = p.checksum_after(checksum, block.header.columns_crc)
    size = sum(block.length for block in blocks)
    assert raw.ask(p.Seal(7, STAGE, 6, size, checksum, True), 20) == p.Missing(7, STAGE, 5), (
        "after a bounded wait"
    )
    assert raw.ask(p.Seal(8, STAGE, 5, size, checksum, True)) == p.Done(8, {"messages": 5})
    assert raw.ask(p.Beat()) == p.Beat()
    part = (STAGE, 5, 5, size, checksum)
    assert raw.ask(p.Commit(9, "raw", 1, "app", (part,))) == p.Done(
        9, {"first_offset": 0, "messages": 5, "repeated": False}
    )
    assert raw.ask(p.Commit(10, "raw", 1, "app", (part,))) == p.Done(
        10, {"first_offset": 0, "messages": 5, "repeated": True}
    )
    assert raw.ask(p.OpenStage(11, b"f" * 16, "raw", 1, "app", 0)) == p.Done(
        11, {"expected": 0, "sealed": 0, "credit_bytes": 0, "committed": True}
    )
    assert stored(own_broker.ipc) == [b"%d" % n for n in range(5)]


def test_pushes_to_no_open_stage_are_ignored(own_broker: Broker, raw: RawStage) -> None:
    raw.open(STAGE)
    raw.push(b"nobody opened it", numbered(10))
    control = encode(p.Push(STAGE))
    for frames in (
        [b""],
        [raw.route],
        [raw.route, b""],
        [raw.route, b"", b"garbage"],
        [raw.route, b"", encode(p.Beat())],
        [raw.route, b"", encode(p.Head(1)), *block_frames(numbered(1))],
        [b"?", b"", control, *block_frames(numbered(1))],
        [raw.route] * 6 + [b"", control],
    ):
        raw.push_frames(frames)
    raw.push(STAGE, numbered(1))
    raw.hear_staged(STAGE, 1)
    assert raw.hears_nothing()
    row = topic_row(own_broker)
    assert (row["head"], row["stages"]) == (0, 1)
    still_takes_stages(own_broker)


def bad_blocks() -> list[tuple[str, list[bytes]]]:
    header, columns = block_frames([pack([b"one", b"two"])])
    broken = bytearray(columns)
    broken[20] ^= 1
    return [
        ("E_CHECKSUM", [header, bytes(broken)]),
        ("E_BAD_BLOCK", [header[:-1], columns]),
        ("E_BAD_COMMAND", [header, columns[:-8]]),
        ("E_BAD_COMMAND", [header]),
        ("E_BAD_BLOCK", [header, columns, header, columns]),
        ("E_BAD_BLOCK", block_frames([pack([b"x"], producer_id=77)])),
    ]


@pytest.mark.parametrize("number", range(len(bad_blocks())))
def test_a_bad_block_is_the_end_of_its_stage(
    own_broker: Broker, raw: RawStage, number: int
) -> None:
    code, frames = bad_blocks()[number]
    if raw.route != b"-" and len(frames) != 2:
        pytest.skip("the gateway forwards whole pushes only")
    raw.open(STAGE)
    raw.push_frames([raw.route, b"", encode(p.Push(STAGE)), *frames])
    told = raw.hear()
    assert isinstance(told, p.Failed)
    assert (told.request, told.code) == (0, code)
    raw.push(STAGE, numbered(2))
    for word in (p.Seal(5, STAGE, 0, 0, 0, True), p.OpenStage(6, STAGE, "raw", 1, "app", 0)):
        refused = raw.ask(word)
        assert isinstance(refused, p.Failed)
        assert refused.code == code
    answer = {"dropped": 1, "committed": False, "version": -1}
    assert raw.ask(p.Abort(7, "", 0, (STAGE,))) == p.Done(7, answer)
    assert raw.open(STAGE)["expected"] == 0
    still_takes_stages(own_broker)


def test_each_impossible_stage_message_is_refused(own_broker: Broker, raw: RawStage) -> None:
    raw.open(STAGE)
    for word, code in (
        (p.OpenStage(5, b"short", "raw", 1, "app", 0), "E_BAD_ARGUMENT"),
        (p.OpenStage(5, STAGE, "raw", 2, "app", 0), "E_BAD_ARGUMENT"),
        (p.OpenStage(5, STAGE, "", 1, "app", 0), "E_BAD_ARGUMENT"),
        (p.OpenStage(5, STAGE, "x" * 257, 1, "app", 0), "E_BAD_ARGUMENT"),
        (p.OpenStage(5, STAGE, "raw", -1, "app", 0), "E_BAD_ARGUMENT"),
        (p.OpenStage(5, STAGE, "raw", 1, "other", 0), "E_BAD_ARGUMENT"),
        (p.Seal(5, b"?" * 16, 0, 0, 0, True), "E_NOT_FOUND"),
        (p.Seal(5, STAGE, 0, 1, 0, True), "E_BAD_ARGUMENT"),
        (p.Commit(5, "raw", 1, "app", ((STAGE, 0, 0, 0, 0),)), "E_NOT_FOUND"),
        (p.Commit(5, "raw", 1, "app", (b"x",)), "E_BAD_ARGUMENT"),  # type: ignore[arg-type]
        (
            p.Commit(
                5,
                "raw",
                1,
                "app",
                tuple((b"%016d" % n, 0, 0, 0, 0) for n in range(p.STAGE_PARTS_MAX + 1)),
            ),
            "E_BAD_ARGUMENT",
        ),
        (p.Fetch(5, 0, 1), "E_BAD_COMMAND"),
        (p.Staged(STAGE, 1), "E_BAD_COMMAND"),
    ):
        refused = raw.ask(word)
        assert isinstance(refused, p.Failed), word
        assert refused.code == code, (word, refused)
    assert raw.ask(p.Abort(6, "raw", 1, (5, STAGE))) == p.Done(  # type: ignore[arg-type]
        6, {"dropped": 1, "committed": False, "version": -1}
    )
    still_takes_stages(own_broker)


def test_another_link_takes_a_stage_over(own_broker: Broker, raw: RawStage) -> None:
    raw.open(STAGE)
    raw.push(STAGE, numbered(2))
    raw.hear_staged(STAGE, 2)
    other = RawStage(own_broker)
    try:
        assert other.open(STAGE)["expected"] == 2
        raw.push(STAGE, numbered(1, first=2))
        other.hear_staged(STAGE, 3)
        assert raw.ask(p.Seal(5, STAGE, 3, 1, 1, True)) == p.Bye()
    finally:
        other.close()


def test_more_than_the_credit_costs_no_memory(own_broker: Broker, raw: RawStage) -> None:
    """The writer pushes 400 MB as fast as the sockets accept it, and never waits for an answer."""
    raw.open(STAGE)
    before = private_bytes(own_broker)
    peak: dict[str, int] = {}
    block = pack([b"x" * 1_000] * 250)
    for number in range(1_600):
        raw.push(STAGE, [Block(block.header._replace(sequence=number), block.payload)])
        if number % 400 == 399:
            for name, size in private_bytes(own_broker).items():
                peak[name] = max(peak.get(name, 0), size - before.get(name, size))
    assert {name: size for name, size in peak.items() if size >= MEMORY_MAX} == {}
    assert raw.ask(p.Abort(5, "", 0, (STAGE,)), 60) is not None
    wait_for(lambda: not staged_files(own_broker), 20, "the end of its files")


def test_many_writers_share_the_credit(own_broker: Broker, raw: RawStage) -> None:
    granted = [raw.open(b"%016d" % n)["credit_bytes"] for n in range(60)]
    assert min(granted) == 64 << 10
    assert sum(granted) <= 36 << 20
    raw.say(p.Bye())
    other = RawStage(own_broker)
    try:
        assert other.open(STAGE)["credit_bytes"] == 4 << 20
    finally:
        other.close()


def test_bodies_survive_their_way(own_broker: Broker) -> None:
    bodies = [*bodies_of("a", 10), b"", b"\0" * 1_000_000]
    part = write(own_broker.ipc, bodies, per_block=3)
    with StageCommitter(TOPIC, url=own_broker.ipc) as committer:
        committer.commit("app", 1, [part])
    assert stored(own_broker.ipc) == bodies
    assert len(blocks_of(bodies, 3)) == part[1]
