"""Orders of users to skip messages, until the storage has said which of these are deferred. No I/O.

Deferred messages are only in the state store (`deferred.py`). So an order waits here while the
channel has some. The storage is asked while no other answer about deferred rows is awaited, because
the answer must say what the channel does not have.
"""

from __future__ import annotations

from collections import deque

from ...transport.errors import E_LIMIT, Refused
from ...transport.wire.protocol import SkipMessages
from ..primitives.ranges import ranges_of
from ..settings import options
from .deferred import Deferred


class Skips:
    """The waiting orders of one channel. `deferred` are its deferred messages."""

    def __init__(self, deferred: Deferred) -> None:
        self._deferred = deferred
        self._orders: deque[SkipMessages] = deque()
        self._asked = 0  # number of the unanswered request

    def add(self, order: SkipMessages) -> None:
        """Let an order wait. Raises `Refused` (E_LIMIT) if too many wait."""
        if len(self._orders) >= options.FETCHES_MAX:
            text = f"the limit of {options.FETCHES_MAX} waiting orders to skip messages is reached"
            raise Refused(E_LIMIT, f"{text}; try again later")
        self._orders.append(order)

    def wanted(self) -> tuple[int, ...]:
        """Return the offsets to ask the storage about now, or () if it must not be asked."""
        if not self._orders or self._asked or not self._deferred.is_settled():
            return ()
        offsets = self._orders[0].offsets
        return () if self._deferred.is_on_way(ranges_of(offsets)) else offsets

    def ask(self, request: int) -> None:
        """Note that the request is sent."""
        self._asked = request
        self._deferred.ask(request)

    def answered(self, request: int) -> SkipMessages | None:
        """Return the order that can be carried out with this reply, or None.

        It is asked again if the channel was moved meanwhile, or if one of the messages was deferred
        meanwhile.
        """
        if not self._asked or request != self._asked:
            return None
        self._asked = 0
        if not self._deferred.answered(request):
            return None
        if self._deferred.is_on_way(ranges_of(self._orders[0].offsets)):
            return None
        return self._orders.popleft()

    def failed(self, request: int) -> int:
        """Return the number of the failed order, or 0 if the request does not belong to one."""
        if not self._asked or request != self._asked:
            return 0
        self._asked = 0
        return self._orders.popleft().request
