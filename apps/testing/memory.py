"""Topics and channels in memory, for `MemoryBroker`. No I/O.

A channel is the broker's own channel logic (`actors/channel/core.py`): leases, attempts,
redelivery, filters and dead letters are the product's code, and so is the text of a dead letter.
What the broker's other processes do for it is done here at once: the feed of blocks, the commits,
the store of deferred messages, and the publishing of dead letters.
"""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ...actors.channel.core import ChannelCore
from ...actors.channel.dead_letters import letters
from ...actors.channel.deferred import Row
from ...actors.channel.lease import Changes, OutgoingDelivery, Peer
from ...actors.primitives.ranges import ranges_of
from ...actors.settings import channel_settings, options
from ...actors.storage.aging import aged_block
from ...storage.delayed.delayed_format import DelayedKey, DelayedRow
from ...storage.state.channel_row import ChannelRow
from ...transport.block.block import Block, cut, with_place
from ...transport.errors import ZsqError
from ...transport.settings import NONE, SettingValue
from ...transport.wire.answers import DelayedRow as ListedRow
from ...transport.wire.lifetime import revoke_keys
from ...transport.wire.protocol import Range, Save, Wire
from .memory_ids import MemoryIds

Send = Callable[[OutgoingDelivery], None]
ROUNDS_MAX: Final = 100_000
"""More rounds of work than this without an end are a defect."""


