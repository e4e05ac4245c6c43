"""Lanes of a producer: each topic's session, its link, and the messages that linger.

Nothing here waits. The blocking and the asyncio producer turn the engine.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from ...block.block import (
    BLOCK_COUNT_MAX,
    HEADERS_BYTES_MAX,
    KEY_BYTES_MAX,
    LARGEST,
    MESSAGE_BYTES_LARGEST,
    MESSAGE_BYTES_MAX,
    TAG_BYTES_MAX,
    Block,
    pack,
)
from ...errors import (
    E_BAD_ARGUMENT,
    E_BAD_COMMAND,
    E_CLOSED,
    E_NOT_FOUND,
    E_TIMEOUT,
    E_TOO_BIG,
    BrokerUnreachable,
    Refused,
    UsageError,
    ZsqError,
    advice,
    from_wire,
)  # fmt: skip
from ...names import PARTS_MAX, base_of, check_name, part_name, part_of
from ...settings import TAG_SEPARATOR
from ...wire.address import Address, Target
from ...wire.addresses import Addresses, Rotation
from ...wire.codec import HeaderValue, encode, pack_headers
from ...wire.dead_letter import with_address
from ...wire.protocol import DELAY_MS_MAX, Failed, Pub, PubDelayed, Welcome, Wire
from ...wire.spread import PARTS_ASKED_NS, HasParts, KeyParts, parts_of_keys
from ..link.backoff import Backoff
from ..link.link import Engine, Link, Steps, so_long, until_ns
from ..link.reaction import Reaction
from .message import Delay, as_seconds
from .producer_session import UNKNOWN_OFFSET, PendingBlock, ProducerSession

log = logging.getLogger("zsq")

BATCH_BYTES_MAX: Final = 5 * 1024 * 1024  # the approximate limit for the bodies in one block
# The limit for bytes that are packed and not sent yet. If there are more, a publish waits.
QUEUE_BYTES_MAX: Final = 16 * 1024 * 1024
FAREWELL_MS: Final = 1_000  # how long a closed producer may still send its last messages
FAILED_MAX: Final = 1_000  # the most failed blocks that are remembered for `flush`
REASONS_MAX: Final = 3  # the most reasons that an error of `flush` names
DROP_LINGER_MS: Final = 200  # the time to send Bye after a lane was dropped
_PUB: Final = encode(Pub())
Text = bytes | str | None


def fresh_ids() -> Iterator[int]:
    while True:
        yield secrets.randbits(63) or 1


class Gather:
    """Lingering messages, one list for each column, and the pending block that they will become."""

    __slots__ = ("bodies", "due_ns", "headers", "keys", "pending", "room", "tags")

    def __init__(self, room: int, due_ns: int) -> None:
        self.bodies: list[bytes] = []
        self.keys: list[bytes | None] | None = None
        self.tags: list[bytes | None] | None = None
        self.headers: list[bytes | None] | None = None
        self.room = room  # the number of bytes that still fit
        self.due_ns = due_ns
        self.pending = PendingBlock()

    def add_attributes(self, key: bytes | None, tag: bytes | None, headers: bytes | None) -> None:
        """Add the attributes of the newest message. A column is created with its first value."""
        self.keys = self._put(self.keys, key)
        self.tags = self._put(self.tags, tag)
        self.headers = self._put(self.headers, headers)

    def _put(
        self, column: list[bytes | None] | None, value: bytes | None
    ) -> list[bytes | None] | None:
        if value is None and column is None:
            return None
        column = [] if column is None else column
        column += [None] * (len(self.bodies) - 1 - len(column))
        column.append(value)
        return column

    def seal(self) -> PendingBlock:
        count = len(self.bodies)
        for column in (self.keys, self.tags, self.headers):
            if column is not None:
                column += [None] * (count - len(column))
        block = pack(
            self.bodies, keys=self.keys, tags=self.tags, headers=self.headers, limits=LARGEST
        )
        self.pending.seal(with_address(block, self.headers))
        return self.pending


class Lane:
    """A producer's lane to one topic or one part of it, and the peer of its link.

    `parts` is None until a broker says that the topic has parts. Then they have a lane each.
    """

    def __init__(self, engine: ProducerEngine, topic: str) -> None:
        self.engine = engine
        self.topic = topic
        self.part = part_of(topic)
        self.parts: Parts | None = None
        self.session = ProducerSession(fresh_ids(), engine.patient, engine.splits)
        # The largest message that the broker takes, or that any broker takes while it is unknown.
        self.size_max = MESSAGE_BYTES_LARGEST
        target = Target("topic", topic, create=engine.creates and self.part is None)
        self.link = Link(engine, engine.rotation, target, self)
        self.link.heartbeat_ms = self._heartbeat_ms()
        self.refused: ZsqError | None = None  # why the last attempt to get a link failed
        self.asked = 0  # the number of callers that wait for the size limit of the broker
        # An idle lane does not create a deleted topic again.
        self.link.busy = lambda: self.session.unanswered or self.asked > 0
        self.link.needed = self.link.expects = self.link.busy
        self.backoff = Backoff()
        self.gather: Gather | None = None
        self._forgotten = 0
        self._uuid = ""  # the uuid of the topic to which the last link led
        self._place = self.link.given  # the address of that link
        engine.add(self.link)

    # Outgoing messages

    def push(self, pending: PendingBlock, now_ns: int) -> None:
        if self.parts is not None:
            self.parts.push(pending, now_ns)
            return
        if self.part is not None:
            pending.part = self.part[1]
        self.session.add(pending)
        if self.link.up:
            self.pump(now_ns)
        else:
            self.link.start(now_ns)

    def pump(self, now_ns: int) -> None:
        """Send the blocks that the credit allows.

        A send may consume the socket's event for input, so the link is drained after each round.
        """
        session, link = self.session, self.link
        self.engine.turns += 1
        if now_ns < self.backoff.until_ns:
            self.engine.sooner(self.backoff.until_ns)
            return
        while link.up:
            sent = False
            while (pending := session.take()) is not None:
                assert pending.block is not None
                control = encode(PubDelayed(pending.delay_ms)) if pending.delay_ms else _PUB
                link.send(
                    [b"", control, pending.wire_header(session.producer_id), pending.block.payload],
                    now_ns,
                )
                sent = True
            if not sent or not link.receive(now_ns):
                return

    def seal(self, now_ns: int) -> None:
        """Pack the lingering messages and send them now."""
        gather, self.gather = self.gather, None
        if gather is not None:
            self.push(gather.seal(), now_ns)

    @property
    def message_bytes_max(self) -> int:
        """The largest message that the broker takes; 0 while that is unknown."""
        if not self.link.opened or self.link.left:
            return 0
        found = self.link.opened.get("message_bytes", MESSAGE_BYTES_MAX)
        return found if type(found) is int else MESSAGE_BYTES_MAX

    def check_size(self, size: int) -> None:
        """Raise an error if the broker would refuse this message."""
        if size > self.message_bytes_max:
            raise too_big(size, self.message_bytes_max)

    def trouble(self) -> str:
        full = self.session.no_room
        return (
            f"{full.code} {full.text}"
            if full is not None
            else self.link.why() or self.link.state.value
        )

    # Incoming messages: the link's peer

    def greeting(self) -> Wire:
        return self.session.begin(self._heartbeat_ms())

    def _heartbeat_ms(self) -> int:
        return self.engine.heartbeat_ms or self.link.given.heartbeat_ms

    def on_word(self, message: Wire, blocks: list[Block], now_ns: int) -> Reaction:
        if type(message) is Failed:
            raise UsageError(
                E_BAD_COMMAND, f"the topic failed: {from_wire(message.code, message.text)}"
            )
        session = self.session
        reaction = session.on_word(message)
        if session.refused:
            if any(isinstance(pending.error, Refused) for pending in session.refused):
                self.backoff.refused(now_ns)
            self._note_closed(session.refused)
            self._note_refused()
        elif self.backoff.until_ns and type(message) is not Welcome:
            self.backoff.ended()
        if session.forgotten != self._forgotten:
            self._forgotten = session.forgotten
            log.warning(
                "topic %s %s; the producer continues with a new producer id",
                self.topic,
                self._why_forgotten(),
            )
        return reaction

    def _note_closed(self, refused: Iterable[PendingBlock]) -> None:
        """Ask soon which parts are open, if this one is closed."""
        whole = self.engine.lanes.get(base_of(self.topic))
        closed = any(one.error is not None and one.error.code == E_CLOSED for one in refused)
        if closed and whole is not None and whole.parts is not None:
            whole.parts.ask_soon()

    def _why_forgotten(self) -> str:
        """Return the reason why the topic no longer has all blocks that it had confirmed."""
        if self._uuid and self._uuid != self.link.opened.get("uuid"):
            here, before = self.link.given.url, self._place.url
            what = f"at {here} is another topic than at {before}"
            if here == before:
                what = "was deleted and created again"
            return f"{what}, without the messages that were published before"
        return (
            "lost blocks that it had confirmed as stored (this can happen if its sync mode is "
            "not `always`)"
        )

    def on_up(self, now_ns: int) -> None:
        self._uuid = self.link.opened.get("uuid", "")
        self._place = self.link.given
        self.size_max = self.message_bytes_max
        self.link.heartbeat_ms = self.session.heartbeat_ms
        self.pump(now_ns)

    def on_received(self, now_ns: int) -> None:
        self.pump(now_ns)

    def on_lost(self) -> None:
        self.size_max = MESSAGE_BYTES_LARGEST
        self.session.lost()

    def on_refused(self, error: ZsqError) -> None:
        if isinstance(error, HasParts):
            self._has_parts(error)
            return
        may_exist = self.link.target.create and not self.link.creates
        if error.code == E_NOT_FOUND and may_exist:
            if self.session.unanswered or self.asked:  # the topic may exist by now
                self.link.start(time.monotonic_ns())
            return
        self.session.fail(error)
        self._note_closed(self.session.refused)
        if error.code == E_NOT_FOUND and self.part is not None:
            # The topic was deleted. If it was created again, it may have other parts, or none.
            self.engine.forget_parts(base_of(self.topic))
        self.refused = error
        self._note_refused()

    def _has_parts(self, error: HasParts) -> None:
        """Send the blocks that wait here to the parts.

        Blocks that were sent before belong to a topic without parts, which has this name no more.
        They may be stored there, so they fail.
        """
        unsent = self.session.withdraw_all()
        self.session.fail(error)
        self._note_refused()
        try:
            keys = parts_of_keys(error.spread)
        except Refused as closed:
            self._fail(unsent, closed)
            return
        if self.parts is None:
            self.parts = Parts(self.engine, self.topic)
        self.parts.take(keys)
        self.refused = error if self.asked else None
        now_ns = time.monotonic_ns()
        for pending in unsent:
            self.parts.push(pending, now_ns)

    def _fail(self, unsent: list[PendingBlock], error: Refused) -> None:
        """Fail these blocks, because no part takes messages."""
        self.parts = None
        self.refused = error
        for pending in unsent:
            pending.settle(UNKNOWN_OFFSET, error)
        self.engine.note_failed(self.topic, unsent)

    def _note_refused(self) -> None:
        self.engine.note_failed(self.topic, self.session.refused)
        self.session.refused.clear()


class Parts:
    """The parts of a topic, as a producer uses them.

    A message with a key goes to the part of its key. Blocks without keys go to the parts in turn,
    except to those whose broker does not answer at the moment. If a broker turns out not to answer,
    such blocks leave its parts again. A block that was sent once stays with its part, because it
    may be stored there.
    """

    def __init__(self, engine: ProducerEngine, topic: str) -> None:
        self._engine = engine
        self._topic = topic
        self._lanes: dict[int, Lane] = {}  # those of the open parts
        self._order: list[Lane] = []
        self._keys = KeyParts(0)
        # Programs that publish once and end would otherwise all use the same part.
        self._turn = secrets.randbelow(PARTS_MAX)
        self._ask_ns = 0  # when to ask for new parts

    def take(self, keys: KeyParts) -> None:
        """Note which parts there are."""
        self._lanes = {n: self._engine.lane(part_name(self._topic, n)) for n in keys.open}
        self._order = list(self._lanes.values())
        if (self._keys.count, self._keys.closed) != (keys.count, keys.closed):
            self._keys = keys
        self._ask_ns = time.monotonic_ns() + PARTS_ASKED_NS

    def ask_soon(self) -> None:
        """Ask again at the next publish, because a part was closed."""
        self._ask_ns = 0

    def ask(self, now_ns: int) -> None:
        """Ask whether there are new parts, if the last answer is old."""
        if now_ns >= self._ask_ns:
            self._ask_ns = now_ns + PARTS_ASKED_NS
            self._engine.lanes[self._topic].link.start(now_ns)

    def lane_of(self, key: bytes | None) -> Lane:
        """Return the lane for one message that lingers.

        Messages without a key stay at one part until their block is full.
        """
        if key is not None:
            return self._lanes[self._keys.of(key)]
        lane = self._order[self._turn % len(self._order)]
        return lane if lane.gather is not None else self._next()

    def _next(self) -> Lane:
        """Return the next lane in turn, and leave out those whose last attempt has failed.

        If all have failed, or are being opened, leave out those whose broker does not answer.
        """
        count = len(self._order)
        for is_usable in (_is_good, _is_near):
            for step in range(1, count + 1):
                lane = self._order[(self._turn + step) % count]
                if is_usable(lane):
                    self._turn += step
                    return lane
        self._turn += 1
        return self._order[self._turn % count]

    def leave(self, away: Lane, now_ns: int) -> None:
        """Send blocks that wait for a broker that does not answer to other parts.

        Blocks with a key stay, and so do all blocks while no broker answers.
        """
        if not any(map(_is_near, self._order)):
            return
        for pending in away.session.withdraw_all():
            if _has_key(pending):
                away.session.add(pending)
            else:
                self._next().push(pending, now_ns)

    def fullest(self, block: Block | None = None) -> Lane:
        """Return the lane with the most bytes that wait to be sent, of all or of those to which
        this block may go.
        """
        lanes: Iterable[Lane] = self._order
        if block is not None:
            keys = [None] if block.key is None else block.key.values()
            lanes = {self._lanes[self._keys.of(key)] for key in keys if key is not None}
            if None in keys:
                near = [*filter(_is_near, self._order)] or self._order
                lanes = {*lanes, min(near, key=lambda lane: lane.session.queue_bytes)}
        return max(lanes, key=lambda lane: lane.session.queue_bytes)

    def any_lane(self) -> Lane:
        """Return a lane whose link is up, or else one whose broker may answer."""
        for is_usable in (lambda lane: lane.link.up, _is_good, _is_near):
            if (found := next(filter(is_usable, self._order), None)) is not None:
                return found
        return self._order[0]

    def seal(self, now_ns: int) -> None:
        """Send the messages that linger."""
        for lane in self._order:
            lane.seal(now_ns)

    def sorted_rows(self, keys: Sequence[Text]) -> list[list[int]]:
        """Return the indexes of messages with these keys, as a list for each part."""
        rows: dict[int, list[int]] = {}
        of = self._keys.of
        for index, key in enumerate(keys):
            if type(key) is not bytes:
                key = as_text(key, KEY_BYTES_MAX, "key")
            rows.setdefault(-1 if key is None else of(key), []).append(index)
        return list(rows.values())

    def push(self, pending: PendingBlock, now_ns: int) -> None:
        """Send a block to its part, or its pieces to theirs."""
        self.ask(now_ns)
        assert pending.block is not None
        keys = pending.block.key
        if keys is None:
            self._next().push(pending, now_ns)
            return
        rows: dict[Lane | None, list[int]] = {}
        of, lanes = self._keys.of, self._lanes
        for index, key in enumerate(keys.values()):
            lane = None if key is None else lanes[of(key)]
            rows.setdefault(lane, []).append(index)
        if len(rows) == 1:
            ((lane, _),) = rows.items()
            (lane or self._next()).push(pending, now_ns)
            return
        for lane, piece in zip(rows, pending.cut(list(rows.values())), strict=True):
            (lane or self._next()).push(piece, now_ns)


def _is_good(lane: Lane) -> bool:
    return lane.link.up or not lane.link.trouble


def _is_near(lane: Lane) -> bool:
    return not lane.link.astray


def _has_key(pending: PendingBlock) -> bool:
    assert pending.block is not None
    keys = pending.block.key
    return keys is not None and any(key is not None for key in keys.values())


def flat(pending_blocks: Iterable[PendingBlock]) -> list[PendingBlock]:
    """Return these blocks, with their pieces instead of the blocks that were cut."""
    return [leaf for pending in pending_blocks for leaf in pending.leaves()]


class ProducerEngine(Engine):
    """All lanes of a producer.

    With `splits`, a message that the broker refuses fails alone, and the others of its block are
    stored (see `producer_session.py`).
    """

    def __init__(
        self,
        address: Address | Addresses,
        linger_ns: int,
        batch_bytes: int,
        batch_count: int,
        heartbeat_ms: int | None,
        patient: bool = False,
        splits: bool = False,
        creates: bool = True,
    ) -> None:
        super().__init__()
        self.farewell_ms = FAREWELL_MS
        self.rotation = Rotation(address)
        self.patient = patient
        self.splits = splits
        self.creates = creates  # False if a publish creates no topic
        self.linger_ns = linger_ns
        self.batch_bytes = min(batch_bytes, BATCH_BYTES_MAX)
        self.batch_count = min(batch_count, BLOCK_COUNT_MAX)
        self.heartbeat_ms = heartbeat_ms  # None: the default of each address
        self.lanes: dict[str, Lane] = {}
        # Failed blocks that no call has reported, with their topics.
        self.failed: list[tuple[str, PendingBlock]] = []

    def lane(self, topic: str) -> Lane:
        found = self.lanes.get(topic)
        if found is None:
            check_name(topic)
            found = self.lanes[topic] = Lane(self, topic)
        return found

    def forget_parts(self, topic: str) -> None:
        """Ask again whether a topic has parts, at the next publish."""
        lane = self.lanes.get(topic)
        if lane is not None:
            lane.parts = None

    def drop(self, topic: str) -> None:
        """Remove a lane without unanswered blocks and end its link.

        A later publish starts a new lane.
        """
        lane = self.lanes.pop(topic)
        lane.link.stop(linger_ms=DROP_LINGER_MS)
        self.links.remove(lane.link)

    def linger(
        self,
        topic: str,
        body: bytes,
        attributes: tuple[bytes | None, bytes | None, bytes | None] | None,
    ) -> tuple[PendingBlock, int]:
        """Add a message to the topic's gather, and return (pending block, index in it).

        A full gather is sent at once.
        """
        lane = self.lanes.get(topic) or self.lane(topic)
        if lane.parts is not None:
            lane.parts.ask(time.monotonic_ns())
            lane = lane.parts.lane_of(None if attributes is None else attributes[0])
        if len(body) > lane.size_max:
            raise too_big(len(body), lane.size_max)
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
        return gather.pending, index

    def seal_all(self, now_ns: int) -> None:
        for lane in self.lanes.values():
            lane.seal(now_ns)

    @property
    def unanswered(self) -> bool:
        return any(lane.session.unanswered or lane.gather for lane in self.lanes.values())

    def give_up(
        self, pending_blocks: Sequence[PendingBlock], make_error: Callable[[bool], ZsqError]
    ) -> ZsqError:
        """Give up waiting for these blocks and return the error.

        Blocks that were never sent are withdrawn and fail. `make_error` gets True if other blocks
        were sent.
        """
        pending_blocks = flat(pending_blocks)
        sessions = [lane.session for lane in self.lanes.values()]
        sent = [
            pending
            for pending in pending_blocks
            if pending.sends or not any(pending in session.queue for session in sessions)
        ]
        # The error names the trouble of the lanes in which the blocks wait, so it is made first.
        error = make_error(bool(sent))
        for pending in pending_blocks:
            if pending not in sent and any(session.withdraw(pending) for session in sessions):
                pending.settle(UNKNOWN_OFFSET, error)
        return error

    # Steps of calls; see `Steps`

    def push_many(
        self,
        topic: str,
        bodies: Sequence[bytes],
        delay_ms: int,
        timeout: float | None,
        *,
        keys: Sequence[Text] | None = None,
        tags: Sequence[Text] | None = None,
        headers: Any = None,
        key: Text = None,
        tag: Text = None,
    ) -> Steps[tuple[PendingBlock, ...]]:
        """Pack messages and queue them, see `pack_many` and `push`.

        Messages for several parts are sorted by part before they are packed, which costs less than
        to cut the blocks. All arguments are checked before anything is queued. This packs in the
        caller's thread, without the lock, so it changes nothing of the engine.
        """
        columns: dict[str, Any] = {
            "keys": keys, "tags": tags, "headers": headers, "key": key, "tag": tag,
            "time_ns": time.time_ns() if delay_ms else None,
        }  # fmt: skip
        lane = self.lanes.get(topic)
        parts = None if lane is None else lane.parts
        if lane is not None:
            size, size_max = largest_of(bodies), (parts.any_lane() if parts else lane).size_max
            if size > size_max:
                raise too_big(size, size_max)
        if (
            parts is None
            or not isinstance(keys, list | tuple)
            or not isinstance(bodies, list | tuple)
        ):
            return self.push(topic, pack_many(bodies, **columns), delay_ms, timeout)
        sizes = {name: len(one) for name, one in columns.items() if isinstance(one, list | tuple)}
        if any(size != len(bodies) for size in sizes.values()):
            pack_many(bodies, **columns)  # this raises the error that says which column is wrong

        def picked(rows: Sequence[int]) -> dict[str, Any]:
            return {
                name: [value[row] for row in rows] if name in sizes else value
                for name, value in columns.items()
            }

        blocks = [
            pack_many([bodies[row] for row in rows], **picked(rows))
            for rows in parts.sorted_rows(keys)
        ]
        return self.push(topic, chain.from_iterable(blocks), delay_ms, timeout)

    def push(
        self, topic: str, blocks: Iterable[Block], delay_ms: int, timeout: float | None
    ) -> Steps[tuple[PendingBlock, ...]]:
        """Queue blocks to be sent. Wait while the queue has no room."""
        lane = self.lane(topic)
        if lane.gather is not None:
            lane.seal(time.monotonic_ns())  # messages that were published earlier are sent first
        if lane.parts is not None:
            lane.parts.seal(time.monotonic_ns())
        pending_blocks = []
        for block in blocks:
            if self.fullest(lane).session.queue_bytes > QUEUE_BYTES_MAX:
                yield from self.make_room(self.fullest(lane, block), timeout)
            pending_blocks.append(PendingBlock(block, delay_ms))
            lane.push(pending_blocks[-1], time.monotonic_ns())
        return tuple(pending_blocks)

    def fullest(self, lane: Lane, block: Block | None = None) -> Lane:
        """Return the lane that has the most bytes to send: this one, or that of a part."""
        return lane if lane.parts is None else lane.parts.fullest(block)

    def make_room(self, lane: Lane, timeout: float | None) -> Steps[None]:
        session = lane.session
        if not (yield (lambda: session.queue_bytes <= QUEUE_BYTES_MAX, until_ns(timeout))):
            raise self.too_late(timeout, False)

    def check_size(self, topic: str, size: int, timeout: float | None) -> Steps[None]:
        """Check a message that is larger than the default limit of a broker.

        Ask this broker for its limit if it is unknown.
        """
        lane = self.lane(topic)
        if lane.parts is not None:
            lane = lane.parts.any_lane()
        if not lane.message_bytes_max:
            lane.refused, lane.asked = None, lane.asked + 1
            try:
                lane.link.start(time.monotonic_ns())
                met = yield (
                    lambda: bool(lane.message_bytes_max) or lane.refused is not None,
                    until_ns(timeout),
                )
            finally:
                lane.asked -= 1
            if isinstance(lane.refused, HasParts):
                lane.refused = None
                yield from self.check_size(topic, size, timeout)
                return
            if lane.refused is not None:
                raise lane.refused
            if not met:
                raise self.too_late(timeout, False)
        lane.check_size(size)

    def answered(
        self, pending_blocks: tuple[PendingBlock, ...], timeout: float | None
    ) -> Steps[None]:
        """Wait until these blocks are answered."""
        if any(pending.block is None and not pending.done for pending in pending_blocks):
            self.seal_all(time.monotonic_ns())  # a caller waits: stop lingering
        last = pending_blocks[-1]
        alone = len(pending_blocks) == 1
        if (
            yield (
                (lambda: last.done)
                if alone
                else (lambda: last.done and all(one.done for one in pending_blocks)),
                until_ns(timeout),
            )
        ):
            return
        raise self.give_up(pending_blocks, lambda sent: self.too_late(timeout, sent))

    def flush(self, timeout: float | None) -> Steps[None]:
        self.seal_all(time.monotonic_ns())
        if not (yield (lambda: not self.unanswered, until_ns(timeout))):
            sent = any(
                pending.sends
                for lane in self.lanes.values()
                for pending in (*lane.session.window.values(), *lane.session.queue)
            )
            late = self.too_late(timeout, sent)
            raise from_wire(late.code, f"{self.unfinished}: {late.text}")
        self.raise_failed()

    def conclude(self, timeout: float) -> Steps[None]:
        yield from self.flush(timeout)

    @property
    def unfinished(self) -> str:
        count = sum(
            pending.count
            for lane in self.lanes.values()
            for pending in (*lane.session.window.values(), *lane.session.queue)
        )
        count += sum(len(lane.gather.bodies) for lane in self.lanes.values() if lane.gather)
        return f"{count} published messages are not confirmed" if count else ""

    def too_late(self, timeout: float | None, sent: bool) -> ZsqError:
        """Return the error of a publish that was not answered in time."""
        what = (
            "it was sent, so it may be stored; it is sent again after a lost connection"
            if sent
            else "nothing was sent"
        )
        late = f"{self.rotation.url} did not confirm within {so_long(timeout)}"
        refusal = self.rotation.refusal()
        if refusal is not None:
            return from_wire(refusal.code, f"{late}: {refusal.text}; {what}")
        waiting = [lane for lane in self.lanes.values() if lane.session.unanswered]
        answers = all(lane.link.up and not lane.link.is_silent for lane in waiting)
        hint = "`zsq stats` shows its health" if waiting and answers else advice()
        why = self.trouble() or self.rotation.why() or "no answer"
        return BrokerUnreachable(E_TIMEOUT, f"{late} ({why}); {what}. {hint}")

    def note_failed(self, topic: str, failed: Iterable[PendingBlock]) -> None:
        """Note that these blocks have failed, for the next `flush`."""
        self.failed += [(base_of(topic), pending) for pending in failed]
        del self.failed[FAILED_MAX:]

    def raise_failed(self) -> None:
        """Raise the failures that were not reported yet as one error. Each is raised once."""
        failed, self.failed = self.failed, []
        reasons: dict[tuple[str, str], int] = {}
        first: ZsqError | None = None
        for topic, pending in failed:
            if not pending.raised and pending.error is not None:
                first = first or pending.error
                reason = topic, f"{pending.error.code} {pending.error.text}"
                reasons[reason] = reasons.get(reason, 0) + pending.count
        if first is None:
            return
        count = sum(reasons.values())
        if count == 1:
            raise first
        each = [f"{number} to {topic}: {why}" for (topic, why), number in reasons.items()]
        more = f"; and {len(each) - REASONS_MAX} more reasons" if len(each) > REASONS_MAX else ""
        text = f"{count} messages were not stored. {'; '.join(each[:REASONS_MAX])}{more}"
        raise from_wire(first.code, text)

    def timers(self, now_ns: int) -> None:
        super().timers(now_ns)
        for lane in list(self.lanes.values()):
            if lane.part is not None and lane.session.queue and lane.link.astray:
                whole = self.lanes.get(lane.part[0])
                if whole is not None and whole.parts is not None:
                    whole.parts.leave(lane, now_ns)
            if lane.backoff.until_ns and lane.session.queue:
                lane.pump(now_ns)
            if lane.gather is not None:
                if lane.gather.due_ns <= now_ns:
                    lane.seal(now_ns)
                else:
                    self.sooner(lane.gather.due_ns)

    def trouble(self) -> str:
        """Return the known reasons why no reply arrives."""
        lanes = [lane for lane in self.lanes.values() if lane.session.unanswered]
        # What a call gave up on is not in the queue any more.
        lanes = lanes or [lane for lane in self.lanes.values() if not lane.link.up]
        found = {f"{lane.topic}: {lane.trouble()}" for lane in lanes}
        return "; ".join(sorted(found)[:3])


# Conversion of a user's values to bytes


def as_delay_ms(delay: Delay | None) -> int:
    """Convert seconds or a timedelta to milliseconds. Return 0 for None and 0.

    The result is rounded up, so that no message comes early.
    """
    if delay is None:
        return 0
    delay = as_seconds(delay)
    if delay == 0:
        return 0
    # This also refuses NaN, because every comparison with NaN is False.
    if not 0 < delay * 1000 <= DELAY_MS_MAX:
        raise UsageError(
            E_BAD_ARGUMENT,
            (
                f"the delay of a publish must be 0 to {DELAY_MS_MAX // 1000} s (366 days), not "
                f"{delay} s"
            ),
        )
    return math.ceil(delay * 1000)


def as_body(body: Any) -> bytes:
    """Return the body as immutable bytes. Raises `UsageError` for text, or if it is too large."""
    if type(body) is not bytes:
        if not isinstance(body, bytes | bytearray | memoryview):
            text = (
                f"a body must be bytes, not {type(body).__name__}; encode it first, such as "
                "json.dumps(...).encode()"
            )
            raise UsageError(E_BAD_ARGUMENT, text)
        body = bytes(body)
    found: bytes = body
    if len(body) > MESSAGE_BYTES_LARGEST:
        raise too_big(len(body), MESSAGE_BYTES_LARGEST)
    return found


def too_big(size: int, size_max: int) -> UsageError:
    """Return the error for a message over the limit. The broker's error has the same text."""
    return UsageError(E_TOO_BIG, f"message of {size} bytes is over the limit of {size_max} bytes")


