"""A shipper with a fake bucket, fake threads, and topics that send pieces to it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from support.ship_bucket import FakeBucket, FakeThread

from zsq.actors.bucket.archive.primacy import Primacy
from zsq.actors.bucket.archive.shipper import Shipper, ShipperLimits, ShipperState
from zsq.actors.bucket.lease_cell import LeaseCell
from zsq.storage.bucket.shipping.ship_log import find_chain, replay_tails
from zsq.storage.bucket.shipping.tick_format import (
    TAKEOVER,
    TICK,
    Tail,
    after,
    decode_index,
    encode_tick,
    log_object,
)
from zsq.storage.bucket.shipping.tick_reader import TickReader
from zsq.storage.files import Files
from zsq.storage.log.log_format import chunk_name
from zsq.transport.errors import Refused
from zsq.transport.wire import protocol as p

NS = 1_000_000_000
ARCHIVE = "a" * 32


@contextmanager
def fake_clock() -> Iterator[list[int]]:
    """Let the shipper read the monotonic time from a list with one number."""
    now = [10**15]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zsq.actors.bucket.archive.shipper.time.monotonic_ns", lambda: now[0])
        yield now


@dataclass
class Topic:
    """A topic that sends pieces. `position` is the end of its log file."""

    world: World
    name: str
    uuid: str
    stream: int = 0
    sequence: int = 0
    chunk: int = 0
    position: int = 0
    end: int = 0
    kept_from: int = 0
    sent: list[p.Ship] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.world.root / self.name

    def write(self, size: int = 10) -> tuple[tuple[int, int, int], ...]:
        """Append bytes to the log file. Return the range."""
        if not size:
            return ()
        with (self.folder / chunk_name(self.chunk)).open("ab") as file:
            file.write(self.world.random.randbytes(size))
        start, self.position = self.position, self.position + size
        self.end += 1
        return ((self.chunk, start, self.position),)

    def roll(self) -> None:
        """Begin another log file. The archive has the one before it."""
        self.chunk, self.position, self.kept_from = self.end, 0, self.end

    def ship(
        self, size: int = 10, *, changes: bytes = b"rows", begins: bool | None = None,
        base: str = "", urgent: bool = False, age_s: float = 0.0,
    ) -> p.Ship:  # fmt: skip
        """Send a piece. The first one of a stream has all rows."""
        self.sequence += 1
        self.world.requests += 1
        message = p.Ship(
            self.world.requests, self.uuid, str(self.folder), self.stream, self.sequence,
            self.sequence == 1 if begins is None else begins, base, self.end + bool(size),
            self.end + 100, self.kept_from, self.write(size),
            self.world.now[0] - int(age_s * NS), urgent, changes,
        )  # fmt: skip
        self.sent.append(message)
        self.world.ask(self, message)
        return message

    def open(self) -> int:
        """Ask what the log has. Return the number of the request."""
        self.world.requests += 1
        self.world.ask(self, p.OpenShipping(self.world.requests, self.uuid))
        return self.world.requests

    def begin_again(self) -> None:
        """Begin another stream behind what the log has."""
        request = self.open()
        self.world.settle()
        found = self.world.done(request)
        self.stream, self.sequence = self.world.random.getrandbits(62), 0
        if "stream" not in found:
            self.chunk, self.position = self.end, 0
        elif found["chunk"] == self.chunk:
            self.position = found["position"]
        path = self.folder / chunk_name(self.chunk)
        if path.exists():
            path.write_bytes(path.read_bytes()[: self.position])


class World:
    """A broker's data directory, its topics, its shipper and its bucket."""

    def __init__(self, root: Path, now: list[int], limits: ShipperLimits | None = None) -> None:
        self.root = root
        self.now = now
        self.lag_s = 1.0
        self.limits = limits or ShipperLimits()
        self.random = random.Random(1)
        self.bucket = FakeBucket()
        self.requests = 0
        self.answers: list[tuple[Any, Any]] = []
        self.sleeping: set[str] = set()
        self.woken: list[str] = []
        self.topics: dict[str, Topic] = {}
        self.settings: dict[str, dict[str, Any]] = {}
        self.write_registry()
        self.start()

    def start(self) -> None:
        """Begin a process of the archive actor."""
        self.control = FakeThread("control")
        self.uploads = [FakeThread("upload-0"), FakeThread("upload-1")]
        self.made: list[FakeThread] = []
        self.cell = LeaseCell(str(self.root), make=True)
        self.shipper = Shipper(
            Files(), cast("Any", self.bucket), str(self.root), int(self.lag_s * NS),
            cast("Any", self.control), cast("Any", self.uploads), cast("Any", self._threads),
            self._send, self.woken.append, Primacy(self.cell, ("tcp://one:4153",)),
            limits=self.limits,
        )  # fmt: skip
        self.encoder, *self.creators = self.made

    def _threads(self, name: str, count: int) -> list[FakeThread]:
        made = [FakeThread(f"{name}-{number}") for number in range(count)]
        self.made += made
        return made

    def _send(self, envelope: Any, message: p.Wire) -> bool:
        if envelope in self.sleeping:
            return False
        self.answers.append((envelope, message))
        return True

    def topic(self, name: str, *, registered: bool = True) -> Topic:
        uuid = f"{len(self.topics) + 1:032x}"
        made = self.topics[name] = Topic(self, name, uuid, self.random.getrandbits(62))
        made.folder.mkdir()
        self.settings[name] = {"uuid": uuid, "retention": {"archive": "on"}}
        if registered:
            self.write_registry()
        return made

    def write_registry(self) -> None:
        """Replace the registry's file."""
        path = self.root / "registry.tmp"
        path.write_text(json.dumps({"topics": self.settings}))
        path.rename(self.root / "registry.json")

    def drop(self, name: str) -> Topic:
        """Delete a topic."""
        gone = self.topics.pop(name)
        del self.settings[name]
        self.write_registry()
        for path in gone.folder.iterdir():
            path.unlink()
        self.shipper.forget(gone.uuid)
        return gone

    def ask(self, topic: Topic, message: Any) -> None:
        handle: dict[type[Any], Any] = {
            p.Ship: self.shipper.ship,
            p.ShipBase: self.shipper.upload_base,
            p.OpenShipping: self.shipper.open_topic,
        }
        try:
            handle[type(message)](topic.name, message)
        except Refused as error:
            self.answers.append((topic.name, p.Failed(message.request, error.code, error.text)))

    # What happens

    def open(self) -> World:
        self.shipper.open(ARCHIVE)
        self.run(self.control)
        assert self.shipper.state is ShipperState.OPEN, self.shipper.trouble
        return self

    def run(self, *threads: FakeThread) -> None:
        """Run all jobs of these threads, and deliver their results."""
        for thread in threads:
            while thread.run() or thread.deliver():
                pass

    def poll(self, seconds: float = 0.0) -> None:
        self.now[0] += int(seconds * NS)
        self.shipper.poll()

    def encode(self) -> None:
        """Let the ticks that are due be encoded, also those that wait for the last one."""
        self.poll(0.1 * self.lag_s)
        self.run(self.encoder)

    def settle(self) -> None:
        """Let everything happen until nothing waits."""
        for _ in range(100):
            self.poll(self.lag_s)
            self.run(self.encoder, *self.creators, self.control, *self.uploads)
            if not self.shipper.is_busy:
                return
        raise AssertionError("pieces wait for ever")

    def tick(self, seconds: float = 1.0) -> None:
        self.now[0] += int(seconds * NS)
        self.shipper.tick()

    def intrude(self) -> None:
        """Let another copy of the broker create the first tick after the takeover."""
        logs = [data for name, data in self.bucket.objects.items() if name.startswith("log/")]
        indexes = [decode_index(data).index for data in logs]
        takeover = max((one for one in indexes if one.kind == TAKEOVER), key=lambda one: one.number)
        foreign = takeover._replace(kind=TICK, number=after(takeover), copy="f" * 32, tails={})
        self.bucket.objects[log_object(foreign.number)] = encode_tick(foreign, ()).data

    # What is found

    def answered(self) -> list[int]:
        """Return the requests that were answered with success, in that order."""
        return [one.request for _, one in self.answers if isinstance(one, p.Done)]

    def done(self, request: int) -> dict[str, Any]:
        """Return the answer to a request, without the period."""
        (found,) = [
            one.data
            for _, one in self.answers
            if isinstance(one, p.Done) and one.request == request
        ]
        return {name: value for name, value in found.items() if name != "period_ns"}

    def failed(self) -> dict[int, str]:
        return {one.request: one.code for _, one in self.answers if isinstance(one, p.Failed)}

    def numbers(self) -> tuple[int, ...]:
        return find_chain(cast("Any", self.bucket)).numbers

    def pieces(self) -> list[tuple[str, int, int]]:
        """Return the pieces of all ticks that count."""
        return [
            (piece.uuid, piece.stream, piece.sequence)
            for number in self.numbers()
            for piece in decode_index(self.bucket.objects[log_object(number)]).index.pieces
        ]

    def replay(self) -> dict[str, Tail]:
        """Return the tails that a successor would find."""
        bucket = cast("Any", self.bucket)
        return replay_tails(bucket, find_chain(bucket))[0]

    def check(self) -> None:
        """Check that a restore can read the log completely."""
        reader = TickReader(cast("Any", self.bucket))
        try:
            reader.read()
            assert not reader.wrong
            wanted = [one for one, topic in reader.topics.items() if topic.begins >= 0]
            for loaded in reader.pieces(wanted):
                topic = next(
                    (one for one in self.topics.values() if one.uuid == loaded.piece.uuid), None
                )
                position = 0
                for base, start, stop in loaded.piece.ranges:
                    if topic is not None and base == topic.chunk:
                        data = (topic.folder / chunk_name(base)).read_bytes()
                        body = bytes(loaded.body[position : position + stop - start])
                        assert body == data[start:stop]
                    position += stop - start
        finally:
            reader.close()
