"""Fuzz targets of NSQ's protocol: a client's connection from its first bytes (the magic) to its
end, including TLS and compression.

One input is one read of the socket: correct commands, commands with a few changed bytes, or bytes
compressed as agreed. The backend answers at once, later, with an error, or never.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from faults.fuzzing import Target, with_rig
from faults.mutation import Mutator

from zsq.transport.nsq.backend import Authorized
from zsq.transport.nsq.identify import ClientIdentity
from zsq.transport.nsq.layers import (
    DeflateLayer,
    Layer,
    LayerError,
    Layers,
    SnappyLayer,
    snappy_is_here,
)
from zsq.transport.nsq.limits import NsqLimits
from zsq.transport.nsq.lookup import LookupFailed, parse_channels
from zsq.transport.nsq.permissions import BadAuthorization, parse_state
from zsq.transport.nsq.reply_queue import PENDING_MAX
from zsq.transport.nsq.session import Session, State
from zsq.transport.nsq.wire import message_id

_LIMITS: Final = NsqLimits(max_msg_size=1_000, max_body_size=5_000, snappy=snappy_is_here())
_AUTH_LIMITS: Final = replace(_LIMITS, auth_required=True)
_IDENTITIES: Final = tuple(
    json.dumps({"client_id": "c", "feature_negotiation": True} | more).encode()
    for more in (
        {},
        {"heartbeat_interval": 1_000},
        {"deflate": True},
        {"snappy": True},
        {"sample_rate": 50, "msg_timeout": 5_000},
        {"deflate": 1},
    )
)


def _sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def _mpub(*bodies: bytes) -> bytes:
    return b"MPUB t\n" + _sized(struct.pack(">i", len(bodies)) + b"".join(map(_sized, bodies)))


_ID: Final = message_id(7)
_COMMANDS: Final = (
    *(b"IDENTIFY\n" + _sized(one) for one in _IDENTITIES), b"SUB t c\n", b"RDY 10\n", b"PUB t\n" + _sized(b"body"),
    _mpub(b"a", b"bb", b"ccc"),
    _mpub(*[b"same"] * 20), b"DPUB t 100\n" + _sized(b"later"), b"FIN " + _ID + b"\n", (b"FIN " + _ID + b"\n") * 20,
    b"REQ " + _ID + b" 50\n",
    b"TOUCH " + _ID + b"\n", b"CLS\n", b"NOP\n", b"AUTH\n" + _sized(b"secret"), b"RDY\n", b"RDY -1\n", b"PUB " + b"x" * 65 + b"\n",
    b"SUB t#ephemeral c#ephemeral\n", b"FIN " + b"z" * 16 + b"\r\n",
)  # fmt: skip
_AUTH: Final = (
    (
        b'{"ttl": 60, "identity": "i", "authorizations": [{"topic": "t.*", "channels": [".*"], '
        b'"permissions": ["publish"]}]}'
    ),
    (
        b'{"ttl": 1e9, "authorizations": [{"topic": "(a|b)+$", "channels": ["[a-z]{1,3}"], '
        b'"permissions": ["subscribe", "publish"]}]}'
    ),
)


class _Grant:
    identity, identity_url, permission_count = "i", "u", 1


class ConnectionRig:
    """A client and its session. A new session begins when the last one has ended."""

    def __init__(self, mutator: Mutator) -> None:
        self.mutator = mutator
        self._begin()

    def _begin(self) -> None:
        self.layers = Layers()
        self.packers: list[Layer] = []  # the client's side of the compression layers
        self.waiting: list[Callable[[str], None]] = []
        self.closed = False
        self.now_ns = 0
        self.written = 0
        self.session = Session(self.mutator.one((_LIMITS, _AUTH_LIMITS)), self, self._write, 0)
        self._hear(b"  V2")

    def draw(self) -> bytes:
        mutator = self.mutator
        data = b"".join(mutator.one(_COMMANDS) for _ in range(1 + mutator.below(4)))
        if mutator.chance(2):
            data = mutator.changed(data)
        if self.packers and not mutator.chance(8):
            data = self.packers[0].send(data)
            if mutator.chance(4):
                data = mutator.changed(data)
        return data

    def hear(self, given: bytes) -> bool:
        if self.closed or self.session.state is State.ENDED:
            self._begin()
        before = self.written
        if self.session.reading:
            try:
                self._hear(self.layers.receive(given))
                for _ in range(50):
                    if not self.layers.held or not self.session.reading:
                        break
                    self._hear(self.layers.receive(b""))
            except LayerError:
                self.close()
        else:
            assert self.waiting or self.closed or self.session.state is State.ENDED, (
                "it waits for nobody and does not read"
            )
        while self.waiting and not self.mutator.chance(3):
            answer = self.waiting.pop(self.mutator.below(len(self.waiting)))
            answer(
                ""
                if self.mutator.chance(4)
                else self.mutator.one(("", "no", "E_AUTH_FAILED", "ä\n"))
            )
            self._go_on()
        if self.mutator.chance(20):
            self.now_ns += self.mutator.one((1, 10**9, 31 * 10**9, 200 * 10**9))
            assert self.session.on_time(self.now_ns) > self.now_ns
        if self.mutator.chance(100):
            self.session.on_refused(self.mutator.one(("FIN", "REQ", "TOUCH")), _ID)
            self.session.on_messages(b"frame", 1)
        if self.mutator.chance(200):
            self.session.on_eof()
        assert self.session.pending <= PENDING_MAX + 1
        return self.written > before and not self.closed

    def _hear(self, plain: bytes) -> None:
        if plain and not self.closed:
            self.session.receive(plain, self.now_ns)
        self._go_on()

    def _go_on(self) -> None:
        while self.session.more and self.session.reading and not self.closed:
            self.session.go_on(self.now_ns)

    def _write(self, data: bytes) -> None:
        assert data
        assert not self.closed
        self.written += len(data)

    def _later(self, answer: Callable[[str], None]) -> None:
        if self.mutator.chance(2):
            answer("")
        else:
            self.waiting.append(answer)

    # The backend of the session

    def publish(
        self, topic: str, bodies: list[bytes], defer_ms: int, answer: Callable[[str], None]
    ) -> None:
        assert bodies
        assert all(type(body) is bytes and 0 < len(body) <= _LIMITS.max_msg_size for body in bodies)
        assert 0 <= defer_ms <= _LIMITS.max_req_timeout_ms
        assert topic
        self._later(answer)

    def subscribe(
        self, topic: str, channel: str, identity: ClientIdentity, answer: Callable[[str], None]
    ) -> None:
        self._later(answer)

    def set_ready(self, count: int) -> None:
        assert 0 <= count <= _LIMITS.max_rdy_count

    def finish(self, ids: list[bytes]) -> list[bytes]:
        assert all(len(one) == 16 for one in ids)
        return [one for one in ids if one != _ID]

    def requeue(self, id: bytes, delay_ms: int) -> bool:
        assert 0 <= delay_ms <= _LIMITS.max_req_timeout_ms
        return id == _ID

    def held_by_other(self, id: bytes) -> bool:
        return self.mutator.chance(2)

    def touch(self, id: bytes) -> bool:
        return id == _ID

    def leave(self) -> None:
        pass

    def authenticate(
        self, secret: bytes, identity: ClientIdentity, answer: Callable[[Authorized | str], None]
    ) -> None:
        answer(_Grant() if self.mutator.chance(2) else "no")

    def permitted(
        self, permission: str, topic: str, channel: str, answer: Callable[[str], None]
    ) -> None:
        self._later(answer)

    def upgrade(
        self, layer: str, identity: ClientIdentity, rest: bytes, answer: Callable[[str], None]
    ) -> None:
        made, own = (
            (SnappyLayer(), SnappyLayer())
            if layer == "snappy"
            else (DeflateLayer(6), DeflateLayer(6))
        )
        self.layers.push(made)
        self.packers.append(own)
        answer("")
        try:
            self._hear(made.receive(rest))
        except LayerError:
            self.close()

    def close(self) -> None:
        self.closed = True
        self.session.on_closed()


class AnswersRig:
    """Answers of other servers to the gateway: of an auth server and of nsqlookupd."""

    def __init__(self, mutator: Mutator) -> None:
        self.mutator = mutator

    def draw(self) -> tuple[Callable[[bytes], Any], bytes]:
        if self.mutator.chance(2):
            return parse_state, self.mutator.bytes_like(_AUTH)
        return parse_channels, self.mutator.bytes_like(
            (b'{"channels": ["a", "b#ephemeral"]}', b'{"data": {"channels": []}}', b"[]")
        )

    def hear(self, given: tuple[Callable[[bytes], Any], bytes]) -> bool:
        parse, data = given
        try:
            found = parse(data)
        except (BadAuthorization, LookupFailed):
            return False
        if parse is parse_state:
            found.permits("publish", self.mutator.one(("t", "topic", "a" * 64)), "")
        return True

    def close(self) -> None:
        pass


TARGETS: Final[Sequence[Target]] = (
    Target("nsq", with_rig(ConnectionRig), 12),
    Target("nsq-answers", with_rig(AnswersRig), 4),
)
