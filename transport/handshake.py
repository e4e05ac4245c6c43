"""What it means that a broker broke off ZeroMQ's handshake, said so that a person knows what to do. Pure.

ZeroMQ itself would try again without a word, for ever. Its monitor tells three things apart:

* the other side speaks another mechanism: it wants a key and there is none here, or the other way round;
* it knows no such client (ZAP's 400);
* it just hung up. So ends who was shown a wrong server key, but also a proxy without a broker behind it: a text, no verdict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .errors import E_BAD_KEY, E_FORBIDDEN, Refused, UsageError, ZsqError

if TYPE_CHECKING:
    from .address import Address

HUNG_UP: Final = 0x0800  # ZeroMQ: HANDSHAKE_FAILED_NO_DETAIL
OTHER_MECHANISM: Final = 0x2000  # HANDSHAKE_FAILED_PROTOCOL, of which only this one says something
UNKNOWN_KEY: Final = 0x4000  # HANDSHAKE_FAILED_AUTH
HANDSHAKE_EVENTS: Final = HUNG_UP | OTHER_MECHANISM | UNKNOWN_KEY
MECHANISM_MISMATCH: Final = 0x11000002  # the detail of a PROTOCOL event


def verdict(events: int, address: Address) -> ZsqError | None:
    """Why there will be no connection, as long as nobody changes something; None where that is not known."""
    url, credentials = address.url, address.credentials
    if events & UNKNOWN_KEY:
        shown = credentials.public if credentials is not None else "none"
        text = f"the broker at {url} does not know this client's public key, {shown}: it has to stand in its access file"
        return Refused(E_FORBIDDEN, text)
    if not events & OTHER_MECHANISM:
        return None
    if credentials is None:
        text = (
            f"the broker at {url} wants a key and none was given: see key_file=, --key-file and $ZSQ_KEY_FILE (`zsq keys client` makes one)"
        )
    else:
        text = f"the broker at {url} does not encrypt, so nothing is said to it with the key file {credentials.source}: leave that out, "
        text += "or start the broker with --curve-key"
    return UsageError(E_BAD_KEY, text)


def suspicion(address: Address) -> str:
    """What the other side may mean by just hanging up."""
    if address.credentials is None:
        return f"{address.url} hung up at once: perhaps it wants a key, see --key-file"
    return f"{address.url} hung up during the handshake: perhaps `server` in {address.credentials.source} is not its public key"
