"""A topic that ships to a folder bucket, for tests without actors. It does what the storage and the
archive actor do between a topic's store and the log of ticks, in one thread and at any moment.

It records what a restore up to each tick must find.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from crc32c import crc32c
from support.archive_harness import ArchiveHarness
from support.storage_harness import IDENTITY

from zsq.actors.supervisor.topics.registry_format import Content, TopicRow, encode
from zsq.storage.bucket.archive.archive_format import Manifest
from zsq.storage.bucket.archive.claim import claim
from zsq.storage.bucket.archive.manifests import Manifests
from zsq.storage.bucket.shipping.ship_log import ShipLog
from zsq.storage.bucket.shipping.tick_format import (
    TICK,
    Boundary,
    Copy,
    Index,
    Piece,
    Range,
    Tail,
    advanced,
    after,
    encode_tick,
    state_object,
)
from zsq.storage.delayed.delayed_format import row_key
from zsq.storage.directory.store import Store
from zsq.storage.log.log_format import chunk_name
from zsq.storage.row_changes import (
    DELAYED,
    DELAYED_BEGIN,
    DELAYED_NONE,
    STATE,
    STATE_BEGIN,
    Change,
    encode_frames,
)
from zsq.storage.state.channel_row import ChannelRow
from zsq.storage.state.state import StateBatch, Table
from zsq.transport.block.block import DELAYED as DELAYED_FLAG
from zsq.transport.block.block import Block, pack

BROKER = "b" * 32
ARCHIVE = "c" * 32
RESERVE = 50
FRAME_BYTES = 300


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a restore up to a tick must find. `delayed` are the keys of the rows, or None."""

    end: int
    reserved: int
    table: Table | None = None
    delayed: frozenset[bytes] | None = None


@dataclass(slots=True)
class Queued:
    """A commit that is not shipped yet, and the state after it."""

    kind: int
    frames: bytes
    state: Wanted


@dataclass(slots=True)
class Shipped:
    """The state of shipping: what the next piece begins with."""

    stream: int = 0
    sequence: int = 0
    place: tuple[int, int] = (0, 0)
    needs_base: bool = True
    state: Wanted = field(default_factory=lambda: Wanted(0, 0))


