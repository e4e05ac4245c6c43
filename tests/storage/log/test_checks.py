"""Tests of the checks of data from disk. In each test only one value is wrong, and every checksum
over it is correct.

Other tests here check that syncs are made: those of LMDB, and those of small files and folders.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import lmdb
import pytest
from crc32c import crc32c
from support.lmdb_calls import LmdbCall, LmdbCalls

from zsq.storage.delayed import delayed_format
from zsq.storage.delayed.delayed import DelayedStore
from zsq.storage.directory import store
from zsq.storage.directory.store import TopicIdentity
from zsq.storage.errors import Damaged, DiskFull, ForeignDirectory
from zsq.storage.files import Files
from zsq.storage.log.log_format import (
    CHUNK_COPY_BYTES,
    IDENTITY_NAME,
    ChunkFooter,
    ChunkHeader,
    decode_chunk_header,
    decode_footer,
    decode_index,
    encode_chunk_header,
    encode_footer,
    encode_index,
    header_of_footer,
)
from zsq.storage.nsq.disk_queue_format import (
    encode_record,
    looks_like_message,
    may_be_message,
)
from zsq.storage.row_changes import END, encode_frames
from zsq.storage.rows import META, unwrap, wrap
from zsq.storage.space import SPACE_CHECK_BYTES, SPACE_CHECK_NS, Space
from zsq.storage.state.snapshot import (
    SNAPSHOT_NAME,
    decode_snapshot,
    encode_snapshot,
    write_snapshot,
)
from zsq.storage.state.state import StateStore
from zsq.storage.state.state_rows import StateBatch, new_meta, unwrap_meta
from zsq.transport.block.block import pack
from zsq.transport.wire.codec import pack_value, unpack_value

SEED = 0xA1B2C3D4
HEADER = ChunkHeader(1000, 1_700_000_000_000_000_000, SEED, bytes(range(16)))
FOOTER = ChunkFooter(10, 20, 4096)


def changed(data: bytes, at: int, new: bytes, *, seed: int = 0) -> bytes:
    """Replace bytes, and make the checksum at the end correct."""
    body = data[:at] + new + data[at + len(new) : -4]
    return body + crc32c(body, seed).to_bytes(4, "little")


# Formats


def test_a_chunks_header_is_known_by_its_magic() -> None:
    copy = encode_chunk_header(HEADER)[:CHUNK_COPY_BYTES]
    other = changed(copy, 0, b"ZSQX")
    assert decode_chunk_header(copy + other) == decode_chunk_header(other + copy) == HEADER
    with pytest.raises(Damaged):
        decode_chunk_header(other + other)
    with pytest.raises(Damaged):
        decode_chunk_header(copy[:-1])
    with pytest.raises(ForeignDirectory):
        decode_chunk_header(changed(copy, 4, b"\x02\x00") * 2)


def test_a_footer_is_known_by_its_magic_version_place_and_size() -> None:
    good = encode_footer(FOOTER, SEED, HEADER)
    assert decode_footer(good, SEED, 4096) == FOOTER
    assert header_of_footer(good, 1000, 4096) == HEADER
    assert header_of_footer(b"", 1000, 4096) is None
    others = [
        changed(good, 0, b"ZSQX", seed=SEED),
        changed(good, 4, b"\x02\x00", seed=SEED),
        good + b"\0",
        good[:-1],
    ]
    for other in others:
        assert decode_footer(other, SEED, 4096) is None
        assert header_of_footer(other, 1000, 4096) is None
    assert decode_footer(good, SEED, 4104) is None
    assert decode_footer(good, SEED + 1, 4096) is None


def test_an_index_is_known_by_its_magic_version_seed_and_counts() -> None:
    entries = struct.pack("<6q", 1, 2, 128, 3, 4, 4096)
    good = encode_index(entries, SEED)
    head, size = good[: -len(entries)], len(entries)
    assert decode_index(good, SEED) == entries
    others = {
        "magic": (0, b"ZSQX"), "version": (4, b"\x02\x00"), "entry size": (6, b"\x10\x00"), "seed": (8, b"\1\2\3\4"),
        "count": (12, b"\x01\x00\x00\x00"), "crc": (16, b"\1\2\3\4"),
    }  # fmt: skip
    for what, (at, new) in others.items():
        assert decode_index(changed(head, at, new) + entries, SEED) is None, what
    for cut in (1, 8, size, size + 1, len(good) - 1, len(good)):
        assert decode_index(good[:-cut], SEED) is None
    longer = (
        changed(head, 16, crc32c(entries + entries[:24]).to_bytes(4, "little"))
        + entries
        + entries[:24]
    )
    assert decode_index(longer, SEED) is None, "more than are counted, and their checksum is right"


def test_a_checkpoint_of_another_version_is_refused() -> None:
    meta = new_meta(bytes(16), 0)
    assert unwrap_meta(wrap(META, pack_value(meta))) == meta
    with pytest.raises(ForeignDirectory):
        unwrap_meta(wrap(META, pack_value({**meta, "version": meta["version"] + 1})))


def test_a_row_too_short_for_a_blocks_header_has_not_its_size() -> None:
    """In this case the size that LMDB reports is wrong, so nothing else that it says about the row
    can be used.
    """
    key, value = delayed_format.encode_row(
        delayed_format.DelayedRow(delayed_format.DelayedKey(1, 2), pack([b"body"]))
    )
    assert delayed_format.has_its_size(key, value)
    assert not delayed_format.has_its_size(key, value[:60])


def test_delayed_messages_of_another_version_are_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "delayed")
    Files().make_folder(path)
    DelayedStore(path, bytes(16), create=True).close()
    with lmdb.open(path, lock=False) as env, env.begin(write=True) as txn:
        meta = unpack_value(unwrap(META, bytes(txn.get(META, b""))))
        txn.put(
            META,
            wrap(META, pack_value({**meta, "version": meta["version"] + 1})),
        )
    with pytest.raises(ForeignDirectory, match="use a newer zsq"):
        DelayedStore(path, bytes(16))


def snapshot(**changes: Any) -> bytes:
    """Return a snapshot with changed fields in its first line, and a correct checksum."""
    rows = [(META, wrap(META, pack_value(new_meta(bytes(16), 0))))]
    data = encode_snapshot(bytes(16), 5, rows, {})
    line, _, rest = data.partition(b"\n")
    line = json.dumps({**json.loads(line), **changes}).encode()
    return b"%s\n%08x\n%s" % (line, crc32c(line), rest[9:])


def test_a_file_of_another_kind_is_no_snapshot() -> None:
    with pytest.raises(Damaged):
        decode_snapshot(snapshot(zsq="other"))


def test_a_snapshot_that_ends_between_two_frames_is_damaged() -> None:
    data = snapshot()
    end = encode_frames(END)[0]
    assert data.endswith(end)
    with pytest.raises(Damaged, match="cut off"):
        decode_snapshot(data.removesuffix(end))


def test_the_snapshot_of_another_version_is_named() -> None:
    with pytest.raises(ForeignDirectory, match="format version 2"):
        decode_snapshot(snapshot(version=2))


def test_a_snapshots_head_is_checked() -> None:
    data = snapshot()
    line, _, rest = data.partition(b"\n")
    turned = line.replace(b'"time_ns": 5', b'"time_ns": 7')
    assert turned != line
    with pytest.raises(Damaged, match="object is damaged"):
        decode_snapshot(turned + b"\n" + rest)


# Syncs


class Seen:
    """Records the names that were made durable, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        for name in ("sync_folder", "rename", "write_file"):
            monkeypatch.setattr(Files, name, self.of(name, getattr(Files, name)))

    def of(self, name: str, call: Any) -> Any:
        def seen(files: Files, path: str, *more: Any) -> Any:
            found = call(files, path, *more)
            self.done.append(f"{name} {Path(path).name}")
            return found

        return seen


