"""Link host: what the links of one client share: descriptors, the next timer, and the broker.

It knows no link. `Engine` is the host of a client.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from ...resolver import Resolver, resolver
from ...system import EventSet, Ready
from ...wire.address import Address
from ...wire.addresses import Rotation
from .connection import LinkConnection
from .timeouts import FAR_NS, S


class LinkHost(ABC):
    """The descriptors and the next timer of a client's links, and what they know of the broker.

    - `connect`: Makes a connection to an endpoint.
    - `events`: The set of the connections' descriptors.
    """

    patience_ns: Final = 1 * S  # how long to wait before a missing broker is reported

    def __init__(
        self,
        names: Resolver | None = None,
        connect: Callable[..., LinkConnection] = LinkConnection,
        events: EventSet | None = None,
    ) -> None:
        self.names = names or resolver()
        self.connect = connect
        self.met = False  # True when a broker has answered
        self.answers = ""  # a text about a server that answers, but is not a broker
        # If True, calls fail soon if nothing listens on this machine, unless a broker has answered
        # before.
        self.hasty = False
        self.tells = False  # if True, the log says that a caller waits for a broker
        self.events = EventSet() if events is None else events
        self.due_ns = FAR_NS  # no timer is due before this time
        self._readers: dict[int, Callable[[int], object]] = {}

    @abstractmethod
    def reached(self, rotation: Rotation, address: Address, now_ns: int) -> None:
        """Note that a link with this rotation has reached the broker at this address."""

    def watch(self, descriptor: int, reader: Callable[[int], object]) -> None:
        """Call `reader` with the time when this descriptor is readable."""
        self._readers[descriptor] = reader
        self.events.register(descriptor)

    def forget(self, descriptor: int) -> None:
        if self._readers.pop(descriptor, None) is not None:
            self.events.unregister(descriptor)

    def read(self, ready: Ready, now_ns: int) -> None:
        """Call the readers of these descriptors."""
        for descriptor, _ in ready:
            reader = self._readers.get(descriptor)
            if reader is not None:
                reader(now_ns)

    def sooner(self, at_ns: int) -> None:
        """Let the timers be processed at this time at the latest."""
        if at_ns < self.due_ns:
            self.due_ns = at_ns
