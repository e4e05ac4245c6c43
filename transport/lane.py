"""A producer's lanes: one topic each, its session and link, and the messages that linger to share a block.

Nothing here waits; the shells (`producer.py`, `aio.py`) turn the engine.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from .address import Address, Target
from .addressing import with_address
from .block import BLOCK_COUNT_MAX, HEADERS_BYTES_MAX, KEY_BYTES_MAX, MESSAGE_BYTES_MAX, TAG_BYTES_MAX, Block, pack
from .codec import HeaderValue, encode, pack_headers
from .engine import Engine
from .errors import E_BAD_ARGUMENT, E_BAD_COMMAND, E_NOT_FOUND, E_TOO_BIG, UsageError, ZsqError, from_wire
from .link import Link
from .names import check_name
from .protocol import DELAY_MS_MAX, Failed, Pub, PubDelayed, Wire
from .session import UNKNOWN_OFFSET, Parcel, ProducerSession, Reaction

log = logging.getLogger("zsq")

BATCH_BYTES_MAX: Final = 5 * 1024 * 1024  # of bodies in one block, about
QUEUE_BYTES_MAX: Final = 16 * 1024 * 1024  # packed and not yet sent; beyond it publishing waits
DROP_LINGER_MS: Final = 200  # for the farewell
_PUB: Final = encode(Pub())
Text = bytes | str | None


def fresh_ids() -> Iterator[int]:
    while True:
        yield secrets.randbits(63) or 1


class Gather:
    """Messages that linger: one list a column, and the parcel they will be."""

    __slots__ = ("bodies", "due_ns", "headers", "keys", "parcel", "room", "tags")

    def __init__(self, room: int, due_ns: int) -> None:
        self.bodies: list[bytes] = []
        self.keys: list[bytes | None] | None = None
        self.tags: list[bytes | None] | None = None
        self.headers: list[bytes | None] | None = None
        self.room = room  # bytes
        self.due_ns = due_ns
        self.parcel = Parcel()

    def add_attributes(self, key: bytes | None, tag: bytes | None, headers: bytes | None) -> None:
        """Of the message added last. Columns are made when a value first needs them."""
        self.keys = self._put(self.keys, key)
        self.tags = self._put(self.tags, tag)
        self.headers = self._put(self.headers, headers)

    def _put(self, column: list[bytes | None] | None, value: bytes | None) -> list[bytes | None] | None:
        if value is None and column is None:
            return None
        column = [] if column is None else column
        column += [None] * (len(self.bodies) - 1 - len(column))
        column.append(value)
        return column

    def seal(self) -> Parcel:
        count = len(self.bodies)
        for column in (self.keys, self.tags, self.headers):
            if column is not None:
                column += [None] * (count - len(column))
        block = pack(self.bodies, keys=self.keys, tags=self.tags, headers=self.headers)
        self.parcel.seal(with_address(block, self.headers))
        return self.parcel


class Lane:
    """One topic of a producer; the peer of its link."""

    def __init__(self, engine: ProducerEngine, topic: str) -> None:
        self.engine = engine
        self.topic = topic
        self.session = ProducerSession(fresh_ids(), engine.patient)
        self.link = Link(engine, engine.address, Target("topic", topic), self, engine.heartbeat_ms)
        self.link.busy = lambda: self.session.unanswered  # a topic that was deleted does not come back for nothing
        self.gather: Gather | None = None
        self._forgotten = 0
        self._uuid = ""  # of the topic that the last link led to
        engine.add(self.link)

    # Out

    def push(self, parcel: Parcel, now_ns: int) -> None:
        self.session.add(parcel)
        if self.link.up:
            self.pump(now_ns)
        else:
            self.link.start(now_ns)

    def pump(self, now_ns: int) -> None:
        """Send what the credit allows. Each send may take the news of the socket with it, so it is drained in turn."""
        session, link = self.session, self.link
        self.engine.turns += 1
        while link.up:
            sent = False
            while (parcel := session.take()) is not None:
                assert parcel.block is not None
                control = encode(PubDelayed(parcel.delay_ms)) if parcel.delay_ms else _PUB
                link.send([b"", control, parcel.wire_header(session.producer_id), parcel.block.payload], now_ns)
                sent = True
            if not sent or not link.receive(now_ns):
                return

    def seal(self, now_ns: int) -> None:
        """What lingers goes now."""
        gather, self.gather = self.gather, None
        if gather is not None:
            self.push(gather.seal(), now_ns)

    def trouble(self) -> str:
        full = self.session.no_room
        return f"{full.code} {full.text}" if full is not None else self.link.trouble or self.link.state.value

    # In: the link's peer

    def greeting(self) -> Wire:
        return self.session.begin(self.engine.heartbeat_ms)

    def on_word(self, word: Wire, blocks: list[Block], now_ns: int) -> Reaction:
        if type(word) is Failed:
            raise UsageError(E_BAD_COMMAND, f"the topic failed: {from_wire(word.code, word.text)}")
        session = self.session
        reaction = session.on_word(word)
        if session.refused:
            self._note_refused()
        if session.forgotten != self._forgotten:
            self._forgotten = session.forgotten
            log.warning("topic %s %s; going on as a new producer", self.topic, self._why_forgotten())
        return reaction

    def _why_forgotten(self) -> str:
        """The topic knows less of this producer than it had answered."""
        if self._uuid and self._uuid != self.link.opened.get("uuid"):
            return "was deleted and made anew, without what was published before"
        return "lost blocks that it had answered as stored (not in sync mode always?)"

    def on_up(self, now_ns: int) -> None:
        self._uuid = self.link.opened.get("uuid", "")
        self.link.heartbeat_ms = self.session.heartbeat_ms
        self.pump(now_ns)

    def on_received(self, now_ns: int) -> None:
        self.pump(now_ns)

    def on_lost(self) -> None:
        self.session.lost()

    def on_refused(self, error: ZsqError) -> None:
        if error.code == E_NOT_FOUND and not self.link.creates:  # is there something to publish by now?
            if self.session.unanswered:
                self.link.start(time.monotonic_ns())
            return
        self.session.fail(error)
        self._note_refused()

    def _note_refused(self) -> None:
        self.engine.failed += self.session.refused
        del self.engine.failed[1000:]  # flush raises the first that nobody was told of
        self.session.refused.clear()


class ProducerEngine(Engine):
    """All lanes of a producer."""

    def __init__(
        self, address: Address, linger_ns: int, batch_bytes: int, batch_count: int, heartbeat_ms: int | None, patient: bool = False
    ) -> None:
        super().__init__()
        self.address = address
        self.patient = patient
        self.linger_ns = linger_ns
        self.batch_bytes = min(batch_bytes, BATCH_BYTES_MAX)
        self.batch_count = min(batch_count, BLOCK_COUNT_MAX)
        self.heartbeat_ms = heartbeat_ms or address.heartbeat_ms
        self.lanes: dict[str, Lane] = {}
        self.failed: list[Parcel] = []

    def lane(self, topic: str) -> Lane:
        found = self.lanes.get(topic)
        if found is None:
            found = self.lanes[check_name(topic)] = Lane(self, topic)
        return found

    def drop(self, topic: str) -> None:
        """A lane that has nothing unanswered: its link ends. What is published there later begins a new one."""
        lane = self.lanes.pop(topic)
        lane.link.stop(linger_ms=DROP_LINGER_MS)
        self.links.remove(lane.link)

    def linger(self, topic: str, body: bytes, attributes: tuple[bytes | None, bytes | None, bytes | None] | None) -> tuple[Parcel, int]:
        """Add a message to the topic's gather; (parcel, index in it). A full one goes at once."""
        lane = self.lanes.get(topic) or self.lane(topic)
        gather = lane.gather
        if gather is None:
            gather = lane.gather = Gather(self.batch_bytes, time.monotonic_ns() + self.linger_ns)
            self.sooner(gather.due_ns)
        bodies = gather.bodies
        index = len(bodies)
        bodies.append(body)
        gather.room -= len(body)
        if attributes is not None:
            gather.add_attributes(*attributes)
            gather.room -= sum(len(value) for value in attributes if value is not None)
        elif gather.keys is not None or gather.tags is not None or gather.headers is not None:
            gather.add_attributes(None, None, None)
        if gather.room <= 0 or index + 1 >= self.batch_count:
            lane.seal(time.monotonic_ns())
        return gather.parcel, index

    def seal_all(self, now_ns: int) -> None:
        for lane in self.lanes.values():
            lane.seal(now_ns)

    @property
    def unanswered(self) -> bool:
        return any(lane.session.unanswered or lane.gather for lane in self.lanes.values())

    def give_up(self, parcels: Sequence[Parcel], make_error: Callable[[bool], ZsqError]) -> ZsqError:
        """Nobody waits for these any more. What was never sent is taken back and fails; the error says whether that is all."""
        sent = [parcel for parcel in parcels if not any(lane.session.withdraw(parcel) for lane in self.lanes.values())]
        error = make_error(bool(sent))
        for parcel in parcels:
            if parcel not in sent:
                parcel.settle(UNKNOWN_OFFSET, error)
        return error

    def raise_failed(self) -> None:
        """The first failure that nobody was told of, once."""
        failed, self.failed = self.failed, []
        for parcel in failed:
            if not parcel.raised and parcel.error is not None:
                raise parcel.error

    def timers(self, now_ns: int) -> None:
        super().timers(now_ns)
        for lane in self.lanes.values():
            if lane.gather is not None:
                if lane.gather.due_ns <= now_ns:
                    lane.seal(now_ns)
                else:
                    self.sooner(lane.gather.due_ns)

    def trouble(self) -> str:
        """What is known about why nothing is answered."""
        found = {f"{lane.topic}: {lane.trouble()}" for lane in self.lanes.values() if lane.session.unanswered}
        return "; ".join(sorted(found)[:3])


