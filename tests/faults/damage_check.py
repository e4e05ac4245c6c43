"""Checks of a damaged directory: only what was touched is lost, every loss is reported, nothing
wrong is delivered, and the topic can still be used.

The same rule applies to all kinds of damage. A block may be lost only in three cases: some of its
bytes differ from what was written, its file is missing, or both copies of its chunk's header and
the footer that repeats it are damaged. If the process had died, more may be lost: everything from
the first touched block may be cut off too, if neither the state nor a later block shows that this
block was stored (`recovery.py` says why). Everything else must be read unchanged.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from zsq.storage.directory.store import Store, open_store
from zsq.storage.errors import Damaged, StorageError
from zsq.storage.log.damage import Hole
from zsq.storage.log.log import Log
from zsq.storage.log.log_format import (
    CHUNK_COPY_BYTES,
    CHUNK_HEADER_BYTES,
    FOOTER_BYTES,
    decode_chunk_header,
    decode_disk_header,
    parse_chunk_name,
    unsynced_bytes,
)
from zsq.storage.log.transactions import Transaction
from zsq.transport.block.block import HEADER_BYTES, Block, pack

from .damage_lives import delayed_bodies, read_all, unfinished
from .damage_specimens import (
    APP,
    CHANNELS,
    EPOCH_NS,
    PRODUCERS,
    SeededFiles,
    Specimen,
    Tree,
    abandon,
)

SEEKS: Final = 3  # reads that begin in the middle of a block, after each damage


class ViolationError(AssertionError):
    """A promise was broken. The text says which one."""


@dataclass(slots=True)
class Expected:
    """The losses that are allowed. `lost`: first offsets of the blocks that may be lost.
    `cut_from`: the offset from which the log may be cut off as an unfinished write, or -1.
    """

    lost: set[int]
    cut_from: int = -1
    silent: bool = False
    """True if the file just ends before the lost part, so that the loss cannot be noticed."""
    may_refuse: bool = False
    state: bool = False
    """True if the damage is in the state store or its snapshot. Then channels may be at an earlier
    position.
    """
    delayed: bool = False
    stages: set[bytes] = field(default_factory=set)


@dataclass(slots=True)
class Seen:
    """The outcome of one start."""

    refused: str = ""
    lost: set[int] = field(default_factory=set)
    told: bool = False
    """True if a read, an alarm, or a known hole reported the damage."""
    read_damage: bool = False
    """True if a read reported damage that was not known before."""
    alarms: list[str] = field(default_factory=list)
    holes: tuple[Hole, ...] = ()


def need(holds: object, text: str) -> None:
    if not holds:
        raise ViolationError(text)


def expected(specimen: Specimen, tree: Tree) -> Expected:
    """Derive what may be lost by comparing the bytes, whatever kind of damage was done."""
    lost: set[int] = set()
    for path in specimen.chunks():
        new, old = tree.get(path), specimen.tree[path]
        mine = [block for block in specimen.blocks.values() if block.path == path]
        if new is None or not _has_header(old, new):
            lost.update(block.header.first_offset for block in mine)
        elif new != old:
            lost.update(
                block.header.first_offset
                for block in mine
                if new[block.position : block.end] != old[block.position : block.end]
            )
    cut_from = -1 if specimen.closed else _cut_from(specimen, tree)
    if cut_from >= 0:
        lost.update(offset for offset in specimen.blocks if offset >= cut_from)
    stages = {
        key
        for key in specimen.staged
        if any(key.hex() in path and tree.get(path) != data for path, data in specimen.tree.items())
    }
    changed = {
        path
        for path in specimen.tree.keys() | tree.keys()
        if tree.get(path) != specimen.tree.get(path)
    }
    state = any(path.startswith("state") and path != "state.starts" for path in changed)
    silent = len(tree.get(specimen.chunks()[-1], b"")) <= min(
        (specimen.blocks[one].position for one in lost if one >= cut_from), default=0
    )
    return Expected(
        lost,
        cut_from,
        silent,
        state=state,
        delayed=any(path.startswith("delayed") for path in changed),
        stages=stages,
    )


def _has_header(old: bytes, new: bytes) -> bool:
    """Return True if a copy of the chunk's header is left, or the footer that repeats it."""
    copies = [new[at : at + CHUNK_COPY_BYTES] for at in (0, CHUNK_COPY_BYTES)]
    if old[:CHUNK_COPY_BYTES] in copies:
        return True
    if new[:4] == b"ZSQC" and new[:CHUNK_COPY_BYTES] == new[CHUNK_COPY_BYTES:CHUNK_HEADER_BYTES]:
        return False  # it is the header of another chunk, so it is unknown whose bytes follow
    return (
        old[-FOOTER_BYTES:][:4] == b"ZSQF"
        and len(new) == len(old)
        and new[-FOOTER_BYTES:] == old[-FOOTER_BYTES:]
    )


