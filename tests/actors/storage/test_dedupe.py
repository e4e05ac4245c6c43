"""Tests of the sifting of appends: which messages are left, and what the answers say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from support.storage_harness import StorageHarness

from zsq.actors.storage.dedupe import Dedupe
from zsq.actors.storage.locks import Locks
from zsq.actors.storage.sifting import Left, sift
from zsq.transport.block.block import Block, pack
from zsq.transport.block.block_format import HAS_IDS
from zsq.transport.wire.codec import DEDUPE_HEADER, pack_headers
from zsq.transport.wire.dedupe import digest_of, digests_of, with_ids


def block(*names: str | None, producer: int = 5, sequence: int = 3) -> Block:
    headers = [None if name is None else pack_headers({DEDUPE_HEADER: name}) for name in names]
    bodies = [b"%d" % index for index in range(len(names))]
    made = with_ids(
        pack(bodies, headers=headers, keys=bodies, producer_id=producer, sequence=sequence), headers
    )
    made.ids = digests_of(made)
    return made


def known(**offsets: int) -> Any:
    stored = {digest_of(name.encode()): offset for name, offset in offsets.items()}

    def find(digests: Sequence[bytes]) -> dict[int, int]:
        return {at: stored[digest] for at, digest in enumerate(digests) if digest in stored}

    return find


def test_blocks_without_duplicates_stay_as_they_are() -> None:
    plain, with_some = pack([b"x", b"y"]), block("a", None, "b")
    sifted = sift([plain, with_some], known(z=3))
    assert sifted.blocks == [plain, with_some]
    assert sifted.rest == {}
    assert sifted.digests == [digest_of(b"a"), digest_of(b"b")]
    assert sifted.places == [2, 4]


def test_known_ids_and_repeated_ones_are_left_out() -> None:
    first, second, third = block("a", "b", None, "a"), block("b"), block("c", "a")
    sifted = sift([first, second, third], known(c=7))
    assert sifted.kept == [0]
    assert sifted.blocks[0].body.values() == [b"0", b"1", b"2"]
    assert sifted.places == [0, 1]
    left = sifted.left(100)
    assert left[0].repeats == ((3, 100),)
    assert left[1] == Left(None, ((0, 101),))
    assert left[2] == Left(None, ((0, 7), (1, 100)))


def test_what_is_left_keeps_producer_sequence_keys_and_flag() -> None:
    sifted = sift([block("a", "b", "c", producer=9, sequence=4)], known(b=0))
    (rest,) = sifted.blocks
    assert (rest.header.producer_id, rest.header.sequence) == (9, 4)
    assert rest.header.flags == HAS_IDS
    assert rest.key is not None
    assert rest.key.values() == [b"0", b"2"]
    rest.check()


def test_a_delayed_message_has_no_offset() -> None:
    sifted = sift([block("a", "a", "b")], known(b=-1))
    assert sifted.left(-1)[0].repeats == ((1, -1), (2, -1))


def make(root: Path) -> Dedupe:
    store = StorageHarness(root).open()
    thread = cast("Any", SimpleNamespace(pending=0))
    channels = cast("Any", SimpleNamespace(waiting=0, all_rows=dict))
    return Dedupe(store, 600, thread, "topic t", Locks(channels, lambda: 0))


def test_a_block_that_is_sent_again_gets_its_first_answer(tmp_path: Path) -> None:
    """The topic no longer knows what was left of it, but the index knows where its ids are."""
    dedupe = make(tmp_path)
    for sent, first_offset in ((block("a"), 10), (block("a", "b", None, "b", "c"), 11)):
        sifted = dedupe.sift([sent])
        assert sifted is not None
        dedupe.stored(sifted, first_offset, first_offset + 5)
        left = sifted.left(first_offset)
        repeats = left[0].repeats if left else ()
        assert dedupe.repeats_of(sent, (first_offset,)) == repeats
    assert dedupe.repeats_of(block("a", "c"), (-1,)) == ((0, 10), (1, 13))
    assert dedupe.repeats_of(block("a", "new"), ()) == ((0, 10),)


def test_a_delayed_block_that_is_sent_again_is_no_duplicate_of_itself(tmp_path: Path) -> None:
    dedupe = make(tmp_path)
    sent = block("a", "b", "a")
    sifted = dedupe.sift([sent])
    assert sifted is not None
    dedupe.delayed(sifted.blocks, 1 << 62)
    assert dedupe.repeats_of(sent, (1_000, 7)) == ((2, -1),)
