"""Handshake errors: why ZeroMQ's handshake with a broker failed, and what to do. No I/O.

ZeroMQ itself would try again without end and without a report. Its monitor distinguishes three
cases:

* The other side uses another mechanism: it requires a key and this client has none, or the reverse.
* The broker does not know the key of this client (ZAP's status 400).
* The other side closed the connection. This happens to a client with a wrong server key, but also
  to a client that reaches a proxy without a broker. So the reason is not certain, and only
  `suspicion` has a text about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..errors import E_BAD_KEY, E_FORBIDDEN, Refused, UsageError, ZsqError, option
from .protocol import DEFAULT_URL

if TYPE_CHECKING:
    from .address import Address

# ZeroMQ's events of a failed handshake. HUNG_UP is HANDSHAKE_FAILED_NO_DETAIL.
HUNG_UP: Final = 0x0800
# This event is HANDSHAKE_FAILED_PROTOCOL. Only its detail MECHANISM_MISMATCH is used.
OTHER_MECHANISM: Final = 0x2000
UNKNOWN_KEY: Final = 0x4000  # HANDSHAKE_FAILED_AUTH
HANDSHAKE_EVENTS: Final = HUNG_UP | OTHER_MECHANISM | UNKNOWN_KEY
TLS_ALERT: Final = b"\x15\x03"
ZMTP_BEGINS: Final = b"\xff"
# The first bytes of a greeting of ZMTP 3.1 (https://rfc.zeromq.org/spec/23): the signature and the
# version. The other side then sends its own greeting, where the name of its mechanism is at
# MECHANISM.
GREETING_BEGINS: Final = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01"
MECHANISM: Final = slice(12, 32)
MECHANISM_MISMATCH: Final = 0x11000002  # a detail of HANDSHAKE_FAILED_PROTOCOL


def verdict(events: int, address: Address) -> ZsqError | None:
    """Return the error of a failed handshake if only a change by a user can correct the failure.

    Return None if the reason is not known.
    """
    url, credentials = address.url, address.credentials
    if events & UNKNOWN_KEY:
        shown = credentials.public if credentials is not None else "none"
        text = (
            f"the broker at {url} does not know this client's public key, {shown}; add the key "
            "to its access file"
        )
        return Refused(E_FORBIDDEN, text)
    if not events & OTHER_MECHANISM:
        return None
    if credentials is None:
        text = (
            f"the broker at {url} requires a key, and none was given; set {option('key_file')} "
            "or $ZSQ_KEY_FILE"
            " (`zsq keys client` creates a key file)"
        )
    else:
        text = (
            f"the broker at {url} does not encrypt, but this client uses the key file "
            f"{credentials.source}; leave the key file out, "
        )
        text += "or start the broker with --curve-key"
    return UsageError(E_BAD_KEY, text)


def mechanism_of(greeting: bytes) -> bytes:
    """Return the name of the mechanism in a greeting, or b"" if the greeting is not whole."""
    is_complete = len(greeting) >= MECHANISM.stop and greeting.startswith(ZMTP_BEGINS)
    return greeting[MECHANISM].rstrip(b"\0") if is_complete else b""


def mechanism_verdict(mechanism: bytes, address: Address) -> ZsqError | None:
    """Return the error if a server with this mechanism cannot be used with these credentials."""
    wanted = b"NULL" if address.credentials is None else b"CURVE"
    is_wrong = mechanism in (b"NULL", b"CURVE") and mechanism != wanted
    return verdict(OTHER_MECHANISM, address) if is_wrong else None


def what_answers(answer: bytes, url: str) -> tuple[str, bool]:
    """Return a text about the port of `url`, derived from its answer to a plain `GET /info`.

    The second value is True if it is certainly the wrong port.
    """
    port = (
        "clients connect to the port of `zsq serve --listen`, by default "
        f"{DEFAULT_URL.rpartition(':')[2]}"
    )
    head = answer.partition(b"\r\n\r\n")[0].lower()
    if answer.startswith(b"HTTP/"):
        whose = (
            "of a ZSQ broker (or of nsqd)" if b"x-nsq-content-type" in head else "of another server"
        )
        return f"{url} is the HTTP port {whose}; {port}", True
    if b"E_BAD_PROTOCOL" in answer:
        return f"{url} is the port of a ZSQ broker (or of nsqd) for NSQ clients; {port}", True
    if answer.startswith(TLS_ALERT):
        return f"{url} speaks TLS and may be the HTTPS port of a ZSQ broker; {port}", True
    if answer.startswith(ZMTP_BEGINS):
        return (
            (
                f"{url} speaks ZeroMQ's protocol, but does not answer, and may be the push port of "
                f"a broker; {port}"
            ),
            False,
        )
    if answer:
        return f"{url} does not speak ZeroMQ's protocol, but answers {answer[:20]!r}; {port}", False
    return "", False


def suspicion(address: Address) -> str:
    """Return a text about the likely reason why the other side closed the connection."""
    if address.credentials is None:
        return (
            f"{address.url} closed the connection at once; it may require a key (see "
            f"{option('key_file')})"
        )
    return (
        f"{address.url} closed the connection during the handshake; `server` in "
        f"{address.credentials.source} may not be its public key"
    )