def test_a_snapshot_takes_effect_as_a_whole_and_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen(monkeypatch)
    write_snapshot(Files(), str(tmp_path), b"new")
    assert seen.done == [
        f"write_file {SNAPSHOT_NAME}.tmp",
        f"rename {SNAPSHOT_NAME}.tmp",
        f"sync_folder {tmp_path.name}",
    ]
    assert (tmp_path / SNAPSHOT_NAME).read_bytes() == b"new"


def test_a_mended_identity_takes_effect_as_a_whole_and_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = TopicIdentity("clicks", "0" * 32)
    seen = Seen(monkeypatch)
    assert store._mend_identity(Files(), str(tmp_path), identity)
    assert [call.split()[0] for call in seen.done] == ["write_file", "rename", "sync_folder"]
    assert store.read_identity(Files(), str(tmp_path)) == identity
    assert not store._mend_identity(Files(), str(tmp_path), identity)


def test_a_new_topic_is_synced_before_its_name_and_then_its_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen(monkeypatch)
    (tmp_path / "topics").mkdir()
    store.create_store(
        Files(), str(tmp_path / "topics" / "clicks"), TopicIdentity("clicks", "0" * 32)
    )
    named = next(at for at, call in enumerate(seen.done) if call.startswith("rename clicks"))
    before, after = seen.done[:named], seen.done[named + 1 :]
    temporary = seen.done[named].removeprefix("rename ")
    assert {"sync_folder state", f"sync_folder {temporary}"} <= {*before}
    assert max(
        at for at, call in enumerate(before) if call.startswith("write_file")
    ) < before.index(f"sync_folder {temporary}")
    assert after == ["sync_folder topics"]


