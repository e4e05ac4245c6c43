"""Which channel gets which block from the topic's hands: a small ring of the newest durable blocks, and each channel's place in it. Pure.

A channel attaches where it is and grants a running total of bytes. While it is within the ring it is sent runs of
consecutive blocks; once what it wants has left the ring it is told so (Behind) and reads from storage. A slow
channel therefore costs nothing here but a row.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ..transport.block import Block, with_place
from ..transport.protocol import RUN_BYTES_MAX
from . import options

Peer = tuple[bytes, ...]
_RUN_BLOCKS_MAX = 256


@dataclass(slots=True)
class _Place:
    next_offset: int = -1  # -1: wants nothing
    number: int = 0  # of the block in the order of arrival, where `next_offset` is
    granted: int = 0
    sent: int = 0


class Fanout:
    """`head`: the durable end. `visible_end`: what channels may see of it (a paused topic's is fixed; -1: all)."""

    def __init__(self, head: int, visible_end: int = -1) -> None:
        self.head = head
        self.visible_end = visible_end
        self._ring: deque[Block] = deque()
        self._ring_bytes = 0
        self._first_number = 0  # of the oldest block in the ring
        self._places: dict[Peer, _Place] = {}

    @property
    def end(self) -> int:
        return self.head if self.visible_end < 0 else min(self.head, self.visible_end)

    def add(self, block: Block, first_offset: int, time_ns: int) -> None:
        """A block became durable. Storage tells of all that lies before it first, so heads never fall."""
        assert first_offset >= self.head
        placed = with_place(block, first_offset, time_ns)
        self._ring.append(placed)
        self._ring_bytes += placed.length
        self.head = placed.next_offset

    def advance(self, head: int) -> bool:
        """Blocks became durable that never were in the topic's hands (a commit in storage): channels read them there. False if not new.

        Nothing in the ring is next to what comes now, so it goes; and a number is left out for what is not here: who waits there is behind.
        """
        if head <= self.head:
            return False
        self.head = head
        self._first_number += len(self._ring) + 1
        self._ring.clear()
        self._ring_bytes = 0
        for place in self._places.values():
            if place.next_offset >= head:  # it has read them already
                place.number = self._first_number
        return True

    def trim(self) -> None:
        """After `offers`: keep the ring within its bytes; all of it goes while nobody is attached."""
        keep = options.RING_BYTES_MAX if any(place.next_offset >= 0 for place in self._places.values()) else 0
        while self._ring and self._ring_bytes > keep:
            self._ring_bytes -= self._ring.popleft().length
            self._first_number += 1

    def attach(self, peer: Peer, next_offset: int, granted: int) -> bool:
        """The channel wants what comes from `next_offset` on (-1: nothing). False: that is behind the ring."""
        place = self._places.setdefault(peer, _Place())
        if next_offset < 0:
            place.next_offset = -1
            return True
        place.granted = granted
        # It may have been given up and be new here: what was sent to it before, it knows, and its window bounds what it grants.
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
        if next_offset >= self.end:  # a paused topic's: storage would show it nothing either, so it waits here
            place.next_offset, place.number = next_offset, self._first_number - 1
            return True
        place.next_offset = -1
        return False

    def credit(self, peer: Peer, granted: int) -> bool:
        """False: it has no place here. It was given up and cannot know that: tell it that it is behind."""
        place = self._places.get(peer)
        if place is not None:
            place.granted = max(place.granted, granted)
        return place is not None

    def detach(self, peer: Peer) -> None:
        self._places.pop(peer, None)

    def offers(self) -> list[tuple[Peer, list[Block]]]:
        """(channel, consecutive blocks) to send now; an empty list means: tell it that it is behind."""
        out: list[tuple[Peer, list[Block]]] = []
        last = self._first_number + len(self._ring)
        end = self.end
        for peer, place in self._places.items():
            if not 0 <= place.next_offset < end or place.number >= last or place.granted <= place.sent:
                continue
            if place.number < self._first_number:
                place.next_offset = -1
                out.append((peer, []))
                continue
            self._runs(peer, place, last, out)
        return out

    def _runs(self, peer: Peer, place: _Place, last: int, out: list[tuple[Peer, list[Block]]]) -> None:
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