class ShippingHarness(ArchiveHarness):
    """A topic, its bucket with archive and log of ticks, and the expected results of restores."""

    def __init__(self, root: Path, seed: int = 0) -> None:
        super().__init__(root)
        self.random = Random(seed)
        claim(self.bucket, BROKER, "", ARCHIVE)
        self.manifests = Manifests(self.bucket)
        self.content = Content(BROKER, 0, 2, {}, bucket=ARCHIVE)
        self.content.topics["clicks"] = TopicRow(1, IDENTITY.uuid, "always", 0, "live")
        self.own: Copy | None = None
        self.wanted: dict[int, Wanted] = {}
        """By the number of each tick."""
        self.bodies: dict[int, bytes] = {}
        """The body of each message, by its offset, as of the first time that it was stored."""
        self.times: dict[int, int] = {}
        self.shipped = Shipped()
        self.queue: deque[Queued] = deque()
        self.copies = 0
        self.delayed_sequence = 0
        self.moved: dict[bytes, int] = {}
        """The offsets of delayed blocks that moved to the log, by the keys of their rows."""

    # The life of the topic

    def open(self) -> Store:
        store = super().open()
        store.state.on_changes = lambda changes: self._changed(STATE, changes)
        if store.delayed is not None:
            store.delayed.on_changes = lambda changes: self._changed(DELAYED, changes)
        self.queue = deque()
        return store

    def _changed(self, kind: int, changes: list[Change]) -> None:
        frames = b"".join(encode_frames(kind, changes, FRAME_BYTES))
        self.queue.append(Queued(kind, frames, self._now()))

    def _now(self) -> Wanted:
        """Return the present content of the stores. Its end is not known."""
        return Wanted(0, 0, self.opened.state.load(), self.delayed_keys())

    def delayed_keys(self) -> frozenset[bytes] | None:
        store = self.opened.delayed
        if store is None:
            return None
        return frozenset(key for batch in store.dump() for key, _ in batch if key[:1] == b"d")

    def publish(self, blocks: int = 1, count: int = 3, size: int = 20) -> None:
        first = self.log.end
        super().publish(blocks, count, size)
        made = [body for bodies in self.sent[len(self.sent) - blocks :] for body in bodies]
        self.note_bodies(first, made)

    def note_bodies(self, first: int, bodies: list[bytes]) -> None:
        for at, body in enumerate(bodies):
            assert first + at not in self.bodies, "an offset is used twice"
            self.bodies[first + at] = body

    def channel(self, name: str, next_offset: int) -> None:
        row = ChannelRow(next_offset, created_ns=1, begin=0)
        self.commit_state(StateBatch(channel_puts={name: row}))

    def commit_state(self, batch: StateBatch) -> None:
        self.log.sync()
        batch.applied_offset = batch.synced_end = self.log.synced_end
        self.opened.state.commit(batch)

    def delay(self, count: int = 2) -> None:
        """Store delayed messages."""
        store = self.opened.delayed
        if store is None:
            store = self.opened.make_delayed(self.now_ns)
            rows: list[Change] = [row for batch in store.dump() for row in batch]
            frames = b"".join(encode_frames(DELAYED_BEGIN, rows))
            self.queue.append(Queued(DELAYED, frames, self._now()))
            store.on_changes = lambda changes: self._changed(DELAYED, changes)
        self.now_ns += 10
        bodies = tuple(b"late %d/%d" % (self.delayed_sequence, i) for i in range(count))
        block = pack(bodies, producer_id=5, sequence=self.delayed_sequence)
        self.delayed_sequence += 1
        store.put([(block, self.now_ns + 1000)], self.now_ns)

    def move_due(self) -> None:
        """Move the first delayed rows to the log."""
        store = self.opened.delayed
        if store is None:
            return
        self.now_ns += 2000
        for row in store.due(self.now_ns, 1000, 1):
            header = row.block.header._replace(
                producer_id=row.key.due_ns, sequence=row.key.serial, flags=DELAYED_FLAG
            )
            first, _ = self.log.append([Block(header, row.block.columns)], self.now_ns)
            self.note_bodies(first, [bytes(body or b"") for body in row.block.body.values()])
            self.moved[row_key(row.key)] = first
            self.log.sync()
            store.remove([row.key], known=True)

    def archive(self, keep: int = 1) -> list[object]:  # type: ignore[override]
        rows = super().archive(keep)
        archived = sorted(self.opened.archived.values())
        self.manifests.write(
            Manifest("clicks", self.uuid, BROKER, "run", 1, 0, self.log.synced_end, tuple(archived))
        )
        return list(rows)

    # Shipping

    def take_over(self) -> None:
        """Begin an epoch, with a new stream."""
        if self.own is None:
            self.own = Copy(ARCHIVE, "d" * 32)
        self.ship_log = ShipLog(self.bucket, ARCHIVE, self.own.copy, "host")
        self.now_ns += 1
        self.taken = self.ship_log.take_over(self.own, self.now_ns, RESERVE)
        if self.own.after >= 0:
            self.own = Copy(ARCHIVE, self.own.copy)
        self.epoch = self.taken.takeover.epoch
        self.digest = self.taken.digest
        self.number = after(self.taken.takeover)
        self.registry_number = self.taken.registry_number
        self.tails: dict[str, Tail] = dict(self.taken.tails)
        tail = self.tails.get(self.uuid)
        self.shipped = Shipped(self.random.getrandbits(62))
        if tail is not None:
            self.shipped.place = (tail.chunk, tail.position)
            known = self.wanted[max(self.wanted)]
            self.shipped.state = known
            self.wanted[self.taken.takeover.number] = replace(known, reserved=tail.reserved)
            self.times[self.taken.takeover.number] = self.now_ns
        self._is_known = tail is not None

    def tick(
        self, max_bytes: int = 1 << 20, *, begin: bool = False, base_object: bool = False,
        registry: bool = False, empty: bool = False,
    ) -> int:  # fmt: skip
        """Ship what is synced, at most `max_bytes` bytes of the log. Return the tick's number."""
        self.now_ns += 1
        pieces, bodies = [], []
        if not empty:
            piece, body = self._piece(max_bytes, begin, base_object)
            pieces.append(piece)
            bodies.append(body)
        is_first = self.registry_number < 0
        data = encode(self.content) if registry or is_first else b""
        number = self.number
        if data:
            self.registry_number = number
        for piece in pieces:
            self.tails[piece.uuid] = advanced(self.tails.get(piece.uuid), piece, number)
        index = Index(
            TICK, number, self.epoch, ARCHIVE, self.ship_log.copy, "host", self.now_ns,
            self.digest, self.taken.takeover.number, (), self.registry_number, tuple(pieces),
            dict(self.tails) if number % 8 == 0 else None,
        )  # fmt: skip
        made = encode_tick(index, bodies, data)
        self.ship_log.create(made)
        self.digest, self.number = made.digest, number + 1
        self.wanted[number], self.times[number] = self.shipped.state, self.now_ns
        return number

    def _piece(self, max_bytes: int, begin: bool, base_object: bool) -> tuple[Piece, bytes]:
        shipped = self.shipped
        ranges, data, is_full = self._ranges(max_bytes)
        base = ""
        changes = b""
        begins = False
        state = shipped.state
        end = self._end_at()
        if not is_full and (begin or shipped.needs_base):
            begins = True
            shipped.needs_base = False
            changes = self._all_rows()
            self.queue.clear()
            state = self._now()
            if base_object:
                base = state_object(self.uuid, shipped.stream, crc32c(changes))
                path = Path(self.root).parent / "base"
                path.write_bytes(changes)
                self.bucket.upload(base, str(path))
                changes = b""
        elif not is_full and not shipped.needs_base:
            for _ in range(self.random.randint(0, len(self.queue))):
                queued = self.queue.popleft()
                changes += queued.frames
                state = queued.state
        if self.shipped.needs_base:
            reserved = max(state.reserved, 0)
        reserved = max(state.reserved, shipped.state.reserved, self.log.end + RESERVE)
        shipped.sequence += 1
        shipped.state = replace(state, end=max(end, shipped.state.end), reserved=reserved)
        archived = self.opened.archived
        kept_from = next(
            (base for base in self.log.chunks if base not in archived), self.log.chunks[-1]
        )
        piece = Piece(
            self.uuid, shipped.stream, shipped.sequence, begins, base, shipped.state.end,
            reserved, kept_from, tuple(ranges), len(changes),
        )  # fmt: skip
        return piece, data + changes

    def _all_rows(self) -> bytes:
        found = b""
        for kind, begin, store in (
            (STATE, STATE_BEGIN, self.opened.state),
            (DELAYED, DELAYED_BEGIN, self.opened.delayed),
        ):
            if store is None:
                found += b"".join(encode_frames(DELAYED_NONE))
                continue
            rows: list[Change] = [row for batch in store.dump() for row in batch]
            found += b"".join(encode_frames(begin, rows, FRAME_BYTES))
            assert kind in (STATE, DELAYED)
        return found

    def _ranges(self, max_bytes: int) -> tuple[list[Range], bytes, bool]:
        """Return the next ranges as `Shipping` does, their bytes, and whether more is left."""
        active, synced, _ = self.log.synced_place
        chunk, position = self.shipped.place
        if not self._is_known:
            chunk, position = (
                next(base for base in self.log.chunks if base not in self.opened.archived),
                0,
            )
            self._is_known = True
        found: list[Range] = []
        data = b""
        left = max_bytes
        while True:
            path = self.path(chunk_name(chunk))
            if chunk != active and (chunk in self.opened.archived or not path.exists()):
                following = self.log.reader.next_base(chunk)
                chunk, position = (active, 0) if following is None else (following, 0)
                continue
            stop = synced if chunk == active else path.stat().st_size
            take = min(stop - position, left)
            if take > 0:
                found.append(Range(chunk, position, position + take))
                data += path.read_bytes()[position : position + take]
                position += take
                left -= take
            self.shipped.place = (chunk, position)
            if position < stop:
                return found, data, True
            if chunk == active:
                return found, data, False
            following = self.log.reader.next_base(chunk)
            assert following is not None
            chunk, position = following, 0

    def _end_at(self) -> int:
        """Return the offset up to which whole blocks are shipped, as the storage knows it."""
        place = self.shipped.place
        active, synced, offset = self.log.synced_place
        if place >= (active, synced):
            return offset
        return max(self.shipped.state.end, place[0])

    def bound(self) -> None:
        """Make the log shorter: create a boundary, and remove what nobody needs any more."""
        number = min([self.registry_number, self.number - 1, self.tails[self.uuid].needed])
        boundary = Boundary(number, "", self.epoch, self.number - 1, self.now_ns)
        self.ship_log.bound(self.ship_log.with_digest(boundary))
        self.ship_log.remove_below(number, 1000)
        self.wanted = {at: one for at, one in self.wanted.items() if at >= self.number - 1}

    # Restored copies

    def go_on_in(self, directory: str, own: Copy) -> None:
        """Continue in a restored directory, as the broker of a new data directory."""
        self.abandon()
        self.directory = directory
        self.own = own
        self.files.reset()
        self.open()
        self.take_over()

    def do_something(self, random: Random) -> None:
        """Do one of the things that change a topic or its log of ticks."""
        self.now_ns += 5
        do = random.randrange(20)
        if do < 6:
            self.publish(blocks=random.randint(1, 3))
            if random.random() < 0.7:
                self.sync()
        elif do < 8:
            self.channel(random.choice(("one", "two")), random.randint(0, self.log.end))
        elif do == 8:
            end = self.log.end
            self.commit_state(
                StateBatch(
                    hole_puts=[("one", random.randint(0, end), 1, 1, random.choice((0, 99)))]
                )
            ) if "one" in self.opened.state.load().channels else self.channel("one", end)
        elif do == 9:
            self.delay(random.randint(1, 3))
        elif do == 10:
            self.move_due()
        elif do == 11 and len(self.log.chunks) > 1:
            self.archive(random.randint(1, 2))
        elif do == 12 and random.random() < 0.5:
            self.restart()
            self.take_over()
        else:
            self.tick(
                random.choice((200, 1000, 1 << 20)), begin=random.random() < 0.15,
                base_object=random.random() < 0.3, registry=random.random() < 0.1,
                empty=random.random() < 0.1,
            )  # fmt: skip
