"""Fair supply: delivers the messages of different keys in turn. No I/O.

A *tenant* is a key, or a tag (`fair_by`). The messages are parked in piles, one for each tenant
(`parked.py`). Tenants that have messages stand in a line:

    in line       its turn comes: the first of the line delivers as many messages as its weight, and
                  goes to the end of the line (deficit round robin, Shreedhar and Varghese, 1995)
    rate          `max_rate_per_key` allows none of its messages now: it comes back when it does
    in flight     consumers have `max_in_flight_per_key` of its messages: it comes back when one of
                  them is answered
    idle          it has no messages

A new tenant goes to the end of the line. So its first message waits for one round: for at most the
sum of the weights of the tenants in line, however many messages they have. Rejected: new tenants
first. A steady flow of new keys would stop the old ones forever.

A delivery of many messages takes one round as above, and further rounds in larger pieces, because
a delivery of a thousand single messages is slow. All of these rounds are whole, except the last
one, which has pieces of one weight again. The next delivery goes on where it stopped.

*Messages without a key* are each a tenant of their own: no limit of a key applies to them. All of
them together get FAIR_LOOSE_WEIGHT turns in a round. Otherwise a flood of them would be a flood of
tenants, and each key would wait for it.

*Redeliveries.* Once the number of their attempts is committed, they go to their tenant too, and so
each of them takes part in its turns and its limits. A tenant takes them in turn with its new
messages. Suspects (`redelivery.py`) are delivered apart. They count, but wait for no rate, because
a consumer is kept free for them.

The window. Tenants are known as far as the cursor reads ahead: up to PARKED_ROWS_MAX rows. A long
run of one tenant is one row. So ten million messages of one tenant take a row, and those of the
next one behind them are found when the channel has read over them, which is faster than they are
delivered. If the messages of several busy tenants alternate, the window is as many messages as it
has rows, and what lies behind it is found in the order of arrival.

Memory. There are at most as many tenants as rows, besides those with messages in flight, and
FAIR_BUCKETS_MAX whose buckets are not full. A full bucket is the same as none.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import chain, groupby, islice
from typing import Final

from ...transport.block.block import Block
from ...transport.reports import TenantRow
from ...transport.settings import ChannelSettings, split_weights
from ...transport.wire.protocol import Run
from ..primitives.ranges import Range, cut_out, take, total
from ..runtime.pulses import SupplyPulse
from ..settings import options
from .deferred import Deferred, Row
from .delivery_builder import DeliveryBuilder
from .failures import Cause
from .filters import WANTED, ChannelFilter
from .lease import Hole, Subscriber
from .parked import ParkedSupply, Pile
from .rate_limit import RateLimit
from .supply import TRIED, Picked

KEY_SHOWN: Final = 64  # the most characters of a key in the statistics
Span = tuple[int, int, bytes | None]  # from index, to index, key


class State(Enum):
    IDLE = "idle"
    IN_LINE = "in line"
    RATE = "rate"
    IN_FLIGHT = "in flight"


class Filled(Enum):
    """Why a tenant's turn ended."""

    DONE = "it has had its messages, or has no more that may go"
    NOT_NOW = "its next block is not in memory, or an earlier row is not sorted"
    FULL = "the delivery is full"


class Tenant(Pile):
    """The messages of one key. `again` are redeliveries, with the attempts that they have used."""

    def __init__(self, key: bytes | None, weight: int) -> None:
        super().__init__()
        self.key = key
        self.weight = weight
        self.again: deque[Run] = deque()
        self.again_last = False
        self.credit = 0  # messages of its turn that did not fit into the last delivery
        self.state = State.IDLE
        self.in_flight = 0  # counted only with `max_in_flight_per_key`
        self.limit: RateLimit | None = None

    @property
    def waiting(self) -> int:
        return self.messages + total(self.again)

    def has_messages(self) -> bool:
        return bool(self.runs or self.again)


