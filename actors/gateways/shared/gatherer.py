"""Publishing for NSQ and HTTP clients: packs the messages of all connections into shared blocks.

A publish is answered when its block is durable. NSQ clients wait for an answer to each message. So
while a block is on its way, new messages of its topic are collected for the next block. With more
clients the blocks become larger, and one sync serves all of them. No message waits for a timer.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from ....transport.block.block import BLOCK_COUNT_MAX
from ....transport.client.asyncio.aio_asker import Turner
from ....transport.client.blocking.producer import Published
from ....transport.client.core.packing import packed
from ....transport.client.core.producer_engine import ProducerEngine
from ....transport.client.core.producer_session import PendingBlock
from ....transport.client.link.engine import Engine
from ....transport.client.link.timeouts import FAR_NS
from ....transport.errors import E_CLOSING, E_TIMEOUT, BrokerUnreachable, Refused, ZsqError
from ....transport.names import part_name
from ....transport.units import NS_PER_S
from ....transport.wire.address import Address

_EngineT = TypeVar("_EngineT", bound=Engine)
Answer = Callable[[str], None]
"""Called once, with "" when all messages are durable or with the reason why they are not."""
Placed = Callable[[int, list[Published]], None]
"""Called before the answer, for each block that is durable, with its messages of a publish, and the
index of the first one of them in the publish.
"""

# The most blocks of a topic and delay that are sent and not answered yet: one that is written to
# the disk, and one behind it.
AHEAD_MAX: Final = 2
# The second block is sent only if it has this many bytes, or half as many publishes as the first.
# A block costs each process on its way as much as ten publishes do.
WORTH_BYTES: Final = 32 * 1024
BLOCK_BYTES: Final = 1024 * 1024  # a block with this many bytes of bodies does not wait
# While more bytes wait for their answer, no connection is read.
PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
TIMEOUT_NS: Final = 30_000_000_000  # after this time a publish fails, but it may still be stored
_LOOK_S: Final = 1.0
LANE_IDLE_NS: Final = 60_000_000_000  # the link of a topic ends after this time without messages
# If there are more lanes, those that have been idle for longest end. Clients choose the names of
# topics, so the number of lanes needs a limit.
LANES_MAX: Final = 2_000


class _Gather:
    """Messages of one topic and delay that will be one block."""

    __slots__ = (
        "answers", "bodies", "delay_ms", "give_up_ns", "headers", "placed", "size", "topic",
    )  # fmt: skip

    def __init__(self, topic: str, delay_ms: int) -> None:
        self.give_up_ns = time.monotonic_ns() + TIMEOUT_NS
        self.topic = topic
        self.delay_ms = delay_ms
        self.bodies: list[bytes] = []
        # The packed headers of the messages, if any has headers.
        self.headers: list[bytes | None] = []
        # (first message, number of messages, index in its publish, callback) of the publishes that
        # want to know.
        self.placed: list[tuple[int, int, int, Placed]] = []
        self.size = 0
        self.answers: list[Answer] = []


class _BlockOut:
    """A block on its way, and the publishes that wait for it."""

    __slots__ = ("answers", "give_up_ns", "key", "pending", "placed", "size")

    def __init__(self, pending: PendingBlock, gather: _Gather) -> None:
        self.pending = pending
        self.key = gather.topic, gather.delay_ms
        self.answers = gather.answers
        self.placed = gather.placed
        self.size = gather.size
        self.give_up_ns = gather.give_up_ns

    def place(self) -> None:
        """Tell the publishes that want to know it where their messages are."""
        for first, count, at, placed in self.placed:
            leaves = (self.pending.leaf(index) for index in range(first, first + count))
            placed(
                at, [Published(leaf.offset_of(row), row in leaf.duplicates) for leaf, row in leaves]
            )


class SettledTurner(Turner[_EngineT]):
    """A turner that calls `found` whenever protocol messages may have arrived."""

    def __init__(self, engine: _EngineT, settled: Callable[[], None]) -> None:
        super().__init__(engine)
        self._found = settled

    def settle(self) -> None:
        super().settle()
        self._found()


class Gatherer:
    """The publisher of a gateway, in the running event loop.

    `url` is the run directory, as in `Address`. `on_answered` is called after answers. `via` is the
    gateway's name in the audit log.
    """

    def __init__(
        self, url: str, on_answered: Callable[[], None] = lambda: None, via: str = ""
    ) -> None:
        self.engine = ProducerEngine(Address(url, True, None, {"via": via}), 0, 1, 1, None)
        self.loop = asyncio.get_running_loop()
        self.pending_bytes = 0
        self.messages = 0
        self.blocks = 0
        self._on_answered = on_answered
        self._gathers: dict[tuple[str, int], deque[_Gather]] = {}
        self._out: dict[str, deque[_BlockOut]] = {}
        self._planned = False
        # The last use of each topic's lane, the longest idle first.
        self._used_ns: dict[str, int] = {}
        # The same blocks as in `_out`, but by topic and delay.
        self._ahead: dict[tuple[str, int], deque[_BlockOut]] = {}
        self._turner = SettledTurner(self.engine, self._settle)
        self._look = self.loop.call_later(_LOOK_S, self._now_and_then)
        self._stopping = False

    @property
    def full(self) -> bool:
        return self.pending_bytes > PENDING_BYTES_MAX

    @property
    def idle(self) -> bool:
        return not self._gathers and not self._out

    def publish(
        self,
        topic: str,
        bodies: Sequence[bytes],
        delay_ms: int,
        answer: Answer,
        headers: Sequence[bytes] = (),
        placed: Placed | None = None,
    ) -> None:
        """Publish messages. `answer` is called later.

        `headers` has the packed headers of each message, or is empty. `placed` is called once for
        each block that has some of the messages, in order.
        """
        if len(bodies) <= BLOCK_COUNT_MAX:
            self._add(topic, bodies, delay_ms, answer, headers, 0, placed)
        else:  # it is published in parts, and answered after the last one
            answer = _all_of(answer, -(-len(bodies) // BLOCK_COUNT_MAX))
            for at in range(0, len(bodies), BLOCK_COUNT_MAX):
                stop = at + BLOCK_COUNT_MAX
                self._add(topic, bodies[at:stop], delay_ms, answer, headers[at:stop], at, placed)

    def _add(
        self,
        topic: str,
        bodies: Sequence[bytes],
        delay_ms: int,
        answer: Answer,
        headers: Sequence[bytes],
        at: int,
        placed: Placed | None,
    ) -> None:
        """Add messages to the newest waiting block, or to a new block behind it."""
        waiting = self._gathers.get((topic, delay_ms))
        if waiting is None:
            waiting = self._gathers[topic, delay_ms] = deque()
        last = waiting[-1] if waiting else None
        if (
            last is None
            or last.size >= BLOCK_BYTES
            or len(last.bodies) + len(bodies) > BLOCK_COUNT_MAX
        ):
            last = _Gather(topic, delay_ms)
            waiting.append(last)
        size = sum(map(len, bodies)) if len(bodies) > 1 else len(bodies[0])
        if headers:
            last.headers += [None] * (len(last.bodies) - len(last.headers))
            last.headers += headers
            size += sum(map(len, headers))
        if placed is not None:
            last.placed.append((len(last.bodies), len(bodies), at, placed))
        last.bodies += bodies
        last.answers.append(answer)
        last.size += size
        self.pending_bytes += size
        if not self._planned:
            self._planned = True
            self.loop.call_soon(self._send)

    def _send(self) -> None:
        """Send all blocks that may be sent now, at the end of the turn in which messages
        arrived.
        """
        self._planned = False
        now = time.monotonic_ns()
        for key, waiting in list(self._gathers.items()):
            while waiting and (len(waiting) > 1 or self._may_go(key, waiting[0])):
                self._go(waiting.popleft(), now)
            if not waiting:
                del self._gathers[key]
        self._turner.settle()

    def _may_go(self, key: tuple[str, int], first: _Gather) -> bool:
        """Return True if the block may be sent now.

        A full block is sent at once. While another block is on its way, a small block waits (see
        WORTH_BYTES), so that later publishes share it and its sync.
        """
        if not (waiting := self._ahead.get(key)) or first.size >= BLOCK_BYTES:
            return True
        # A part whose broker is gone holds up no other part.
        ahead = [
            block_out for block_out in waiting if not self._is_held_up(key[0], block_out.pending)
        ]
        if not ahead:
            return True
        return len(ahead) < AHEAD_MAX and (
            first.size >= WORTH_BYTES or 2 * len(first.answers) >= len(ahead[-1].answers)
        )

    def _is_held_up(self, topic: str, pending: PendingBlock) -> bool:
        """Return True if this block waits for a part whose link is not up."""
        if pending.part < 0:
            return False
        return not self.engine.lane(part_name(topic, pending.part)).link.up

    def _go(self, gather: _Gather, now: int) -> None:
        try:
            headers = gather.headers or None
            if headers:
                headers += [None] * (len(gather.bodies) - len(headers))
            block = packed(
                gather.bodies, time.time_ns() if gather.delay_ms else None, headers=headers
            )
            pending = PendingBlock(block, gather.delay_ms)
            self._used_ns.pop(gather.topic, None)
            lane = self.engine.lane(gather.topic)
            if self._stopping and lane.link.down:
                raise self._too_late_to_reach()
            self._used_ns[gather.topic] = now
            lane.push(pending, now)
        except ZsqError as error:
            self._answer(gather.answers, gather.size, str(error))
            return
        self.messages += len(gather.bodies)
        self.blocks += 1
        out = _BlockOut(pending, gather)
        self._out.setdefault(gather.topic, deque()).append(out)
        self._ahead.setdefault(out.key, deque()).append(out)

    def _settle(self) -> None:
        if self._stopping:
            self._give_up_lost()
        self.engine.failed.clear()  # the answers of its block report each failure
        room = False
        for topic, out in list(self._out.items()):
            # The parts of a topic answer in any order.
            for block_out in [block_out for block_out in out if block_out.pending.done]:
                out.remove(block_out)
                room = True
                ahead = self._ahead[block_out.key]
                ahead.remove(block_out)
                if not ahead:
                    del self._ahead[block_out.key]
                if block_out.pending.error is None:
                    block_out.place()
                self._answer(
                    block_out.answers,
                    block_out.size,
                    "" if block_out.pending.error is None else str(block_out.pending.error),
                )
            if not out:
                del self._out[topic]
        # Without `room`, this would repeat in each turn.
        if room and self._gathers and not self._planned:
            self._planned = True
            self.loop.call_soon(self._send)

    def _answer(self, answers: list[Answer], size: int, why: str) -> None:
        self.pending_bytes -= size
        for answer in answers:
            answer(why)
        self._on_answered()

    def _now_and_then(self) -> None:
        """Fail publishes that a topic has not answered in time. Called regularly."""
        self._look = self.loop.call_later(_LOOK_S, self._now_and_then)
        now = time.monotonic_ns()
        for out in list(self._out.values()):
            late = [
                block_out
                for block_out in out
                if block_out.give_up_ns <= now and not block_out.pending.done
            ]
            if late:
                self.engine.give_up([block_out.pending for block_out in late], self._too_late)
            for block_out in late:
                if not block_out.pending.done:  # it was sent and may be stored
                    self._answer(block_out.answers, block_out.size, str(self._too_late(True)))
                    block_out.answers, block_out.size, block_out.give_up_ns = [], 0, FAR_NS
        for key, waiting in list(self._gathers.items()):
            while waiting and waiting[0].give_up_ns <= now:
                gather = waiting.popleft()
                self._answer(gather.answers, gather.size, str(self._too_late(False)))
            if not waiting:
                del self._gathers[key]
        self._drop_idle(now)
        self._send()  # blocks ahead may be held up now, and hold up no others any more

    def _drop_idle(self, now: int) -> None:
        """End unused lanes, because each has a socket here and a link at its topic."""
        over = len(self._used_ns) - LANES_MAX
        for topic, used_ns in list(self._used_ns.items()):
            if over <= 0 and now - used_ns < LANE_IDLE_NS:
                return
            if not self.engine.lanes[topic].session.unanswered and topic not in self._out:
                self.engine.drop(topic)
                del self._used_ns[topic]
                over -= 1

    def _too_late(self, sent: bool) -> ZsqError:
        perhaps = "; the message may still be stored" if sent else ""
        return BrokerUnreachable(
            E_TIMEOUT,
            f"no answer within {TIMEOUT_NS // NS_PER_S} s ({self.engine.trouble()}){perhaps}",
        )

    def stop_waiting(self) -> None:
        """Fail publishes to topics that cannot be reached, because the broker stops.

        Such a topic does not come back before the end. If a topic can be reached and has the block,
        its publishes still wait for their answer.
        """
        self._stopping = True
        if not self._planned:
            self._planned = True
            self.loop.call_soon(self._send)

    def _give_up_lost(self) -> None:
        for lane in self.engine.lanes.values():
            if lane.link.waiting and lane.session.unanswered:
                lane.link.give_up(self._too_late_to_reach())

    def _too_late_to_reach(self) -> ZsqError:
        return Refused(E_CLOSING, "the broker is stopping; the message may or may not be stored")

    async def finish(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` until all publishes are answered, then stop."""
        self._send()
        await self._turner.wait(lambda: self.idle, time.monotonic_ns() + int(timeout_s * 1e9))
        self._look.cancel()
        self._turner.stop(linger_ms=200)

    def statistics(self) -> dict[str, int]:
        return {
            "published_messages": self.messages,
            "published_blocks": self.blocks,
            "pending_bytes": self.pending_bytes,
        }


def _all_of(answer: Answer, parts: int) -> Answer:
    """Return the function to call with the answer to each part.

    After the last part, that function calls `answer` with the first failure's reason, or "".
    """
    left, first = parts, ""

    def part(why: str) -> None:
        nonlocal left, first
        left -= 1
        first = first or why
        if not left:
            answer(first)

    return part
