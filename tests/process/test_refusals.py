"""Tests of bad input and bad conditions: each gives a clear error, and nothing is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import zmq
from support.broker import Broker, free_port

import zsq
from zsq.transport.block.block import pack
from zsq.transport.wire import protocol
from zsq.transport.wire.codec import block_frames, decode, encode


def serve(
    data_dir: Path, port: int, *more: str, before: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    command = [
        *before,
        sys.executable,
        "-m",
        "zsq",
        "serve",
        "--data-dir",
        str(data_dir),
        "--listen",
        f"127.0.0.1:{port}",
        *more,
    ]
    command += ["--no-nsq", "--no-http"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def still_serves(broker: Broker) -> None:
    with (
        zsq.Producer(broker.ipc) as producer,
        zsq.Consumer("after", "c", url=broker.ipc) as consumer,
    ):
        producer.publish("after", b"fine")
        message = consumer.receive(10)
        assert message is not None
        message.finish(sync=True)


def test_a_second_serve_is_refused_by_name_and_pid(own_broker: Broker) -> None:
    assert own_broker.process is not None
    second = serve(own_broker.data_dir, own_broker.port)
    assert second.returncode == 1
    assert str(own_broker.data_dir) in second.stderr
    assert f"pid {own_broker.process.pid}" in second.stderr
    still_serves(own_broker)


def test_a_port_in_use_is_named(broker: Broker, tmp_path: Path) -> None:
    second = serve(tmp_path / "other", broker.port)
    assert second.returncode == 1
    assert f"127.0.0.1:{broker.port}" in second.stderr
    assert "in use" in second.stderr.lower()
    still_serves(broker)


def test_a_push_port_in_use_is_named(broker: Broker, tmp_path: Path) -> None:
    second = serve(tmp_path / "other", free_port(), "--listen-push", f"127.0.0.1:{broker.port}")
    assert second.returncode == 1
    assert f"127.0.0.1:{broker.port}" in second.stderr
    assert "--listen-push" in second.stderr


def test_a_directory_without_permission_is_named(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    mortal = []
    if os.geteuid() == 0:  # root can write everywhere unless it drops that capability
        mortal = ["setpriv", "--inh-caps=-all", "--bounding-set=-dac_override,-dac_read_search"]
        assert shutil.which(mortal[0]), "util-linux has it"
    refused = serve(closed / "data", free_port(), before=mortal)
    assert refused.returncode == 1
    assert "ermission denied" in refused.stderr
    assert str(closed) in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    refused = serve(tmp_path / "file" / "data", free_port())
    assert refused.returncode == 1
    assert str(tmp_path / "file") in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_foreign_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.txt").write_text("precious")
    refused = serve(tmp_path / "data", free_port())
    assert refused.returncode == 1
    assert "is not a ZSQ data directory" in refused.stderr
    assert (tmp_path / "data" / "thesis.txt").read_text() == "precious"


def test_a_lost_registry_does_not_start_an_empty_broker(own_broker: Broker) -> None:
    still_serves(own_broker)
    assert own_broker.stop() == 0
    (own_broker.data_dir / "registry.json").rename(own_broker.data_dir / "registry.json.away")
    refused = serve(own_broker.data_dir, own_broker.port)
    assert refused.returncode == 1
    assert "registry.json" in refused.stderr
    (own_broker.data_dir / "registry.json.away").rename(own_broker.data_dir / "registry.json")
    own_broker.start()
    with zsq.Reader("after", url=own_broker.ipc) as reader:
        assert reader.read(0).head == 1


def test_bad_names_and_limits_are_told_before_anything_is_sent(broker: Broker) -> None:
    with zsq.Producer(broker.ipc) as producer:
        for name in ("", "a/b", "..", "x" * 65, "ü"):
            with pytest.raises(zsq.UsageError, match="E_BAD_NAME"):
                producer.publish(name, b"x")
        with pytest.raises(zsq.UsageError, match="1048576"):
            producer.publish("t", b"x" * (1024 * 1024 + 1))
        with pytest.raises(zsq.UsageError, match="256"):
            producer.publish("t", b"x", key=b"k" * 257)
        with pytest.raises(zsq.UsageError):
            producer.publish("t", "text")  # type: ignore[arg-type]
        assert producer.publish("t", b"fine").offset == 0


class Raw:
    """A client that sends any frames, directly to the topic's socket."""

    def __init__(self, broker: Broker) -> None:
        with zsq.Admin(broker.ipc) as admin:
            admin.create_topic("raw")
        self.context = zmq.Context()
        supervisor = self.dial(f"{broker.ipc}/supervisor")
        supervisor.send_multipart([b"", encode(protocol.Lookup(1, "raw", "", False))])
        found = self.word(supervisor)
        assert isinstance(found, protocol.Done)
        supervisor.close()
        self.topic = self.dial(found.data["topic"])

    def dial(self, endpoint: str) -> zmq.Socket[bytes]:
        socket = self.context.socket(zmq.DEALER)
        socket.linger = 0
        socket.connect(endpoint)
        return socket

    def word(self, socket: zmq.Socket[bytes]) -> protocol.Wire:
        assert socket.poll(10_000), "no answer"
        return decode(socket.recv_multipart()[1])

    def ask(self, *frames: bytes) -> protocol.Wire:
        self.topic.send_multipart([b"", *frames])
        return self.word(self.topic)

    def close(self) -> None:
        self.context.destroy(linger=0)