class Tenants:
    """The tenants of a channel, and their line."""

    def __init__(self, settings: ChannelSettings) -> None:
        self._tenants: dict[bytes | None, Tenant] = {}
        self._resting: OrderedDict[bytes | None, Tenant] = OrderedDict()  # buckets to be full
        self.line: deque[Tenant] = deque()
        self._due: list[tuple[int, int, Tenant]] = []  # a heap: when, number, tenant
        self._number = 0
        self.messages = 0
        self.rows = 0
        self.again_rows = 0
        self.again_messages = 0
        self.configure(settings)

    def configure(self, settings: ChannelSettings) -> None:
        weights = split_weights(settings.fair_weights)
        self._weights = {name.encode(): weight for name, weight in weights.items()}
        self._rate = settings.max_rate_per_key
        self.in_flight_max = settings.max_in_flight_per_key
        for tenant in self._tenants.values():
            tenant.weight = self._weight(tenant.key)
            if tenant.limit is not None:
                tenant.limit = tenant.limit.changed(self._rate, 0) if self._rate else None
            if not self.in_flight_max:
                tenant.in_flight = 0

    def _weight(self, key: bytes | None) -> int:
        return options.FAIR_LOOSE_WEIGHT if key is None else self._weights.get(key, 1)

    def of(self, key: bytes | None) -> Tenant:
        tenant = self._tenants.get(key)
        if tenant is None:
            tenant = self._tenants[key] = Tenant(key, self._weight(key))
        return tenant

    def known(self) -> int:
        return len(self._tenants) - len(self._resting)

    # In

    def park(self, key: bytes | None, start: int, count: int) -> Tenant:
        tenant = self._tenants.get(key) or self.of(key)
        rows = len(tenant.runs)
        tenant.park(start, count)
        self.rows += len(tenant.runs) - rows
        self.messages += count
        return tenant

    def put_again(self, key: bytes | None, run: Run) -> Tenant:
        tenant = self.of(key)
        tenant.again.append(run)
        self.again_rows += 1
        self.again_messages += run[1]
        return tenant

    def queue(self, tenant: Tenant, boot_ns: int) -> None:
        """Put a tenant where it belongs. It may be at the wrong place, but not in the line."""
        tenant.state = State.IDLE
        if not tenant.has_messages():
            self._rest(tenant, boot_ns)
            return
        self._resting.pop(tenant.key, None)
        if self.is_busy(tenant):
            tenant.state = State.IN_FLIGHT
        elif tenant.limit is not None and not tenant.limit.room(boot_ns):
            tenant.state = State.RATE
            self._number += 1
            heapq.heappush(self._due, (tenant.limit.due_ns(boot_ns), self._number, tenant))
        else:
            tenant.state = State.IN_LINE
            self.line.append(tenant)

    def is_busy(self, tenant: Tenant) -> bool:
        most = self.in_flight_max
        return 0 < most <= tenant.in_flight and tenant.key is not None

    def held_by(self, tenant: Tenant, boot_ns: int) -> str:
        """Return the limit that holds the messages of a tenant back now, or ""."""
        limit = tenant.limit
        if tenant.state is State.RATE and (limit is None or limit.room(boot_ns)):
            return ""  # it waits for a consumer meanwhile
        return tenant.state.value if tenant.state in (State.RATE, State.IN_FLIGHT) else ""

    def _rest(self, tenant: Tenant, boot_ns: int) -> None:
        """Forget a tenant without messages, at once or when its bucket is full."""
        tenant.credit = 0
        if tenant.in_flight:
            self._resting.pop(tenant.key, None)  # a suspect of it may have been sent
            return
        if tenant.limit is None or tenant.limit.is_full(boot_ns):
            self._tenants.pop(tenant.key, None)
            self._resting.pop(tenant.key, None)
            return
        self._resting[tenant.key] = tenant
        if len(self._resting) > options.FAIR_BUCKETS_MAX:
            del self._tenants[self._resting.popitem(last=False)[0]]

    def sweep(self, boot_ns: int) -> None:
        """Forget the buckets that are full meanwhile. Those that rest longest come first."""
        while self._resting:
            key, tenant = next(iter(self._resting.items()))
            if tenant.limit is not None and not tenant.limit.is_full(boot_ns):
                return
            del self._resting[key], self._tenants[key]

    def wake(self, boot_ns: int) -> None:
        """Put the tenants whose rate allows a message in line again."""
        while self._due and self._due[0][0] <= boot_ns:
            _, _, tenant = heapq.heappop(self._due)
            if tenant.state is State.RATE:
                self.queue(tenant, boot_ns)

    def due_ns(self) -> int:
        return self._due[0][0] if self._due else 0

    def queue_all(self, boot_ns: int) -> None:
        """Put all tenants in line again, because their limits or messages have changed."""
        self.line.clear()
        self._due.clear()
        for tenant in list(self._tenants.values()):
            self.queue(tenant, boot_ns)

    # Out

    def allowance(self, tenant: Tenant, boot_ns: int) -> int:
        """Return how many messages the limits of this tenant allow now."""
        if tenant.key is None:
            return 1 << 30
        most = 1 << 30
        if self._rate:
            tenant.limit = tenant.limit or RateLimit(self._rate, 0)
            most = tenant.limit.room(boot_ns)
        if self.in_flight_max:
            most = min(most, self.in_flight_max - tenant.in_flight)
        return most

    def taken(self, tenant: Tenant, count: int, *, again: bool) -> None:
        """Remove the first messages of a tenant, all from the first run of one kind."""
        if again:
            start, size, attempts = tenant.again.popleft()
            if count < size:
                tenant.again.appendleft((start + count, size - count, attempts))
            else:
                self.again_rows -= 1
            self.again_messages -= count
            return
        start, size, _ = tenant.runs.popleft()
        if count < size:
            tenant.runs.appendleft((start + count, size - count, 0))
        else:
            self.rows -= 1
        tenant.messages -= count
        self.messages -= count

    def next_piles(self) -> Iterable[Tenant]:
        return [*islice(self.line, options.FETCHES_MAX)]

    def forget_requests(self) -> None:
        for tenant in self.line:
            tenant.ahead = 0

    # Both kinds of runs

    def _counted(self) -> None:
        tenants = self._tenants.values()
        self.rows = sum(len(tenant.runs) for tenant in tenants)
        self.messages = sum(tenant.messages for tenant in tenants)
        self.again_rows = sum(len(tenant.again) for tenant in tenants)
        self.again_messages = sum(total(tenant.again) for tenant in tenants)

    def remove(self, start: int, stop: int) -> int:
        removed = 0
        for tenant in self._tenants.values():
            removed += tenant.remove(start, stop)
            gone, left, _ = take(sorted(tenant.again), [(start, stop - start)])
            if gone:
                tenant.again = deque(left)
                removed += total(gone)
        self._counted()
        return removed

    def cut_out(self, ranges: Sequence[Range]) -> None:
        for tenant in self._tenants.values():
            tenant.runs = deque(cut_out(tenant.runs, ranges))
            tenant.messages = total(tenant.runs)
            tenant.again = deque(cut_out(tenant.again, ranges))
        self._counted()

    def take_all(self) -> list[Run]:
        """Remove all new messages, and return them. Their tenants are no longer known."""
        runs = sorted(run for tenant in self._tenants.values() for run in tenant.runs)
        for tenant in self._tenants.values():
            tenant.runs.clear()
            tenant.messages = 0
        self._counted()
        return runs

    def take_all_again(self) -> list[Run]:
        """Remove all redeliveries, and return them."""
        runs = [run for tenant in self._tenants.values() for run in tenant.again]
        for tenant in self._tenants.values():
            tenant.again.clear()
        self._counted()
        return runs

    def clear(self) -> None:
        self._tenants.clear()
        self._resting.clear()
        self.line.clear()
        self._due.clear()
        self._counted()

    def again_runs(self) -> Iterator[Run]:
        return (run for tenant in self._tenants.values() for run in tenant.again)

    def runs(self) -> Iterator[Run]:
        """Return the new runs: the first message of each tenant, in line, and then the rest."""
        others = [one for one in self._tenants.values() if one.state is not State.IN_LINE]
        rest: list[Run] = []
        for tenant in (*self.line, *others):
            if tenant.runs:
                start, count, attempts = tenant.runs[0]
                yield start, 1, attempts
                rest += [(start + 1, count - 1, attempts)] if count > 1 else []
                rest += list(tenant.runs)[1:]
        yield from rest

    def largest(self, count: int) -> list[Tenant]:
        """Return the tenants with the most waiting messages."""
        waiting = (tenant for tenant in self._tenants.values() if tenant.has_messages())
        return heapq.nlargest(count, waiting, key=lambda tenant: tenant.waiting)


