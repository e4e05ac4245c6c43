"""Tests of a scan worker with ports that only record what was sent: to which channels it connects,
and for how long.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import zmq
from support.routed import Routed

from zsq.actors.scan.scan_worker import ScanWorker
from zsq.actors.settings import options
from zsq.actors.settings.starts import ActorStart
from zsq.transport.wire import protocol as p

LOOP = (b"loop",)
S = 1_000_000_000


class Wire(Routed):
    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[tuple[bytes, ...], p.Wire]] = []
        self.options: dict[int, Any] = {}
        self.dialled: dict[str, bytes] = {}
        self.socket = self

    def setsockopt(self, option: int, value: Any) -> None:
        self.options[option] = value

    def connect(self, endpoint: str) -> None:
        self.dialled[endpoint] = self.options.pop(zmq.CONNECT_ROUTING_ID)

    def receive(self, limit: int) -> list[Any]:
        """Return nothing, because all messages were passed to `hear`."""
        return []

    def disconnect(self, endpoint: str) -> None:
        del self.dialled[endpoint]

    def send(self, envelope: tuple[bytes, ...], message: p.Wire) -> bool:
        self.sent.append((envelope, message))
        return True

    def take(self) -> list[tuple[tuple[bytes, ...], p.Wire]]:
        found, self.sent = self.sent, []
        return found


class Shell:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.front, self.asking = Wire(), Wire()
        self.timers: list[Callable[[], None]] = []
        self.worker = ScanWorker(7, "scan worker", ActorStart(front="front"))
        parts: dict[str, Any] = {
            "open_router": lambda endpoint: self.front,
            "open_asking": lambda: self.asking,
            "every": lambda interval, function: self.timers.append(function),
        }
        vars(self.worker).update(parts)
        self.worker.on_start()
        self.now_ns = 100 * S
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.now_ns)

    def hear(self, wire: Wire, message: p.Wire) -> None:
        wire.hear(message, LOOP)

    def turn(self) -> list[p.Wire]:
        self.worker.on_turn()
        return [message for _, message in self.front.take()]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(monkeypatch)


def test_a_worker_asks_each_channel_and_reports_the_answers(shell: Shell) -> None:
    shell.hear(shell.front, p.ScanOrder(5, ((1, "ipc://a"), (2, "ipc://b"))))
    assert shell.asking.take() == [((b"1",), p.Scan(1)), ((b"2",), p.Scan(2))]
    shell.hear(shell.asking, p.Scanned(2, True, 9))
    assert shell.turn() == []
    shell.now_ns += options.SCAN_SOON_MS * 1_000_000 + 1
    assert shell.turn() == [p.ScanReport(5, ((2, 1, 9), (1, -2, 0)))]
    assert p.Scanned not in shell.front.routes, "the loop is not who was asked"
    shell.hear(shell.asking, p.Scanned(1, False, 0))
    assert shell.turn() == [p.ScanReport(5, ((1, 0, 0),))]


def test_a_removed_endpoint_is_no_longer_connected(shell: Shell) -> None:
    """If the worker stayed connected, it would try to reach the endpoint again many times a second,
    for a minute.
    """
    assert shell.asking.options[zmq.RECONNECT_IVL_MAX] == options.SCAN_RECONNECT_MAX_MS, (
        "between its end and word of it"
    )
    shell.hear(shell.front, p.ScanOrder(5, ((1, "ipc://a"), (2, "ipc://b"))))
    shell.hear(shell.front, p.HangUp(("ipc://a", "ipc://never asked")))
    assert list(shell.asking.dialled) == ["ipc://b"]
    shell.hear(shell.asking, p.Scanned(2, False, 0))
    assert shell.turn() == [p.ScanReport(5, ((1, -1, 0), (2, 0, 0)))], "nobody waits for it"
    assert p.HangUp not in shell.asking.routes, "only the loop says who is gone"


def test_an_endpoint_not_asked_for_a_minute_is_disconnected(shell: Shell) -> None:
    shell.hear(shell.front, p.ScanOrder(5, ((1, "ipc://a"), (2, "ipc://b"))))
    shell.now_ns += 50 * S
    shell.hear(shell.front, p.ScanOrder(6, ((2, "ipc://b"),)))
    shell.now_ns += 11 * S
    for timer in shell.timers:
        timer()
    assert shell.asking.dialled == {"ipc://b": b"2"}
    shell.hear(shell.front, p.ScanOrder(7, ((1, "ipc://a"),)))
    assert shell.asking.dialled["ipc://a"] == b"3", (
        "a new name: words to the old one must not come here"
    )
