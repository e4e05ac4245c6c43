"""The simulated object store. It outlives power cuts, and it is hostile.

A call takes effect at a moment between its beginning and its end. A request or its reply may be
lost. A write may take effect much later, also after the process that sent it is dead. While the
store is away, no call takes effect.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from zsq.storage.bucket.bucket import BucketAway, ObjectExists, ObjectMissing
from zsq.storage.bucket.bucket_url import parse_bucket_url

from .world import MS, the_world

if TYPE_CHECKING:
    from .world import World

URL = "s3://simulated/prefix"


class SimBucket:
    """The objects, by name. `away_until_ns`: the store does not answer before that time."""

    def __init__(self, world: World) -> None:
        self.url = parse_bucket_url(URL)
        self.objects: dict[str, bytes] = {}
        self.away_until_ns = 0
        self.kind = True
        """False while requests and replies may be lost."""
        self.reads = 0
        self._dice = random.Random(f"{world.seed}/bucket")

    def _call(self, effect: Callable[[], Any], *, writes: bool = False) -> Any:
        world, dice = the_world(), self._dice
        world.pause(MS // 2, 12 * MS)
        chance = 1.0 if self.kind else dice.random()
        if world.now_ns < self.away_until_ns or chance < 0.03:
            world.pause(5 * MS, 60 * MS)
            raise BucketAway("the simulated store does not answer")
        if writes and chance < 0.06:
            world.after(dice.randrange(MS, 900 * MS), lambda: self._late(effect))
            raise BucketAway("the simulated request is late")
        found = effect()
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

        self._call(effect, writes=True)

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

        found: bytes = self._call(effect)
        return found

    def size(self, name: str) -> int:
        return len(self.read(name))

    def names(self, below: str) -> Iterator[str]:
        yield from self._call(lambda: [name for name in self.objects if name.startswith(below)])

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            self._call(partial(self.objects.pop, name, None), writes=True)

    def remove_folder(self, below: str) -> None:
        """Do nothing: there are no folders."""
