"""What a power cut may take of a topic that answers before its sync, and that nothing else takes
anything.

`interval` and `never` promise less than `always`, and exactly this is held:

* kills lose nothing: whatever was answered and is not in the log was written before a power cut
* a cut takes of the log's last chunk only (a roll syncs the one before), and nothing that was
  durable by itself: a committed version of
  staged rows, or a delayed message that was not due yet
* `interval`: what is lost is the end of what was written, with nothing kept behind it; it came
  within `BOUND_NS` before the cut, if the
  topic's storage ran all that time; and nothing is lost whose finish was confirmed, as the log is
  synced before that

In `never` the kernel may write the later half of a chunk first, and recovery keeps it and steps
over what is missing: so there what is lost may have something kept behind it.

When a message was written is seen at the log itself (`watch_log`): an answer may be on its way for
long, and come after the cut.
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
    """A message in the log, once; `era`: how many power cuts there had been."""

    number: int
    offset: int
    at_ns: int
    era: int


@dataclass(frozen=True, slots=True)
class Cut:
    """`last_chunk`: by topic, the first offset of its last chunk. `since_ns`: since when its
    storage ran without a stop, if it did.
    """

    at_ns: int
    wall_latest_ns: int
    last_chunk: dict[str, int]
    since_ns: dict[str, int]


@dataclass
class Losses:
    """`modes`: of the topics that are not `always`. `writes`: of each of them, in order."""

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
        """The power is about to go: everything still runs."""
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
        self.cuts.append(Cut(world.now_ns, world.wall_latest_ns, bases, since_ns))
        for topic in self.modes:
            self.ledger.forget_ends(topic)

    def is_old(self, topic: str, offset: int, number: int) -> bool:
        """An answer that a power cut has overtaken: where it lay, another may lie by now. Rule 8
        holds for it all the same.
        """
        if topic not in self.modes:
            return False
        eras = [
            write.era
            for write in self.writes.get(topic, ())
            if (write.number, write.offset) == (number, offset)
        ]
        return bool(eras) and eras[-1] < len(self.cuts)

    def judge(self, topic: str, stored: dict[int, int]) -> set[int]:
        """`stored`: number -> offset. Which of those that were answered a cut has taken, and may
        have.
        """
        last = {write.number: write for write in self.writes.get(topic, ())}
        missing = [
            sent
            for sent in self.ledger.sent.values()
            if sent.topic == topic and sent.acked and sent.number not in stored
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
                    (write.offset for write in writes if write.number not in stored), default=kept
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
    """Each append that is written, for the topics that may lose it."""
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
