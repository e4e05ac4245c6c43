"""Fuzz targets for the formats on disk: of the log, of the state store's rows, of small files, of
the registry, and of NSQ.

Many formats are protected by a checksum. A changed file is then rejected by the checksum alone, and
the test shows little. So half of the inputs get a correct checksum. A disk fault does not produce
such a file, but another program or an older version may. Its readers must behave as documented.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from crc32c import crc32c
from faults.fuzz_wire import BLOCKS, changed_header
from faults.fuzzing import Target, Trial
from faults.mutation import Mutator

from zsq.actors.supervisor.topics import registry_format
from zsq.storage.delayed import delayed_format
from zsq.storage.delayed import delayed_recovery as delayed_head
from zsq.storage.delayed.delayed import Progress
from zsq.storage.directory.store import TopicIdentity, read_identity
from zsq.storage.errors import Damaged, ForeignDirectory
from zsq.storage.files import Files
from zsq.storage.log import damage, log_format
from zsq.storage.log.index import Index
from zsq.storage.log.transactions import (
    Adopted,
    Mark,
    StagedFile,
    StageRow,
    Transaction,
    TransactionRow,
    decode_mark,
    encode_mark,
)
from zsq.storage.nsq import disk_queue_format
from zsq.storage.rows import META, unwrap, wrap
from zsq.storage.state import snapshot, state_rows
from zsq.storage.state.state_keeper import Starts
from zsq.transport.block.block import HEADER_BYTES, MARK
from zsq.transport.wire.codec import pack_value

SEED: Final = 0x12345678
UUID: Final = bytes(range(16))
HEAD: Final = log_format.ChunkHeader(1000, 10**18, SEED, UUID)


# Parts of the log


def _disk_header(mutator: Mutator) -> bytes:
    header = mutator.one(BLOCKS).header
    if mutator.chance(2):
        header = changed_header(mutator, header)
    offset, time_ns = (
        max(-(1 << 63), min((1 << 63) - 1, mutator.whole())) if mutator.chance(4) else 5
        for _ in range(2)
    )
    made = log_format.encode_disk_header(
        header._replace(length=header.length & 0xFFFF_FFFF),
        offset,
        time_ns,
        mutator.below(1 << 36),
        SEED,
    )
    return mutator.changed(made) if mutator.chance(3) else made


def _try_disk_header(data: bytes) -> bool:
    header = log_format.decode_disk_header(data, SEED)
    if header is None:
        return False
    assert len(data) == HEADER_BYTES
    log_format.unsynced_bytes(header)
    log_format.wire_header(header, HEAD)
    log_format.replay_header(header, HEAD)
    return bool(header.count or header.flags & MARK)


_PIECES: Final = [
    log_format.encode_chunk_header(HEAD),
    log_format.encode_chunk_header(HEAD._replace(flags=log_format.ADOPTED)),
    log_format.encode_footer(log_format.ChunkFooter(2, 250, 256), SEED, HEAD),
    log_format.encode_footer(log_format.ChunkFooter(2, 250, 256), SEED),
    log_format.encode_index(b"", SEED),
    log_format.encode_index(struct.pack("<6q", 0, 0, 128, 5, 9, 640), SEED),
]


def _sealed(mutator: Mutator, data: bytes) -> bytes:
    """Return the data with a correct checksum, if it still has the form of one of these parts."""
    if len(data) < 64 or mutator.chance(3):
        return data
    if data[:4] == log_format.INDEX_MAGIC:
        head = data[:16] + crc32c(data[32:]).to_bytes(4, "little") + data[20:28]
        return head + crc32c(head).to_bytes(4, "little") + data[32:]
    head = data[:60]
    return (
        head
        + crc32c(head, SEED if data[:4] == log_format.FOOTER_MAGIC else 0).to_bytes(4, "little")
        + data[64:]
    )


def _try_piece(data: bytes) -> bool:
    taken = False
    with contextlib.suppress(Damaged, ForeignDirectory):
        log_format.decode_chunk_header(data)
        taken = True
    taken = log_format.decode_footer(data, SEED, 256) is not None or taken
    taken = log_format.header_of_footer(data, 1000, 256) is not None or taken
    index = Index.decode(data, SEED, 4096)
    if index is not None:
        for number in (-(1 << 63), 0, 5, (1 << 63) - 1):
            index.by_offset(number)
            index.by_time(number)
            index.by_position(number)
        assert Index.decode(index.encode(SEED), SEED, 4096) is not None
        list(index.entries())
        index.cut(200)
    return taken or index is not None


_MARK: Final = Mark(
    Transaction("q", 7, "app"), 1000, 8, 2, (UUID,), (Adopted(UUID, 3, SEED, 1002, 6, 1024),), (1000, 256, 10**18)
)  # fmt: skip
_MARKS: Final = [
    encode_mark(_MARK),
    encode_mark(_MARK._replace(adopted=(), unsealed=(), appended=8)),
]


def _mark(mutator: Mutator) -> bytes:
    if mutator.chance(2):
        return mutator.bytes_like(_MARKS)
    data = pack_value(mutator.like({
        "app": "q", "version": 7, "kind": "app", "first": 1000, "messages": 8, "appended": 2, "parts": (UUID,),
        "adopted": ((UUID, 3, SEED, 1002, 6, 1024),), "unsealed": (1000, 256, 10**18),
    }))  # fmt: skip
    return len(data).to_bytes(4, "little") + data + bytes(16)


def _try_mark(data: bytes) -> bool:
    try:
        decode_mark(data)
    except ValueError:
        return False
    return True


# Small files


class OneFile:
    """A disk that returns the same bytes for every file."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def exists(self, path: str) -> bool:
        return True

    def read_file(self, path: str, max_bytes: int) -> bytes:
        return self.data[:max_bytes]

    read_note = read_file

    def note(self, path: str, data: bytes) -> None:
        pass


