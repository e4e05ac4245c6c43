"""Tests of the end of a log: nobody can go on with it, and others find the parts in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.shipping_harness import ShippingHarness
from support.storage_harness import IDENTITY

from zsq.actors.supervisor.topics.registry_format import GIVEN
from zsq.storage.bucket.bucket import BucketRefuses
from zsq.storage.bucket.bucket_url import parse_bucket_url
from zsq.storage.bucket.folder_bucket import FolderBucket
from zsq.storage.bucket.shipping.log_end import (
    NOTHING,
    FoundPart,
    StillWrites,
    end_log,
    find_part,
)
from zsq.storage.bucket.shipping.part_taking import Wanted, take_part
from zsq.storage.bucket.shipping.ship_log import Fenced, ShipLog, find_chain
from zsq.storage.bucket.shipping.tick_format import Copy
from zsq.storage.files import Files

TOPIC = "7" * 32
RESERVE = 1_000


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ShippingHarness]:
    made = ShippingHarness(tmp_path)
    made.open()
    made.take_over()
    made.publish(blocks=3)
    made.sync()
    made.channel("one", 3)
    (row,) = made.content.topics.values()
    row.part_of, row.hold, row.state = TOPIC, 2, "live"
    made.tick(registry=True)
    yield made
    made.abandon()


def end(harness: ShippingHarness) -> int:
    return end_log(harness.bucket, "host", 1, RESERVE, lambda: None)


def test_after_the_end_nobody_continues_the_log(harness: ShippingHarness) -> None:
    tick = end(harness)
    assert end(harness) == tick, "it may be repeated"
    harness.publish()
    harness.sync()
    with pytest.raises(Fenced):
        harness.tick()
    chain = find_chain(harness.bucket)
    assert chain.last is not None
    archive = chain.last.index.archive
    # Whoever wrote the last tick, a copy of the data directory or a standby with the whole log, and
    # a new broker.
    for copy in (
        Copy(archive, chain.last.index.copy),
        Copy(archive, "e" * 32, chain.number, chain.last.digest),
        None,
    ):
        log = ShipLog(harness.bucket, archive, "e" * 32, "host")
        with pytest.raises(Fenced, match="the cluster has forgotten this broker"):
            log.take_over(copy, 1, RESERVE)


def test_a_broker_that_ships_meanwhile_is_not_ended(harness: ShippingHarness) -> None:
    def ships() -> None:
        harness.publish()
        harness.sync()
        harness.tick()

    with pytest.raises(StillWrites, match="so it lives"):
        end_log(harness.bucket, "host", 1, RESERVE, ships)
    ships()


def test_two_that_end_it_at_the_same_time_find_the_same_end(harness: ShippingHarness) -> None:
    ticks: list[int] = []
    assert end_log(harness.bucket, "a", 1, RESERVE, lambda: ticks.append(end(harness))) == ticks[0]


def test_the_log_of_a_broker_that_never_shipped_can_be_ended(tmp_path: Path) -> None:
    bucket = FolderBucket(Files(), parse_bucket_url(f"file://{tmp_path}"))
    end_log(bucket, "host", 1, RESERVE, lambda: None)
    assert find_part(bucket, IDENTITY.name, TOPIC, 0) == NOTHING
    with pytest.raises(Fenced):
        ShipLog(bucket, "a" * 32, "e" * 32, "host").take_over(None, 1, RESERVE)


def test_a_part_is_found_and_taken_behind_a_gap(harness: ShippingHarness, tmp_path: Path) -> None:
    with pytest.raises(BucketRefuses, match="has not ended"):
        find_part(harness.bucket, IDENTITY.name, TOPIC, 2)
    tick = end(harness)
    find = (harness.bucket, IDENTITY.name)
    assert find_part(*find, TOPIC, 2) == FoundPart(harness.uuid, tick)
    assert find_part(*find, TOPIC, 3) == NOTHING, "it had the part in another hold"
    assert find_part(*find, "8" * 32, 2) == NOTHING
    assert find_part(harness.bucket, "other#1", TOPIC, 2) == NOTHING
    # It was lost after it had got back what it had released, and before its bucket said so.
    back = find_part(*find, TOPIC, 3, harness.uuid)
    assert back == NOTHING, "it is live"
    (tmp_path / "target").mkdir()
    target = FolderBucket(Files(), parse_bucket_url(f"file://{tmp_path}/target"))
    wanted = Wanted(IDENTITY.name, harness.uuid, tick, f"{harness.root}/taken", 7)
    with pytest.raises(BucketRefuses, match="as its broker gave it"):
        take_part(Files(), harness.bucket, target, wanted)
    row, taken = take_part(Files(), harness.bucket, target, wanted._replace(reserve=10 * RESERVE))
    assert row["state"] == "live"
    assert (taken.start, taken.channels) == (0, 1)
    assert taken.end >= harness.log.end + 10 * RESERVE, "offsets may have been given out"


def test_a_part_that_was_released_and_came_back_to_the_lost_broker_is_found(
    harness: ShippingHarness,
) -> None:
    """It was lost before its bucket had the new hold. All of the part is there."""
    (row,) = harness.content.topics.values()
    row.state = GIVEN
    harness.tick(registry=True)
    tick = end(harness)
    find = (harness.bucket, IDENTITY.name, TOPIC)
    assert find_part(*find, 4, harness.uuid) == FoundPart(harness.uuid, tick)
    assert find_part(*find, 4) == NOTHING, "another broker had it since"
    assert find_part(*find, 4, "9" * 32) == NOTHING
    assert find_part(*find, 1, harness.uuid) == NOTHING
