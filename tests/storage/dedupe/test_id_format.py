"""Tests of the format of the files with ids: each field of a head is checked when it is read."""

from __future__ import annotations

import struct

import pytest

from zsq.storage.dedupe.id_format import (
    ENTRY,
    ENTRY_BYTES,
    VERSION,
    decode_batches,
    decode_file_head,
    encode_batch_head,
    encode_file_head,
)
from zsq.storage.errors import Damaged, NewerVersion
from zsq.transport.checksum import crc32c

UUID = b"u" * 16
ENTRIES = b"".join(ENTRY.pack(b"%016d" % number, number, 100) for number in range(3))
FILE = encode_batch_head(ENTRIES, 3) + ENTRIES


def changed(data: bytes, at: int, value: bytes) -> bytes:
    """Return a head with another value, and with the right checksum."""
    head = data[:at] + value + data[at + len(value) : ENTRY_BYTES - 4]
    return head + struct.pack("<I", crc32c(head))


def test_a_file_head_that_is_read_gives_the_bits_of_the_table() -> None:
    assert decode_file_head(encode_file_head(12, UUID, 7), UUID, 7) == 12


@pytest.mark.parametrize(
    ("head", "error"),
    [
        (encode_file_head(12, UUID, 7)[:-1], Damaged),
        (encode_file_head(12, UUID, 7)[:-1] + b"x", Damaged),
        (encode_file_head(12, b"v" * 16, 7), Damaged),
        (encode_file_head(12, UUID, 8), Damaged),
        (changed(encode_file_head(12, UUID, 7), 0, b"ZSQX"), Damaged),
        (changed(encode_file_head(12, UUID, 7), 4, struct.pack("<H", VERSION + 1)), NewerVersion),
        # Another kind of file, whose version is its own.
        (changed(encode_file_head(12, UUID, 7), 0, b"ZSQX\x09\x00"), Damaged),
    ],
    ids=["short", "checksum", "topic", "number", "magic", "newer", "another kind"],
)
def test_a_file_head_with_another_field_is_refused(head: bytes, error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        decode_file_head(head, UUID, 7)
    assert type(raised.value) is error


def test_batches_are_read_up_to_the_first_one_that_is_not_good() -> None:
    first, second = decode_batches(FILE + FILE)
    assert (first.place, first.end, len(first.entries)) == (2, 3, 3)
    assert second.place == 6
    for bad in (
        changed(FILE, 0, b"ZSQX") + ENTRIES,
        FILE[: ENTRY_BYTES - 1] + b"x" + ENTRIES,
        FILE[:-1] + b"x",
        FILE[:-1],
        FILE[: ENTRY_BYTES - 1],
    ):
        assert len(list(decode_batches(FILE + bad + FILE))) == 1
