"""Tests of trunks: the links of all consumers of the gateway to an endpoint share a connection, and
each gets its own messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import uvloop
import zmq
import zmq.asyncio

from zsq.actors.gateways.nsq.trunks import BranchEvents, Trunks
from zsq.transport.client.link.connection import LinkConnection
from zsq.transport.wire.codec import encode
from zsq.transport.wire.protocol import Beat, Bye
from zsq.transport.wire.sockets import CONNECTED_EVENTS, GONE_EVENTS

NAME = "gateway"
BEAT = [b"", encode(Beat())]
LOST = [b"", encode(Bye(is_lost=True))]
WAIT_S = 10.0


class Peer:
    """An actor's ROUTER, with the branches of engines that count their turns."""

    def __init__(self, folder: Path) -> None:
        self.endpoint = f"ipc://{folder / 'front'}"
        self._context = zmq.asyncio.Context()
        self.trunks = Trunks(NAME)
        self.turned: dict[BranchEvents, asyncio.Event] = {}
        self.open()

    def open(self) -> None:
        self.router = self._context.socket(zmq.ROUTER)
        self.router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.router.setsockopt(zmq.LINGER, 0)
        self.router.bind(self.endpoint)

    def branch(self) -> tuple[LinkConnection, BranchEvents]:
        events = BranchEvents()
        self.turned[events] = asyncio.Event()
        events.attach(asyncio.get_running_loop(), self.turned[events].set)
        return self.trunks.connect(events, self.endpoint, None, leaves=False), events

    async def received(self) -> list[bytes]:
        frames: list[bytes] = await asyncio.wait_for(self.router.recv_multipart(), WAIT_S)
        return frames

    async def turn(self, events: BranchEvents) -> list[int]:
        """Wait for a turn of the engine, and return the descriptors with news."""
        await asyncio.wait_for(self.turned[events].wait(), WAIT_S)
        self.turned[events].clear()
        return [fd for fd, _ in events.poll(0)]

    async def event(self, branch: LinkConnection, events: BranchEvents, wanted: int) -> None:
        """Wait until the link learns of this event of its connection."""
        while not branch.read_events() & wanted:
            await self.turn(events)

    def close(self) -> None:
        self.trunks.close()
        self.router.close(linger=0)
        self._context.destroy(linger=0)


def with_peer(folder: Path, work: Callable[[Peer], Awaitable[None]]) -> None:
    async def run() -> None:
        peer = Peer(folder)
        try:
            await work(peer)
        finally:
            peer.close()

    uvloop.run(run())


async def until(condition: Callable[[], bool], turn: Callable[[], Awaitable[object]]) -> None:
    while not condition():
        await turn()


def test_links_to_an_endpoint_share_a_connection(tmp_path: Path) -> None:
    async def work(peer: Peer) -> None:
        (one, ones), (two, twos) = peer.branch(), peer.branch()
        one.send(BEAT)
        two.send(BEAT)
        first, second = await peer.received(), await peer.received()
        assert first[0] == second[0] == NAME.encode(), "both came over one connection"
        assert first[1] != second[1]
        await peer.router.send_multipart([*second[:2], *BEAT])
        await until(lambda: bool(two.receive()), partial(peer.turn, twos))
        assert one.receive() is None
        await peer.router.send_multipart([*first[:2], *BEAT])
        await until(lambda: bool(one.receive()), partial(peer.turn, ones))
        assert two.receive() is None

    with_peer(tmp_path, work)


def test_a_link_that_ends_without_a_bye_is_reported_lost(tmp_path: Path) -> None:
    """No connection ends that the peer could notice."""

    async def work(peer: Peer) -> None:
        (one, _), (two, _) = peer.branch(), peer.branch()
        one.send(BEAT)
        name = (await peer.received())[1]
        one.close(0)
        assert (await peer.received())[1:] == [name, *LOST]
        two.close(200)
        three, _ = peer.branch()
        three.send(BEAT)
        assert (await peer.received())[2:] == BEAT, "the one with a linger has said it itself"

    with_peer(tmp_path, work)


def test_all_links_learn_that_the_connection_is_lost(tmp_path: Path) -> None:
    async def work(peer: Peer) -> None:
        branches = dict(peer.branch() for _ in range(2))
        for branch, events in branches.items():
            branch.send(BEAT)
            await peer.received()
            await peer.event(branch, events, CONNECTED_EVENTS)
        peer.router.close(linger=0)
        for branch, events in branches.items():
            await peer.event(branch, events, GONE_EVENTS)
        peer.open()
        later, _ = peer.branch()
        later.send(BEAT)
        assert (await peer.received())[2:] == BEAT, "a new link begins with a new connection"

    with_peer(tmp_path, work)


def test_a_new_link_knows_that_the_connection_is_there(tmp_path: Path) -> None:
    async def work(peer: Peer) -> None:
        branch, events = peer.branch()
        branch.send(BEAT)
        await peer.received()
        await peer.event(branch, events, CONNECTED_EVENTS)
        later, _ = peer.branch()
        assert later.read_events() & CONNECTED_EVENTS
        assert not later.read_events(), "it reads them once"

    with_peer(tmp_path, work)
