"""Topics with parts: which part a key belongs to, and where a client finds a part.

A part lies at one broker (`names.py`). A broker that is asked for a topic with parts, or for a part
that it does not have, answers with `Spread`: the parts, and the addresses of their brokers.

The part of a key is the same in all clients and languages:

    hash = CRC-32C of the key's bytes
    part = jump consistent hash of that number, over the number of parts

Jump consistent hash is by Lamping and Veach (arXiv 1406.2294). When parts are added, keys move only
to the new parts, and none moves between the others.

If the part is closed, the key goes to one of the open parts, in the order of their numbers: to that
of the jump consistent hash over the number of open parts. So when a part is closed, only its keys
move. A part that was removed still counts in the number of parts, as a closed one. So no key moves
when a closed part is removed.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from ..checksum import crc32c
from ..errors import (
    E_BAD_COMMAND,
    E_CLOSED,
    E_NOT_FOUND,
    E_PARTS,
    NotFound,
    Refused,
    UsageError,
)
from ..names import PARTS_MAX, part_name, part_of
from .address import Address, Space, parse
from .addresses import ADDRESSES_MAX, Addresses, Rotation
from .protocol import Spread
from .rows import check_rows

_MASK: Final = (1 << 64) - 1
_JUMP: Final = 2862933555777941757
_KNOWN_KEYS_MAX: Final = 10_000
# Producers and consumers of a topic with parts ask this often whether there are new parts.
PARTS_ASKED_NS: Final = 60_000_000_000


class HasParts(UsageError):
    """The topic has parts, so the request is possible only for one of them.

    `spread` says where they are.
    """

    def __init__(self, spread: Spread) -> None:
        count = len(spread.parts)
        brokers = len(spread.brokers)
        text = (
            f"topic {spread.topic} has {count} part{'s' * (count != 1)} at {brokers} "
            f"broker{'s' * (brokers != 1)}, and this is possible only for one part: name it, such "
            f"as {part_name(spread.topic, min(spread.parts, default=(0, 0))[0])}"
        )
        super().__init__(E_PARTS, text)
        self.spread = spread

    def __reduce__(self) -> tuple[type[HasParts], tuple[Spread]]:  # type: ignore[override]
        return type(self), (self.spread,)


def part_of_hash(number: int, count: int) -> int:
    """Return the jump consistent hash of a number: 0 to `count` - 1."""
    chosen, candidate = -1, 0
    while candidate < count:
        chosen = candidate
        number = (number * _JUMP + 1) & _MASK
        candidate = int((chosen + 1) * ((1 << 31) / ((number >> 33) + 1)))
    return chosen


class KeyParts:
    """The parts of keys. Keys that were seen are not computed again.

    `count`: the number of parts. They have the numbers 0 to `count` - 1. Not all may be `closed`.
    Parts that were removed count, and are closed.
    """

    def __init__(self, count: int, closed: Iterable[int] = ()) -> None:
        self.count = count
        self.closed = frozenset(closed)
        self.open = tuple(number for number in range(count) if number not in self.closed)
        self._known: dict[bytes, int] = {}

    def of(self, key: bytes) -> int:
        """Return the number of the part to which a key goes."""
        part = self._known.get(key)
        if part is None:
            if len(self._known) >= _KNOWN_KEYS_MAX:
                self._known.clear()
            part = self._known[key] = self._compute(key)
        return part

    def _compute(self, key: bytes) -> int:
        number = crc32c(key)
        part = part_of_hash(number, self.count)
        return part if part not in self.closed else self.open[part_of_hash(number, len(self.open))]


def parts_of_keys(spread: Spread) -> KeyParts:
    """Return the parts of keys of a topic. Raises `Refused` (E_CLOSED) if all parts are closed."""
    count = len(spread.parts) + len(spread.removed)
    parts = KeyParts(count, (*spread.closed, *spread.removed))
    if not parts.open:
        text = f"all {len(spread.parts)} parts of topic {spread.topic} are closed to publishers"
        one = part_name(spread.topic, min(spread.parts)[0])
        raise Refused(E_CLOSED, f"{text}; open one (zsq topic open {one}), or add parts")
    return parts


def checked(spread: Spread) -> Spread:
    """Return the message. Raises `UsageError` (E_BAD_COMMAND) if a part of it is not usable.

    Parts are numbered from 0. Only those that were removed are missing. The codec checks only that
    its fields are tuples.
    """
    check_rows(spread.parts, 2, "the parts of a topic")
    numbers = [*spread.removed, *(number for number, _ in spread.parts)]
    good = all(type(item) is int for item in (*spread.closed, *numbers))
    good = good and len(numbers) <= PARTS_MAX and sorted(numbers) == list(range(len(numbers)))
    good = good and bool(spread.parts)
    for row in spread.brokers:
        good = good and isinstance(row, tuple) and len(row) == 2 and type(row[0]) is int
        good = good and isinstance(row[1], tuple) and len(row[1]) <= ADDRESSES_MAX
        good = good and all(isinstance(item, str) for item in row[1])
    if not good:
        text = f"the broker does not say where the parts are: {reprlib.repr(spread)[:200]}"
        raise UsageError(E_BAD_COMMAND, text)
    return spread


def addresses_of(spread: Spread, number: int) -> tuple[str, ...]:
    """Return the addresses of the broker that has this part.

    They are () if there is no such part, and if the broker that answered has it.
    """
    broker = dict(spread.parts).get(number)
    return () if broker is None else dict(spread.brokers).get(broker, ())


def why_missing(spread: Spread, number: int) -> str:
    """Return why the topic has no part with this number."""
    if number in spread.removed:
        text = f"part {part_name(spread.topic, number)} was removed"
        return f"{text}, and its keys go to the other parts: use topic {spread.topic}"
    return f"topic {spread.topic} has no part {number}"


def removed_part(name: str, spread: Spread) -> NotFound | None:
    """Return the error of a request about a part that was removed, or None for any other name."""
    part = part_of(name)
    if part is None or part[1] not in spread.removed:
        return None
    return NotFound(E_NOT_FOUND, why_missing(spread, part[1]))


def named_for(name: str, spread: Spread) -> tuple[str, ...]:
    """Return the addresses of the broker that has the part with this name, or ()."""
    part = part_of(name)
    return addresses_of(spread, part[1]) if part is not None else ()


def check_named(url: str) -> str:
    """Return a URL that a broker has named for another one.

    Raises `UsageError` (E_BAD_COMMAND) if it is not a tcp:// address. Only users give others.
    """
    if not url.startswith("tcp://"):
        text = f"a broker has named another one at {url[:200]!r}, and only tcp:// is accepted"
        raise UsageError(E_BAD_COMMAND, text)
    return url


def near(home: Addresses, urls: Sequence[str], least: Space) -> Addresses:
    """Return the addresses of another broker, with the keys and choices of the given ones.

    `least` is the space of the broker that names them, and counts for those that the user did not
    give. Raises `UsageError` if an address is not valid, or is not a tcp:// address.
    """
    transport = "auto" if home.auto or all(address.direct for address in home.each) else "tcp"
    by = home.each[0].by
    addresses: list[Address] = []
    for url in urls:
        address = next((address for address in home.each if address.url == url), None) or replace(
            parse(check_named(url), home.credentials, transport), least=least
        )
        if address not in addresses:
            addresses.append(address)
    return Addresses(tuple(addresses)).on_behalf(by)


def way_to(home: Addresses, name: str, spread: Spread, least: Space) -> Rotation | None:
    """Return the way to a part: the addresses of its broker, and then those of the user.

    The user's addresses are tried when the broker does not answer: they may know that another
    broker has the part now. `least`: see `near`. Return None if no broker has a part with this
    name.
    """
    urls = named_for(name, spread)
    if not urls:
        return None
    nearby = near(home, urls, least)
    each = nearby.each + tuple(address for address in home.each if address not in nearby.each)
    return Rotation(Addresses(each), moves=True)
