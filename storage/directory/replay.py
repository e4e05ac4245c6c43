"""Replay after a crash: one commit adds the log after the checkpoint to the state."""

from __future__ import annotations

from dataclasses import replace

from ...transport.block.block import DELAYED
from ...transport.block.block_format import HAS_IDS, UNIQUE
from ..log.log import Log
from ..log.recovery import RecoveryReport
from ..log.transactions import later_of, superseded
from ..state.state import ProducerRow, StateBatch, Table, producer_after


def replay(
    log: Log, table: Table, report: RecoveryReport, *, rebuilt: bool = False
) -> StateBatch | None:
    """Return the changes that the state needs, or None if it needs none.

    The batch contains rows of producers and transactions, committed stages to remove, and cursors
    to set back. `rebuilt` is True if the state comes from a snapshot. The log's start may have
    moved since the snapshot.
    """
    batch = StateBatch(applied_offset=log.end, synced_end=log.end)
    producers: dict[int, ProducerRow] = {}
    # Begin one block before the checkpoint. A mark is directly after the messages of its group and
    # contains no message. So if a mark is at the checkpoint, the state may or may not contain its
    # group.
    for header, mark in log.headers(max(table.applied_offset - 1, 0)):
        if mark is not None:
            row = mark.row(header.time_ns)
            app = mark.transaction.app
            batch.transactions[app] = later_of(
                batch.transactions.get(app) or table.transactions.get(app), row
            )
            batch.stage_gones += (
                *superseded(table.stages, app, row.version, row.user),
                *mark.parts,
            )
        elif not header.count:
            report.alarms.append(
                f"the mark of the group before offset {header.first_offset} is damaged, so its "
                "transaction is not known"
            )
        elif header.next_offset > table.applied_offset:
            report.replayed_blocks += 1
            if header.flags & HAS_IDS and report.ids_from < 0:
                report.ids_from = header.first_offset
            if header.flags & UNIQUE and report.keys_from < 0:
                report.keys_from = header.first_offset
            # The sequences of delayed blocks were committed when they were published.
            if header.producer_id and not header.flags & DELAYED:
                known = producers.get(header.producer_id) or table.producers.get(header.producer_id)
                producers[header.producer_id] = producer_after(
                    known, header.sequence, header.first_offset, header.time_ns
                )
    if log.holes != report.holes:
        report.alarms.append(
            "a chunk after the checkpoint cannot be read; lost are now, as (offset, count): "
            f"{[tuple(hole) for hole in log.holes]}"
        )
        report.holes = log.holes
    batch.producers = producers
    batch.transactions = {
        app: row for app, row in batch.transactions.items() if table.transactions.get(app) != row
    }
    batch.stage_gones = [
        stage for stage in dict.fromkeys(batch.stage_gones) if stage in table.stages
    ]
    _clamp(log.end, table, batch, report)
    if rebuilt and log.start > table.start:
        _begin_at(log.start, table, batch)
    changes = (
        producers,
        batch.transactions,
        batch.stage_gones,
        batch.channel_puts,
        batch.hole_gones,
    )
    moved = {batch.waiting, batch.paused_end, batch.start} != {None}
    if (
        not any(changes)
        and not moved
        and table.applied_offset == log.end
        and table.synced_end == log.end
    ):
        return None
    return batch


def _clamp(end: int, table: Table, batch: StateBatch, report: RecoveryReport) -> None:
    """Set back cursors that are beyond the log's end, with an alarm.

    This should not happen, because the log is synced before the state is committed.
    """
    for name, row in table.channels.items():
        if row.next_offset > end:
            report.alarms.append(
                f"channel {name}: its cursor {row.next_offset} is beyond the log's end {end}; "
                "it is set back to that end"
            )
            batch.channel_puts[name] = replace(row, next_offset=end)
        batch.hole_gones += [
            (name, hole.start) for hole in table.holes.get(name, ()) if hole.start >= end
        ]
    if table.waiting > end:
        report.alarms.append(
            f"the waiting cursor {table.waiting} is beyond the log's end {end}; it is set back "
            "to that end"
        )
        batch.waiting = end
    if table.paused_end > end:
        report.alarms.append(
            f"the paused end {table.paused_end} is beyond the log's end {end}; it is set back "
            "to that end"
        )
        batch.paused_end = end


def _begin_at(start: int, table: Table, batch: StateBatch) -> None:
    """Move start and cursors up to `start`, for chunks that were removed after the snapshot.

    When the chunks were removed, their messages were finished, or were dropped and counted. So this
    does not count them again.
    """
    batch.start = start
    if table.waiting < start:
        batch.waiting = start
    for name, row in table.channels.items():
        if row.next_offset < start:
            batch.channel_puts[name] = replace(row, next_offset=start)
        for hole in table.holes.get(name, ()):
            if hole.start < start:
                batch.hole_gones.append((name, hole.start))
                left = hole.start + hole.count - start
                batch.hole_puts += [(name, start, left, hole.attempts, 0)] if left > 0 else []
