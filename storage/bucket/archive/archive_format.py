"""Format of the archive: names of objects, index object, manifest, and the broker's claim. No I/O.

    PREFIX/broker.json                      which broker the prefix belongs to; created once
    PREFIX/chunk/TOPIC-UUID/OFFSET.CRC      a sealed chunk, the same bytes as on disk
    PREFIX/chunk/TOPIC-UUID/OFFSET.CRC.index   checksums of its segments, and its index
    PREFIX/manifest/TOPIC-UUID/NUMBER       the chunks of a topic; the newest number counts

OFFSET and NUMBER have 20 digits. A name contains the checksum of the content. So an upload that is
repeated writes the same object, and two brokers with copies of the same data never overwrite each
other's chunks.

A *segment* is a piece of SEGMENT_BYTES of a chunk. It is what a read fetches. Its checksum is in
the index object, so bytes that a store returns wrongly are noticed before they are used.

    index object = head (32 bytes)  checksum of each segment (4 bytes each)  the chunk's index file

The manifest and the claim are one line of JSON, for people and programs, and the checksum of that
line. All integers of the index object are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ....transport.checksum import crc32c
from ... import documents
from ...errors import Damaged, NewerVersion
from ...foreign import text_of, uuid_of, whole_number
from ...log.chunk import ArchivedChunk

VERSION: Final = 1
SEGMENT_BYTES: Final = 4 * 1024 * 1024
INDEX: Final = -1  # the number that stands for the index of a chunk, among those of its segments
BROKER_NAME: Final = "broker.json"
CHUNKS: Final = "chunk"
MANIFESTS: Final = "manifest"
INDEX_SUFFIX: Final = ".index"
INDEX_OBJECT_MAGIC: Final = b"ZSQA"
# magic, version, spare, bytes of a segment, number of segments, bytes of the index, crc of all that
# follows the head, spare
_HEAD: Final = struct.Struct("<4sHHIIII4s")
_CRC: Final = struct.Struct("<I")
INDEX_HEAD_BYTES: Final = _HEAD.size + _CRC.size

assert INDEX_HEAD_BYTES == 32


def chunk_object(uuid: str, base_offset: int, crc: int) -> str:
    """Return the name of a chunk's object. `uuid` has 32 hex digits."""
    return f"{CHUNKS}/{uuid}/{base_offset:020d}.{crc:08x}"


def index_object(uuid: str, base_offset: int, crc: int) -> str:
    return chunk_object(uuid, base_offset, crc) + INDEX_SUFFIX


def chunk_offset(name: str) -> int:
    """Return the first offset of the chunk of an object, or -1 for another name."""
    digits = name.rpartition("/")[2].partition(".")[0]
    return int(digits) if len(digits) == 20 and digits.isdecimal() else -1


def manifest_folder(uuid: str) -> str:
    return f"{MANIFESTS}/{uuid}/"


def manifest_object(uuid: str, number: int) -> str:
    return f"{manifest_folder(uuid)}{number:020d}"


def manifest_number(name: str) -> int:
    """Return the number in a manifest's name, or -1 for another name."""
    digits = name.rpartition("/")[2]
    return int(digits) if len(digits) == 20 and digits.isdecimal() else -1


