"""Engine: the part of a client that never waits. It holds the links, the timers, and the waiters.

To *turn* an engine is to process the events that arrived, and then the timers that are due. The
blocking client (`drive.py`) and the asyncio client (`aio_asker.py`) turn the same engine in two
ways. An engine owns a set of its sockets' descriptors (`system.py`). ZeroMQ's descriptors are
edge-triggered: one becomes readable when there are events, and any call on the socket consumes
these events. So the link is drained after each send. A drain receives at most `RECEIVE_MAX`
messages. If more are left, the engine is turned again at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from functools import partial
from typing import TypeVar

from ...resolver import Resolver
from ...system import EventSet, Ready
from ...wire.address import Address
from ...wire.addresses import Rotation
from .connection import LinkConnection
from .link import BYE_LINGER_MS, Link
from .link_host import LinkHost
from .scout import Scout
from .second_try import SecondTry
from .timeouts import FAR_NS
from .wait_report import WaitReport

_T = TypeVar("_T")
Steps = Generator[tuple[Callable[[], bool], int], bool, _T]
"""The steps of a client call, without waiting.

The generator yields a condition and a deadline. It is sent True if the condition was met in time.
`Drive` runs it by blocking, `Turner` with await.
"""


class Waiter:
    """A caller that waits until `done()` is true.

    The engine calls `wake` once, under its lock, when `done()` is true or `deadline_ns` has passed.
    """

    __slots__ = ("deadline_ns", "done", "wake")

    def __init__(
        self, done: Callable[[], bool], wake: Callable[[], None], deadline_ns: int = FAR_NS
    ) -> None:
        self.done = done
        self.wake = wake
        self.deadline_ns = deadline_ns


class Engine(LinkHost):
    """The links, timers and waiters of a client. It is not thread-safe."""

    farewell_ms = BYE_LINGER_MS  # how long a closed client may still send its last messages

    def __init__(
        self,
        names: Resolver | None = None,
        connect: Callable[..., LinkConnection] = LinkConnection,
        events: EventSet | None = None,
    ) -> None:
        super().__init__(names, connect, events)
        self.links: list[Link] = []
        self.turns = 0
        self.waiters: list[Waiter] = []
        self._scout = Scout(partial(Link, self))
        self._second_try = SecondTry(partial(Link, self))
        self._report = WaitReport(self)

    def add(self, link: Link) -> None:
        self.links.append(link)

    def reached(self, rotation: Rotation, address: Address, now_ns: int) -> None:
        """Note that a link has reached the broker. All links go to the same address."""
        if rotation.reached(address):
            for link in self.links:
                if link.up and link.rotation is rotation and link.given != address:
                    link.restart(now_ns, f"the broker is now at {address.url}", at_once=True)

    # Turning

    def turn(self, ready: Ready) -> None:
        """Process the events of the ready descriptors, then the timers that are due."""
        self.turns += 1
        now_ns = time.monotonic_ns()
        self.read(ready, now_ns)
        if now_ns >= self.due_ns:
            self.timers(now_ns)

    def timers(self, now_ns: int) -> None:
        """Process the timers that are due: heartbeats, new attempts, and those of subclasses."""
        self.due_ns = FAR_NS
        for link in list(self.links):
            self.sooner(link.on_time(now_ns))
        for waiter in self.waiters:
            if waiter.deadline_ns <= now_ns:
                # Wake the waiter only once. It then finds that its deadline has passed.
                waiter.deadline_ns = FAR_NS
                waiter.wake()
            self.sooner(waiter.deadline_ns)
        self.sooner(self._report.on_time(now_ns, self.links))
        self.sooner(self._scout.on_time(now_ns, self.links))
        self.sooner(self._second_try.on_time(now_ns, self.links))

    def settle(self) -> None:
        """Wake the waiters whose condition is met."""
        if self.waiters:
            ended = [waiter for waiter in self.waiters if waiter.done()]
            for waiter in ended:
                self.waiters.remove(waiter)
                waiter.wake()

    # Ending

    def conclude(self, timeout: float) -> Steps[None]:
        """Finish the work of a client that nobody uses any more. Raise what could not be done."""
        yield from ()

    @property
    def unfinished(self) -> str:
        """The work that this client has still to do, for people. "" for none."""
        return ""

    def stop(self, linger_ms: int = 0) -> None:
        """Close all links. The engine cannot be used again.

        The last caller that waits for the set of descriptors closes it.
        """
        for link in self.links:
            link.stop(linger_ms)
        self.links.clear()
        self._scout.stop()
        self._second_try.stop()
