"""A consumer's side of one channel as a state machine: deliveries, lease tokens, answers, barriers. Pure.

A delivery is a block under a lease; its token is good on the link it came by, and void as soon as that link is lost: the
channel then gives those messages to somebody. So a delivery carries the *epoch* of its link, and answers to one of an
older epoch are not sent but counted as stale.

Plain finishes cost one list append each, by whatever thread, without a lock (`list.append` is atomic; see `Delivery.finish`);
they become words, as ranges, when `collect` is called: at the next receive, or by the shell's timer. A finish is confirmed by a
barrier: a Fin with a request number for token 0 is answered when all before it on that link is committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

from .block import Block, check_columns
from .delivery import Delivery
from .errors import E_BAD_ARGUMENT, E_BAD_BLOCK, E_BAD_COMMAND, E_LEASE, LeaseLost, UsageError, ZsqError, from_wire
from .protocol import (
    HEARTBEAT_MS,
    MESSAGE_TIMEOUT_MS,
    PROTOCOL_VERSION,
    READY_MAX,
    Answer,
    Deliver,
    Failed,
    Fin,
    Range,
    Ready,
    Req,
    Sub,
    Subscribed,
    Touch,
    Wire,
)
from .rows import check_rows, heartbeat
from .session import Reaction

ALL: Final = -1  # a refused range (-1, 0): the whole delivery is not known any more


class ConsumerState(Enum):
    DOWN = "down"  # no link
    JOINING = "joining"  # Sub is sent
    OPEN = "open"  # deliveries come as the credit allows
    LEAVING = "leaving"  # Ready(0) is sent; what still comes goes back with Bye


class ConsumerEvent(Enum):
    BEGIN = "begin"  # a new link: Sub goes out
    SUBSCRIBED = "Subscribed"
    DELIVER = "Deliver"
    ANSWER = "Answer"
    LEAVE = "leave"  # Ready(0) goes out
    LOST = "link lost"


_S, _E = ConsumerState, ConsumerEvent
CONSUMER_TABLE: Final[dict[ConsumerState, dict[ConsumerEvent, ConsumerState]]] = {
    _S.DOWN: {_E.BEGIN: _S.JOINING, _E.LOST: _S.DOWN},
    _S.JOINING: {_E.SUBSCRIBED: _S.OPEN, _E.LOST: _S.DOWN},
    _S.OPEN: {_E.DELIVER: _S.OPEN, _E.ANSWER: _S.OPEN, _E.LEAVE: _S.LEAVING, _E.LOST: _S.DOWN},
    _S.LEAVING: {_E.DELIVER: _S.LEAVING, _E.ANSWER: _S.LEAVING, _E.LOST: _S.DOWN},
}


class Confirm:
    """A request on its way; `done`, then `refused` (ranges that were not ours any more) or `error`."""

    __slots__ = ("done", "error", "refused")

    def __init__(self) -> None:
        self.done = False
        self.refused: tuple[Range, ...] = ()
        self.error: ZsqError | None = None


class ConsumerSession:
    """One consumer of one channel. `ready`: how many messages it may hold."""

    def __init__(self, ready: int, message_timeout_ms: int = 0, label: str = "", sample_rate: int = 0) -> None:
        if not 0 < ready <= READY_MAX:
            raise UsageError(E_BAD_ARGUMENT, f"ready {ready} is outside of 1 to {READY_MAX}")
        self.state = _S.DOWN
        self.ready = ready
        self.label = label
        self.sample_rate = sample_rate
        self.wanted_timeout_ms = message_timeout_ms
        self.message_timeout_ms = message_timeout_ms or MESSAGE_TIMEOUT_MS
        self.heartbeat_ms = HEARTBEAT_MS
        self.epoch = 0
        self.arrived: deque[Delivery] = deque()  # not yet in the person's hands
        self.held: dict[int, Delivery] = {}  # by token, of this link, not fully answered
        self.dirty: deque[Delivery] = deque()  # with finishes to be told
        self.words: deque[Wire] = deque()  # to be sent
        self.confirms: dict[int, Confirm] = {}
        self.unconfirmed = 0  # plain finishes told on this link since the last confirmed barrier
        self.unconfirmed_lost = 0  # the same, of links that were lost; the next flush tells
        self.stale = 0  # answers that came too late
        self.stale_told = 0  # of those, how many a flush has told of
        self._request = 1
        self._told: dict[int, int] = {}  # request -> unconfirmed when it was sent

    # What goes out

    def begin(self, heartbeat_ms: int) -> Sub:
        """The first word on a new link."""
        self._step(_E.BEGIN)
        self._request += 1
        return Sub(self._request, PROTOCOL_VERSION, self.ready, self.wanted_timeout_ms, heartbeat_ms, self.label, self.sample_rate)

    def collect(self) -> deque[Wire]:
        """The words to send now, plain finishes first; the caller takes them out of the deque as it sends them."""
        dirty = self.dirty
        while dirty:
            delivery = dirty.popleft()
            delivery.queued = False
            count = len(delivery.finished)
            indexes = delivery.fresh(delivery.finished[:count])
            if indexes:
                self._fin(delivery, indexes, 0)
            del delivery.finished[:count]  # what another thread appends meanwhile stays
        return self.words

    @property
    def untold(self) -> int:
        """About how many finishes wait to be told."""
        dirty = self.dirty
        return dirty[0].block.count * len(dirty) if dirty else 0

    def _fin(self, delivery: Delivery, indexes: Sequence[int], request: int) -> None:
        if not self._answerable(delivery):
            self.stale += len(indexes)
            return
        if not indexes:  # all of it was told before: a barrier confirms that
            self.words.append(Fin(request, 0, ()))
            return
        self._note(delivery, indexes)
        self.unconfirmed += len(indexes)
        self.words.append(Fin(request, delivery.token, delivery.ranges(indexes)))

    def requeue(self, delivery: Delivery, indexes: Iterable[int], delay_ms: int, error: str = "") -> None:
        """`delay_ms` may be BACKOFF or DEAD."""
        self.collect()
        indexes = delivery.fresh(indexes)
        if not self._answerable(delivery):
            self.stale += len(indexes)
        elif indexes:
            self._note(delivery, indexes)
            self.words.append(Req(0, delivery.token, delivery.ranges(indexes), delay_ms, error))

    def touch(self, delivery: Delivery) -> None:
        if not self._answerable(delivery):
            self.stale += 1
        else:
            self.words.append(Touch(0, delivery.token))

    def finish_sync(self, delivery: Delivery, indexes: Iterable[int]) -> Confirm:
        """Finish with an answer. `LeaseLost` comes in the Confirm."""
        self.collect()
        confirm = Confirm()
        if not self._answerable(delivery):
            confirm.error = LeaseLost(E_LEASE, "the link by which this message came is gone; it may be delivered again, to somebody else")
            confirm.done = True
            return confirm
        self._request += 1
        self.confirms[self._request] = confirm
        self._fin(delivery, delivery.fresh(indexes), self._request)
        self._told[self._request] = self.unconfirmed
        return confirm

    def barrier(self) -> Confirm:
        """Answered when all that was told before is committed; done at once where there is nothing to wait for."""
        self.collect()
        confirm = Confirm()
        if self.state not in (_S.OPEN, _S.LEAVING) or not (self.words or self.unconfirmed):
            confirm.done = True
            return confirm
        self._request += 1
        self.confirms[self._request] = confirm
        self._told[self._request] = self.unconfirmed
        self.words.append(Fin(self._request, 0, ()))
        return confirm

    def leave(self) -> None:
        """No more deliveries, please."""
        if self.state is _S.OPEN:
            self._step(_E.LEAVE)
            self.words.append(Ready(0))

    def set_ready(self, ready: int) -> None:
        if not 0 <= ready <= READY_MAX:
            raise UsageError(E_BAD_ARGUMENT, f"ready {ready} is outside of 0 to {READY_MAX}")
        self.ready = ready
        if self.state is _S.OPEN:
            self.words.append(Ready(ready))

    # What comes in

    def on_word(self, word: Wire, blocks: list[Block], now_ns: int) -> Reaction:
        """`UsageError` or `CorruptBlock`: the link is to be restarted, nothing of this word was used."""
        if type(word) is Deliver:
            return self.on_deliver(word, blocks, now_ns)
        if type(word) is Answer:
            return self.on_answer(word)
        if type(word) is Subscribed:
            return self.on_subscribed(word)
        if type(word) is Failed:
            return self.on_failed(word)
        raise UsageError(E_BAD_COMMAND, f"a consumer does not take {type(word).__name__}")

    def on_subscribed(self, word: Subscribed) -> Reaction:
        self._step(_E.SUBSCRIBED)
        self.message_timeout_ms = word.message_timeout_ms
        self.heartbeat_ms = heartbeat(word.heartbeat_ms)
        return Reaction.UP

    def on_deliver(self, word: Deliver, blocks: list[Block], now_ns: int) -> Reaction:
        if len(blocks) != 1:
            raise UsageError(E_BAD_COMMAND, f"a delivery carries one block, not {len(blocks)}")
        block = blocks[0]
        check_columns(block.header, block.columns)
        check_rows(word.runs, 3, "runs (first offset, count, attempts) of a delivery")
        if any(run[1] < 1 for run in word.runs):
            raise UsageError(E_BAD_COMMAND, "a run of a delivery has a message")
        if sum(run[1] for run in word.runs) != block.count:
            raise UsageError(E_BAD_BLOCK, f"the runs of a delivery do not add up to its {block.count} messages")
        self._step(_E.DELIVER)
        if self.state is _S.LEAVING:
            return Reaction.NOTHING
        delivery = Delivery(self, word, block, self.epoch, now_ns)
        self.held[word.token] = delivery
        self.arrived.append(delivery)
        return Reaction.NOTHING

    def on_answer(self, word: Answer) -> Reaction:
        check_rows(word.refused, 2, "refused ranges")
        self._step(_E.ANSWER)
        confirm = self.confirms.pop(word.request, None)
        if confirm is None:
            delivery = self.held.get(word.token)
            every = delivery.block.count if delivery is not None else 1
            self.stale += sum(every if first == ALL else count for first, count in word.refused)
            return Reaction.NOTHING
        told = self._told.pop(word.request, 0)  # every request is a barrier: what was told before it is committed too
        self.unconfirmed = max(0, self.unconfirmed - told)
        self._told = {request: count - told for request, count in self._told.items()}
        if word.refused:
            confirm.error = LeaseLost(E_LEASE, "the lease ended before the finish came; the message was or will be delivered again")
        confirm.refused = word.refused
        confirm.done = True
        return Reaction.NOTHING

    def on_failed(self, word: Failed) -> Reaction:
        """Failed to Sub is the link's business; here it answers one of our requests."""
        confirm = self.confirms.pop(word.request, None)
        if confirm is not None:
            self._told.pop(word.request, None)
            confirm.error = from_wire(word.code, word.text)
            confirm.done = True
        return Reaction.NOTHING

    def lost(self) -> None:
        """The link is gone: so are all leases and what was not told."""
        self._step(_E.LOST)
        self.epoch += 1
        self.arrived.clear()
        self.held.clear()
        self.words.clear()
        self.unconfirmed_lost += self.unconfirmed
        self.unconfirmed = 0
        self._told.clear()
        confirms, self.confirms = self.confirms, {}
        for confirm in confirms.values():
            confirm.error = LeaseLost(E_LEASE, "the link was lost before the finish was confirmed; its messages may be delivered again")
            confirm.done = True

    # Inside

    def _step(self, event: ConsumerEvent) -> None:
        after = CONSUMER_TABLE[self.state].get(event)
        if after is None:
            raise UsageError(E_BAD_COMMAND, f"{event.value} has no place while {self.state.value}")
        self.state = after

    def _answerable(self, delivery: Delivery) -> bool:
        return delivery.epoch == self.epoch and self.state in (_S.OPEN, _S.LEAVING)

    def _note(self, delivery: Delivery, indexes: Sequence[int]) -> None:
        """These are answered; a delivery that is answered whole is let go."""
        if len(indexes) == delivery.block.count:
            delivery.closed = True
        else:
            delivery.answered.update(indexes)
            delivery.closed = len(delivery.answered) >= delivery.block.count
        if delivery.closed:
            self.held.pop(delivery.token, None)
