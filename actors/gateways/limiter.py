"""Limiter: bounds what the clients of a gateway hold at the same time, each alone and all together.

Every gateway uses it for everything that a client may occupy for a while: requests, streams, bytes
of bodies, unanswered questions. A holder is a user, or an address if the clients of that address
show no user, or a link. Because each holder has a bound of its own, one holder cannot take what the
others need.

A caller takes its place before its first `await`. Otherwise requests that come together would all
find room.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from ...transport.errors import E_LIMIT, Refused


class Bound(NamedTuple):
    """The most that all holders may hold together, and the most that each of them may hold."""

    in_all: int
    each: int


class Limiter:
    """The places of one kind, for example requests.

    `places` names them in the plural, and `remedy` says what a client can do.
    """

    def __init__(self, places: str, bound: Bound, remedy: str = "try again") -> None:
        self.bound = bound
        self.taken = 0
        self._places = places
        self._remedy = remedy
        self._held: dict[Hashable, int] = {}

    def held_by(self, holder: Hashable) -> int:
        return self._held.get(holder, 0)

    def take(self, holder: Hashable, amount: int = 1) -> None:
        """Take places. Raises `Refused` (E_LIMIT) if a bound would be exceeded."""
        in_all, each = self.bound
        held = self.held_by(holder)
        if held + amount > each:
            raise self._refused(each, f"for {holder}")
        if self.taken + amount > in_all:
            raise self._refused(in_all, "for all clients together")
        self._held[holder] = held + amount
        self.taken += amount

    def give_back(self, holder: Hashable, amount: int = 1) -> None:
        self.taken -= amount
        held = self._held[holder] - amount
        if held:
            self._held[holder] = held
        else:
            del self._held[holder]

    @contextmanager
    def place(self, holder: Hashable) -> Iterator[ExitStack]:
        """Take a place, and give it back at the end.

        A caller whose place must last longer moves it out with `ExitStack.pop_all`.
        """
        self.take(holder)
        with ExitStack() as held:
            held.callback(self.give_back, holder)
            yield held

    def _refused(self, most: int, whose: str) -> Refused:
        return Refused(
            E_LIMIT, f"the limit of {most:,} {self._places} {whose} is reached; {self._remedy}"
        )
