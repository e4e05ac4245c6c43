"""Commits of a channel, one at a time. Changes made during a commit go with the next one. No I/O.

A finish with a request number is answered when it is durable. The same holds for an order of the
supervisor. Both are durable after a commit that began after they arrived.
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
    """The commits of one channel.

    `out` is the request number of the Save on its way, or 0. If `now` is True, the next commit
    begins as soon as possible.
    """

    def __init__(self, channel: str) -> None:
        self._channel = channel
        self.out = 0
        self.now = True
        self._due_ns = 0  # latest time of the next commit, 0 if nothing changed
        self._barriers: list[Barrier] = []
        self._barriers_out: list[Barrier] = []
        self._answers: list[Answered] = []
        self._answers_out: list[Answered] = []

    def is_due(self, dirty: bool, now_ns: int) -> bool:
        """Return True if a commit should begin now.

        A commit should begin if an answer waits for it, or if a change has waited for
        `SAVE_INTERVAL_MS`. No timer runs while nothing changes.
        """
        if dirty and not self._due_ns:
            self._due_ns = now_ns + options.SAVE_INTERVAL_MS * 1_000_000
        return self.now or (self._due_ns > 0 and now_ns >= self._due_ns)

    def wait_ms(self, now_ns: int) -> int:
        """Return the time until the next commit is due, as far as is known."""
        if not self._due_ns or self.out:
            return _FAR_MS
        return max(0, (self._due_ns - now_ns) // 1_000_000 + 1)

    @property
    def waited_for(self) -> bool:
        """True if an answer waits for a commit that has not begun."""
        return bool(self._barriers or self._answers)

    def confirm(self, envelope: Peer, answer: Wire) -> None:
        """Send this answer to a consumer when everything that arrived so far is committed."""
        if len(self._barriers) >= options.WAITERS_MAX:
            text = (
                f"{options.WAITERS_MAX} replies wait for a commit, which is the limit; wait for "
                "replies before you send more"
            )
            raise UsageError(E_LIMIT, text)
        self._barriers.append((envelope, answer))
        self.now = True

    def answer(self, answer: Answered) -> None:
        """Send this answer to the supervisor when everything that arrived so far is committed."""
        self._answers.append(answer)
        self.now = True

    def dropped(self, start: int) -> None:
        """Correct the waiting answers to seeks, because messages below `start` are gone.

        The storage may decide to drop messages before a seek to them arrives. The seek is then
        answered with the position that the channel really has.
        """
        for waiting in (self._answers, self._answers_out):
            waiting[:] = [
                replace(one, offset=max(one.offset, start)) if isinstance(one, Position) else one
                for one in waiting
            ]

    def begin(self, request: int, changes: Changes, row: ChannelRow) -> list[Save]:
        """Begin a commit and return its messages."""
        assert not self.out
        self.out, self.now, self._due_ns = request, False, 0
        self._barriers_out, self._barriers = self._barriers, []
        self._answers_out, self._answers = self._answers, []
        return save_pages(request, self._channel, row, changes)

    def done(self) -> tuple[list[Barrier], list[Answered]]:
        """Note that the commit is on disk, and return the answers to send."""
        self.out = 0
        told = self._barriers_out, self._answers_out
        self._barriers_out, self._answers_out = [], []
        return told