class MemoryChannel:
    """One channel. `send` gets its deliveries."""

    def __init__(
        self,
        topic: MemoryTopic,
        name: str,
        own: Mapping[str, SettingValue],
        begin: int,
        number: int,
        send: Send,
    ) -> None:
        self.topic = topic
        self.name = name
        self.own = dict(own)
        self._send = send
        settings = channel_settings.resolve(own)
        self.core = ChannelCore(
            number, begin, (), {}, paused=False, settings=settings, channel=name
        )
        self.core.set_lifetime(topic.expires_s)
        self.row = ChannelRow(begin)
        # The rows of deferred messages: first offset -> (count, attempts, due time).
        self._deferred: dict[int, tuple[int, int, int]] = {}

    def depth(self) -> int:
        """Return the number of messages that wait for a consumer."""
        return int(self.core.statistics(self.topic.head)["depth"])

    def unfinished(self) -> int:
        """Return the number of messages that this channel has not finished."""
        report = self.core.statistics(self.topic.head)
        held = ("depth", "in_flight_count", "deferred_count", "dying_count", "parked_count")
        return sum(int(report.get(name, 0)) for name in held)  # type: ignore[call-overload]

    def work(self, now_ns: int, publish: Callable[[str, Sequence[Block]], None]) -> bool:
        """Do what is due and possible now. Return True if anything was done."""
        self.core.rest()
        done = self.core.scan(now_ns, now_ns)
        for _ in range(ROUNDS_MAX):
            worked = [
                self._commit(),
                self._fetch(),
                self._came_due(now_ns),
                self._feed(),
                self._deliver(now_ns),
                self._bury(now_ns, publish),
            ]
            if not any(worked):
                return done
            done = True
        raise AssertionError(f"channel {self.topic.name}/{self.name} does not come to rest")

    def skip(
        self, offsets: Sequence[int], *, preview: bool
    ) -> tuple[list[Range], list[tuple[Peer, list[Range]]]]:
        """Skip messages. Return what was not finished, and what to tell the consumers."""
        supply, core = self.core.supply, self.core
        wanted = ranges_of(offsets)
        rows: list[Row] = [
            (start, *row)
            for start, row in self._deferred.items()
            if any(first < start + row[0] and start < first + count for first, count in wanted)
        ]
        ranges = core.unfinished(wanted, rows, self.topic.head)
        if preview or not ranges:
            return ranges, []
        _, told = core.skip_messages(ranges, rows)
        supply.dirty = True
        return ranges, told

    def _commit(self) -> bool:
        supply = self.core.supply
        if not (supply.dirty or supply.moving or self.core.waits_for_commit()):
            return False
        self._save(self.core.changes())
        supply.committed()
        return True

    def _save(self, changes: Changes) -> None:
        """Keep the deferred rows, as the state store does, and say which messages have ended."""
        before, emptied = self.row, tuple(self.core.supply.emptied)
        self.row = ChannelRow(changes.next_offset, emptied=emptied)
        page = Save(0, self.name, {}, changes.holes_put, changes.holes_gone, changes.clear, False)
        self.topic.ids.locks.saved(self.name, before, self.row, [page])
        if changes.clear:
            self._deferred.clear()
        for start in changes.holes_gone:
            self._deferred.pop(start, None)
        for start, count, attempts, due_ns in changes.holes_put:
            self._deferred.pop(start, None)
            if due_ns:
                self._deferred[start] = (count, attempts, due_ns)

    def _fetch(self) -> bool:
        wanted = sorted(self.core.supply.wanted)
        for offset in wanted:
            self.core.supply.shelve(self.topic.block_at(offset))
        return bool(wanted)

    def _came_due(self, now_ns: int) -> bool:
        supply = self.core.supply
        if not self.core.may_ask():
            return False
        rows: list[Row] = [(start, *row) for start, row in self._deferred.items()]
        due = sorted((row for row in rows if row[3] <= now_ns), key=lambda row: row[3])
        due = due[: options.DUE_ROWS_MAX]
        starts = {row[0] for row in due}
        later = [row[3] for row in rows if row[0] not in starts]
        supply.deferred.ask(1)
        supply.deferred.answered(1)
        supply.came_due(due, min(later, default=0), now_ns)
        return bool(due)

    def _feed(self) -> bool:
        supply, end, done = self.core.supply, self.topic.visible_end, False
        while (
            self.core.is_wanted()
            and supply.window_end < end
            and supply.window_bytes < options.WINDOW_BYTES_MAX
        ):
            supply.offer(self.topic.block_at(supply.window_end))
            done = True
        return done

    def _deliver(self, now_ns: int) -> bool:
        done = False
        while (delivery := self.core.next_delivery(now_ns, now_ns)) is not None:
            self._send(delivery)
            done = True
        if self.core.has_more():
            self.core.rest()
            return True
        return done or bool(self.core.supply.wanted)  # their blocks are fetched in the next round

    def _bury(self, now_ns: int, publish: Callable[[str, Sequence[Block]], None]) -> bool:
        """Publish dead letters. If they cannot be published, they wait, as at a broker."""
        supply = self.core.supply
        if not supply.dying.waiting:
            return False
        topic = self.topic
        batch = supply.next_dead()
        if not batch:
            return bool(supply.wanted)
        blocks = letters(batch, topic.name, topic.uuid, self.name, now_ns)
        try:
            where = channel_settings.dead_letter_topic(topic.name, self.name, supply.settings)
            publish(where, blocks)
        except ZsqError:
            supply.dying.take_back()
            return False
        supply.dead()
        return True


class _MemoryProducer:
    """The memory of one producer in a topic: the next sequence, and its last answers."""

    def __init__(self) -> None:
        self.expected = 0
        self.answers: dict[int, Wire] = {}  # sequence -> answer