def segments_of(size: int) -> int:
    """Return the number of segments of a file."""
    return -(-size // SEGMENT_BYTES)


def crc_of_sums(sums: Sequence[int]) -> int:
    """Return the checksum of a chunk, from the checksums of its segments."""
    return crc32c(b"".join(_CRC.pack(one) for one in sums))


class SegmentIndex(NamedTuple):
    """The content of an index object: the checksum of each segment, and the index file."""

    sums: tuple[int, ...]
    entries: bytes


def encode_segment_index(index: SegmentIndex) -> bytes:
    rest = b"".join(_CRC.pack(one) for one in index.sums) + index.entries
    head = _HEAD.pack(
        INDEX_OBJECT_MAGIC,
        VERSION,
        0,
        SEGMENT_BYTES,
        len(index.sums),
        len(index.entries),
        crc32c(rest),
        b"",
    )
    return head + _CRC.pack(crc32c(head)) + rest


def decode_segment_index(data: bytes) -> SegmentIndex:
    """Return the content of an index object. Raises `Damaged` or `ForeignDirectory`."""
    head, rest = data[: _HEAD.size], data[INDEX_HEAD_BYTES:]
    if len(data) < INDEX_HEAD_BYTES or _CRC.unpack_from(data, _HEAD.size)[0] != crc32c(head):
        raise Damaged("the head of the index object is damaged")
    magic, version, _, segment_bytes, count, index_bytes, crc, _ = _HEAD.unpack(head)
    if magic != INDEX_OBJECT_MAGIC or version != VERSION or segment_bytes != SEGMENT_BYTES:
        raise NewerVersion(
            f"the index object has format version {version} and segments of {segment_bytes} bytes; "
            f"this zsq reads only version {VERSION} with {SEGMENT_BYTES} bytes; use a newer zsq"
        )
    if len(rest) != count * _CRC.size + index_bytes or crc32c(rest) != crc:
        raise Damaged("the index object is damaged")
    sums = tuple(one for (one,) in _CRC.iter_unpack(rest[: count * _CRC.size]))
    return SegmentIndex(sums, rest[count * _CRC.size :])


class Manifest(NamedTuple):
    """The archive of one topic, as of one moment.

    `writer` identifies the run of the broker that wrote it. `start` is the oldest kept offset of
    the topic, and `end` the next offset that it would assign. `chunks` are ascending, and may have
    gaps where a chunk is not archived yet. `epoch` is that of the log of ticks, 0 without one.
    """

    topic: str
    uuid: str
    broker: str
    writer: str
    time_ns: int
    start: int
    end: int
    chunks: tuple[ArchivedChunk, ...]
    epoch: int = 0


def encode_manifest(manifest: Manifest) -> bytes:
    return documents.encode_line("manifest", VERSION, manifest._asdict())


def decode_manifest(data: bytes) -> Manifest:
    """Return the manifest. Raises `Damaged`, or `ForeignDirectory` for an unknown version."""
    row = documents.decode_line(data, "manifest", VERSION)
    try:
        chunks = tuple(map(ArchivedChunk.of, row["chunks"]))
        return Manifest(
            text_of(row["topic"]), uuid_of(row["uuid"]), text_of(row["broker"]), text_of(row["writer"]),
            int(row["time_ns"]), whole_number(row["start"]), whole_number(row["end"]), chunks, int(row["epoch"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"the manifest does not have the expected fields: {error!r}") from error


def objects_of(uuid: str, chunks: Iterable[ArchivedChunk]) -> set[str]:
    """Return the names of all objects of these chunks."""
    return {
        name(uuid, chunk.base_offset, chunk.crc)
        for chunk in chunks
        for name in (chunk_object, index_object)
    }


def conflict(newest: Manifest, found: Manifest) -> str:
    """Return why `found` cannot follow `newest`, the last manifest of an earlier run, or "".

    It cannot if the bucket has messages that the data directory never had, or other messages at the
    same offsets. The data directory is then an older copy.
    """
    if newest.chunks and newest.chunks[-1].next_offset > found.end:
        return (
            f"the bucket has messages of topic {found.topic} up to offset "
            f"{newest.chunks[-1].next_offset}, but the data directory ends at {found.end}"
        )
    own = sorted(found.chunks)
    at = 0
    for chunk in newest.chunks:
        while at < len(own) and own[at].next_offset <= chunk.base_offset:
            at += 1
        overlaps = at < len(own) and own[at].base_offset < chunk.next_offset
        if overlaps and (own[at].base_offset, own[at].crc) != (chunk.base_offset, chunk.crc):
            return (
                f"the bucket has other messages of topic {found.topic} from offset "
                f"{chunk.base_offset} to {chunk.next_offset} than the data directory"
            )
    return ""


class Claim(NamedTuple):
    """The content of broker.json: the uuid of the broker, and the identity of its archive here."""

    broker: str
    archive: str

    @property
    def place(self) -> int:
        """The identity as a number, for rows of chunks. It is never 0."""
        return crc32c(self.archive.encode()) << 24 | crc32c(self.archive.encode()[::-1]) >> 8 | 1


def encode_claim(claim: Claim) -> bytes:
    return documents.encode_line(
        "broker", VERSION, {"uuid": claim.broker, "archive": claim.archive}
    )


def decode_claim(data: bytes) -> Claim:
    """Return the claim. Raises `Damaged` or `ForeignDirectory`."""
    row = documents.decode_line(data, "broker", VERSION)
    try:
        return Claim(str(row["uuid"]), str(row["archive"]))
    except KeyError as error:
        raise Damaged(f"the broker object has no {error}") from error
