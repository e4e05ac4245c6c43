"""Tests of a topic with one damaged block: every reader says which messages it could not read."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.broker import Broker
from support.zsq_command import run_text

import zsq
from zsq.transport.client.blocking.range_reader import RangeReader

BLOCKS, COUNT = 10, 50
FIRST, STOP = 200, 250
HEAD = BLOCKS * COUNT
LEFT = [offset for offset in range(HEAD) if not FIRST <= offset < STOP]
WHY = f"offsets {FIRST} to {STOP - 1} of topic t cannot be read: the broker found damage there"


def damage(broker: Broker, body: bytes) -> None:
    """Flip a bit of a body in the log of the stopped broker."""
    [chunk] = [path for path in broker.data_dir.rglob("*.chunk") if body in path.read_bytes()]
    data = bytearray(chunk.read_bytes())
    data[data.index(body)] ^= 1
    chunk.write_bytes(data)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("damaged") / "data", http=True) as broker:
        with zsq.Producer(broker.ipc) as producer:
            for first in range(0, HEAD, COUNT):
                bodies = [b"message-%06d" % offset for offset in range(first, first + COUNT)]
                producer.publish_many("t", bodies)
        assert broker.stop() == 0
        damage(broker, b"message-%06d" % (FIRST + 7))
        yield broker.start()


@pytest.mark.parametrize("form", [[], ["--json"], ["--grep", "message"]])
def test_tail_says_which_messages_it_leaves_out(broker: Broker, form: list[str]) -> None:
    tail = ["tail", "t", "--from", "earliest", "--no-follow", *form]
    done = run_text(*tail, ZSQ_URL=broker.ipc)
    assert len(done.stdout.splitlines()) == len(LEFT)
    said = f"zsq: {WHY}; see its log\nzsq: 50 messages could not be read and were left out\n"
    assert (done.stderr, done.returncode) == (said, 4)
    follow = ["tail", "t", "--from", "earliest", "-n", str(len(LEFT)), *form]
    done = run_text(*follow, ZSQ_URL=broker.tcp)
    assert (done.stderr, done.returncode) == (said, 4)


def test_tail_is_content_with_a_part_that_is_not_damaged(broker: Broker) -> None:
    for place in (["--last", "250"], ["--from", "earliest", "-n", str(FIRST)]):
        done = run_text("tail", "t", "--no-follow", *place, ZSQ_URL=broker.ipc)
        assert (done.stderr, done.returncode) == ("", 0)
        assert len(done.stdout.splitlines()) in (250, FIRST)


def test_a_reader_warns_or_fails_and_names_the_lost_messages(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    def read(reader: zsq.Reader) -> tuple[list[int], list[tuple[int, int]]]:
        offset = 0
        offsets: list[int] = []
        lost: list[tuple[int, int]] = []
        while offset < HEAD:
            found = reader.read(offset, 4096)
            for block in found.blocks:
                offsets += range(block.first_offset, block.next_offset)
            lost += found.lost
            offset = found.next_offset
        return offsets, lost

    with zsq.Reader("t", url=broker.ipc) as reader, caplog.at_level(logging.WARNING, "zsq"):
        assert read(reader) == (LEFT, [(FIRST, STOP - FIRST)])
    assert [record.getMessage() for record in caplog.records] == [f"{WHY}; see its log"]
    with (
        zsq.Reader("t", url=broker.ipc, on_data_loss="fail") as reader,
        pytest.raises(zsq.DataLoss, match=f"{WHY}.* read on from offset {STOP}"),
    ):
        read(reader)
    caplog.clear()
    with zsq.Reader("t", url=broker.ipc, on_data_loss="ignore") as reader:
        assert read(reader) == (LEFT, [(FIRST, STOP - FIRST)])
        with pytest.raises(zsq.NotFound, match="it was damaged"):
            reader.message(FIRST)
    assert not caplog.records


def test_an_asyncio_reader_warns_or_fails_too(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    async def read() -> None:
        async with zsq.aio.Reader("t", url=broker.ipc) as reader:
            assert (await reader.read(FIRST)).lost == [(FIRST, STOP - FIRST)]
        async with zsq.aio.Reader("t", url=broker.ipc, on_data_loss="fail") as reader:
            with pytest.raises(zsq.DataLoss, match=WHY):
                await reader.read(FIRST)

    with caplog.at_level(logging.WARNING, "zsq"):
        asyncio.run(read())
    assert [record.getMessage() for record in caplog.records] == [f"{WHY}; see its log"]


def test_a_range_and_arrow_fail_or_count(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    with (
        RangeReader("t", 0, HEAD, url=broker.ipc) as blocks,
        pytest.raises(zsq.DataLoss, match=WHY),
    ):
        list(blocks)
    with RangeReader("t", 0, HEAD, url=broker.ipc, on_data_loss="warn") as blocks:
        assert sum(block.count for block in blocks) == len(LEFT)
        assert blocks.gaps == [(FIRST, STOP - FIRST)]
    with zsq.Reader("t", url=broker.ipc) as reader:
        with pytest.raises(zsq.DataLoss, match=WHY):
            reader.arrow().read_all()
        with caplog.at_level(logging.WARNING, "zsq"):
            table = reader.arrow(on_data_loss="warn").read_all()
    assert table["offset"].to_pylist() == LEFT
    assert f"[({FIRST}, {STOP - FIRST})]" in caplog.text


def test_export_fails_or_says_what_it_left_out(broker: Broker, tmp_path: Path) -> None:
    done = run_text("export", "t", "--to", tmp_path / "a.parquet", ZSQ_URL=broker.ipc)
    assert (done.returncode, done.stdout) == (4, "")
    assert WHY in done.stderr
    export = ["export", "t", "--to", tmp_path / "b.parquet", "--skip-lost"]
    done = run_text(*export, ZSQ_URL=broker.ipc)
    assert done.returncode == 0
    assert f"t: without offsets {FIRST} to {STOP - 1}" in done.stdout
    done = run_text(
        *export[:3], tmp_path / "c.parquet", "--skip-lost", "--json", ZSQ_URL=broker.ipc
    )
    assert json.loads(done.stdout)["gaps"] == {"t": [[FIRST, STOP - FIRST]]}


def test_peek_counts_what_it_cannot_read(broker: Broker) -> None:
    with zsq.Admin(broker.ipc) as admin:
        admin.create_channel("t", "c", start="earliest")
    for place in (["t", "-n", "300"], ["t", "c", "-n", "300"]):
        done = run_text("peek", *place, ZSQ_URL=broker.ipc)
        assert "50 messages cannot be read" in done.stderr


def test_the_console_counts_what_it_cannot_read(broker: Broker) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{broker.http}/api") as web:
        found = web.get("/search", params={"topic": "t", "text": "message-0004"}).json()
        assert (len(found["messages"]), found["missing"]) == (100, 50)
        shown = web.get("/messages", params={"topic": "t", "offset": FIRST - 5, "count": 10})
        assert shown.json()["missing"] == 50
        lines = web.get("/download", params={"topic": "t"}).text.splitlines()
        cut = {"cut": f"{WHY}; see its log", "next_offset": STOP}
        assert (len(lines) - 1, json.loads(lines[-1])) == (FIRST, cut)
        query: dict[str, str | int] = {"topic": "t", "offset": FIRST - 5}
        counts = {"messages": 0, "missing": 0}
        with web.stream("GET", "/tail", params=query, timeout=30) as stream:
            for line in stream.iter_lines():
                if line.startswith("data: ") and "messages" in (data := json.loads(line[6:])):
                    counts["messages"] += len(data["messages"])
                    counts["missing"] += data["missing"]
                    if data["offset"] >= STOP + 5:
                        break
    assert counts["missing"] == 50


def test_a_backup_says_that_messages_are_damaged(broker: Broker, tmp_path: Path) -> None:
    with zsq.Reader("t", url=broker.ipc) as reader:
        reader.read(FIRST)  # the broker notes the damage when it is read
    done = run_text("backup", broker.data_dir, tmp_path / "backup")
    assert done.returncode == 0, done.stderr
    assert "warning: topic t: 50 of its messages are damaged" in done.stdout


def test_messages_that_retention_removed_are_no_damage(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    with zsq.Producer(broker.ipc) as producer, zsq.Admin(broker.ipc) as admin:
        producer.publish_many("again", [b"old"] * 10)
        admin.delete_topic("again", force=True)
    with zsq.Producer(broker.ipc) as producer:
        producer.publish_many("again", [b"new"] * 5)
    for start, said in (("earliest", ""), ("0", ""), ("4", "offsets 4 to 9 of topic again")):
        done = run_text("tail", "again", "--from", start, "--no-follow", ZSQ_URL=broker.ipc)
        assert (done.stdout, done.returncode) == ("new\n" * 5, 0)
        assert said in done.stderr
        assert bool(said) == bool(done.stderr)
    with zsq.Reader("again", url=broker.ipc) as reader:
        with caplog.at_level(logging.WARNING, "zsq"):
            assert reader.read(0).lost == []
        assert not caplog.records
        with caplog.at_level(logging.WARNING, "zsq"):
            reader.read(3)
        assert "offsets 3 to 9 of topic again cannot be read" in caplog.text
    with (
        zsq.Reader("again", url=broker.ipc, on_data_loss="fail") as reader,
        pytest.raises(zsq.DataLoss, match="offsets 3 to 9"),
    ):
        reader.read(3)
