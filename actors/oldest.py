"""When the oldest message came that a channel has not finished, for all channels of a topic. Pure.

Storage knows it best: it has the committed cursor of each channel, offline ones included, and the log. One look at a header is needed
where a channel's first unfinished message lies in another block than before; channels at the same place share it, and there is a bound for
each call, beyond which the others keep what was known, and so look older than they are for a few seconds. Nothing is read for a channel
that does not move, or has nothing.

Rejected: asking the channels. Those without a consumer do not hear of new messages, and each would have to ask storage anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from ..transport.block import Header

LOOKS_MAX: Final = 100  # headers read for one pulse: 20 to 50 microseconds each


class Floor(NamedTuple):
    """`channel` has finished all below `offset`, and may see what lies below `end`."""

    channel: str
    offset: int
    end: int


class OldestTimes:
    """`header_at`: of the block that holds an offset, or of the first after it; None where that cannot be said now."""

    def __init__(self, header_at: Callable[[int], Header | None]) -> None:
        self._header_at = header_at
        self._known: dict[str, tuple[int, int, int]] = {}  # channel -> first offset, next offset, time of a block
        self._turn = 0

    def refresh(self, floors: Iterable[Floor]) -> dict[str, int]:
        """Time (ns since 1970) by channel, of those that have something unfinished of which it is known."""
        waiting = {floor.channel: floor for floor in floors if floor.offset < floor.end}
        self._known = {channel: row for channel, row in self._known.items() if channel in waiting}
        moved = sorted((floor for floor in waiting.values() if not self._holds(floor)), key=lambda floor: floor.offset)
        begin = self._turn % len(moved) if len(moved) > LOOKS_MAX else 0
        self._look(moved[begin:] + moved[:begin])
        return {channel: row[2] for channel, row in self._known.items()}

    def _holds(self, floor: Floor) -> bool:
        first, following, _ = self._known.get(floor.channel, (0, 0, 0))
        return first <= floor.offset < following

    def _look(self, floors: Iterable[Floor]) -> None:
        looks = 0
        first = following = time_ns = 0
        for floor in floors:
            if not first <= floor.offset < following:
                if looks == LOOKS_MAX:
                    return
                looks += 1
                self._turn += 1
                header = self._header_at(floor.offset)
                if header is None:
                    continue
                first, following, time_ns = min(header.first_offset, floor.offset), header.next_offset, header.time_ns
            self._known[floor.channel] = (first, following, time_ns)
