"""Tests of flipped bits in LMDB's own bytes of the delayed messages: in keys and in the two meta
pages. Also tests of an older transaction that comes back.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from zsq.storage.delayed import delayed, delayed_recovery
from zsq.storage.delayed.delayed import DelayedStore
from zsq.storage.delayed.delayed_format import DelayedKey, due_block, row_key
from zsq.storage.delayed.delayed_recovery import check_delayed
from zsq.storage.errors import Damaged
from zsq.storage.files import Files
from zsq.storage.state.state import StateBatch
from zsq.transport.block.block import pack

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness

UUID = bytes(range(16))
DUE = 1_700_000_000_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DelayedStore]:
    one = DelayedStore(
        str(tmp_path / "delayed"), UUID, map_bytes=1 << 20, create=True, first_serial=100
    )
    yield one
    one.close()


def publish(store: DelayedStore, count: int, size: int = 0) -> list[DelayedKey]:
    return [
        store.put(
            [
                (
                    pack([b"%03d" % number + bytes(size)], producer_id=7, sequence=number),
                    DUE + number,
                )
            ],
            5,
        )[0]
        for number in range(count)
    ]


def bodies(store: DelayedStore, now_ns: int = DUE + 999) -> list[bytes | None]:
    return [body for row in store.due(now_ns, 1 << 30, 1 << 30) for body in row.block.body.values()]


def flip_keys(path: str, key: bytes, byte: int, bit: int) -> None:
    """Flip a bit in all copies of a row's key that LMDB uses. The copy inside the value stays
    unchanged.
    """
    file = Path(path) / "data.mdb"
    data = bytearray(file.read_bytes())
    at = data.find(key)
    while at >= 0:
        if data[at + len(key) + 4 : at + len(key) + 6] == len(key).to_bytes(2, "little"):
            data[at + byte] ^= 1 << bit
        at = data.find(key, at + len(key))
    file.write_bytes(data)


@pytest.mark.parametrize("byte", range(17))
@pytest.mark.parametrize("which", [0, 2, 4])
def test_a_flipped_bit_in_a_key_costs_that_row_and_no_time(
    store: DelayedStore, byte: int, which: int
) -> None:
    """This also holds if the changed key is out of order. In an earlier version, a due time
    centuries away made all other messages wait, without any report.
    """
    for bit in range(8):
        keys = publish(store, 5)
        store.close()
        flip_keys(store.path, row_key(keys[which]), byte, bit)
        store.__init__(store.path, UUID)  # type: ignore[misc]
        assert 0 < store.summary.next_due_ns <= DUE, "it is looked at now"
        lost = store.summary.lost
        kept: list[bytes] = []
        store.set_aside = lambda key, value, why, kept=kept: kept.append(key)  # type: ignore[misc]
        found = bodies(store)
        assert found == [b"%03d" % number for number in range(5) if number != which], f"bit {bit}"
        store.remove([key for key in keys if key != keys[which]])
        bodies(store)
        assert store.summary[:3] == (0, 0, 0), "none is moved twice"
        assert (store.summary.lost, len(kept)) == (lost + 1, 1)


@pytest.mark.parametrize(("which", "place", "bit"), [(1, 0, 4), (2, 1, 0), (4, 6, 3)])
def test_a_flipped_bit_in_a_row_s_size_costs_that_row(
    harness: StorageHarness, which: int, place: int, bit: int
) -> None:
    """If the row were deleted, LMDB would write the rows of that page over each other, or the
    process would fail after each start.
    """
    assert harness.store is not None
    blocks = [
        (pack([b"%03d" % number], producer_id=7, sequence=number), DUE + number)
        for number in range(6)
    ]
    key = row_key(harness.store.make_delayed(1_000).put(blocks, 5)[which])
    harness.abandon_cleanly()
    flip_node(harness, key, place, bit)
    store = harness.open()
    assert store.delayed is not None
    with pytest.raises(Damaged):
        bodies(store.delayed)
    harness.abandon_cleanly()
    store = harness.open()
    assert store.delayed is not None
    assert bodies(store.delayed) == [b"%03d" % number for number in range(6) if number != which]
    assert store.delayed.summary.lost == 1
    assert any("size of a row is damaged" in alarm for alarm in store.report.alarms), (
        "though an examination may not come to its end"
    )
    assert any("1 delayed messages are lost" in alarm for alarm in store.report.alarms)


def flip_node(harness: StorageHarness, key: bytes, place: int, bit: int) -> None:
    """Flip a bit in the fields before a key in LMDB's page. They are the size of the value (2 + 2
    bytes), flags (2), and the size of the key (2).
    """
    file = harness.path("delayed/data.mdb")
    data = bytearray(file.read_bytes())
    at = data.find(key)
    assert data.count(key) == 2, "the page, and the value itself"
    data[at - 8 + place + bit // 8] ^= 1 << bit % 8
    harness.replace(file, bytes(data))


def test_damage_that_is_met_late_in_a_life_is_marked_as_well(
    store: DelayedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark on disk makes the next start examine the store. It is set when a damaged row is
    read, and also when it is deleted.
    """
    keys = publish(store, 5)
    store.close()
    flip_keys(store.path, row_key(keys[2]), 3, 1)
    store.__init__(store.path, UUID)  # type: ignore[misc]
    marks: list[str] = []
    store.attempting = marks.append
    bodies(store)
    assert marks == ["due", "", "drop", ""]
    marks.clear()

    def fail(*given: object) -> Iterator[object]:
        raise Damaged("a page")

    monkeypatch.setattr(delayed, "rows_from", fail)
    with pytest.raises(Damaged):
        bodies(store)
    assert marks == ["due"]


