"""The mark: the block without messages that ends an atomic group and carries its transaction. Pure.

    header (64 bytes, flags MARK, count 0)   length (4)   msgpack map   zeros to a multiple of 8   trailer (8)

A group counts if and only if its mark is in the log. Where the whole group was appended, the mark stands behind its
blocks; where staged files become chunks, it stands behind the blocks of the last of them, and that file's name in the log is the
commit. The mark names all that belongs to the group, so that recovery can finish what was begun.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from crc32c import crc32c

from ..transport.block import HEADER_BYTES, MARK, TRAILER_BYTES, TRAILER_MAGIC, Buffer, Header
from ..transport.codec import pack_value, unpack_value
from .log_format import ALIGNMENT, encode_disk_header
from .transactions import Transaction, TransactionRow

_LENGTH_BYTES: Final = 4


class Adopted(NamedTuple):
    """A staged file that is a chunk of the log from here on. `data_end`: where its blocks end (a mark may follow)."""

    stage: bytes
    number: int
    seed: int
    base_offset: int
    messages: int
    data_end: int


class Mark(NamedTuple):
    """`messages`: of the whole group, of which the first `appended` were appended. `adopted`: ascending; the mark stands in the last one.

    `unsealed`: (base offset, end of its blocks, time of the last one) of the chunk before the adopted ones, if it had no footer yet; or ().
    """

    transaction: Transaction
    first_offset: int
    messages: int
    appended: int
    parts: tuple[bytes, ...]
    adopted: tuple[Adopted, ...] = ()
    unsealed: tuple[int, ...] = ()

    @property
    def next_offset(self) -> int:
        return self.first_offset + self.messages

    def row(self, time_ns: int) -> TransactionRow:
        return TransactionRow(self.transaction.version, self.transaction.kind, self.first_offset, self.messages, time_ns)


def encode_mark(mark: Mark) -> bytes:
    """The columns of the mark's block."""
    app, version, kind = mark.transaction
    data = pack_value(
        {
            "app": app,
            "version": version,
            "kind": kind,
            "first": mark.first_offset,
            "messages": mark.messages,
            "appended": mark.appended,
            "parts": mark.parts,
            "adopted": mark.adopted,
            "unsealed": mark.unsealed,
        }
    )
    padding = -(_LENGTH_BYTES + len(data)) % ALIGNMENT
    body = len(data).to_bytes(_LENGTH_BYTES, "little") + data + bytes(padding)
    length = HEADER_BYTES + len(body) + TRAILER_BYTES
    return body + length.to_bytes(4, "little") + TRAILER_MAGIC.to_bytes(4, "little")


def encode_mark_header(columns: bytes, offset: int, time_ns: int, unsynced_bytes: int, seed: int, position: int = 0) -> bytes:
    """As `encode_disk_header`. `offset` is the one behind the group, relative to the chunk like `time_ns`."""
    crc = crc32c(memoryview(columns)[:-TRAILER_BYTES])
    header = Header(0, MARK, HEADER_BYTES + len(columns), 0, 0, 0, 0, 0, crc)
    return encode_disk_header(header, offset, time_ns, unsynced_bytes, seed, position)


def decode_mark(columns: Buffer) -> Mark:
    """From columns whose checksum was checked; `ValueError` where they are no mark all the same."""
    size = int.from_bytes(columns[:_LENGTH_BYTES], "little")
    try:
        found: dict[str, Any] = unpack_value(columns[_LENGTH_BYTES : _LENGTH_BYTES + size])
        return Mark(
            Transaction(found["app"], found["version"], found["kind"]),
            found["first"],
            found["messages"],
            found["appended"],
            found["parts"],
            tuple(Adopted(*adopted) for adopted in found["adopted"]),
            found["unsealed"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not the content of a mark: {error}") from error
