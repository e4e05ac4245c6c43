"""Small workloads for `scripts/prove crash-states`. Their changes of the disk are recorded, so that
every possible crash can be checked.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from unittest import mock

from support.storage_harness import GROUPS, IDENTITY, SMALL

from zsq.storage.checks.fsck import check_topic
from zsq.storage.delayed import delayed as delayed_store
from zsq.storage.directory.store import StoreOptions
from zsq.storage.state.channel_row import ChannelRow
from zsq.storage.state.state import StateBatch

from .before_the_cut import (
    with_a_bad_block,
    with_a_bad_delayed_row,
    with_a_damaged_head,
    with_an_older_commit,
    with_its_end_cut_off,
    without_a_chunk,
    without_a_footer,
    without_delayed_messages,
    without_its_last_header,
    without_its_state,
)
from .damaged_life import DamagedLife
from .id_life import IdLife, ids
from .life import Life
from .queue_life import QueueWork, queue
from .registry_life import RegistryWork, registry
from .seek_life import SeekLife, moved
from .subject import Recorded, Workload, recorder

MERGES: Final = replace(GROUPS, adopt_bytes=2_000)


@dataclass(slots=True, frozen=True)
class TopicWork:
    """A workload of one topic's store. `before` prepares the store, and is not recorded."""

    work: Callable[[Life], None]
    options: StoreOptions = SMALL
    before: Callable[[Life], None] = lambda life: None
    kind: type[Life] = Life

    def record(self, name: str, root: Path) -> Recorded:
        life = self.kind(root, self.options)
        life.open()
        self.before(life)
        if life.store is not None:
            life.abandon_cleanly()
        with recorder(life).recording(life.promise) as trace:
            life.open()
            trace.recovered = len(trace.steps)
            self.work(life)
        life.abandon()
        return Recorded(
            name, trace, lambda files, promise: self.kind.revived(files, promise, self.options)
        )


def publishes(life: Life) -> None:
    """Appends, syncs, checkpoints and new chunks. One checkpoint counts blocks that only the switch
    to a new chunk has synced.
    """
    for turn in range(7):
        life.publish(blocks=1 + turn % 3)
        if turn % 2:
            life.sync()
        if turn % 4 == 3:
            life.checkpoint()
    life.publish(blocks=3)
    life.publish(blocks=3)
    life.publish(blocks=3)
    life.checkpoint()
    life.sync()
    life.publish()


def channels(life: Life) -> None:
    """Rows of channels: they are made, moved forward (with holes and attempts), deferred, moved
    back and dropped.
    """
    life.publish(blocks=3)
    life.sync()
    life.save_channel("one", 0)
    life.save_channel("one", 4, [(1, 1, 1, 0), (2, 1, 2, 5_000)])
    life.publish(blocks=2)
    life.save_channel("two", 0, paused=True)
    life.sync()
    life.checkpoint()
    life.save_channel("one", 9, [(1, 1, 2, 9_000), (5, 2, 1, 0)])
    life.save_channel("two", 2)
    life.publish(blocks=4)
    life.sync()
    life.save_channel("one", 3)


def groups(life: Life) -> None:
    """Transactions that are staged in parts, and committed by appending, by adopting, or both. Only
    the commit syncs the publish before it.
    """
    life.publish(blocks=2)
    life.sync()
    small = life.stage("small", 1)
    life.seal(small)
    life.checkpoint()
    life.commit(1, small)
    big = [life.stage(f"big{i}", 2, blocks=4, size=60) for i in range(2)]
    life.seal(*big)
    life.publish()
    life.commit(2, *big)
    life.publish(blocks=1)
    life.sync()
    both = [life.stage("b", 3, blocks=5, size=60), life.stage("s", 3, blocks=1)]
    life.seal(*both)
    life.checkpoint()
    life.commit(3, *both)


def delayed(life: Life) -> None:
    life.publish()
    life.sync()
    keys = life.publish_delayed(10, 20, 30)
    life.move(10)
    life.publish()
    life.publish_delayed(15, 40)
    life.cancel(keys[2])
    life.sync()
    life.checkpoint()
    life.move(30, rows_max=1)
    life.move(30)
    life.checkpoint()
    life.move(50)


