"""Tests of the store of delayed messages against a model: its keys, its limits, and the cost of
damage.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.lmdb_calls import LmdbCalls

from zsq.storage.delayed import delayed
from zsq.storage.delayed.delayed import DelayedStore
from zsq.storage.delayed.delayed_format import (
    DelayedKey,
    DelayedRow,
    decode_row,
    due_block,
    encode_row,
    parse_key,
    row_key,
    without,
)
from zsq.storage.errors import Damaged, DiskFull, ForeignDirectory, StoreFailed
from zsq.storage.files import TEMPORARY_SUFFIX, Files
from zsq.transport.block.block import DELAYED, Block, pack

UUID = bytes(range(16))
S = 1_000_000_000


def block(*bodies: bytes, producer_id: int = 7, sequence: int = 0) -> Block:
    return pack(list(bodies), producer_id=producer_id, sequence=sequence)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DelayedStore]:
    one = DelayedStore(
        str(tmp_path / "delayed"), UUID, map_bytes=1 << 16, create=True, first_serial=100
    )
    yield one
    one.close()


def again(store: DelayedStore) -> DelayedStore:
    store.close()
    return DelayedStore(store.path, UUID, map_bytes=1 << 16)


def bodies(rows: list[DelayedRow]) -> list[bytes | None]:
    return [body for row in rows for body in row.block.body.values()]


def everything(store: DelayedStore) -> list[bytes | None]:
    return bodies(store.due(1 << 62, 1 << 30, 1 << 30))


def test_rows_come_back_in_the_order_in_which_they_are_due(store: DelayedStore) -> None:
    keys = store.put(
        [(block(b"c", b"d"), 20), (block(b"a", sequence=1), 10), (block(b"e", sequence=2), 20)], 5
    )
    assert keys == [(20, 100), (10, 102), (20, 103)]
    store = again(store)
    assert store.summary == (4, sum(row.block.length for row in store.due(99, 1 << 20, 99)), 10, 0)
    assert everything(store) == [b"a", b"c", b"d", b"e"]
    assert bodies(store.due(19, 1 << 20, 99)) == [b"a"], "never early"
    assert store.due(9, 1 << 20, 99) == []
    store.close()


def test_a_turn_is_bounded_and_never_empty(store: DelayedStore) -> None:
    store.put([(block(b"x" * 100, sequence=number), 10) for number in range(9)], 5)
    size = store.due(10, 1, 99)[0].block.length
    assert len(store.due(10, 1, 99)) == 1
    assert len(store.due(10, 3 * size, 99)) == 3
    assert len(store.due(10, 1 << 20, 4)) == 4


def test_sequences_are_remembered_with_their_keys(store: DelayedStore) -> None:
    for sequence in range(delayed.RECENT_MAX + 3):
        store.put([(block(b"x", b"y", sequence=sequence), 10)], 5)
    store = again(store)
    row = store.producers[7]
    assert row.next_sequence == delayed.RECENT_MAX + 3
    assert row.recent[-1] == (delayed.RECENT_MAX + 2, 10, 100 + 2 * (delayed.RECENT_MAX + 2))
    assert len(row.recent) == delayed.RECENT_MAX
    store.close()


def test_producers_are_forgotten_after_a_week_and_bounded(
    store: DelayedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for producer_id in (1, 2, 3):
        store.put([(block(b"x", producer_id=producer_id), 10)], producer_id)
    store.put([(block(b"x", producer_id=4), 10)], delayed.PRODUCER_KEPT_NS + 2)
    assert sorted(store.producers) == [2, 3, 4]
    monkeypatch.setattr(delayed, "PRODUCERS_MAX", 1)
    monkeypatch.setattr(delayed, "EXPIRED_MAX", 1)
    store.put([(block(b"x", producer_id=5), 10)], delayed.PRODUCER_KEPT_NS + 2)
    assert sorted(store.producers) == [3, 4, 5]
    store = again(store)
    assert sorted(store.producers) == [3, 4, 5]
    store.close()


def test_serials_are_not_used_again(store: DelayedStore) -> None:
    (first,) = store.put([(block(b"a", b"b"), 10)], 5)
    store.remove([first])
    store = again(store)
    (second,) = store.put([(block(b"c", sequence=1), 10)], 5)
    assert second.serial == first.serial + 2
    store.remove([first])
    assert everything(store) == [b"c"], "what was removed twice was removed once"
    store.close()


def test_a_due_block_in_the_log_carries_its_key(store: DelayedStore) -> None:
    (key,) = store.put([(block(b"a", sequence=3), 10)], 5)
    (row,) = store.due(10, 1, 1)
    assert (row.block.header.producer_id, row.block.header.sequence) == (7, 3)
    header = due_block(row).header
    assert (header.flags, header.producer_id, header.sequence) == (DELAYED, *key)


@pytest.mark.parametrize(
    ("gone", "left"),
    [
        ((0,), [(1, b"bcde")]),
        ((4,), [(0, b"abcd")]),
        ((2,), [(0, b"ab"), (3, b"de")]),
        ((1, 3), [(0, b"a"), (2, b"c"), (4, b"e")]),
        ((0, 1, 2, 3, 4), []),
        ((), [(0, b"abcde")]),
    ],
)
def test_a_row_without_some_messages_is_divided_into_the_rest(
    gone: tuple[int, ...], left: list[tuple[int, bytes]]
) -> None:
    row = DelayedRow(DelayedKey(9, 50), block(b"a", b"b", b"c", b"d", b"e"))
    found = list(without(row, {50 + index for index in gone}))
    assert [
        (rest.key, b"".join(body or b"" for body in rest.block.body.values())) for rest in found
    ] == [((9, 50 + index), text) for index, text in left]


def test_listing_goes_on_in_the_middle_of_a_row(store: DelayedStore) -> None:
    made = pack(
        [b"a" * 300, b"b", b"c"], keys=[b"k", None, None], tags=[None, b"t", None], producer_id=7
    )
    store.put([(made, 20), (block(b"z", sequence=1), 30)], 5)
    first = store.listed(None, 2, 200)
    assert [
        (one.key, one.size, len(one.body), one.message_key, one.message_tag) for one in first
    ] == [
        ((20, 100), 300, 200, b"k", None),
        ((20, 101), 1, 1, None, b"t"),
    ]
    assert [one.body for one in store.listed(first[-1].key, 99, 200)] == [b"c", b"z"]
    assert store.listed(DelayedKey(30, 103), 99, 200) == []
    assert [one.body for one in store.listed(DelayedKey(25, 0), 99, 200)] == [b"z"]


def test_a_key_is_shown_and_parsed_as_32_hex_digits() -> None:
    key = DelayedKey(0x1122334455667788, 0x99)
    assert key.text() == "11223344556677880000000000000099"
    assert parse_key(key.text()) == parse_key(key.text().upper()) == key
    for wrong in ("", "1" * 31, "1" * 33, "g" * 32, "+" + "1" * 31, " " + "1" * 31):
        assert parse_key(wrong) is None


def test_another_topics_or_a_missing_environment_is_refused(
    store: DelayedStore, tmp_path: Path
) -> None:
    store.close()
    with pytest.raises(ForeignDirectory):
        DelayedStore(store.path, bytes(16))
    with pytest.raises(ForeignDirectory):
        DelayedStore(str(tmp_path / "nothing"), UUID)
    (Path(store.path) / "data.mdb").write_bytes(b"no lmdb" * 1000)
    with pytest.raises(Damaged):
        DelayedStore(store.path, UUID)


# Damage


def change(store: DelayedStore, key: DelayedKey, position: int) -> None:
    """Flip a bit of a row's value, as a bad disk would do it. LMDB does not notice this."""
    store.close()
    with lmdb.open(store.path, lock=False) as env, env.begin(write=True) as txn:
        value = bytearray(txn.get(row_key(key)) or b"")
        value[position] ^= 4
        txn.put(row_key(key), bytes(value))


