"""Records of any file, or of the folder of an LMDB environment.

This module reads nsqd's files (data, metadata, nsqd.dat), the state store, its snapshot, and the
environment of delayed messages. Other modules of the package read the rest.
"""

from __future__ import annotations

import contextlib
import os.path
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import lmdb

from ...storage import documents
from ...storage.dedupe.id_check import batches_of, good_bytes
from ...storage.delayed import delayed_format
from ...storage.delayed.delayed_format import DelayedKey
from ...storage.errors import Damaged, ForeignDirectory
from ...storage.files import Files
from ...storage.log.chunk import ArchivedChunk
from ...storage.nsq.disk_queue_format import META_BYTES_MAX, decode_meta, decode_nsqd
from ...storage.rows import META, unwrap
from ...storage.state import state_rows
from ...storage.state.snapshot import SNAPSHOT_BYTES_MAX, decode_snapshot
from ...storage.state.state_rows import DEFERRED, DUE, HOLE, HOLE_ROW, TOTAL, TOTAL_ROW, U64
from ...transport.block.block import check_columns
from ...transport.checksum import crc32c
from ...transport.errors import E_BAD_ARGUMENT, UsageError, ZsqError
from ...transport.wire.codec import unpack_value
from ..nsqd.salvage import LostBytes, read_messages
from ..nsqd.source import NSQD_BYTES_MAX
from . import kinds
from .archive import dump_document, dump_index_object
from .logs import dump_bad, dump_chunk, dump_index, messages_of
from .record import (
    Record,
    damaged,
    dump_identity,
    dump_json,
    dump_registry,
    plain,
    record,
    with_bytes,
)
from .ticks import dump_frames, dump_tick


def dump_data(files: Files, path: str, *, bodies: bool) -> Iterator[Record]:
    """Yield all messages from the first on. The metadata is ignored.

    A part that cannot be read becomes a record with its position.
    """
    lost: list[LostBytes] = []
    for position, message in read_messages(files, path, 0, lost.append):
        yield from _losses(lost)
        row = record(
            "nsqd message", position=position, time_ns=message.timestamp_ns, attempts=message.attempts, id=message.id.decode(),
            body_bytes=len(message.body),
        )  # fmt: skip
        yield with_bytes(row, body=message.body) if bodies else row
    yield from _losses(lost)


def _losses(lost: list[LostBytes]) -> Iterator[Record]:
    while lost:
        loss = lost.pop(0)
        yield damaged(loss.why, position=loss.position, bytes=loss.bytes)


def dump_meta(files: Files, path: str) -> Iterator[Record]:
    try:
        yield record(
            "nsqd metadata", **decode_meta(files.read_file(path, META_BYTES_MAX))._asdict()
        )
    except Damaged as error:
        yield damaged(error)


def dump_list(files: Files, path: str) -> Iterator[Record]:
    try:
        listed = decode_nsqd(files.read_file(path, NSQD_BYTES_MAX))
    except ForeignDirectory as error:
        yield damaged(error)
        return
    yield record("nsqd", version=listed.version, topics=len(listed.topics))
    for topic in listed.topics:
        yield record("nsqd topic", name=topic.name, paused=topic.paused)
        for channel in topic.channels:
            yield record("nsqd channel", topic=topic.name, name=channel.name, paused=channel.paused)


BAD_ROW_BYTES_MAX: Final = 16 * 1024 * 1024
_MAPS: Final = {state_rows.CHANNEL: "channel", state_rows.STAGE: "stage"}


def dump_environment(path: str, *, folder: bool, bodies: bool) -> Iterator[Record]:
    """Yield the rows of a stopped broker's environment, without a lock.

    LMDB does not check its pages, so damage may also end the process.
    """
    try:
        with (
            contextlib.closing(
                lmdb.open(
                    path, subdir=folder, readonly=True, lock=False, readahead=False, max_dbs=0
                )
            ) as environment,
            environment.begin() as txn,
        ):
            delayed = _is_delayed(txn)
            yield record(
                "environment", of="delayed" if delayed else "state", entries=txn.stat()["entries"]
            )
            for key, value in txn.cursor():
                yield from (
                    _delayed_row(bytes(key), bytes(value), bodies)
                    if delayed
                    else _state_row(bytes(key), bytes(value))
                )
    except lmdb.Error as error:
        yield damaged(f"LMDB cannot read further: {error}")


