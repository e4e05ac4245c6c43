"""Tests of the archive's format: what is written is read back, and damage is noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsq.storage.bucket.archive.archive_format import (
    Claim,
    Manifest,
    SegmentIndex,
    decode_claim,
    decode_manifest,
    decode_segment_index,
    encode_claim,
    encode_manifest,
    encode_segment_index,
    manifest_number,
    manifest_object,
    segments_of,
)
from zsq.storage.errors import Damaged, ForeignDirectory
from zsq.storage.log.chunk import ArchivedChunk
from zsq.storage.log.log_format import CHUNK_FILE_BYTES_MAX

number = st.integers(0, 2**62)
u32 = st.integers(0, 2**32 - 1)
sizes = st.integers(0, CHUNK_FILE_BYTES_MAX)
offsets = st.tuples(number, number).map(sorted)
rest = st.tuples(sizes, number, number, number, u32, u32, u32, number)
chunks = st.builds(lambda places, row: ArchivedChunk(*places, *row), offsets, rest)
uuids = st.binary(min_size=16, max_size=16).map(bytes.hex)
manifests = st.builds(
    Manifest, st.text(), uuids, st.text(), st.text(), number, number, number,
    st.lists(chunks, max_size=4).map(tuple), number,
)  # fmt: skip
indexes = st.builds(SegmentIndex, st.lists(u32, max_size=5).map(tuple), st.binary(max_size=40))


@given(manifests)
def test_a_manifest_is_read_back(made: Manifest) -> None:
    assert decode_manifest(encode_manifest(made)) == made


@given(indexes)
def test_an_index_object_is_read_back(made: SegmentIndex) -> None:
    assert decode_segment_index(encode_segment_index(made)) == made


@given(indexes, st.data())
def test_a_flipped_bit_or_a_missing_end_of_an_index_object_is_noticed(
    made: SegmentIndex, data: st.DataObject
) -> None:
    encoded = bytearray(encode_segment_index(made))
    size = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(Damaged):
        decode_segment_index(bytes(encoded[:size]))
    bit = data.draw(st.integers(0, 8 * len(encoded) - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Damaged):
        decode_segment_index(bytes(encoded))


@given(manifests, st.data())
def test_a_flipped_bit_or_a_missing_end_of_a_manifest_is_noticed(
    made: Manifest, data: st.DataObject
) -> None:
    encoded = bytearray(encode_manifest(made))
    with pytest.raises(Damaged):
        decode_manifest(bytes(encoded[: data.draw(st.integers(0, len(encoded) - 1))]))
    bit = data.draw(st.integers(0, 8 * len(encoded) - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Damaged):
        decode_manifest(bytes(encoded))


def test_a_claim_names_the_broker_and_is_no_manifest() -> None:
    made = Claim("abc", "def")
    assert decode_claim(encode_claim(made)) == made
    assert 0 < made.place != Claim("abc", "deg").place < 1 << 63
    with pytest.raises(Damaged, match="not of the kind manifest"):
        decode_manifest(encode_claim(made))


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zsq.storage.bucket.archive.archive_format.VERSION", 2)
    later = encode_claim(Claim("a", "b")), encode_segment_index(SegmentIndex((1,), b""))
    monkeypatch.undo()
    with pytest.raises(ForeignDirectory, match=r"version 2.*use a newer zsq"):
        decode_claim(later[0])
    with pytest.raises(ForeignDirectory, match=r"version 2.*use a newer zsq"):
        decode_segment_index(later[1])


def test_an_object_of_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zsq.storage.bucket.archive.archive_format.INDEX_OBJECT_MAGIC", b"ZSQB")
    other = encode_segment_index(SegmentIndex((1,), b""))
    monkeypatch.undo()
    with pytest.raises(ForeignDirectory):
        decode_segment_index(other)


def test_names_of_manifests_are_numbered() -> None:
    assert manifest_object("ab", 7) == "manifest/ab/00000000000000000007"
    assert manifest_number(manifest_object("ab", 7)) == 7
    assert manifest_number("manifest/ab/7") == manifest_number("manifest/ab/x" + "0" * 19) == -1


@pytest.mark.parametrize(("size", "count"), [(1, 1), (4 << 20, 1), ((4 << 20) + 1, 2)])
def test_a_file_has_a_segment_for_each_4_mib(size: int, count: int) -> None:
    assert segments_of(size) == count
