"""Parsed commands of NSQ clients: names and numbers are checked, sizes are within the limits."""

from __future__ import annotations

from typing import NamedTuple


class Identify(NamedTuple):
    body: bytes


class Auth(NamedTuple):
    secret: bytes


class Sub(NamedTuple):
    topic: str
    channel: str


class Pub(NamedTuple):
    topic: str
    body: bytes


class Mpub(NamedTuple):
    topic: str
    bodies: list[bytes]
    size: int  # the bytes of all bodies together


class Dpub(NamedTuple):
    topic: str
    defer_ms: int
    body: bytes


class Rdy(NamedTuple):
    ready: int


class Fins(NamedTuple):
    """A run of FINs. Each id has 16 bytes."""

    ids: list[bytes]


class Req(NamedTuple):
    id: bytes
    timeout_ms: int


class Touch(NamedTuple):
    id: bytes


class Cls(NamedTuple):
    pass


class Nop(NamedTuple):
    pass


Command = Identify | Auth | Sub | Pub | Mpub | Dpub | Rdy | Fins | Req | Touch | Cls | Nop
