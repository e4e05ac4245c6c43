"""Fan-out of a topic: passes its durable blocks on to its channels.

The topic keeps a small ring of the newest durable blocks, and the place of each channel in it. A
channel attaches at its offset and grants a running total of bytes. While its offset is in the ring,
it receives runs of consecutive blocks. When the ring no longer holds the next block, the channel is
notified (Behind) and reads from the storage. So a slow channel takes only one row of memory here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ...transport.block.block import Block, with_place
from ...transport.wire.protocol import RUN_BYTES_MAX
from ..settings import options
from .ordering import Peer

_RUN_BLOCKS_MAX = 256


@dataclass(slots=True)
class _Place:
    next_offset: int = -1  # -1: the channel wants no blocks
    number: int = 0  # number, in order of arrival, of the block that holds `next_offset`
    granted: int = 0
    sent: int = 0


class Fanout:
    """The ring of durable blocks, and the channels that read from it.

    `head` is the end of the durable messages. `visible_end` is the end of what channels may see. It
    is fixed for a paused topic, and -1 means everything.
    """

    def __init__(self, head: int, visible_end: int = -1) -> None:
        self.head = head
        self.visible_end = visible_end
        self._ring: deque[Block] = deque()
        self._ring_bytes = 0
        self._first_number = 0  # number of the oldest block in the ring
        self._places: dict[Peer, _Place] = {}

    @property
    def end(self) -> int:
        return self.head if self.visible_end < 0 else min(self.head, self.visible_end)

    def add(self, block: Block, first_offset: int, time_ns: int) -> None:
        """Add a block that became durable.

        The storage reports everything before the block first, so the head never falls.
        """
        assert first_offset >= self.head
        placed = with_place(block, first_offset, time_ns)
        self._ring.append(placed)
        self._ring_bytes += placed.length
        self.head = placed.next_offset

    def advance(self, head: int) -> bool:
        """Note that blocks became durable that the fan-out never held.

        These are blocks of committed stages, and delayed messages that became due. Channels read
        them from the storage. The ring is cleared, because its blocks are not adjacent to the next
        one. One block number is skipped for the missing blocks, so channels that wait for them are
        found to be behind. Return False if the head is not new.
        """
        if head <= self.head:
            return False
        self.head = head
        self._first_number += len(self._ring) + 1
        self._ring.clear()
        self._ring_bytes = 0
        for place in self._places.values():
            if place.next_offset >= head:  # the channel has already read these blocks
                place.number = self._first_number
        return True

    def trim(self) -> None:
        """Reduce the ring to its size limit.

        Clear it if no channel is attached. Call it after `offers`.
        """
        keep = (
            options.RING_BYTES_MAX
            if any(place.next_offset >= 0 for place in self._places.values())
            else 0
        )
        while self._ring and self._ring_bytes > keep:
            self._ring_bytes -= self._ring.popleft().length
            self._first_number += 1

    def attach(self, peer: Peer, next_offset: int, granted: int) -> bool:
        """Let a channel receive blocks from `next_offset` on (-1: none).

        Return False if the ring no longer holds that offset.
        """
        place = self._places.setdefault(peer, _Place())
        if next_offset < 0:
            place.next_offset = -1
            return True
        place.granted = granted
        # A channel that was detached is new here, but its granted total includes the bytes that it
        # received before. It grants at most WINDOW_BYTES_MAX more than it received. So at least the
        # rest was sent.
        place.sent = max(place.sent, granted - options.WINDOW_BYTES_MAX)
        if next_offset >= self.head:
            place.next_offset, place.number = next_offset, self._first_number + len(self._ring)
            return True
        number = self._first_number + len(self._ring)
        for block in reversed(self._ring):
            number -= 1
            if block.first_offset <= next_offset:
                place.next_offset, place.number = next_offset, number
                return True
        # The topic is paused. The storage has no visible messages either, so the channel waits
        # here.
        if next_offset >= self.end:
            place.next_offset, place.number = next_offset, self._first_number - 1
            return True
        place.next_offset = -1
        return False

    def credit(self, peer: Peer, granted: int) -> bool:
        """Note the granted total. Return False if the channel has no place here.

        Such a channel was detached and does not know it, so the caller must answer Behind.
        """
        place = self._places.get(peer)
        if place is not None:
            place.granted = max(place.granted, granted)
        return place is not None

    def detach(self, peer: Peer) -> None:
        self._places.pop(peer, None)

    def offers(self) -> list[tuple[Peer, list[Block]]]:
        """Return the (channel, consecutive blocks) to send now.

        An empty list of blocks means that the channel must be notified that it is behind.
        """
        out: list[tuple[Peer, list[Block]]] = []
        last = self._first_number + len(self._ring)
        end = self.end
        for peer, place in self._places.items():
            if (
                not 0 <= place.next_offset < end
                or place.number >= last
                or place.granted <= place.sent
            ):
                continue
            if place.number < self._first_number:
                place.next_offset = -1
                out.append((peer, []))
                continue
            self._runs(peer, place, last, out)
        return out

    def _runs(
        self, peer: Peer, place: _Place, last: int, out: list[tuple[Peer, list[Block]]]
    ) -> None:
        run: list[Block] = []
        size = 0
        end = self.end
        while place.number < last and place.granted > place.sent:
            block = self._ring[place.number - self._first_number]
            if block.next_offset > end:
                break
            if run and (size + block.length > RUN_BYTES_MAX or len(run) >= _RUN_BLOCKS_MAX):
                out.append((peer, run))
                run, size = [], 0
            run.append(block)
            size += block.length
            place.sent += block.length
            place.number += 1
            place.next_offset = block.next_offset
        if run:
            out.append((peer, run))

    def places(self) -> list[Peer]:
        return list(self._places)
