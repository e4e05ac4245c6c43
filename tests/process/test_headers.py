"""Tests of headers that are not valid: nothing stores them, and no reader ends at them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgpack
import pytest
import zmq
from support.broker import Broker
from support.zsq_command import run_text

import zsq
from zsq.storage.directory.store import StoreOptions, open_store, read_identity
from zsq.storage.files import Files
from zsq.storage.state.state import StateBatch
from zsq.transport.block.block import Block, pack
from zsq.transport.block.block_format import ADDRESSED
from zsq.transport.client.blocking.stage_writer import StageWriter
from zsq.transport.wire import protocol as p
from zsq.transport.wire.codec import decode, encode

GOOD: dict[str, Any] = {"text": "é", "bytes": b"\xfe", "n": -1, "f": 0.5, "yes": True, "none": None}
WRONG: list[Any] = [
    {1: "a"},
    {b"a": 1},
    {"k": {1: 2}},
    {"k": [b"\xfe"]},
    {"k": ()},
    {"k": object()},
    {"k": "\ud800"},
    {"k": 1 << 64},
]


def packed(value: Any) -> bytes:
    return bytes(msgpack.packb(value))


HOSTILE = [
    packed({1: "a"}),
    packed({b"a": 1}),
    packed({"k": {"a": 2}}),
    packed({"k": [b"\xfe"]}),
    packed({"k": []}),
    packed({"k": msgpack.Timestamp(1, 2)}),
    packed({"k": msgpack.ExtType(1, b"")}),
    packed({str(number): 1 for number in range(65)}),
    packed([]),
    packed({}) * 2,
    packed({"k": "text"})[:-1],
    b"\x81\xa1k\xa1\xff",  # the value is not UTF-8
    b"\x81\xa1\xff\x01",  # the name is not UTF-8
    b"\xc1",
    b"\x80" * 10_000,
    b"\xdf\xff\xff\xff\xff",
    b"\x81\xa1k\xdd\xff\xff\xff\xff",
    packed({"zsq-channel": "c"}),  # without the flag of its block
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("headers") / "data", http=True) as broker:
        yield broker


@pytest.mark.parametrize("wrong", WRONG)
def test_a_client_refuses_what_no_message_can_have(broker: Broker, wrong: Any) -> None:
    with zsq.Producer(broker.ipc) as producer, zsq.Admin(broker.ipc) as admin:
        with pytest.raises(zsq.UsageError, match="header"):
            producer.publish("refused", b"x", headers=wrong)
        with pytest.raises(zsq.UsageError, match="header"):
            producer.publish_many("refused", [b"x", b"y"], headers=[None, wrong])
        with pytest.raises(zsq.UsageError, match="header"):
            producer.publish("refused", b"x", headers=wrong, delay=60)
        with pytest.raises(zsq.ZsqError):
            admin.schedule_add("refused", "s", cron="* * * * *", body=b"x", headers=wrong)

        async def publish() -> None:
            async with zsq.aio.Producer(broker.ipc) as client:
                await client.publish("refused", b"x", headers=wrong)

        with pytest.raises(zsq.UsageError, match="header"):
            asyncio.run(publish())
        assert "refused" not in admin.topics()


class RawProducer:
    """A client of another kind. It packs blocks as it likes."""

    def __init__(self, url: str) -> None:
        context: Any = zmq.Context.instance()
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.connect(url)
        self._sequence: int = 0

    def open(self, topic: str) -> None:
        self._ask(p.Open(1, "topic", topic, "", True))
        welcome = self._ask(p.Hello(p.PROTOCOL_VERSION, 77, 10_000))
        assert isinstance(welcome, p.Welcome)
        self._sequence = welcome.expected

    def _ask(self, message: p.Wire, *frames: Any) -> p.Wire:
        self._socket.send_multipart([b"", encode(message), *frames])
        assert self._socket.poll(30_000), "no answer"
        return decode(self._socket.recv_multipart()[1])

    def publish(self, block: Block, delay_ms: int = 0) -> p.Wire:
        header = block.header._replace(producer_id=77, sequence=self._sequence)
        sent = Block(header, block.payload, block.columns)
        word = p.PubDelayed(delay_ms) if delay_ms else p.Pub()
        answer = self._ask(word, sent.wire_header(), sent.payload)
        self._sequence += not isinstance(answer, p.Unstored)
        return answer

    def close(self) -> None:
        self._socket.close()


def test_the_broker_refuses_blocks_of_hostile_clients(broker: Broker) -> None:
    with contextlib.closing(RawProducer(broker.tcp)) as raw:
        raw.open("hostile")
        good = packed(GOOD)
        for wrong in HOSTILE:
            for headers in ([wrong], [good, None, wrong, good], [good] * 3 + [wrong] + [b""] * 3):
                block = pack([b"x"] * len(headers), headers=headers)
                for delay_ms in (0, 60_000):
                    answer = raw.publish(block, delay_ms)
                    assert isinstance(answer, p.Unstored)
                    assert answer.code == "E_BAD_BLOCK"
        # Two that are only valid together.
        halves = pack([b"x"] * 2, headers=[b"\x81\xa1k\xc4\x02", b"\x80\x80\x80"])
        assert isinstance(raw.publish(halves), p.Unstored)
        many = [packed({"n": number, "text": "x" * 100}) for number in range(3000)]
        fine = pack([b"x"] * 3003, headers=[good, None, b"", *many])
        assert isinstance(raw.publish(fine), p.Stored)
        block = pack([b"x"], headers=[packed({"zsq-channel": "c"})])
        flagged = Block(block.header._replace(flags=ADDRESSED), block.payload, block.columns)
        assert isinstance(raw.publish(flagged), p.Stored)
    with zsq.Reader("hostile", url=broker.ipc) as reader:
        assert reader.bounds() == (0, 3004)
        assert [reader.message(offset).headers for offset in (0, 1, 2)] == [GOOD, {}, {}]
        found = reader.message(3003)
        assert (found.headers, found.only_channel) == ({}, "c")


@pytest.mark.parametrize("wrong", [packed({1: "a"}), packed({"zsq-channel": "c"})])
def test_the_broker_refuses_staged_blocks_too(broker: Broker, wrong: bytes) -> None:
    with StageWriter("staged", "app", 0, url=broker.ipc, timeout=20) as writer:
        writer.push(pack([b"x"], headers=[wrong]))
        with pytest.raises(zsq.UsageError, match="E_BAD_BLOCK"):
            writer.seal()


def test_http_refuses_them(broker: Broker) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{broker.http}/api") as web:
        for wrong in ({"k": {"a": 1}}, {"k": [1]}):
            sent = {"body": "x", "headers": wrong}
            answer = web.post("/topic/publish", params={"topic": "web"}, json=sent)
            assert (answer.status_code, "a header must be" in answer.text) == (400, True)


OLD = [packed({1: "a"}), packed({"k": {1: 2}}), packed({"k": [b"\xfe"]}), b"\xc1", packed(GOOD)]
COUNT = len(OLD) + 1
TEXT = "zsq-unreadable"


def store_old(broker: Broker) -> None:
    """Append a block with such headers to the topic of the stopped broker."""
    [directory] = (broker.data_dir / "topics").iterdir()
    identity = read_identity(Files(), str(directory))
    assert identity is not None
    store = open_store(Files(), str(directory), StoreOptions(), identity)
    try:
        store.log.append([pack([b"x"] * len(OLD), headers=OLD)], 1)
        ticket = store.log.begin_sync()
        ticket.run()
        store.log.finish_sync(ticket)
        store.state.commit(StateBatch(synced_end=store.log.synced_end))
    finally:
        store.close()


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose log has headers that the broker would refuse now."""
    with Broker(tmp_path_factory.mktemp("stored") / "data", http=True) as broker:
        with zsq.Producer(broker.ipc) as producer:
            producer.publish("old", b"first")
        assert broker.stop() == 0
        store_old(broker)
        yield broker.start()


