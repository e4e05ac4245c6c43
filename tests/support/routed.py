"""Base class of the fakes that replace a port in tests. Like a port, it has routes: a handler for
each kind of message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import zmq

from zsq.actors.runtime.port import Envelope, Mail
from zsq.transport.wire.protocol import Wire


class QuietMonitor:
    """A monitor of a fake port: no connection ends."""

    def setsockopt(self, option: int, value: int) -> None:
        """Accept each option."""

    def recv_multipart(self, flags: int) -> list[bytes]:
        raise zmq.Again


class Routed:
    """Base of fake ports that only record what is sent."""

    def __init__(self) -> None:
        self.routes: dict[type[Wire], Callable[[Any, Mail, Any], None]] = {}
        self.on_readable: Callable[[Any], None] | None = None

    def route(self, kind: type[Wire], handler: Callable[[Any, Mail, Any], None]) -> None:
        self.routes[kind] = handler

    def get_monitor_socket(self, events: int) -> QuietMonitor:
        return QuietMonitor()

    def descriptor(self) -> int:
        return -1  # it is not known

    def hear(self, message: Wire, envelope: Envelope = (), frames: list[Any] | None = None) -> None:
        """Pass a message to its handler, as an actor's loop does. Raise `KeyError` if no handler is
        registered.
        """
        self.routes[type(message)](self, Mail(envelope, message, frames or []), message)
