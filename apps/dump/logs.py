"""Records of the log's files: chunks, staged parts, `.bad` files and indexes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ...storage.errors import Damaged, ForeignDirectory
from ...storage.files import Files
from ...storage.log.chunk import ChunkFile
from ...storage.log.damage import BAD_HEAD_BYTES, decode_bad_head
from ...storage.log.index import Index
from ...storage.log.log_format import (
    ADOPTED,
    CHUNK_HEADER_BYTES,
    FOOTER_BYTES,
    ChunkHeader,
    decode_chunk_header,
    decode_footer,
    unsynced_bytes,
)
from ...storage.log.transactions import decode_mark
from ...transport.block.block import (
    DELAYED,
    DISK_MAGIC,
    HAS_HEADERS,
    HAS_KEY,
    HAS_TAG,
    HAS_TIMES,
    HEADER_BYTES,
    IN_GROUP,
    MARK,
    Block,
    Header,
)
from ...transport.block.block_format import ADDRESSED, EXPIRES, HAS_IDS, REVOCABLE, UNIQUE
from ...transport.checksum import crc32c
from ...transport.errors import ZsqError
from ...transport.wire.codec import user_headers
from .record import Record, damaged, record, with_bytes

INDEX_BYTES_MAX: Final = 64 * 1024 * 1024
SEARCH_BYTES: Final = 1024 * 1024
_COLUMNS: Final = (
    (HAS_KEY, "key"),
    (HAS_TAG, "tag"),
    (HAS_HEADERS, "headers"),
    (HAS_TIMES, "times"),
)
_FLAGS: Final = (
    (IN_GROUP, "group"),
    (MARK, "mark"),
    (DELAYED, "delayed"),
    (ADDRESSED, "addressed"),
    (EXPIRES, "expires"),
    (REVOCABLE, "revocable"),
    (HAS_IDS, "ids"),
    (UNIQUE, "unique keys"),
)


def dump_chunk(files: Files, path: str, *, bodies: bool) -> Iterator[Record]:
    """Yield the header, blocks and footer of a chunk or a staged part."""
    fd = files.open_read(path)
    try:
        size = files.size(fd)
        head = files.pread(fd, CHUNK_HEADER_BYTES, 0)
        try:
            header = decode_chunk_header(head)
        except (Damaged, ForeignDirectory) as error:
            yield damaged(error, position=0, bytes=CHUNK_HEADER_BYTES)
            yield from _without_seed(files, fd, size)
            return
        yield from _chunk_header(head, header, size)
        at = max(size - FOOTER_BYTES, CHUNK_HEADER_BYTES)
        footer = decode_footer(files.pread(fd, FOOTER_BYTES, at), header.seed, at)
        chunk = ChunkFile(files, path.rpartition("/")[0], fd, header)
        chunk.end_position = size if footer is None else footer.data_end
        for stretch in chunk.walk(CHUNK_HEADER_BYTES, columns=True):
            block_header = stretch.header
            if block_header is None or not stretch.good:
                known = {} if block_header is None else _place(block_header, header)
                why = (
                    "no block can be read here"
                    if block_header is None
                    else "the columns do not match their checksum, or are cut short"
                )
                yield damaged(
                    why, position=stretch.position, bytes=stretch.end - stretch.position, **known
                )
                continue
            columns = files.pread(
                fd, block_header.length - HEADER_BYTES, stretch.position + HEADER_BYTES
            )
            if block_header.flags & MARK:
                yield _mark(block_header, header, stretch.position, columns)
                continue
            yield _block(block_header, header, stretch.position)
            if bodies:
                yield from messages_of(Block(_absolute(block_header, header), columns))
        if footer is not None:
            yield record(
                "footer", position=footer.data_end, next_offset=header.base_offset + footer.next_offset,
                last_time_ns=header.base_time_ns + footer.last_time_ns,
            )  # fmt: skip
    finally:
        files.close(fd)


def _chunk_header(head: bytes, header: ChunkHeader, size: int) -> Iterator[Record]:
    half = CHUNK_HEADER_BYTES // 2
    yield record(
        "chunk", base_offset=header.base_offset, base_time_ns=header.base_time_ns, seed=f"{header.seed:08x}", uuid=header.uuid.hex(),
        adopted=bool(header.flags & ADOPTED), bytes=size,
    )  # fmt: skip
    if head[:half] != head[half:]:
        yield damaged(
            "the two copies of the header differ; the intact one is used",
            position=0,
            bytes=CHUNK_HEADER_BYTES,
        )


def _absolute(header: Header, chunk: ChunkHeader) -> Header:
    return header._replace(
        first_offset=header.first_offset + chunk.base_offset,
        time_ns=header.time_ns + chunk.base_time_ns,
    )


def _place(header: Header, chunk: ChunkHeader) -> dict[str, int]:
    return {
        "offset": header.first_offset + chunk.base_offset,
        "count": header.count,
        "time_ns": header.time_ns + chunk.base_time_ns,
    }


def _block(header: Header, chunk: ChunkHeader, position: int) -> Record:
    row = record("block", position=position, bytes=header.length, **_place(header, chunk))
    if header.flags & DELAYED:
        row |= {"due_ns": header.producer_id, "serial": header.sequence}
    elif header.producer_id:
        row |= {"producer": f"{header.producer_id:016x}", "sequence": header.sequence}
    flags = [name for bit, name in _FLAGS if header.flags & bit]
    if flags:
        row["flags"] = flags
    row["columns"] = ["body", *(name for bit, name in _COLUMNS if header.columns & bit)]
    row["unsynced_bytes"] = unsynced_bytes(header)
    return row


def _mark(header: Header, chunk: ChunkHeader, position: int, columns: bytes) -> Record:
    try:
        mark = decode_mark(columns)
    except ValueError as error:
        return damaged(error, position=position, bytes=header.length)
    return record(
        "mark", position=position, bytes=header.length, time_ns=header.time_ns + chunk.base_time_ns, first_offset=mark.first_offset,
        messages=mark.messages, appended=mark.appended, app=mark.transaction.app, version=mark.transaction.version,
        transaction_kind=mark.transaction.kind, parts=[part.hex() for part in mark.parts], adopted=len(mark.adopted),
    )  # fmt: skip


def messages_of(block: Block, **more: Any) -> Iterator[Record]:
    """Yield the messages of a block whose checksums are correct."""
    try:
        for index in range(block.count):
            row = record(
                "message", offset=block.first_offset + index, time_ns=block.time_of(index), **more
            )
            columns = {"key": block.key, "tag": block.tag}
            with_bytes(
                row,
                **{
                    name: column.value(index)
                    for name, column in columns.items()
                    if column is not None
                },
            )
            if block.headers is not None:
                row["headers"] = user_headers(block.headers.value(index), address=True)
            yield with_bytes(row, body=block.body.value(index))
    except ZsqError as error:
        yield damaged(error, offset=block.first_offset)


def _without_seed(files: Files, fd: int, size: int) -> Iterator[Record]:
    """Yield the possible starts of blocks in a chunk whose header cannot be read.

    The header has the seed of all checksums in the chunk. Without it, no block can be checked.
    """
    for at in range(0, size, SEARCH_BYTES):
        window = files.pread(fd, SEARCH_BYTES + len(DISK_MAGIC), at)
        place = window.find(DISK_MAGIC)
        while 0 <= place < SEARCH_BYTES:
            if (at + place) % 8 == 0:
                yield record("unchecked block", position=at + place)
            place = window.find(DISK_MAGIC, place + 1)


def dump_index(files: Files, path: str) -> Iterator[Record]:
    data = files.read_file(path, INDEX_BYTES_MAX)
    seed = int.from_bytes(data[8:12], "little")
    index = Index.decode(data, seed, 0)
    if index is None:
        yield damaged(
            (
                "this is not a complete and undamaged index of a chunk; zsq rebuilds it when it "
                "needs it"
            ),
            bytes=len(data),
        )
        return
    yield record("index", seed=f"{seed:08x}", entries=len(index), bytes=len(data))
    for entry in index.entries():
        yield record(
            "entry", offset=entry.offset, position=entry.position, ns_after_base=entry.time_ns
        )


def dump_bad(files: Files, path: str) -> Iterator[Record]:
    """Yield the record of a `.bad` file with a part of a chunk that could not be read.

    The file's head describes the part. The part's bytes follow, as they were found.
    """
    data = files.read_file(path, BAD_HEAD_BYTES)
    try:
        head = decode_bad_head(data)
    except ForeignDirectory as error:
        yield damaged(error)
        return
    if head is None:
        yield damaged("the head of this .bad file is damaged", bytes=len(data))
        return
    fd = files.open_read(path)
    try:
        crc, at, size = 0, BAD_HEAD_BYTES, files.size(fd)
        while at < size:
            piece = files.pread(fd, SEARCH_BYTES, at)
            crc = crc32c(piece, crc)
            at += len(piece)
    finally:
        files.close(fd)
    bad = head.bad
    yield record(
        "set aside", chunk=bad.base_offset, position=bad.position, bytes=bad.bytes, first_offset=bad.first_offset, count=bad.count,
        why=bad.why, reason=bad.kind, blocks=bad.blocks, time_ns=head.time_ns, kept=head.kept,
    )  # fmt: skip
    if crc != head.crc or size - BAD_HEAD_BYTES != head.kept:
        yield damaged("the bytes kept in this file are damaged", bytes=size - BAD_HEAD_BYTES)
