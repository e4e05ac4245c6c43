"""Tests of recorded changes and their frames: nothing is missed, and damage is noticed."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from zsq.storage import row_changes
from zsq.storage.errors import Damaged
from zsq.storage.row_changes import (
    DELAYED,
    DELAYED_BEGIN,
    DELAYED_NONE,
    END,
    STATE,
    STATE_BEGIN,
    Change,
    Frame,
    RecordingTransaction,
    decode_frames,
    encode_frames,
    read_frames,
    row_batches,
)

CHANGES: list[Change] = [(b"a", b"one"), (b"b" * 300, None), (b"c", b"")]
ROWS = {b"key%d" % number: b"value%d" % number for number in range(9)}


# Recording


OPERATIONS: dict[str, Callable[[Any, bytes], object]] = {
    "put": lambda txn, key: txn.put(key, b"new"),
    "put if missing": lambda txn, key: txn.put(key, b"other", overwrite=False),
    "replace": lambda txn, key: txn.replace(key, b"swapped"),
    "pop": lambda txn, key: txn.pop(key),
    "delete": lambda txn, key: txn.delete(key),
    "cursor put": lambda txn, key: txn.cursor().put(key, b"by cursor"),
    "cursor delete": lambda txn, key: _delete_from(txn, key, 1),
    "cursor deletes": lambda txn, key: _delete_from(txn, key, 3),
    "cursor delete backwards": lambda txn, key: _delete_before(txn, key),
}


def _delete_from(txn: Any, key: bytes, count: int) -> list[bytes]:
    cursor = txn.cursor()
    found = cursor.set_range(key)
    gone: list[bytes] = []
    while found and len(gone) < count:
        gone.append(cursor.value())
        found = cursor.delete() and bool(cursor.key())
    return gone


def _delete_before(txn: Any, key: bytes) -> bool:
    cursor = txn.cursor()
    moved = cursor.prev() if cursor.set_range(key) else cursor.last()
    return bool(moved and cursor.delete())


@settings(max_examples=60, deadline=None)
@given(
    operations=st.lists(
        st.tuples(
            st.sampled_from(sorted(OPERATIONS)), st.sampled_from([*sorted(ROWS), b"aaa", b"zzz"])
        ),
        max_size=12,
    )
)
def test_a_recording_transaction_acts_like_lmdb_and_misses_no_change(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, bytes]]
) -> None:
    before, after = [], []
    with lmdb.open(str(tmp_path_factory.mktemp("rows")), lock=False) as env:
        with env.begin(write=True) as txn:
            for row in ROWS.items():
                txn.put(*row)
        txn = env.begin(write=True)
        plain = [OPERATIONS[name](txn, key) for name, key in operations]
        before = list(txn.cursor())
        txn.abort()
        txn = env.begin(write=True)
        recorder = RecordingTransaction(txn)
        assert [OPERATIONS[name](recorder, key) for name, key in operations] == plain
        after = list(recorder.cursor())
        assert recorder.stat() == txn.stat()
        txn.abort()
    assert after == before
    copy: dict[bytes, bytes | None] = {**ROWS, **dict(recorder.changes())}
    assert sorted((key, value) for key, value in copy.items() if value is not None) == after


def test_a_method_that_would_not_be_recorded_is_missing() -> None:
    for name in ("drop", "commit", "abort"):
        assert not hasattr(RecordingTransaction(object()), name)


@pytest.mark.parametrize("max_bytes", [1, 25, 1 << 20])
def test_rows_come_in_batches(tmp_path: Path, max_bytes: int) -> None:
    with lmdb.open(str(tmp_path), lock=False) as env:
        with env.begin() as txn:
            assert list(row_batches(txn, max_bytes)) == []
        with env.begin(write=True) as txn:
            for row in ROWS.items():
                txn.put(*row)
        with env.begin() as txn:
            batches = list(row_batches(txn, max_bytes))
    assert [row for batch in batches for row in batch] == sorted(ROWS.items())
    assert all(batches)
    assert all(sum(map(len, sum(batch[:-1], ()))) < max_bytes for batch in batches)


# Frames


def stream() -> tuple[bytes, list[int]]:
    """Return a small stream, and the positions at which its frames end."""
    frames = [
        *encode_frames(STATE_BEGIN),
        *encode_frames(STATE, CHANGES),
        *encode_frames(DELAYED_NONE),
        *encode_frames(DELAYED_BEGIN, CHANGES[:1]),
        *encode_frames(DELAYED, CHANGES[1:]),
        *encode_frames(END),
    ]
    ends = [0]
    for frame in frames:
        ends.append(ends[-1] + len(frame))
    return b"".join(frames), ends


def test_frames_come_back_as_encoded() -> None:
    data, _ = stream()
    expected = [
        Frame(STATE_BEGIN, []),
        Frame(STATE, CHANGES),
        Frame(DELAYED_NONE, []),
        Frame(DELAYED_BEGIN, CHANGES[:1]),
        Frame(DELAYED, CHANGES[1:]),
    ]
    assert list(decode_frames(data, complete=True)) == expected
    assert list(decode_frames(memoryview(data))) == expected
    source = io.BytesIO(data)
    assert list(read_frames(lambda size: source.read(min(size, 3)), complete=True)) == expected
    assert encode_frames(STATE) == encode_frames(DELAYED) == []
    assert list(decode_frames(b"")) == []


def test_a_frame_is_laid_out_as_described() -> None:
    (frame,) = encode_frames(STATE, [(b"ab", b"xyz"), (b"c", None)])
    body = b"\x01" + b"\x02\0\x03\0\0\0abxyz" + b"\x01\0\xff\xff\xff\xffc"
    assert frame == struct.pack("<II", len(body), crc32c(body)) + body


@given(
    changes=st.lists(
        st.tuples(st.binary(min_size=1, max_size=9), st.none() | st.binary(max_size=40))
    ),
    max_bytes=st.integers(1, 200),
    kind=st.sampled_from([STATE, DELAYED, STATE_BEGIN, DELAYED_BEGIN]),
)
def test_changes_are_divided_among_frames(changes: list[Change], max_bytes: int, kind: int) -> None:
    frames = encode_frames(kind, changes, max_bytes)
    decoded = list(decode_frames(b"".join(frames)))
    assert [change for frame in decoded for change in frame.changes] == changes
    following = {STATE_BEGIN: STATE, DELAYED_BEGIN: DELAYED}.get(kind, kind)
    assert [frame.kind for frame in decoded] == [kind, *[following] * len(frames)][: len(frames)]
    for encoded, frame in zip(frames, decoded, strict=True):
        assert len(encoded) <= max_bytes or len(frame.changes) <= 1


def test_a_cut_stream_is_damaged_or_ends_between_two_frames() -> None:
    """A reader that requires the end notices every cut. Another reader must know the size."""
    data, ends = stream()
    whole = list(decode_frames(data))
    for size in range(len(data)):
        with pytest.raises(Damaged):
            list(decode_frames(data[:size], complete=True))
        if size in ends:
            assert list(decode_frames(data[:size])) == whole[: ends.index(size)]
        else:
            with pytest.raises(Damaged):
                list(decode_frames(data[:size]))


def test_every_flipped_bit_is_noticed() -> None:
    data, _ = stream()
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damaged):
            list(decode_frames(bytes(flipped)))


def framed(body: bytes) -> bytes:
    return struct.pack("<II", len(body), crc32c(body)) + body


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (framed(b"\x07"), "unknown kind 7"),
        (framed(b"\0"), "unknown kind 0"),
        (framed(b""), "invalid length 0"),
        (framed(b"\x01\x01"), "incomplete row"),
        (framed(b"\x01" + struct.pack("<Hi", 1, 5) + b"kfour"), "invalid size"),
        (framed(b"\x01" + struct.pack("<Hi", 1, -2) + b"k"), "invalid size"),
        (framed(b"\x01" + struct.pack("<Hi", 0, 1) + b"v"), "invalid size"),
        (framed(b"\x05" + struct.pack("<Hi", 1, 0) + b"k"), "but also rows"),
        (framed(b"\x06") + framed(b"\x06"), "follows the end"),
        (struct.pack("<II", row_changes.FRAME_BYTES_MAX - 7, 0), "invalid length"),
        (struct.pack("<II", row_changes.FRAME_BYTES_MAX - 8, 0), "cut off"),
    ],
)
def test_a_frame_with_a_good_checksum_and_invalid_content_is_damaged(
    data: bytes, text: str
) -> None:
    with pytest.raises(Damaged, match=text):
        list(decode_frames(data))


def test_a_large_row_makes_a_large_frame_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    large = bytes(9 << 20)
    frames = encode_frames(DELAYED, [(b"a", b"1"), (b"b", large), (b"c", b"2")])
    assert len(frames) == 3
    assert list(decode_frames(b"".join(frames)))[1].changes == [(b"b", large)]
    monkeypatch.setattr(row_changes, "FRAME_BYTES_MAX", 8 << 20)
    with pytest.raises(ValueError, match="largest frame"):
        encode_frames(DELAYED, [(b"b", large)])
    with pytest.raises(Damaged, match="invalid length"):
        list(decode_frames(frames[1]))


def test_a_reader_has_one_frame_in_memory() -> None:
    """The reader asks for a head and a body in turn, and never for the rest of the stream."""
    data = b"".join(encode_frames(STATE, [(b"k%d" % n, bytes(90)) for n in range(50)], 100))
    source, asked = io.BytesIO(data), []

    def read(size: int) -> bytes:
        asked.append(size)
        return source.read(size)

    frames = read_frames(read)
    next(frames)
    assert len(asked) == 2
    assert len(list(frames)) == 49
    assert max(asked) <= 110
