"""ZeroMQ's questions about who connects, and the answers: ZAP 1.0 (RFC 27) for the mechanism CURVE. Pure.

A question comes from within libzmq once a client has proved that it has the secret of its public key. Only then, so whoever answers is not
kept busy by strangers. What is asked with anything else than CURVE, in a foreign domain or in another form is refused.

pyzmq has an authenticator of its own; it is a coroutine, and this gateway turns no event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ..transport.z85 import KEY_BYTES, encode_key

ENDPOINT: Final = "inproc://zeromq.zap.01"
VERSION: Final = b"1.0"
DOMAIN: Final = b"zsq"
MECHANISM: Final = b"CURVE"
_FRAMES: Final = 7  # version, request id, domain, address, identity, mechanism, the public key


def answer(frames: Sequence[bytes], known: Callable[[str], bool]) -> tuple[list[bytes], str]:
    """(the reply's frames, why it was refused or ""). `known`: whether this public key (Z85) may come in; it becomes the User-Id."""
    version, request = [*frames, b"", b""][:2]
    if len(frames) != _FRAMES or version != VERSION:
        return [VERSION, request, b"500", b"not ZAP 1.0", b"", b""], "a question that is not ZAP 1.0"
    domain, address, mechanism, key = frames[2], frames[3].decode(errors="replace"), frames[5], frames[6]
    if domain != DOMAIN or mechanism != MECHANISM or len(key) != KEY_BYTES:
        return [VERSION, request, b"400", b"CURVE is wanted", b"", b""], f"{address}: no CURVE"
    public = encode_key(key)
    if not known(public):
        return [VERSION, request, b"400", b"unknown key", b"", b""], f"{address}: unknown public key {public}"
    return [VERSION, request, b"200", b"OK", public.encode(), b""], ""
