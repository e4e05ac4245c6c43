"""Tests of the follower: at each tick, its copy is what a restore up to that tick would be."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from support.shipping_harness import ShippingHarness
from support.storage_harness import IDENTITY

from tests.storage.bucket.shipping.test_restore import verify
from zsq.storage.bucket.bucket import BucketAway, BucketError, BucketRefuses
from zsq.storage.bucket.shipping.follower import Follower
from zsq.storage.bucket.shipping.ship_log import Fenced, ShipLog
from zsq.storage.bucket.shipping.tick_format import Copy, log_object
from zsq.storage.bucket.shipping.tick_reader import TickReader
from zsq.storage.files import Files

pytestmark = pytest.mark.slow

RESERVE = 50


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ShippingHarness]:
    made = ShippingHarness(tmp_path)
    made.open()
    made.take_over()
    yield made
    made.abandon()


def follow(harness: ShippingHarness, name: str) -> Follower:
    made = Follower(Files(), harness.bucket, f"{harness.root}/{name}")
    made.begin()
    return made


def catch_up(follower: Follower) -> None:
    """Apply all ticks. Begin again if the follower was away for too long."""
    try:
        if not follower.look():
            follower.begin()
        while follower.step():
            pass
    except BucketError:
        follower.begin()


def finish(harness: ShippingHarness, follower: Follower, *, fsck: bool = True) -> None:
    """End the copy, and check it."""
    assert follower.last is not None
    wanted = harness.wanted[follower.last.index.number]
    (topic,) = follower.finish({harness.uuid: IDENTITY})
    folder = str(Path(harness.root) / Path(topic_folder(follower, harness)).name)
    shutil.move(topic_folder(follower, harness), folder)
    verify(harness, topic, folder, wanted, fsck=fsck)
    shutil.rmtree(folder)
    follower.close()


def topic_folder(follower: Follower, harness: ShippingHarness) -> str:
    return f"{follower._folder}/{harness.uuid}"


@pytest.mark.parametrize("seed", range(12))
def test_a_follower_has_what_a_restore_would_have(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    harness = ShippingHarness(tmp_path, seed)
    harness.open()
    harness.take_over()
    harness.tick(1 << 20, begin=True)
    followers: dict[Follower, int] = {}  # each with the step at which it ends
    finished = 0
    for step in range(60):
        harness.do_something(random)
        if step % 12 == 0:
            made = follow(harness, f"follower-{step}")
            followers[made] = step + random.randint(1, 40)
        if step in (25, 45) and harness.uuid in harness.tails:
            harness.bound()
        for follower, end in list(followers.items()):
            if random.random() < 0.7 or step >= end:
                catch_up(follower)
            shipped = follower.shipped().get(harness.uuid)
            if step >= end and shipped is not None and shipped.begins >= 0:
                finish(harness, follower, fsck=finished % 3 == 0)
                del followers[follower]
                finished += 1
    assert finished > 1
    for follower in followers:
        follower.close()
    harness.abandon()


def test_a_follower_that_was_away_begins_again(harness: ShippingHarness) -> None:
    harness.publish(blocks=2)
    harness.tick(begin=True)
    follower = follow(harness, "copy")
    while harness.number % 8:  # a boundary is a tick with the tails of all topics
        harness.tick()
    harness.publish(blocks=2)
    harness.sync()
    harness.log.roll(harness.now_ns)
    harness.archive()
    harness.publish()
    harness.tick(begin=True, registry=True)
    harness.bound()
    assert not follower.look()
    follower.begin()
    assert not follower.step()
    finish(harness, follower)


def test_nobody_takes_over_behind_a_tick_that_was_not_applied(harness: ShippingHarness) -> None:
    harness.publish()
    harness.tick(begin=True)
    follower = follow(harness, "copy")
    harness.publish()
    harness.tick()
    assert follower.last is not None
    archive = follower.last.index.archive
    log = ShipLog(harness.bucket, archive, "f" * 32, "there")
    own = Copy(archive, "f" * 32, follower.number, follower.last.digest)
    with pytest.raises(Fenced):
        log.take_over(own, 1, RESERVE, 700, follower.recent)
    assert follower.step()
    own = Copy(archive, "f" * 32, follower.number, follower.last.digest)
    taken = log.take_over(own, 1, RESERVE, 700, follower.recent)
    assert taken.takeover.number == follower.number
    assert taken.takeover.lease_ms == 700
    finish(harness, follower)


@pytest.mark.parametrize("at", [0, 40, -1])
def test_a_damaged_tick_is_refused_and_changes_nothing(harness: ShippingHarness, at: int) -> None:
    harness.publish()
    harness.tick(begin=True)
    follower = follow(harness, "copy")
    harness.publish()
    harness.tick()
    path = Path(harness.root).parent / "bucket" / log_object(follower.number)
    good = path.read_bytes()
    bad = bytearray(good)
    bad[at] ^= 1
    path.write_bytes(bad)
    number = follower.number
    with pytest.raises(BucketRefuses):
        follower.step()
    assert follower.number == number
    path.write_bytes(good)
    follower.begin()
    finish(harness, follower)


def test_a_store_that_does_not_answer_loses_nothing(
    harness: ShippingHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.publish()
    harness.tick(begin=True)
    follower = follow(harness, "copy")
    harness.publish()
    harness.tick()

    def away(name: str, start: int = 0, length: int | None = None) -> bytes:
        raise BucketAway("503 SlowDown")

    with monkeypatch.context() as patch:
        patch.setattr(harness.bucket, "read", away)
        with pytest.raises(BucketAway):
            follower.step()
    assert follower.step()
    assert not follower.step()
    finish(harness, follower)


def test_a_deleted_topic_whose_first_ticks_are_gone_is_no_damage(
    harness: ShippingHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.publish()
    harness.tick(begin=True)
    harness.content.topics.clear()
    harness.tick(empty=True, registry=True)
    wrong = {harness.uuid: ["bytes 0 to 4 of the log file of offset 0 are missing"]}
    read = TickReader.read

    def read_without(reader: TickReader, at_ns: int | None = None) -> None:
        read(reader, at_ns)
        reader.wrong.update(wrong)

    monkeypatch.setattr(TickReader, "read", read_without)
    follower = follow(harness, "copy")
    assert not follower.shipped()
    follower.close()


def test_a_damaged_topic_that_exists_is_not_followed(
    harness: ShippingHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.publish()
    harness.tick(begin=True)
    read = TickReader.read

    def read_without(reader: TickReader, at_ns: int | None = None) -> None:
        read(reader, at_ns)
        reader.wrong[harness.uuid] = ["bytes are missing"]

    monkeypatch.setattr(TickReader, "read", read_without)
    with pytest.raises(BucketRefuses, match="bytes are missing"):
        follow(harness, "copy")


def test_topics_that_were_deleted_leave_the_disk(harness: ShippingHarness) -> None:
    harness.publish()
    harness.tick(begin=True)
    follower = follow(harness, "copy")
    assert Path(topic_folder(follower, harness)).is_dir()
    follower.keep_only(frozenset())
    assert not Path(topic_folder(follower, harness)).exists()
    assert not follower.shipped()
    follower.close()


def test_a_copy_stays_when_the_bucket_has_no_log_any_more(harness: ShippingHarness) -> None:
    """A bucket that is not mounted, or was emptied, answers as if there never was a log. The copy
    may be all that is left.
    """
    harness.publish(blocks=2)
    harness.tick(begin=True)
    follower = follow(harness, "copy")
    folder = Path(topic_folder(follower, harness))
    before = {path.name: path.stat().st_size for path in folder.iterdir()}
    harness.bucket.remove(list(harness.bucket.names("log/")))
    with pytest.raises(BucketRefuses, match="no log of ticks"):
        follower.begin()
    assert {path.name: path.stat().st_size for path in folder.iterdir()} == before
    follower.close()
