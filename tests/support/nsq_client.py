"""A session of the NSQ gateway between a fake client and a fake backend. Tests pass raw bytes in
and compare the exact bytes that come out. The functions that build these bytes do not use the code
under test.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from zsq.transport.nsq.backend import Answer, Authorized
from zsq.transport.nsq.identify import ClientIdentity
from zsq.transport.nsq.limits import NsqLimits
from zsq.transport.nsq.session import Session

MS = 1_000_000
ID = b"0123456789abcdef"
OTHER = b"fedcba9876543210"
OK = b"\0\0\0\x06\0\0\0\0OK"
BEAT = b"\0\0\0\x0f\0\0\0\0_heartbeat_"


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def pub(topic: bytes, body: bytes) -> bytes:
    return b"PUB " + topic + b"\n" + sized(body)


def mpub(topic: bytes, *bodies: bytes, size: int | None = None) -> bytes:
    packed = struct.pack(">i", len(bodies)) + b"".join(map(sized, bodies))
    return (
        b"MPUB " + topic + b"\n" + struct.pack(">i", len(packed) if size is None else size) + packed
    )


def said(text: str | bytes) -> bytes:
    """Return a response frame."""
    return _frame(0, text)


def failed(text: str | bytes) -> bytes:
    """Return an error frame."""
    return _frame(1, text)


def _frame(kind: int, text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack(">ii", 4 + len(data), kind) + data


class Grant(NamedTuple):
    identity: str = "bob"
    identity_url: str = "http://who/<bob>"
    permission_count: int = 2


class Client:
    """A session with its backend. The backend answers a request at once, unless its verb (kind of
    request) is in `late`. Such requests wait in `waiting`, by verb.
    """

    def __init__(
        self, limits: NsqLimits | None = None, *, late: str = "", magic: bool = True
    ) -> None:
        self.late = late.split()
        self.waiting: dict[str, list[Answer]] = {}
        self.calls: list[tuple[object, ...]] = []
        self.out = bytearray()
        self.closed = False
        self.in_flight = {ID}
        self.with_others: set[bytes] = set()
        self.why: dict[str, str] = {}  # verb -> the error code with which it is answered
        self.grant: Authorized | str = Grant()
        self.granting: list[Callable[[Authorized | str], None]] = []
        self.session = Session(limits or NsqLimits(), self, self.write, 0)
        if magic:
            self.session.receive(b"  V2", 0)

    def send(self, *data: bytes, now_ms: int = 0) -> bytes:
        """Send these bytes to the session, and return what it sends back at once."""
        before = len(self.out)
        self.session.receive(b"".join(data), now_ms * MS)
        self._go_on(now_ms)
        return bytes(self.out[before:])

    def _go_on(self, now_ms: int = 0) -> None:
        """Run further turns of the session, as long as the session asks for them."""
        while self.session.more and self.session.reading:
            self.session.go_on(now_ms * MS)

    def tell(self, verb: str, index: int = 0, why: str = "") -> bytes:
        """Answer a waiting request, and return what the client receives."""
        before = len(self.out)
        self.waiting[verb].pop(index)(why)
        self._go_on()
        return bytes(self.out[before:])

    def at(self, now_ms: int) -> bytes:
        before = len(self.out)
        self.session.on_time(now_ms * MS)
        return bytes(self.out[before:])

    def _answer(self, verb: str, answer: Answer) -> None:
        if verb in self.late:
            self.waiting.setdefault(verb, []).append(answer)
        else:
            answer(self.why.get(verb, ""))

    # The backend

    def write(self, data: bytes) -> None:
        assert not self.closed
        assert data
        self.out += data

    def publish(self, topic: str, bodies: list[bytes], defer_ms: int, answer: Answer) -> None:
        self.calls.append(("publish", topic, bodies, defer_ms))
        self._answer("publish", answer)

    def subscribe(self, topic: str, channel: str, identity: ClientIdentity, answer: Answer) -> None:
        self.calls.append(("subscribe", topic, channel))
        self._answer("subscribe", answer)

    def set_ready(self, count: int) -> None:
        self.calls.append(("ready", count))

    def finish(self, ids: list[bytes]) -> list[bytes]:
        self.calls.append(("finish", ids))
        return [id for id in ids if id not in self.in_flight]

    def requeue(self, id: bytes, delay_ms: int) -> bool:
        self.calls.append(("requeue", id, delay_ms))
        return id in self.in_flight

    def touch(self, id: bytes) -> bool:
        self.calls.append(("touch", id))
        return id in self.in_flight

    def held_by_other(self, id: bytes) -> bool:
        return id in self.with_others

    def leave(self) -> None:
        self.calls.append(("leave",))

    def authenticate(
        self, secret: bytes, identity: ClientIdentity, answer: Callable[[Authorized | str], None]
    ) -> None:
        self.calls.append(("authenticate", secret))
        if "authenticate" in self.late:
            self.granting.append(answer)
        else:
            answer(self.grant)

    def permitted(self, permission: str, topic: str, channel: str, answer: Answer) -> None:
        self.calls.append(("permitted", permission, topic, channel))
        self._answer("permitted", answer)

    def upgrade(self, layer: str, identity: ClientIdentity, rest: bytes, answer: Answer) -> None:
        self.calls.append(("upgrade", layer, rest))
        self._answer("upgrade", answer)

    def close(self) -> None:
        assert not self.closed
        self.closed = True