def _stage() -> dict[str, Any]:
    return StageRow(
        "q", 7, "app", 0, 3, 30, 4096, 77, True, (StagedFile(0, SEED, 3, 30, 640),), 10**18
    )._asdict()


ROWS: Final[list[tuple[bytes, bytes]]] = [
    (
        state_rows.CHANNEL + b"archive",
        pack_value({"next": 5, "paused": False, "counters": {"finish_count": 3}, "settings": {}}),
    ),
    (state_rows.hole_key("archive", 2), state_rows.HOLE_ROW.pack(2, 1, 0)),
    (state_rows.total_key("archive"), state_rows.TOTAL_ROW.pack(3, 30, 12345)),
    (state_rows.GENERATION + b"archive", state_rows.U64.pack(2)),
    (state_rows.PRODUCER + state_rows.U64.pack(77), pack_value((5, 10**18, ((3, 100), (4, 200))))),
    (state_rows.STAGE + UUID, pack_value(_stage())),
    (state_rows.TRANSACTION + b"q", pack_value(tuple(TransactionRow(7, "app", 1000, 8, 10**18)))),
    (META, pack_value(state_rows.new_meta(UUID, 1000))),
]
_WRAPPED: Final = [(key, wrap(key, data)) for key, data in ROWS]
_SNAPSHOT: Final = snapshot.encode_snapshot(
    UUID, 10**18, _WRAPPED, {"archive": state_rows.DeferredTotal(3, 30, 100)}
)


def _checked_line(mutator: Mutator, good: bytes, tail: Callable[[bytes], bytes]) -> bytes:
    """Return a first line of JSON with changed values and a correct checksum."""
    try:
        found = json.loads(good.partition(b"\n")[0])
        line = json.dumps(mutator.like(found), default=repr).encode()
    except (ValueError, TypeError, RecursionError):
        line = b'{"a": ' * 2_000
    return line + tail(line)


def _snapshot(mutator: Mutator) -> bytes:
    if mutator.chance(2):
        return mutator.bytes_like([_SNAPSHOT])
    rows = [
        (mutator.changed(key), mutator.changed(value)) if mutator.chance(40) else (key, value)
        for key, value in _WRAPPED
    ]
    made = snapshot.encode_snapshot(
        UUID,
        10**18,
        _wrapped_well(mutator, rows),
        {"archive": state_rows.DeferredTotal(3, 30, 100)},
    )
    line, _, rest = made.partition(b"\n")
    body = rest[9:]
    if mutator.chance(8):
        body = mutator.changed(body)
    head = json.loads(line) | {"crc": crc32c(body), "bytes": len(body)}
    if mutator.chance(3):
        line = json.dumps(head).encode()
        return b"%s\n%08x\n%s" % (line, crc32c(line), body)
    return _checked_line(
        mutator, json.dumps(head).encode(), lambda line: b"\n%08x\n%s" % (crc32c(line), body)
    )


