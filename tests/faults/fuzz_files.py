"""Fuzz targets that read whole files from a folder, or whole messages from a socket.

NSQ's disk queue is opened on changed files, `zsq dump` reads changed files, and a real port
receives changed messages on a real pair of sockets.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import zmq
from faults.fuzz_disk import CORPUS as DISK
from faults.fuzz_disk import HEAD, NSQ_FILES, SEED
from faults.fuzz_storage import SHM
from faults.fuzz_wire import BLOCKS, message_frames
from faults.fuzzing import Target, with_rig
from faults.mutation import Mutator

from zsq.actors.runtime.port import Mail, Port
from zsq.apps.dump import kinds
from zsq.apps.dump.dump import dump
from zsq.apps.dump.record import DAMAGED, as_json, as_line
from zsq.storage.errors import StorageError
from zsq.storage.log.log_format import encode_chunk_header, encode_disk_header
from zsq.storage.nsq.disk_queue import DiskQueue
from zsq.storage.nsq.disk_queue_format import Meta, data_name, encode_meta, encode_record, meta_name
from zsq.transport.errors import ZsqError

NAME: Final = "clicks:archive"
_RECORDS: Final = [
    b"".join(encode_record(b"body %d" % number) for number in range(count)) for count in (0, 1, 6)
]
_METAS = [
    encode_meta(Meta(12, 0, 0, 1, 66)),
    encode_meta(Meta(6, 1, 11, 1, 66)),
    encode_meta(Meta()),
    b"\n",
    b"",
]
_METAS += [
    encode_meta(Meta(6, *numbers))
    for numbers in (
        (-1, 0, 1, 66),
        (0, -11, 1, 66),
        (0, 0, -1, 0),
        (0, 11, 0, -5),
        (10**18, 0, 10**18, 0),
    )
]


class QueueRig:
    """A disk queue that is opened on changed files, read to its end, written to, closed, and opened
    again.
    """

    def __init__(self, mutator: Mutator) -> None:
        self.mutator = mutator
        self.folder = tempfile.mkdtemp(prefix="zsq-fuzz-", dir=SHM)

    def draw(self) -> dict[str, bytes]:
        mutator = self.mutator
        left = {}
        for number in range(mutator.below(3)):
            name = data_name(NAME, number if mutator.chance(2) else mutator.below(3))
            left[name] = (
                mutator.changed(mutator.one(_RECORDS))
                if mutator.chance(2)
                else mutator.one(_RECORDS)
            )
        if not mutator.chance(4):
            left[meta_name(NAME)] = (
                mutator.changed(mutator.one(_METAS)) if mutator.chance(2) else mutator.one(_METAS)
            )
        return left

    def hear(self, left: dict[str, bytes]) -> bool:
        folder = Path(self.folder)
        for path in folder.iterdir():
            path.unlink()
        for name, data in left.items():
            (folder / name).write_bytes(data)
        try:
            with DiskQueue(folder, NAME, max_bytes_per_file=66, max_msg_size=1_000) as queue:
                clean = queue.report.clean
                while queue.get() is not None:
                    pass
                queue.put(b"new")
            with DiskQueue(folder, NAME, max_bytes_per_file=66, max_msg_size=1_000) as queue:
                assert queue.get() == b"new"
                assert queue.get() is None
        except StorageError:
            return False
        return clean

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _chunk() -> bytes:
    parts = [encode_chunk_header(HEAD)]
    offset = 0
    for block in BLOCKS:
        parts += [encode_disk_header(block.header, offset, 5, 0, SEED), bytes(block.columns)]
        offset += block.count
    return b"".join(parts)


class DumpRig:
    """`zsq dump` reads changed files of each kind. LMDB environments are left out: flipped bits in
    them are tried by `scripts/prove damage`.
    """

    def __init__(self, mutator: Mutator) -> None:
        self.mutator = mutator
        self.folder = tempfile.mkdtemp(prefix="zsq-fuzz-", dir=SHM)
        self.corpus = [_chunk(), *DISK, *NSQ_FILES]
        self.kinds = (kinds.CHUNK, kinds.INDEX, kinds.BAD, kinds.BAD_ROW, kinds.SNAPSHOT, kinds.IDENTITY, kinds.REGISTRY, kinds.NSQD_DATA,
                      kinds.NSQD_META, kinds.NSQD_LIST, kinds.JSON)  # fmt: skip

    def draw(self) -> tuple[str, bytes]:
        data = self.mutator.bytes_like(self.corpus)
        kind = kinds.kind_of(data[: kinds.HEAD_BYTES], "file")
        if not kind or kind == kinds.ENVIRONMENT or self.mutator.chance(10):
            kind = self.mutator.one(self.kinds)
        return kind, data

    def hear(self, given: tuple[str, bytes]) -> bool:
        kind, data = given
        path = f"{self.folder}/00000000000000001000.file"
        Path(path).write_bytes(data)
        try:
            records = list(dump(path, kind, bodies=self.mutator.chance(2)))
        except (StorageError, ZsqError):
            return False
        for record in records:
            as_line(record)
            as_json(record)
        return bool(records) and all(record["kind"] != DAMAGED for record in records)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class PortRig:
    """A port that receives what a peer sends. Each input is one whole message, whose parts may be
    anything.
    """

    def __init__(self, mutator: Mutator) -> None:
        self.mutator = mutator
        self.context: zmq.Context[Any] = zmq.Context()
        self.port = Port(self.context, zmq.ROUTER)
        self.port.socket.bind("inproc://fuzz")
        self.peer = self.context.socket(zmq.DEALER)
        self.peer.connect("inproc://fuzz")

    def draw(self) -> tuple[bytes, ...]:
        return message_frames(self.mutator)

    def hear(self, parts: tuple[bytes, ...]) -> bool:
        if parts:
            self.peer.send_multipart(parts, zmq.NOBLOCK)
        # A Beat must still arrive correctly, whatever the message before it was.
        self.peer.send_multipart([b"", b"\x91\x01"], zmq.NOBLOCK)
        mails = list(self.port.receive(3))
        assert isinstance(mails[-1], Mail)
        assert mails[-1].frames == []
        taken = isinstance(mails[0], Mail) and len(mails) == 2
        for mail in mails[:-1]:
            if isinstance(mail, Mail):
                with contextlib.suppress(ZsqError):
                    mail.blocks()
            assert self.port.send(mails[-1].envelope, mails[-1].message)
        return taken

    def close(self) -> None:
        self.port.socket.close(linger=0)
        self.peer.close(linger=0)
        self.context.destroy(linger=0)


TARGETS: Final[Sequence[Target]] = (
    Target("disk-queue", with_rig(QueueRig), 1),
    Target("dump", with_rig(DumpRig), 3),
    Target("port", with_rig(PortRig), 4),
)
