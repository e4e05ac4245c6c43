"""nsqd's files as records: data with its messages, metadata, nsqd.dat."""

from __future__ import annotations

from collections.abc import Iterator

from ...storage.disk_queue_format import META_BYTES_MAX, decode_meta, decode_nsqd
from ...storage.errors import Damaged, ForeignDirectory
from ...storage.files import Files
from ..nsqd.salvage import Loss, read_messages
from ..nsqd.source import NSQD_BYTES_MAX
from .record import Record, damaged, record, with_bytes


def dump_data(files: Files, path: str, *, bodies: bool) -> Iterator[Record]:
    """Messages from the first on, whatever the metadata says; what cannot be read in between shows where it lies."""
    lost: list[Loss] = []
    for position, message in read_messages(files, path, 0, lost.append):
        yield from _losses(lost)
        found = record(
            "nsqd message", position=position, time_ns=message.timestamp_ns, attempts=message.attempts, id=message.id.decode(),
            body_bytes=len(message.body),
        )  # fmt: skip
        yield with_bytes(found, body=message.body) if bodies else found
    yield from _losses(lost)


def _losses(lost: list[Loss]) -> Iterator[Record]:
    while lost:
        loss = lost.pop(0)
        yield damaged(loss.why, position=loss.position, bytes=loss.bytes)


def dump_meta(files: Files, path: str) -> Iterator[Record]:
    try:
        yield record("nsqd metadata", **decode_meta(files.read_file(path, META_BYTES_MAX))._asdict())
    except Damaged as error:
        yield damaged(error)


def dump_list(files: Files, path: str) -> Iterator[Record]:
    try:
        found = decode_nsqd(files.read_file(path, NSQD_BYTES_MAX))
    except ForeignDirectory as error:
        yield damaged(error)
        return
    yield record("nsqd", version=found.version, topics=len(found.topics))
    for topic in found.topics:
        yield record("nsqd topic", name=topic.name, paused=topic.paused)
        for channel in topic.channels:
            yield record("nsqd channel", topic=topic.name, name=channel.name, paused=channel.paused)
