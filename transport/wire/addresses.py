"""Addresses: where a broker and its standbys may be, and the turn of a client among them.

    tcp://a:4153,tcp://b:4153

A broker may have a standby on another machine. The standby takes over when the primary is gone. So
a client names the addresses of both. It talks to one of them at a time: the *present* one. When
this address does not lead to the primary, the client goes to the next one in the list, and after
the last one to the first. The addresses that the user gave are the only ones that it uses, except
for topics with parts (`spread.py`), because only the brokers know where the parts are. Even those
are not trusted with every address (`address.py`). (Rejected:
to follow an address in the text of an error.)

A rotation says which address comes next and why the others failed. It does not wait. The link
decides when an address has failed, and how long to pause after a round (`client/link/course.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ..errors import E_BAD_ARGUMENT, E_FENCED, E_STANDBY, Refused, UsageError, ZsqError
from ..records import Record, record
from .address import Address, Space, direct_address, given_url, parse, space_of
from .credentials import Credentials, KeyFile

__all__ = ["ADDRESSES_MAX", "NOT_PRIMARY", "Addresses", "Rotation", "Url", "parse_all"]

ADDRESSES_MAX: Final = 16
REACHED_MAX: Final = 100  # the most lists of addresses for which the last one used is remembered
# Codes by which a broker says that another one is the primary.
NOT_PRIMARY: Final = frozenset({E_STANDBY, E_FENCED})

# The URL of the present address, by all URLs of a list that a client of this process has. A new
# client begins with it, so that it does not wait again for a machine that is down.
_reached: dict[str, str] = {}


@record
class Addresses(Record):
    """The addresses of a broker and its standbys, in the order in which a client tries them."""

    each: tuple[Address, ...]

    @property
    def url(self) -> str:
        """All addresses, in the form that `parse_all` accepts."""
        return ",".join(address.url for address in self.each)

    @property
    def credentials(self) -> Credentials | None:
        """The keys. They are the same for all gateways, and an ipc:// address needs none."""
        return next(
            (address.credentials for address in self.each if address.credentials is not None), None
        )

    @property
    def auto(self) -> bool:
        """True unless the user chose to use gateways only."""
        return any(address.auto for address in self.each)

    def on_behalf(self, by: Mapping[str, str]) -> Addresses:
        """Return the same addresses, for requests in the name of this user. See `Address.by`."""
        return Addresses(tuple(replace(address, by=by) for address in self.each))


Url = str | list[str] | tuple[str, ...] | Addresses | None
"""The `url` of a client: one address, several with commas between them, or a list of them."""


def parse_all(url: Url, key_file: KeyFile = None, transport: str | None = None) -> Addresses:
    """Return the addresses of a list of URLs. See `address.parse` for the arguments.

    Raises `UsageError` (E_BAD_ARGUMENT) for a list that is empty or too long, for an empty part,
    and for an address that is not valid or that occurs twice.
    """
    if isinstance(url, Addresses) and url.each:
        return url
    parts = _parts(url)
    addresses = []
    for part in parts:
        if not part:
            text = f"{_shown(url)} has an empty address; write tcp://A:4153,tcp://B:4153"
            raise UsageError(E_BAD_ARGUMENT, text)
        addresses.append(parse(part, key_file, transport))
    if not 0 < len(addresses) <= ADDRESSES_MAX:
        text = f"a client can have 1 to {ADDRESSES_MAX} addresses, not {len(addresses)}"
        raise UsageError(E_BAD_ARGUMENT, text)
    for index, address in enumerate(addresses):
        if address in addresses[:index]:
            raise UsageError(E_BAD_ARGUMENT, f"{_shown(url)} has the address {address.url} twice")
    return Addresses(tuple(addresses))


def _parts(url: Url) -> list[str]:
    """Return the addresses as they are written. A path of ipc:// may contain a comma."""
    if isinstance(url, Addresses):
        return []
    if isinstance(url, list | tuple):
        for one in url:
            if not isinstance(one, str):
                text = f"an address must be a string, not {type(one).__name__}: {one!r:.80}"
                raise UsageError(E_BAD_ARGUMENT, text)
        return [part for one in url for part in (_parts(one) if one else [""])]
    if url is not None and not isinstance(url, str):
        text = f"url must be a string or a list of strings, not {type(url).__name__}: {url!r:.80}"
        raise UsageError(E_BAD_ARGUMENT, text)
    parts: list[str] = []
    for part in given_url(url).split(","):
        if part and "://" not in part and parts and parts[-1].lstrip().startswith("ipc://"):
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    return [part.strip() for part in parts]