def retention(life: Life) -> None:
    life.save_channel("one", 0)
    for _ in range(4):
        life.publish(blocks=3)
        life.sync()
    life.checkpoint()
    bases = life.log.chunks
    life.save_channel("one", bases[2] + 1)
    life.retain(bases[1])
    life.publish(blocks=2)
    life.retain(bases[2])
    life.sync()
    life.checkpoint()


def staging(life: Life) -> None:
    """Stages that continue after a seal, are dropped, or are never committed. After one commit, the
    process dies before it commits the state. Small parts are merged before a commit.
    """
    a = life.stage("a", 1, blocks=2)
    life.seal(a, final=False)
    life.stage("a", 1, blocks=3, size=80)
    b = life.stage("b", 1, blocks=1)
    life.seal(a, b)
    life.drop(b)
    life.publish()
    life.sync()
    life.checkpoint()
    many = [life.stage(f"part{i}", 2, blocks=3, size=40) for i in range(3)]
    life.seal(*many)
    life.commit(2, *many, merge=True)
    life.stage("left", 3, blocks=2)


def lagging(life: Life) -> None:
    """The process dies between the commit of a group and the commit of the state. Recovery
    completes it.
    """
    life.publish(blocks=2)
    life.sync()
    life.checkpoint()
    a = life.stage("a", 1, blocks=2)
    life.seal(a)
    life.commit(1, a, lag=True)
    life.abandon()
    life.open()
    life.publish()
    life.sync()
    life.checkpoint()
    b = life.stage("b", 2, blocks=6, size=60)
    life.seal(b)
    life.commit(2, b, lag=True)
    life.abandon()
    life.open()


def deferred(life: Life) -> None:
    """Deferred messages of a channel (holes with a due time) are stored, changed, and cleared. A
    channel is dropped and made again.
    """
    life.publish(blocks=4)
    life.sync()
    life.checkpoint()
    life.save_channel("one", 12, [(1, 2, 1, 50), (4, 1, 1, 60), (7, 3, 2, 0)])
    life.save_channel("two", 6, [(0, 3, 1, 70)])
    life.commit_state(
        StateBatch(hole_gones=[("one", 4)], hole_puts=[("one", 1, 1, 2, 90), ("one", 2, 1, 1, 0)])
    )
    life.commit_state(StateBatch(deferred_clears=["one"], channel_puts={"one": ChannelRow(1)}))
    life.commit_state(StateBatch(channel_drops=["two"]))
    life.save_channel("two", 12)
    life.commit_state(StateBatch(paused_end=life.log.synced_end, waiting=3))
    life.restart()
    life.save_channel("one", 9, [(2, 1, 3, 200)])


def interleaved(life: Life) -> None:
    """A move of delayed messages to the log, with other publishes at each moment of it."""
    life.publish_delayed(10, 20)
    life.publish_delayed(12)
    life.publish(blocks=2)
    rows = life.move_into_log(15)
    life.publish()
    life.sync()
    life.publish_delayed(30, count=1)
    life.publish()
    life.forget_moved(rows)
    life.checkpoint()
    rows = life.move_into_log(40)
    life.sync()
    life.abandon()
    life.open()
    life.publish()
    life.sync()
    life.checkpoint()


def shrunk(life: Life) -> None:
    """The environment of delayed messages is replaced by a compact copy."""
    keys = life.publish_delayed(10, 20, 30)
    life.move(10)
    with mock.patch.object(delayed_store, "SHRINK_ABOVE_BYTES", 0):
        assert life.delayed.shrink(life.files)
    life.publish_delayed(40)
    life.cancel(keys[1])
    life.move(30)


def full(life: Life) -> None:
    """The disk is sometimes full. The bytes that a refused write has written are cut off."""
    life.publish(blocks=2)
    life.sync()
    for taken in (10, 100, 200):
        life.refused(taken)
        life.publish()
    life.sync()
    life.checkpoint()
    life.refused(70)
    life.publish(blocks=2)
    life.sync()


def rescued(life: Life) -> None:
    life.publish_delayed(50)
    life.move(45)


def repaired(life: Life) -> None:
    """`zsq fsck --repair`, followed by normal use."""
    life.abandon_cleanly()
    report = check_topic(life.files, life.directory, IDENTITY, 5_000, repair=True)
    assert not report.damaged
    life.open()
    life.publish()
    life.sync()


