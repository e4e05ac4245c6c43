"""Commit queue of a channel: one commit at a time, and later changes go with the next. No I/O.

A finish with a request number is answered when it is durable. The same holds for an order of the
supervisor. Both are durable after a commit that began after they arrived.

While the lease of a primary is over, its standby may have taken over, and then nobody knows of the
commit. So finishes are not confirmed then. They are confirmed after a later commit, if the lease
holds again. Consumers of a broker that has lost never hear of them.
"""

from __future__ import annotations

from dataclasses import replace

from ...storage.state.channel_row import ChannelRow
from ...transport.errors import E_LIMIT, UsageError
from ...transport.units import NS_PER_MS
from ...transport.wire.protocol import Done, OrderAnswer, Position, Save, Wire
from ..settings import options
from .lease import Changes, Peer, save_pages

_FAR_MS = 1 << 30
WITHHELD_MS = 100  # the pause before the next commit while finishes are not confirmed
Barrier = tuple[Peer, Wire]
Answered = Done | OrderAnswer


class CommitQueue:
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
        self._withheld: list[Barrier] = []  # those of commits that may not be confirmed yet
        self._withheld_ns = 0  # when the next commit asks for them again
        self._answers: list[Answered] = []
        self._answers_out: list[Answered] = []

    def is_due(self, dirty: bool, now_ns: int) -> bool:
        """Return True if a commit should begin now.

        A commit should begin if an answer waits for it, or if a change has waited for
        `SAVE_INTERVAL_MS`. No timer runs while nothing changes and nothing is withheld.
        """
        if dirty and not self._due_ns:
            self._due_ns = now_ns + options.SAVE_INTERVAL_MS * NS_PER_MS
        again = bool(self._withheld) and now_ns >= self._withheld_ns
        return self.now or again or (self._due_ns > 0 and now_ns >= self._due_ns)

    def wait_ms(self, now_ns: int) -> int:
        """Return the time until the next commit is due, as far as is known."""
        due = [self._due_ns] if self._due_ns else []
        due += [self._withheld_ns] if self._withheld else []
        if not due or self.out:
            return _FAR_MS
        return max(0, (min(due) - now_ns) // NS_PER_MS + 1)

    @property
    def waited_for(self) -> bool:
        """True if an answer waits for a commit that has not begun."""
        return bool(self._barriers or self._answers)

    @property
    def is_idle(self) -> bool:
        """True if no commit is on its way, and no answer waits for one."""
        return not (self.out or self.waited_for or self._withheld)

    def has_committed(self, *, dirty: bool) -> bool:
        """Return True if everything that arrived so far is committed."""
        return self.is_idle and not self.now and not dirty

    def confirm(self, envelope: Peer, answer: Wire) -> None:
        """Send this answer to a consumer when everything that arrived so far is committed."""
        if len(self._barriers) + len(self._withheld) >= options.WAITERS_MAX:
            text = (
                f"{options.WAITERS_MAX} replies wait for a commit, which is the limit; wait for "
                "replies before you send more"
            )
            raise UsageError(E_LIMIT, text)
        self._barriers.append((envelope, answer))
        self.now = True

    def farewell(self, envelope: Peer, *words: Wire) -> None:
        """Send these last words to a consumer when everything that arrived so far is committed."""
        self._barriers += [(envelope, word) for word in words]
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
                replace(answer, offset=max(answer.offset, start))
                if isinstance(answer, Position)
                else answer
                for answer in waiting
            ]

    def begin(self, request: int, changes: Changes, row: ChannelRow) -> list[Save]:
        """Begin a commit and return its messages."""
        assert not self.out
        self.out, self.now, self._due_ns = request, False, 0
        self._barriers_out, self._barriers = self._barriers, []
        self._answers_out, self._answers = self._answers, []
        return save_pages(request, self._channel, row, changes)

    def done(self, now_ns: int, *, withholds: bool) -> tuple[list[Barrier], list[Answered]]:
        """Note that the commit is on disk, and return the answers to send.

        If `withholds` is True, no finish may be confirmed now.
        """
        self.out = 0
        barriers, answers = self._withheld + self._barriers_out, self._answers_out
        self._barriers_out, self._answers_out, self._withheld = [], [], []
        if withholds:
            barriers, self._withheld = [], barriers
            self._withheld_ns = now_ns + WITHHELD_MS * NS_PER_MS
        return barriers, answers