class MemoryTopic:
    """One topic: its log, its delayed messages and its channels."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.uuid = uuid.uuid4().hex
        self.expires_s: float = NONE
        self.ids = MemoryIds(self)
        self.closed = ""
        self.channels: dict[str, MemoryChannel] = {}
        self.producers: dict[int, _MemoryProducer] = {}
        self.blocks: list[Block] = []
        self.head = 0
        self.paused_at = -1  # the end up to which channels see messages, or -1 without a pause
        self.waiting = 0  # where the first channel begins
        self._firsts: list[int] = []
        self._delayed: dict[DelayedKey, Block] = {}  # one message each
        self._serial = 0

    def all_rows(self) -> dict[str, ChannelRow]:
        """Return what the channels have committed."""
        return {name: channel.row for name, channel in self.channels.items()}

    @property
    def visible_end(self) -> int:
        return self.head if self.paused_at < 0 else self.paused_at

    def block_at(self, offset: int) -> Block:
        return self.blocks[bisect_right(self._firsts, offset) - 1]

    def append(self, block: Block, now_ns: int) -> int:
        """Store a block and return its first offset."""
        first = self.head
        self.blocks.append(with_place(block, first, now_ns))
        self._firsts.append(first)
        self.head += block.count
        return first

    def producer(self, number: int) -> _MemoryProducer:
        return self.producers.setdefault(number, _MemoryProducer())

    def unfinished(self) -> int:
        """Return the number of unfinished messages, as a deletion counts them."""
        counts = [channel.unfinished() for channel in self.channels.values()]
        return len(self._delayed) + max(counts, default=self.head - self.waiting)

    def begin(self, start: channel_settings.Start) -> int:
        """Return the offset at which a new channel begins."""
        end = self.visible_end
        if start is None:
            return end if self.channels else self.waiting
        if isinstance(start, dict):
            start = self.offset_at(start["time_ns"])
        if isinstance(start, int):
            return min(start, end)
        return 0 if start == "earliest" else end

    def offset_at(self, time_ns: int) -> int:
        """Return the first offset that was stored at this time or later."""
        offsets = (block.first_offset for block in self.blocks if block.header.time_ns >= time_ns)
        return next(offsets, self.head)

    # Delayed messages

    def delay(self, block: Block, due_ns: int) -> DelayedKey:
        """Keep a block until it is due. Return the key of its first message."""
        first = DelayedKey(due_ns, self._serial)
        for index in range(block.count):
            key = DelayedKey(due_ns, self._serial + index)
            self._delayed[key] = cut(block, index, index + 1)
        self._serial += block.count
        return first

    def move_due(self, now_ns: int) -> bool:
        """Append the delayed messages that are due. Return True if there were any."""
        due = sorted(key for key in self._delayed if key.due_ns <= now_ns)
        for key in due:
            self.append(aged_block(DelayedRow(key, self._delayed.pop(key)), now_ns), now_ns)
        return bool(due)

    def delayed_rows(self, after: DelayedKey | None, limit: int) -> list[ListedRow]:
        keys = sorted(key for key in self._delayed if after is None or key > after)
        return [self._listed(key) for key in keys[:limit]]

    def _listed(self, key: DelayedKey) -> ListedRow:
        block = self._delayed[key]
        body = bytes(block.body.value(0) or b"")
        tag, message_key = (
            None if column is None else column.value(0) for column in (block.tag, block.key)
        )
        return {
            "delayed_key": key.text(), "due_ns": key.due_ns, "size": len(body),
            "body": body[: options.DELAYED_LIST_BODY_BYTES], "key": message_key, "tag": tag,
        }  # fmt: skip

    def delayed_count(self) -> dict[str, Any]:
        keys = self._delayed.keys()
        return {
            "messages": len(keys),
            "bytes": sum(block.length for block in self._delayed.values()),
            "next_due_ns": min((key.due_ns for key in keys), default=0),
            "lost": 0,
        }

    def cancel_with(self, keys: frozenset[str]) -> int:
        """Cancel the delayed messages with these revoke keys. Return their number."""
        gone = [
            key for key, block in self._delayed.items() if keys.intersection(revoke_keys(block))
        ]
        return len(self.cancel(gone))

    def cancel(self, keys: Sequence[DelayedKey] | None) -> list[bool]:
        """Cancel these delayed messages, or all of them."""
        return [
            self._delayed.pop(key, None) is not None
            for key in (list(self._delayed) if keys is None else keys)
        ]