@pytest.mark.parametrize(("position", "lost"), [(-20, 3), (30, 1), (0, 3), (5, 3)])
def test_a_damaged_row_is_set_aside_and_counted_and_the_others_go_on(
    store: DelayedStore, position: int, lost: int
) -> None:
    first, second = store.put([(block(b"a", b"b", b"c"), 10), (block(b"d", sequence=1), 10)], 5)
    value = encode_row(store.due(10, 1, 1)[0])[1]
    change(store, first, position)
    store = DelayedStore(store.path, UUID)
    kept: list[tuple[bytes, bytes]] = []
    store.set_aside = lambda key, value, why: kept.append((key, value))
    assert everything(store) == [b"d"]
    assert [key for key, _ in kept] == [row_key(first)]
    assert len(kept[0][1]) == len(value)
    assert store.summary.lost == lost, "as many as its header says, if that is whole"
    store.remove([second])
    assert store.summary == (0, 0, 0, 3), "what was not counted then is missed in the end"
    store.close()


def test_a_block_that_changed_before_it_was_written_does_not_go_to_the_log() -> None:
    """The checksum of the row is correct, because it was computed after the change. In the log, the
    changed columns would look like an unfinished write.
    """
    published = block(b"one", b"two")
    changed = bytearray(published.columns)
    changed[changed.index(b"two")] ^= 4
    row = DelayedRow(DelayedKey(5, 1), Block(published.header, changed))
    with pytest.raises(Damaged, match="is not the one that was published"):
        decode_row(*encode_row(row))