def _cut_from(specimen: Specimen, tree: Tree) -> int:
    """Return the offset of the first block in the last chunk that is touched and that neither the
    state nor a later block shows to be stored. Return -1 if there is none.
    """
    path = specimen.chunks()[-1]
    base = parse_chunk_name(path)
    assert base is not None
    old, new = specimen.tree[path], tree.get(path, b"")
    if not _has_header(old, new):
        return max(base, specimen.synced_end)
    seed = decode_chunk_header(old).seed
    attested, at, touched = 0, CHUNK_HEADER_BYTES, []
    offset = group = base
    in_group = False
    while (
        at < len(old)
        and (header := decode_disk_header(old[at : at + HEADER_BYTES], seed)) is not None
    ):
        if header.flags & 16 and not in_group:
            group = offset
        in_group = bool(header.flags & 16)
        if new[at : at + header.length] == old[at : at + header.length]:
            attested = max(attested, at - (unsynced_bytes(header) or 0))
        else:
            touched.append((at, group if in_group or not header.count else offset))
        at, offset = at + header.length, base + header.next_offset
    return next(
        (
            max(first, specimen.synced_end)
            for at, first in touched
            if at >= attested and offset > specimen.synced_end
        ),
        -1,
    )


def open_copy(specimen: Specimen, directory: str) -> Store:
    return open_store(SeededFiles(random.Random(7)), directory, specimen.options, specimen.identity)


def examine(specimen: Specimen, directory: str, want: Expected, *, again: bool = False) -> Seen:
    """Open the damaged directory, compare it with what was promised, and close it. `again`: start
    it a second and a third time.
    """
    seen = Seen()
    try:
        store = open_copy(specimen, directory)
    except StorageError as error:
        need(want.may_refuse, f"the start is refused: {error!r}")
        seen.refused = str(error)
        return seen
    try:
        check(specimen, store, want, seen)
    except BaseException:
        abandon(store)
        raise
    if not again:
        abandon(store)
    else:
        store.close()
        _check_again(specimen, directory, want, seen)
    return seen


def check(specimen: Specimen, store: Store, want: Expected, seen: Seen) -> None:
    """Compare what an open store returns with what was promised."""
    source = random.Random(specimen.number)
    log, report = store.log, store.report
    seen.alarms = list(report.alarms)
    seen.read_damage = _check_seeks(specimen, log, want, source)
    found, damage = read_all(log)
    seen.read_damage = seen.read_damage or bool(damage)
    seen.told = bool(seen.read_damage or report.alarms or report.holes)
    _check_bodies(specimen, found)
    seen.lost = specimen.blocks.keys() - found.keys()
    need(
        seen.lost <= want.lost,
        (
            f"blocks {sorted(seen.lost - want.lost)} are lost and were not touched; touched: "
            f"{sorted(want.lost)}"
        ),
    )
    end = specimen.end if want.cut_from < 0 else want.cut_from
    need(log.end >= end, f"the log ends at {log.end}, and offsets below {end} were given before")
    seen.holes = log.holes
    for offset in seen.lost:
        if want.cut_from < 0 or offset < want.cut_from:
            need(
                log.skip(offset) > offset or offset < log.start,
                f"offset {offset} is lost, and no hole is known there",
            )
            need(seen.told, f"the loss of offset {offset} is told to nobody")
        else:
            need(
                seen.told or want.silent or any("cut off" in note for note in report.notes),
                f"offset {offset} is cut off, and nobody is told",
            )
    _check_times(specimen, found, log, source)
    _check_state(specimen, store, want, all(offset < specimen.applied for offset in seen.lost))
    if not want.delayed:
        need(delayed_bodies(store) == specimen.delayed, "delayed messages are not as they were")


def _check_bodies(specimen: Specimen, found: dict[int, Block]) -> None:
    for offset, block in found.items():
        stored = specimen.blocks.get(offset)
        if stored is None and offset in specimen.rotten:
            need(
                bytes(block.columns) == specimen.rotten[offset],
                f"a body at offset {offset} is wrong, which was lost before",
            )
            continue
        need(stored is not None, f"offset {offset} is given, and was never given before")
        assert stored is not None
        need(block.header == stored.header, f"the header at offset {offset} is wrong")
        need(bytes(block.columns) == stored.columns, f"a body at offset {offset} is wrong")


