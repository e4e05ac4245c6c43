"""What systemd, or who speaks like it, is told: ready, stopping, alive. By datagrams to NOTIFY_SOCKET; without that by nothing.

sd_notify(3) is a few lines on a socket; a library would be one more dependency for them. Nobody answers, and nothing depends on it being
heard: a datagram that cannot be sent is forgotten.

Alive is said by the supervisor's own loop, at half of WATCHDOG_USEC: a loop that hangs is silent, and the service manager ends it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping
from typing import Final

STARTING_NS: Final = 10_000_000_000  # a start may take long (recovery reads): so often it is said that it goes on,
STARTING_MORE_US: Final = 60_000_000  # ... and that it may take so much longer


class ServiceManager:
    """Told by who starts us. The variables are taken out of `environment`: no process of ours shall speak for us."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        self._address = environment.pop("NOTIFY_SOCKET", "")
        interval, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        ours = not pid or pid == str(os.getpid())
        self._beat_ns = int(interval) * 1000 // 2 if interval.isdecimal() and ours else 0
        self._next_ns = 0
        self._ready = False
        self._stopping = False

    def ready(self, status: str) -> None:
        self._ready = True
        self._send("READY=1", f"STATUS={status}")

    def reloading(self, now_ns: int) -> None:
        """To be followed by `ready`. The time is the monotonic clock's, which is systemd's."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={now_ns // 1000}")

    def stopping(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._send("STOPPING=1", "STATUS=answering all who wait")

    def tick(self, now_ns: int, status: str = "") -> None:
        """Each turn of the loop."""
        if not self._address or now_ns < self._next_ns:
            return
        words = ["WATCHDOG=1"] if self._beat_ns else []
        pause = self._beat_ns
        if not self._ready and not self._stopping:
            words += [f"EXTEND_TIMEOUT_USEC={STARTING_MORE_US}", *([f"STATUS={status}"] if status else [])]
            pause = min(pause or STARTING_NS, STARTING_NS)
        self._next_ns = now_ns + pause if pause else now_ns + STARTING_NS
        if words:
            self._send(*words)

    def _send(self, *words: str) -> None:
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as out,
        ):
            out.sendto("\n".join(words).encode(), address)
