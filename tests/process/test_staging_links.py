"""Tests of the links of stage writers: what they are told when the other end goes away, and that
they leave nothing behind when they end.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import zmq
from support.broker import Broker, kill, wait_for
from support.stages import TOPIC, RawStage, private_bytes

from zsq.actors.runtime.port import Port
from zsq.actors.settings import options
from zsq.transport.block.block import Block, pack
from zsq.transport.client.blocking.stage_writer import StageCommitter, StageWriter
from zsq.transport.wire import protocol as p

STAGE = b"0123456789abcdef"
MEMORY_MAX = 64 * 1024 * 1024


@pytest.mark.parametrize("way", ["ipc", "tcp"])
def test_writers_are_told_that_the_broker_stops(own_broker: Broker, way: str) -> None:
    raw = RawStage(own_broker, over_tcp=way == "tcp")
    try:
        raw.open(STAGE)
        assert own_broker.process is not None
        own_broker.process.terminate()
        assert raw.hear() == p.Bye()
        assert own_broker.stop() == 0
    finally:
        raw.close()


def test_writers_behind_a_gateway_are_told_that_storage_died(own_broker: Broker) -> None:
    """The writers are told at once, and not after two heartbeats of 30 s."""
    raw = RawStage(own_broker, over_tcp=True)
    try:
        raw.open(STAGE)
        (storage,) = own_broker.pids("topic")
        kill(storage)
        assert raw.hear() == p.Bye()
    finally:
        raw.close()


def test_credit_behind_a_gateway_that_died_is_free(own_broker: Broker) -> None:
    """The credit is free at once, and not after two heartbeats of 30 s."""
    far, near = RawStage(own_broker, over_tcp=True), RawStage(own_broker)
    try:
        for number in range(20):
            far.open(b"%016d" % number)
        assert near.open(STAGE)["credit_bytes"] < options.STAGE_CREDIT_BYTES
        (gateway,) = own_broker.pids("gateway")
        kill(gateway)
        wait_for(
            lambda: near.open(STAGE)["credit_bytes"] == options.STAGE_CREDIT_BYTES,
            15,
            "the credit of those behind the gateway",
        )
    finally:
        far.close()
        near.close()


def test_the_push_port_of_a_gateway_that_was_started_again(own_broker: Broker) -> None:
    block = pack([b"x" * 1_000] * 100)
    with StageWriter(TOPIC, "app", 1, url=own_broker.tcp, heartbeat_ms=1_000) as writer:
        for round_number in range(3):
            for _ in range(30):
                writer.push(block)
            if round_number < 2:
                (gateway,) = own_broker.pids("gateway")
                kill(gateway)
                own_broker.wait_gone([gateway])
        part = writer.seal()
    with StageCommitter(TOPIC, url=own_broker.tcp) as committer:
        assert committer.commit("app", 1, [part])["messages"] == 9_000


def test_a_gateway_holds_a_bounded_part_of_what_a_stopped_storage_does_not_take(
    own_broker: Broker,
) -> None:
    """A writer pushes 300 MB without waiting for credit. Blocks that do not fit are dropped, and
    other topics are still served.
    """
    raw, other = (
        RawStage(own_broker, over_tcp=True),
        RawStage(own_broker, topic="other", over_tcp=True),
    )
    try:
        raw.open(STAGE)
        other.open(STAGE)
        before = private_bytes(own_broker)["gateway zeromq"]
        storages = {
            actor["name"]: actor["pid"] for actor in own_broker.actors() if actor["kind"] == "topic"
        }
        stopped = storages[f"topic {TOPIC}"]
        os.kill(stopped, signal.SIGSTOP)
        try:
            block = pack([b"x" * 1_000] * 250)
            for number in range(1_200):
                raw.push(STAGE, [Block(block.header._replace(sequence=number), block.payload)])
            other.push(STAGE, [pack([b"x"])])
            other.hear_staged(STAGE, 1)
            assert private_bytes(own_broker)["gateway zeromq"] - before < MEMORY_MAX
        finally:
            os.kill(stopped, signal.SIGCONT)
        told: list[p.Wire] = []

        def hears_of_the_gap() -> bool:
            # This block may be dropped like those before it.
            raw.push(STAGE, [Block(block.header._replace(sequence=1_200), block.payload)])
            if not raw.hears_nothing(0.1):
                told.append(raw.hear())
            return bool(told) and isinstance(told[-1], p.Missing)

        wait_for(hears_of_the_gap, 20, "the news of what is missing")
        assert {type(word) for word in told} == {p.Staged, p.Missing}, "what was held has arrived"
    finally:
        raw.close()
        other.close()


def test_a_pull_socket_leaves_with_the_writer_what_is_above_its_mark(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    port = Port(context, zmq.PULL, mark=4)
    port.socket.bind(f"ipc://{tmp_path}/pull")
    push = context.socket(zmq.PUSH)
    push.linger = 0
    push.sndhwm = 4
    push.connect(f"ipc://{tmp_path}/pull")
    sent = 0
    while push.poll(500, zmq.POLLOUT):
        push.send(bytes(1 << 20))
        sent += 1
        assert sent < 30
    push.close()
    port.socket.close()
    context.term()
