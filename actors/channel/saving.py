"""A channel's commits: one is out at a time, what comes meanwhile goes with the next. Pure.

Who wants to be told that something is durable (a finish with a request number, an order) is answered with the first commit that begins
after it was said.
"""

from __future__ import annotations

from typing import Any, TypedDict

from ...storage.state.channel_row import ChannelRow
from ...transport.errors import E_LIMIT, UsageError
from ...transport.wire.protocol import Save, Wire
from ..settings import options
from .lease import Changes, Peer, save_pages

_FAR_MS = 1 << 30
Barrier = tuple[Peer, Wire]


class OrderAnswer(TypedDict, total=False):
    """What is answered to an order once it is durable. `offset`: where a seek went; `settings`: those that hold now."""

    offset: int
    settings: dict[str, Any]


Answered = tuple[int, OrderAnswer]


class Saving:
    """`out`: request of the Save on its way, 0 for none; `now`: the next one shall begin as soon as it can."""

    def __init__(self, channel: str) -> None:
        self._channel = channel
        self.out = 0
        self.now = True
        self._due_ns = 0  # when what changed shall be committed, though nobody waits
        self._barriers: list[Barrier] = []
        self._barriers_out: list[Barrier] = []
        self._orders: list[Answered] = []
        self._orders_out: list[Answered] = []

    def is_due(self, dirty: bool, now_ns: int) -> bool:
        """Begin a commit now: somebody waits, or something changed a while ago. No timer runs while nothing changes."""
        if dirty and not self._due_ns:
            self._due_ns = now_ns + options.SAVE_INTERVAL_MS * 1_000_000
        return self.now or (self._due_ns > 0 and now_ns >= self._due_ns)

    def wait_ms(self, now_ns: int) -> int:
        """Until the next commit is due, as far as is known."""
        if not self._due_ns or self.out:
            return _FAR_MS
        return max(0, (self._due_ns - now_ns) // 1_000_000 + 1)

    @property
    def waited_for(self) -> bool:
        """Somebody waits for a commit that has not begun."""
        return bool(self._barriers or self._orders)

    def confirm(self, envelope: Peer, answer: Wire) -> None:
        """Send this when all that was said so far is committed."""
        if len(self._barriers) >= options.WAITERS_MAX:
            raise UsageError(E_LIMIT, "too many answers wait for their commit already")
        self._barriers.append((envelope, answer))
        self.now = True

    def answer(self, request: int, data: OrderAnswer) -> None:
        """The same to the supervisor's order; `data` may still be changed until then."""
        self._orders.append((request, data))
        self.now = True

    def orders(self) -> list[OrderAnswer]:
        """The answers that wait."""
        return [data for _, data in (*self._orders, *self._orders_out)]

    def begin(self, request: int, changes: Changes, row: ChannelRow) -> list[Save]:
        """The words of the commit that begins."""
        assert not self.out
        self.out, self.now, self._due_ns = request, False, 0
        self._barriers_out, self._barriers = self._barriers, []
        self._orders_out, self._orders = self._orders, []
        return save_pages(request, self._channel, row, changes)

    def done(self) -> tuple[list[Barrier], list[Answered]]:
        """The commit on its way is on disk: who is to be told."""
        self.out = 0
        told = self._barriers_out, self._orders_out
        self._barriers_out, self._orders_out = [], []
        return told
