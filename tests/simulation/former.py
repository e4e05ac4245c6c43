"""A former primary: the machine of a broker that lives on after its standby has taken over.

Its processes are the product's, and nothing told them that they are replaced. They were cut off
from the bucket, or stopped for a while, and some clients reach only them. The promises:

* It acknowledges nothing more that its successor does not have. A repeated answer counts too.
* All offsets that it gives out were reserved before the takeover, so no offset of its successor is
  among them.
* When it can reach the bucket, and none of its processes is stopped, it notices that it has lost
  within its heartbeat and a few requests, and then all its processes end.

What it acknowledged is seen at the topic, when the answer is sent, because a client may receive it
much later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from zsq.actors.bucket.archive import shipper
from zsq.actors.topic.topic import TopicActor
from zsq.transport.wire import protocol as p

from .shipping import watch_event
from .world import MS, Process, S, World, the_world

if TYPE_CHECKING:
    from .broker import Broker
    from .ledger import Ledger

LOOK_NS: Final = 50 * MS
# The longest time of a request without an answer, with the longest pause after it, four times.
NOTICES_NS: Final = 4 * (500 * MS)
ENDS_NS: Final = 10 * S  # the supervisor gives each process its time to stop


class Former:
    """The former primary of one takeover, from the moment at which the takeover exists."""

    def __init__(self, world: World, broker: Broker, ledger: Ledger) -> None:
        self._world = world
        self._ledger = ledger
        self.machine = broker.machine
        self.supervisor = broker.supervisor
        self.took_ns = world.now_ns
        self.children = 0
        self.lost = False  # its shipper knows that it has lost
        self._registry = broker.supervisor.state.registry if broker.supervisor else None
        self._reserved = dict(world.bucket.shipped.reserved_before)
        # By topic: the messages that the successor has. None until its directory is complete.
        self._there: dict[str, set[int]] | None = None
        self._acknowledged: list[tuple[str, int, int]] = []  # with the time
        self._free_ns = 0  # since when nothing keeps it from noticing that it has lost
        self._heartbeat_ns = 0
        self.incarnation = len(world.incarnations) - 1
        for process in broker.living():
            self.adopt(process)
        world.after(LOOK_NS, self._look)

    def adopt(self, process: Process) -> None:
        process.former = self
        process.exiled = True

    def next_incarnation(self) -> float:
        """Return the place of a child that it starts. It is before the takeover, for the ledger."""
        self.children += 1
        return self.incarnation + self.children / 10_000

    @property
    def processes(self) -> list[Process]:
        return [one for one in self._world.processes if one.alive and one.former is self]

    # What it accepts and acknowledges

    def topic_of(self, folder: str) -> tuple[str, str]:
        registry = self._registry
        if registry is None:
            return "", ""
        rows = registry.topics.items()
        return next(
            ((name, row.uuid) for name, row in rows if registry.folder(row) == folder), ("", "")
        )

    def gives_out(self, topic: str, uuid: str, end: int) -> None:
        """Check that all offsets below `end` were reserved before the takeover."""
        reserved = self._reserved.get(uuid, 0)
        if end > reserved:
            self._ledger.record(
                f"a former primary gave out offset {end - 1} of {topic}, and had reserved "
                f"{reserved} offsets"
            )

    def acknowledges(self, topic: str, numbers: Sequence[int]) -> None:
        now_ns = self._world.now_ns
        for number in numbers:
            self._check(topic, number, now_ns)
            self._acknowledged.append((topic, number, now_ns))

    def _check(self, topic: str, number: int, at_ns: int) -> None:
        if self._there is not None and number not in self._there.get(topic, ()):
            self._ledger.record(
                f"a former primary acknowledged {number} of {topic} "
                f"{(at_ns - self.took_ns) / MS:.0f} ms after the takeover, and its successor does "
                "not have it"
            )

    def succeeded(self, there: dict[str, set[int]]) -> None:
        """Note what the successor had at the takeover."""
        if self._there is None:
            self._there = there
            for topic, number, at_ns in self._acknowledged:
                self._check(topic, number, at_ns)

    # Its end

    def _look(self) -> None:
        world = self._world
        processes = self.processes
        if not processes:
            world.note(f"the former primary {self.machine} has ended")
            return
        world.after(LOOK_NS, self._look)
        is_held = any(one.asleep_until_ns > world.now_ns for one in processes)
        if is_held or world.bucket.is_away(self.machine):
            self._free_ns = 0
            return
        self._free_ns = self._free_ns or world.now_ns
        free_ns = world.now_ns - self._free_ns
        heartbeat_ns = int(world.broker.standby.patience_s * S)
        if not self.lost and free_ns > NOTICES_NS + heartbeat_ns:
            self._ledger.record(
                f"a former primary has reached the bucket for {free_ns / MS:.0f} ms, and does not "
                "know that it was replaced"
            )
        elif free_ns > NOTICES_NS + heartbeat_ns + ENDS_NS:
            names = [one.name for one in processes]
            self._ledger.record(f"a former primary does not end: {names[:5]}")


def former_now() -> Former | None:
    """Return the former primary to which the present process belongs."""
    current = the_world().current
    found: Former | None = current.process.former if current is not None else None
    return found


def the_pid() -> int:
    current = the_world().current
    assert current is not None
    return current.process.pid


def watch() -> None:
    """Record what the topics of former primaries acknowledge, and when their shippers have lost."""
    module: Any = TopicActor
    send, delayed_stored = module._send, module.delayed_stored

    def sent(self: Any, replies: list[Any]) -> None:
        former = former_now()
        if former is not None:
            placed = the_world().broker.losses.ledger.disasters.placed
            topic = self.given.storage.name
            for reply in replies:
                if isinstance(reply.message, p.Stored):
                    for _, offset in reply.message.blocks:
                        former.acknowledges(topic, placed.get((topic, offset), ()))
        send(self, replies)

    def delayed(self: Any, request: int, keys: Any) -> None:
        former = former_now()
        if former is not None:
            numbers = the_world().broker.losses.ledger.disasters.delayed
            former.acknowledges(self.given.storage.name, numbers.get((the_pid(), request), ()))
        delayed_stored(self, request, keys)

    def lost(self: Any, why: str) -> None:
        former = former_now()
        if former is not None:
            former.lost = True

    module._send, module.delayed_stored = sent, delayed
    watch_event(shipper.ShipperEvent.FENCED, lost)
