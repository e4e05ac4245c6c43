"""Tests of names, sizes and counts in objects that a hostile program wrote with right checksums."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from crc32c import crc32c
from support.shipping_harness import ShippingHarness

from zsq.storage import documents
from zsq.storage.bucket.archive.archive_format import decode_manifest
from zsq.storage.bucket.bucket import BucketRefuses
from zsq.storage.bucket.bucket_url import parse_bucket_url
from zsq.storage.bucket.folder_bucket import FolderBucket
from zsq.storage.bucket.shipping.follower import Follower, uuids_of
from zsq.storage.bucket.shipping.tick_format import (
    HEAD_BYTES,
    TICK,
    TICK_MAGIC,
    VERSION,
    Index,
    Piece,
    Range,
    Tail,
    decode_index,
    encode_tick,
    log_object,
    state_object,
)
from zsq.storage.errors import Damaged
from zsq.storage.files import Files
from zsq.storage.foreign import is_uuid, path_of, text_of, uuid_of, whole_number
from zsq.storage.log.chunk import ArchivedChunk
from zsq.transport.wire.codec import VALUE_CONTAINERS_MAX, pack_value, unpack_value

MIB: Final = 1024 * 1024
UUID: Final = "00112233445566778899aabbccddeeff"
PIECE: Final = Piece(UUID, 7, 1, True, state_object(UUID, 7, 1), 30, 90, 0, (Range(0, 0, 5),), 0)
TAIL: Final = Tail(7, 1, 30, 90, 20, 3, 12, "", {0: 12, 20: 13})
ESCAPES: Final = ("../../ESCAPED", "/etc", f"{UUID}/x", UUID.upper(), UUID + "0", "", 7, b"x" * 32)
CHUNK: Final = (0, 10, 4096, 1, 2, 1, 77, 0, 99, 5)


def encoded(pieces: tuple[Any, ...] = (), tails: dict[Any, Any] | None = None) -> bytes:
    index = Index(
        TICK, 12, 3, "c" * 32, "d" * 32, "host", 1_800_000_000_000_000_000, "", 4, (), 9,
        pieces, tails,
    )  # fmt: skip
    return encode_tick(index, [bytes(one.size) for one in pieces]).data


@pytest.mark.parametrize("uuid", ESCAPES)
def test_a_tick_names_topics_only_by_their_uuids(uuid: Any) -> None:
    assert decode_index(encoded((PIECE,), {UUID: TAIL})).index.pieces[0].uuid == UUID
    with pytest.raises(Damaged, match="uuid"):
        decode_index(encoded((PIECE._replace(uuid=uuid, base=""),)))
    with pytest.raises(Damaged, match="uuid"):
        decode_index(encoded(tails={uuid: TAIL}))
    with pytest.raises(Damaged, match="uuid"):
        uuids_of(json.dumps({"topics": {"t": {"uuid": str(uuid)}}}).encode())


@pytest.mark.parametrize(
    "base", ["../x", "state/../../x", f"state/{UUID}/../x", state_object("f" * 32, 7, 1), "log/1"]
)
def test_a_tick_names_only_objects_of_the_topic(base: str) -> None:
    with pytest.raises(Damaged, match="not an object with rows"):
        decode_index(encoded((PIECE._replace(base=base),)))
    with pytest.raises(Damaged, match="not an object with rows"):
        decode_index(encoded(tails={UUID: TAIL._replace(base=base)}))


@pytest.mark.parametrize(
    "changed",
    [
        {"ranges": (Range(-1, 0, 5),)},
        {"ranges": (Range(0, 0, 1 << 60),)},
        {"ranges": (Range(0, 9, 5),)},
        {"change_bytes": 1 << 40},
        {"position": -1},
        {"end": 1 << 63},
    ],
)
def test_offsets_and_sizes_of_a_tick_are_possible_ones(changed: dict[str, Any]) -> None:
    row = list(PIECE._replace(**changed))
    index = encoded_row({"pieces": [row]})
    with pytest.raises(Damaged, match="whole number"):
        decode_index(index)


def encoded_row(changed: dict[str, Any]) -> bytes:
    """Return a tick whose index has any values."""
    row = Index(TICK, 12, 3, "c", "d", "host", 1, "", 4, (), 9, ())._asdict() | changed
    return tick_of(pack_value(row))


def tick_of(index: bytes) -> bytes:
    head = struct.pack("<4sHHqII4s", TICK_MAGIC, VERSION, TICK, 12, len(index), crc32c(index), b"")
    data = head + struct.pack("<I", crc32c(head)) + index
    assert len(data) == HEAD_BYTES + len(index)
    return data


def peak_bytes(call: Any, *arguments: Any) -> int:
    tracemalloc.start()
    try:
        with pytest.raises((Damaged, ValueError)):
            call(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("container", [b"\x80", b"\x90", b"\xdc\x00\x00"])
def test_an_index_of_many_small_containers_takes_little_memory(container: bytes) -> None:
    count = 8 * VALUE_CONTAINERS_MAX
    index = b"\xdd" + count.to_bytes(4, "big") + container * count
    assert peak_bytes(decode_index, tick_of(index)) < 8 * count + 3 * len(index) + 200 * MIB


def test_nested_lists_that_claim_many_values_take_little_memory() -> None:
    claims = (b"\xdd" + (1 << 20).to_bytes(4, "big")) * 200
    assert peak_bytes(unpack_value, claims + bytes(1 << 20)) < 16 * MIB


def test_json_of_many_small_containers_is_refused() -> None:
    assert peak_bytes(documents.loads, b"[" + b"{}," * (2 * VALUE_CONTAINERS_MAX) + b"1]") < MIB


@pytest.mark.parametrize(
    ("number", "value"), [(0, -1), (0, 11), (1, 1 << 63), (2, 1 << 50), (2, -5), (8, 1 << 40)]
)
def test_chunks_of_a_manifest_have_possible_sizes(number: int, value: int) -> None:
    def manifest(chunk: tuple[int, ...], uuid: str = UUID) -> bytes:
        row = {
            "topic": "t", "uuid": uuid, "broker": "b", "writer": "w", "time_ns": 1, "start": 0,
            "end": 10, "chunks": [chunk], "epoch": 0,
        }  # fmt: skip
        return documents.encode_line("manifest", 1, row)

    assert decode_manifest(manifest(CHUNK)).chunks == (ArchivedChunk(*CHUNK),)
    wrong = (*CHUNK[:number], value, *CHUNK[number + 1 :])
    with pytest.raises(Damaged, match="whole number"):
        decode_manifest(manifest(wrong))
    with pytest.raises(Damaged, match="uuid"):
        decode_manifest(manifest(CHUNK, "../../ESCAPED"))


def test_a_folder_as_bucket_keeps_to_its_folder(tmp_path: Path) -> None:
    bucket = FolderBucket(Files(), parse_bucket_url(f"file://{tmp_path}/bucket"))
    for name in ("../escaped", "log/../../escaped", "/escaped", "log//x", "a\0b"):
        with pytest.raises(BucketRefuses, match="stays in its folder"):
            bucket.create(name, b"x")
    assert not (tmp_path / "escaped").exists()


def test_values_are_what_their_functions_say() -> None:
    assert (uuid_of(UUID), path_of("a/b.c"), whole_number(5, 5), text_of("x")) == (
        UUID, "a/b.c", 5, "x",
    )  # fmt: skip
    assert not is_uuid(UUID + "\n")
    for wrong in (True, 1.0, "1", None, -1, 6):
        with pytest.raises(ValueError, match="whole number from 0 to 5"):
            whole_number(wrong, 5)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ShippingHarness]:
    made = ShippingHarness(tmp_path)
    made.open()
    made.take_over()
    yield made
    made.abandon()


def test_a_standby_writes_nothing_outside_of_its_folder(
    harness: ShippingHarness, tmp_path: Path
) -> None:
    harness.publish(blocks=2)
    harness.tick(begin=True)
    (tmp_path / "deep").mkdir()
    follower = Follower(Files(), harness.bucket, str(tmp_path / "deep" / "standby"))
    follower.begin()
    try:
        last = follower.last
        assert last is not None
        hostile = Piece("../../ESCAPED", 7, 1, True, "", 30, 90, 0, (Range(0, 0, 5),), 0)
        index = last.index._replace(
            number=follower.number,
            kind=TICK,
            previous=last.digest,
            pieces=(hostile,),
            registry=(),
            tails=None,
        )
        harness.bucket.create(log_object(follower.number), encode_tick(index, [b"12345"]).data)
        with pytest.raises(BucketRefuses, match="not a uuid"):
            follower.step()
    finally:
        follower.close()
    assert list(tmp_path.rglob("*ESCAPED*")) == []
