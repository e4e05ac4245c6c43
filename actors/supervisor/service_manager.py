"""Notifications to the service manager (systemd or a compatible one): ready, stopping, alive.

They are datagrams to NOTIFY_SOCKET. Without that variable nothing is sent. sd_notify(3) needs only
a few lines on a socket, so a library for it would be an unnecessary dependency. No answer comes and
nothing depends on one, so a datagram that cannot be sent is dropped.

The supervisor's own loop sends the alive notification at half of WATCHDOG_USEC. If the loop hangs,
the notifications stop and the service manager ends the broker.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping
from typing import Final

# A start may take long because recovery reads the log. So the supervisor reports at this interval
# (STARTING_NS) that it is still starting, and asks for more time (STARTING_MORE_US).
STARTING_NS: Final = 10_000_000_000
STARTING_MORE_US: Final = 60_000_000


class ServiceManager:
    """The connection to the service manager that started the broker.

    The constructor removes the variables from `environment`, so that no child process notifies in
    the supervisor's place.
    """

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
        """Report a reload. `ready` must follow.

        `now_ns` is the monotonic clock's time, which systemd uses too.
        """
        self._send("RELOADING=1", f"MONOTONIC_USEC={now_ns // 1000}")

    def stopping(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._send("STOPPING=1", "STATUS=answering all who wait")

    def tick(self, now_ns: int, status: str = "") -> None:
        """Send the notifications that are due. The loop calls it in each turn."""
        if not self._address or now_ns < self._next_ns:
            return
        words = ["WATCHDOG=1"] if self._beat_ns else []
        pause = self._beat_ns
        if not self._ready and not self._stopping:
            words += [
                f"EXTEND_TIMEOUT_USEC={STARTING_MORE_US}",
                *([f"STATUS={status}"] if status else []),
            ]
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
            socket.socket(
                socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            ) as out,
        ):
            out.sendto("\n".join(words).encode(), address)
