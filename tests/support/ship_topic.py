"""A topic that ships to a log of ticks in memory, for tests of `Shipping` without processes.

The store is real. Its threads, the archive actor and the clock move when the test says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from support.archive_harness import ArchiveHarness
from support.storage_harness import IDENTITY

from zsq.actors.bucket.topic.archive_link import ArchiveLink
from zsq.actors.bucket.topic.shipping import ShipLimits, Shipping, ShippingState
from zsq.storage.bucket.shipping.tick_format import Piece, Range, Tail, advanced
from zsq.storage.bucket.shipping.tick_reader import ShippedTopic
from zsq.storage.delayed.delayed_format import due_block
from zsq.storage.directory.store import Store
from zsq.storage.errors import Damaged
from zsq.storage.files import Files
from zsq.storage.log.chunk import open_chunk
from zsq.storage.log.log_format import CHUNK_HEADER_BYTES, chunk_name
from zsq.storage.row_changes import DELAYED, STATE, decode_frames
from zsq.storage.rows import META, unwrap
from zsq.storage.state.channel_row import ChannelRow
from zsq.storage.state.state import StateBatch, StateStore
from zsq.storage.state.store_builder import StoreBuilder
from zsq.transport.block.block import DELAYED as DELAYED_FLAG
from zsq.transport.block.block import pack
from zsq.transport.errors import E_BUCKET
from zsq.transport.wire import protocol as p
from zsq.transport.wire.codec import unpack_value

UUID = IDENTITY.uuid
NS = 1_000_000_000


@contextmanager
def fake_clock() -> Iterator[list[int]]:
    """Let `Shipping` read the monotonic time from a list with one number."""
    now = [10**15]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zsq.actors.bucket.topic.shipping.time.monotonic_ns", lambda: now[0])
        yield now


class Port:
    """The connection to the archive actor. It keeps what was sent."""

    def __init__(self) -> None:
        self.routes: dict[type[Any], Callable[..., None]] = {}
        self.sent: list[Any] = []

    def route(self, kind: type[Any], handler: Callable[..., None]) -> None:
        self.routes[kind] = handler

    def send(self, envelope: object, message: Any) -> bool:
        self.sent.append(message)
        return True

    def take(self, kind: type[Any]) -> list[Any]:
        found = [one for one in self.sent if isinstance(one, kind)]
        self.sent = [one for one in self.sent if not isinstance(one, kind)]
        return found

    def hand(self, message: p.Wire) -> None:
        self.routes[type(message)](cast("Any", None), cast("Any", None), message)


class Storage:
    """The storage of the topic. A job of its threads runs, and its result arrives, when the test
    says so.
    """

    title = "topic clicks"

    def __init__(self, harness: ArchiveHarness) -> None:
        self._harness = harness
        self.store = harness.opened
        self.jobs: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self.results: deque[tuple[Callable[[Any], None], Any]] = deque()

    def read_state(self, job: Callable[[Any], Any], then: Callable[[Any], None]) -> None:
        self.jobs.append((lambda: job(self._harness.opened.state), then))

    def read_delayed(self, job: Callable[[Any], Any], then: Callable[[Any], None]) -> None:
        if self._harness.opened.delayed is None:
            then(job(None))
        else:
            self.jobs.append((lambda: job(self._harness.opened.delayed), then))

    def roll(self) -> None:
        self._harness.log.roll(self._harness.now_ns)

    def run(self) -> bool:
        """Run the next job. Return False if there is none."""
        if not self.jobs:
            return False
        job, then = self.jobs.popleft()
        self.results.append((then, job()))
        return True

    def deliver(self) -> bool:
        """Let the next result arrive. Return False if there is none."""
        if not self.results:
            return False
        then, value = self.results.popleft()
        then(value)
        return True

    def finish(self) -> None:
        while self.run() or self.deliver():
            pass


class Ticks:
    """The log of ticks, with one piece in each tick. It checks each piece as a restore does."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tail: Tail | None = None
        self.topic = ShippedTopic(UUID)
        self.pieces: list[tuple[Piece, bytes]] = []
        self.chunks: dict[int, bytes] = {}
        self.objects: dict[str, bytes] = {}
        self._rebuilt = 0
        self._broken: set[int] = set()

    def accept(self, message: p.Ship) -> bool:
        """Add a piece, as the encoder does. Return False if its bytes cannot be read any more."""
        if message.stream not in self._broken:
            try:
                self.take(message)
            except FileNotFoundError:
                self._broken.add(message.stream)
        return message.stream not in self._broken

    def take(self, message: p.Ship) -> None:
        """Add a piece. It must follow the pieces before it."""
        piece = Piece(
            message.uuid, message.stream, message.sequence, message.begins, message.base,
            message.end, message.reserved, message.kept_from,
            tuple(Range(*one) for one in message.ranges), len(message.changes),
        )  # fmt: skip
        tail = self.tail
        known = tail.sequence if tail is not None and tail.stream == piece.stream else 0
        assert piece.sequence == known + 1, "a piece is missing, or comes twice"
        assert not piece.base or piece.base in self.objects, "the object with the rows is missing"
        read = [
            Path(message.folder, chunk_name(one.base_offset)).read_bytes() for one in piece.ranges
        ]
        for one, data in zip(piece.ranges, read, strict=True):
            assert one.stop <= len(data)
            held = self.chunks.get(one.base_offset, b"")
            assert len(held) == one.start or not one.start, "the ranges are not contiguous"
            self.chunks[one.base_offset] = held[: one.start] + data[one.start : one.stop]
        number = len(self.pieces)
        assert self.topic.take(piece, number) == ""
        self.tail = advanced(tail, piece, number)
        self.pieces.append((piece, message.changes))

    @property
    def begun(self) -> int:
        """The number of pieces with all rows."""
        return sum(piece.begins for piece, _ in self.pieces)

    def answer(self) -> dict[str, Any]:
        names = (
            "stream", "sequence", "end", "reserved", "chunk", "position", "base_number",
        )  # fmt: skip
        return {} if self.tail is None else {name: getattr(self.tail, name) for name in names}

    # What a restore finds

    def folder(self) -> Path:
        self._rebuilt += 1
        folder = self.root / f"rebuilt-{self._rebuilt}"
        folder.mkdir()
        return folder

    def log_end(self) -> int:
        """Return the end of the log that the pieces so far contain."""
        end = 0
        folder = self.folder()
        for base, data in self.chunks.items():
            (folder / chunk_name(base)).write_bytes(data)
        for base in sorted(self.chunks):
            try:
                chunk = open_chunk(Files(), str(folder), base, IDENTITY.uuid_bytes, 256)
            except Damaged:
                continue  # a part of the header
            end = max(end, base)
            for stretch in chunk.walk(CHUNK_HEADER_BYTES, columns=True):
                if stretch.good and stretch.header is not None:
                    end = max(end, base + stretch.header.next_offset)
            chunk.close()
        return end

    def moved(self) -> list[int]:
        """Return the serials of delayed messages that are in the log."""
        folder, found = self.folder(), []
        for base, data in self.chunks.items():
            (folder / chunk_name(base)).write_bytes(data)
            try:
                chunk = open_chunk(Files(), str(folder), base, IDENTITY.uuid_bytes, 256)
            except Damaged:
                continue  # a part of the header
            found += [
                one.header.sequence
                for one in chunk.walk(CHUNK_HEADER_BYTES, columns=True)
                if one.good and one.header is not None and one.header.flags & DELAYED_FLAG
            ]
            chunk.close()
        return found

    def rows(self) -> tuple[dict[bytes, bytes], dict[bytes, bytes] | None, int]:
        """Build both stores. Return their rows, and the end of the log that the state mentions."""
        folder = self.folder()
        builders = {
            kind: StoreBuilder(Files(), str(folder / f"store-{kind}"), kind, 1 << 20)
            for kind in (STATE, DELAYED)
        }
        first = max(at for at, (piece, _) in enumerate(self.pieces) if piece.begins)
        base = self.pieces[first][0].base
        stream = [self.objects[base]] if base else []
        stream += [changes for _, changes in self.pieces[first:]]
        for frame in decode_frames(b"".join(stream)):
            for builder in builders.values():
                builder.take(frame)
        has_delayed = [builder.finish() for builder in builders.values()][1]
        state = StateStore(str(folder / f"store-{STATE}"))
        table = state.load()
        state_rows = dict(row for batch in state.dump() for row in batch)
        state.close()
        delayed_rows = read_rows(str(folder / f"store-{DELAYED}")) if has_delayed else None
        return state_rows, delayed_rows, max(table.synced_end, table.applied_offset)


