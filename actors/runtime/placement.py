"""Placement: in which process the actors of a topic run. Pure: it starts nothing.

A topic and its channels are placed together. Either each of them has a process of its own, or all
of them share a host with other quiet topics. A new topic shares. It gets processes of its own when
it is busy, and shares again when it has been quiet for long.

A shared host that ends takes all its topics along. If one of them caused the end, its failure says
so, or that it was killed because it did not answer. That topic gets processes of its own. If
nothing says so (a segmentation fault, the killer of the system, `kill -9`), each of its topics may
be the cause. So each such end of its host puts a topic into hosts with a quarter of the room, and
after four of them the cause is alone. This finds it while most topics share most of the time, and
its restarts count from then on.

Ends that are an hour old are forgotten. A topic with more actors than a host has room for gets a
host without others. It gets processes of its own if such a host has ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

ROOM: Final = 128  # the actors of a shared host
_QUARTER: Final = 2  # as a shift
NEW: Final = 0  # no host has this number
UNKNOWN_CHANNELS: Final = 3  # expected of a topic that starts and has not reported its channels
FORGET_NS: Final = 3_600_000_000_000
NEVER_NS: Final = 1 << 62
QUIET: Final = 0.1
"""A topic is quiet below this part of the share with which it is busy."""


class Load:
    """The processor time that the actors of a topic take, from their pulses.

    `add` gets the time that an actor has taken since its start. `share` is what all of them took
    between their last two pulses, in cores. A busy actor sends a pulse each second. The topic is
    busy from the share `busy_at` on. Between quiet and busy it stays where it is, so that it does
    not move back and forth.
    """

    def __init__(self, busy_at: float) -> None:
        self._busy_at = busy_at
        self._shares: dict[int, tuple[int, int, float]] = {}  # key -> (when, cpu, share)
        self._quiet_since_ns = 0

    def add(self, key: int, cpu_ns: int, now_ns: int) -> None:
        before_ns, before_cpu_ns, _ = self._shares.get(key, (now_ns, cpu_ns, 0.0))
        share = (cpu_ns - before_cpu_ns) / (now_ns - before_ns) if now_ns > before_ns else 0.0
        self._shares[key] = now_ns, cpu_ns, share
        if self.share >= QUIET * self._busy_at or not self._quiet_since_ns:
            self._quiet_since_ns = now_ns

    def ended(self, key: int) -> None:
        """Count what an actor took no longer, because it has ended."""
        self._shares.pop(key, None)

    def forget(self) -> None:
        """Begin anew, with the successors of these actors."""
        self._shares.clear()
        self._quiet_since_ns = 0

    @property
    def share(self) -> float:
        return sum(share for _, _, share in self._shares.values())

    @property
    def is_busy(self) -> bool:
        return self.share >= self._busy_at

    def is_quiet(self, for_s: float, now_ns: int) -> bool:
        """Return True if the topic has been quiet for so long."""
        return bool(self._quiet_since_ns) and now_ns - self._quiet_since_ns >= for_s * 1e9


class Past:
    """The ends of shared hosts in which a topic was, until they are forgotten.

    `ends` counts those that nothing explains. With `is_cause`, the topic has caused one.
    """

    def __init__(self) -> None:
        self.ends = 0
        self.is_cause = False
        self._forget_ns = 0

    def add(self, now_ns: int, *, is_cause: bool, passes: bool = True) -> None:
        """Note an end. If its cause does not pass, nothing is forgotten any more."""
        if is_cause:
            self.is_cause = True
        else:
            self.ends += 1
        self._forget_ns = max(self._forget_ns, now_ns + FORGET_NS if passes else NEVER_NS)

    def look(self, now_ns: int) -> None:
        """Forget all ends if the last one was long ago."""
        if now_ns >= self._forget_ns:
            self.ends, self.is_cause = 0, False


class HostLoad(NamedTuple):
    """A shared host: its number, its actors, and the ends that its topics have seen.

    The channels of a topic that starts count before they start. With `is_left`, a busy topic that
    cannot move is in it, and the others leave.
    """

    number: int
    actors: int
    ends: int
    is_left: bool = False


def room(ends: int) -> int:
    """Return how many actors share a host after so many unexplained ends of their hosts."""
    return ROOM >> _QUARTER * ends


def place(hosts: Iterable[HostLoad], actors: int, ends: int) -> int | None:
    """Return the number of the host for a topic with so many actors, NEW for a new host, or None
    for processes of its own.

    The fullest host that has room is the best, so that others become empty and end.
    """
    if actors > room(ends):
        return None if ends else NEW
    fitting = [
        host
        for host in hosts
        if host.ends == ends and not host.is_left and host.actors + actors <= room(ends)
    ]
    return max(fitting, key=lambda host: host.actors).number if fitting else NEW


def free_number(hosts: Iterable[HostLoad]) -> int:
    """Return the lowest number from 1 on that no host has."""
    used = {host.number for host in hosts}
    return next(number for number in range(1, len(used) + 2) if number not in used)


def to_end(hosts: Iterable[HostLoad]) -> list[int]:
    """Return the empty hosts that no topic needs. One is kept for the next topic."""
    empty = sorted((host.ends, host.number) for host in hosts if not host.actors)
    has_room = any(
        0 < host.actors < room(0) and not host.ends and not host.is_left for host in hosts
    )
    return [number for ends, number in empty[0 if has_room else 1 :]]