def test_no_command_ends_at_headers_that_are_not_valid(stored: Broker, tmp_path: Path) -> None:
    def run(*arguments: object) -> list[Any]:
        done = run_text(*arguments, ZSQ_URL=stored.ipc)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    tail = run("tail", "old", "--from", "earliest", "--no-follow", "--json")
    sub = run("sub", "old", "c", "-n", str(COUNT), "--start", "earliest", "--json")
    peek = run("peek", "old", "--json")
    for shown in (tail, sub, peek):
        assert len(shown) == COUNT
        assert [base64.b64decode(one["headers_base64"][TEXT]) for one in shown[1:-1]] == OLD[:-1]
        assert shown[-1]["headers"]["text"] == "é"
    done = run_text("message", "old", "2", "--json", ZSQ_URL=stored.ipc)
    assert TEXT in json.loads(done.stdout)["headers_base64"]
    run("export", "old", "--to", tmp_path / "old.parquet")
    lines = [json.dumps(one) for one in tail]
    done = run_text("pub", "copy", "--json-lines", stdin="\n".join(lines), ZSQ_URL=stored.ipc)
    assert done.returncode == 0, done.stderr


def test_no_reader_and_no_consumer_ends_at_headers_that_are_not_valid(stored: Broker) -> None:
    with zsq.Reader("old", url=stored.ipc) as reader:
        assert [reader.message(offset).headers for offset in range(1, COUNT)] == [
            *({TEXT: one} for one in OLD[:-1]),
            GOOD,
        ]
        rows = reader.arrow(columns=["headers"]).read_all().to_pylist()
        assert rows[1]["headers"] == [(TEXT, OLD[0])] or rows[1]["headers"][0]["value"] == OLD[0]
    with zsq.Consumer("old", "seen", url=stored.ipc, start="earliest") as consumer:
        for one in [None, *OLD[:-1]]:
            message = consumer.receive(20)
            assert message is not None
            assert message.headers == ({} if one is None else {TEXT: one})
            message.reject()
    with httpx.Client(base_url=f"http://127.0.0.1:{stored.http}/api") as web:
        for path in ("search", "messages"):
            shown = web.get(f"/{path}", params={"topic": "old", "offset": 0}).json()["messages"]
            assert [TEXT in one["headers"] for one in shown] == [False, *[True] * 4, False]
        lines = web.get("/download", params={"topic": "old"}).text.splitlines()
        assert [TEXT in line for line in lines] == [False, *[True] * 4, False]
