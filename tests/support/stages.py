"""Helpers for tests of stages on a real broker. They write stages, look at the stages' files, and
send messages that a correct writer would not send.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import zmq

import zsq
from zsq.transport.block.block import Block, pack
from zsq.transport.client.blocking.stage_writer import StagePart, StageWriter
from zsq.transport.wire import protocol as p
from zsq.transport.wire.codec import block_frames, decode, encode

from .broker import Broker

TOPIC = "staged"


def bodies_of(name: str, count: int, size: int = 0) -> list[bytes]:
    """Return distinct bodies, padded to `size`."""
    return [f"{name}-{n}-".encode().ljust(size, b".") for n in range(count)]


def blocks_of(bodies: Sequence[bytes], per_block: int = 100) -> list[Block]:
    return [pack(bodies[i : i + per_block]) for i in range(0, len(bodies), per_block)]


def write(
    url: str,
    bodies: Sequence[bytes],
    app: str = "app",
    version: int = 1,
    *,
    topic: str = TOPIC,
    per_block: int = 100,
) -> StagePart:
    """Write and seal the part of one task."""
    with StageWriter(topic, app, version, url=url, heartbeat_ms=1_000) as writer:
        for block in blocks_of(bodies, per_block):
            writer.push(block)
        part = writer.seal()
    assert part is not None
    return part


def stored(url: str, topic: str = TOPIC, start: int = 0) -> list[bytes]:
    """Return all bodies of the topic in their order. The offsets must have no gaps."""
    found: list[bytes] = []
    with zsq.Reader(topic, url=url) as reader:
        while True:
            fetched = reader.read(start + len(found))
            for block in fetched.blocks:
                assert block.header.flags == 0
                skip = start + len(found) - block.first_offset
                assert 0 <= skip < block.count
                found += [body for body in block.body.values()[skip:] if body is not None]
            if start + len(found) >= fetched.head:
                return found


def staged_files(broker: Broker) -> list[str]:
    return sorted(path.name for path in Path(broker.data_dir).glob("topics/*/staging/*"))


def topic_row(broker: Broker, topic: str = TOPIC) -> dict[str, Any]:
    with zsq.Admin(broker.ipc) as admin:
        return dict(admin.stats(topic)["topics"][0])


def private_bytes(broker: Broker) -> dict[str, int]:
    return {actor["name"]: actor["private_bytes"] for actor in broker.actors()}


class RawStage:
    """A writer that need not follow the protocol, with one link and one PUSH socket."""

    def __init__(self, broker: Broker, *, topic: str = TOPIC, over_tcp: bool = False) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.route = b"-"
        with zsq.Admin(broker.ipc) as admin:
            admin.create_topic(topic)
        found = self._lookup(broker, topic)
        if over_tcp:
            self.link = self._dial(broker.tcp, zmq.DEALER)
            opened = self.ask(p.Open(1, "stage", topic, "", True))
            assert isinstance(opened, p.Done)
            self.route = opened.data["route"]
            push = f"tcp://127.0.0.1:{opened.data['push_port']}"
        else:
            self.link = self._dial(found["stage"], zmq.DEALER)
            push = found["push"]
        self.push_socket = self._dial(push, zmq.PUSH)

    def _lookup(self, broker: Broker, topic: str) -> dict[str, Any]:
        self.link = self._dial(f"{broker.ipc}/supervisor", zmq.DEALER)
        answer = self.ask(p.Lookup(1, topic, "", True))
        self.link.close()
        assert isinstance(answer, p.Done)
        return answer.data

    def _dial(self, endpoint: str, kind: int) -> zmq.Socket[bytes]:
        socket = self.context.socket(kind)
        socket.linger = 0
        socket.connect(endpoint)
        return socket

    def say(self, message: p.Wire) -> None:
        self.link.send_multipart([b"", encode(message)])

    def hear(self, timeout_s: float = 10.0) -> p.Wire:
        assert self.link.poll(int(timeout_s * 1000)), "no answer"
        return decode(self.link.recv_multipart()[1])

    def hears_nothing(self, timeout_s: float = 0.3) -> bool:
        return not self.link.poll(int(timeout_s * 1000))

    def ask(self, message: p.Wire, timeout_s: float = 10.0) -> p.Wire:
        self.say(message)
        return self.hear(timeout_s)

    def open(self, stage: bytes, app: str = "raw", version: int = 1) -> dict[str, Any]:
        answer = self.ask(p.OpenStage(2, stage, app, version, "app", 0))
        assert isinstance(answer, p.Done), answer
        return answer.data

    def push(self, stage: bytes, blocks: Iterable[Block]) -> None:
        for block in blocks:
            self.push_frames([self.route, b"", encode(p.Push(stage)), *block_frames([block])])

    def push_frames(self, frames: Sequence[Any]) -> None:
        assert self.push_socket.poll(20_000, zmq.POLLOUT), "the socket takes no more"
        self.push_socket.send_multipart(list(frames))

    def hear_staged(self, stage: bytes, received: int) -> None:
        while (message := self.hear()) != p.Staged(stage, received):
            assert isinstance(message, p.Staged), message

    def close(self) -> None:
        self.link.close(linger=0)
        self.push_socket.close(linger=0)
        self.context.term()
