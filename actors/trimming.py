"""When a process gives freed memory back to the system (transport/memory.py keeps it otherwise). Pure.

Under load it would only be taken again, and a thousand idle channels shall not do it with each pulse: once when it is quiet again, and now
and then where something small comes all the time, like scan reports.
"""

from __future__ import annotations

from typing import Final

_NS: Final = 1_000_000_000
REST_NS: Final = 6 * _NS  # idle for so long, nothing more is let go of by itself: storage's ring keeps blocks for 5 s
BUSY_NS: Final = 30 * _NS  # between two times while it is never quiet, but no blocks come


class Trimming:
    """It owes one from the start on: what a process needed to come up."""

    __slots__ = ("_owed", "_since_ns", "_stirred_ns")

    def __init__(self, now_ns: int) -> None:
        self._stirred_ns = now_ns
        self._since_ns = now_ns  # it owes one, or did it last
        self._owed = True

    def due(self, now_ns: int, *, worked: bool, stirred: bool) -> bool:
        """Asked now and then, as with each pulse. `worked`: blocks came since it was asked last; `stirred`: anything."""
        if worked or stirred:
            self._since_ns = self._since_ns if self._owed else now_ns
            self._stirred_ns, self._owed = now_ns, True
        if worked or not self._owed or (stirred and now_ns - self._since_ns < BUSY_NS):
            return False
        self._since_ns = now_ns
        self._owed = now_ns - self._stirred_ns < REST_NS
        return True
