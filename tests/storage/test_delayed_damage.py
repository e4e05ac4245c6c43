"""What a flipped bit in LMDB's own bytes costs the delayed messages: keys, its two heads, an older transaction that comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from zsq.storage.delayed import DelayedStore
from zsq.storage.delayed_format import DelayedKey, row_key
from zsq.transport.block import pack

UUID = bytes(range(16))
DUE = 1_700_000_000_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DelayedStore]:
    one = DelayedStore(str(tmp_path / "delayed"), UUID, map_bytes=1 << 20, create=True, first_serial=100)
    yield one
    one.close()


def publish(store: DelayedStore, count: int, size: int = 0) -> list[DelayedKey]:
    return [
        store.put([(pack([b"%03d" % number + bytes(size)], producer_id=7, sequence=number), DUE + number)], 5)[0] for number in range(count)
    ]


def bodies(store: DelayedStore, now_ns: int = DUE + 999) -> list[bytes | None]:
    return [body for row in store.due(now_ns, 1 << 30, 1 << 30) for body in row.block.body.values()]


def flip_keys(path: str, key: bytes, byte: int, bit: int) -> None:
    """In all copies of a row's key that LMDB goes by; the copy inside the value stays."""
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
def test_a_flipped_bit_in_a_key_costs_that_row_and_no_time(store: DelayedStore, byte: int, which: int) -> None:
    """Also where it then lies out of order. A due time in other centuries kept all others waiting, and nobody was told."""
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