def _wrapped_well(
    mutator: Mutator, rows: Sequence[tuple[bytes, bytes]]
) -> list[tuple[bytes, bytes]]:
    """Return rows with any values, except for the checkpoint, which is read when a snapshot is
    made.
    """
    return [
        (key, value) if dict(_WRAPPED).get(key) == value else (b"x" + key, value)
        for key, value in rows
    ]


def _try_snapshot(data: bytes) -> bool:
    files = cast("Files", OneFile(data))
    try:
        snapshot.commits_of_snapshot(files, "")
        problems = snapshot.check_snapshot(files, "")
    except ForeignDirectory:  # its checksum is right, and another version wrote it
        return False
    try:
        found = snapshot.read_snapshot(files, "")
    except ForeignDirectory:
        return False
    except Damaged:
        assert problems
        return False
    assert found is not None
    return not problems


_IDENTITY: Final = (
    b'{"zsq": "topic", "version": 1, "name": "clicks", "uuid": "%s", "base_offset": 1000}'
    % UUID.hex().encode()
)
_BAD: Final = damage.encode_bad_head(
    damage.BadHead(damage.Bad(1000, 128, 640, 1002, 3, "a checksum"), 10**18, 640, 77)
)
_NOTES: Final = [
    _IDENTITY + b"\n%08x\n" % crc32c(_IDENTITY),
    _BAD,
    b'{"unproven": 2, "starts": [5, 6]}',
]
_PROGRESS: Final = b'{"commits": 5, "serial": 70, "messages": 3}'


def _small(mutator: Mutator) -> bytes:
    dice = mutator.below(5)
    if dice == 0:
        return _checked_line(mutator, _IDENTITY, lambda line: b"\n%08x\n" % crc32c(line))
    if dice == 1:
        line = _checked_line(mutator, _BAD[:502], lambda line: b"")[:502].ljust(502)
        return line + b" %08x\n" % crc32c(line)
    if dice == 2:
        return _checked_line(mutator, _PROGRESS, lambda line: b" %08x\n" % crc32c(line))
    if dice == 3:
        return _checked_line(mutator, _NOTES[2], lambda line: b"")
    return mutator.bytes_like(_NOTES)


def _try_small(data: bytes) -> bool:
    files = cast("Files", OneFile(data))
    taken = False
    with contextlib.suppress(ForeignDirectory):
        taken = damage.decode_bad_head(data) is not None
    with contextlib.suppress(ForeignDirectory):
        found = read_identity(files, "")
        taken = taken or isinstance(found, TopicIdentity)
    progress = delayed_head.noted_progress(files, "")
    assert all(type(one) is int for one in progress), progress
    starts = Starts(files, "")
    starts.begin(10**18)
    return taken or starts.unproven > 1 or progress != Progress()


# The registry


def _registry_content() -> bytes:
    content = registry_format.Content("00" * 16, 5, 9)
    content.topics["clicks"] = registry_format.TopicRow(
        1, "01" * 16, "always", 0, "live", {"max_age_s": 60}, ""
    )
    content.topics["orders"] = registry_format.TopicRow(2, "02" * 16, "interval", 100, "new")
    content.ended["old"] = 1234
    content.imports["ab" * 32] = {"state": "begun", "numbers": [3, 4]}
    content.imports["cd" * 32] = {"state": "done"}
    return registry_format.encode(content)


_REGISTRY: Final = _registry_content()


def _registry(mutator: Mutator) -> bytes:
    if mutator.chance(2):
        return mutator.bytes_like([_REGISTRY])
    found = json.loads(_REGISTRY)
    del found[registry_format.CHECKSUM]
    try:
        changed = json.loads(json.dumps(mutator.like(found)))
        if type(changed) is dict and mutator.chance(2):
            changed[registry_format.CHECKSUM] = registry_format.checksum(changed)
        return json.dumps(changed).encode()
    except (ValueError, TypeError, RecursionError):
        return b'{"version": 1, "topics": ' + b"[" * 3_000


