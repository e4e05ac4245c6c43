"""Tests of the check of a log of ticks: what it says about the objects of topics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.shipping_harness import ShippingHarness

from zsq.storage.bucket.archive.bucket_check import DAMAGE
from zsq.storage.bucket.bucket_url import parse_bucket_url
from zsq.storage.bucket.folder_bucket import FolderBucket
from zsq.storage.bucket.shipping.ship_check import check_log
from zsq.storage.bucket.shipping.tick_format import (
    TICK,
    Index,
    Piece,
    Range,
    encode_tick,
    log_object,
)
from zsq.storage.files import Files

UUID = "00112233445566778899aabbccddeeff"
BASE = f"state/{UUID}/0000000000000001.00000000"


def bucket_with(folder: Path, registry: bytes, *, follows: bool = False) -> FolderBucket:
    """Return a bucket with one tick, which names an object that is missing. With `follows`, it has
    the second half of a file instead, and the tick with the first half is missing.
    """
    folder.mkdir(exist_ok=True)
    bucket = FolderBucket(Files(), parse_bucket_url(f"file://{folder}"))
    piece = Piece(UUID, 1, 1, True, BASE, 0, 100, 0, (), 0)
    body = b""
    if follows:
        piece, body = Piece(UUID, 1, 2, True, "", 0, 100, 0, (Range(0, 4, 8),), 0), b"half"
    index = Index(TICK, 0, 0, "c" * 32, "d" * 32, "host", 1, "", -1, (), 0, (piece,))
    bucket.create(log_object(0), encode_tick(index, [body], registry).data)
    return bucket


def registry_of(*uuids: str) -> bytes:
    rows = {f"topic-{number}": {"uuid": uuid} for number, uuid in enumerate(uuids)}
    return json.dumps({"topics": rows}).encode()


@pytest.mark.parametrize("registry", [registry_of(UUID), registry_of("f" * 32, UUID), b"garbage"])
def test_the_missing_rows_of_a_topic_are_damage(tmp_path: Path, registry: bytes) -> None:
    report = check_log(bucket_with(tmp_path, registry))
    (finding,) = report.findings
    assert (finding.level, finding.name) == (DAMAGE, BASE)
    assert "it is missing; it has the rows of topic" in finding.text


@pytest.mark.parametrize("registry", [registry_of(), registry_of("f" * 32)])
def test_the_missing_rows_of_a_deleted_topic_are_no_damage(tmp_path: Path, registry: bytes) -> None:
    """Old ticks name the topic until they are removed."""
    report = check_log(bucket_with(tmp_path, registry))
    assert (report.ticks, report.findings) == (1, [])


def test_the_missing_bytes_of_a_deleted_topic_are_no_damage(tmp_path: Path) -> None:
    live = check_log(bucket_with(tmp_path / "live", registry_of(UUID), follows=True))
    assert [one.level for one in live.findings] == [DAMAGE]
    assert "bytes 0 to 4 of the log file of offset 0 are missing" in live.findings[0].text
    deleted = check_log(bucket_with(tmp_path / "deleted", registry_of(), follows=True))
    assert deleted.findings == []


def test_the_check_begins_again_if_the_broker_removes_what_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the first tick that is left would seem to follow nothing."""
    harness = ShippingHarness(tmp_path)
    harness.open()
    harness.take_over()
    for _ in range(2):
        while harness.number % 8:  # a boundary is a tick with the tails of all topics
            harness.publish()
            harness.sync()
            harness.tick()
        harness.log.roll(harness.now_ns)
        harness.archive()
        harness.publish()
        harness.tick(begin=True, registry=True)
    read = harness.bucket.read
    gone = log_object(harness.number - 3)

    def remove_first(name: str, start: int = 0, length: int | None = None) -> bytes:
        if name == gone and length is None:
            monkeypatch.setattr(harness.bucket, "read", read)
            harness.bound()
        return read(name, start, length)

    monkeypatch.setattr(harness.bucket, "read", remove_first)
    report = check_log(harness.bucket)
    assert harness.bucket.read is read, "the ticks were removed meanwhile"
    assert report.first == harness.number - 1
    assert not report.damaged, report.findings
    harness.abandon()
