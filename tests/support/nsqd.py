"""Data directories that a real nsqd wrote, with their expected contents, and a function that reads
what a data directory of ZSQ contains after an import.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from zsq.actors.supervisor.topics.registry import Registry
from zsq.storage.directory.store import StoreOptions, TopicIdentity, open_store
from zsq.storage.files import Files
from zsq.storage.nsq.disk_queue_format import (
    Meta,
    NsqdList,
    NsqMessage,
    encode_message,
    encode_meta,
    encode_nsqd,
    encode_record,
)
from zsq.transport.wire.codec import unpack_headers

FIXTURES: Final = Path(__file__).resolve().parents[1] / "compat" / "fixtures" / "nsqd-1.3.0"
TIME_NS: Final = 1_700_000_000_000_000_000


def sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def fixture(name: str, folder: Path) -> Path:
    """Copy this data directory of an nsqd, and return the path of the copy, which the test may
    change.
    """
    return Path(shutil.copytree(FIXTURES / name, folder / name))


def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIXTURES / f"{name}.json").read_text())
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@dataclass
class Backlog:
    """The unfinished messages of a topic: the bodies that wait in the topic and that all channels
    will get, and for each channel (body, attempts) of each message that it has not finished.
    """

    paused: bool = False
    waiting: list[bytes] = field(default_factory=list)
    channels: dict[str, list[tuple[bytes, int]]] = field(default_factory=dict)
    stopped: dict[str, bool] = field(default_factory=dict)
    times: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)


def backlogs(data_dir: Path, files: Files | None = None) -> dict[str, Backlog]:
    """Read the backlogs from the stores themselves, as the file format defines them: the holes of a
    channel, and all messages from its cursor to the last one that the channel may deliver.
    """
    files = files or Files()
    registry = Registry(files, data_dir, 0)
    registry.open()
    return {name: _backlog(files, registry, name) for name in registry.topics}


def _backlog(files: Files, registry: Registry, name: str) -> Backlog:
    row = registry.topics[name]
    store = open_store(
        files,
        registry.folder(row),
        StoreOptions(reserve_bytes=0),
        TopicIdentity(name, row.uuid, row.base_offset),
    )
    try:
        bodies: dict[int, bytes] = {}
        found = Backlog()
        offset = store.log.start
        while blocks := store.log.read(offset, 1 << 20, store.log.end):
            for block in blocks:
                for index, body in enumerate(block.body.values()):
                    assert body is not None
                    bodies[block.first_offset + index] = body
                    found.times.append(block.time_of(index))
                    assert block.headers is not None
                    found.ids.append(str(unpack_headers(block.headers.value(index))["nsq_id"]))
                offset = block.next_offset
        table = store.state.load()
        found.paused = table.paused_end >= 0
        end = table.paused_end if found.paused else store.log.end
        for channel, its in table.channels.items():
            left = [
                (bodies[hole.start + i], hole.attempts)
                for hole in store.state.holes(channel)
                for i in range(hole.count)
            ]
            found.channels[channel] = left + [
                (bodies[offset], 0) for offset in range(its.next_offset, end)
            ]
            found.stopped[channel] = its.paused
        begin = end if found.channels else table.waiting
        found.waiting = [bodies[offset] for offset in range(begin, store.log.end)]
        return found
    finally:
        store.close()


def message(number: int, attempts: int = 0, size: int = 10) -> NsqMessage:
    return NsqMessage(TIME_NS + number, attempts, b"%016x" % number, b"%06d" % number + b"." * size)


def write_nsqd(folder: Path, listed: NsqdList, queues: dict[str, list[list[NsqMessage]]]) -> Path:
    """Write a data path as nsqd would leave it. `queues` gives the messages of each queue, file by
    file.
    """
    folder.mkdir()
    (folder / "nsqd.dat").write_bytes(encode_nsqd(listed))
    for queue, in_files in queues.items():
        datas = [
            b"".join(encode_record(encode_message(one)) for one in of_file) for of_file in in_files
        ]
        for number, data in enumerate(datas):
            (folder / f"{queue}.diskqueue.{number:06d}.dat").write_bytes(data)
        meta = Meta(sum(map(len, in_files)), 0, 0, len(datas) - 1, len(datas[-1]))
        (folder / f"{queue}.diskqueue.meta.dat").write_bytes(encode_meta(meta))
    return folder
