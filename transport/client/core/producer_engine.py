"""Producer engine: the steps of a producer's calls, over its lanes.

Nothing here waits. The blocking and the asyncio producer turn the engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Final

from ...block.block import BLOCK_COUNT_MAX, MESSAGE_BYTES_LARGEST, MESSAGE_BYTES_MAX, Block
from ...errors import E_TIMEOUT, BrokerUnreachable, ZsqError, advice, from_wire
from ...wire.address import Address
from ...wire.addresses import Addresses
from ...wire.dedupe import id_of
from ...wire.spread import HasParts
from ..link.engine import Steps
from ..link.timeouts import deadline_of, format_timeout
from .gather import Gather
from .lane import Lane, Lanes
from .packing import BATCH_BYTES_MAX, largest_of, pack_many
from .producer_session import UNKNOWN_OFFSET, PendingBlock
from .publish_arguments import Attributes, Text, too_big

# The limit for bytes that are packed and not sent yet. If there are more, a publish waits.
QUEUE_BYTES_MAX: Final = 16 * 1024 * 1024
FAREWELL_MS: Final = 1_000  # how long a closed producer may still send its last messages
REASONS_MAX: Final = 3  # the most reasons that an error of `flush` names


def _route(attributes: Attributes) -> bytes | None:
    """Return what chooses the part of a message, see `routes_of`."""
    key, _, headers = attributes
    return key if key is not None else id_of(headers)


def flat(pending_blocks: Iterable[PendingBlock]) -> list[PendingBlock]:
    """Return these blocks, with their pieces instead of the blocks that were cut."""
    return [leaf for pending in pending_blocks for leaf in pending.leaves()]


class ProducerEngine(Lanes):
    """The engine of one producer: how its calls publish, wait and flush."""

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
        super().__init__(address, heartbeat_ms, patient, splits, creates)
        self.farewell_ms = FAREWELL_MS
        self.linger_ns = linger_ns
        self.batch_bytes = min(batch_bytes, BATCH_BYTES_MAX)
        self.batch_count = min(batch_count, BLOCK_COUNT_MAX)

    def linger(
        self,
        topic: str,
        body: bytes,
        attributes: Attributes | None,
    ) -> tuple[PendingBlock, int]:
        """Add a message to the topic's gather, and return (pending block, index in it).

        A full gather is sent at once.
        """
        lane = self.lanes.get(topic) or self.lane(topic)
        if lane.parts is not None:
            lane.parts.ask(time.monotonic_ns())
            lane = lane.parts.lane_of(None if attributes is None else _route(attributes))
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
        has_ids: bool = False,
    ) -> Steps[tuple[PendingBlock, ...]]:
        """Pack messages and queue them, see `pack_many` and `push`.

        Messages for several parts are sorted by part before they are packed, which costs less than
        to cut the blocks. All arguments are checked before anything is queued. This packs in the
        caller's thread, without the lock, so it changes nothing of the engine.
        """
        columns: dict[str, Any] = {
            "keys": keys, "tags": tags, "headers": headers, "key": key, "tag": tag,
            "time_ns": time.time_ns() if delay_ms else None, "size_max": self._size_max(topic),
        }  # fmt: skip
        lane = self.lanes.get(topic)
        parts = None if lane is None else lane.parts
        if (
            parts is None
            or has_ids  # a message without a key goes to the part of its id, see `TopicParts.push`
            or not isinstance(keys, list | tuple)
            or not isinstance(bodies, list | tuple)
        ):
            return self.push(topic, pack_many(bodies, **columns), delay_ms, timeout)
        sizes = {
            name: len(column)
            for name, column in columns.items()
            if isinstance(column, list | tuple)
        }
        if any(size != len(bodies) for size in sizes.values()):
            pack_many(bodies, **columns)  # this raises the error that says which column is wrong

        def picked(rows: Sequence[int]) -> dict[str, Any]:
            return {
                name: [value[row] for row in rows] if name in sizes else value
                for name, value in columns.items()
            }

        sorted_rows = parts.sorted_rows(keys)
        blocks = [pack_many([bodies[row] for row in rows], **picked(rows)) for rows in sorted_rows]
        order = [*chain.from_iterable(sorted_rows)]
        return self.push(topic, chain.from_iterable(blocks), delay_ms, timeout, order)

    def push(
        self,
        topic: str,
        blocks: Iterable[Block],
        delay_ms: int,
        timeout: float | None,
        order: Sequence[int] = (),
    ) -> Steps[tuple[PendingBlock, ...]]:
        """Queue blocks to be sent. Wait while the queue has no room.

        `order`: the indexes of the messages in the publish, if they were sorted.
        """
        first = 0
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
            pending_blocks[-1].order = order[first : first + block.count]
            first += block.count
            lane.push(pending_blocks[-1], time.monotonic_ns())
        return tuple(pending_blocks)

    def fullest(self, lane: Lane, block: Block | None = None) -> Lane:
        """Return the lane that has the most bytes to send: this one, or that of a part."""
        return lane if lane.parts is None else lane.parts.fullest(block)

    def make_room(self, lane: Lane, timeout: float | None) -> Steps[None]:
        session = lane.session
        if not (yield (lambda: session.queue_bytes <= QUEUE_BYTES_MAX, deadline_of(timeout))):
            raise self.too_late(timeout, False)

    def _size_max(self, topic: str) -> int:
        """Return the broker's limit for a message, or the highest limit while it is unknown."""
        lane = self.lanes.get(topic)
        if lane is None:
            return MESSAGE_BYTES_LARGEST
        return (lane.parts.any_lane() if lane.parts else lane).size_max

    def size_to_check(self, topic: str, bodies: Sequence[bytes]) -> int:
        """Return the size that `check_size` must check before these messages are packed, or 0.

        If the broker's limit is known, packing checks the sizes.
        """
        if self._size_max(topic) < MESSAGE_BYTES_LARGEST:
            return 0
        largest = largest_of(bodies)
        return largest if largest > MESSAGE_BYTES_MAX else 0

    def check_size(self, topic: str, size: int, timeout: float | None) -> Steps[None]:
        """Check a message that is larger than the default limit of a broker.

        Ask this broker for its limit if it is unknown.
        """
        lane = self.lane(topic)
        if lane.parts is not None:
            lane = lane.parts.any_lane()
        if not lane.max_msg_size:
            lane.refused, lane.asked = None, lane.asked + 1
            try:
                lane.link.start(time.monotonic_ns())
                met = yield (
                    lambda: bool(lane.max_msg_size) or lane.refused is not None,
                    deadline_of(timeout),
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

    def answer(
        self, queueing: Steps[tuple[PendingBlock, ...]], timeout: float | None
    ) -> Steps[tuple[PendingBlock, ...]]:
        """Queue blocks by these steps, and wait until they are answered. Return them."""
        pending_blocks = yield from queueing
        yield from self.answered(pending_blocks, timeout)
        return pending_blocks

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
                else (lambda: last.done and all(pending.done for pending in pending_blocks)),
                deadline_of(timeout),
            )
        ):
            return
        raise self.give_up(pending_blocks, lambda sent: self.too_late(timeout, sent))

    def flush(self, timeout: float | None) -> Steps[None]:
        self.seal_all(time.monotonic_ns())
        if not (yield (lambda: not self.unanswered, deadline_of(timeout))):
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
        outcome = (
            "it was sent, so it may be stored; it is sent again after a lost connection"
            if sent
            else "nothing was sent"
        )
        late = f"{self.rotation.url} did not confirm within {format_timeout(timeout)}"
        refusal = self.rotation.refusal()
        if refusal is not None:
            return from_wire(refusal.code, f"{late}: {refusal.text}; {outcome}")
        waiting = [lane for lane in self.lanes.values() if lane.session.unanswered]
        answers = all(lane.link.up and not lane.link.is_silent for lane in waiting)
        hint = "`zsq stats` shows its health" if waiting and answers else advice()
        why = self.trouble() or self.rotation.why() or "no answer"
        return BrokerUnreachable(E_TIMEOUT, f"{late} ({why}); {outcome}. {hint}")

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
                topic = self.lanes.get(lane.part[0])
                if topic is not None and topic.parts is not None:
                    topic.parts.leave(lane, now_ns)
            if lane.refusal_pause.until_ns and lane.session.queue:
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
        troubles = {f"{lane.topic}: {lane.trouble()}" for lane in lanes}
        return "; ".join(sorted(troubles)[:3])
