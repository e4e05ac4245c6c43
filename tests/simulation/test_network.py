"""Tests of the simulated network: it behaves like libzmq where the product depends on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq
from simulation import world as worlds
from simulation.network import Network
from simulation.sockets import SimPoller, SimSocket
from simulation.world import MS, Process, S, World

ENDPOINT = "tcp://server:1"


@pytest.fixture
def world() -> Iterator[World]:
    made = World(1)
    made.network = Network(made)
    worlds.enter(made)
    yield made
    worlds.enter(None)


def process(world: World, name: str, work: Callable[[], Any]) -> Process:
    made = Process(world, name)
    made.on_death.append(end_sockets)
    made.run(work)
    return made


def end_sockets(dead: Process) -> None:
    for socket in list(dead.sockets):
        socket.end(linger=False, killed=True)


def serve(got: list[bytes], answer: bool = False) -> Callable[[], None]:
    def work() -> None:
        router = SimSocket(zmq.ROUTER)
        router.bind(ENDPOINT)
        poller = SimPoller()
        poller.register(router)
        while True:
            poller.poll()
            while router.inbox:
                peer, body = router.recv_multipart(zmq.NOBLOCK)
                got.append(body)
                if answer:
                    router.send_multipart([peer, b"got " + body], zmq.NOBLOCK)

    return work


def run_for(world: World, seconds: float) -> None:
    end = world.now_ns + int(seconds * S)
    world.at(end, lambda: None)
    world.run(lambda: world.now_ns >= end)


def test_messages_arrive_in_order_in_both_directions(world: World) -> None:
    got: list[bytes] = []
    back: list[bytes] = []

    def client() -> None:
        dealer = SimSocket(zmq.DEALER)
        dealer.connect(ENDPOINT)
        for number in range(20):
            dealer.send(b"%d" % number)
        while len(back) < 20:
            assert dealer.poll(1_000)
            back.append(dealer.recv(zmq.NOBLOCK))

    process(world, "client", client)
    process(world, "server", serve(got, answer=True))
    run_for(world, 2)
    assert got == [b"%d" % number for number in range(20)]
    assert back == [b"got %d" % number for number in range(20)]


def test_unsent_messages_reach_the_next_server_and_sent_ones_are_lost(world: World) -> None:
    """Messages that were being transferred are lost with the server. Messages that had not left are
    sent to its successor by the same socket.
    """
    first: list[bytes] = []
    second: list[bytes] = []
    server = process(world, "server", serve(first))

    def client() -> None:
        dealer = SimSocket(zmq.DEALER)
        dealer.connect(ENDPOINT)
        for number in (1, 2):
            dealer.send(b"%d" % number)
        world.pause(50 * MS, 51 * MS)
        for number in (3, 4):
            dealer.send(b"%d" % number)
        # The messages have left. They arrive 100 microseconds later at the earliest.
        world.pause(65_000, 70_000)
        dealer.dialled[0].clogged_until_ns = world.now_ns + 100 * MS
        dealer.send(b"5")
        server.kill()
        process(world, "successor", serve(second))
        world.pause(5 * S, 6 * S)

    process(world, "client", client)
    run_for(world, 2)
    assert first == [b"1", b"2"]
    assert second == [b"5"]


def test_a_router_refuses_unknown_peers_and_full_queues(world: World) -> None:
    seen: list[int] = []

    def server() -> None:
        router = SimSocket(zmq.ROUTER)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.SNDHWM, 2)
        router.bind(ENDPOINT)
        with pytest.raises(zmq.ZMQError) as unknown:
            router.send_multipart([b"nobody", b"word"], zmq.NOBLOCK)
        seen.append(unknown.value.errno or 0)
        assert router.poll(1_000)
        peer, _ = router.recv_multipart(zmq.NOBLOCK)
        router.peers[peer].clogged_until_ns = world.now_ns + S
        for _ in range(2):
            router.send_multipart([peer, b"word"], zmq.NOBLOCK)
        with pytest.raises(zmq.Again):
            router.send_multipart([peer, b"word"], zmq.NOBLOCK)
        seen.append(zmq.EAGAIN)

    def client() -> None:
        dealer = SimSocket(zmq.DEALER)
        dealer.connect(ENDPOINT)
        dealer.send(b"hello")
        world.pause(5 * S, 6 * S)

    process(world, "server", server)
    process(world, "client", client)
    run_for(world, 1)
    assert seen == [zmq.EHOSTUNREACH, zmq.EAGAIN]
