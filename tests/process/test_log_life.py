"""Tests of the log from outside: statistics of chunks, damage that is found while the broker
serves, and reading single messages and the newest ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.broker import Broker, kill, wait_for
from support.zsq_command import run

import zsq

COUNT = 40
CHUNK_BYTES = 65_536


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Broker]:
    """Start a broker whose topic has several chunks, with blocks of ten messages."""
    with Broker(tmp_path / "data", "--chunk-bytes", str(CHUNK_BYTES), "--node-id", "5") as one:
        with zsq.Producer(one.ipc) as producer:
            for number in range(COUNT):
                producer.publish_many(
                    "t",
                    [b"%d.%d " % (number, i) + b"x" * 900 for i in range(10)],
                    tags=[f"t{number}"] * 10,
                )
        yield one


def zsq_cli(broker: Broker, *arguments: str, code: int = 0) -> bytes:
    ended = run(*arguments, ZSQ_URL=broker.ipc)
    assert ended.returncode == code, ended.stderr.decode()
    return ended.stdout if code == 0 else ended.stderr


def topic(broker: Broker) -> dict[str, Any]:
    with zsq.Admin(broker.ipc) as admin:
        return dict(admin.stats("t")["topics"][0])


def read_all(broker: Broker) -> list[int]:
    """Return every offset that can be read."""
    found: list[int] = []
    with zsq.Reader("t", url=broker.ipc) as reader:
        offset, head = reader.bounds()
        while offset < head:
            fetched = reader.read(offset)
            for block in fetched.blocks:
                found += range(block.first_offset, block.next_offset)
            offset = fetched.next_offset
    return found


def test_chunk_statistics_agree_with_the_files(filled: Broker) -> None:
    with zsq.Admin(filled.ipc) as admin:
        found = admin.chunks("t")
        assert read_all(filled) == list(range(COUNT * 10))
        after = admin.chunks("t")
    rows = found["chunks"]
    assert [row["state"] for row in rows] == ["sealed"] * (len(rows) - 1) + ["ongoing"]
    assert len(rows) >= 4
    assert sum(row["messages"] for row in rows) == found["total"]["messages"] == COUNT * 10
    folder = filled.data_dir / "topics" / "000001"
    for row in rows:
        assert row["bytes"] == (folder / f"{row['first_offset']:020d}.chunk").stat().st_size
        assert 0 < (row["first_time_ns"] or 0) <= (row["last_time_ns"] or 0)
    assert found["total"]["written_bytes"] >= sum(row["bytes"] or 0 for row in rows) - 200 * len(
        rows
    )
    reads = (
        after["total"]["ring_reads"]
        + after["total"]["file_reads"]
        - found["total"]["ring_reads"]
        - found["total"]["file_reads"]
    )
    assert reads >= 1
    shown = zsq_cli(filled, "stats", "--chunks", "t").decode()
    assert "ongoing" in shown
    assert f"all {len(rows)}" in shown
    told = json.loads(zsq_cli(filled, "stats", "--chunks", "t", "--json"))
    assert [row["first_offset"] for row in told["chunks"]] == [row["first_offset"] for row in rows]
    assert b"--chunks" in zsq_cli(filled, "stats", "--chunks", code=2)


def test_the_newest_messages_and_single_ones_can_be_read(filled: Broker) -> None:
    with zsq.Reader("t", url=filled.ipc) as reader:
        assert reader.newest(13) == COUNT * 10 - 13
        assert reader.newest(10_000) == 0
        with pytest.raises(zsq.UsageError):
            reader.newest(10_001)
        found = reader.message(17)
        assert (found.offset, found.body[:4], found.tag) == (17, b"1.7 ", "t1")
        with pytest.raises(zsq.NotFound, match="ends at offset 400"):
            reader.message(400)
    assert zsq_cli(filled, "tail", "t", "--last", "2", "--no-follow").decode().split()[0::2] == [
        "39.8",
        "39.9",
    ]
    assert zsq_cli(filled, "message", "t", "17").startswith(b"1.7 x")
    told = json.loads(zsq_cli(filled, "message", "t", f"{5 << 54 | 17:016x}", "--json"))
    assert (told["offset"], told["tag"], told["body"][:4]) == (17, "t1", "1.7 ")
    assert b"node 6" in zsq_cli(filled, "message", "t", f"{6 << 54 | 17:016x}", code=1)
    assert b"ends at offset 400" in zsq_cli(filled, "message", "t", "400", code=1)
    assert b"neither" in zsq_cli(filled, "message", "t", "abc", code=2)


def test_damage_is_told_once_kept_and_known_after_a_restart(filled: Broker) -> None:
    folder = filled.data_dir / "topics" / "000001"
    kill(filled.pids("supervisor")[0])
    assert filled.process is not None
    filled.process.wait(20)
    filled.wait_gone(sorted(filled._known))
    first = folder / f"{0:020d}.chunk"
    data = bytearray(first.read_bytes())
    data[data.index(b"2.5 x")] ^= 1
    first.write_bytes(data)
    filled.start()
    lost = set(range(20, 30))
    assert read_all(filled) == [offset for offset in range(COUNT * 10) if offset not in lost]
    wait_for(lambda: list(folder.glob("*.bad")), 20, "the .bad file")
    wait_for(lambda: topic(filled)["lost_messages"] == 10, 20, "the count of lost messages")
    told = topic(filled)
    assert told["damaged_blocks"] == 1
    assert "10 messages from offset 20 on are lost" in told["health"]
    with zsq.Admin(filled.ipc) as admin:
        assert admin.chunks("t")["chunks"][0]["bad"] == 1
    with zsq.Reader("t", url=filled.ipc) as reader, pytest.raises(zsq.NotFound, match="damaged"):
        reader.message(25)
    assert filled.stop() == 0

    filled.start()
    wait_for(lambda: topic(filled)["lost_messages"] == 10, 20, "the count after a restart")
    told = topic(filled)
    assert told["health"] == "OK", "it is known now, and no alarm any more"
    assert "10 messages lost in 1 stretches" in told["recovery"]["text"]
    assert told["recovery"]["text"] in filled.log.read_text()
    with zsq.Consumer("t", "all", url=filled.ipc, ready=1000) as consumer:
        found: set[int] = set()
        while len(found) < COUNT * 10 - 10:
            batch = consumer.receive_batch(20)
            assert batch is not None
            found |= {message.offset for message in batch.messages()}
            batch.finish()
    assert found == set(range(COUNT * 10)) - lost, "a channel steps over it too"