def _shown(url: Url) -> str:
    if isinstance(url, Addresses):
        return repr(url.url)
    return repr(url if isinstance(url, list | tuple) else given_url(url))


@dataclass(slots=True)
class _Failure:
    """Why the last attempt at one address failed."""

    why: str
    error: ZsqError | None  # the answer of the broker, if there was one
    unheard: bool  # True if nothing listens there


class Rotation:
    """The turn of a client among its addresses, and the ways past their gateways."""

    def __init__(self, given: Address | Addresses, *, moves: bool = False) -> None:
        """Begin with the address that was used last. With `moves`, begin with the first one.

        `moves` is True for the way to a part of a topic. A link leaves such an address as soon as
        it does not answer, also if it is the only one.
        """
        self.given = given if isinstance(given, Addresses) else Addresses((given,))
        self.each = self.given.each
        self.url = given.url
        self.moves = moves
        self.several = moves or len(self.each) > 1
        last = None if moves else _reached.get(self.url)
        known = [address for address in self.each if address.url == last]
        self.present = (known or list(self.each))[0]
        self._last: Address | None = None  # where the last link to a broker was up
        self._failures: dict[str, _Failure] = {}  # the last failure of each address, by its URL
        # The run directories that gateways named, by the gateway's URL.
        self._direct: dict[str, Address] = {}
        # The run ids of run directories over which nothing has answered.
        self._unusable: set[str] = set()

    # Turning

    def failed(
        self, address: Address, why: str, error: ZsqError | None = None, *, unheard: bool = False
    ) -> None:
        """Note that this address did not lead to the primary, and go to the next one.

        If another link has gone on already, the present address stays.
        """
        self._failures[address.url] = _Failure(why, error, unheard)
        if self.several and address == self.present:
            self.present = self.each[(self.each.index(address) + 1) % len(self.each)]
            # What the gateway said about the broker may be different when the client comes back.
            self._direct.pop(address.url, None)

    @property
    def others(self) -> list[Address]:
        """All addresses but the present one."""
        return [address for address in self.each if address != self.present]

    def go_to(self, address: Address) -> None:
        """Try this address next. The primary was found there."""
        self.present = address

    def reached(self, address: Address) -> bool:
        """Note that a link to the broker at this address is up.

        Return True if the last link to a broker was at another address.
        """
        self._failures.clear()
        if not self.several:
            return False
        before, self.present, self._last = self._last, address, address
        if self.moves:
            return False
        if self.url not in _reached and len(_reached) >= REACHED_MAX:
            _reached.pop(next(iter(_reached)), None)
        _reached[self.url] = address.url
        return before is not None and before != address

    # For error texts

    def why(self) -> str:
        """Return why each address failed. Return "" if there is only one, or none has failed."""
        if not self.several or not self._failures:
            return ""
        failures = [(address.url, self._failures.get(address.url)) for address in self.each]
        whys = [
            (url, failure.why if failure is not None else "no answer") for url, failure in failures
        ]
        return "; ".join(why if url in why else f"{url}: {why}" for url, why in whys)

    def refusal(self) -> ZsqError | None:
        """Return what the brokers said, if all of them answered that they are not the primary."""
        errors = [failure.error for failure in self._failures.values() if failure.error is not None]
        if len(errors) < len(self.each) or any(error.code not in NOT_PRIMARY for error in errors):
            return None
        codes = {error.code for error in errors}
        text = self.why() or errors[0].text
        return Refused(E_STANDBY if E_STANDBY in codes else E_FENCED, text)

    @property
    def deserted(self) -> bool:
        """True if all addresses are on this machine, and nothing listens at any of them."""
        return all(
            address.local and address.url in self._failures and self._failures[address.url].unheard
            for address in self.each
        )

    # Direct links

    def way_to(self, address: Address) -> Address:
        """Return the run directory that a gateway named, while it is usable, else the address."""
        direct = self._direct.get(address.url)
        if direct is not None and not direct.current:
            del self._direct[address.url]
            direct = None
        return direct or address

    def learn_way(self, address: Address, host: str, opened: Mapping[str, Any]) -> bool:
        """Note the run directory that a gateway named. Return True if links can use it.

        `host` is the numeric address of the gateway.
        """
        usable = address.auto and space_of(host) is Space.MACHINE
        direct = direct_address(opened) if usable else None
        if direct is None or direct.run_id in self._unusable:
            return False
        self._direct[address.url] = direct
        return True

    def forget_way(self, address: Address, *, unusable: bool) -> None:
        """Go to the gateway again.

        `unusable` is True if nothing has ever answered over the run directory.
        """
        direct = self._direct.pop(address.url, None)
        if direct is not None and unusable:
            self._unusable.add(direct.run_id)