def _check_seeks(specimen: Specimen, log: Log, want: Expected, source: random.Random) -> bool:
    """Check that a read from any offset returns the block of that offset, or says that it is lost.
    Return True if a read said so.
    """
    told = False
    offsets = sorted(specimen.blocks)
    for _ in range(SEEKS if offsets else 0):
        stored = specimen.blocks[source.choice(offsets)]
        wanted = source.randrange(stored.header.first_offset, stored.header.next_offset)
        if wanted >= log.end:
            continue
        try:
            blocks = log.read(wanted, 1, log.end)
        except Damaged as error:
            lost = range(error.offset, error.offset + error.count)
            need(wanted in lost, f"a read at {wanted} says that {lost} are lost")
            need(
                stored.header.first_offset in want.lost,
                f"a read at {wanted} says it is lost, and it was not touched",
            )
            told = True
            continue
        _check_bodies(specimen, {block.first_offset: block for block in blocks})
        if stored.header.first_offset not in want.lost:
            need(
                blocks and blocks[0].first_offset == stored.header.first_offset,
                f"a read at {wanted} gives something else",
            )
    return told


def _check_times(
    specimen: Specimen, found: dict[int, Block], log: Log, source: random.Random
) -> None:
    if found:
        time_ns = source.choice(list(found.values())).header.time_ns
        at = log.offset_at(time_ns)
        first = min(
            (offset for offset, block in found.items() if block.header.time_ns >= time_ns),
            default=log.end,
        )
        need(at <= first, f"the first message of {time_ns} is {first}, not {at}")
        need(
            all(block.header.time_ns < time_ns for offset, block in found.items() if offset < at),
            f"{at} is not the first of {time_ns}",
        )


def _check_state(specimen: Specimen, store: Store, want: Expected, applied: bool) -> None:
    """Check the state. `applied`: True if no block is lost whose producer is not in the
    state yet.
    """
    table = store.state.load()
    sequences = {producer: row.next_sequence for producer, row in table.producers.items()}
    if want.cut_from < 0 and applied:
        need(
            sequences == specimen.sequences,
            f"producers are at {sequences}, and were at {specimen.sequences}",
        )
        need(table.transactions == specimen.transactions, f"transactions are {table.transactions}")
    for name in CHANNELS if specimen.unfinished else ():
        need(name in table.channels, f"channel {name} is gone")
        left = unfinished(store, table, name, store.log.end)
        missing = {
            offset
            for offset in specimen.unfinished[name] - left
            if want.cut_from < 0 or offset < want.cut_from
        }
        need(not missing, f"channel {name} takes {sorted(missing)} for finished")
        if not want.state and want.cut_from < 0:
            need(left == specimen.unfinished[name], f"channel {name} is not as it was")
    for key in specimen.staged:
        need(
            key in store.staging.stages() or key in want.stages or want.state,
            f"stage {key!r} is gone",
        )


def _check_again(specimen: Specimen, directory: str, want: Expected, before: Seen) -> None:
    """Check that the next start finds the same, and that the topic can be used: staged blocks are
    committed or refused, and a new message gets a new offset.
    """
    for _ in range(2):
        store = open_copy(specimen, directory)
        try:
            log = store.log
            found, _ = read_all(log)
            given = specimen.end if want.cut_from < 0 else want.cut_from
            lost = specimen.blocks.keys() - found.keys()
            need(
                lost <= before.lost,
                f"blocks {sorted(lost - before.lost)} are lost by starting again",
            )
            _check_bodies(
                specimen, {offset: block for offset, block in found.items() if offset < given}
            )
            _commit_stages(specimen, store, want)
            end = log.end
            producer = PRODUCERS[0]
            row = store.state.load().producers.get(producer)
            body = b"after %d" % end
            offset, _ = log.append(
                [pack([body], producer_id=producer, sequence=row.next_sequence if row else 0)],
                EPOCH_NS * 2,
            )
            need(offset == end, f"a new message gets offset {offset}, the end was {end}")
            log.sync()
            (block,) = log.read(offset, 1, log.end)
            need(block.body.value(0) == body, "a new message is wrong")
        finally:
            store.close()


def _commit_stages(specimen: Specimen, store: Store, want: Expected) -> None:
    for key, columns in specimen.staged.items():
        facts = store.staging.stages().get(key)
        if facts is None:
            continue
        transaction = Transaction(APP, facts.transaction.version, "app")
        try:
            group = store.log.append_group(transaction, [store.staging.part(key)], EPOCH_NS * 2)
        except Damaged as error:
            need(key in want.stages, f"stage {key!r} cannot be committed: {error}")
            continue
        blocks: list[bytes] = []
        offset = group.first_offset
        while offset < group.first_offset + group.messages:
            try:
                found = store.log.read(offset, 1, store.log.end)
                need(found, f"stage {key!r} was committed, and reads at {offset} give nothing")
                for block in found:
                    need(
                        block.next_offset > offset,
                        f"stage {key!r}: a read at {offset} gives {block.first_offset}",
                    )
                    blocks.append(bytes(block.columns))
                    offset = block.next_offset
            except Damaged:
                need(key in want.stages, f"stage {key!r} was committed, and is damaged")
                offset = store.log.skip(offset)
        need(set(blocks) <= set(columns), f"stage {key!r} was committed with wrong bodies")