def _try_registry(data: bytes) -> bool:
    try:
        content = registry_format.decode(data, "registry.json")
    except ForeignDirectory:
        return False
    assert registry_format.decode(registry_format.encode(content), "again").topics == content.topics
    return True


# Rows of the two stores


_DELAYED: Final = [
    delayed_format.encode_row(
        delayed_format.DelayedRow(delayed_format.DelayedKey(10**18, serial), block)
    )
    for serial, block in enumerate(BLOCKS)
]


def _row(mutator: Mutator) -> tuple[bytes, bytes]:
    """Return a row of one of the two stores, with its key or its value changed, in most cases with
    a correct checksum.
    """
    if mutator.chance(3):
        key, value = mutator.one(_DELAYED)
        data = unwrap(key, value).tobytes()
    else:
        key, data = mutator.one(ROWS)
    if mutator.chance(3):
        key = mutator.changed(key)
    elif mutator.chance(2):
        data = mutator.changed(data)
    value = wrap(key[:65_535], data)
    return key, mutator.changed(value) if mutator.chance(5) else value


def _try_row(row: tuple[bytes, bytes]) -> bool:
    key, value = row
    taken = False
    delayed_format.names_itself(key, value)
    assert delayed_format.count_of(key, value) >= 0
    with contextlib.suppress(Damaged):
        found = delayed_format.decode_row(key, value)
        assert delayed_format.due_block(found).count == found.block.count
        taken = True
    with contextlib.suppress(Damaged):
        delayed_format.parse_producer_key(key)
    with contextlib.suppress(Damaged):
        assert len(unwrap(key, value)) <= len(value)
        taken = True
    return taken


# NSQ's formats

_NSQ_MESSAGE: Final = disk_queue_format.encode_message(
    disk_queue_format.NsqMessage(1_700_000_000 * 10**9, 3, b"0123456789abcdef", b"body")
)
NSQ_FILES: Final = [
    disk_queue_format.encode_meta(disk_queue_format.Meta(5, 1, 100, 2, 300)),
    disk_queue_format.encode_record(_NSQ_MESSAGE) * 3,
    disk_queue_format.encode_record(b"x" * 40),
    b'{"topics":[{"name":"a","paused":false,"channels":[{"name":"c","paused":true}]},'
    b'{"name":"b","paused":true,"channels":null}],"version":"1.3"}',
]


def _try_nsq(data: bytes) -> bool:
    taken = False
    with contextlib.suppress(Damaged):
        assert disk_queue_format.decode_meta(data[:256]) is not None
        taken = True
    with contextlib.suppress(Damaged):
        disk_queue_format.decode_message(memoryview(data)[disk_queue_format.LENGTH_BYTES :])
    for at in range(min(len(data), 64)):
        disk_queue_format.looks_like_message(data, at, 1 << 20)
    with contextlib.suppress(ForeignDirectory):
        disk_queue_format.decode_nsqd(data)
        taken = True
    return taken


def _plain(
    make: Callable[[Mutator], Any], run: Callable[[Any], bool]
) -> Callable[[Mutator], Trial]:
    return lambda mutator: Trial(lambda: make(mutator), run)


CORPUS: Final = [*_PIECES, _SNAPSHOT, *_NOTES, _REGISTRY]
TARGETS: Final[Sequence[Target]] = (
    Target("disk-headers", _plain(_disk_header, _try_disk_header), 6),
    Target(
        "chunk-pieces",
        _plain(lambda mutator: _sealed(mutator, mutator.bytes_like(_PIECES)), _try_piece),
        8,
    ),
    Target("marks", _plain(_mark, _try_mark), 6),
    Target("snapshots", _plain(_snapshot, _try_snapshot), 6),
    Target("small-files", _plain(_small, _try_small), 6),
    Target("registry", _plain(_registry, _try_registry), 6),
    Target("rows", _plain(_row, _try_row), 6),
    Target("nsq-files", _plain(lambda mutator: mutator.bytes_like(NSQ_FILES), _try_nsq), 6),
)
