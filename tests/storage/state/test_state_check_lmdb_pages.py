"""Tests of the check of LMDB's pages: a sound environment passes whatever happened to it, and a
flipped bit in the header of a page is found.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path

import lmdb
import pytest

from zsq.storage.files import Files
from zsq.storage.lmdb_pages import wrong_pages

PAGE = 4_096


def wrong(folder: Path) -> list[str]:
    return wrong_pages(Files(), str(folder / "data.mdb"))


@pytest.mark.parametrize("seed", range(3))
def test_a_sound_environment_passes_the_check(tmp_path: Path, seed: int) -> None:
    """The environments have branch pages, overflow pages and long lists of free pages, or none of
    these.
    """
    source = random.Random(seed)
    with lmdb.open(str(tmp_path), lock=False, map_size=1 << 28, sync=False) as env:
        assert wrong(tmp_path) == []
        for _ in range(60):
            with env.begin(write=True) as txn:
                for _ in range(source.choice([1, 30, 300])):
                    key = b"%06d" % source.randrange(2_000) * source.choice([1, 1, 20])
                    if source.random() < 0.4:
                        txn.delete(key)
                    else:
                        txn.put(
                            key, bytes(source.choice([0, 30, 2_030, 2_040, 4_080, 4_081, 20_000]))
                        )
            assert wrong(tmp_path) == []
        with env.begin(write=True) as txn:
            for key, _ in txn.cursor():
                txn.delete(key)
        assert wrong(tmp_path) == []
        assert env.stat()["entries"] == 0


def first_node(data: bytes, page: int) -> int:
    place: int = struct.unpack_from("=H", data, page * PAGE + 16)[0]
    return page * PAGE + place


def test_flipped_bits_in_the_heads_of_pages_are_found(tmp_path: Path) -> None:
    """There is one page of each kind: a page of the list of free pages, a branch, a leaf, and an
    overflow page.
    """
    with lmdb.open(str(tmp_path), lock=False, map_size=1 << 24) as env:
        for turn in range(4):
            with env.begin(write=True) as txn:
                for number in range(150):
                    txn.put(b"%06d" % number, bytes(60 + turn))
                txn.put(b"!big", bytes(9_000))
    file = tmp_path / "data.mdb"
    data = file.read_bytes()
    heads = [struct.unpack_from("=IIQQ IHH5Q IHH5Q QQ", data, at + 16) for at in (0, PAGE)]
    newest = max(heads, key=lambda head: head[-1])
    low, high = struct.unpack_from("=HH", data, first_node(data, newest[19]))
    leaf = low | high << 16
    overflow = struct.unpack_from("=Q", data, first_node(data, leaf) + 8 + len(b"!big"))[0]
    assert wrong(tmp_path) == []
    for number in (newest[11], newest[19], leaf, overflow):
        for bit in (*range(64), *range(80, 83), *range(96, 128)):
            damaged = bytearray(data)
            damaged[number * PAGE + bit // 8] ^= 1 << bit % 8
            file.write_bytes(damaged)
            assert wrong(tmp_path) != [], (number, bit)
