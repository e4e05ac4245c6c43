"""Tests of FORMAT.md against the code: every example in it is made here again and compared byte by
byte.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

import zsq.storage
from zsq.storage.directory.store import TopicIdentity, _encode_identity
from zsq.storage.errors import Damaged, ForeignDirectory
from zsq.storage.log.damage import Bad, BadHead, encode_bad_head
from zsq.storage.log.index import Index
from zsq.storage.log.log_format import (
    CHUNK_COPY_BYTES,
    CHUNK_HEADER_BYTES,
    UNSYNCED_MAX,
    ChunkFooter,
    ChunkHeader,
    chunk_name,
    decode_chunk_header,
    decode_disk_header,
    decode_footer,
    decode_index,
    encode_chunk_header,
    encode_disk_header,
    encode_footer,
    index_name,
    parse_chunk_name,
    unsynced_bytes,
    wire_header,
)
from zsq.storage.log.transactions import (
    Adopted,
    Mark,
    StagedFile,
    StageRow,
    Transaction,
    TransactionRow,
    decode_mark,
    encode_mark,
    encode_mark_header,
)
from zsq.storage.rows import wrap
from zsq.storage.state.snapshot import encode_snapshot
from zsq.storage.state.state_rows import (
    HOLE_ROW,
    STAGE,
    TRANSACTION,
    DeferredTotal,
    StateBatch,
    Table,
    deferred_key,
    due_key,
    hole_key,
    small_puts,
    take_row,
)
from zsq.transport.block.block import IN_GROUP, Header, pack

SEED: Final = 0x12345678
UUID: Final = bytes.fromhex("00112233445566778899aabbccddeeff")
CHUNK: Final = ChunkHeader(
    base_offset=1000, base_time_ns=1_700_000_000_000_000_000, seed=SEED, uuid=UUID
)
SNAPSHOT_DEFERRED: Final = {"archive": DeferredTotal(2, 3, 1001)}
BLOCK: Final = pack([b"hello", b"zsq"], keys=[b"k", None], producer_id=77, sequence=5)


def examples() -> dict[str, bytes]:
    """Return the examples in FORMAT.md, by the names that it gives them."""
    index = Index(4096)
    index.note(0, CHUNK_HEADER_BYTES, 250)
    stage = bytes(range(16))
    mark = encode_mark(
        Mark(
            Transaction("q", 7, "app"),
            1000,
            8,
            2,
            (stage,),
            (Adopted(stage, 3, SEED, 1002, 6, 1024),),
            (1000, 256, CHUNK.base_time_ns),
        )
    )
    row = StageRow("q", 7, "app", 0, 2, 6, 896, 5, True, (StagedFile(3, SEED, 2, 6, 1024),), 250)
    transaction_key = TRANSACTION + b"q"
    done = TransactionRow(7, "app", 1000, 8, 250)
    return {
        "identity": _encode_identity(TopicIdentity("clicks", UUID.hex(), 1000)),
        "chunk header": encode_chunk_header(CHUNK),
        "block header on the wire": BLOCK.wire_header(),
        "block header on disk": encode_disk_header(
            BLOCK.header, 0, 250, 0, SEED, CHUNK_HEADER_BYTES
        ),
        "columns": bytes(BLOCK.columns),
        "header of a block in a group": encode_disk_header(
            BLOCK.header._replace(flags=IN_GROUP), 0, 250, 0, SEED, CHUNK_HEADER_BYTES
        ),
        "header of a mark": encode_mark_header(mark, 6, 0, 0, SEED, 1024),
        "columns of a mark": mark,
        "header of an adopted chunk": encode_chunk_header(
            CHUNK._replace(base_offset=1002, flags=1)
        ),
        "footer": encode_footer(
            ChunkFooter(2, 250, CHUNK_HEADER_BYTES + BLOCK.length), SEED, CHUNK
        ),
        "index": index.encode(SEED),
        "head of a damaged block": encode_bad_head(
            BadHead(
                Bad(1000, 128, 128, 1000, 2, "its checksum does not agree"),
                CHUNK.base_time_ns,
                128,
                0x12345678,
            )
        ),
        "hole key": hole_key("archive", 1000),
        "hole row": wrap(hole_key("archive", 1000), HOLE_ROW.pack(1, 2, 0)),
        "deferred key": deferred_key("archive", 1000),
        "due key": due_key("archive", CHUNK.base_time_ns, 1000),
        "snapshot": encode_snapshot(
            UUID,
            CHUNK.base_time_ns,
            [(hole_key("archive", 1000), wrap(hole_key("archive", 1000), HOLE_ROW.pack(1, 2, 0)))],
            SNAPSHOT_DEFERRED,
        ),
        "stage row": wrap(
            STAGE + stage, small_puts(StateBatch(stage_puts={stage: row}))[STAGE + stage]
        ),
        "transaction row": wrap(
            transaction_key,
            small_puts(StateBatch(transactions={transaction_key[1:].decode(): done}))[
                transaction_key
            ],
        ),
    }


@pytest.mark.parametrize("user", ["", "etl"])
def test_rows_and_marks_with_and_without_a_user_are_read(user: str) -> None:
    stage, done = (
        StageRow("q", 7, "app", 0, 1, 2, 3, 4, True, (), 5, user),
        TransactionRow(7, "app", 1000, 8, 250, user),
    )
    table = Table()
    puts = small_puts(StateBatch(stage_puts={UUID: stage}, transactions={"q": done}))
    for key, data in puts.items():
        take_row(table, key, data)
    assert (table.stages[UUID], table.transactions["q"]) == (stage, done)
    mark = Mark(Transaction("q", 7, "app", user), 1000, 8, 2, (UUID,))
    assert decode_mark(encode_mark(mark)) == mark
    assert mark.row(250) == done


def dump(data: bytes) -> str:
    lines = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:04x}  {row.hex(' ', 4):<35}  {text}")
    return "\n".join(lines)


def document() -> str:
    return Path(zsq.storage.__path__[0], "FORMAT.md").read_text()


@pytest.mark.parametrize("name", examples())
def test_the_document_shows_what_the_code_writes(name: str) -> None:
    shown = dict(re.findall(r"Example, ([^:\n]+):\n\n```text\n(.*?)\n```", document(), re.DOTALL))
    assert name in shown, f"FORMAT.md lacks the example {name!r}:\n{dump(examples()[name])}"
    assert shown[name] == dump(examples()[name]), dump(examples()[name])


def test_the_document_shows_nothing_else() -> None:
    assert set(re.findall(r"Example, ([^:\n]+):\n", document())) == set(examples())


def test_headers_and_footers_come_back_as_they_were_written() -> None:
    assert decode_chunk_header(encode_chunk_header(CHUNK)) == CHUNK
    footer = ChunkFooter(5, 6, 128)
    assert decode_footer(encode_footer(footer, SEED), SEED, 128) == footer
    disk = encode_disk_header(BLOCK.header, 3, 250, 4096, SEED)
    header = decode_disk_header(disk, SEED)
    assert header is not None
    assert unsynced_bytes(header) == 4096
    assert wire_header(header, CHUNK) == BLOCK.header._replace(
        first_offset=1003, time_ns=CHUNK.base_time_ns + 250
    )


@pytest.mark.parametrize("far", [UNSYNCED_MAX * 8, UNSYNCED_MAX * 8 + 8, 2**60])
def test_a_distance_that_is_too_large_is_read_as_unknown(far: int) -> None:
    header = decode_disk_header(encode_disk_header(BLOCK.header, 0, 0, far, SEED), SEED)
    assert header is not None
    assert unsynced_bytes(header) is None


@pytest.mark.parametrize("position", [2**35, 2**40])
def test_a_position_that_is_too_large_is_not_written_into_the_header(position: int) -> None:
    made = encode_disk_header(BLOCK.header, 0, 0, 0, SEED, position)
    header = decode_disk_header(made, SEED, position)
    assert header is not None
    assert header.reserved_2 == 0
    assert (
        decode_disk_header(encode_disk_header(BLOCK.header, 0, 0, 0, SEED, 2**35 - 8), SEED, 128)
        is None
    )


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit >> 3] ^= 1 << (bit & 7)
    return bytes(changed)


def test_every_flipped_bit_is_noticed() -> None:
    made = examples()
    for bit in range(CHUNK_COPY_BYTES * 8):
        with pytest.raises(Damaged):
            decode_chunk_header(flipped(made["chunk header"], bit)[:CHUNK_COPY_BYTES])
        assert decode_chunk_header(flipped(made["chunk header"], bit)) == CHUNK, (
            "the other copy is good"
        )
        assert decode_disk_header(flipped(made["block header on disk"], bit), SEED) is None
        assert (
            decode_footer(flipped(made["footer"], bit), SEED, CHUNK_HEADER_BYTES + BLOCK.length)
            is None
        )
    for bit in range(len(made["index"]) * 8):
        assert decode_index(flipped(made["index"], bit), SEED) is None


def test_another_seed_or_place_is_not_believed() -> None:
    made = examples()
    assert decode_disk_header(made["block header on disk"], SEED + 1) is None
    assert decode_disk_header(made["block header on the wire"], 0) is None
    assert decode_disk_header(made["block header on disk"], SEED, CHUNK_HEADER_BYTES) is not None
    assert decode_disk_header(made["block header on disk"], SEED, CHUNK_HEADER_BYTES + 8) is None
    assert decode_footer(made["footer"], SEED + 1, CHUNK_HEADER_BYTES + BLOCK.length) is None
    assert decode_footer(made["footer"], SEED, 0) is None
    assert decode_index(made["index"], SEED + 1) is None


def test_a_newer_version_is_refused_and_not_taken_for_damage() -> None:
    from crc32c import crc32c

    head = bytearray(encode_chunk_header(CHUNK)[:60])
    head[4] = 2
    with pytest.raises(ForeignDirectory):
        decode_chunk_header(bytes(head) + crc32c(head).to_bytes(4, "little"))


def test_chunk_names_are_parsed_and_other_names_are_not() -> None:
    assert chunk_name(1000) == "00000000000000001000.chunk"
    assert index_name(1000) == "00000000000000001000.index"
    assert parse_chunk_name(chunk_name(2**63 - 1)) == 2**63 - 1
    for name in (
        "1000.chunk",
        "00000000000000001000.index",
        "00000000000000001000.chunk.bad",
        "topic",
        "٠" * 20 + ".chunk",
        ".chunk",
    ):
        assert parse_chunk_name(name) is None


def test_the_largest_header_values_come_back() -> None:
    far = Header(1, 0, 80, 1, 2**62, 2**62, 2**64 - 1, 2**64 - 1, 2**32 - 1)
    header = decode_disk_header(encode_disk_header(far, 2**62, 2**62, 0, SEED), SEED)
    assert header == far