def one_block(
    body: bytes, attributes: tuple[bytes | None, bytes | None, bytes | None] | None, delay_ms: int
) -> Block:
    columns = [None if value is None else [value] for value in attributes or (None, None, None)]
    return packed([body], time.time_ns() if delay_ms else None, *columns)


def largest_of(bodies: Any) -> int:
    """Return the size of the largest body.

    Return 0 if the bodies are not a list of bytes. Packing then raises a better error.
    """
    try:
        return max(map(len, bodies), default=0) if isinstance(bodies, list | tuple) else 0
    except TypeError:
        return 0


def as_text(value: Any, size_max: int, what: str) -> bytes | None:
    """Check a key or tag and return it as bytes."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = value.encode()
        except UnicodeEncodeError as error:
            raise UsageError(E_BAD_ARGUMENT, f"a {what} must be UTF-8 or bytes: {error}") from None
    if not isinstance(value, bytes):
        raise UsageError(
            E_BAD_ARGUMENT, f"a {what} must be text or bytes, not {type(value).__name__}"
        )
    if len(value) > size_max:
        raise UsageError(
            E_TOO_BIG, f"{what} of {len(value)} bytes is over the limit of {size_max} bytes"
        )
    return value


def as_tag(value: Any) -> bytes | None:
    """Check a tag and return it as bytes. It must be one that a channel's `tags` can select."""
    tag = as_text(value, TAG_BYTES_MAX, "tag")
    if tag is not None and TAG_SEPARATOR.encode() in tag:
        raise UsageError(
            E_BAD_ARGUMENT,
            f"a tag must not contain {TAG_SEPARATOR}, which separates the tags of a channel, "
            f"unlike {tag[:100]!r}",
        )
    return tag


