"""Lanes of a producer: each topic's session, its link, and its parts if it has some.

Nothing here waits. `ProducerEngine` has the steps of the producer's calls.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from random import SystemRandom
from typing import Final

from ...block.block import KEY_BYTES_MAX, MESSAGE_BYTES_LARGEST, MESSAGE_BYTES_MAX, Block
from ...block.block_format import HAS_IDS, UNIQUE
from ...errors import (
    E_BAD_COMMAND,
    E_CLOSED,
    E_NOT_FOUND,
    NotFound,
    Refused,
    UsageError,
    ZsqError,
    from_wire,
)
from ...names import PARTS_MAX, base_of, check_name, part_name, part_of
from ...wire.address import Address, Target
from ...wire.addresses import Addresses, Rotation
from ...wire.codec import encode
from ...wire.dedupe import names_of
from ...wire.protocol import Failed, Pub, PubDelayed, Spread, Welcome, Wire
from ...wire.spread import PARTS_ASKED_NS, HasParts, KeyParts, parts_of_keys, why_missing
from ...wire.unique import names_of_keys
from ..link.engine import Engine
from ..link.link import Link
from ..link.reaction import Reaction
from ..link.refusal_pause import RefusalPause
from .gather import Gather
from .producer_session import UNKNOWN_OFFSET, PendingBlock, ProducerSession
from .publish_arguments import Text, as_text, too_big

log = logging.getLogger("zsq")

FAILED_MAX: Final = 1_000  # the most failed blocks that are remembered for `flush`
DROP_LINGER_MS: Final = 200  # the time to send Bye after a lane was dropped
_PUB: Final = encode(Pub())


def fresh_ids() -> Iterator[int]:
    while True:
        yield SystemRandom().getrandbits(63) or 1


class Lanes(Engine):
    """The lanes of one producer, by topic, and the blocks that failed in them.

    - `patient`: True if blocks wait while the topic has no room.
    - `splits`: True if a message that the broker refuses fails alone, and the others of its block
      are stored (see `producer_session.py`).
    - `creates`: False if a publish creates no topic.
    - `heartbeat_ms`: None for the default of each address.
    """

    def __init__(
        self,
        address: Address | Addresses,
        heartbeat_ms: int | None,
        patient: bool,
        splits: bool,
        creates: bool,
    ) -> None:
        super().__init__()
        self.rotation = Rotation(address)
        self.heartbeat_ms = heartbeat_ms
        self.patient = patient
        self.splits = splits
        self.creates = creates
        self.lanes: dict[str, Lane] = {}
        # Failed blocks that no call has reported, with their topics.
        self.failed: list[tuple[str, PendingBlock]] = []

    def lane(self, topic: str) -> Lane:
        lane = self.lanes.get(topic)
        if lane is None:
            check_name(topic)
            lane = self.lanes[topic] = Lane(self, topic)
        return lane

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

    def note_failed(self, topic: str, failed: Iterable[PendingBlock]) -> None:
        """Note that these blocks have failed, for the next `flush`."""
        self.failed += [(base_of(topic), pending) for pending in failed]
        del self.failed[FAILED_MAX:]


class Lane:
    """A producer's lane to one topic or one part of it, and the peer of its link.

    `parts` is None until a broker says that the topic has parts. Then they have a lane each.
    """

    def __init__(self, engine: Lanes, topic: str) -> None:
        self.engine = engine
        self.topic = topic
        self.part = part_of(topic)
        self.parts: TopicParts | None = None
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
        self.refusal_pause = RefusalPause()
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
        if now_ns < self.refusal_pause.until_ns:
            self.engine.sooner(self.refusal_pause.until_ns)
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
    def max_msg_size(self) -> int:
        """The largest message that the broker takes; 0 while that is unknown."""
        if not self.link.opened or self.link.left:
            return 0
        limit = self.link.opened.get("message_bytes", MESSAGE_BYTES_MAX)
        return limit if type(limit) is int else MESSAGE_BYTES_MAX

    def check_size(self, size: int) -> None:
        """Raise an error if the broker would refuse this message."""
        if size > self.max_msg_size:
            raise too_big(size, self.max_msg_size)

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
                self.refusal_pause.refused(now_ns)
            self._note_closed(session.refused)
            self._note_refused()
        elif self.refusal_pause.until_ns and type(message) is not Welcome:
            self.refusal_pause.ended()
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
        topic = self.engine.lanes.get(base_of(self.topic))
        errors = (pending.error for pending in refused)
        closed = any(error is not None and error.code == E_CLOSED for error in errors)
        if closed and topic is not None and topic.parts is not None:
            topic.parts.ask_soon()

    def _why_forgotten(self) -> str:
        """Return the reason why the topic no longer has all blocks that it had confirmed."""
        if self._uuid and self._uuid != self.link.opened.get("uuid"):
            url, url_before = self.link.given.url, self._place.url
            change = f"at {url} is another topic than at {url_before}"
            if url == url_before:
                change = "was deleted and created again"
            return f"{change}, without the messages that were published before"
        return (
            "lost blocks that it had confirmed as stored (this can happen if its sync mode is "
            "not `always`)"
        )

    def on_up(self, now_ns: int) -> None:
        self._uuid = self.link.opened.get("uuid", "")
        self._place = self.link.given
        self.size_max = self.max_msg_size
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

        Blocks that were sent before belong to a topic without parts, which has this name no more,
        or to a part that was removed. They may be stored there, so they fail.
        """
        if self.part is not None:
            self._was_removed(error.spread, self.part[1])
            return
        unsent = self.session.withdraw_all()
        self.session.fail(error)
        self._note_refused()
        try:
            keys = parts_of_keys(error.spread)
        except Refused as closed:
            self._fail(unsent, closed)
            return
        if self.parts is None:
            self.parts = TopicParts(self.engine, self.topic)
        self.parts.take(keys)
        self.refused = error if self.asked else None
        now_ns = time.monotonic_ns()
        for pending in unsent:
            self.parts.push(pending, now_ns)

    def _was_removed(self, spread: Spread, number: int) -> None:
        """Let the lane of the topic send the blocks that wait for this part, which was removed.

        Blocks of a program that publishes to this part by its name fail.
        """
        whole = self.engine.lanes.get(spread.topic)
        gone = NotFound(E_NOT_FOUND, why_missing(spread, number))
        self.refused = gone
        if whole is not None and whole.parts is not None:
            unsent = self.session.withdraw_all()
            self.refused = HasParts(spread) if self.asked else None
            whole.on_refused(HasParts(spread))
            for pending in unsent:
                whole.push(pending, time.monotonic_ns())
        self.session.fail(gone)
        self._note_refused()

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


