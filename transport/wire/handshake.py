"""Handshake errors: why a broker broke off ZeroMQ's handshake, and what the user can do. No I/O.

ZeroMQ itself would try again silently, for ever. Its monitor distinguishes three cases:

* The other side uses another mechanism: it wants a key and none is given here, or the reverse.
* It does not know this client (ZAP's 400).
* It just hung up. This happens to a client with a wrong server key, but also to one that reaches a
  proxy without a broker. So this case has no verdict, only a text that says what it may mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..errors import E_BAD_KEY, E_FORBIDDEN, Refused, UsageError, ZsqError, option
from .protocol import DEFAULT_URL

if TYPE_CHECKING:
    from .address import Address

HUNG_UP: Final = 0x0800  # ZeroMQ: HANDSHAKE_FAILED_NO_DETAIL
OTHER_MECHANISM: Final = (
    0x2000  # HANDSHAKE_FAILED_PROTOCOL, of which only this detail is meaningful
)
UNKNOWN_KEY: Final = 0x4000  # HANDSHAKE_FAILED_AUTH
HANDSHAKE_EVENTS: Final = HUNG_UP | OTHER_MECHANISM | UNKNOWN_KEY
TLS_ALERT: Final = b"\x15\x03"
ZMTP_BEGINS: Final = b"\xff"
MECHANISM_MISMATCH: Final = 0x11000002  # the detail of a PROTOCOL event


def verdict(events: int, address: Address) -> ZsqError | None:
    """Return the reason that will prevent connections until a user changes something.

    Return None if that is not known.
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


def what_answers(answer: bytes, url: str) -> tuple[str, bool]:
    """Return what an answer to a plain `GET /info` says about the port of `url`.

    The second value is True if it is surely the wrong port.
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
    """Return what it may mean that the other side just hung up."""
    if address.credentials is None:
        return (
            f"{address.url} closed the connection at once; it may require a key (see "
            f"{option('key_file')})"
        )
    return (
        f"{address.url} closed the connection during the handshake; `server` in "
        f"{address.credentials.source} may not be its public key"
    )