def as_headers(headers: Mapping[str, HeaderValue] | None) -> bytes | None:
    if not headers:
        return None
    if not isinstance(headers, Mapping):
        raise UsageError(E_BAD_ARGUMENT, f"headers must be a mapping, not {type(headers).__name__}")
    packed = pack_headers(headers)
    if len(packed) > HEADERS_BYTES_MAX:
        raise UsageError(
            E_TOO_BIG,
            f"headers of {len(packed)} bytes are over the limit of {HEADERS_BYTES_MAX} bytes",
        )
    return packed


def as_attributes(
    key: Text, tag: Text, headers: Mapping[str, HeaderValue] | None
) -> tuple[bytes | None, bytes | None, bytes | None]:
    return (
        as_text(key, KEY_BYTES_MAX, "key"),
        as_tag(tag),
        as_headers(headers),
    )


Column = list[bytes | None] | None


def pack_many(
    bodies: Sequence[bytes],
    keys: Sequence[Text] | None,
    tags: Sequence[Text] | None,
    headers: Any,
    time_ns: int | None = None,
    *,
    key: Text = None,
    tag: Text = None,
) -> Iterator[Block]:
    """Pack messages into blocks of at most 10,000 messages and about 5 MiB, in order.

    Invalid arguments are reported before the first block is yielded.

    - `time_ns`: The time of the messages, if it is not the time at which they are stored.
    - `key`, `tag`: A value for all messages. `headers` may be one map for all, too.
    """
    if isinstance(bodies, bytes | bytearray | memoryview | str):
        kind = type(bodies).__name__
        raise UsageError(
            E_BAD_ARGUMENT,
            f"publish_many needs a list of messages, not {kind}; for one message use publish",
        )
    bodies = bodies if isinstance(bodies, list | tuple) else list(bodies)
    count = len(bodies)
    if not count:
        raise UsageError(E_BAD_ARGUMENT, "publish_many needs at least one message")
    columns: dict[str, Column] = {
        "keys": _column(
            key, keys, count, "key", lambda value: as_text(value, KEY_BYTES_MAX, "key")
        ),
        "tags": _column(tag, tags, count, "tag", as_tag),
        "headers": [as_headers(headers)] * count
        if isinstance(headers, Mapping)
        else _column(None, headers, count, "", as_headers),
    }
    for name, column in columns.items():
        if column is not None and len(column) != count:
            raise UsageError(
                E_BAD_ARGUMENT,
                f"{len(column)} {name} for {count} messages; give one (or None) for each",
            )
    # The messages of most calls fit into one block, and packing checks sizes and types anyway. So
    # they are examined one by one only if they do not fit.
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
    return (
        packed(
            bodies[a:b],
            time_ns,
            **{name: column and column[a:b] for name, column in columns.items()},
        )
        for a, b in spans
    )


