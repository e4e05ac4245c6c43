"""Tests of restores of a topic from a log of ticks, up to every tick that it has."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from support.shipping_harness import ShippingHarness, Wanted
from support.storage_harness import IDENTITY, SMALL

from zsq.storage.bucket.archive.chunk_cache import open_cache
from zsq.storage.bucket.bucket import BucketAway
from zsq.storage.bucket.shipping.restore import RestoredTopic, Target, restore_topics
from zsq.storage.bucket.shipping.tick_format import Copy, Piece
from zsq.storage.bucket.shipping.tick_reader import TickReader
from zsq.storage.checks.fsck import check_topic
from zsq.storage.directory.store import Store, open_store
from zsq.storage.errors import StorageError
from zsq.storage.files import Files
from zsq.storage.log.damage import gaps_text
from zsq.storage.log.log_format import chunk_name
from zsq.transport.block.block import pack

OPTIONS = replace(SMALL, open_remote=open_cache(1))


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ShippingHarness]:
    made = ShippingHarness(tmp_path)
    made.open()
    made.take_over()
    yield made
    made.abandon()


def restored(
    harness: ShippingHarness, name: str, at_ns: int | None = None, *, eager: bool = False,
    check: bool = False,
) -> tuple[RestoredTopic, str, TickReader]:  # fmt: skip
    directory = f"{harness.root}/{name}"
    reader = TickReader(harness.bucket)
    try:
        reader.read(at_ns)
        (topic,) = restore_topics(
            Files(), harness.bucket, reader, {harness.uuid: Target(IDENTITY, directory)},
            eager=eager, check=check,
        )  # fmt: skip
    finally:
        reader.close()
    return topic, directory, reader


def opened(directory: str) -> Store:
    return open_store(Files(), directory, OPTIONS, IDENTITY)


def bodies_of(store: Store) -> dict[int, bytes]:
    """Return the messages that are in files of the directory, by offset."""
    remote = store.log.reader.remote
    offset = next(base for base in store.log.chunks if base not in remote)
    found: dict[int, bytes] = {}
    while offset < store.log.end:
        blocks = store.log.read(offset, 4096, store.log.end)
        for block in blocks:
            for at, body in enumerate(block.body.values()):
                found[block.first_offset + at] = bytes(body or b"")
        if not blocks:
            break
        offset = blocks[-1].next_offset
    return found


def verify(
    harness: ShippingHarness, topic: RestoredTopic, directory: str, wanted: Wanted, *,
    fsck: bool = True,
) -> None:  # fmt: skip
    """Check a restored directory against what the harness noted.

    If a piece ends between two blocks that were synced together, the restored topic may end behind
    the piece's `end`.
    """
    assert not topic.problems
    gaps = topic.gaps
    assert wanted.table is not None
    if fsck:  # it starts processes that check the LMDB environments
        report = check_topic(Files(), directory, IDENTITY, 1)
        assert not report.damaged, report.damaged
    store = opened(directory)
    try:
        assert not store.report.alarms
        assert set(gaps) <= set(store.report.gaps)
        if store.report.gaps:
            assert f"{directory}: {gaps_text(store.report.gaps)}" in store.report.notes
        assert "lost" not in store.report.sentence()
        assert store.log.end == max(wanted.reserved, wanted.end)
        end = store.log.end
        if gaps and gaps[-1].next_offset == end:
            end = gaps[-1].first_offset
        assert end >= wanted.end
        assert store.log.reader.damage.messages == 0
        remote = store.log.reader.remote
        local = next(base for base in store.log.chunks if base not in remote)
        expected = {
            offset: body for offset, body in harness.bodies.items() if local <= offset < end
        }
        assert bodies_of(store) == expected
        table = store.state.load()
        assert set(table.archived) >= set(wanted.table.archived)
        assert table.channels == wanted.table.channels
        assert table.holes == wanted.table.holes
        assert table.deferred == wanted.table.deferred
        keys = None
        if store.delayed is not None:
            keys = {key for batch in store.delayed.dump() for key, _ in batch if key[:1] == b"d"}
        left = wanted.delayed and {
            key for key in wanted.delayed if harness.moved.get(key, end) >= end
        }
        assert keys == left
        first, _ = store.log.append([pack((b"new",))], harness.now_ns)
        assert first >= wanted.reserved
        store.log.sync()
        assert bodies_of(store) == {**expected, first: b"new"}
    finally:
        store.close()
    again = opened(directory)
    assert not again.report.alarms
    assert bodies_of(again) == {**expected, first: b"new"}
    again.close()


def verify_every_tick(harness: ShippingHarness, name: str, least: int = 0) -> int:
    """Restore up to each tick, and check the result. Return the number of restores."""
    count = 0
    for number, wanted in sorted(harness.wanted.items()):
        if wanted.table is None or number < least:
            continue
        topic, directory, _ = restored(harness, f"{name}{number}", harness.times[number])
        verify(harness, topic, directory, wanted, fsck=number % 9 == 0)
        shutil.rmtree(directory)
        count += 1
    return count


def test_a_restore_has_what_was_shipped(harness: ShippingHarness) -> None:
    harness.publish(blocks=4)
    harness.channel("one", 3)
    harness.delay()
    harness.tick()
    topic, directory, reader = restored(harness, "copy", check=True)
    wanted = harness.wanted[reader.last.index.number]
    verify(harness, topic, directory, wanted)
    assert (topic.start, topic.end, topic.log_messages) == (0, wanted.reserved, 12)
    assert (topic.channels, topic.delayed_messages, topic.archived_messages) == (1, 2, 0)
    assert reader.is_end


@pytest.mark.parametrize("fetches", [{"eager": True}, {"check": True}])
def test_a_store_that_does_not_answer_is_no_damage(
    harness: ShippingHarness, monkeypatch: pytest.MonkeyPatch, fetches: dict[str, bool]
) -> None:
    """Otherwise a person would leave the topic out of the restore."""
    for _ in range(3):
        harness.publish(blocks=4)
        harness.sync()
        harness.log.roll(harness.now_ns)
    harness.archive()
    harness.tick()
    read = harness.bucket.read

    def busy(name: str, start: int = 0, length: int | None = None) -> bytes:
        if name.startswith("chunk/"):
            raise BucketAway("503 SlowDown")
        return read(name, start, length)

    with monkeypatch.context() as patch:
        patch.setattr(harness.bucket, "read", busy)
        with pytest.raises(BucketAway):
            restored(harness, "copy", **fetches)
    topic, _, _ = restored(harness, "again", **fetches)
    assert not topic.problems


@pytest.mark.parametrize("seed", range(8))
def test_every_tick_is_a_point_to_restore_to(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    harness = ShippingHarness(tmp_path, seed)
    harness.open()
    harness.take_over()
    for step in range(40):
        harness.do_something(random)
        if step == 25 and harness.uuid in harness.tails:
            harness.bound()
    harness.tick()
    assert verify_every_tick(harness, "copy") > 3
    harness.abandon()


@pytest.mark.parametrize("seed", range(4))
def test_copies_go_on_and_are_restored_again(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    harness = ShippingHarness(tmp_path, seed)
    harness.open()
    harness.take_over()
    harness.channel("one", 0)
    for life in range(4):
        for _ in range(random.randint(1, 6)):
            harness.publish(blocks=random.randint(0, 3))
            harness.sync()
            if random.random() < 0.3 and len(harness.log.chunks) > 1:
                harness.archive(1)
            harness.tick(random.choice((300, 1 << 20)))
        harness.tick()
        topic, directory, reader = restored(harness, f"life{life}", eager=random.random() < 0.5)
        assert not topic.problems
        copy = Copy("c" * 32, f"{life:032x}", reader.chain.number, reader.last.digest)
        for offset in [one for one in harness.bodies if one >= harness.shipped.state.end]:
            del harness.bodies[offset]  # it was not shipped, and is lost
        harness.go_on_in(directory, copy)
        first = min(harness.wanted)
        harness.wanted = {at: one for at, one in harness.wanted.items() if at > first}
    harness.publish()
    harness.sync()
    harness.tick()
    topic, directory, reader = restored(harness, "last", check=True)
    verify(harness, topic, directory, harness.wanted[reader.last.index.number])
    harness.abandon()


def test_eager_restores_need_no_bucket(harness: ShippingHarness) -> None:
    while len(harness.log.chunks) < 4:
        harness.publish(blocks=2)
    harness.sync()
    harness.archive(1)
    harness.tick()
    lazy, directory, _ = restored(harness, "lazy")
    assert lazy.archived_messages > 0
    eager, directory, _ = restored(harness, "eager", eager=True)
    assert not eager.problems
    assert (eager.archived_messages, eager.log_messages) == (0, len(harness.bodies))
    store = opened(directory)
    assert bodies_of(store) == harness.bodies
    store.close()


def test_an_archived_topic_without_newer_messages_is_restored(harness: ShippingHarness) -> None:
    while len(harness.log.chunks) < 3:
        harness.publish(blocks=2)
    harness.sync()
    harness.opened.log.roll(harness.now_ns)
    harness.archive(1)
    harness.tick()
    harness.bound()
    topic, directory, reader = restored(harness, "copy", check=True)
    assert topic.log_messages == 0
    assert topic.archived_messages == len(harness.bodies)
    verify(harness, topic, directory, harness.wanted[reader.last.index.number])


@pytest.mark.parametrize("suffix", ["", ".index"])
def test_a_check_finds_an_archived_file_that_is_missing(
    harness: ShippingHarness, suffix: str
) -> None:
    while len(harness.log.chunks) < 4:
        harness.publish(blocks=2)
    harness.sync()
    harness.archive(1)
    harness.tick()
    sound, _, _ = restored(harness, "sound", check=True)
    assert not sound.problems
    objects = (Path(harness.bucket.url.folder) / "chunk").rglob("*")
    files = sorted(path for path in objects if path.is_file())
    lost = next(path for path in files if path.name.endswith(".index") == bool(suffix))
    lost.unlink()
    checked, _, _ = restored(harness, "checked", check=True)
    (problem,) = checked.problems
    assert lost.name in problem


def test_staged_files_are_not_restored(harness: ShippingHarness) -> None:
    key = harness.stage("part", 1)
    harness.seal(key)
    harness.publish()
    harness.sync()
    harness.tick()
    harness.queue.clear()
    topic, directory, _ = restored(harness, "copy")
    assert (topic.problems, topic.stages_dropped) == ([], 1)
    store = opened(directory)
    assert not store.state.load().stages
    store.close()


def test_a_missing_tick_is_named(harness: ShippingHarness) -> None:
    for _ in range(12):
        harness.publish()
        harness.sync()
        harness.tick()
    harness.bucket.remove([f"log/{harness.number - 8:020d}"])
    with pytest.raises(StorageError, match=f"{harness.number - 8:020d} is missing, although"):
        restored(harness, "copy")


def test_each_flipped_byte_is_found_or_harmless(harness: ShippingHarness, tmp_path: Path) -> None:
    harness.publish(blocks=2)
    harness.channel("one", 1)
    harness.delay()
    harness.tick(base_object=True)
    harness.publish()
    harness.channel("one", 2)
    harness.tick()
    sound, directory, reader = restored(harness, "sound")
    wanted = harness.wanted[reader.last.index.number]
    folder = Path(harness.bucket.url.folder)
    random = Random(1)
    names = [*folder.glob("log/*"), *folder.glob("state/*/*")]
    found = 0
    for path in names:
        data = path.read_bytes()
        for at in {*range(32), *random.sample(range(len(data)), 40)} & {*range(len(data))}:
            path.write_bytes(
                data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
            )
            try:
                topic, directory, _ = restored(harness, "copy")
            except StorageError:
                found += 1
            else:
                if topic.problems:
                    found += 1
                else:
                    verify(harness, topic, directory, wanted, fsck=False)
            shutil.rmtree(f"{harness.root}/copy", ignore_errors=True)
        path.write_bytes(data)
    assert found > 200
    assert not sound.problems


def test_the_name_of_the_chunk_after_a_gap_is_the_reservation(harness: ShippingHarness) -> None:
    harness.publish()
    harness.sync()
    harness.tick()
    topic, directory, _ = restored(harness, "copy")
    names = {path.name for path in Path(directory).iterdir()}
    assert chunk_name(topic.end) in names
    assert f"{topic.end:020d}-1.bad" in names


def test_an_archived_log_file_without_its_footer_is_restored_from_the_archive(
    harness: ShippingHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lost broker had shipped its messages, and had then archived it. The ongoing log file was
    empty, and began behind the gap of an earlier restore.
    """
    harness.publish(blocks=4)
    harness.sync()
    harness.tick(begin=True)
    harness.log.roll(harness.now_ns)
    end = harness.log.end
    harness.archive()
    shipped = harness.shipped
    shipped.sequence += 1
    piece = Piece(
        harness.uuid, shipped.stream, shipped.sequence, False, "", end + 100, end + 200, 0, (), 0
    )
    monkeypatch.setattr(harness, "_piece", lambda *_: (piece, b""))
    harness.tick()
    topic, directory, _ = restored(harness, "copy")
    assert not topic.problems
    store = opened(directory)
    assert store.log.end == end + 200
    assert list(store.state.load().archived) == [0]
    store.close()
