"""Tests of what the broker reports to a service manager, over a real datagram socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from zsq.actors.supervisor.service_manager import STARTING_NS, ServiceManager

S = 1_000_000_000


class Listener:
    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(0.2)

    def said(self) -> list[str]:
        """Return all lines that have arrived."""
        found: list[str] = []
        self.socket.setblocking(False)
        while True:
            try:
                found += self.socket.recv(4096).decode().split("\n")
            except BlockingIOError:
                return found


@pytest.fixture(params=["path", "abstract"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Listener, str]]:
    name = f"zsq-test-{os.getpid()}"
    one = Listener(f"\0{name}" if request.param == "abstract" else str(tmp_path / "notify"))
    yield one, f"@{name}" if request.param == "abstract" else str(tmp_path / "notify")
    one.socket.close()


def test_the_service_manager_is_told_of_start_readiness_and_stop(
    listener: tuple[Listener, str],
) -> None:
    heard, address = listener
    environment = {
        "NOTIFY_SOCKET": address,
        "WATCHDOG_USEC": "4000000",
        "WATCHDOG_PID": str(os.getpid()),
        "HOME": "/",
    }
    service = ServiceManager(environment)
    assert environment == {"HOME": "/"}, "no child speaks for us"
    service.tick(10 * S)
    assert heard.said() == ["WATCHDOG=1", "EXTEND_TIMEOUT_USEC=60000000"]
    service.ready("tcp://127.0.0.1:4153")
    assert heard.said() == ["READY=1", "STATUS=tcp://127.0.0.1:4153"]
    service.tick(11 * S)
    assert heard.said() == []
    service.tick(12 * S)
    assert heard.said() == ["WATCHDOG=1"], "at half of what is allowed"
    service.reloading(12 * S)
    assert heard.said() == ["RELOADING=1", "MONOTONIC_USEC=12000000"]
    service.stopping()
    service.stopping()
    assert heard.said()[0] == "STOPPING=1"
    service.tick(15 * S)
    assert heard.said() == ["WATCHDOG=1"], "while it stops, too"


def test_a_slow_watchdog_does_not_slow_the_requests_for_more_start_time(
    listener: tuple[Listener, str],
) -> None:
    heard, address = listener
    service = ServiceManager(
        {
            "NOTIFY_SOCKET": address,
            "WATCHDOG_USEC": str(100 * STARTING_NS // 1000),
            "WATCHDOG_PID": str(os.getpid()),
        }
    )
    service.tick(S)
    assert heard.said() == ["WATCHDOG=1", "EXTEND_TIMEOUT_USEC=60000000"]
    service.tick(S + STARTING_NS)
    assert heard.said() == ["WATCHDOG=1", "EXTEND_TIMEOUT_USEC=60000000"]


def test_without_a_watchdog_only_more_start_time_is_requested(
    listener: tuple[Listener, str],
) -> None:
    heard, address = listener
    service = ServiceManager({"NOTIFY_SOCKET": address})
    service.tick(S, "2 of 3 topics")
    service.tick(2 * S)
    assert heard.said() == ["EXTEND_TIMEOUT_USEC=60000000", "STATUS=2 of 3 topics"]
    service.tick(S + STARTING_NS)
    assert heard.said() == ["EXTEND_TIMEOUT_USEC=60000000"]
    service.ready("")
    heard.said()
    service.tick(100 * S)
    assert heard.said() == []


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": "/nowhere/there"},
        {"NOTIFY_SOCKET": "relative"},
        {"WATCHDOG_USEC": "no", "NOTIFY_SOCKET": "@"},
    ],
)
def test_without_a_usable_notify_socket_no_call_fails(environment: dict[str, str]) -> None:
    service = ServiceManager(environment)
    service.tick(S)
    service.ready("x")
    service.stopping()


def test_a_watchdog_for_another_process_is_not_answered(tmp_path: Path) -> None:
    heard = Listener(str(tmp_path / "n"))
    service = ServiceManager(
        {"NOTIFY_SOCKET": str(tmp_path / "n"), "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}
    )
    service.ready("")
    heard.said()
    service.tick(S)
    assert heard.said() == []
    heard.socket.close()
