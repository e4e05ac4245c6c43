"""Tests of how a ROUTER notices that peers are gone, with real sockets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from support.broker import wait_for

from zsq.actors.runtime import link_ends
from zsq.actors.runtime.link_ends import LinkEnds
from zsq.actors.runtime.port import Envelope, Mail, Port
from zsq.transport.wire.codec import encode
from zsq.transport.wire.protocol import Beat


class Host:
    """A loop that handles the mail, and calls raw sources and timers when the test says so."""

    def __init__(self, folder: Path) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.port = Port(self.context, zmq.ROUTER)
        self.endpoint = f"ipc://{folder}/front"
        self.port.socket.bind(self.endpoint)
        self.peers: list[zmq.Socket[bytes]] = []
        self.timers: list[Callable[[], object]] = []
        self.open: set[Envelope] = set()
        self.ended: list[Envelope] = []
        self.read: Callable[[], object] = lambda: None
        self.monitor: Any = None
        self.ends = LinkEnds(self, self.port, self.open.__contains__, self._on_end)  # type: ignore[arg-type]

    def listen_raw(self, source: Any, handle: Callable[[], object]) -> None:
        self.read, self.monitor = handle, source.socket

    def every(self, interval_ms: float, function: Callable[[], object]) -> None:
        self.timers.append(function)

    def cease(self, function: Callable[[], object]) -> None:
        self.timers.remove(function)

    def _on_end(self, peer: Envelope) -> None:
        self.open.discard(peer)
        self.ended.append(peer)

    def peer(self) -> tuple[zmq.Socket[bytes], Envelope]:
        """Connect a peer, and note it with its first message."""
        socket: zmq.Socket[bytes] = self.context.socket(zmq.DEALER)
        self.peers.append(socket)
        socket.connect(self.endpoint)
        socket.send_multipart([b"", encode(Beat())])
        assert self.port.socket.poll(5_000)
        (mail,) = [mail for mail in self.port.receive(1) if isinstance(mail, Mail)]
        self.open.add(mail.envelope)
        self.ends.note(mail.envelope, self.port.descriptor())
        return socket, mail.envelope

    def turn(self) -> bool:
        self.read()
        for timer in list(self.timers):
            timer()
        return True


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.port.socket.disable_monitor()
    made.context.destroy(linger=0)


def test_the_end_of_a_peer_is_noticed_and_others_stay(host: Host) -> None:
    (one, peer), (_other, stays) = host.peer(), host.peer()
    host.turn()
    assert host.ended == []
    one.close(linger=0)
    wait_for(lambda: host.turn() and host.ended == [peer], 5, "the end is noticed")
    assert host.open == {stays}
    assert host.timers == []


def test_a_peer_that_said_goodbye_is_not_asked(host: Host) -> None:
    one, peer = host.peer()
    host.open.discard(peer)
    one.close(linger=0)
    other, last = host.peer()
    other.close(linger=0)
    wait_for(lambda: host.turn() and bool(host.ended), 5, "the other end is noticed")
    assert host.ended == [last]


def test_a_peer_whose_descriptor_was_another_ones_stays_until_its_own_end(
    host: Host,
) -> None:
    """The report of the first connection comes when the second one has its descriptor."""
    one, first = host.peer()
    descriptor = host.port.descriptor()
    two, second = host.peer()
    own = host.port.descriptor()
    host.ends.note(second, descriptor)
    one.close(linger=0)
    wait_for(lambda: host.turn() and bool(host.ended), 5, "the first end is noticed")
    assert host.ended == [first]
    assert host.open == {second}
    assert own != descriptor
    assert two.poll(5_000), "it was asked, and is there"
    two.close(linger=0)
    wait_for(lambda: host.turn() and host.ended == [first, second], 5, "its own end is noticed")


def test_the_last_messages_of_a_peer_are_handled_first(host: Host) -> None:
    """A loop that is late has not read them when the time to wait is over."""
    one, peer = host.peer()
    one.send_multipart([b"", encode(Beat())])
    one.close(linger=1_000)
    wait_for(lambda: host.turn() and bool(host.timers), 5, "the report of the end")
    late_s = time.monotonic() + 3 * link_ends.WAIT_MS / 1_000
    wait_for(lambda: host.turn() and time.monotonic() > late_s, 5, "the time to wait")
    assert host.ended == []
    found: list[Any] = [mail.envelope for mail in host.port.receive(9) if isinstance(mail, Mail)]
    assert found == [peer], "ZeroMQ still had it"
    wait_for(lambda: host.turn() and host.ended == [peer], 5, "the end is noticed")


def test_a_watched_port_that_closes_does_not_stop_its_context(tmp_path: Path) -> None:
    """The connections of a closed port end later than its monitor. Without a care, their ends stop
    the thread for input and output of the context, in one of a few times.
    """
    endpoint = f"ipc://{tmp_path}/other"
    clients: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    for number in range(60):
        (tmp_path / str(number)).mkdir()
        host = Host(tmp_path / str(number))
        peers = [clients.socket(zmq.DEALER) for _ in range(8)]
        for peer in peers:
            peer.connect(host.endpoint)
            peer.send_multipart([b"", encode(Beat())])
        for _ in peers:
            assert host.port.socket.poll(5_000)
            assert len(list(host.port.receive(1))) == 1
        for peer in peers[:4]:
            peer.close(linger=0)
        host.port.close()
        host.monitor.close(linger=200)
        pull, push = host.context.socket(zmq.PULL), clients.socket(zmq.PUSH)
        pull.bind(endpoint)
        push.connect(endpoint)
        push.send(b"")
        stands = not pull.poll(5_000)
        for socket in (*peers[4:], push, pull):
            socket.close(linger=0)
        if stands:
            pytest.fail(f"the context stands after {number} ports")
        host.context.term()
    clients.term()