def test_a_row_is_believed_before_its_time_only_by_its_checksum(store: DelayedStore) -> None:
    publish(store, 3)
    assert bodies(store, DUE) == [b"000"]
    assert bodies(store, DUE - 1) == []
    assert store.summary == (3, store.summary.bytes, DUE, 0)


def test_cancelling_all_ends_a_turn_at_its_bytes_too(store: DelayedStore) -> None:
    publish(store, 9, 10_000)
    assert store.cancel_some(99, 25_000) == 3
    assert store.cancel_some(2, 1 << 30) == 2
    assert store.cancel_some(99, 1 << 30) == 4
    assert store.cancel_some(99, 1 << 30) == 0


# LMDB's two meta pages are the first two pages. Their content begins at position 16 with magic and
# version. The number of the transaction is in the last 8 of 136 bytes.

TRANSACTION_AT = 16 + 128


def filled(harness: StorageHarness) -> DelayedStore:
    assert harness.store is not None
    found = harness.store.make_delayed(1_000)
    publish(found, 6)
    return found


def change_head(harness: StorageHarness, newest: bool, byte: int, bit: int) -> None:
    harness.abandon_cleanly()
    file = harness.path("delayed/data.mdb")
    data = bytearray(file.read_bytes())
    first, second = (struct.unpack_from("=Q", data, page + TRANSACTION_AT)[0] for page in (0, 4096))
    data[(0 if (first > second) == newest else 4096) + byte] ^= 1 << bit
    harness.replace(file, bytes(data))


def found_there(harness: StorageHarness) -> tuple[list[bytes], int, list[str]]:
    store = harness.open()
    assert store.delayed is not None
    return (
        [one.body for one in store.delayed.listed(None, 99, 99)],
        store.delayed.summary.lost,
        store.report.alarms,
    )


ALL = [b"%03d" % number for number in range(6)]


@pytest.mark.parametrize("newest", [True, False])
@pytest.mark.parametrize(
    ("byte", "bit"),
    [(10, 3), (16, 0), (20, 1), (TRANSACTION_AT, 2), (TRANSACTION_AT, 3), (TRANSACTION_AT + 5, 0)],
)
def test_a_flipped_bit_in_a_head_costs_no_message(
    harness: StorageHarness, newest: bool, byte: int, bit: int
) -> None:
    """The bits are in the meta page's flags, magic, version, and number of the transaction. LMDB
    refuses the file, or uses the older meta page without notice.
    """
    filled(harness)
    change_head(harness, newest, byte, bit)
    bodies, lost, _ = found_there(harness)
    assert (bodies, lost) == (ALL, 0)
    assert harness.store is not None
    assert harness.store.delayed is not None
    assert harness.store.delayed.producers[7].next_sequence == 6
    harness.store.delayed.put([(pack([b"z"], producer_id=7, sequence=6), DUE + 50)], 5)
    harness.restart()
    assert found_again(harness) == [*ALL, b"z"]