class TopicParts:
    """The parts of a topic, as a producer uses them.

    A message with a key goes to the part of its key. Blocks without keys go to the parts in turn,
    except to those whose broker does not answer at the moment. If a broker turns out not to answer,
    such blocks leave its parts again. A block that was sent once stays with its part, because it
    may be stored there.
    """

    def __init__(self, engine: Lanes, topic: str) -> None:
        self._engine = engine
        self._topic = topic
        self._lanes: dict[int, Lane] = {}  # those of the open parts
        self._order: list[Lane] = []
        self._keys = KeyParts(0)
        # Programs that publish once and end would otherwise all use the same part.
        self._turn = SystemRandom().randrange(PARTS_MAX)
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
            if (lane := next(filter(is_usable, self._order), None)) is not None:
                return lane
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
        keys = routes_of(pending.block)
        if keys is None:
            self._next().push(pending, now_ns)
            return
        rows: dict[Lane | None, list[int]] = {}
        of, lanes = self._keys.of, self._lanes
        for index, key in enumerate(keys):
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
    keys = routes_of(pending.block)
    return keys is not None and any(key is not None for key in keys)


def routes_of(block: Block) -> list[bytes | None] | None:
    """Return what chooses the part of each message: its key, else its id or unique key, or nothing.

    A message with an id and no key always goes to the same part, because a part knows only its own
    ids. The same is true of unique keys.
    """
    keys = None if block.key is None else block.key.values()
    if not block.header.flags & (HAS_IDS | UNIQUE):
        return keys
    names = names_of(block)
    if block.header.flags & UNIQUE:
        names = [one or name for one, name in zip(names, names_of_keys(block), strict=True)]
    return (
        names
        if keys is None
        else [key if key is not None else name for key, name in zip(keys, names, strict=True)]
    )
