"""A channel's commits: one is out at a time, what comes meanwhile goes with the next. Pure.

Who wants to be told that something is durable (a finish with a request number, an order) is answered with the first commit that begins
after it was said.
"""

from __future__ import annotations

from dataclasses import replace

from ...storage.state.channel_row import ChannelRow
from ...transport.errors import E_LIMIT, UsageError
from ...transport.wire.protocol import Done, OrderAnswer, Position, Save, Wire
from ..settings import options
from .lease import Changes, Peer, save_pages

_FAR_MS = 1 << 30
Barrier = tuple[Peer, Wire]
Answered = Done | OrderAnswer


class Saving:
    """`out`: request of the Save on its way, 0 for none; `now`: the next one shall begin as soon as it can."""

    def __init__(self, channel: str) -> None:
        self._channel = channel
        self.out = 0
        self.now = True
        self._due_ns = 0  # when what changed shall be committed, though nobody waits
        self._barriers: list[Barrier] = []
        self._barriers_out: list[Barrier] = []
        self._answers: list[Answered] = []
        self._answers_out: list[Answered] = []

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
        return bool(self._barriers or self._answers)

    def confirm(self, envelope: Peer, answer: Wire) -> None:
        """Send this when all that was said so far is committed."""
        if len(self._barriers) >= options.WAITERS_MAX:
            raise UsageError(E_LIMIT, "too many answers wait for their commit already")
        self._barriers.append((envelope, answer))
        self.now = True

    def answer(self, answer: Answered) -> None:
        """The same to the supervisor, for its order."""
        self._answers.append(answer)
        self.now = True

    def dropped(self, start: int) -> None:
        """Offsets below are gone: a seek that came after storage had decided is answered with where it really went."""
        for waiting in (self._answers, self._answers_out):
            waiting[:] = [replace(one, offset=max(one.offset, start)) if isinstance(one, Position) else one for one in waiting]

    def begin(self, request: int, changes: Changes, row: ChannelRow) -> list[Save]:
        """The words of the commit that begins."""
        assert not self.out
        self.out, self.now, self._due_ns = request, False, 0
        self._barriers_out, self._barriers = self._barriers, []
        self._answers_out, self._answers = self._answers, []
        return save_pages(request, self._channel, row, changes)

    def done(self) -> tuple[list[Barrier], list[Answered]]:
        """The commit on its way is on disk: who is to be told."""
        self.out = 0
        told = self._barriers_out, self._answers_out
        self._barriers_out, self._answers_out = [], []
        return told
