"""Questions: requests of clients that wait until a gateway sends them to the supervisor. Pure.

All clients of a gateway share one connection to the supervisor, which answers in the order in which
requests arrive. So the gateway sends only a few requests of each holder ahead, and the others wait
here. The holders take turns. A holder is a user, or a link if the client shows no user. So however
much one of them asks, the others wait for a few requests only.

The number and the bytes of the requests of a holder are bounded. Requests of a link that has ended
are dropped, except those that the supervisor has already. Questions for the same statistics that a
holder asks while they wait become one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final, NamedTuple

from .limiter import Bound, Limiter

UNANSWERED: Final = Bound(20_000, 2_000)
UNANSWERED_BYTES: Final = Bound(64 * 1024 * 1024, 8 * 1024 * 1024)
AHEAD_MAX: Final = 32  # the most requests of a holder that the supervisor has at the same time
# An answer that has not come within this time never comes. All requests end earlier.
PATIENCE_NS: Final = 120_000_000_000


class WaitingClient(NamedTuple):
    """A client that waits for an answer. `request` is its own number of the request."""

    client: bytes
    request: int


class _Question:
    """A request, with all clients that wait for its answer and the bytes counted for each."""

    __slots__ = ("askers", "frames", "holder", "same", "sent_ns")

    def __init__(self, holder: str, same: Hashable, frames: Sequence[Any]) -> None:
        self.holder = holder
        self.same = same
        self.frames = frames
        self.askers: dict[WaitingClient, int] = {}
        self.sent_ns = 0


class Questions:
    """The requests that are not answered yet."""

    def __init__(
        self,
        unanswered: Bound = UNANSWERED,
        unanswered_bytes: Bound = UNANSWERED_BYTES,
        ahead_max: int = AHEAD_MAX,
    ) -> None:
        self._count = Limiter("unanswered requests", unanswered, "wait for the answers")
        self._bytes = Limiter(
            "bytes of unanswered requests", unanswered_bytes, "wait for the answers"
        )
        self._ahead_max = ahead_max
        self._ticket = 0
        # In the order of asking: by holder, and of each client.
        self._waiting: dict[str, dict[_Question, None]] = {}
        self._of_client: dict[bytes, dict[_Question, None]] = {}
        self._same: dict[Hashable, _Question] = {}
        self._turns: dict[str, None] = {}  # the holders that may send now, the next one first
        self._sent: dict[int, _Question] = {}
        self._ahead: dict[str, int] = {}

    def __len__(self) -> int:
        return self._count.taken

    def ask(
        self,
        holder: str,
        asker: WaitingClient,
        frames: Sequence[Any],
        size: int,
        same: Hashable = None,
    ) -> None:
        """Let a request wait for its turn.

        `frames` are what `next` returns. `same`: requests with an equal value need one answer, or
        None. Raises `Refused` (E_LIMIT).
        """
        self._count.take(holder)
        try:
            self._bytes.take(holder, size)
        except Exception:
            self._count.give_back(holder)
            raise
        key = None if same is None else (holder, same)
        question = self._same.get(key) if key is not None else None
        if question is None or asker in question.askers:
            question = _Question(holder, key, frames)
            self._waiting.setdefault(holder, {})[question] = None
            if key is not None:
                self._same[key] = question
            if self._ahead.get(holder, 0) < self._ahead_max:
                self._turns.setdefault(holder)
        question.askers[asker] = size
        self._of_client.setdefault(asker.client, {})[question] = None

    def next(self, now_ns: int) -> tuple[int, Sequence[Any]] | None:
        """Return the request to send now, with the ticket that its answer must carry."""
        holder = next(iter(self._turns), None)
        if holder is None:
            return None
        del self._turns[holder]
        question = next(iter(self._waiting[holder]))
        self._remove(question)
        self._ticket += 1
        self._sent[self._ticket] = question
        question.sent_ns = now_ns
        self._ahead[holder] = self._ahead.get(holder, 0) + 1
        self._give_turn(holder)
        return self._ticket, question.frames

    def asked(self, ticket: int) -> Sequence[Any]:
        """Return the frames of the request with this ticket, or none if it is not known."""
        question = self._sent.get(ticket)
        return () if question is None else question.frames

    def answered(self, ticket: int) -> list[WaitingClient]:
        """Return the clients that wait for the answer with this ticket."""
        question = self._sent.pop(ticket, None)
        if question is None:
            return []
        holder = question.holder
        self._ahead[holder] -= 1
        if not self._ahead[holder]:
            del self._ahead[holder]
        self._give_turn(holder)
        askers = list(question.askers)
        for asker in askers:
            self._forget(question, asker)
        return askers

    def left(self, client: bytes) -> None:
        """Drop what waits for a client that is gone."""
        for question in self._of_client.pop(client, ()):
            for asker in [asker for asker in question.askers if asker.client == client]:
                self._give_back(question.holder, question.askers.pop(asker))
            if not question.askers and not question.sent_ns:
                self._remove(question)

    def waiting(self) -> list[Sequence[Any]]:
        """Return the frames of all requests that were not sent."""
        return [question.frames for own in self._waiting.values() for question in own]

    def expire(self, now_ns: int) -> list[int]:
        """Forget requests whose answer does not come, and return their tickets."""
        late = [
            ticket
            for ticket, question in self._sent.items()
            if now_ns - question.sent_ns > PATIENCE_NS
        ]
        for ticket in late:
            self.answered(ticket)
        return late

    def _give_turn(self, holder: str) -> None:
        if holder in self._waiting and self._ahead.get(holder, 0) < self._ahead_max:
            self._turns.setdefault(holder)

    def _remove(self, question: _Question) -> None:
        """Let a question wait no more."""
        waiting = self._waiting[question.holder]
        del waiting[question]
        if not waiting:
            del self._waiting[question.holder]
            self._turns.pop(question.holder, None)
        if self._same.get(question.same) is question:
            del self._same[question.same]

    def _forget(self, question: _Question, asker: WaitingClient) -> None:
        self._give_back(question.holder, question.askers.pop(asker))
        own = self._of_client.get(asker.client)
        if own is not None:
            own.pop(question, None)
            if not own:
                del self._of_client[asker.client]

    def _give_back(self, holder: str, size: int) -> None:
        self._count.give_back(holder)
        self._bytes.give_back(holder, size)
