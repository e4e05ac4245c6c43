"""Tests of the bytes that wait in the pipe of a peer that does not read: they are counted and
limited.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import zmq
from support.broker import wait_for
from support.router import make_router

from zsq.actors.gateways import unread
from zsq.actors.gateways.unread import Unread
from zsq.transport.wire import sockets

SIZE = 1 << 20


@pytest.fixture
def pair() -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes], bytes]]:
    router, dealer = make_router("tcp://127.0.0.1:*"), sockets.make_dealer()
    dealer.setsockopt(zmq.RCVHWM, 1)
    dealer.connect(router.getsockopt_string(zmq.LAST_ENDPOINT))
    dealer.send(b"here")
    client = router.recv_multipart()[0]
    yield router, dealer, client
    for one in (router, dealer):
        one.close(linger=0)


def test_unread_bytes_of_a_client_are_counted_until_it_reads_them(
    pair: tuple[zmq.Socket[bytes], zmq.Socket[bytes], bytes],
) -> None:
    router, dealer, client = pair
    found = Unread()
    count = 2 * unread.UNREAD_BYTES_MAX // SIZE
    sent = 0
    while not found.full(client):
        assert sent < count, "it never gets full"
        router.send_multipart(
            found.counted(client, [client, b"", zmq.Frame(bytes(SIZE))]), copy=False
        )
        sent += 1
    assert found.bytes_of(client) <= unread.UNREAD_BYTES_MAX + SIZE
    assert found.bytes_of(b"somebody else") == 0
    for _ in range(sent):
        assert len(dealer.recv_multipart()[1]) == SIZE
    wait_for(lambda: found.bytes_of(client) == 0, 10, "the end of what was read")
    assert not found._held


def test_the_unread_bytes_of_a_client_that_leaves_are_forgotten(
    pair: tuple[zmq.Socket[bytes], zmq.Socket[bytes], bytes],
) -> None:
    router, dealer, client = pair
    found = Unread()
    for _ in range(32):
        router.send_multipart(found.counted(client, [client, b"", bytes(SIZE)]), copy=False)
    assert found.bytes_of(client)
    dealer.close(linger=0)

    def gone() -> bool:
        router.poll(0)  # a socket notices events only when it is polled
        found.settle()
        return not found._held

    wait_for(gone, 10, "the end of what nobody will read")


def test_small_answers_are_sent_without_being_counted() -> None:
    frames = [b"a", b"", b"x" * (unread.COUNTED_BYTES_MIN - 1)]
    found = Unread()
    assert all(one is other for one, other in zip(found.counted(b"a", frames), frames, strict=True))
    assert not found._held


def test_over_the_total_budget_only_clients_above_their_share_get_nothing() -> None:
    """Ten clients that never read hold ten megabytes. Another client, which reads, still gets its
    answers.
    """
    router = make_router("tcp://127.0.0.1:*")
    dealers, clients = [], []
    for _ in range(11):
        dealer = sockets.make_dealer()
        dealer.setsockopt(zmq.RCVHWM, 1)
        dealer.connect(router.getsockopt_string(zmq.LAST_ENDPOINT))
        dealer.send(b"here")
        dealers.append(dealer)
        clients.append(router.recv_multipart()[0])
    found = Unread(budget=64 * SIZE)
    try:
        for _ in range(100):
            for client in clients[:10]:
                if not found.full(client):
                    router.send_multipart(
                        found.counted(client, [client, b"", bytes(SIZE)]), copy=False
                    )
        held = found.total
        assert 64 * SIZE < held <= 75 * SIZE
        assert all(
            found.full(client)
            for client in clients[:10]
            if found.bytes_of(client) > 64 * SIZE // 10
        )
        for _ in range(20):
            assert not found.full(clients[10])
            router.send_multipart(
                found.counted(clients[10], [clients[10], b"", bytes(SIZE)]), copy=False
            )
            assert len(dealers[10].recv_multipart()[1]) == SIZE
            wait_for(lambda: found.bytes_of(clients[10]) == 0, 10, "the end of what was read")
    finally:
        for one in (router, *dealers):
            one.close(linger=0)

    def forgotten() -> bool:
        found.settle()
        return found.total == 0

    wait_for(forgotten, 10, "the end of what nobody will read")


def test_above_the_total_budget_sent_frames_are_checked_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without these checks, clients would have to wait because of bytes that other clients have
    read already.
    """
    now = [unread.SETTLE_NS]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    found = Unread(budget=60)
    frames = {client: SimpleNamespace(done=False) for client in (b"a", b"b", b"c")}

    def hold(client: bytes, size: int) -> None:
        found._held[client] = deque([(cast("Any", frames[client]), size)])
        found._bytes[client] = size
        found.total += size

    hold(b"a", 100)
    hold(b"b", 50)
    frames[b"a"].done = True
    assert not found.full(b"b"), "what the other one held was read"
    assert found.total == 50
    hold(b"c", 100)
    frames[b"c"].done = True
    now[0] += unread.SETTLE_NS - 1
    assert found.full(b"b"), "it was checked a moment ago"
    now[0] += 1
    assert not found.full(b"b")


@pytest.mark.parametrize(
    ("memory", "budget"),
    [(1, unread.BUDGET_BYTES_MIN), (8 << 30, 2 << 30), (1 << 40, unread.BUDGET_BYTES_MAX)],
)
def test_the_budget_of_all_clients_is_a_share_of_the_memory_within_limits(
    memory: int, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unread, "memory_bytes", lambda: memory)
    assert unread.budget_bytes() == budget
