"""Consumer session: state machine of one consumer and one channel. No I/O.

The session handles deliveries, lease tokens, answers and barriers. A delivery is a block that this
consumer holds. Its token is valid only on the link on which the delivery arrived. When that link is
lost, the token is void, and the channel delivers the messages again. So each delivery has the
*epoch* of its link. Answers to a delivery of an older epoch are not sent but counted as stale.

A message is held until the program takes it (`prefetch.py`). `report` tells the channel which
messages were taken, and their leases run from then on. A message that is answered before the next
report needs none.

Any thread can finish a message, without a lock: a plain finish costs one list append, which is
atomic (see `LeasedBlock.finish`). `collect` turns the finishes into messages with ranges. It is
called at the next receive, or by the engine's timer. A barrier confirms finishes. It is a Fin with
a request number and token 0. The channel answers it when all answers that were sent before it on
that link are committed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum
from random import SystemRandom
from typing import Final

from ...block.block import Block, check_columns
from ...errors import (
    E_BAD_ARGUMENT,
    E_BAD_BLOCK,
    E_BAD_COMMAND,
    E_CLOSING,
    E_LEASE,
    LeaseLost,
    Refused,
    UsageError,
    from_wire,
)
from ...wire.protocol import (
    HEARTBEAT_MS,
    MESSAGE_TIMEOUT_MS,
    PROTOCOL_VERSION,
    READY_MAX,
    UNBEGUN,
    Answer,
    Begun,
    Deliver,
    Failed,
    Fin,
    Range,
    Ready,
    Req,
    Run,
    Settled,
    Sub,
    Subscribed,
    Touch,
    Wire,
)
from ...wire.rows import check_rows, heartbeat
from ..link.reaction import Reaction
from .confirm import Confirm
from .consumer_backoff import ConsumerBackoff
from .finish_memory import FinishMemory
from .transition import Transition, transition_of

EVERY: Final = -1  # an index that stands for all messages of the delivery


class LeasedBlock:
    """A delivered block, with its taken and answered messages.

    Indexes are positions in the block. The program takes the messages in the order of the block.
    """

    __slots__ = (
        "alone",
        "answered",
        "block",
        "cancelled",
        "closed",
        "epoch",
        "extended",
        "finished",
        "kept",
        "queued",
        "received_ns",
        "reported",
        "runs",
        "session",
        "taken",
        "timeout_ms",
        "token",
    )

    def __init__(
        self, session: ConsumerSession, message: Deliver, block: Block, epoch: int, now_ns: int
    ) -> None:
        self.session = session
        self.token = message.token
        self.runs: tuple[Run, ...] = message.runs
        self.timeout_ms = message.timeout_ms
        self.block = block
        self.epoch = epoch
        self.received_ns = now_ns
        self.alone = message.alone  # the channel waits for the report that it was begun
        self.taken = 0  # the program has taken the messages below this index
        self.kept = block.count  # the messages from this index on were given back
        # What was reported: (messages below this index, when). The lease of each message runs at
        # least from the report that contains it.
        self.reported: list[tuple[int, int]] = []
        # When the leases of single messages were extended last, by index.
        self.extended: dict[int, int] = {}
        # The messages that the user has finished and whose finish was not sent to the channel yet.
        self.finished: list[int] = []
        # The messages whose answer was sent to the channel. They are kept until the whole delivery
        # is answered.
        self.answered: set[int] = set()
        self.cancelled: set[int] = set()  # what a user has cancelled after it was taken
        self.closed = False  # True when all answers are sent
        self.queued = False  # True while this delivery is in `session.dirty`

    def check_open(self) -> None:
        """Raise `Refused` (E_CLOSING) if no answer can be sent any more.

        The consumer is closed then, or belongs to another process.
        """
        if self.session.over:
            raise Refused(E_CLOSING, self.session.over)

    @property
    def live(self) -> bool:
        """True if the lease can still be answered."""
        return self.epoch == self.session.epoch

    def take(self, count: int) -> None:
        """Note that the program has taken the first `count` messages."""
        if count > self.taken:
            if self.taken == self.reported_count:
                self.session.taken.append(self)
            self.taken = count

    @property
    def reported_count(self) -> int:
        return self.reported[-1][0] if self.reported else 0

    def unreported(self) -> list[int]:
        """Return the indexes that were taken since the last report and are not answered."""
        if self.closed or not self.live:
            return []
        gone = self.answered.union(self.finished) if self.finished else self.answered
        if EVERY in gone:
            return []
        return [index for index in range(self.reported_count, self.taken) if index not in gone]

    def touched(self, now_ns: int) -> None:
        """Note that the leases run from now on."""
        if self.reported:
            self.reported = [(self.reported_count, now_ns)]
            self.extended.clear()

    def expired(self, index: int, now_ns: int) -> bool:
        """Return True if the lease of this message may have ended."""
        for count, reported_ns in self.reported:
            if index < count:
                since_ns = max(reported_ns, self.extended.get(index, 0))
                return now_ns >= since_ns + self.timeout_ms * 1_000_000
        return False

    def finish(self, index: int) -> bool:
        """Note one plain finish, from any thread. `EVERY` finishes all unanswered messages.

        Return True if this delivery was not in the session's `dirty` queue before.

        This appends the index first and then reads `queued`. `collect` clears `queued` first and
        then reads the list. So the index is never missed, whichever of the two runs first.
        """
        self.finished.append(index)
        if self.queued:
            return False
        self.queued = True
        self.session.dirty.append(self)
        return True

    def finish_many(self, indexes: Sequence[int]) -> None:
        """Finish several messages at once, in one thread."""
        self.finished += indexes
        if not self.queued:
            self.queued = True
            self.session.dirty.append(self)

    def unanswered(self) -> Sequence[int]:
        """Return the indexes that are neither answered nor noted as finished."""
        if self.closed or EVERY in self.finished:
            return ()
        if not self.finished and not self.answered:
            return range(self.block.count)
        gone = self.answered.union(self.finished)
        return [i for i in range(self.block.count) if i not in gone]

    def fresh(self, indexes: Iterable[int]) -> Sequence[int]:
        """Return the indexes that were not answered before, each once, ascending.

        A user may answer a message twice, through two views of it.
        """
        if self.closed:
            return ()
        wanted = set(indexes)
        if EVERY in wanted:
            if not self.answered:
                return range(self.block.count)
            wanted = set(range(self.block.count))
        return sorted(wanted - self.answered) if self.answered else sorted(wanted)

    def attempts(self, index: int) -> int:
        for _, count, attempts in self.runs:
            if index < count:
                return attempts
            index -= count
        raise IndexError(index)

    def offset(self, index: int) -> int:
        for first, count, _ in self.runs:
            if index < count:
                return first + index
            index -= count
        raise IndexError(index)

    def ranges(self, indexes: Sequence[int]) -> tuple[Range, ...]:
        """Return the offsets of unanswered messages as ranges, or () for the whole delivery."""
        if len(indexes) == self.block.count:
            return ()
        if len(self.runs) == 1 and indexes[-1] - indexes[0] + 1 == len(indexes):
            return ((self.runs[0][0] + indexes[0], len(indexes)),)
        offsets = [first + i for first, count, _ in self.runs for i in range(count)]
        ranges: list[Range] = []
        start = end = offsets[indexes[0]]
        for index in indexes:
            offset = offsets[index]
            if offset != end:
                ranges.append((start, end - start))
                start = offset
            end = offset + 1
        ranges.append((start, end - start))
        return tuple(ranges)


WHOLE_MAX: Final = 1_000
ALL: Final = -1  # the refused range (-1, 0) means that the channel does not know the delivery


class ConsumerState(Enum):
    DOWN = "down"  # there is no link
    JOINING = "joining"  # Sub is sent
    OPEN = "open"  # deliveries arrive as the credit allows
    LEAVING = "leaving"  # Ready(0) is sent; Bye returns deliveries that still arrive


class ConsumerEvent(Enum):
    BEGIN = "begin"  # there is a new link, and Sub is sent
    SUBSCRIBED = "Subscribed"
    DELIVER = "Deliver"
    ANSWER = "Answer"
    LEAVE = "leave"  # Ready(0) is sent
    LOST = "link lost"


class ConsumerAction(Enum):
    STOP = "send Ready(0)"
    VOID = "void all leases"


_S, _E, _A, _to = ConsumerState, ConsumerEvent, ConsumerAction, Transition
ConsumerTransition = Transition[ConsumerState, ConsumerAction]
_LOST: Final[dict[ConsumerEvent, ConsumerTransition]] = {_E.LOST: _to(_S.DOWN, (_A.VOID,))}
CONSUMER_TABLE: Final[dict[ConsumerState, dict[ConsumerEvent, ConsumerTransition]]] = {
    _S.DOWN: {_E.BEGIN: _to(_S.JOINING), **_LOST},
    _S.JOINING: {_E.SUBSCRIBED: _to(_S.OPEN, (), Reaction.UP), **_LOST},
    _S.OPEN: {
        _E.DELIVER: _to(_S.OPEN),
        _E.ANSWER: _to(_S.OPEN),
        _E.LEAVE: _to(_S.LEAVING, (_A.STOP,)),
        **_LOST,
    },
    _S.LEAVING: {_E.DELIVER: _to(_S.LEAVING), _E.ANSWER: _to(_S.LEAVING), **_LOST},
}


class ConsumerSession:
    """One consumer of one channel. `ready`: the number of messages that it may hold.

    Without `reports`, each message counts as begun when the channel sends it.
    """

    def __init__(
        self, ready: int, message_timeout_ms: int = 0, label: str = "", sample_rate: int = 0,
        *, reports: bool = True,
    ) -> None:  # fmt: skip
        if not 0 <= ready <= READY_MAX:
            raise UsageError(E_BAD_ARGUMENT, f"ready must be 0 to {READY_MAX}, not {ready}")
        self.state = _S.DOWN
        self.ready = ready
        self.backoff: ConsumerBackoff | None = None  # sent with the credit, for the statistics
        self.label = label
        self.sample_rate = sample_rate
        self.reports = reports
        self.wanted_timeout_ms = message_timeout_ms
        self.message_timeout_ms = message_timeout_ms or MESSAGE_TIMEOUT_MS
        self.heartbeat_ms = HEARTBEAT_MS
        self.epoch = 0
        self.arrived: deque[LeasedBlock] = deque()  # deliveries that the user has not taken yet
        # The deliveries of this link that are not completely answered, by their token.
        self.held: dict[int, LeasedBlock] = {}
        # The last deliveries that were answered completely: token -> number of messages. If the
        # channel refuses all of one, it does not know how many these were.
        self._whole: dict[int, int] = {}
        self.dirty: deque[LeasedBlock] = deque()  # deliveries with finishes to send
        self.taken: deque[LeasedBlock] = deque()  # deliveries with messages to report
        self.unanswered = 0  # messages of this link whose answer was not sent
        # True if messages that were finished, and come back after a lost link, are finished again.
        # It is not for a program that takes whole deliveries: it answers for itself.
        self.remembers = False
        # What the channel has finished because a user cancelled it: token -> offsets. Words about
        # these messages that were on their way are refused, and that is no loss.
        self._gone: dict[int, set[int]] = {}
        self.ordered = False  # the channel delivers the messages of a key in order
        self.buffer_ms = 0  # the channel asks to hold no more than handlers need for this time
        self.finishes = FinishMemory()
        self._covering: Confirm | None = None  # the barrier that is being made
        self.words: deque[Wire] = deque()  # messages to send
        self.confirms: dict[int, Confirm] = {}
        self.next_confirm = Confirm()  # of all answers that are noted before the next barrier
        self.unconfirmed = 0  # plain finishes sent on this link since the last confirmed barrier
        self._finished = 0  # the messages that were finished on this link and not refused
        # Plain finishes sent on lost links and not confirmed. The next flush reports them.
        self.unconfirmed_lost = 0
        self.stale_count = 0  # the number of answers that came too late
        self.stale_told = 0  # the number of late answers that a flush has reported
        self.node = 0  # the broker's node number
        self.topic = ""  # the name of the topic, also if this is the session of a part
        self.part: int | None = None  # the part of the topic, if it has parts
        # The reason why no message of this session can be answered any more: the session is closed,
        # or it belongs to another process.
        self.over = ""
        self._request = 1
        self._number = SystemRandom().getrandbits(
            63
        )  # the channel knows this session by it, whatever its link is
        self._joined_with = ready  # the credit that Sub had
        # The value of `unconfirmed` at the time when a request was sent, by the request's number.
        self._unconfirmed_by_request: dict[int, int] = {}

    # Outgoing messages

    def begin(self, heartbeat_ms: int) -> Sub:
        """Return the first message for a new link."""
        self._step(_E.BEGIN)
        self._request += 1
        self._joined_with = self.ready
        return Sub(
            self._request,
            PROTOCOL_VERSION,
            self.ready,
            self.wanted_timeout_ms,
            heartbeat_ms,
            self.label,
            self.sample_rate,
            self.reports,
            self._number,
        )

    def collect(self) -> deque[Wire]:
        """Return the messages to send now, plain finishes first.

        The caller removes them from the deque as it sends them.
        """
        dirty = self.dirty
        while dirty:
            delivery = dirty.popleft()
            delivery.queued = False
            count = len(delivery.finished)
            indexes = delivery.fresh(delivery.finished[:count])
            if indexes:
                self._fin(delivery, indexes, 0)
            del delivery.finished[:count]  # keeps finishes that another thread has appended since
        return self.words

    def report(self, now_ns: int) -> None:
        """Tell the channel which messages were begun. Call it after `collect`."""
        taken, self.taken = self.taken, deque()
        if not self.reports:
            return
        for delivery in taken:
            indexes = delivery.unreported()
            if self._answerable(delivery):
                if indexes:
                    self.words.append(Begun(0, delivery.token, delivery.ranges(indexes)))
                delivery.reported.append((delivery.taken, now_ns))

    def begin_alone(self, delivery: LeasedBlock, now_ns: int) -> Confirm:
        """Tell the channel that this message is begun, and ask for an answer."""
        confirm = self._request_of(delivery)
        if confirm.done:
            return confirm
        delivery.taken = delivery.block.count
        delivery.reported.append((delivery.taken, now_ns))
        self.words.append(Begun(self._request, delivery.token, ()))
        return confirm

    def give_back(self, delivery: LeasedBlock, indexes: Iterable[int]) -> None:
        """Give back messages that the program has not taken. They use no attempt."""
        self.requeue(delivery, indexes, UNBEGUN)

    def drop(self, delivery: LeasedBlock, indexes: Sequence[int], *, finished: bool) -> None:
        """Give back messages that have ended and that the program has not taken.

        With `finished`, the channel has finished them, and needs no answer.
        """
        fresh = delivery.fresh(indexes)
        if finished and fresh:
            gone = self._gone.setdefault(delivery.token, set())
            gone.update(map(delivery.offset, fresh))
            if len(self._gone) > WHOLE_MAX:
                del self._gone[next(iter(self._gone))]
            self._note(delivery, fresh)
        elif fresh:
            self.give_back(delivery, fresh)
        delivery.answered.update(fresh)  # the program skips them when it comes to them

    @property
    def untold(self) -> int:
        """The approximate number of finishes that wait to be sent."""
        dirty = self.dirty
        return dirty[0].block.count * len(dirty) if dirty else 0

    def _fin(self, delivery: LeasedBlock, indexes: Sequence[int], request: int) -> None:
        if not self._answerable(delivery):
            self._came_late(delivery, indexes)
            return
        if not indexes:  # all answers were sent before; a barrier confirms them
            self.words.append(Fin(request, 0, ()))
            return
        self._note(delivery, indexes)
        self.unconfirmed += len(indexes)
        self._finished += len(indexes)
        # The program learns that a finish with a request failed, and may have undone its work.
        if self.remembers and not self.ordered and not request:
            confirm = self._covering or self.next_confirm
            self.finishes.sent(delivery, indexes, confirm)
            confirm.wanted = True
        self.words.append(Fin(request, delivery.token, delivery.ranges(indexes)))

    def requeue(
        self,
        delivery: LeasedBlock,
        indexes: Iterable[int],
        delay_ms: int,
        error: str = "",
        traceback: str = "",
        defer: bool = False,
    ) -> None:
        """Requeue messages, see `Req`. `delay_ms` may be BACKOFF, DEAD or UNBEGUN."""
        self.collect()
        indexes = delivery.fresh(indexes)
        if not self._answerable(delivery):
            self.stale_count += len(indexes)
        elif indexes:
            self._note(delivery, indexes)
            ranges = delivery.ranges(indexes)
            self.words.append(Req(0, delivery.token, ranges, delay_ms, error, traceback, defer))

    def touch(
        self, delivery: LeasedBlock, now_ns: int, indexes: Sequence[int] | None = None
    ) -> None:
        """Extend the lease of these messages, or of all that were begun."""
        if not self._answerable(delivery):
            self.stale_count += 1
            return
        if indexes is None:
            delivery.touched(now_ns)
        else:
            delivery.extended.update(dict.fromkeys(indexes, now_ns))
        ranges = () if indexes is None else delivery.ranges(indexes)
        self.words.append(Touch(0, delivery.token, ranges))

    def finish_sync(self, delivery: LeasedBlock, indexes: Iterable[int]) -> Confirm:
        """Finish messages with a confirmation. If the lease has ended, the Confirm has an error."""
        confirm = self._request_of(delivery)
        if not confirm.done:
            self._fin(delivery, delivery.fresh(indexes), self._request)
            self._unconfirmed_by_request[self._request] = self.unconfirmed
        return confirm

    def requeue_sync(
        self,
        delivery: LeasedBlock,
        indexes: Sequence[int],
        delay_ms: int,
        error: str = "",
        *,
        defer: bool = False,
    ) -> Confirm:
        """Requeue unanswered messages with a confirmation, see `finish_sync` and `requeue`."""
        confirm = self._request_of(delivery)
        if not confirm.done:
            self._note(delivery, indexes)
            ranges = delivery.ranges(indexes)
            request = Req(self._request, delivery.token, ranges, delay_ms, error, "", defer)
            self.words.append(request)
        return confirm

    def touch_sync(self, delivery: LeasedBlock, indexes: Sequence[int]) -> Confirm:
        """Extend the lease of unanswered messages with a confirmation, see `touch`."""
        confirm = self._request_of(delivery)
        if not confirm.done:
            self.words.append(Touch(self._request, delivery.token, delivery.ranges(indexes)))
        return confirm

    def _request_of(self, delivery: LeasedBlock) -> Confirm:
        """Return the Confirm of a new request. It is done if the delivery's link was lost."""
        self.collect()
        confirm = Confirm()
        if not self._answerable(delivery):
            confirm.error = LeaseLost(
                E_LEASE,
                (
                    "the link that delivered this message was lost; the message may be delivered "
                    "again, to another consumer"
                ),
            )
            confirm.done = True
            return confirm
        self._request += 1
        self.confirms[self._request] = confirm
        return confirm

    def barrier(self) -> Confirm:
        """Request a confirmation that all answers sent before it are committed.

        The Confirm is done at once if no sent answer is unconfirmed.
        """
        # Another thread may note an answer now. If it then sees the old Confirm, this `collect`
        # sends the answer.
        confirm, self.next_confirm = self.next_confirm, Confirm()
        self._covering = confirm
        self.collect()
        self._covering = None
        if self.state not in (_S.OPEN, _S.LEAVING) or not (
            self.words or self.unconfirmed or confirm.wanted
        ):
            confirm.done = True
            return confirm
        self._request += 1
        self.confirms[self._request] = confirm
        self._unconfirmed_by_request[self._request] = self.unconfirmed
        self.words.append(Fin(self._request, 0, ()))
        return confirm

    def take_missed(self) -> int:
        """Return how many finishes were lost with their link or came too late since the last
        call.

        The program learns of these, and may undo its work. So it gets them again.
        """
        self.finishes.forget()
        missed = self.unconfirmed_lost + self.stale_count - self.stale_told
        self.unconfirmed_lost = 0
        self.stale_told = self.stale_count
        return missed

    def leave(self) -> None:
        """Ask the channel for no more deliveries."""
        if self.state is _S.OPEN:
            self._step(_E.LEAVE)

    def set_ready(self, ready: int) -> None:
        if not 0 <= ready <= READY_MAX:
            raise UsageError(E_BAD_ARGUMENT, f"ready must be 0 to {READY_MAX}, not {ready}")
        self.ready = ready
        if self.state is _S.OPEN:
            self._send_ready()

    def _send_ready(self) -> None:
        backoff_ms = self.backoff.probe_ms(time.monotonic_ns()) if self.backoff is not None else 0
        self.words.append(Ready(self.ready, backoff_ms))

    # Incoming messages

    def on_word(self, message: Wire, blocks: list[Block], now_ns: int) -> Reaction:
        """Process a message from the channel.

        Raises `UsageError` or `CorruptBlock` if it is invalid. The session has then used no part of
        it, and the caller restarts the link.
        """
        if type(message) is Deliver:
            return self.on_deliver(message, blocks, now_ns)
        if type(message) is Answer:
            return self.on_answer(message)
        if type(message) is Subscribed:
            return self.on_subscribed(message)
        if type(message) is Failed:
            return self.on_failed(message)
        if type(message) is Settled:
            self.unconfirmed = min(self.unconfirmed, max(0, self._finished - message.finishes))
            return Reaction.NOTHING
        raise UsageError(E_BAD_COMMAND, f"a consumer does not accept {type(message).__name__}")

    def on_subscribed(self, message: Subscribed) -> Reaction:
        reaction = self._step(_E.SUBSCRIBED)
        self.message_timeout_ms = message.message_timeout_ms
        self.heartbeat_ms = heartbeat(message.heartbeat_ms)
        self.ordered = message.ordered
        self.buffer_ms = message.buffer_ms
        is_backing_off = self.backoff is not None and self.backoff.limit is not None
        if self.ready != self._joined_with or is_backing_off:  # it was changed meanwhile
            self._send_ready()
        return reaction

    def on_deliver(self, message: Deliver, blocks: list[Block], now_ns: int) -> Reaction:
        if len(blocks) != 1:
            raise UsageError(E_BAD_COMMAND, f"a delivery must carry one block, not {len(blocks)}")
        block = blocks[0]
        check_columns(block.header, block.columns)
        check_rows(message.runs, 3, "runs (first offset, count, attempts) of a delivery")
        if any(run[1] < 1 for run in message.runs):
            raise UsageError(E_BAD_COMMAND, "each run of a delivery must have at least one message")
        if sum(run[1] for run in message.runs) != block.count:
            raise UsageError(
                E_BAD_BLOCK, f"the runs of a delivery do not add up to its {block.count} messages"
            )
        self._step(_E.DELIVER)
        if self.state is _S.LEAVING:
            return Reaction.NOTHING
        delivery = LeasedBlock(self, message, block, self.epoch, now_ns)
        self.unanswered += block.count
        if self.finishes and (indexes := self.finishes.came_back(delivery, now_ns)):
            self.unconfirmed_lost -= len(indexes)  # the next confirmation covers them
            self._fin(delivery, indexes, 0)
            if delivery.closed:
                return Reaction.NOTHING
        self.held[message.token] = delivery
        self.arrived.append(delivery)
        return Reaction.NOTHING

    def on_answer(self, message: Answer) -> Reaction:
        check_rows(message.refused, 2, "refused ranges")
        self._step(_E.ANSWER)
        confirm = self.confirms.pop(message.request, None)
        delivery = self.held.get(message.token)
        every = delivery.block.count if delivery else self._whole.get(message.token, 1)
        ranges = self._refused(message)
        refused = sum(every if first == ALL else count for first, count in ranges)
        self._finished -= refused
        if confirm is None:
            self.stale_count += refused
            return Reaction.NOTHING
        # Every request but Begun is a barrier: all answers sent before it are committed too.
        committed = self._unconfirmed_by_request.pop(message.request, 0)
        self.unconfirmed = max(0, self.unconfirmed - committed)
        self._unconfirmed_by_request = {
            request: count - committed for request, count in self._unconfirmed_by_request.items()
        }
        if ranges:
            confirm.error = LeaseLost(
                E_LEASE,
                (
                    "the lease ended before the finish arrived; the message was or will be "
                    "delivered again"
                ),
            )
        confirm.refused = ranges
        confirm.done = True
        return Reaction.NOTHING

    def _refused(self, message: Answer) -> tuple[Range, ...]:
        """Return the refused ranges, without messages that the channel has cancelled."""
        gone = self._gone.get(message.token) if message.refused else None
        if gone is None:
            return message.refused
        return tuple(
            (offset, 1)
            for first, count in message.refused
            for offset in range(first, first + count)
            if offset not in gone
        )

    def on_failed(self, message: Failed) -> Reaction:
        """Process a failed request. The link itself handles a Failed that answers Sub."""
        confirm = self.confirms.pop(message.request, None)
        if confirm is not None:
            self._unconfirmed_by_request.pop(message.request, None)
            confirm.error = from_wire(message.code, message.text)
            confirm.done = True
        return Reaction.NOTHING

    def lost(self) -> None:
        """Note that the link is lost, in any state."""
        self._step(_E.LOST)

    # Internal

    def _step(self, event: ConsumerEvent) -> Reaction:
        transition = transition_of(CONSUMER_TABLE, self.state, event)
        self.state = transition.after
        for action in transition.actions:
            if action is _A.STOP:
                self.words.append(Ready(0))
            elif action is _A.VOID:
                self._void()
        return transition.reaction

    def _void(self) -> None:
        """Void all leases, and all answers that were not sent."""
        self.finishes.lost(time.monotonic_ns())
        self.epoch += 1
        self._whole.clear()
        self._gone.clear()
        self.arrived.clear()
        self.held.clear()
        self.taken.clear()
        self.unanswered = 0
        self.words.clear()
        self.unconfirmed_lost += self.unconfirmed
        self.unconfirmed = self._finished = 0
        self._unconfirmed_by_request.clear()
        confirms = [*self.confirms.values(), self.next_confirm]
        self.confirms, self.next_confirm = {}, Confirm()
        for confirm in confirms:
            confirm.error = LeaseLost(
                E_LEASE,
                (
                    "the link was lost before the finish was confirmed; its messages may be "
                    "delivered again"
                ),
            )
            confirm.done = True

    def _came_late(self, delivery: LeasedBlock, indexes: Sequence[int]) -> None:
        """Remember finishes of a delivery whose link was lost.

        If the messages are here again already, finish them.
        """
        self.stale_count += len(indexes)
        if not self.remembers or self.over or delivery.live:
            return
        now_ns = time.monotonic_ns()
        self.finishes.came_late(delivery, indexes, now_ns)
        for newer in list(self.held.values()):
            if self._answerable(newer) and (
                again := newer.fresh(self.finishes.came_back(newer, now_ns))
            ):
                self._fin(newer, again, 0)
                newer.answered.update(again)  # the program skips them when it comes to them
                self.stale_count -= len(again)
        if self.ordered:
            self.finishes.forget()

    def _answerable(self, delivery: LeasedBlock) -> bool:
        return delivery.epoch == self.epoch and self.state in (_S.OPEN, _S.LEAVING)

    def _note(self, delivery: LeasedBlock, indexes: Sequence[int]) -> None:
        """Mark these messages as answered, and drop a delivery that is answered completely."""
        self.unanswered -= len(indexes)
        if len(indexes) == delivery.block.count:
            delivery.closed = True
        else:
            delivery.answered.update(indexes)
            delivery.closed = len(delivery.answered) >= delivery.block.count
        if delivery.closed:
            self.held.pop(delivery.token, None)
            self._whole[delivery.token] = delivery.block.count
            if len(self._whole) > WHOLE_MAX:
                del self._whole[next(iter(self._whole))]