def _is_delayed(txn: Any) -> bool:
    """Return True for the environment of delayed messages.

    Both environments keep a map under the same key, but only the map of delayed messages counts
    bytes. If the map is damaged, the keys of rows decide: delayed messages have due times.
    """
    value = txn.get(META)
    with contextlib.suppress(Damaged, ForeignDirectory, ValueError, TypeError):
        return "bytes" in unpack_value(unwrap(META, bytes(value)))
    cursor = txn.cursor()
    return (
        bool(cursor.set_range(delayed_format.ROW))
        and len(cursor.key()) == 17
        and b"\0" not in cursor.key()[1:2].strip(b"\0")
    )


def _state_row(key: bytes, value: bytes) -> Iterator[Record]:
    try:
        data = bytes(unwrap(key, value))
    except Damaged as error:
        yield with_bytes(damaged(error, bytes=len(value)), key=key)
        return
    yield _state_record(key, data)


def _state_record(key: bytes, data: bytes) -> Record:
    kind, rest = key[:1], key[1:]
    try:
        if kind == META:
            return record("checkpoint", **plain(unpack_value(data)))
        if kind in (HOLE, DEFERRED):
            count, attempts, due_ns = HOLE_ROW.unpack(data)
            hole = record(
                "hole",
                channel=state_rows.name_of(key),
                start=state_rows.start_of(key),
                count=count,
                attempts=attempts,
            )
            return hole | ({"kind": "deferred", "due_ns": due_ns} if kind == DEFERRED else {})
        if kind == DUE:
            return record(
                "due",
                channel=state_rows.name_of(key),
                due_ns=state_rows.due_of(key),
                start=state_rows.start_of(key),
            )
        if kind == TOTAL:
            rows, messages, _ = TOTAL_ROW.unpack(data)
            return record("deferred total", channel=rest.decode(), rows=rows, messages=messages)
        if kind == state_rows.PRODUCER:
            next_sequence, used_ns, recent = unpack_value(data)
            return record(
                "producer",
                producer=f"{U64.unpack(rest)[0]:016x}",
                next_sequence=next_sequence,
                used_ns=used_ns,
                recent=recent,
            )
        if kind == state_rows.ARCHIVED:
            return record("archived chunk", **ArchivedChunk(*unpack_value(data))._asdict())
        if kind == state_rows.GENERATION:
            return record("generation", channel=rest.decode(), number=U64.unpack(data)[0])
        if kind == state_rows.TRANSACTION:
            return record("transaction", app=rest.decode(), row=plain(unpack_value(data)))
        if kind in _MAPS:
            name = rest.hex() if kind == state_rows.STAGE else rest.decode()
            return record(_MAPS[kind], name=name, **plain(unpack_value(data)))
    except (ValueError, TypeError, ZsqError, KeyError) as error:
        return with_bytes(damaged(error), key=key)
    return with_bytes(damaged("a row of an unknown kind", bytes=len(data)), key=key)


def _row(bodies: bool, key: bytes, value: bytes, is_delayed: bool) -> Iterator[Record]:
    return _delayed_row(key, value, bodies) if is_delayed else _state_row(key, value)


def _delayed_row(key: bytes, value: bytes, bodies: bool) -> Iterator[Record]:
    try:
        if key[:1] == delayed_format.ROW:
            row = delayed_format.decode_row(key, value)
            check_columns(row.block.header, row.block.columns)
            header = row.block.header
            yield record(
                "delayed", key=row.key.text(), due_ns=row.key.due_ns, serial=row.key.serial, count=row.block.count, bytes=len(value),
                producer=f"{header.producer_id:016x}", sequence=header.sequence,
            )  # fmt: skip
            if bodies:
                for index, message in enumerate(messages_of(row.block)):
                    message.pop("offset", None)
                    yield {
                        "kind": message.pop("kind"),
                        "key_of_row": DelayedKey(row.key.due_ns, row.key.serial + index).text(),
                        **message,
                    }
            return
        data = bytes(unwrap(key, value))
        if key == META:
            yield record("counts", **plain(unpack_value(data)))
        elif key[:1] == delayed_format.PRODUCER:
            producer = delayed_format.DelayedProducer(*unpack_value(data))
            number = delayed_format.parse_producer_key(key)
            yield record("producer", producer=f"{number:016x}", **plain(producer._asdict()))
        elif key[:1] == delayed_format.IDS:
            yield record("ids", time_ns=delayed_format.parse_ids_key(key), digests=data.hex())
        else:
            yield with_bytes(damaged("a row of an unknown kind", bytes=len(value)), key=key)
    except (Damaged, ZsqError, ValueError, TypeError) as error:
        yield with_bytes(damaged(error, bytes=len(value)), key=key)