def _column(
    one: Any, each: Any, count: int, what: str, checked: Callable[[Any], bytes | None]
) -> Column:
    """Return one value for each message, from `one` (the same value for all) or from `each`."""
    if one is not None and each is not None:
        raise UsageError(
            E_BAD_ARGUMENT,
            (
                f"{what}= applies to all messages and {what}s= has one value for each; give one of "
                "them"
            ),
        )
    if one is not None:
        return [checked(one)] * count
    if isinstance(each, str | bytes | Mapping) or not isinstance(each, Iterable | None):
        raise UsageError(
            E_BAD_ARGUMENT,
            (
                f"{what}s= needs one {what} for each message; to give all messages the same one, "
                f"use {what}="
            ),
        )
    return None if each is None else [checked(value) for value in each]


def packed(
    bodies: Sequence[bytes],
    time_ns: int | None,
    keys: Any = None,
    tags: Any = None,
    headers: Any = None,
) -> Block:
    """Pack values that are already bytes into a block. `time_ns`: the time of the messages."""
    times = None if time_ns is None else [time_ns] * len(bodies)
    return with_address(
        pack(bodies, keys=keys, tags=tags, headers=headers, times=times, limits=LARGEST), headers
    )


def _spans(bodies: Sequence[bytes], columns: Mapping[str, Column]) -> Iterator[tuple[int, int]]:
    """Yield the messages of each block as (start, stop)."""
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