@pytest.mark.parametrize(
    "changes", [{"version": 2}, {"version": 0}, {"zsq": "other"}, {"version": None}]
)
def test_an_identity_of_another_kind_is_refused_and_a_damaged_one_is_none(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    good = store._encode_identity(TopicIdentity("clicks", "0" * 32))
    line = json.dumps({**json.loads(good.partition(b"\n")[0]), **changes}).encode()
    (tmp_path / IDENTITY_NAME).write_bytes(b"%s\n%08x\n" % (line, crc32c(line)))
    with pytest.raises(ForeignDirectory):
        store.read_identity(Files(), str(tmp_path))
    (tmp_path / IDENTITY_NAME).write_bytes(good.replace(b"clicks", b"blicks"))
    assert store.read_identity(Files(), str(tmp_path)) is None


@pytest.mark.parametrize("kind", ["state", "delayed"])
def test_a_commit_is_synced_and_its_head_durable(tmp_path: Path, kind: str) -> None:
    calls: list[LmdbCall] = []

    def see(call: LmdbCall) -> int:
        calls.append(call)
        return 0

    with LmdbCalls(see):
        if kind == "state":
            state = StateStore(str(tmp_path), create=True)
            state.create(bytes(16), 0)
            calls.clear()
            state.commit(StateBatch(paused_end=5))
            state.close()
        else:
            DelayedStore(str(tmp_path), bytes(16), create=True).close()
        kinds = [(call.kind, call.durable) for call in calls]
    assert ("sync", False) in kinds
    assert kinds.index(("write", True)) > kinds.index(("sync", False))


# Bounds


class Free(Files):
    """A file system with a given number of free bytes. It counts how often it is asked for them."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.asked = 0

    def free_bytes(self, path: str) -> int:
        self.asked += 1
        return self.free


def test_free_space_is_asked_again_after_so_many_bytes_or_so_long() -> None:
    files = Free(1 << 50)
    room = Space(files, "folder", 10)
    room.take(1, 1)
    for _ in range(4):
        room.take(SPACE_CHECK_BYTES // 4, 2)
    assert files.asked == 1
    room.take(1, 3)
    assert files.asked == 2
    room.take(1, 3 + SPACE_CHECK_NS - 1)
    assert files.asked == 2
    room.take(1, 3 + SPACE_CHECK_NS)
    assert files.asked == 3
    room.take(1, 5)
    assert files.asked == 4, "a clock that went back"
    files.free = 10
    room.forget()
    with pytest.raises(DiskFull):
        room.take(1, 6)


def test_bytes_look_like_a_message_only_if_complete_and_with_a_time() -> None:
    whole = struct.pack(">qH16s", 1_700_000_000_000_000_000, 1, b"0123456789abcdef") + b"body"
    record = encode_record(whole)
    assert may_be_message(record, 0, 1000)
    assert looks_like_message(record, 0, 1000)
    assert not may_be_message(record[:29], 0, 1000)
    assert not may_be_message(record, 0, len(whole) - 1)
    for time_ns in (0, 2**62):
        assert not looks_like_message(
            encode_record(struct.pack(">qH16s", time_ns, 1, b"0123456789abcdef")), 0, 1000
        )