def found_again(harness: StorageHarness) -> list[bytes]:
    assert harness.store is not None
    assert harness.store.delayed is not None
    return [one.body for one in harness.store.delayed.listed(None, 99, 99)]


def fall_back(harness: StorageHarness, last: Callable[[DelayedStore], object]) -> None:
    """Replace the whole file by one that is one commit older than the noted number of commits."""
    store = filled(harness)
    file = harness.path("delayed/data.mdb")
    older = file.read_bytes()
    last(store)
    harness.abandon_cleanly()
    harness.replace(file, older)


def test_an_older_commit_that_comes_back_is_counted(harness: StorageHarness) -> None:
    fall_back(
        harness,
        lambda store: store.put([(pack([b"x", b"y"], producer_id=7, sequence=6), DUE + 6)], 5),
    )
    assert "6 commits, but 7 were recorded" in check_delayed(str(harness.path("delayed")))[0]
    bodies, lost, alarms = found_there(harness)
    assert (bodies, lost) == (ALL, 2)
    assert any("2 delayed messages are lost" in alarm for alarm in alarms)
    assert harness.store is not None
    assert harness.store.delayed is not None
    (key,) = harness.store.delayed.put([(pack([b"z"], producer_id=7, sequence=7), DUE + 7)], 5)
    assert key.serial == 1_008, "no serial comes again"
    harness.restart()
    assert harness.store.report.alarms == [], "once"


def test_messages_back_by_an_older_commit_do_not_move_again(harness: StorageHarness) -> None:
    """The lost commit removed messages that had moved to the log, and the checkpoint counts their
    block.
    """

    def move(store: DelayedStore) -> None:
        rows = store.due(DUE + 1, 1 << 20, 99)
        harness.log.append([due_block(row) for row in rows], DUE + 10)
        harness.log.sync()
        store.remove([row.key for row in rows], known=True)
        assert harness.store is not None
        harness.store.state.commit(
            StateBatch(synced_end=harness.log.synced_end, applied_offset=harness.log.synced_end)
        )

    fall_back(harness, move)
    bodies, lost, alarms = found_there(harness)
    assert (bodies, lost) == (ALL[2:], 0)
    assert any("0 delayed messages are lost" in alarm for alarm in alarms)


def test_rescued_messages_that_are_in_the_log_do_not_move_again(harness: StorageHarness) -> None:
    store = filled(harness)
    harness.log.append([due_block(row) for row in store.due(DUE + 1, 1 << 20, 99)], DUE + 10)
    harness.log.sync()
    assert harness.store is not None
    harness.store.state.commit(
        StateBatch(synced_end=harness.log.synced_end, applied_offset=harness.log.synced_end)
    )
    harness.abandon_cleanly()
    harness.path("delayed.rescue").mkdir()
    DelayedStore(
        str(harness.path("delayed.rescue")),
        bytes.fromhex("00112233445566778899aabbccddeeff"),
        create=True,
    ).close()
    harness.files.reset()
    assert found_there(harness)[0] == ALL[2:]


def test_long_reads_are_marked_and_frequent_reads_now_and_then(
    store: DelayedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark on disk says which read killed the process, even if it was not that process's first
    read.
    """
    publish(store, 3)
    marks: list[str] = []
    store.attempting = marks.append
    for _ in range(delayed.MARKED_EVERY + 1):
        bodies(store)
    assert marks == ["due", "", "due", ""]
    marks.clear()
    store.listed(None, 9, 9)
    monkeypatch.setattr(delayed, "SHRINK_ABOVE_BYTES", 1)
    assert store.shrink(Files())
    assert marks == ["list", "", "shrink", ""]


def test_moved_messages_are_removed_in_batches(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(harness)
    harness.log.append([due_block(row) for row in store.due(DUE + 9, 1 << 20, 99)], DUE + 10)
    harness.log.sync()
    sizes: list[int] = []
    remove = DelayedStore.remove

    def counted(self: DelayedStore, keys: list[DelayedKey], *, counts: bool) -> None:
        sizes.append(len(keys))
        remove(self, keys, counts=counts)

    monkeypatch.setattr(delayed_recovery, "MOVED_MAX", 4)
    monkeypatch.setattr(DelayedStore, "remove", counted)
    harness.abandon_cleanly()
    assert found_there(harness)[0] == []
    assert sizes == [4, 2]
