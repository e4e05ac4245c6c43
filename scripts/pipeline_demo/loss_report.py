"""Report of `--bucket`: checks that nothing acknowledged is lost, and the numbers of the loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from . import work
from .audit import Auditor
from .bucket import LAG_S, PATIENCE_S, URL
from .flights import Tally
from .live import REMINDERS, Acknowledged, LivePublisher, Reminders
from .loss import FINISHED_S, Loss
from .takeover import Takeover

# The part, or -1 if the topic has none, and the offset.
Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Lost:
    """The loss, and the clients that worked while it happened.

    `waiting` has the keys of the delayed messages that waited in the restored broker. `kept_sync`
    is True if the restored topics have their sync mode.
    """

    loss: Loss
    live: LivePublisher
    reminders: Reminders
    auditor: Auditor
    waiting: frozenset[str]
    kept_sync: bool


def check_loss(
    lost: Lost, topic: Mapping[Place, bytes], bodies: Sequence[bytes], handled: Tally
) -> dict[str, bool]:
    """Return the checks of the loss, by name.

    `topic` has the messages at the end, by part and offset.
    """
    loss, live, auditor = lost.loss, lost.live, lost.auditor
    seconds = f"{FINISHED_S:.0f} s"
    before = split_at(live.acknowledged, loss.gone_at)[0]
    how = "taken over" if isinstance(loss, Takeover) else "restored"
    return {
        f"lost and {how} in the middle: Spark had read {loss.before.streamed:,} rows": (
            loss.happened
            and 0 < loss.before.streamed < len(bodies)
            and 0 < len(before) < len(live.acknowledged)
        ),
        f"each of {live.rows:,} live rows is at the acknowledged offset": (
            misplaced(live.acknowledged, topic, bodies) == 0 and live.rows > 0
        ),
        f"channel {work.AUDIT}: {auditor.finished_first:,} finished rows stayed finished, "
        "each other row came once": auditor.tally.exactly_once,
        f"channel {work.WORKERS}: only rows of the last {seconds} before the loss came again": (
            handled.repeated <= loss.before.recent
        ),
        f"{REMINDERS} delayed messages waited in the restored broker": (
            lost.waiting == lost.reminders.keys and len(lost.waiting) == REMINDERS
        ),
        "each delayed message came once, and not before it was due": lost.reminders.good,
        "the restored topics still acknowledge only what the bucket has": lost.kept_sync,
    }


def misplaced(
    acknowledged: Iterable[Acknowledged], topic: Mapping[Place, bytes], bodies: Sequence[bytes]
) -> int:
    """Return how many acknowledged rows are not at the offset that the broker said."""
    return sum(
        topic.get((block.part, block.offset + index)) != bodies[row]
        for block in acknowledged
        for index, row in enumerate(block.rows)
    )


def split_at(
    acknowledged: Iterable[Acknowledged], time_s: float
) -> tuple[list[Acknowledged], list[Acknowledged]]:
    """Return the blocks that were acknowledged until this time, and those after it."""
    blocks = list(acknowledged)
    return (
        [block for block in blocks if block.time_s <= time_s],
        [block for block in blocks if block.time_s > time_s],
    )


def print_loss(console: Console, lost: Lost, handled: Tally, restarts: Sequence[str]) -> None:
    """Print what was lost, how long the restore took, and what it read from the bucket."""
    is_taken = isinstance(lost.loss, Takeover)
    title = (
        "lost, and taken over by its standby" if is_taken else "lost, and restored from the bucket"
    )
    table = Table(title, box=box.SIMPLE_HEAD)
    table.add_column("", justify="right")
    table.add_column("")
    for name, value, note in loss_rows(lost, handled.repeated):
        table.add_row(name, value, note)
    console.print(table)
    console.print(
        f"Spark's query was started again from its checkpoint, after: {', '.join(restarts)}"
        if restarts
        else "Spark's query waited while the broker was away, and went on by itself",
        markup=False,
    )
    console.print("the seconds of the channels and of the stream contain the loss")


def loss_rows(lost: Lost, repeated: int) -> list[tuple[str, str, str]]:
    """Return the name, the value and a note of each number. Times begin with the kill."""
    loss, before, audited = lost.loss, lost.loss.before, lost.auditor.finished_first
    parts = split_at(lost.live.acknowledged, loss.gone_at)
    early, late = (sum(len(block.rows) for block in part) for part in parts)
    first = f"{parts[1][0].time_s - loss.killed_at:.1f} s" if parts[1] else "never"
    recent = f"handled in the last {FINISHED_S:.0f} s before the kill: {before.recent:,}"
    return [
        ("killed with kill -9", f"{loss.processes} processes", "the broker with all that it started"),
        ("destroyed", _size(loss.destroyed_bytes), f"the data directory, {loss.destroyed_files} files"),
        ("read by Spark's stream at the kill", f"{before.streamed:,} rows", ""),
        (f"handled in channel {work.WORKERS} at the kill", f"{before.workers:,} rows", ""),
        (f"counted in channel {work.TOTALS} at the kill", f"{before.totals:,} rows", ""),
        (f"finished in channel {work.AUDIT} at the kill", f"{audited:,} rows", f"delivered later: {lost.auditor.came - audited:,}"),
        (f"handled twice in channel {work.WORKERS}", f"{repeated:,} rows", recent),
        ("acknowledged live before the kill", f"{early:,} rows", ""),
        ("acknowledged live after it", f"{late:,} rows", f"blocks refused and sent again: {lost.live.refused}"),
        ("kill and destruction", f"{loss.destroy_s:.1f} s", ""),
        *(_takeover_rows(loss) if isinstance(loss, Takeover) else _restore_rows(loss)),
        ("first publish in the bucket, after the kill", first, f"--sync bucket, --bucket-lag {LAG_S:g}s"),
    ]  # fmt: skip


def _restore_rows(loss: Loss) -> list[tuple[str, str, str]]:
    return [
        ("zsq restore", f"{loss.restore_s:.1f} s", f"of {URL}, to another directory"),
        ("fetched by zsq restore", _size(loss.fetched.sent_bytes), f"{loss.fetched.requests} requests, by the S3 server's count"),
        ("fetched later, when needed", _size(loss.later.sent_bytes), f"{loss.later.requests} requests, by the broker and by Spark"),
        ("start of the restored broker", f"{loss.start_s:.1f} s", f"ready {loss.ready_s:.1f} s after the kill"),
        ("offsets that are never used", f"{loss.skipped:,}", "reserved by the lost broker; readers step over them"),
    ]  # fmt: skip


def _takeover_rows(loss: Takeover) -> list[tuple[str, str, str]]:
    return [
        ("takeover by the standby", f"{loss.ready_s:.1f} s", f"after the kill, with --patience {PATIENCE_S:g}s"),
        ("fetched during the takeover", _size(loss.fetched.sent_bytes), f"{loss.fetched.requests} requests, by the S3 server's count"),
    ]  # fmt: skip


def _size(count: int) -> str:
    return f"{count / (1024 * 1024):,.1f} MiB"
