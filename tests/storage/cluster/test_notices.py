"""Tests of the notices by which brokers of a cluster know who lives."""

from __future__ import annotations

from pathlib import Path

import pytest

from zsq.storage.bucket.bucket import Bytes, ObjectExists
from zsq.storage.bucket.bucket_url import parse_bucket_url
from zsq.storage.bucket.folder_bucket import FolderBucket
from zsq.storage.cluster.balance import UP_S
from zsq.storage.cluster.notices import (
    ALIVE,
    BrokerNotice,
    BrokerWatch,
    encode_notice,
    notice_object,
    parse_notice,
)
from zsq.storage.files import Files

A, B = "a" * 32, "b" * 32
S = 1_000_000_000


class OneTaken(FolderBucket):
    """A bucket in which another process of the broker is faster once."""

    is_taken = False

    def create(self, name: str, data: Bytes) -> None:
        super().create(name, data)
        if self.is_taken:
            self.is_taken = False
            raise ObjectExists(name)


@pytest.fixture
def bucket(tmp_path: Path) -> OneTaken:
    return OneTaken(Files(), parse_bucket_url(f"file://{tmp_path}"))


def test_a_broker_is_up_while_its_count_grows(bucket: OneTaken) -> None:
    one, two = BrokerWatch(bucket), BrokerWatch(bucket)
    two.exchange(BrokerNotice(B, 5, 9), 1)
    seen = one.exchange(BrokerNotice(A, 1, 2), 10 * S)
    assert {uuid: (row.is_up, row.notice.free) for uuid, row in seen.items()} == {
        A: (True, 1), B: (True, 5),
    }  # fmt: skip
    for at_s in (30, 50):
        seen = one.exchange(BrokerNotice(A, 1, 2), at_s * S)
    assert (seen[B].quiet_s, seen[B].is_up, seen[A].is_up) == (40, True, True)
    seen = one.exchange(BrokerNotice(A, 1, 2), 60 * S)
    assert (seen[B].quiet_s, seen[B].is_up) == (50, False)
    two.exchange(BrokerNotice(B, 6, 9), 1)
    seen = one.exchange(BrokerNotice(A, 1, 2), 70 * S)
    assert (seen[B].quiet_s, seen[B].notice.free) == (0, 6)


def test_nobody_looks_gone_because_the_bucket_was_away_for_all(bucket: OneTaken) -> None:
    one, two = BrokerWatch(bucket), BrokerWatch(bucket)
    two.exchange(BrokerNotice(B, 5, 9), 1)
    one.exchange(BrokerNotice(A, 1, 2), 1)
    seen = one.exchange(BrokerNotice(A, 1, 2), int((UP_S + 1_000) * S))
    assert seen[B].quiet_s == 0


def test_a_broker_keeps_one_notice_and_removes_it_at_the_end(bucket: OneTaken) -> None:
    watch = BrokerWatch(bucket)
    for turn in range(3):
        bucket.is_taken = turn == 1
        watch.exchange(BrokerNotice(A, 1, 2), turn * S)
    bucket.create(notice_object(B, 4), b"damaged")
    bucket.create(f"{ALIVE}/other", b"")
    seen = watch.exchange(BrokerNotice(A, 1, 2), 3 * S)
    assert seen[B].notice == BrokerNotice(B, 0, 0), "its name alone shows that it lives"
    names = sorted(bucket.names(f"{ALIVE}/"))
    assert names == [notice_object(A, 4), notice_object(B, 4), f"{ALIVE}/other"]
    watch.withdraw(A)
    assert notice_object(A, 4) not in {*bucket.names(f"{ALIVE}/")}


def test_names() -> None:
    assert parse_notice(notice_object(A, 7)) == (A, 7)
    for name in ("alive/x.000000000007", f"alive/{A}", f"alive/{A}.x"):
        assert parse_notice(name) == ("", -1)
    assert b"alive" in encode_notice(BrokerNotice(A, 1, 2))
