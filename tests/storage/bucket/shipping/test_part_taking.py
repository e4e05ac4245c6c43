"""Tests of how a broker takes over a part: from what the other broker's bucket has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.shipping_harness import ShippingHarness
from support.storage_harness import IDENTITY, SMALL

from zsq.actors.supervisor.topics.registry_format import GIVEN
from zsq.storage.bucket.archive.chunk_cache import open_cache
from zsq.storage.bucket.archive.chunk_objects import ChunkObjects, SegmentDamaged
from zsq.storage.bucket.bucket import BucketAway, BucketRefuses, BucketUnfit, ObjectMissing
from zsq.storage.bucket.bucket_url import parse_bucket_url
from zsq.storage.bucket.folder_bucket import FolderBucket
from zsq.storage.bucket.object_copy import ObjectCopier
from zsq.storage.bucket.shipping.part_taking import CopiesAhead, Wanted, take_part
from zsq.storage.bucket.shipping.restore import TopicRestore
from zsq.storage.directory.store import open_store
from zsq.storage.errors import Damaged
from zsq.storage.files import Files

PLACE = 77


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ShippingHarness]:
    made = ShippingHarness(tmp_path)
    made.open()
    made.take_over()
    yield made
    made.abandon()


@pytest.fixture
def target(tmp_path: Path) -> FolderBucket:
    (tmp_path / "target").mkdir()
    return FolderBucket(Files(), parse_bucket_url(f"file://{tmp_path}/target"))


def fill(harness: ShippingHarness) -> None:
    """Make a part with archived chunks, a channel and delayed messages, and ship all of it."""
    for _ in range(4):
        harness.publish(blocks=4)
        harness.sync()
        harness.log.roll(harness.now_ns)
    harness.archive()
    harness.publish()
    harness.sync()
    harness.channel("one", 3)
    harness.delay()
    harness.tick()


def give(harness: ShippingHarness) -> None:
    (row,) = harness.content.topics.values()
    row.state = GIVEN
    harness.tick(registry=True)


def wanted(harness: ShippingHarness, **changes: Any) -> Wanted:
    given = Wanted(IDENTITY.name, harness.uuid, harness.number - 1, f"{harness.root}/taken", PLACE)
    return given._replace(**changes)


def test_a_part_comes_with_everything_and_without_a_gap(
    harness: ShippingHarness, target: FolderBucket
) -> None:
    fill(harness)
    give(harness)
    for _ in range(2):  # an attempt that was interrupted is repeated
        row, found = take_part(Files(), harness.bucket, target, wanted(harness))
        assert row["state"] == GIVEN
        assert (found.start, found.end, found.gaps) == (0, harness.log.end, ())
        assert (found.channels, found.delayed_messages) == (1, 2)
        assert found.archived_messages > 0
        store = open_store(
            Files(), f"{harness.root}/taken", replace(SMALL, open_remote=open_cache(1)), IDENTITY
        )
        try:
            assert not store.report.alarms
            assert store.log.end == harness.log.end
            table = store.state.load()
        finally:
            store.close()
        assert table.channels.keys() == {"one"}
        assert table.archived
        assert {one.place for one in table.archived.values()} == {PLACE}
        objects = ChunkObjects(Files(), target)
        for chunk in table.archived.values():
            assert objects.read_segment(harness.uuid, chunk, 0)
        (Path(harness.root) / "taken.tmp").mkdir()
        (Path(harness.root) / "taken.tmp" / "rest").write_bytes(b"rest")


@pytest.mark.parametrize("reason", ["not given", "another log", "old list", "unknown name"])
def test_a_part_that_was_not_given_is_not_taken(
    harness: ShippingHarness, target: FolderBucket, reason: str
) -> None:
    fill(harness)
    if reason != "not given":
        give(harness)
    table: dict[str, dict[str, Any]] = {
        "another log": {"log": "e" * 32},
        "old list": {"tick": harness.number},
        "unknown name": {"name": "other"},
    }
    changes = table.get(reason, {})
    error: type[Exception] = BucketAway if reason == "old list" else BucketRefuses
    with pytest.raises(error):
        take_part(Files(), harness.bucket, target, wanted(harness, **changes))
    assert not (Path(harness.root) / "taken").exists()


@pytest.mark.parametrize("fate", ["missing", "short", "wrong"])
def test_a_copy_that_is_not_whole_is_an_error(
    harness: ShippingHarness, target: FolderBucket, monkeypatch: pytest.MonkeyPatch, fate: str
) -> None:
    """The other broker removes its objects as soon as this one has the part."""
    fill(harness)
    give(harness)

    def copy(self: object, name: str) -> None:
        if fate == "missing":
            raise ObjectMissing(name)
        data = bytearray(harness.bucket.read(name))
        if not name.endswith(".index"):
            data = data[:-1] if fate == "short" else bytes(len(data))  # type: ignore[assignment]
        target.remove([name])
        target.create(name, bytes(data))

    with monkeypatch.context() as patch:
        patch.setattr(ObjectCopier, "copy", copy)
        error = {"missing": ObjectMissing, "short": BucketUnfit, "wrong": SegmentDamaged}[fate]
        with pytest.raises(error):
            take_part(Files(), harness.bucket, target, wanted(harness))
    assert not (Path(harness.root) / "taken").exists()
    take_part(Files(), harness.bucket, target, wanted(harness))


def test_damage_in_the_log_of_ticks_is_an_error(
    harness: ShippingHarness, target: FolderBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(harness)
    give(harness)
    monkeypatch.setattr(
        TopicRestore, "finish", lambda one: replace(one.restored, problems=["a hole"])
    )
    with pytest.raises(Damaged, match="a hole"):
        take_part(Files(), harness.bucket, target, wanted(harness))
    assert not (Path(harness.root) / "taken").exists()


# Copies ahead


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The objects that are copied, in order."""
    found: list[str] = []
    copy = ObjectCopier.copy

    def noted(self: ObjectCopier, name: str) -> None:
        found.append(name)
        copy(self, name)

    monkeypatch.setattr(ObjectCopier, "copy", noted)
    return found


