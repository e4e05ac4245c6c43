"""Check of what the loss of a disk may take, if the broker ships its log to the bucket.

The promises:

* With sync mode `bucket`, no acknowledged message is lost. With each mode, no transaction is lost
  whose commit was answered.
* With sync mode `always`, the lost messages of a topic are from a time of at most the bound: when
  the last of them was accepted, the first one had been synced for at most the bound. How old they
  are when the disk is lost is not limited: while the bucket is away, publishing waits, and what was
  acknowledged before that stays where it is. A start of the topic's process begins the time anew,
  because a process does not know since when a message waits.
* If nothing failed for a while, the lost messages and the confirmed finishes that are lost are not
  older than the bound, plus the time of the uploads (`MARGIN_NS`).
* No offset that the lost broker gave out is given out again. The gap that follows from this is not
  larger than what was reserved in the bucket.

The time at which a message was accepted, and at which it was synced, is taken from the log and from
the delayed messages (`watch`), because an answer may arrive late. What was lost is taken from the
restored directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from support.history import number_of

from zsq.actors.storage.retention import RetentionRunner
from zsq.actors.storage.storage_actor import StorageActor
from zsq.storage.bucket.shipping.tick_format import decode_index
from zsq.storage.delayed.delayed import DelayedStore
from zsq.storage.delayed.delayed_format import DelayedKey
from zsq.storage.log.group import CommittedGroup
from zsq.storage.log.log import Log
from zsq.storage.retention import LogView

from .contents import TopicContent, contents
from .former import former_now
from .world import MS, the_world

if TYPE_CHECKING:
    from .broker import Broker
    from .ledger import ChannelLedger, Ledger, Order

SLACK_NS: Final = MS
MARGIN_NS: Final = 250 * MS
SETTLED_NS: Final = 700 * MS  # time after which a fault, or the start of a process, has no effect


@dataclass(slots=True)
class Accepted:
    """A message that a topic has accepted. `offset` is -1 for a delayed one. `noted_ns` is when it
    was on the disk, 0 before that. `began_ns` is when the topic's process began.
    """

    number: int
    offset: int
    at_ns: int
    began_ns: int
    noted_ns: int = 0


class Disaster(NamedTuple):
    """The loss of a disk. `processes`: the number of processes before it. `calm_ns`: since when
    nothing had failed, or the time of the loss if the bucket was not well.
    """

    at_ns: int
    processes: int
    calm_ns: int


@dataclass
class Disasters:
    ledger: Ledger
    lag_ns: int = 0
    struck: list[Disaster] = field(default_factory=list)
    lost: int = 0
    # By topic: what was accepted since the last disaster.
    accepted: dict[str, list[Accepted]] = field(default_factory=dict)
    # By topic: the numbers of messages that a disaster may have taken.
    excused: dict[str, set[int]] = field(default_factory=dict)
    # By topic: the ranges of offsets that are skipped.
    gaps: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    # (topic, first offset) -> the messages of a block.
    placed: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    # (process, request) -> the delayed messages that its topic gave to the storage.
    delayed: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    _there: dict[str, set[int]] = field(default_factory=dict)
    _pending: bool = False

    # What the topics do

    def reserve(self, topic: str, uuid: str, end: int) -> None:
        """Check that all offsets below `end` may be given out."""
        if self.ledger.losses.modes.get(topic) == "never":
            return  # it is not shipped
        if text := self.ledger.world.bucket.shipped.not_reserved(uuid, end):
            self.ledger.record(f"{topic} {text}")

    def accept_plain(
        self, topic: str, uuid: str, numbers: list[int], offset: int, at_ns: int
    ) -> None:
        """Record messages that were published without a delay, or that have come to the log."""
        world = self.ledger.world
        assert world.current is not None
        began_ns = world.current.process.began_ns
        sent = [self.ledger.sent.get(number) for number in numbers]
        is_plain = not any(one is not None and one.delayed for one in sent)
        if is_plain and self.ledger.losses.modes.get(topic) != "never":
            rows = self.accepted.get(topic, ())
            if text := world.bucket.shipped.too_late(uuid, rows, at_ns, began_ns, self.lag_ns):
                self.ledger.record(f"{topic} {text}")
        self.accept(topic, numbers, offset, at_ns)

    def accept(self, topic: str, numbers: list[int], offset: int, at_ns: int) -> None:
        current = the_world().current
        began_ns = current.process.began_ns if current is not None else 0
        # A process that ended before its sync may have lost messages. Their offsets are given out
        # again then.
        rows = [row for row in self.accepted.get(topic, ()) if not 0 <= offset <= row.offset]
        self.accepted[topic] = rows
        for index, number in enumerate(numbers):
            place = offset + index if offset >= 0 else -1
            rows.append(Accepted(number, place, at_ns, began_ns))

    def synced(self, topic: str, end: int) -> None:
        now_ns = the_world().now_ns
        for row in self.accepted.get(topic, ()):
            if not row.noted_ns and 0 <= row.offset < end:
                row.noted_ns = now_ns

    def stored(self, topic: str) -> None:
        """Note that the delayed messages that were accepted are on the disk, at the latest now."""
        now_ns = the_world().now_ns
        for row in self.accepted.get(topic, ()):
            if not row.noted_ns and row.offset < 0:
                row.noted_ns = now_ns

    # Disasters

    def may_strike(self) -> bool:
        """Return False while the bucket has no registry, because nothing can be restored then."""
        objects = self.ledger.world.bucket.objects
        ticks = [data for name, data in objects.items() if name.startswith("log/")]
        return any(decode_index(data).index.registry for data in ticks)

    def strike(self, broker: Broker) -> None:
        """Record the loss of the disk just before it happens."""
        world = self.ledger.world
        is_well = world.bucket.kind and not world.bucket.is_away(broker.machine)
        calm_ns = world.disturbed_ns if is_well else world.now_ns
        self.struck.append(Disaster(world.now_ns, len(world.incarnations), calm_ns))
        self._pending = True
        self.ledger.removed_below.clear()  # the removal may be undone
        for row in self.ledger.channels.values():
            row.held.clear()
            row.not_before.clear()
            for move in row.moves:
                move.in_effect = False

    def is_between(self, before: Order, after: Order) -> bool:
        """Return True if a disaster was between these two leases."""
        return any(before[0] < one.processes <= after[0] for one in self.struck)

    def is_from_before(self, order: Order) -> bool:
        """Return True if the lease was made before the last disaster."""
        return bool(self.struck) and order[0] < self.struck[-1].processes

    def is_skipped(self, topic: str, offset: int) -> bool:
        return any(first <= offset < stop for first, stop in self.gaps.get(topic, ()))

    def may_lose_finish(self, number: int, channel: str, at_ns: int, before: Order) -> bool:
        """Return True if a finish may be lost that was confirmed at this time."""
        for one in self.struck:
            if before[0] >= one.processes:
                continue
            is_calm = one.calm_ns + SETTLED_NS < at_ns
            if is_calm and at_ns < one.at_ns - self.lag_ns - MARGIN_NS:
                continue
            return True
        return False

    # After the restore

    def restored(self, broker: Broker) -> None:
        """Compare the restored directory with what was accepted."""
        world, ledger = self.ledger.world, self.ledger
        found = contents(str(broker.data_dir), world.bucket.objects)
        reserved = _reserved(world.bucket.objects)
        mode = broker.options.sync
        for topic, content in found.items():
            self._check_topic(topic, content, reserved.get(content.row.uuid, 0), mode)
        for topic in {one.topic for one in ledger.sent.values()} - found.keys():
            self._lost_topic(topic, mode)
        self.accepted.clear()
        for former in broker.formers:
            former.succeeded(self._there)
        self._there = {}
        self._pending = False

    def _lost_topic(self, topic: str, mode: str) -> None:
        """Note that nothing of a topic was shipped."""
        ledger = self.ledger
        self._excuse(topic, self.accepted.get(topic, []), mode)
        excused = self.excused.get(topic, set())
        for sent in ledger.sent.values():
            if sent.topic == topic:
                sent.offset = -1
                if sent.acked and sent.number not in excused:
                    ledger.record(f"{sent.number} was acknowledged, and topic {topic} is lost")
        for row in ledger.channels.values():
            if row.topic == topic:
                self._lost_channel(row)
                row.doubtful |= row.seen

    def _check_topic(self, topic: str, content: TopicContent, reserved: int, mode: str) -> None:
        ledger = self.ledger
        there = {number_of(body) for body in content.messages.values()}
        there |= {number_of(body) for body in content.delayed}
        there |= self._removed(topic, content.row.uuid)
        self._there[topic] = there
        end = max(content.messages, default=content.start - 1) + 1
        if content.end > max(reserved, end):
            ledger.record(
                f"{topic} continues at {content.end}, and {reserved} offsets were reserved"
            )
        taken = [row for row in self.accepted.get(topic, ()) if row.number not in there]
        beyond = [row for row in self.accepted.get(topic, ()) if row.offset >= content.end]
        if beyond:
            ledger.record(
                f"{topic} had given out offset {beyond[-1].offset}, and continues at {content.end}"
            )
        self._note_gaps(topic, content)
        self._excuse(topic, taken, mode)
        is_topic = any(row.topic == topic for row in ledger.channels.values())
        is_topic = is_topic or any(row.topic == topic for row in ledger.sent.values())
        if not is_topic:
            return
        for sent in ledger.sent.values():
            if sent.topic != topic:
                continue
            if sent.number not in there:
                sent.offset = -1
                for row in ledger.channels.values():
                    row.doubtful.add(sent.number)
                if sent.acked and sent.number not in self.excused.get(topic, ()):
                    ledger.record(f"{sent.number} of {topic} was acknowledged and is lost")
                self.lost += sent.acked
            elif sent.delayed:
                sent.offset = -1
        for row in ledger.channels.values():
            if row.topic == topic and row.name not in content.table.channels:
                self._lost_channel(row)
        for offset, body in content.messages.items():
            ledger.place(topic, offset, number_of(body))

    def _removed(self, topic: str, uuid: str) -> set[int]:
        """Return the messages that retention had removed after the bucket had them.

        What was removed before that is lost like other messages.
        """
        ledger = self.ledger
        end = ledger.world.bucket.shipped.ends.get(uuid, 0)
        removed = ledger.removed.setdefault(topic, set())
        removed -= {number for number in removed if ledger.sent[number].offset >= end}
        return removed

    def _lost_channel(self, row: ChannelLedger) -> None:
        """Note that a channel is lost. Its creation is answered before it is shipped."""
        disaster = self.struck[-1]
        is_calm = disaster.calm_ns + SETTLED_NS < row.made_ns
        if is_calm and row.made_ns < disaster.at_ns - self.lag_ns - MARGIN_NS:
            self.ledger.record(f"channel {row.name} of {row.topic} is lost")
        row.is_new = True

    def _note_gaps(self, topic: str, content: TopicContent) -> None:
        gaps = self.gaps[topic] = []
        end = 0
        for offset in [*sorted(content.messages), content.end]:
            if offset > end:
                gaps.append((end, offset))
            end = offset + 1

    def _excuse(self, topic: str, taken: list[Accepted], mode: str) -> None:
        """Note which of the lost messages may be lost."""
        if mode == "bucket":
            return
        disaster = self.struck[-1]
        excused = self.excused.setdefault(topic, set())
        for row in taken:
            sent = self.ledger.sent.get(row.number)
            # What was delayed, and moved to the log later, had been accepted before.
            if sent is None or (sent.delayed and row.offset >= 0 and sent.topic == topic):
                continue
            first_ns = min(
                (
                    max(one.noted_ns, row.began_ns)
                    for one in taken
                    if one.noted_ns and one.noted_ns < row.at_ns
                ),
                default=row.at_ns,
            )
            if row.at_ns - first_ns > self.lag_ns + SLACK_NS:
                self.ledger.world.note(
                    f"{row.number} of {topic} was accepted {(row.at_ns - first_ns) / MS:.0f} ms "
                    "after the first lost message was synced"
                )
                continue
            since_ns = max(disaster.calm_ns, row.began_ns) + SETTLED_NS
            age_ns = disaster.at_ns - row.noted_ns
            if row.noted_ns > since_ns and age_ns > self.lag_ns + MARGIN_NS:
                self.ledger.world.note(f"{row.number} of {topic} waited for {age_ns / MS:.0f} ms")
                continue
            excused.add(row.number)


def _reserved(objects: dict[str, bytes]) -> dict[str, int]:
    """Return the offsets that any tick reserves, by the uuids of the topics."""
    found: dict[str, int] = {}
    for name, data in objects.items():
        if name.startswith("log/"):
            index = decode_index(data).index
            rows = [(piece.uuid, piece.reserved) for piece in index.pieces]
            rows += [(uuid, tail.reserved) for uuid, tail in (index.tails or {}).items()]
            for uuid, reserved in rows:
                found[uuid] = max(found.get(uuid, 0), reserved)
    return found


def watch() -> None:
    """Record what the topics accept, and when it is on the disk."""
    append, append_group, finish = Log.append, Log.append_group, Log.finish_sync
    remove = RetentionRunner._remove
    delay, put = StorageActor.append_delayed, DelayedStore.put

    def disasters() -> Any:
        world = the_world()
        if world.broker.ships is None or former_now() is not None:
            return None
        return world.broker.losses.ledger.disasters

    def topic_of(folder: str) -> tuple[str, str]:
        """Return the name and the uuid of the topic with this folder, or two empty strings."""
        supervisor = the_world().broker.supervisor
        if supervisor is None:
            return "", ""
        registry = supervisor.state.registry
        rows = registry.topics.items()
        return next(
            ((name, row.uuid) for name, row in rows if registry.folder(row) == folder), ("", "")
        )

    def appended(log: Log, blocks: Sequence[Any], now_ns: int) -> tuple[int, int]:
        at_ns = the_world().now_ns
        found = append(log, blocks, now_ns)
        if (former := former_now()) is not None:
            _note_former(former, log, blocks, found[0])
            return found
        topic, uuid = topic_of(log._folder)
        if (record := disasters()) is not None and topic:
            offset = found[0]
            record.reserve(topic, uuid, offset + sum(block.count for block in blocks))
            for block in blocks:
                bodies = [bytes(body or b"") for body in block.body.values()]
                if _is_ours(bodies):
                    numbers = list(map(number_of, bodies))
                    record.placed[topic, offset] = numbers
                    record.accept_plain(topic, uuid, numbers, offset, at_ns)
                offset += block.count
        return found

    def group_appended(log: Log, *given: Any) -> CommittedGroup:
        group = append_group(log, *given)
        if (former := former_now()) is not None:
            topic, uuid = former.topic_of(log._folder)
            if topic and group.messages:
                former.gives_out(topic, uuid, group.first_offset + group.messages)
            return group
        topic, uuid = topic_of(log._folder)
        if (record := disasters()) is not None and topic and group.messages:
            record.reserve(topic, uuid, group.first_offset + group.messages)
        return group

    def finished(log: Log, ticket: Any) -> None:
        finish(log, ticket)
        if (record := disasters()) is not None and (topic := topic_of(log._folder)[0]):
            record.synced(topic, log.synced_end)

    def delayed(self: Any, request: int, blocks: list[Any], delays_ms: Sequence[int]) -> None:
        at_ns = the_world().now_ns
        delay(self, request, blocks, delays_ms)
        world = the_world()
        if world.broker.ships is not None and world.current is not None:
            bodies = [bytes(body or b"") for block in blocks for body in block.body.values()]
            numbers = list(map(number_of, bodies)) if _is_ours(bodies) else []
            rows = world.broker.losses.ledger.disasters.delayed
            rows[world.current.process.pid, request] = numbers
        if (record := disasters()) is not None:
            for block in blocks:
                bodies = [bytes(body or b"") for body in block.body.values()]
                if _is_ours(bodies):
                    record.accept(self.given.name, list(map(number_of, bodies)), -1, at_ns)

    def stored(store: DelayedStore, blocks: Any, used_ns: int) -> list[DelayedKey]:
        keys = put(store, blocks, used_ns)
        if (record := disasters()) is not None:
            record.stored(topic_of(store.path.rpartition("/")[0])[0])
        return keys

    def removed(runner: RetentionRunner, start: int, chunks: int, view: LogView) -> None:
        if (record := disasters()) is not None and (topic := topic_of(runner._log._folder)[0]):
            record.ledger.removes(topic, start)
        remove(runner, start, chunks, view)

    module: Any = RetentionRunner
    module._remove = removed
    module = Log
    module.append, module.append_group = appended, group_appended
    module.finish_sync = finished
    module = StorageActor
    module.append_delayed = delayed
    module = DelayedStore
    module.put = stored


def _note_former(former: Any, log: Log, blocks: Sequence[Any], offset: int) -> None:
    """Record what a former primary appends."""
    topic, uuid = former.topic_of(log._folder)
    if not topic:
        return
    former.gives_out(topic, uuid, offset + sum(block.count for block in blocks))
    placed = the_world().broker.losses.ledger.disasters.placed
    for block in blocks:
        bodies = [bytes(body or b"") for body in block.body.values()]
        if _is_ours(bodies):
            placed[topic, offset] = list(map(number_of, bodies))
        offset += block.count


def _is_ours(bodies: list[bytes]) -> bool:
    """Return False for the messages of other clients, whose bodies have another form."""
    try:
        for body in bodies:
            number_of(body)
    except (AssertionError, ValueError):
        return False
    return True
