"""Channel core: records which consumer holds which message, and until when. No I/O.

Messages come from the channel's supply (`supply.py`) and go to consumers. A message that was sent
is *held* until a handler begins it. The consumer reports that, and a lease runs from then on. A
consumer finishes a message, or the message returns to the supply: it was requeued, its lease ended,
or its consumer left. Only a message that was begun has used an attempt then. Leases use monotonic
nanoseconds (`now_ns`). Due times use wall-clock nanoseconds (`wall_ns`).

Consumers of NSQ report nothing. Their messages are begun when they are sent, as at nsqd.

Recall. If a consumer is idle while others hold messages that no handler has begun, the channel asks
for some of them back. The consumer that holds them decides, because only it knows what its handlers
have begun since its last report.

Suspects. The messages of a lost consumer may have ended its process. In a channel that limits
attempts they are delivered apart: one consumer *sifts* them. It gets them when it holds nothing
else, alone or in small groups (`Suspects`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, cast

from ...transport.block.block import Block, cut, gather
from ...transport.errors import (
    E_CLOSING,
    CorruptBlock,
    Refused,
)
from ...transport.reports import ChannelCounters
from ...transport.settings import NONE, ChannelSettings
from ...transport.units import NS_PER_MS, NS_PER_S
from ...transport.wire.protocol import (
    BACKOFF,
    DEAD,
    DELAY_MS_MAX,
    ERROR_TEXT_MAX,
    EXPIRED,
    READY_MAX,
    TRACEBACK_TEXT_MAX,
    UNBEGUN,
    Range,
    Run,
)
from ..primitives.deadlines import DeadlineHeap
from ..primitives.latency import LatencyWindow
from ..primitives.ranges import check, ranges_of, take, total, touching, unread
from ..runtime.pulses import ChannelDetails, DeliveryPulse
from ..settings import options
from ..statistics.schema import COUNTERS
from .deferred import Deferred, Row
from .endings import HeldExpiries
from .failures import NOT_FAILED, Cause
from .fair import FairSupply
from .filters import EXPIRED as EXPIRED_REASON
from .filters import ChannelFilter
from .lease import (
    Changes,
    Departure,
    Hole,
    Lease,
    OutgoingDelivery,
    Peer,
    Subscriber,
    times_of,
)
from .measurements import Measurements
from .ordered import OrderedSupply
from .priorities import PrioritySupply
from .rate_limit import limit_of
from .supply import Picked, Supply, used
from .turns import Turns, has_room

UNKNOWN_DELIVERY: Range = (-1, 0)
RECALL_NS: Final = 100_000_000  # how long a message is held before it may be asked for
LOST: Final = "its consumer was lost or left"
TIMED_OUT: Final = "its consumer did not answer within the message timeout"
REQUEUED: Final = "its consumer requeued it"
REJECTED: Final = "its consumer rejected it"


def half() -> float:
    """Return 0.5. This is the default for the function that returns random numbers."""
    return 0.5


def _kind(settings: ChannelSettings) -> type[Supply]:
    if settings.ordered:
        return OrderedSupply
    if settings.priorities:
        return PrioritySupply
    return FairSupply if settings.is_fair else Supply


class ChannelCore:
    """The logic of one channel.

    Commands come from consumers, and blocks come from the feed into `supply`. The core returns
    deliveries, and changes to commit.
    """

    def __init__(
        self, incarnation: int, next_offset: int, holes: Iterable[Hole], counters: Mapping[str, int], paused: bool,
        deferred: Deferred | None = None, settings: ChannelSettings | None = None, channel: str = "", random: Callable[[], float] = half,
    ) -> None:  # fmt: skip
        self.paused = paused
        self.settings = settings or ChannelSettings()
        self.counters = dict.fromkeys(COUNTERS, 0) | {**counters}
        self.measurements = Measurements(self.counters)
        self.begin = next_offset
        """The end of the log minus this number is how many messages the channel has received.

        For a channel that was never moved, it is the offset at which the channel began, plus the
        gaps behind that offset. A seek backwards lowers it by the number of messages.
        """
        self.consumers: dict[Peer, Subscriber] = {}
        self._sessions: dict[int, Peer] = {}  # by the numbers of their sessions
        self._random = random
        choice = ChannelFilter(channel, self.settings, random)
        self.supply: Supply = _kind(self.settings)(
            next_offset, holes, deferred or Deferred(), self.counters, self.settings, choice
        )
        self._token = (incarnation & 0x7FFFFFFF) << 32
        self._turns = Turns()
        self._takers = 0  # number of consumers with a ready count above 0
        self._backing_off = 0  # number of consumers that back off
        # At the last scan, no consumer could count as lost before this time. 0 means no consumers.
        self._beats_end_ns = 0
        self._leases: dict[int, Lease] = {}
        self._lease_rows = 0
        self._deadlines: DeadlineHeap[int] = DeadlineHeap()
        self._sifter: Subscriber | None = None  # the consumer that gets the suspects
        self._expiries = HeldExpiries(choice.endings)
        self._held = 0  # messages that consumers hold and that no handler has begun
        self.limit = limit_of(self.settings)
        self._limited_ns = 0  # since when the limit withholds messages (wall clock), or 0
        self._bound_ns = 0  # when it withheld some last (clock of boot time)
        self._recall_ns = 0  # when idle consumers are looked for next, or 0
        self._ending = False
        self.holds = False  # it gives out no message for a moment, because it is to move

    def set_lifetime(self, lifetime_s: float) -> None:
        """Set the lifetime of messages that have none of their own, or NONE."""
        self.supply.choice.endings.set_lifetime(lifetime_s)

    def configure(self, settings: ChannelSettings) -> None:
        """Apply these settings from now on. Settings listed in `FIXED` stay as they were."""
        self.settings = settings
        if _kind(settings) is type(self.supply):
            self.supply.configure(settings)
        else:
            self.supply = self.supply.successor(_kind(settings), settings)
        self.limit = limit_of(settings, self.limit)
        if self.limit is None:
            self._limited_ns = 0

    # Consumers

    def subscribe(self, consumer: Subscriber) -> None:
        self.unsubscribe(consumer.peer, Departure.LEFT)
        self.consumers[consumer.peer] = consumer
        if consumer.session:
            self._sessions[consumer.session] = consumer.peer
        self._takers += consumer.ready > 0
        self._beats_end_ns = min(self._beats_end_ns or consumer.look_ns, consumer.look_ns)
        if len(self.consumers) <= options.CONSUMER_LATENCIES_MAX:
            consumer.latency = LatencyWindow(options.CONSUMER_LATENCY_SLOT_S)
        self._turns.join(consumer)

    def end_session(self, session: int, attempt: int) -> None:
        """Remove the consumer with this number. It is back over another connection.

        Raises `Refused` if the present connection is the newer one. The network may deliver what a
        connection sent long after its client has given it up.
        """
        peer = self._sessions.get(session)
        if peer is None:
            return
        if self.consumers[peer].attempt > attempt:
            raise Refused(E_CLOSING, "this consumer has subscribed over a newer connection")
        self.unsubscribe(peer, Departure.LEFT)

    def set_ready(self, peer: Peer, ready: int, probe_ns: int = 0) -> None:
        """Change the credit of a consumer. `probe_ns`: see `Subscriber`."""
        consumer, probe_ns = self.consumers[peer], max(0, probe_ns)
        self._backing_off += (probe_ns > 0) - (consumer.probe_ns > 0)
        consumer.probe_ns = probe_ns
        self._takers += (ready > 0) - (consumer.ready > 0)
        consumer.ready = max(0, ready)
        self._turns.look(consumer)

    def unsubscribe(self, peer: Peer, how: Departure = Departure.LOST) -> bool:
        """Remove a consumer. All its messages are delivered again.

        Those that its handlers had begun have used an attempt, unless the channel sent the consumer
        away. If it was lost, any of its messages may be the reason, so they are suspects.
        """
        consumer = self.consumers.pop(peer, None)
        if consumer is None:
            return False
        self._sessions.pop(consumer.session, None)
        self._takers -= consumer.ready > 0
        self._backing_off -= consumer.probe_ns > 0
        if not self.consumers:
            self._beats_end_ns = 0
        lost, cause = how is Departure.LOST, Cause(LOST, consumer.label)
        for token in list(consumer.tokens):
            lease = self._end_lease(token)
            if lease.apart and lost:
                self.supply.apart.left(lease.runs)
            if how is Departure.LEFT and self.limit is not None:
                self.limit.give_back(total(lease.held))
            runs = used(lease.runs) if how is Departure.SENT_AWAY else sorted(lease.used())
            if lost and self.settings.max_attempts:
                self.supply.suspect(runs, cause)
            else:
                self.supply.back(runs, cause)
            self.supply.dirty = True
        self._turns.leave(consumer)
        if self._sifter is consumer:
            self._sifter = None
        return True

    def lost_consumers(self, now_ns: int) -> list[Peer]:
        """Return the consumers that sent nothing for two heartbeats."""
        return [c.peer for c in self.consumers.values() if now_ns >= c.lost_ns]

    def is_wanted(self) -> bool:
        """Return True if some consumer would take new messages."""
        return not self.paused and self._takers > 0

    def rest(self) -> None:
        """Begin a turn: reset the limit of examined messages, and drop blocks that no consumer
        needs.

        When no consumer wants messages, the actor also switches off the feed. While the feed is on,
        the window must not shrink. The next block follows the end of the window, so a shorter
        window would look like a gap.
        """
        self.supply.begin_turn()
        if not self.is_wanted():
            self.supply.drop_blocks()

    # Deliveries

    def next_delivery(
        self, now_ns: int, wall_ns: int, boot_ns: int | None = None
    ) -> OutgoingDelivery | None:
        """Return the next delivery, or None when no consumer has room or no message waits.

        `boot_ns` is the clock of the rates, see `rate_limit.py`. By default it is `now_ns`.
        """
        if self.supply.moving or self._ending or self.holds:
            return None
        boot_ns = self.supply.boot_ns = now_ns if boot_ns is None else boot_ns
        if self.is_wanted():
            self.supply.look_ahead(self._lease_rows, wall_ns)
        most = self._most(boot_ns, wall_ns)
        if not most:
            return None
        if (delivery := self._next_apart(now_ns, wall_ns, most)) is not None:
            return delivery
        share = self._share(wall_ns)
        while not self.paused and (consumer := self._turns.first(share)) is not None:
            room = min(most, consumer.ready - consumer.in_flight)
            if consumer.in_flight < share:
                room = min(room, share - consumer.in_flight)
            picked = self.supply.pick(consumer, room, self._lease_rows, wall_ns)
            if picked is None:
                return None  # no message waits: this consumer stays first
            block = self._joined(picked) if picked.runs else None
            if picked.runs and block is None:
                return None
            self._turns.served(consumer, max(picked.offered, total(picked.runs)))
            if block is not None:
                return self._lease(consumer, picked, block, now_ns)
        return None

    def _most(self, boot_ns: int, wall_ns: int) -> int:
        """Return how many messages the channel's rate allows now."""
        if self.limit is None:
            return READY_MAX
        waits = self.supply.has_ready() or self.supply.next_offset < self.supply.head
        if not waits or not self.is_wanted():
            self._limited_ns = 0
        elif self.limit.tokens(boot_ns) <= 0:
            if self._turns.first() is not None:
                self._limited_ns = self._limited_ns or wall_ns
                self._bound_ns = boot_ns
        elif boot_ns - self._bound_ns > self.limit.quiet_ns:
            self._limited_ns = 0  # what waits there waits for consumers
        return self.limit.room(boot_ns, self._held)

    def limit_due_ns(self, boot_ns: int) -> int:
        """Return when the channel's rate allows the next message that waits, by the clock of boot
        time, or 0 if it does not limit the channel now.

        It is 0, too, if messages may go when a consumer has begun those that it holds.
        """
        if self.limit is not None and self.limit.tokens(boot_ns) <= 0:
            return self.limit.due_ns(boot_ns) if self._limited_ns else 0
        due_ns = self.supply.limit_due_ns()
        # What was due has been tried already: it waits for a consumer, or for a block.
        return due_ns if due_ns > boot_ns and self.is_wanted() else 0

    def _next_apart(self, now_ns: int, wall_ns: int, most: int) -> OutgoingDelivery | None:
        """Return the next suspects, if the consumer that sifts them holds nothing."""
        sifter = self._sifter
        if sifter is not None and sifter.ready == 0:
            sifter = self._sift(None)
        if not self.supply.apart.ready or self.paused:
            if sifter is not None and not sifter.in_flight:
                self._sift(None)
            return None
        if sifter is None:
            takers = (consumer for consumer in self.consumers.values() if consumer.ready > 0)
            sifter = self._sift(min(takers, key=lambda taker: taker.in_flight, default=None))
        if sifter is None or sifter.in_flight:
            return None
        picked = self.supply.pick_apart(sifter, min(most, sifter.ready), wall_ns)
        block = self._joined(picked) if picked is not None else None
        if picked is None or block is None:
            if self.supply.apart_held:
                self._sift(None)  # it may work for other keys meanwhile
            return None
        return self._lease(sifter, picked, block, now_ns)

    def _sift(self, consumer: Subscriber | None) -> Subscriber | None:
        """Let this consumer get the suspects from now on, or none."""
        before, self._sifter = self._sifter, consumer
        if before is not None:
            before.sifts = False
            self._turns.look(before)
        if consumer is not None:
            consumer.sifts = True
        return consumer

    def _joined(self, picked: Picked) -> Block | None:
        """Return the picked messages as one block, or None if its bytes changed in memory.

        In that case the messages were returned to the supply. A block that is sent whole for the
        first time is checked only by its consumer. If the consumer finds it damaged, the block is
        checked here before it is sent again.
        """
        block, start, stop = picked.parts[0]
        try:
            if len(picked.parts) > 1:
                return gather(picked.parts)
            if stop - start == block.count and picked.runs[0][2] > 1:
                block.check()
            return cut(block, start, stop)
        except CorruptBlock:
            self.supply.take_back(picked.runs)
            return None

    def _share(self, wall_ns: int) -> int:
        """Return how many messages one consumer of an ordered channel may hold, see `Supply.share`.

        0 means no limit.
        """
        if not self.settings.ordered or self.paused:
            return 0
        takers = [consumer.in_flight for consumer in self.consumers.values() if consumer.ready > 0]
        return self.supply.share(len(takers), sum(takers), self._lease_rows, wall_ns)

    def has_more(self) -> bool:
        """Return True if this turn reached its limit of examined messages, so that another turn
        should follow soon.
        """
        return self.supply.has_more()

    def _lease(
        self, consumer: Subscriber, picked: Picked, block: Block, now_ns: int
    ) -> OutgoingDelivery:
        self._token += 1
        runs, parts = picked.runs, picked.parts
        count = total(runs)
        if self.limit is not None:
            self.limit.take(count)
        size = sum(part.length * (stop - start) // part.count for part, start, stop in parts)
        consumer.bytes_out += size
        # The runs are sorted, because answers are matched in ascending order.
        lease = Lease(consumer, sorted(runs), now_ns, times_of(parts), size, picked.apart)
        self._leases[self._token] = lease
        self._lease_rows += len(runs)
        if consumer.reports:
            self._held += count
            self._expiries.add(self._token, parts, self._leases)
        else:
            lease.begin((), now_ns)
            self._deadlines.set(self._token, now_ns + consumer.timeout_ns)
        consumer.tokens.add(self._token)
        consumer.in_flight += count
        consumer.message_count += count
        consumer.message_bytes += size
        self.counters["delivery_count"] += count
        self.counters["delivery_bytes"] += size
        self.supply.dirty = True
        return OutgoingDelivery(
            consumer.peer,
            self._token,
            tuple(runs),
            parts,
            block,
            consumer.timeout_ns,
            alone=picked.apart and count == 1,
        )

    def _end_lease(self, token: int) -> Lease:
        lease = self._leases.pop(token)
        self._deadlines.remove(token)
        self._lease_rows -= lease.rows
        self._held -= total(lease.held)
        lease.consumer.tokens.discard(token)
        lease.consumer.bytes_out -= lease.size
        lease.consumer.in_flight -= total(lease.held) + lease.count_begun()
        self._turns.look(lease.consumer)
        return lease

    @property
    def held_messages(self) -> int:
        """The number of messages that consumers hold and that no handler has begun."""
        return self._held

    @property
    def held(self) -> int:
        """The number of rows behind the cursor, without deferred ones."""
        return self._lease_rows + self.supply.waiting_rows

    # Answers

    def _answered(
        self, peer: Peer, token: int, ranges: Sequence[Range]
    ) -> tuple[list[Run], Sequence[Range]]:
        """End the lease on these ranges. Return the runs released, and the refused ranges.

        Refused ranges were not under this lease and are not changed.
        """
        check(ranges)
        lease = self._leases.get(token)
        if lease is None or lease.consumer.peer != peer:
            return [], tuple(ranges) or (UNKNOWN_DELIVERY,)
        rows, held = lease.rows, total(lease.held)
        taken, refused = lease.answer(ranges)
        lease.consumer.in_flight -= total(taken)
        self._held += total(lease.held) - held
        self._shrunk(token, lease, rows)
        self.supply.dirty = True
        return taken, refused

    def _shrunk(self, token: int, lease: Lease, rows: int) -> None:
        """Note that messages were removed from a lease, which had so many rows before."""
        self._lease_rows += lease.rows - rows
        self._set_deadline(token, lease)
        if lease.held or lease.begun:
            self._turns.look(lease.consumer)
        else:
            if lease.apart:
                self.supply.apart.stayed()
            self._end_lease(token)

    def note_begun(
        self, peer: Peer, token: int, ranges: Sequence[Range], now_ns: int
    ) -> Sequence[Range]:
        """Note that handlers of this consumer have begun these messages: their lease runs.

        Return the ranges that are not under this lease.
        """
        check(ranges)
        lease = self._leases.get(token)
        if lease is None or lease.consumer.peer != peer:
            return tuple(ranges) or (UNKNOWN_DELIVERY,)
        rows, held = lease.rows, total(lease.held)
        refused = lease.begin(ranges, now_ns)
        self._held += total(lease.held) - held
        self._lease_rows += lease.rows - rows
        self._set_deadline(token, lease)
        self.supply.dirty = True
        return refused

    def _set_deadline(self, token: int, lease: Lease) -> None:
        """Let the deadline of a delivery be the earliest of its messages."""
        due_ns = lease.next_due()
        if due_ns is None:
            self._deadlines.remove(token)
        elif token not in self._deadlines or self._deadlines.due_of(token) != due_ns:
            self._deadlines.set(token, due_ns)

    def fin(
        self, peer: Peer, token: int, ranges: Sequence[Range], wall_ns: int = 0
    ) -> Sequence[Range]:
        """Finish these messages and return the refused ranges.

        Refused ranges were not under this lease and are not changed. If `wall_ns` is 0, latency is
        not measured.
        """
        lease = self._leases.get(token)
        taken, refused = self._answered(peer, token, ranges)
        count = total(taken)
        self.counters["finish_count"] += count
        if taken and lease is not None and wall_ns:
            self.measurements.finished(lease.consumer, lease.times, taken, wall_ns)
        if peer in self.consumers:
            self.consumers[peer].finish_count += count
        self.supply.done(taken)
        return refused

    def req(
        self,
        peer: Peer,
        token: int,
        ranges: Sequence[Range],
        delay_ms: int,
        wall_ns: int,
        error: str = "",
        traceback: str = "",
        *,
        defer: bool = False,
    ) -> Sequence[Range]:
        """Requeue these messages, at once or after a delay, and return the refused ranges.

        BACKOFF uses the channel's backoff. DEAD rejects the messages. EXPIRED requeues them at
        once, as if the scan had ended their lease. UNBEGUN returns messages that no handler has
        begun, which uses no attempt. Neither does `defer`, for a message that a handler puts off.
        """
        taken, refused = self._answered(peer, token, ranges)
        delay_ns = min(max(0, delay_ms), DELAY_MS_MAX) * NS_PER_MS
        consumer = self.consumers.get(peer)
        label = "" if consumer is None else consumer.label
        if defer:
            self.counters["defer_count"] += total(taken)
            for run in used(taken):
                self._again(run, delay_ns, wall_ns, NOT_FAILED)
            return refused
        if delay_ms == UNBEGUN:
            if self.limit is not None:
                self.limit.give_back(total(taken))
            self.supply.back(used(taken), NOT_FAILED)
            return refused
        if delay_ms == EXPIRED:
            self._note_timeouts(consumer, taken)
            self.supply.back(taken, Cause(TIMED_OUT, label))
            return refused
        error, traceback = error[:ERROR_TEXT_MAX], traceback[-TRACEBACK_TEXT_MAX:]
        if delay_ms == DEAD:
            self.supply.reject(taken, Cause(error or REJECTED, label, traceback))
            return refused
        count = total(taken)
        self.counters["requeue_count"] += count
        if consumer is not None:
            consumer.requeue_count += count
        cause = Cause(error or REQUEUED, label, traceback)
        for run in taken:
            if delay_ms == BACKOFF:
                delay_ns = self.settings.backoff_ns(run[2], self._random)
            self._again(run, delay_ns, wall_ns, cause)
        return refused

    def _again(self, run: Run, delay_ns: int, wall_ns: int, cause: Cause) -> None:
        if delay_ns > 0:
            self.supply.later((run,), wall_ns + delay_ns, cause)
        else:
            self.supply.back((run,), cause)

    def touch(
        self, peer: Peer, token: int, now_ns: int, ranges: Sequence[Range] = ()
    ) -> Sequence[Range]:
        """Extend the lease of these messages, or of the whole delivery without `ranges`.

        It lasts the consumer's timeout from now, and ends at the latest when the channel's
        `max_hold_s` has passed since the messages were begun. Messages that were not begun have no
        lease yet.
        """
        check(ranges)
        lease = self._leases.get(token)
        if lease is None or lease.consumer.peer != peer:
            return (UNKNOWN_DELIVERY,)
        most_s = self.settings.max_hold_s
        # A touch never shortens a lease.
        hold_ns = 0 if most_s == NONE else max(int(most_s * 1e9), lease.consumer.timeout_ns)
        rows = lease.rows
        lease.extend(ranges, now_ns + lease.consumer.timeout_ns, hold_ns)
        self._lease_rows += lease.rows - rows
        self._set_deadline(token, lease)
        return ()

    # The scan

    def _note_timeouts(self, consumer: Subscriber | None, runs: Sequence[Run]) -> None:
        self.counters["timeout_count"] += total(runs)
        if consumer is not None:
            consumer.timeout_count += total(runs)

    def scan(self, now_ns: int, wall_ns: int) -> bool:
        """Process ended leases, due deferred messages, and lost consumers.

        Return True if there were any.
        """
        has_changed = False
        for peer in self.lost_consumers(now_ns):
            has_changed = self.unsubscribe(peer) or has_changed
        self._beats_end_ns = min(
            (consumer.look_ns for consumer in self.consumers.values()), default=0
        )
        while (token := self._deadlines.pop_due(now_ns)) is not None:
            self._expire(token, now_ns)
            has_changed = True
        self.supply.dirty = self.supply.dirty or has_changed
        return self.supply.scan(wall_ns, self._lease_rows) or has_changed

    def _expire(self, token: int, now_ns: int) -> None:
        lease = self._leases[token]
        rows = lease.rows
        over = lease.expire(now_ns)
        lease.consumer.in_flight -= total(over)
        self._note_timeouts(lease.consumer, over)
        self.supply.back(over, Cause(TIMED_OUT, lease.consumer.label))
        self._shrunk(token, lease, rows)

    def recalls(self, now_ns: int) -> list[tuple[Peer, int]]:
        """Return which consumers must be asked for messages back, and for how many.

        A consumer is asked if it has held messages for RECALL_NS that no handler has begun, while
        another one is idle and nothing else waits. The idle ones get as many as they have room for,
        but a consumer that is asked keeps half.
        """
        if not self._recall_ns or now_ns < self._recall_ns:
            return []
        self._recall_ns = 0
        if not self._held or self.paused or len(self.consumers) < 2:
            return []
        if self.supply.has_ready() and (
            self.limit is None or self.limit.room(self.supply.boot_ns, self._held)
        ):
            return []
        room = sum(
            one.ready for one in self.consumers.values() if has_room(one) and not one.in_flight
        )
        if not room:
            return []
        counts: list[tuple[Peer, int]] = []
        for consumer in self.consumers.values():
            if room <= 0:
                break
            leases = [self._leases[token] for token in consumer.tokens]
            old = sum(total(lease.held) for lease in leases if now_ns - lease.sent_ns >= RECALL_NS)
            if old and consumer.reports and now_ns - consumer.recalled_ns >= RECALL_NS:
                count = min(room, -(-old // 2))
                consumer.recalled_ns = now_ns
                room -= count
                counts.append((consumer.peer, count))
        return counts

    def expire_held(self, wall_ns: int) -> list[tuple[Peer, list[Range]]]:
        """Give up the messages that have expired with consumers, and that no handler has begun.

        Return what to tell the consumers. They may have received a message long ago, or not yet.
        """
        told: list[tuple[Peer, list[Range]]] = []
        for token, ranges in self._expiries.due(wall_ns).items():
            lease = self._leases.get(token)
            held, _, _ = take(lease.held, sorted(ranges)) if lease is not None else ((), (), ())
            if lease is None or not held:
                continue
            peer = lease.consumer.peer
            taken, _ = self._answered(peer, token, [run[:2] for run in held])
            if self.limit is not None:
                self.limit.give_back(total(taken))
            for run in used(taken):
                self.supply.give_up(run, EXPIRED_REASON)
            told.append((peer, [run[:2] for run in taken]))
        return told

    def held_by_consumer(self) -> list[tuple[Peer, int]]:
        """Return which consumers hold messages that no handler has begun, and how many."""
        counts = []
        for consumer in self.consumers.values():
            held = sum(total(self._leases[token].held) for token in consumer.tokens)
            if held:
                counts.append((consumer.peer, held))
        return counts

    @property
    def in_flight(self) -> int:
        """The number of messages that consumers hold."""
        return sum(consumer.in_flight for consumer in self.consumers.values())

    def look_for_idle(self, now_ns: int) -> None:
        """Plan the next look for idle consumers, if some consumer holds what it has not begun."""
        if self._held and len(self.consumers) > 1 and not self._recall_ns:
            self._recall_ns = now_ns + RECALL_NS

    def next_due(self, now_ns: int, due_ns: int, wall_ns: int | None = None) -> int:
        """Return when the next scan may have work, in monotonic nanoseconds, or 0 for never.

        `due_ns` is the clock of deferred messages, which nobody sets. Messages expire by the wall
        clock, `wall_ns` (default: the same). If the two were mixed, a wall clock that was set back
        would make an expiry due all the time, and each scan would find that nothing has expired.

        All consumers may have sent a message by then, so the scan may find no work.
        """
        times = [self._beats_end_ns] if self.consumers else []
        if self._recall_ns:
            times.append(self._recall_ns)
        lease = self._deadlines.next_due()
        if lease is not None:
            times.append(lease)
        if due := self.supply.next_due(due_ns, self._lease_rows):
            times.append(now_ns + due - due_ns)
        if expires := self._expiries.next_ns:
            times.append(now_ns + expires - (due_ns if wall_ns is None else wall_ns))
        return max(1, min(times)) if times else 0

    def may_ask(self) -> bool:
        """Return True if the state store should be asked which messages are due."""
        return self.supply.may_ask(self._lease_rows)

    # Commits

    def changes(self) -> Changes:
        """Return the changes since the last call.

        One commit is made at a time. Redeliveries wait for it.
        """
        self._forget_revoked()
        out = [run for lease in self._leases.values() for run in self._used(lease)]
        return self.supply.changes(out)

    def _used(self, lease: Lease) -> Iterable[Run]:
        """Return the runs of a lease with the attempts that a start of the channel must find.

        At a clean stop, the end of the channel ends the leases, and not a consumer. So it uses no
        attempt.
        """
        return used(lease.runs) if self._ending else lease.used()

    def waits_for_commit(self) -> bool:
        """Return True if a consumer could receive messages that came back since the last commit."""
        return (
            self.supply.waits_for_commit
            and not self._ending
            and self.is_wanted()
            and any(consumer.ready > consumer.in_flight for consumer in self.consumers.values())
        )

    def end(self) -> None:
        """Stop cleanly: send nothing more. The messages that consumers hold use no attempt."""
        self.supply.dirty = self.supply.dirty or (bool(self._leases) and not self._ending)
        self._ending = True

    def seek(self, offset: int) -> None:
        """Continue at `offset` once the seek is committed, and forget all messages held until now.

        Leases are cleared too: consumers can no longer answer the messages that they hold.
        """
        for token in list(self._leases):
            self._end_lease(token)
        self.begin -= unread(offset, self.supply.next_offset, self.supply.gaps)
        self.supply.seek(offset)

    def skip(self, start: int, stop: int) -> bool:
        """Never deliver these messages, see `Supply.skip`. They do not count as received."""
        received = unread(max(start, self.supply.next_offset), stop, self.supply.absent())
        moved = self.supply.skip(start, stop)
        if moved:
            self.begin += received
        return moved

    def unfinished(
        self, ranges: Sequence[Range], deferred: Sequence[Row], head: int
    ) -> list[Range]:
        """Return the parts of these ranges that the channel has not finished, and may still skip.

        `deferred` are the deferred rows in the state store that have some of these messages. `head`
        is the end of the topic.
        """
        held = [run for lease in self._leases.values() for run in lease.runs]
        rows = sorted([*held, *self.supply.unsent(), *(row[:3] for row in deferred)])
        taken, _, others = take(rows, ranges)
        behind = ((first, count) for first, count, _ in taken)
        return ranges_of(
            offset
            for first, count in (*behind, *self.supply.ahead(others, head))
            for offset in range(first, first + count)
        )

    def skip_messages(
        self, ranges: Sequence[Range], deferred: Sequence[Row]
    ) -> tuple[bool, list[tuple[Peer, list[Range]]]]:
        """Finish these unfinished messages for this channel, because a user has skipped them.

        Consumers that hold them cannot answer them any more. Return True if the feed must now read
        from another offset, and what to tell the consumers that held some of the messages.
        """
        moved = self.supply.skip_messages(ranges, deferred)
        told: list[tuple[Peer, list[Range]]] = []
        for token, lease in list(self._leases.items()):
            runs, consumer = lease.runs, lease.consumer
            if near := touching(ranges, runs[0][0], sum(runs[-1][:2])):
                taken, _ = self._answered(consumer.peer, token, near)
                if taken and consumer.reports:
                    told.append((consumer.peer, [run[:2] for run in taken]))
        self.counters["skipped_count"] += sum(count for _, count in ranges)
        self.supply.dirty = True
        return moved, told

    def revoke(self, keys: Sequence[str], end: int) -> None:
        """Never deliver the messages with these keys below `end` again.

        Those that consumers hold stay theirs. Raises `Refused` (E_LIMIT) for too many keys.
        """
        self.supply.choice.endings.revoke(keys, end)
        self.supply.dirty = True

    def _forget_revoked(self) -> None:
        """Forget revocations that end no message any more.

        The state store does not say which deferred messages it has, so with some nothing is
        forgotten.
        """
        endings = self.supply.choice.endings
        if endings.revoked and not self.supply.deferred.rows:
            endings.forget_below(self.first())

    def go_on(
        self, gaps: Iterable[Iterable[int]], begin: int, emptied: Iterable[Iterable[int]]
    ) -> None:
        """Take over what the storage knows: the log's gaps, and two values of the channel's row.

        The stored `begin` has only the gaps below the cursor. So it stays right when a takeover
        adds a gap, or retention removes one.
        """
        self.supply.gaps = tuple((start, stop) for start, stop in gaps)
        self.begin = begin + self.supply.gaps_from(self.supply.next_offset)
        self.supply.go_on_without(emptied)

    def stored_begin(self, next_offset: int) -> int:
        """Return `begin` as it is stored for a cursor at `next_offset`."""
        return self.begin - self.supply.gaps_from(next_offset)

    # Reports

    def out(self, now_ns: int) -> Iterator[tuple[Run, str, int, int | None]]:
        """Yield the runs that consumers hold, the longest held first.

        Each row holds the run, its consumer, how long it has been held, and how long the lease
        still lasts, both in nanoseconds. The last value is None if no handler has begun the run.
        """
        for lease in self._leases.values():
            held_ns = now_ns - lease.sent_ns
            for group in lease.begun:
                for run in group.runs:
                    yield run, lease.consumer.label, held_ns, group.due_ns - now_ns
            for run in lease.held:
                yield run, lease.consumer.label, held_ns, None

    def first(self) -> int:
        """Return the lowest offset that is neither finished nor deferred."""
        starts = [run[0] for lease in self._leases.values() for run in lease.runs]
        return min([self.supply.next_offset, *starts, *self.supply.starts()])

    def statistics(self, head: int) -> DeliveryPulse:
        """Return the counters under NSQ's field names.

        `details` returns the values that take some work to compute.
        """
        return {
            **self.supply.statistics(head),
            "begin": self.begin,
            "in_flight_count": self.in_flight,
            "paused": self.paused,
            "client_count": len(self.consumers),
            "backing_off_count": self._backing_off,
            "limited_since_s": self._limited_ns // NS_PER_S or None,
            **cast("ChannelCounters", self.counters),
        }

    def details(self, now_ns: int, wall_ns: int) -> ChannelDetails:
        """Return the reports on consumers and the latencies."""
        details = self.measurements.details(self.consumers.values(), now_ns, wall_ns)
        tenants = self.supply.tenants()
        if not self.is_wanted():  # without consumers, no limit is the reason
            for tenant in tenants:
                tenant["limited"] = ""
        return {**details, "blocked_by": self.supply.blockers(), "tenants": tenants}
