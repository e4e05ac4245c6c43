"""Tests of the poller: no message stays unseen because a call on its socket consumed the event, and
only sockets that may have news are checked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from zsq.actors.runtime.polling import PolledSocket, Poller

WAIT_MS = 20_000
Socket = zmq.Socket[bytes]


class Counted(PolledSocket):
    """Counts its checks."""

    checks = 0

    def readable(self) -> bool:
        self.checks += 1
        return super().readable()


class Lines:
    """Pairs of sockets: the inner ends are polled, the outer ends send to them."""

    def __init__(self, folder: Path | None, count: int) -> None:
        self.context: zmq.Context[Socket] = zmq.Context()
        self.poller = Poller()
        self.inner: list[Counted] = []
        self.outer: list[Socket] = []
        for number in range(count):
            endpoint = f"ipc://{folder}/{number}" if folder else f"inproc://{number}"
            source = Counted(self.context.socket(zmq.PAIR))
            source.socket.bind(endpoint)
            outer = self.context.socket(zmq.PAIR)
            outer.connect(endpoint)
            self.inner.append(source)
            self.outer.append(outer)
            self.poller.register(source)

    def close(self) -> None:
        self.context.destroy(linger=0)
        self.poller.close()


@pytest.fixture(params=["inproc", "ipc"])
def lines(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lines]:
    made = Lines(tmp_path if request.param == "ipc" else None, 3)
    yield made
    made.close()


def settle(lines: Lines) -> None:
    while lines.poller.poll(50):
        pass


def test_a_message_wakes_a_poll(lines: Lines) -> None:
    settle(lines)
    assert lines.poller.poll(0) == []
    lines.outer[1].send(b"one")
    assert lines.poller.poll(WAIT_MS) == [lines.inner[1]]
    assert lines.inner[1].socket.recv(zmq.NOBLOCK) == b"one"
    assert lines.poller.poll(0) == []


def test_a_message_is_found_although_a_send_consumed_its_event(lines: Lines) -> None:
    settle(lines)
    for number in range(200):
        lines.outer[0].send(b"%d" % number)
        # libzmq processes the socket's commands in this call, now and then. After that, its
        # descriptor is silent.
        lines.inner[0].socket.send(b"back")
        lines.inner[0].socket.getsockopt(zmq.EVENTS)
        assert lines.poller.poll(WAIT_MS) == [lines.inner[0]]
        assert lines.inner[0].socket.recv(zmq.NOBLOCK) == b"%d" % number


def test_a_source_that_was_not_emptied_is_found_again(lines: Lines) -> None:
    settle(lines)
    for _ in range(3):
        lines.outer[2].send(b"more")
    for _ in range(3):
        assert lines.poller.poll(WAIT_MS) == [lines.inner[2]]
        lines.inner[2].socket.recv()
    assert lines.poller.poll(0) == []


def test_sockets_without_news_are_not_checked(lines: Lines) -> None:
    settle(lines)
    before = [source.checks for source in lines.inner]
    lines.outer[1].send(b"one")
    assert lines.poller.poll(WAIT_MS) == [lines.inner[1]]
    lines.inner[1].socket.recv()
    lines.poller.poll(0)
    after = [source.checks for source in lines.inner]
    assert [now - then for now, then in zip(after, before, strict=True)][::2] == [0, 0]


def test_a_source_is_ignored_after_unregister(lines: Lines) -> None:
    settle(lines)
    lines.poller.unregister(lines.inner[0])
    lines.outer[0].send(b"lost")
    lines.outer[1].send(b"one")
    assert lines.poller.poll(WAIT_MS) == [lines.inner[1]]


def test_plain_descriptors_are_polled_too(lines: Lines) -> None:
    settle(lines)
    read, write = os.pipe()
    try:
        lines.poller.register(read)
        assert lines.poller.poll(0) == []
        os.write(write, b"x")
        assert lines.poller.poll(WAIT_MS) == [read]
        lines.outer[0].send(b"one")
        assert {*map(type, lines.poller.poll(WAIT_MS))} <= {int, Counted}
        lines.poller.unregister(read)
        assert lines.poller.poll(WAIT_MS) == [lines.inner[0]]
    finally:
        os.close(read)
        os.close(write)


class Eager(PolledSocket):
    """Calls `then` after its first check, as if that happened at this moment."""

    then: Callable[[], object] | None = None

    def readable(self) -> bool:
        found = super().readable()
        then, self.then = self.then, None
        if then is not None:
            then()
        return found


@pytest.fixture
def router() -> Iterator[tuple[Poller, Eager, Callable[[], Socket]]]:
    """Yield a poller, its ROUTER, and a function that connects another peer."""
    context: zmq.Context[Socket] = zmq.Context()
    poller = Poller()
    source = Eager(context.socket(zmq.ROUTER))
    source.socket.bind("inproc://router")
    poller.register(source)
    peers: list[Socket] = []

    def peer() -> Socket:
        peers.append(context.socket(zmq.DEALER))
        peers[-1].connect("inproc://router")
        return peers[-1]

    yield poller, source, peer
    context.destroy(linger=0)
    poller.close()


def test_a_source_is_found_once_if_more_arrives_after_its_check(
    router: tuple[Poller, Eager, Callable[[], Socket]],
) -> None:
    poller, source, peer = router
    first, second = peer(), peer()
    assert poller.poll(0) == []
    first.send(b"one")
    source.unchecked = True
    source.then = lambda: second.send(b"two")  # makes the descriptor readable again
    assert poller.poll(WAIT_MS) == [source]


def test_an_event_without_a_message_does_not_end_the_wait(
    router: tuple[Poller, Eager, Callable[[], Socket]],
) -> None:
    poller, source, peer = router
    assert poller.poll(0) == []
    # libzmq tells the router of the new peer, so its descriptor is readable without a message.
    dealer = peer()
    source.then = lambda: dealer.send(b"one")
    assert poller.poll(WAIT_MS) == [source]
    assert source.socket.recv_multipart()[1] == b"one"


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["send", "back", "take", "poll"])), max_size=60
    )
)
def test_whatever_is_done_between_polls_every_message_is_found(
    steps: list[tuple[int, str]],
) -> None:
    lines = Lines(None, 3)
    try:
        waiting = [0, 0, 0]
        for number, step in steps:
            inner = lines.inner[number]
            if step == "send":
                lines.outer[number].send(b"x")
                waiting[number] += 1
            elif step == "back":
                inner.socket.send(b"back", zmq.NOBLOCK)
            elif step == "take" and waiting[number]:
                inner.socket.recv()
                waiting[number] -= 1
            elif step == "poll":
                found = lines.poller.poll(0)
                expected = [s for s, left in zip(lines.inner, waiting, strict=True) if left]
                assert sorted(map(id, found)) == sorted(map(id, expected))
    finally:
        lines.close()