def test_hostile_frames_get_their_error_and_the_topic_lives_on(broker: Broker) -> None:
    raw = Raw(broker)
    try:
        hello = encode(protocol.Hello(protocol.PROTOCOL_VERSION, 4711, 1_000))
        good = block_frames([pack([b"one", b"two"], producer_id=4711)])
        unknown = raw.ask(b"\x91\x7a")
        assert isinstance(unknown, protocol.Failed)
        assert unknown.code == "E_BAD_COMMAND"
        garbage = raw.ask(b"garbage")
        assert isinstance(garbage, protocol.Failed)
        first = raw.ask(encode(protocol.Pub()), *good)
        assert isinstance(first, protocol.Unstored)
        assert first.code == "E_HELLO"
        assert isinstance(raw.ask(hello), protocol.Welcome)
        broken = bytearray(good[1])
        broken[20] ^= 1
        for frames, code in [
            ((good[0], bytes(broken)), "E_CHECKSUM"),
            ((good[0][:-1], good[1]), "E_BAD_BLOCK"),
            ((good[0], good[1][:-8]), "E_BAD_COMMAND"),
            ((good[0],), "E_BAD_COMMAND"),
            (tuple(block_frames([pack([b"x"], producer_id=4711, sequence=5)])), "E_SEQUENCE"),
        ]:
            refused = raw.ask(encode(protocol.Pub()), *frames)
            assert isinstance(refused, protocol.Unstored), refused
            assert refused.code == code, refused
        stored = raw.ask(encode(protocol.Pub()), *good)
        assert stored == protocol.Stored(((0, 0),))
        # A repeated block is answered like the first time.
        assert raw.ask(encode(protocol.Pub()), *good) == stored
        big = raw.ask(encode(protocol.Pub()), good[0], bytes(9 * 1024 * 1024))
        assert isinstance(big, protocol.Unstored)
    finally:
        raw.close()
    with zsq.Reader("raw", url=broker.ipc) as reader:
        assert reader.read(0).head == 2
    still_serves(broker)


def test_the_gateway_lets_no_inner_words_in(broker: Broker) -> None:
    still_serves(broker)
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    try:
        socket.connect(broker.tcp)
        for word in (protocol.Stats(1, "", ""), protocol.Open(1, "storage", "after", "", False)):
            socket.send_multipart([b"", encode(word)])
            assert socket.poll(10_000)
            assert isinstance(decode(socket.recv_multipart()[1]), protocol.Failed)
        socket.send_multipart([b"", encode(protocol.Open(2, "topic", "after", "", False))])
        assert socket.poll(10_000)
        assert isinstance(decode(socket.recv_multipart()[1]), protocol.Done)
        for inner in (protocol.Attach("c", 0, 1 << 20), protocol.Head(1), protocol.Stop()):
            socket.send_multipart([b"", encode(inner)])
            assert socket.poll(10_000)
            refused = decode(socket.recv_multipart()[1])
            assert isinstance(refused, protocol.Failed)
            assert refused.code == "E_BAD_COMMAND"
    finally:
        socket.close()
        context.term()
    still_serves(broker)


