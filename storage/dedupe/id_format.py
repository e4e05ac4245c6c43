"""Format of the files with ids: entries of 32 bytes, in batches. No I/O.

    DIR/ids/NUMBER.ids     file head, batches
    DIR/ids/NUMBER.table   table head, the numbers of the file's `IdTable`

    file head   magic, version, bits of the table, uuid of the topic, number of the file, crc
    batch       batch head, entries
    batch head  magic, number of entries, end, crc of the entries, crc of the batch head
    entry       digest (16 bytes), offset, time (ns since 1970)

A batch has the ids of one append, and its end is the offset after the append. An entry's offset is
-1 for a delayed message. All integers are little-endian. Heads have the size of an entry, so that
an entry is found by its number alone (`id_table.py`). A file with a table is complete, and the
table saves the next start from reading it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ...transport.checksum import crc32c
from ..errors import Damaged, newer

VERSION: Final = 1
FOLDER_NAME: Final = "ids"
IDS_SUFFIX: Final = ".ids"
TABLE_SUFFIX: Final = ".table"
NO_OFFSET: Final = -1  # the offset of a delayed message

ENTRY: Final = struct.Struct("<16sqq")
ENTRY_BYTES: Final = ENTRY.size
_BATCH: Final = struct.Struct("<4sIqI8x")
_FILE: Final = struct.Struct("<4sHH16sI")
_TABLE: Final = struct.Struct("<4sHHIqqqII")
_CRC: Final = struct.Struct("<I")
FILE_MAGIC: Final = b"ZSQU"
_BATCH_MAGIC: Final = b"ZSQV"
_TABLE_MAGIC: Final = b"ZSQW"
TABLE_HEAD_BYTES: Final = _TABLE.size + _CRC.size
assert _BATCH.size + _CRC.size == _FILE.size + _CRC.size == ENTRY_BYTES == 32


class TableHead(NamedTuple):
    """The head of a stored table: its size, and the facts about the file of the ids."""

    bits: int
    ids: int
    first_offset: int
    end: int
    newest_ns: int
    places: int
    crc: int


class Batch(NamedTuple):
    """A batch of a file: the place of its first entry, and the end of its append."""

    place: int
    end: int
    entries: Sequence[tuple[bytes, int, int]]


def file_name(number: int) -> str:
    return f"{number:08}{IDS_SUFFIX}"


def table_name(number: int) -> str:
    return f"{number:08}{TABLE_SUFFIX}"


def parse_name(name: str) -> int | None:
    """Return the number of a file with ids, or None if it is another file."""
    digits = name.removesuffix(IDS_SUFFIX)
    return int(digits) if name.endswith(IDS_SUFFIX) and digits.isdecimal() else None


def encode_file_head(bits: int, uuid: bytes, number: int) -> bytes:
    head = _FILE.pack(FILE_MAGIC, VERSION, bits, uuid, number)
    return head + _CRC.pack(crc32c(head))


def decode_file_head(data: bytes, uuid: bytes, number: int) -> int:
    """Return the bits of the file's table.

    Raises `Damaged` if it is not this file, or `NewerVersion`.
    """
    head = data[: _FILE.size]
    if len(data) < ENTRY_BYTES or _CRC.unpack_from(data, _FILE.size)[0] != crc32c(head):
        raise Damaged("the head of a file with ids is damaged")
    magic, version, bits, owner, named = _FILE.unpack(head)
    if magic == FILE_MAGIC and version != VERSION:
        raise newer("the file with ids", version, VERSION)
    if (magic, owner, named) != (FILE_MAGIC, uuid, number):
        raise Damaged("a file with ids belongs to another topic")
    return int(bits)


def check_version(data: bytes) -> None:
    """Raise `NewerVersion` if a newer version wrote this head of a file, or `Damaged`."""
    decode_file_head(data, data[8:24], int.from_bytes(data[24:28], "little"))


def encode_batch_head(entries: bytes | memoryview, end: int) -> bytes:
    head = _BATCH.pack(_BATCH_MAGIC, len(entries) // ENTRY_BYTES, end, crc32c(entries))
    return head + _CRC.pack(crc32c(head))


def decode_batches(data: bytes) -> Iterator[Batch]:
    """Yield the batches of a file, without its head, up to the first one that is not good."""
    position = 0
    while position + ENTRY_BYTES <= len(data):
        head = data[position : position + _BATCH.size]
        magic, count, end, crc = _BATCH.unpack(head)
        start = position + ENTRY_BYTES
        stop = start + count * ENTRY_BYTES
        if (
            magic != _BATCH_MAGIC
            or _CRC.unpack_from(data, position + _BATCH.size)[0] != crc32c(head)
            or stop > len(data)
            or crc32c(entries := data[start:stop]) != crc
        ):
            return
        yield Batch(start // ENTRY_BYTES + 1, end, list(ENTRY.iter_unpack(entries)))
        position = stop


def encode_table_head(head: TableHead) -> bytes:
    data = _TABLE.pack(
        _TABLE_MAGIC, VERSION, head.bits, head.ids, head.first_offset, head.end, head.newest_ns,
        head.places, head.crc,
    )  # fmt: skip
    return data + _CRC.pack(crc32c(data))


def decode_table_head(data: bytes) -> TableHead:
    """Return the head of a stored table. Raises `Damaged`."""
    if (
        len(data) != TABLE_HEAD_BYTES
        or _CRC.unpack_from(data, _TABLE.size)[0] != crc32c(data[: _TABLE.size])
        or data[:4] != _TABLE_MAGIC
        or _TABLE.unpack_from(data)[1] != VERSION  # a table is made again from its file
    ):
        raise Damaged("the head of a table of ids is damaged")
    return TableHead(*_TABLE.unpack_from(data)[2:])