def read_rows(path: str) -> dict[bytes, bytes]:
    import lmdb

    env = lmdb.open(path, readonly=True, lock=False)
    with env.begin() as txn:
        found = {bytes(key): bytes(value) for key, value in txn.cursor()}
    env.close()
    return found


class ShipTopic:
    """A topic, its shipping, and the log of ticks."""

    def __init__(
        self,
        root: Path,
        now: list[int],
        *,
        urgent: bool = False,
        lag_s: float = 1.0,
        limits: ShipLimits | None = None,
    ) -> None:
        self.now = now
        self.urgent = urgent
        self.lag_s = lag_s
        self.limits = limits or ShipLimits()
        self.harness = ArchiveHarness(root)
        (root / "ticks").mkdir()
        self.ticks = Ticks(root / "ticks")
        self.shipped = 0
        self.delayed_sequence = 0
        self.channels = 0
        self._shipping: Shipping | None = None
        self.harness.open()

    @property
    def shipping(self) -> Shipping:
        assert self._shipping is not None
        return self._shipping

    @property
    def store(self) -> Store:
        return self.harness.opened

    def begin(self, *, is_on: bool = True) -> ShipTopic:
        """Begin to ship, as the topic's process does at its start."""
        self.threads = Storage(self.harness)
        self.port = Port()
        self.link = ArchiveLink(cast("Any", lambda: self.port))
        self._shipping = Shipping(
            cast("Any", self.threads), UUID, self.link, self.lag_s, self._shipped,
            is_urgent=self.urgent, is_on=is_on, limits=self.limits,
        )  # fmt: skip
        self.store.on_delayed_made = self.shipping.delayed_made
        return self

    def _shipped(self) -> None:
        self.shipped += 1

    # What the topic does

    def publish(self, blocks: int = 1, count: int = 3, size: int = 20) -> None:
        """Publish and sync."""
        self.harness.publish(blocks, count, size)
        self.sync()

    def sync(self) -> None:
        self.harness.sync()
        if self._shipping is not None:
            self._shipping.synced()

    def commit(self, value_bytes: int = 10, batch: StateBatch | None = None) -> None:
        """Commit a channel's row, and the checkpoint."""
        batch = batch or StateBatch()
        self.channels += 1
        written = {"padding": "x" * value_bytes}
        row = ChannelRow(self.harness.log.synced_end, created_ns=1, begin=0, written=written)
        batch.channel_puts[f"c{self.channels % 5}"] = row
        batch.applied_offset = batch.synced_end = self.harness.log.synced_end
        self.store.state.commit(batch)

    def delay(self, size: int = 20) -> None:
        delayed = self.store.make_delayed(self.harness.now_ns)
        self.delayed_sequence += 1
        block = pack([b"." * size], producer_id=5, sequence=self.delayed_sequence)
        delayed.put([(block, self.harness.now_ns + self.delayed_sequence)], self.harness.now_ns)

    def undelay(self) -> None:
        delayed = self.store.delayed
        if delayed is not None:
            rows = delayed.due(self.harness.now_ns + 10**9, 1000, 1)
            delayed.remove([row.key for row in rows], known=True)

    def move(self) -> None:
        """Move the first delayed messages to the log, as the topic does when they are due."""
        delayed = self.store.delayed
        if delayed is None:
            return
        rows = delayed.due(self.harness.now_ns + 10**9, 1000, 1)
        for row in rows:
            self.harness.log.append([due_block(row)], self.harness.now_ns)
        self.sync()
        delayed.remove([row.key for row in rows], known=True)

    # What the archive actor does

    def open(self) -> None:
        """Answer the request that opens the shipping."""
        self.shipping.tick()
        (asked,) = self.port.take(p.OpenShipping)
        self.port.hand(p.Done(asked.request, self.ticks.answer()))

    def start(self) -> ShipTopic:
        """Begin to ship, and ship what is there."""
        self.begin()
        self.open()
        self.settle()
        return self

    def ship(self, count: int = 1000) -> list[p.Ship]:
        """Put the pieces that were sent into the log, and answer them."""
        done = []
        while count and (asked := self.port.take(p.Ship)):
            self.port.sent += asked[1:]
            count -= 1
            if not self.ticks.accept(asked[0]):
                self.port.hand(p.Failed(asked[0].request, E_BUCKET, "it cannot be read"))
                continue
            done.append(asked[0])
            self.port.hand(p.Done(asked[0].request, {}))
        return done

    def refuse(self, code: str = E_BUCKET) -> None:
        """Refuse the pieces that were sent."""
        for asked in self.port.take(p.Ship):
            self.port.hand(p.Failed(asked.request, code, "refused by the test"))

    def upload(self) -> list[str]:
        """Upload the files with all rows."""
        done = []
        for asked in self.port.take(p.ShipBase):
            name = f"state/{UUID}/{asked.stream:016x}.{len(self.ticks.objects):08x}"
            self.ticks.objects[name] = Path(asked.path).read_bytes()
            done.append(name)
            self.port.hand(p.Done(asked.request, {"base": name}))
        return done

    def die(self, accepted: int = 0) -> None:
        """End the archive actor. Some of the pieces that it has not answered are in the log."""
        for asked in self.port.take(p.Ship)[:accepted]:
            self.ticks.accept(asked)
        self.port.sent.clear()
        self.link.gone()
        self.shipping.gone()

    def restart(self) -> None:
        """End the topic's process, and begin another one. The pieces on their way are lost."""
        self.shipping.end()
        self.harness.restart()
        self.begin()

    def pass_time(self, seconds: float) -> None:
        self.now[0] += int(seconds * NS)
        self.shipping.tick()

    def settle(self) -> None:
        """Let everything happen until the topic is shipped."""
        for _ in range(200):
            self.pass_time(self.lag_s)
            self.threads.finish()
            for asked in self.port.take(p.OpenShipping):
                self.port.hand(p.Done(asked.request, self.ticks.answer()))
            self.upload()
            self.ship()
            if not self.shipping.is_active and self.shipping.state is ShippingState.OPEN:
                return
        raise AssertionError("the topic is never shipped completely")

    # Checks

    def unknown_moves(self) -> list[int]:
        """Return the serials of delayed messages that are in the log of the pieces so far, and of
        which the rows in these pieces know nothing.
        """
        if not any(piece.begins for piece, _ in self.ticks.pieces):
            return []
        _, delayed, _ = self.ticks.rows()
        known = -1 if delayed is None else unpack_value(unwrap(META, delayed[META]))["serial"]
        return [serial for serial in self.ticks.moved() if serial >= known]

    def check(self) -> None:
        """Check that the log of ticks has the same topic as the directory."""
        log = self.harness.log
        state, delayed, mentioned = self.ticks.rows()
        tail = self.ticks.tail
        assert tail is not None
        assert mentioned <= tail.end
        assert tail.end == log.synced_end == self.shipping.shipped.end
        assert state == dict(row for batch in self.store.state.dump() for row in batch)
        store = self.store.delayed
        if store is None:
            assert delayed is None
        else:
            assert delayed == dict(row for batch in store.dump() for row in batch)
        for base in self.ticks.topic.chunks:
            if base in log.reader.remote:
                continue
            data = Path(self.store.directory, chunk_name(base)).read_bytes()
            held = self.ticks.chunks[base]
            assert data[: len(held)] == held
        if tail.end > log.chunks[-1]:
            assert self.ticks.log_end() == tail.end
