"""Check of the messages that a topic may lose if it answers before its sync. Only a power cut may
make it lose messages.

The sync modes `interval` and `never` promise less than `always`. This is what they promise:

* Kills lose nothing: every message that was answered and is not in the log was written before a
power cut.
* A power cut takes only messages of the log's last chunk, because a new chunk is begun only after a
sync of the one before. It takes no message that is always synced at once: rows of a committed
transaction, and delayed messages that were not due yet.
* With `interval`, the lost messages are the end of what was written, and no message after a lost
one is kept. They were written within `BOUND_NS` before the cut, if the topic's storage ran during
all of that time. No message is lost whose finish was confirmed, because the log is synced before
that.

With `never`, the kernel may write the later half of a chunk first. Recovery then keeps that half
and skips the missing one. So in that mode messages after a lost one may be kept.

The time at which a message was written is taken from the log itself (`watch_log`), because an
answer may be delayed for long and arrive after the cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from support.history import number_of

from zsq.storage.log.log import Log
from zsq.storage.log.log_format import parse_chunk_name

from .world import S, the_world

if TYPE_CHECKING:
    from .broker import Broker
    from .ledger import Ledger, Sent

BOUND_NS: Final = 2 * S


class Write(NamedTuple):
    """One write of a message to the log. `era`: the number of power cuts before it."""

    number: int
    offset: int
    at_ns: int
    era: int


@dataclass(frozen=True, slots=True)
class Cut:
    """A power cut. `last_chunk`: by topic, the first offset of its last chunk. `since_ns`: by
    topic, the time since which its storage has run without a stop, if it runs. `failed_syncs`: the
    number of syncs that had failed before it. `processes`: the number of processes before it.
    """

    at_ns: int
    wall_latest_ns: int
    last_chunk: dict[str, int]
    since_ns: dict[str, int]
    failed_syncs: int = 0
    processes: int = 0


@dataclass
class Losses:
    """The writes and power cuts of a run. `modes`: the topics whose sync mode is not `always`, with
    their mode. `writes`: the writes of each of these topics, in order.
    """

    ledger: Ledger
    modes: dict[str, str] = field(default_factory=dict)
    cuts: list[Cut] = field(default_factory=list)
    writes: dict[str, list[Write]] = field(default_factory=dict)
    lost: int = 0

    def wrote(self, topic: str, offset: int, numbers: list[int]) -> None:
        rows, now_ns, era = (
            self.writes.setdefault(topic, []),
            self.ledger.world.now_ns,
            len(self.cuts),
        )
        rows += [Write(number, offset + index, now_ns, era) for index, number in enumerate(numbers)]

    def cut(self, broker: Broker) -> None:
        """Record a power cut just before it happens. All processes still run."""
        world = self.ledger.world
        bases, since_ns = {}, {}
        for topic in self.modes:
            folder = broker.folder(topic)
            if folder and broker.disk.files.exists(folder):
                found = [parse_chunk_name(name) for name in broker.disk.files.list(folder)]
                bases[topic] = max((base for base in found if base is not None), default=0)
            for process in broker.of_kind("topic"):
                if process.name.startswith(f"topic {topic} ["):
                    since_ns[topic] = max(process.began_ns, process.asleep_until_ns)
        self.cuts.append(
            Cut(
                world.now_ns,
                world.wall_latest_ns,
                bases,
                since_ns,
                broker.disk.failed_syncs,
                len(world.incarnations),
            )
        )
        for topic in self.modes:
            self.ledger.forget_ends(topic)

    def is_from_before(self, topic: str, incarnation: float) -> bool:
        """Return True if a power cut ended the channel's process that made a delivery. It may
        arrive after the cut, and its offsets may have other messages then.
        """
        return topic in self.modes and bool(self.cuts) and incarnation < self.cuts[-1].processes

    def is_old(self, topic: str, offset: int, number: int) -> bool:
        """Return True if the answer is for a write before a power cut. Another message may have
        this offset now. Rule 8 still holds for that message.
        """
        if topic not in self.modes:
            return False
        eras = [
            write.era
            for write in self.writes.get(topic, ())
            if (write.number, write.offset) == (number, offset)
        ]
        return bool(eras) and eras[-1] < len(self.cuts)

    def judge(self, topic: str, stored: dict[int, int], removed: set[int]) -> set[int]:
        """Return the answered messages that a power cut has taken, and check that each of these
        losses is allowed. `stored`: number -> offset. `removed` went after all channels had them.
        """
        last = {write.number: write for write in self.writes.get(topic, ())}
        gone_or_there = stored.keys() | removed
        missing = [
            sent
            for sent in self.ledger.sent.values()
            if sent.topic == topic and sent.acked and sent.number not in gone_or_there
        ]
        for sent in missing:
            self._may_go(sent, last.get(sent.number))
        if self.modes[topic] == "interval":
            for era in range(len(self.cuts)):
                writes = [write for write in self.writes.get(topic, ()) if write.era == era]
                kept = max(
                    (write.offset for write in writes if stored.get(write.number) == write.offset),
                    default=-1,
                )
                lost = min(
                    (
                        write.offset
                        for write in writes
                        if write.number not in stored and write.number not in removed
                    ),
                    default=kept,
                )
                if kept > lost:
                    self.ledger.broken(f"a power cut took offset {lost} of {topic} and left {kept}")
        self.lost += len(missing)
        return {sent.number for sent in missing}

    def _may_go(self, sent: Sent, write: Write | None) -> None:
        broken, what = self.ledger.broken, f"{sent.number} of {sent.topic} was answered and is gone"
        if sent.durable:
            broken(f"{what}; it was committed with its version")
        if write is None:
            broken(f"{what}, and never lay in the log")
            return
        if write.era == len(self.cuts):
            broken(f"{what}, without a power cut since it lay at {write.offset}")
            return
        cut = self.cuts[write.era]
        before = self.cuts[write.era - 1].failed_syncs if write.era else 0
        # The sync that ends a chunk is the only one in this mode. If it fails, the system may
        # forget pages that no sync had covered.
        if self.modes[sent.topic] == "never" and cut.failed_syncs > before:
            return
        if write.offset < cut.last_chunk.get(sent.topic, 0):
            broken(
                f"{what} from {write.offset}; the last chunk began at {cut.last_chunk[sent.topic]}"
            )
        if self.modes[sent.topic] != "interval":
            return
        if sent.delayed:
            broken(f"{what}; it was delayed, and in LMDB until the log had it on disk")
        ran_ns = cut.at_ns - cut.since_ns.get(sent.topic, cut.at_ns)
        if min(cut.at_ns - write.at_ns, ran_ns) > BOUND_NS:
            broken(
                f"{what}; it was written {(cut.at_ns - write.at_ns) / S:.1f} s before the power cut"
            )
        if any(
            sent.number in row.confirmed
            for row in self.ledger.channels.values()
            if row.topic == sent.topic
        ):
            broken(f"{what}; its finish was confirmed")


def watch_log() -> None:
    """Record each append to the log of a topic that may lose messages."""
    plain = Log.append

    def append(log: Log, blocks: Sequence[Any], now_ns: int) -> tuple[int, int]:
        first, time_ns = offset, _ = plain(log, blocks, now_ns)
        world = the_world()
        losses: Losses = world.broker.losses
        for topic in losses.modes:
            if log._folder == world.broker.folder(topic):
                for block in blocks:
                    losses.wrote(
                        topic, offset, [number_of(bytes(body)) for body in block.body.values()]
                    )
                    offset += block.count
        return first, time_ns

    module: Any = Log
    module.append = append
