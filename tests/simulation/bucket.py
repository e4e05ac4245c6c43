"""The simulated object store. It outlives power cuts and lost disks, and it is hostile.

A call takes effect at a moment between its beginning and its end. A request or its reply may be
lost. A write may take effect much later, also after the process that sent it is dead, and the
creation of an object may take effect twice. While the store is away, no call takes effect.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from zsq.storage.bucket.bucket import BucketAway, ObjectExists, ObjectMissing
from zsq.storage.bucket.bucket_url import parse_bucket_url
from zsq.storage.bucket.shipping.tick_format import TAKEOVER, decode_index

from .shipped import Shipped
from .world import MS, the_world

if TYPE_CHECKING:
    from .world import Process, World

URL = "s3://simulated/prefix"
LATE = 0.6  # share of the requests on their way that take effect after their sender has died
LATE_S = 3.0  # all of these have taken effect after this time
READS = 2  # how often a read is repeated
TWICE = 0.05  # share of the writes that take effect twice while the store is hostile


class SimBucket:
    """The objects, by name. `away_until_ns`: the store does not answer before that time."""

    def __init__(self, world: World) -> None:
        self.url = parse_bucket_url(URL)
        self.objects: dict[str, bytes] = {}
        self.away_until_ns = 0
        self.kind = True
        """False while requests and replies may be lost."""
        self.shipped = Shipped()
        self.reads = 0
        self.trap: Callable[[], None] | None = None  # called when the next write is sent
        self.on_removal: Callable[[str], None] = lambda name: None
        # By the number of a machine: until when it is cut off from the store.
        self.cut_until_ns: dict[int, int] = {}
        # Called with the copy when a takeover is created.
        self.on_takeover: Callable[[str], None] = lambda copy: None
        self.late = 0  # writes that took effect after their sender was dead
        self._dice = random.Random(f"{world.seed}/bucket")
        # Writes on their way, by the number of the call: their sender and their effect.
        self._out: dict[int, tuple[Process, Callable[[], Any]]] = {}
        self._calls = 0
        self._watched: set[int] = set()

    def _send(self, effect: Callable[[], Any]) -> int:
        """Note a write until it takes effect. Its sender may die before that."""
        current = the_world().current
        assert current is not None
        process = current.process
        if process.pid not in self._watched:
            self._watched.add(process.pid)
            process.on_death.append(self._sender_died)
        self._calls += 1
        self._out[self._calls] = process, effect
        if self.trap is not None:
            trap, self.trap = self.trap, None
            trap()
        return self._calls

    def is_writing(self, process: Process) -> bool:
        """Return True if a write of this process is on its way."""
        return any(sender is process for sender, _ in self._out.values())

    def _sender_died(self, process: Process) -> None:
        world, dice = the_world(), self._dice
        for number, (sender, effect) in list(self._out.items()):
            if sender is process:
                del self._out[number]
                if dice.random() < LATE:
                    delay = dice.choice((5, 60, 600, 2_500))
                    world.after(dice.randrange(MS, delay * MS), partial(self._arrives, effect))

    def _arrives(self, effect: Callable[[], Any]) -> None:
        self.late += 1
        the_world().note("a request of a dead process arrives")
        self._late(effect)

    def _call(self, effect: Callable[[], Any], *, writes: bool = False) -> Any:
        world, dice = the_world(), self._dice
        number = self._send(effect) if writes else 0
        world.pause(MS // 2, 12 * MS)
        self._out.pop(number, None)
        chance = 1.0 if self.kind else dice.random()
        assert world.current is not None
        if self.is_away(world.current.process.machine) or chance < 0.03:
            world.pause(5 * MS, 60 * MS)
            raise BucketAway("the simulated store does not answer")
        if writes and chance < 0.06:
            world.after(dice.randrange(MS, 900 * MS), lambda: self._late(effect))
            raise BucketAway("the simulated request is late")
        found = effect()
        if writes and not self.kind and dice.random() < TWICE:
            world.after(dice.randrange(MS, 2_500 * MS), lambda: self._late(effect))
        world.pause(MS // 2, 12 * MS)
        if chance < 0.1:
            raise BucketAway("the simulated reply is lost")
        return found

    def _late(self, effect: Callable[[], Any]) -> None:
        try:
            effect()
        except ObjectExists:
            the_world().note("a late request finds its name taken")

    def create(self, name: str, data: Any) -> None:
        content = bytes(data)

        def effect() -> None:
            if name in self.objects:
                raise ObjectExists(name)
            self.objects[name] = content
            if name.startswith("log/"):
                self._take(content)

        self._call(effect, writes=True)

    def _take(self, tick: bytes) -> None:
        if wrong := self.shipped.take(tick):
            the_world().violation(wrong)
        index = decode_index(tick).index
        if index.kind == TAKEOVER:
            self.on_takeover(index.copy)

    def is_away(self, machine: int) -> bool:
        """Return True if the store does not answer this machine now."""
        return the_world().now_ns < max(self.away_until_ns, self.cut_until_ns.get(machine, 0))

    def take_effect(self, process: Process) -> None:
        """Let the writes of a process that is stopped now take effect. Its answers wait."""
        for sender, effect in self._out.values():
            if sender is process and self._dice.random() < LATE:
                the_world().after(self._dice.randrange(20 * MS), partial(self._late, effect))

    def upload(self, name: str, path: str) -> None:
        world = the_world()
        assert world.current is not None
        content = world.disk.of(world.current.process).read_file(path, 1 << 30)
        self._call(lambda: self.objects.update({name: content}), writes=True)
        world.note(f"the bucket has {name}")

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        self.reads += 1

        def effect() -> bytes:
            if name not in self.objects:
                raise ObjectMissing(name)
            content = self.objects[name]
            return content[start : len(content) if length is None else start + length]

        found: bytes = self._ask(effect)
        return found

    def _ask(self, effect: Callable[[], Any]) -> Any:
        """Repeat a read as the client library does: many of them must succeed in a takeover."""
        for _ in range(READS):
            try:
                return self._call(effect)
            except BucketAway:
                if the_world().now_ns < self.away_until_ns:
                    raise
        return self._call(effect)

    def size(self, name: str) -> int:
        return len(self.read(name))

    def names(self, below: str) -> Iterator[str]:
        yield from self._ask(lambda: [name for name in self.objects if name.startswith(below)])

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            self._call(partial(self._remove, name), writes=True)

    def _remove(self, name: str) -> None:
        if self.objects.pop(name, None) is not None:
            self.on_removal(name)

    def remove_folder(self, below: str) -> None:
        """Do nothing: there are no folders."""


class PatientBucket:
    """The store for a program that repeats requests without an answer, as a restore does."""

    def __init__(self, bucket: SimBucket) -> None:
        self._bucket = bucket
        self.url = bucket.url

    def _patient(self, call: Callable[[], Any]) -> Any:
        for _ in range(20):
            try:
                return call()
            except BucketAway:
                the_world().pause(20 * MS, 100 * MS)
        return call()

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        found: bytes = self._patient(lambda: self._bucket.read(name, start, length))
        return found

    def size(self, name: str) -> int:
        return len(self.read(name))

    def names(self, below: str) -> Iterator[str]:
        yield from self._patient(lambda: list(self._bucket.names(below)))