def goes_on(life: Life) -> None:
    life.publish(blocks=2)
    life.sync()
    life.checkpoint()


def wild(seed: str) -> Callable[[Life], None]:
    """Random actions in an order that the parts of the broker could produce."""

    def work(life: Life) -> None:
        chance = random.Random(seed)
        verbs = [verb for verb, weight in WILD.items() for _ in range(weight)]
        for _ in range(14):
            chance.choice(verbs)(life, chance)
        life.publish()

    return work


def _publish(life: Life, chance: random.Random) -> None:
    life.publish(
        blocks=chance.randint(1, 3), count=chance.randint(1, 4), size=chance.choice((3, 20, 90))
    )


def _channel(life: Life, chance: random.Random) -> None:
    """Save a channel whose cursor is not after the synced end, with holes only before its
    cursor.
    """
    end = life.log.synced_end
    following = chance.randint(life.log.start, end) if end > life.log.start else end
    holes = [
        (start, 1, chance.randint(1, 3), chance.choice((0, 0, 500)))
        for start in range(life.log.start, following)
        if chance.random() < 0.2
    ]
    life.save_channel(chance.choice(("one", "two")), following, holes)


def _delayed(life: Life, chance: random.Random) -> None:
    life.sync()
    life.publish_delayed(
        *(life.now_ns + chance.randint(1, 60) for _ in range(chance.randint(1, 2))),
        count=chance.randint(1, 3),
    )


def _move(life: Life, chance: random.Random) -> None:
    life.move(life.now_ns + 30, chance.randint(1, 3))


def _retain(life: Life, chance: random.Random) -> None:
    life.sync()
    life.checkpoint()
    life.retain(chance.choice(life.log.chunks))


def _restart(life: Life, chance: random.Random) -> None:
    if chance.random() < 0.5:
        life.restart()
        life.acknowledged = len(life.sent)
    else:
        life.sync()
        life.abandon()
        life.open()


WILD: Final[dict[Callable[[Life, random.Random], None], int]] = {
    _publish: 5,
    lambda life, chance: life.sync(): 3,
    lambda life, chance: life.checkpoint(): 2,
    _channel: 3,
    _delayed: 2,
    _move: 2,
    _retain: 1,
    _restart: 1,
}


WORKLOADS: Final[dict[str, Workload]] = {
    "publishes": TopicWork(publishes),
    "channels": TopicWork(channels),
    "groups": TopicWork(groups, GROUPS),
    "delayed": TopicWork(delayed),
    "retention": TopicWork(retention),
    "staging": TopicWork(staging, MERGES),
    "lagging": TopicWork(lagging, GROUPS),
    "deferred": TopicWork(deferred),
    "interleaved": TopicWork(interleaved),
    "moved": TopicWork(moved, kind=SeekLife),
    "shrunk": TopicWork(shrunk),
    "full": TopicWork(full),
    "ids": TopicWork(ids, kind=IdLife),
    "channels-damaged": TopicWork(channels, kind=DamagedLife),
    "groups-damaged": TopicWork(groups, GROUPS, kind=DamagedLife),
    "retention-damaged": TopicWork(retention, kind=DamagedLife),
    "rescue": TopicWork(rescued, before=with_a_bad_delayed_row),
    "lost-end": TopicWork(goes_on, before=with_its_end_cut_off),
    "headless": TopicWork(goes_on, before=without_its_last_header),
    "missing-chunk": TopicWork(goes_on, before=without_a_chunk),
    "gone": TopicWork(rescued, before=without_delayed_messages),
    "bad-head": TopicWork(rescued, before=with_a_damaged_head),
    "older-commit": TopicWork(rescued, before=with_an_older_commit),
    "rebuild": TopicWork(goes_on, before=without_its_state),
    "repair": TopicWork(repaired, before=without_a_footer),
    "bad-block": TopicWork(repaired, before=with_a_bad_block),
    "registry": RegistryWork(registry),
    "queue": QueueWork(queue),
    "queue-4": QueueWork(queue, sync_every=4),
    **{f"wild-{number}": TopicWork(wild(str(number))) for number in range(1, 4)},
}


def workload(name: str) -> Workload:
    """Return the workload with this name from the table, or the random workload wild-N
    for any N.
    """
    return WORKLOADS[name] if name in WORKLOADS else TopicWork(wild(name.removeprefix("wild-")))
