"""Tests of the notices of standbys, and of the terms of a primary."""

from __future__ import annotations

from pathlib import Path

import pytest

from zsq.storage.bucket.bucket import BucketError, Bytes, ObjectExists
from zsq.storage.bucket.bucket_url import parse_bucket_url
from zsq.storage.bucket.folder_bucket import FolderBucket
from zsq.storage.bucket.shipping.standbys import (
    CREATES_MAX,
    FORGET_S,
    NO_STANDBY,
    STRANGER_S,
    Notice,
    StandbyWatch,
    announce,
    decode_notice,
    encode_notice,
    notice_object,
    parse_notice,
    terms_for,
    terms_of,
    wait_ns,
    withdraw,
)
from zsq.storage.errors import Damaged
from zsq.storage.files import Files

S = 1_000_000_000
ONE = Notice("a" * 32, "one", ("tcp://one:4153",), 10.0, 5)
TWO = Notice("b" * 32, "two", (), 2.0, 6)


@pytest.fixture
def bucket(tmp_path: Path) -> FolderBucket:
    (tmp_path / "bucket").mkdir()
    return FolderBucket(Files(), parse_bucket_url(f"file://{tmp_path}/bucket"))


def test_a_notice_is_read_as_it_was_written() -> None:
    assert decode_notice(encode_notice(ONE)) == ONE


@pytest.mark.parametrize("data", [b"", b"{}\n", encode_notice(ONE)[:-2]])
def test_a_damaged_notice_is_refused(data: bytes) -> None:
    with pytest.raises(Damaged):
        decode_notice(data)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (notice_object("a", 7), ("a", 7)),
        ("standby/a.b.000000000003", ("a.b", 3)),
        ("standby/a", ("", -1)),
        ("standby/.1", ("", -1)),
        ("standby/a.x", ("", -1)),
    ],
)
def test_names_of_notices(name: str, found: tuple[str, int]) -> None:
    assert parse_notice(name) == found


def test_a_standby_has_one_notice_at_a_time(bucket: FolderBucket) -> None:
    for _ in range(3):
        announce(bucket, ONE)
    announce(bucket, TWO)
    assert sorted(bucket.names("standby/")) == [
        notice_object(ONE.copy, 3), notice_object(TWO.copy, 1),
    ]  # fmt: skip
    withdraw(bucket, ONE.copy)
    assert list(bucket.names("standby/")) == [notice_object(TWO.copy, 1)]


class Conflicting(FolderBucket):
    """Says of the next creates that their names are taken. `stores`: also stores the objects."""

    conflicts = 0
    stores = False

    def create(self, name: str, data: Bytes) -> None:
        if not self.conflicts:
            super().create(name, data)
            return
        self.conflicts -= 1
        if self.stores:
            super().create(name, data)
        raise ObjectExists(f"{name} exists already")


@pytest.mark.parametrize("stores", [True, False])
def test_a_store_that_answers_with_a_conflict_has_the_notice_in_the_end(
    bucket: FolderBucket, stores: bool
) -> None:
    announce(bucket, ONE)
    conflicting = Conflicting(Files(), bucket.url)
    conflicting.conflicts, conflicting.stores = 1, stores
    announce(conflicting, ONE)
    assert list(bucket.names("standby/")) == [notice_object(ONE.copy, 2 if stores else 3)]


def test_a_notice_that_is_never_there_is_an_error(bucket: FolderBucket) -> None:
    announce(bucket, ONE)
    conflicting = Conflicting(Files(), bucket.url)
    conflicting.conflicts = CREATES_MAX
    with pytest.raises(BucketError, match="taken 5 times, and is missing"):
        announce(conflicting, ONE)
    assert list(bucket.names("standby/")) == [notice_object(ONE.copy, 1)]


def test_a_primary_sees_other_standbys_and_not_itself(bucket: FolderBucket) -> None:
    announce(bucket, ONE)
    announce(bucket, TWO)
    assert StandbyWatch(ONE.copy).look(bucket, 0) == {TWO.copy: TWO}
    assert StandbyWatch("c").look(bucket, 0) == {ONE.copy: ONE, TWO.copy: TWO}


def test_a_standby_that_says_nothing_for_long_is_forgotten(bucket: FolderBucket) -> None:
    watch = StandbyWatch("c")
    announce(bucket, ONE)
    announce(bucket, TWO)
    assert len(watch.look(bucket, 0)) == 2
    later = int(FORGET_S * S)
    announce(bucket, TWO)
    assert watch.look(bucket, later) == {ONE.copy: ONE, TWO.copy: TWO}
    assert watch.look(bucket, later + 1) == {TWO.copy: TWO}
    assert watch.look(bucket, later + 2) == {TWO.copy: TWO}, "it does not come back by itself"
    announce(bucket, ONE)
    assert watch.look(bucket, later + 3) == {ONE.copy: ONE, TWO.copy: TWO}
    withdraw(bucket, ONE.copy)
    assert watch.look(bucket, later + 4) == {TWO.copy: TWO}


def test_a_notice_that_cannot_be_read_is_left_out(bucket: FolderBucket) -> None:
    bucket.create(notice_object("x", 1), b"nothing")
    announce(bucket, ONE)
    assert StandbyWatch("c").look(bucket, 0) == {ONE.copy: ONE}


def test_the_terms_are_those_of_the_least_patient_standby() -> None:
    assert terms_of([ONE, TWO]) == terms_for(2.0)
    assert terms_of([ONE]) == terms_for(10.0)
    assert terms_of([]) == NO_STANDBY == (0, 0)


@pytest.mark.parametrize("patience_s", [1.0, 2.0, 10.0, 60.0, 3_600.0])
def test_the_lease_ends_before_a_standby_takes_over(patience_s: float) -> None:
    """Also if the primary has another idea of the patience. Several heartbeats fit into a lease."""
    terms = terms_for(patience_s)
    assert 3 * terms.heartbeat_ns < terms.lease_ns < patience_s * S
    for own_s in (0.5 * patience_s, patience_s, 2 * patience_s):
        assert wait_ns(own_s, terms.lease_ns // 1_000_000) > terms.lease_ns


def test_a_primary_without_a_lease_may_not_have_heard_of_the_standby() -> None:
    assert wait_ns(2.0, 0) == STRANGER_S * S
    assert wait_ns(100.0, 0) == 100 * S