class FairSupply(ParkedSupply):
    """A supply whose piles are tenants."""

    def __init__(
        self, next_offset: int, holes: Iterable[Hole], deferred: Deferred, counters: dict[str, int], settings: ChannelSettings,
        choice: ChannelFilter | None = None,
    ) -> None:  # fmt: skip
        self._tenants = Tenants(settings)
        self._out: dict[int, Tenant] = {}  # messages in flight, with `max_in_flight_per_key`
        self._brings_new = False  # the block that is parked has the first message of a tenant
        # The last sorted block with its spans. It is kept because it may be sorted in pieces.
        self._known: tuple[Block, list[Span]] | None = None
        super().__init__(next_offset, holes, deferred, counters, settings, choice, self._tenants)

    @property
    def cache_bytes(self) -> int:
        return options.FAIR_CACHE_BYTES_MAX

    def configure(self, settings: ChannelSettings) -> None:
        fair_by = self.settings.fair_by
        super().configure(settings)
        again = self.living(self._tenants.take_all_again(), TRIED)
        self.again.ready.extendleft(reversed(again))
        if settings.fair_by != fair_by:
            self._unsorted = sorted([*self._unsorted, *self._tenants.take_all()])
            self._known = None
        self._tenants.configure(settings)
        if not settings.max_in_flight_per_key:
            self._out.clear()
        self._tenants.queue_all(self.boot_ns)

    # In

    def drop_blocks(self) -> None:
        super().drop_blocks()
        self._known = None

    def _is_needed_soon(self, block: Block) -> bool:
        is_new, self._brings_new = self._brings_new, False
        return is_new or self._tenants.messages - block.count < options.PARKED_KEPT

    def _spans_of(self, block: Block) -> list[Span]:
        if self._known is None or self._known[0] is not block:
            column = block.key if self.settings.fair_by == "key" else block.tag
            spans: list[Span] = [(0, block.count, None)]
            if column is not None:
                self.looks -= block.count
                spans, at = [], 0
                for key, same in groupby(column.values()):
                    count = sum(1 for _ in same)
                    spans.append((at, at + count, key))
                    at += count
            self._known = block, spans
        return self._known[1]

    def _park(self, block: Block, start: int, stop: int, rows_max: int = 0) -> int:
        tenants, first, others = self._tenants, block.first_offset, len(self._unsorted)
        for low, high, key in self._spans_of(block):
            if high <= start:
                continue
            if low >= stop:
                break
            if rows_max and low > start and tenants.rows + others >= rows_max:
                return low
            low = low if low > start else start
            high = high if high < stop else stop
            tenant = tenants.park(key, first + low, high - low)
            if tenant.state is State.IDLE:
                self._brings_new = True
                tenants.queue(tenant, self.boot_ns)
        return stop

    def _sort_again(self) -> None:
        """Let the messages to deliver again go to their tenants, if their blocks are in memory."""
        ready = self.again.ready
        missing: list[Run] = []
        while ready and self.looks > 0 and len(missing) < options.FETCHES_MAX:
            first, count, attempts = ready.popleft()
            block = self._find(first)
            if block is None:
                self.wanted.add(first)
                missing.append((first, count, attempts))
                continue
            start = first - block.first_offset
            stop = min(block.count, start + count)
            alone = stop - start == 1
            spans = [(start, stop, self._key_at(block, first))] if alone else self._spans_of(block)
            for low, high, key in spans:
                low, high = max(low, start), min(high, stop)
                if low < high:
                    run = (block.first_offset + low, high - low, attempts)
                    tenant = self._tenants.put_again(key, run)
                    if tenant.state is State.IDLE:
                        self._tenants.queue(tenant, self.boot_ns)
            self.looks -= stop - start
            if stop - start < count:
                ready.appendleft((first + stop - start, count - (stop - start), attempts))
        ready.extendleft(reversed(missing))

    # Out

    @property
    def waiting_rows(self) -> int:
        return super().waiting_rows + self._tenants.again_rows

    def has_ready(self) -> bool:
        return bool(self.again.rows or self.apart.rows or self._tenants.line)

    def limit_due_ns(self) -> int:
        return self._tenants.due_ns()

    def pick(self, consumer: Subscriber, room: int, rows_out: int, wall_ns: int) -> Picked | None:
        if self._holds:
            return None
        self._sort_again()
        self._tenants.wake(self.boot_ns)
        self._tenants.sweep(self.boot_ns)
        builder = DeliveryBuilder(room, options.PARKED_ALONE)
        self._serve(builder, consumer, room, wall_ns, new=self._may_give_new(rows_out))
        return builder.picked()

    def _serve(
        self, builder: DeliveryBuilder, consumer: Subscriber, room: int, wall_ns: int, *, new: bool
    ) -> None:
        """Fill a delivery with the messages of the tenants in line."""
        line, aside, is_first = self._tenants.line, list[Tenant](), True
        if not (new or self._tenants.again_rows):
            return
        while (
            line and builder.has_room() and self.looks > 0 and len(aside) < options.FAIR_MISSED_MAX
        ):
            lump = room if len(line) == 1 else 1 if is_first else self._lump(builder.room)
            is_first, before = False, (builder.room, builder.offered, self.looks)
            filled = Filled.DONE
            for _ in range(len(line)):
                tenant = line.popleft()
                tenant.credit = tenant.credit or tenant.weight * lump
                filled = self._fill(builder, tenant, consumer, wall_ns, new=new)
                if filled is Filled.NOT_NOW:
                    aside.append(tenant)
                elif filled is Filled.FULL and tenant.credit > 0:
                    tenant.credit = min(tenant.credit, tenant.weight)
                    line.appendleft(tenant)
                else:
                    tenant.credit = 0
                    self._tenants.queue(tenant, self.boot_ns)
                if filled is Filled.FULL or len(aside) >= options.FAIR_MISSED_MAX:
                    break
            if filled is Filled.FULL or before == (builder.room, builder.offered, self.looks):
                break
        line.extendleft(reversed(aside))
        self._want_next()

    def _want_next(self) -> None:
        """Request the blocks of the next messages that are not in memory."""
        line = self._tenants.line
        for tenant in self._tenants.next_piles():
            offset = (tenant.again or tenant.runs)[0][0]
            if self._find(offset) is None:
                self._want(offset)
        # If keys alternate, the next messages of one key are in the next blocks of all. If they
        # come in long runs, each has blocks of its own, and only its next block is needed.
        first = line[0].runs if line else ()
        if first and (len(line) == 1 or first[0][1] < options.FAIR_SHORT_RUN):
            self._read_ahead(line[0])

    def _lump(self, room: int) -> int:
        """Return how many messages a weight of 1 may have in the next round of this delivery, so
        that the round is whole.
        """
        line = self._tenants.line
        if len(line) * 2 > room:
            return 1
        return max(1, room // sum(tenant.weight for tenant in line))

    def _fill(
        self,
        builder: DeliveryBuilder,
        tenant: Tenant,
        consumer: Subscriber,
        wall_ns: int,
        *,
        new: bool,
    ) -> Filled:
        end = self._unsorted[0][0] if self._unsorted else self.next_offset
        tenants, allowed = self._tenants, self._tenants.allowance(tenant, self.boot_ns)
        lasting: Block | None = None  # none of its messages has ended
        while tenant.credit > 0 and allowed > 0:
            may_new = new and bool(tenant.runs) and tenant.runs[0][0] < end
            again = bool(tenant.again) and not (tenant.again_last and may_new)
            if not (again or may_new):
                return Filled.NOT_NOW if tenant.runs else Filled.DONE
            if not builder.has_room() or self.looks <= 0:
                return Filled.FULL
            offset, count, attempts = tenant.again[0] if again else tenant.runs[0]
            block = builder.block_of(offset) or self._find(offset)
            if block is None:
                tenant.ahead = 0
                self._want(offset)
                return Filled.NOT_NOW
            at = offset - block.first_offset
            if count > 1:
                count = min(count, block.count - at)
            if block is not lasting:
                reason, count = self.first_of(block, at, count, wall_ns)
                if reason != WANTED:
                    tenants.taken(tenant, count, again=again)
                    self.looks -= count
                    self.give_up((offset, count, attempts), reason)
                    continue
                lasting = block if self.choice.endings.mask(block, wall_ns) is None else None
            sampled = consumer.sample_rate > 0 and not again
            if count > 1:
                count = min(count, tenant.credit, allowed)
            count = builder.count_that_fits(block, at, count, sampled=sampled)
            if not count:
                return Filled.FULL
            tenants.taken(tenant, count, again=again)
            tenant.again_last = again
            if sampled and self._is_left_out(builder, consumer):
                self._give_up(offset, count)
                continue
            builder.add(block, at, at + count, attempts + 1)
            tenant.credit -= count
            allowed -= count
            self._sent(tenant, offset, count)
        return Filled.DONE

    def _give_up(self, offset: int, count: int) -> None:
        """Finish these messages for this channel without a delivery."""
        self.looks -= count
        self.done(((offset, count, 0),))

    def _sent(self, tenant: Tenant, offset: int, count: int) -> None:
        if tenant.limit is not None:
            tenant.limit.take(count)
        if self._tenants.in_flight_max and tenant.key is not None:
            tenant.in_flight += count
            self._out.update(dict.fromkeys(range(offset, offset + count), tenant))

    def pick_apart(self, consumer: Subscriber, room: int, wall_ns: int) -> Picked | None:
        """Return the next suspect whose key may have one more message with consumers."""
        self.apart_held = False
        if not self.apart.ready or not self._has_limits():
            return super().pick_apart(consumer, room, wall_ns)
        found = self._free_suspect(wall_ns)
        if found is None:
            return None
        offset, attempts, block, tenant = found
        self.apart.ready = deque(cut_out(self.apart.ready, [(offset, 1)]))
        consumer.again_last = True
        self._tenants.allowance(tenant, self.boot_ns)
        self._sent(tenant, offset, 1)
        if tenant.state is State.IDLE:
            self._tenants.queue(tenant, self.boot_ns)
        at = offset - block.first_offset
        return Picked([(offset, 1, attempts + 1)], [(block, at, at + 1)], apart=True)

    def _free_suspect(self, wall_ns: int) -> tuple[int, int, Block, Tenant] | None:
        """Return the first suspect that may go, and give up those before it that have ended.

        Only the first FAIR_MISSED_MAX of them are looked at. If consumers have enough messages of
        the keys of all, `apart_held` is True then.
        """
        looks = 0
        for first, count, attempts in list(self.apart.ready):
            for offset in range(first, first + count):
                if looks == options.FAIR_MISSED_MAX:
                    return None
                looks += 1
                block = self._find(offset)
                if block is None:
                    self.apart_held = False
                    self.wanted.add(offset)
                    return None
                reason, _ = self.first_of(block, offset - block.first_offset, 1, wall_ns)
                if reason != WANTED:
                    self.apart.ready = deque(cut_out(self.apart.ready, [(offset, 1)]))
                    self.give_up((offset, 1, attempts), reason)
                    continue
                tenant = self._tenants.of(self._key_at(block, offset))
                if not self._tenants.is_busy(tenant):
                    return offset, attempts, block, tenant
                self.apart_held = True
        return None

    def _has_limits(self) -> bool:
        return bool(self._tenants.in_flight_max or self.settings.max_rate_per_key)

    def _key_at(self, block: Block, offset: int) -> bytes | None:
        column = block.key if self.settings.fair_by == "key" else block.tag
        return None if column is None else column.value(offset - block.first_offset)

    # Back

    def _release(self, runs: Iterable[Run]) -> None:
        """Note that consumers do not have these messages any more."""
        if not self._out:
            return
        for start, count, _ in runs:
            for offset in range(start, start + count):
                tenant = self._out.pop(offset, None)
                if tenant is not None:
                    tenant.in_flight -= 1
                    if tenant.state in (State.IN_FLIGHT, State.IDLE):
                        self._tenants.queue(tenant, self.boot_ns)

    def take_back(self, runs: Iterable[Run]) -> None:
        runs = list(runs)
        self._release(runs)
        super().take_back(runs)

    def done(self, runs: Sequence[Run]) -> None:
        self._release(runs)
        super().done(runs)

    def back(self, runs: Sequence[Run], cause: Cause) -> None:
        self._release(runs)
        super().back(runs, cause)

    def suspect(self, runs: Sequence[Run], cause: Cause) -> None:
        self._release(runs)
        super().suspect(runs, cause)

    def later(self, runs: Sequence[Run], due_ns: int, cause: Cause) -> None:
        self._release(runs)
        super().later(runs, due_ns, cause)

    def reject(self, runs: Sequence[Run], cause: Cause) -> None:
        self._release(runs)
        super().reject(runs, cause)

    # Moves

    def seek(self, offset: int) -> None:
        self._out.clear()
        super().seek(offset)

    def _remove(self, start: int, stop: int) -> int:
        removed = super()._remove(start, stop)
        self._tenants.queue_all(self.boot_ns)
        return removed

    def skip_messages(self, ranges: Sequence[Range], deferred: Sequence[Row]) -> bool:
        moved = super().skip_messages(ranges, deferred)
        self._tenants.queue_all(self.boot_ns)
        return moved

    # Commits

    def _parked_runs(self) -> Iterable[Run]:
        return chain(super()._parked_runs(), self._tenants.again_runs())

    def _waiting_rows(self) -> Iterable[Run]:
        return chain(super()._waiting_rows(), self._tenants.again_runs())

    # Reports

    def shown(self) -> dict[str, Iterator[Run]]:
        shown = super().shown()
        parked = super()._parked_runs()
        requeued = chain(shown["requeued"], self._tenants.again_runs())
        return {**shown, "requeued": requeued, "parked": chain(parked)}

    def tenants(self) -> tuple[TenantRow, ...]:
        return tuple(
            {
                "key": None
                if tenant.key is None
                else tenant.key.decode("utf-8", "replace")[:KEY_SHOWN],
                "waiting": tenant.waiting,
                "limited": self._tenants.held_by(tenant, self.boot_ns),
            }
            for tenant in self._tenants.largest(options.TENANTS_SHOWN)
        )

    def statistics(self, head: int) -> SupplyPulse:
        pulse = super().statistics(head)
        again = self._tenants.again_messages
        pulse["depth"] += again
        pulse["requeued_waiting"] += again
        pulse["tenant_count"] = self._tenants.known()
        return pulse