def ahead_of(harness: ShippingHarness, target: FolderBucket, *removing: str) -> CopiesAhead:
    return CopiesAhead(Files(), target, harness.root, set(removing))


def archive_more(harness: ShippingHarness) -> None:
    harness.log.roll(harness.now_ns)
    harness.publish(blocks=4)
    harness.sync()
    harness.log.roll(harness.now_ns)
    harness.archive()
    harness.tick(registry=True)


def chunks(bucket: FolderBucket) -> set[str]:
    return set(bucket.names("chunk/"))


def test_only_chunks_that_were_archived_since_are_copied_when_a_part_is_taken(
    harness: ShippingHarness, target: FolderBucket, copies: list[str]
) -> None:
    fill(harness)
    harness.tick(registry=True)
    ahead = ahead_of(harness, target)
    assert ahead.copy(harness.bucket, IDENTITY.name) == harness.uuid
    first = chunks(harness.bucket)
    assert first
    assert chunks(target) == set(copies) == first
    copies.clear()
    archive_more(harness)
    assert ahead.copy(harness.bucket, IDENTITY.name) == harness.uuid
    more = set(copies)
    assert more == chunks(harness.bucket) - first, "what was copied is not copied again"
    assert more
    archive_more(harness)
    give(harness)
    copies.clear()
    taken = ahead.take(harness.uuid)
    take_part(Files(), harness.bucket, target, wanted(harness), taken)
    assert set(copies) == chunks(harness.bucket) - first - more
    assert chunks(target) == chunks(harness.bucket)
    assert not ahead.take(harness.uuid)


def test_a_copy_ahead_that_is_gone_is_made_again(
    harness: ShippingHarness, target: FolderBucket, copies: list[str]
) -> None:
    """The other broker removes its objects when this one has the part."""
    fill(harness)
    give(harness)
    ahead = ahead_of(harness, target)
    ahead.copy(harness.bucket, IDENTITY.name)
    gone = min(chunks(target))
    target.remove([gone])
    copies.clear()
    take_part(Files(), harness.bucket, target, wanted(harness), ahead.take(harness.uuid))
    assert gone in copies
    assert chunks(target) == chunks(harness.bucket)


def test_a_copy_ahead_goes_on_after_a_failure_and_leaves_out_what_expires(
    harness: ShippingHarness, target: FolderBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(harness)
    give(harness)
    ahead = ahead_of(harness, target)
    names = sorted(one for one in chunks(harness.bucket) if not one.endswith(".index"))
    assert len(names) >= 2
    copy = ObjectCopier.copy

    def failing(error: Exception) -> Callable[[ObjectCopier, str], None]:
        def fail(self: ObjectCopier, name: str) -> None:
            if name == names[-1]:
                raise error
            copy(self, name)

        return fail

    monkeypatch.setattr(ObjectCopier, "copy", failing(BucketAway("no route")))
    with pytest.raises(BucketAway):
        ahead.copy(harness.bucket, IDENTITY.name)
    monkeypatch.setattr(ObjectCopier, "copy", failing(ObjectMissing("expired")))
    ahead.copy(harness.bucket, IDENTITY.name)
    assert names[-1] not in ahead.take(harness.uuid)
    assert names[0] in chunks(target)


def test_nothing_is_copied_ahead_while_the_same_objects_are_removed(
    harness: ShippingHarness, target: FolderBucket, copies: list[str]
) -> None:
    fill(harness)
    give(harness)
    with pytest.raises(BucketAway, match="is being removed"):
        ahead_of(harness, target, harness.uuid).copy(harness.bucket, IDENTITY.name)
    with pytest.raises(BucketAway, match="does not have part other"):
        ahead_of(harness, target).copy(harness.bucket, "other")
    assert not copies