def dump_ids(files: Files, path: str) -> Iterator[Record]:
    """Yield the ids of a file, and what is damaged at its end."""
    for batch in batches_of(files, path):
        for digest, offset, time_ns in batch.entries:
            yield record("id", digest=digest.hex(), offset=offset, time_ns=time_ns)
    good, size = good_bytes(files, path)
    if good != size:
        yield damaged("no good batch of ids", position=good, bytes=size - good)


def dump_snapshot(files: Files, path: str) -> Iterator[Record]:
    data = files.read_file(path, SNAPSHOT_BYTES_MAX)
    try:
        snapshot = decode_snapshot(data)
    except (Damaged, ValueError, KeyError) as error:
        yield damaged(error, bytes=len(data))
        return
    deferred = {name: total._asdict() for name, total in snapshot.deferred.items()}
    yield record(
        "snapshot",
        uuid=snapshot.uuid.hex(),
        time_ns=snapshot.time_ns,
        rows=len(snapshot.rows),
        bytes=len(data),
        deferred=deferred,
    )
    yield record("checkpoint", **plain(snapshot.meta))
    for key, value in snapshot.rows:
        yield _state_record(key, value)


def dump_bad_row(files: Files, path: str) -> Iterator[Record]:
    """Yield the record of a `.bad` file with a row of a delayed message that could not be read.

    The file has a line of JSON with its checksum, and then the bytes of the row.
    """
    data = files.read_file(path, BAD_ROW_BYTES_MAX)
    line, _, value = data.partition(b"\n")
    try:
        head, crc = line[:-9], int(line[-8:], 16)
        if crc32c(head) != crc:
            raise ValueError("its checksum does not match")
        bad_row = documents.loads(head)
        yield record(
            "set aside",
            of=bad_row["zsq"],
            key=bad_row["key"],
            bytes=bad_row["bytes"],
            why=bad_row["why"],
        )
        if crc32c(value) != bad_row["crc"]:
            yield damaged("the bytes kept in this file are damaged", bytes=len(value))
    except (ValueError, KeyError) as error:
        yield damaged(f"the head of this .bad file is damaged: {error}", bytes=len(data))


def kind_of_path(path: str) -> str:
    """Return the kind of the file, or of a folder that is an LMDB environment.

    Raises `UsageError` (E_BAD_ARGUMENT) if the kind is not known.
    """
    if os.path.isdir(path):
        if os.path.isfile(f"{path}/data.mdb"):
            return kinds.ENVIRONMENT
        raise UsageError(
            E_BAD_ARGUMENT,
            f"{path} is a folder without data.mdb; name a file, or the folder of a state store",
        )
    kind = kinds.kind_of(Files().read_file(path, kinds.HEAD_BYTES), os.path.basename(path))
    if not kind:
        raise UsageError(E_BAD_ARGUMENT, f"{path} is not a known file of zsq or nsqd")
    return kind


def dump(path: str, kind: str, *, bodies: bool = False) -> Iterator[Record]:
    """Yield the records of a file. Damage becomes records, and an `OSError` is raised unchanged."""
    files = Files()
    if kind == kinds.ENVIRONMENT:
        return dump_environment(path, folder=os.path.isdir(path), bodies=bodies)
    if kind == kinds.CHUNK:
        return dump_chunk(files, path, bodies=bodies)
    if kind == kinds.NSQD_DATA:
        return dump_data(files, path, bodies=bodies)
    if kind in (kinds.TICK, kinds.FRAMES):
        shipped = dump_tick if kind == kinds.TICK else dump_frames
        return shipped(files, path, partial(_row, bodies))
    plain = {
        kinds.INDEX: dump_index,
        kinds.IDS: dump_ids,
        kinds.BAD: dump_bad,
        kinds.BAD_ROW: dump_bad_row,
        kinds.SNAPSHOT: dump_snapshot,
        kinds.IDENTITY: dump_identity,
        kinds.REGISTRY: dump_registry,
        kinds.NSQD_META: dump_meta,
        kinds.NSQD_LIST: dump_list,
        kinds.INDEX_OBJECT: dump_index_object,
        kinds.DOCUMENT: dump_document,
        kinds.JSON: dump_json,
    }
    return plain[kind](files, path)
