"""Chunks as objects: upload with verification, and download of verified segments.

The calls block, so the actor that owns the bucket makes them in its threads. Any number of threads
may use one `ChunkObjects`.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from typing import Final

from ....transport.checksum import crc32c
from ...errors import Damaged, NewerVersion, StorageError
from ...files import TEMPORARY_SUFFIX, Files
from ...log.chunk import ArchivedChunk, Chunk, archived_of, open_surely
from ...log.log_format import CHUNK_HEADER_BYTES, FOOTER_BYTES
from ..bucket import Bucket, BucketUnfit, ObjectExists, ObjectMissing
from .archive_format import (
    INDEX,
    SEGMENT_BYTES,
    SegmentIndex,
    chunk_object,
    crc_of_sums,
    decode_segment_index,
    encode_segment_index,
    index_object,
    segments_of,
)

SUMS_KEPT: Final = 256  # chunks whose checksums are kept in memory: 256 bytes each


class SegmentDamaged(StorageError):
    """The bucket returned bytes whose checksum is wrong."""


class ChunkObjects:
    """The chunk objects of one bucket.

    `place` identifies the archive in the rows of uploaded chunks.
    """

    def __init__(self, files: Files, bucket: Bucket, place: int = 0) -> None:
        self.place = place
        self._files = files
        self._bucket = bucket
        self._lock = threading.Lock()
        self._sums: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._asking: dict[str, threading.Lock] = {}

    # Upload

    def upload(
        self, folder: str, uuid: bytes, base_offset: int, index_every_bytes: int
    ) -> ArchivedChunk:
        """Upload a sealed chunk with its index object, verify both, and return the chunk's facts.

        It may be repeated. Raises `Damaged` if the chunk has no valid footer, `Unreadable` if its
        file cannot be read, `BucketError`, or `OSError`.
        """
        chunk = open_surely(self._files, folder, base_offset, uuid, index_every_bytes)
        try:
            if not chunk.sealed:
                raise Damaged(f"{chunk.path} has no valid footer, so it cannot be archived")
            sums = self._sums_of(chunk)
            index = chunk.load_index().encode(chunk.header.seed)
            row = archived_of(chunk, crc_of_sums(sums), self.place)
            self._send(chunk, row, uuid.hex(), SegmentIndex(sums, index))
            self._verify(chunk, row, uuid.hex(), sums)
        finally:
            chunk.close()
        return row

    def _sums_of(self, chunk: Chunk) -> tuple[int, ...]:
        size = self._files.size(chunk.fd)
        return tuple(
            crc32c(self._files.pread(chunk.fd, min(SEGMENT_BYTES, size - at), at))
            for at in range(0, size, SEGMENT_BYTES)
        )

    def _send(self, chunk: Chunk, row: ArchivedChunk, uuid: str, index: SegmentIndex) -> None:
        self._bucket.upload(chunk_object(uuid, row.base_offset, row.crc), chunk.path)
        encoded = encode_segment_index(index)
        # The name contains the checksum of the chunk, so an existing object has the same checksums.
        # Its index may have other entries, which are as good.
        with contextlib.suppress(ObjectExists):
            self._bucket.create(index_object(uuid, row.base_offset, row.crc), encoded)

    def _verify(self, chunk: Chunk, row: ArchivedChunk, uuid: str, sums: tuple[int, ...]) -> None:
        """Read back the size, the header, the footer, one segment, and the index object.

        The segment is another one in each chunk, so a store that mixes up the parts of an upload is
        noticed soon. Rejected: to read back all segments, which doubles the traffic.
        """
        name = chunk_object(uuid, row.base_offset, row.crc)
        number = row.crc % len(sums)
        data = self._segment(name, number)
        size = self._bucket.size(name)
        ends = (
            self._bucket.read(name, 0, CHUNK_HEADER_BYTES),
            self._bucket.read(name, row.size - FOOTER_BYTES, FOOTER_BYTES),
        )
        wanted = (
            self._files.pread(chunk.fd, CHUNK_HEADER_BYTES, 0),
            self._files.pread(chunk.fd, FOOTER_BYTES, row.size - FOOTER_BYTES),
        )
        if size != row.size or ends != wanted or crc32c(data) != sums[number]:
            raise BucketUnfit(
                f"{self._bucket.url}/{name} is not what was uploaded ({size} of {row.size} bytes)"
            )
        if self.sums(uuid, row) != sums:
            raise BucketUnfit(f"the index of {self._bucket.url}/{name} is not what was uploaded")

    # Download

    def sums(self, uuid: str, row: ArchivedChunk) -> tuple[int, ...]:
        """Return the checksums of a chunk's segments."""
        name = index_object(uuid, row.base_offset, row.crc)
        with self._lock:
            known = self._sums.get(name)
            if known is not None:
                return known
            asking = self._asking.setdefault(name, threading.Lock())
        # Threads that read segments of one chunk begin together, and one request is enough.
        with asking:
            with self._lock:
                known = self._sums.get(name)
            try:
                return self._segment_index(uuid, row).sums if known is None else known
            finally:
                with self._lock:
                    self._asking.pop(name, None)

    def _segment_index(self, uuid: str, row: ArchivedChunk) -> SegmentIndex:
        name = index_object(uuid, row.base_offset, row.crc)
        try:
            index = decode_segment_index(self._bucket.read(name))
            if crc_of_sums(index.sums) != row.crc or len(index.sums) != segments_of(row.size):
                raise Damaged("its checksums do not match the chunk's")
        except (Damaged, NewerVersion) as error:
            raise SegmentDamaged(f"{self._bucket.url}/{name}: {error}") from error
        except ObjectMissing as error:
            # An expired chunk has lost both objects. A chunk that exists still has its messages.
            self._bucket.size(chunk_object(uuid, row.base_offset, row.crc))
            raise SegmentDamaged(
                f"{error}: it has the checksums of the chunk, which cannot be read without them"
            ) from error
        with self._lock:
            self._sums[name] = index.sums
            while len(self._sums) > SUMS_KEPT:
                self._sums.popitem(last=False)
        return index

    def read_segment(self, uuid: str, row: ArchivedChunk, number: int) -> bytes:
        """Return a segment's bytes, or the chunk's index for the number INDEX.

        Raises `SegmentDamaged`, or `BucketError`.
        """
        if number == INDEX:
            data = self._segment_index(uuid, row).entries
        else:
            name = chunk_object(uuid, row.base_offset, row.crc)
            data = self._segment(name, number)
            wanted = min(SEGMENT_BYTES, row.size - number * SEGMENT_BYTES)
            if len(data) != wanted:
                raise SegmentDamaged(
                    f"{self._bucket.url}/{name}: segment {number} has {len(data)} bytes, not "
                    f"{wanted}: the object is not whole"
                )
            if crc32c(data) != self.sums(uuid, row)[number]:
                raise SegmentDamaged(
                    f"{self._bucket.url}/{name}: the checksum of segment {number} is wrong"
                )
        return data

    def _segment(self, name: str, number: int) -> bytes:
        return self._bucket.read(name, number * SEGMENT_BYTES, SEGMENT_BYTES)

    def fetch(self, uuid: str, row: ArchivedChunk, number: int, path: str) -> int:
        """Store a verified segment, or the index, as file `path`, and return its size.

        The file is not synced: it is only a cache. Raises the errors of `read_segment`, or
        `OSError`.
        """
        data = self.read_segment(uuid, row, number)
        temporary = path + TEMPORARY_SUFFIX
        with contextlib.suppress(FileExistsError):
            self._files.make_folder(path.rpartition("/")[0])
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(temporary)
        fd = self._files.open_new(temporary)
        try:
            self._files.writev(fd, [data], 0)
        finally:
            self._files.close(fd)
        self._files.rename(temporary, path)
        return len(data)