# What a person gives, as bytes


def as_delay_ms(delay: float | None) -> int:
    """Seconds to whole milliseconds, rounded up: never early. 0 for None and 0."""
    if delay is None or delay == 0:
        return 0
    if not 0 < delay * 1000 <= DELAY_MS_MAX:  # NaN is neither
        raise UsageError(E_BAD_ARGUMENT, f"a delay of {delay} s is outside of 0 to {DELAY_MS_MAX // 1000} s, which is 366 days")
    return math.ceil(delay * 1000)


def as_body(body: Any) -> bytes:
    """A body as bytes that nobody changes any more; `UsageError` for text or what is too large."""
    if type(body) is not bytes:
        if not isinstance(body, bytes | bytearray | memoryview):
            raise UsageError(E_BAD_ARGUMENT, f"a body is bytes, not {type(body).__name__}; encode text first")
        body = bytes(body)
    found: bytes = body
    if len(body) > MESSAGE_BYTES_MAX:
        raise UsageError(E_TOO_BIG, f"message of {len(body)} bytes is over the limit of {MESSAGE_BYTES_MAX} bytes")
    return found


def as_text(value: Any, size_max: int, what: str) -> bytes | None:
    """A key or tag."""
    if value is None:
        return None
    if isinstance(value, str):
        value = value.encode()
    if not isinstance(value, bytes):
        raise UsageError(E_BAD_ARGUMENT, f"a {what} is text or bytes, not {type(value).__name__}")
    if len(value) > size_max:
        raise UsageError(E_TOO_BIG, f"{what} of {len(value)} bytes is over the limit of {size_max} bytes")
    return value


