"""Fakes for tests of a topic without its storage, and of a storage without its topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from support.scripted_extension import ScriptedExtension

from zsq.actors.settings.starts import StorageStart
from zsq.actors.storage.sifting import Left, Repeats
from zsq.actors.storage.storage_actor import Recovered
from zsq.transport.block.block import Block
from zsq.transport.errors import ZsqError
from zsq.transport.settings import Retention

STORAGE = StorageStart(
    front="s", reader="", stage="", push="", scan="", name="t", uuid="0" * 32, base_offset=0, sync="always", directory="", create=False,
    retention=Retention(), chunk_bytes=1 << 20, stage_timeout_s=0, closed=False,
)  # fmt: skip


class Appended(NamedTuple):
    request: int
    first_offset: int
    time_ns: int


class Kept(NamedTuple):
    request: int
    keys: tuple[tuple[int, int], ...]


class NotKept(NamedTuple):
    request: int
    code: str
    text: str


class Head(NamedTuple):
    head: int


class Repeated(NamedTuple):
    request: int
    left: dict[int, Left]


Told = Repeated | Appended | Kept | NotKept | Head | ZsqError


class Listener:
    """A topic that records each call of its storage."""

    def __init__(self) -> None:
        self.told: list[Told] = []

    def appended(self, request: int, first_offset: int, time_ns: int) -> None:
        self.told.append(Appended(request, first_offset, time_ns))

    def repeated(self, request: int, left: Mapping[int, Left]) -> None:
        self.told.append(Repeated(request, dict(left)))

    def delayed_stored(self, request: int, keys: Sequence[tuple[int, int]]) -> None:
        self.told.append(Kept(request, tuple(keys)))

    def delayed_failed(self, request: int, code: str, text: str) -> None:
        self.told.append(NotKept(request, code, text))

    def head_moved(self, head: int) -> None:
        self.told.append(Head(head))


class FakeStorage:
    """A storage that records the calls of its topic. If `refusal` is set, a call raises
    it instead.
    """

    def __init__(self, recovered: Recovered) -> None:
        self._recovered = recovered
        self.refusal: ZsqError | None = None
        self.appends: list[tuple[int, list[Block]]] = []
        self.delayed: list[tuple[int, list[Block], Sequence[int]]] = []
        self.orders: list[tuple[Any, ...]] = []
        self.stops = 0
        self.is_stopped = True
        self.extension = ScriptedExtension()

        self.dedupes = True

    def repeats_of(self, block: Block, place: tuple[int, ...]) -> Repeats:
        return ()

    def recovered(self) -> Recovered:
        return self._recovered

    def born(self) -> dict[str, Any]:
        return {"channels": [], "alarms": []}

    def append(self, request: int, blocks: list[Block]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.appends.append((request, blocks))

    def append_delayed(self, request: int, blocks: list[Block], delays_ms: Sequence[int]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.delayed.append((request, blocks, delays_ms))

    def pause(self, is_paused: bool, then: Callable[[int], None]) -> int:
        self.orders.append(("pause", is_paused, then))
        return 5 if is_paused else -1

    def empty(self, then: Callable[[int, int], None]) -> None:
        self.orders.append(("empty", then))

    def move_pause(self, end: int, then: Callable[[int], None]) -> None:
        self.orders.append(("move_pause", end, then))

    def close_to_publishers(self, is_closed: bool) -> None:
        self.orders.append(("close", is_closed))

    def gone(self, who: str) -> None:
        self.orders.append(("gone", who))

    def turn(self) -> None:
        """Do nothing: no request waits for a sync here."""

    def stop(self) -> bool:
        self.stops += 1
        return self.is_stopped

    def end(self) -> None:
        self.orders.append(("end",))

    def statistics(self) -> dict[str, Any]:
        return {}