def test_rows_that_vanished_are_missed(store: DelayedStore) -> None:
    (key,) = store.put([(block(b"a", b"b"), 10)], 5)
    store.close()
    with lmdb.open(store.path, lock=False) as env, env.begin(write=True) as txn:
        txn.delete(row_key(key))
    store = DelayedStore(store.path, UUID)
    assert store.summary.messages == 2
    assert store.due(1 << 62, 1, 1) == []
    assert store.summary == (0, 0, 0, 2)
    store.close()


def test_the_first_try_of_each_kind_is_announced(store: DelayedStore) -> None:
    """If the action kills the process, the announcement stays on disk. The next start then examines
    the store before it tries the action again.
    """
    said: list[str] = []
    store.attempting = said.append
    store.put([(block(b"a"), 10)], 5)
    store.put([(block(b"b", sequence=1), 10)], 5)
    store.due(10, 1, 1)
    store.due(10, 1, 1)
    assert said == ["put", "", "due", ""]


# The model


class DelayedMachine(RuleBasedStateMachine):
    """The model is a dict of messages by key. It must agree with the rows of the store."""

    @initialize(folder=st.just(None))
    def begin(self, folder: None) -> None:
        import tempfile

        self.folder = tempfile.TemporaryDirectory(prefix="zsq-delayed-")
        self.store = DelayedStore(self.folder.name, UUID, map_bytes=1 << 16, create=True)
        self.model: dict[DelayedKey, bytes] = {}
        self.gone: list[DelayedKey] = []
        self.sequence = 0

    @rule(counts=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), min_size=1, max_size=4))
    def put(self, counts: list[tuple[int, int]]) -> None:
        made = []
        for count, due_ns in counts:
            made.append(
                (
                    block(
                        *(b"%d/%d" % (self.sequence, i) for i in range(count)),
                        sequence=self.sequence,
                    ),
                    due_ns,
                )
            )
            self.sequence += 1
        for (one, due_ns), key in zip(made, self.store.put(made, 5), strict=True):
            assert key.due_ns == due_ns
            for index, body in enumerate(one.body.values()):
                own = DelayedKey(due_ns, key.serial + index)
                assert own not in self.model
                self.model[own] = body or b""

    @rule(now_ns=st.integers(0, 10), rows_max=st.integers(1, 3))
    def move(self, now_ns: int, rows_max: int) -> None:
        rows = self.store.due(now_ns, 1 << 20, rows_max)
        expected = sorted(key for key in self.model if key.due_ns <= now_ns)
        found = [
            DelayedKey(row.key.due_ns, row.key.serial + i)
            for row in rows
            for i in range(row.block.count)
        ]
        assert found == expected[: len(found)]
        assert len(rows) == rows_max or len(found) == len(expected)
        assert bodies(rows) == [self.model[key] for key in found]
        self.store.remove([row.key for row in rows])
        for key in found:
            del self.model[key]
        self.gone += found

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        known = [*sorted(self.model), *self.gone[-3:], DelayedKey(4, 1 << 40)]
        keys = data.draw(st.lists(st.sampled_from(known), max_size=6))
        seen: set[DelayedKey] = set()
        expected = []
        for key in keys:
            expected.append(key in self.model and key not in seen)
            seen.add(key)
        assert self.store.cancel(keys) == expected
        for key in seen & self.model.keys():
            del self.model[key]
            self.gone.append(key)

    @rule(rows=st.integers(1, 2))
    def cancel_some(self, rows: int) -> None:
        before = len(self.model)
        taken = self.store.cancel_some(rows, 1 << 30)
        assert (taken > 0) == (before > 0)
        for key in sorted(self.model)[:taken]:
            del self.model[key]

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = DelayedStore(self.folder.name, UUID, map_bytes=1 << 16)
        if self.sequence:
            assert self.store.producers[7].next_sequence == self.sequence

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "store"):
            return
        listed = self.store.listed(None, 1 << 20, 1 << 20)
        assert [(one.key, one.body) for one in listed] == sorted(self.model.items())
        summary = self.store.summary
        assert (summary.messages, summary.lost) == (len(self.model), 0)
        assert summary.next_due_ns == (min(self.model).due_ns if self.model else 0)
        assert summary.bytes == sum(
            row.block.length for row in self.store.due(1 << 62, 1 << 30, 1 << 30)
        )

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            self.folder.cleanup()