def as_headers(headers: Mapping[str, HeaderValue] | None) -> bytes | None:
    if not headers:
        return None
    packed = pack_headers(headers)
    if len(packed) > HEADERS_BYTES_MAX:
        raise UsageError(E_TOO_BIG, f"headers of {len(packed)} bytes are over the limit of {HEADERS_BYTES_MAX} bytes")
    return packed


def as_attributes(key: Text, tag: Text, headers: Mapping[str, HeaderValue] | None) -> tuple[bytes | None, bytes | None, bytes | None]:
    return as_text(key, KEY_BYTES_MAX, "key"), as_text(tag, TAG_BYTES_MAX, "tag"), as_headers(headers)


def pack_many(
    bodies: Sequence[bytes], keys: Sequence[Text] | None, tags: Sequence[Text] | None, headers: Any, time_ns: int | None = None
) -> Iterator[Block]:
    """Blocks of at most 10,000 messages and about 5 MiB, in order. What is wrong is told before the first block is yielded.

    `time_ns`: the messages' own time, where it is not to be that of their storing.
    """
    bodies = bodies if isinstance(bodies, list | tuple) else list(bodies)
    count = len(bodies)
    if not count:
        raise UsageError(E_BAD_ARGUMENT, "publish_many wants at least one message")
    columns: dict[str, Any] = {
        "keys": None if keys is None else [as_text(key, KEY_BYTES_MAX, "key") for key in keys],
        "tags": None if tags is None else [as_text(tag, TAG_BYTES_MAX, "tag") for tag in tags],
        "headers": None if headers is None else [as_headers(one) for one in headers],
    }
    for name, column in columns.items():
        if column is not None and len(column) != count:
            raise UsageError(E_BAD_ARGUMENT, f"{len(column)} {name} for {count} messages; give one (or None) for each")
    # Most calls are one block: packing counts sizes and checks types anyway, so only what is too much for one is looked at twice.
    try:
        block = packed(bodies, time_ns, **columns)
        if count == 1 or block.length <= BATCH_BYTES_MAX:
            return iter((block,))
    except UsageError as error:
        if error.code != E_TOO_BIG or count == 1:
            raise
    bodies = [as_body(body) for body in bodies]
    spans = list(_spans(bodies, columns))
    if len(spans) == 1 and spans[0] == (0, count):
        return iter((packed(bodies, time_ns, **columns),))
    return (packed(bodies[a:b], time_ns, **{name: column and column[a:b] for name, column in columns.items()}) for a, b in spans)


def packed(bodies: Sequence[bytes], time_ns: int | None, keys: Any = None, tags: Any = None, headers: Any = None) -> Block:
    """A block of what is bytes already; `time_ns`: the messages' own time."""
    times = None if time_ns is None else [time_ns] * len(bodies)
    return with_address(pack(bodies, keys=keys, tags=tags, headers=headers, times=times), headers)


def _spans(bodies: Sequence[bytes], columns: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Where to cut: (start, stop) of each block."""
    sizes = list(map(len, bodies))
    for column in columns.values():
        if column is not None:
            sizes = [size + len(value or b"") for size, value in zip(sizes, column, strict=True)]
    start = room = 0
    for index, size in enumerate(sizes):
        if index > start and (room + size > BATCH_BYTES_MAX or index - start >= BLOCK_COUNT_MAX):
            yield start, index
            start, room = index, 0
        room += size
    yield start, len(bodies)
