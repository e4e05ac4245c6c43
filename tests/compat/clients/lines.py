"""The protocol between a client's program and its test: one JSON object per line, orders on stdin
and events on stdout, bodies as latin-1.

Orders: `pub`, `mpub`, `dpub` (topic, bodies, delay_ms), `finish`, `requeue`, `touch` (of a
message's id and attempts), `close`. Events: `ready`, `stored`, `failed`, `message`, `error`,
`lost`, `closed`. The end of stdin means `close`, so that no program outlives its test.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Order = dict[str, Any]


def say(event: str, **more: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **more}) + "\n")
    sys.stdout.flush()


def say_message(message_id: bytes, attempts: int, timestamp_ns: int, body: bytes) -> None:
    say(
        "message",
        id=message_id.decode(),
        attempts=attempts,
        timestamp_ns=timestamp_ns,
        body=body.decode("latin-1"),
    )


def bodies_of(order: Order) -> list[bytes]:
    return [body.encode("latin-1") for body in order["bodies"]]


def key_of(order: Order) -> tuple[str, int]:
    """Return a key that differs for two deliveries of one message."""
    return order["id"], order["attempts"]


class Orders:
    """A reader that divides the input on stdin into orders. `read` is called when there is
    input.
    """

    def __init__(self, on_order: Callable[[Order], None]) -> None:
        self._on_order = on_order
        self._rest = b""

    def read(self) -> None:
        self.take(os.read(0, 65536))

    def take(self, data: bytes) -> None:
        if not data:
            self._on_order({"op": "close"})
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._on_order(json.loads(line))


def arguments() -> tuple[str, dict[str, Any]]:
    """Return the role of the program, `produce` or `consume`, and its configuration."""
    return sys.argv[1], json.loads(sys.argv[2])