TestDelayedStore = DelayedMachine.TestCase
TestDelayedStore.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def test_space_is_given_back_once_little_is_left(
    store: DelayedStore, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed, "SHRINK_ABOVE_BYTES", 1 << 20)
    monkeypatch.setattr(delayed, "SHRINK_LIVE_BYTES_MAX", 1 << 18)
    data = Path(store.path) / "data.mdb"
    for sequence in range(60):
        store.put([(block(bytes(40_000), sequence=sequence), 10)], 5)
    assert not store.shrink(files), "all of it is in use"
    (kept,) = store.put([(block(b"kept", sequence=60), 5)], 5)
    store.remove([row.key for row in store.due(10, 1 << 30, 99) if row.key != kept])
    large = data.stat().st_size
    monkeypatch.setattr(
        Files, "sync", lambda self, fd: (_ for _ in ()).throw(OSError(5, "by plan"))
    )
    assert not store.shrink(files)
    assert data.stat().st_size == large, "a copy that could not be synced takes nobody's place"
    monkeypatch.undo()
    monkeypatch.setattr(delayed, "SHRINK_ABOVE_BYTES", 1 << 20)
    assert store.shrink(files)
    assert data.stat().st_size < large // 10
    assert not (Path(store.path).parent / "delayed.tmp").exists()
    assert everything(store) == [b"kept"]
    assert store.producers[7].next_sequence == 61
    (following,) = store.put([(block(b"more", sequence=61), 10)], 5)
    assert following.serial == kept.serial + 1
    store = again(store)
    assert everything(store) == [b"kept", b"more"]
    store.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EFBIG, errno.EIO])
def test_nothing_changes_if_the_small_copy_cannot_be_written(
    store: DelayedStore, files: Files, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(delayed, "SHRINK_ABOVE_BYTES", 1)
    store.put([(block(b"kept"), 10)], 5)
    with LmdbCalls(lambda call: code if TEMPORARY_SUFFIX in call.path else 0):
        assert not store.shrink(files)
    assert not (Path(store.path).parent / "delayed.tmp").exists()
    assert everything(store) == [b"kept"]
    assert store.shrink(files)


def test_an_environment_at_its_limit_takes_no_more_and_loses_nothing(
    store: DelayedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zsq.storage.environment.MAP_BYTES_MAX", 1 << 17)
    keys: list[DelayedKey] = []

    def fill(count: int) -> None:
        for sequence in range(len(keys), len(keys) + count):
            body = b"%03d" % sequence + bytes(9_000)
            keys.extend(store.put([(block(body, sequence=sequence), 10 + sequence)], 5))

    with pytest.raises(DiskFull, match="limit of 131072 bytes"):
        fill(50)
    full = len(keys)
    assert [int(body[:3]) for body in everything(store) if body] == list(range(full))
    assert store.producers[7].next_sequence == full
    for key in keys[:4]:  # LMDB uses a page again some commits after it was freed
        store.remove([key])
    fill(1)
    assert [int(body[:3]) for body in everything(store) if body] == list(range(4, full + 1)), (
        "what was taken out has left room"
    )


def test_a_small_copy_whose_name_is_not_on_disk_is_not_written_to(
    store: DelayedStore, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed, "SHRINK_ABOVE_BYTES", 1)
    monkeypatch.setattr(
        Files, "sync_folder", lambda self, path: (_ for _ in ()).throw(OSError(5, "by plan"))
    )
    with pytest.raises(StoreFailed):
        store.shrink(files)


def test_messages_are_found_by_what_their_blocks_have(store: DelayedStore) -> None:
    """Only blocks with the flag are read, and a search goes on where it ended."""

    def flagged(*bodies: bytes) -> Block:
        one = block(*bodies)
        return Block(one.header._replace(flags=1024), one.payload, one.columns)

    blocks = [flagged(b"x", b"y"), block(b"x"), flagged(b"y"), flagged(b"y", b"x"), flagged(b"x")]
    keys = store.put([(one, 5 * S) for one in blocks], S)
    looked: list[int] = []

    def with_x(one: Block) -> list[int]:
        looked.append(one.count)
        return [index for index, body in enumerate(one.body.values()) if body == b"x"]

    found: list[DelayedKey] = []
    after: DelayedKey | None = None
    ends: list[DelayedKey | None] = []
    while not ends or after is not None:
        some, after = store.matching(after, 2, 1024, with_x)
        found += some
        ends.append(after)
    fourth = keys[3]
    assert found == [keys[0], fourth._replace(serial=fourth.serial + 1), keys[4]]
    assert (looked, ends) == ([2, 1, 2, 1], [keys[1], keys[3], None])
    assert store.cancel(found) == [True] * 3
    assert store.matching(None, 9, 1024, with_x) == ([], None)