@pytest.mark.parametrize("kind", ["supervisor", "topic", "reader", "channel", "stage"])
def test_a_newer_client_learns_which_of_its_requests_the_broker_does_not_know(
    broker: Broker, kind: str
) -> None:
    still_serves(broker)  # which creates the topic and the channel
    raw = Raw(broker)
    request = 70_001
    newer = b"\x93\x7f\xce" + request.to_bytes(4, "big") + b"\xa1x"  # opcode 127, with a text
    try:
        socket = raw.dial(broker.tcp)
        names = {"supervisor": ("", ""), "channel": ("after", "c")}.get(kind, ("after", ""))
        socket.send_multipart([b"", encode(protocol.Open(1, kind, *names, False))])
        assert isinstance(raw.word(socket), protocol.Done)
        more = encode(protocol.Stats(request, "", ""))
        longer = bytes([more[0] + 1]) + more[1:] + b"\xa1x"  # a known word with one field more
        for frame in (newer, longer) if kind == "supervisor" else (newer,):
            socket.send_multipart([b"", frame])
            refused = raw.word(socket)
            assert isinstance(refused, protocol.Failed)
            assert (refused.request, refused.code) == (request, "E_BAD_COMMAND")
        socket.close()
        if kind == "topic":  # the same without a gateway
            direct = raw.ask(newer)
            assert isinstance(direct, protocol.Failed)
            assert (direct.request, direct.code) == (request, "E_BAD_COMMAND")
    finally:
        raw.close()
    still_serves(broker)


def test_a_damaged_block_costs_only_itself(own_broker: Broker) -> None:
    with zsq.Admin(own_broker.ipc) as admin, zsq.Producer(own_broker.ipc) as producer:
        admin.create_channel("t", "c")
        for word in (b"first", b"second", b"third"):
            producer.publish_many("t", [word + b" one", word + b" two"])
    assert own_broker.stop() == 0
    (chunk,) = (own_broker.data_dir / "topics").glob("*/*.chunk")
    data = bytearray(chunk.read_bytes())
    data[data.index(b"second two")] ^= 1
    chunk.write_bytes(data)
    own_broker.start()
    with zsq.Consumer("t", "c", url=own_broker.ipc) as consumer:
        got = [consumer.receive(10) for _ in range(4)]
        assert [m.body for m in got if m is not None] == [
            b"first one",
            b"first two",
            b"third one",
            b"third two",
        ]
        assert [m.offset for m in got if m is not None] == [0, 1, 4, 5]
        assert consumer.receive(0.3) is None
    with zsq.Admin(own_broker.ipc) as admin:
        (row,) = admin.stats("t", "c")["topics"][0]["channels"]
        assert row["lost_count"] == 2
    with zsq.Reader("t", url=own_broker.ipc) as reader:
        first = reader.read(0)
        assert first.blocks[0].body.values() == [b"first one", b"first two"]
        assert reader.read(2).blocks[0].first_offset == 4


def test_damage_at_the_very_end_does_not_stop_a_channel(own_broker: Broker) -> None:
    with zsq.Admin(own_broker.ipc) as admin, zsq.Producer(own_broker.ipc) as producer:
        admin.create_channel("t", "c")
        producer.publish("t", b"whole")
        producer.publish("t", b"damaged")
    assert own_broker.stop() == 0
    (chunk,) = (own_broker.data_dir / "topics").glob("*/*.chunk")
    data = bytearray(chunk.read_bytes())
    data[data.index(b"damaged")] ^= 1
    chunk.write_bytes(data)
    own_broker.start()
    with (
        zsq.Producer(own_broker.ipc) as producer,
        zsq.Consumer("t", "c", url=own_broker.ipc) as consumer,
    ):
        first = consumer.receive(10)
        assert first is not None
        assert first.body == b"whole"
        assert consumer.receive(0.3) is None
        # The offset of the lost message is not used again.
        assert producer.publish("t", b"after").offset == 2
        after = consumer.receive(10)
        assert after is not None
        assert (after.body, after.offset) == (b"after", 2)
