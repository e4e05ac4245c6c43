"""Tests of the log of ticks: who may create the next number, and which ticks count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from zsq.storage.bucket.bucket import (
    BucketAway,
    BucketError,
    BucketRefuses,
    Bytes,
    ObjectExists,
    ObjectMissing,
)
from zsq.storage.bucket.bucket_url import parse_bucket_url
from zsq.storage.bucket.folder_bucket import FolderBucket
from zsq.storage.bucket.shipping.ship_log import (
    CREATES_MAX,
    Fenced,
    ShipLog,
    Taken,
    find_chain,
    newest_boundary,
    read_index,
)
from zsq.storage.bucket.shipping.tick_format import (
    TAKEOVER,
    TICK,
    WINDOW,
    Boundary,
    Copy,
    EncodedTick,
    Index,
    Piece,
    Range,
    Tail,
    after,
    encode_tick,
    log_object,
)
from zsq.storage.files import Files

ARCHIVE: Final = "c" * 32
UUID: Final = "00112233445566778899aabbccddeeff"


class Faulty(FolderBucket):
    """A bucket that loses replies, refuses creates, and calls a function before a create."""

    lost_replies = 0
    false_conflicts = 0  # creates that are refused as if the object existed
    before: Callable[[str], None] | None = None

    def create(self, name: str, data: Bytes) -> None:
        if self.before is not None:
            before, self.before = self.before, None
            before(name)
        if self.false_conflicts:
            self.false_conflicts -= 1
            raise ObjectExists(name)
        super().create(name, data)
        if self.lost_replies:
            self.lost_replies -= 1
            raise BucketAway("the reply was lost")


@pytest.fixture
def bucket(tmp_path: Path) -> Faulty:
    return Faulty(Files(), parse_bucket_url(f"file://{tmp_path}"))


class Writer:
    """A broker that ships."""

    def __init__(self, bucket: FolderBucket, name: str) -> None:
        self.log = ShipLog(bucket, ARCHIVE, name * 32, f"host {name}")
        self.own = Copy(ARCHIVE, name * 32)
        self.sequence = 0

    def take_over(self, own: Copy | None = None) -> Taken:
        taken = self.log.take_over(own or self.own, 1, 50)
        self.epoch, self.digest = taken.takeover.epoch, taken.digest
        self.number, self.takeover = after(taken.takeover), taken.takeover.number
        self.registry = taken.registry_number
        return taken

    def encoded(self, end: int = 0, tails: dict[str, Tail] | None = None) -> EncodedTick:
        """Return the next tick. Several may be encoded before the first is created."""
        self.sequence += 1
        piece = Piece(
            UUID, 1, self.sequence, self.sequence == 1, "", end, end + 50, 0,
            (Range(0, end, end + 1),), 0,
        )  # fmt: skip
        index = Index(
            TICK, self.number, self.epoch, ARCHIVE, self.log.copy, "host", 1, self.digest,
            self.takeover, (), self.registry, (piece,), tails,
        )  # fmt: skip
        made = encode_tick(index, (b"x",))
        self.number, self.digest = self.number + 1, made.digest
        return made

    def ship(self, count: int = 1) -> None:
        for _ in range(count):
            self.log.create(self.encoded(self.sequence))

    def copy(self) -> Copy:
        """Return the identity of a directory that was restored now."""
        return Copy(ARCHIVE, "9" * 32, self.number, self.digest)


def test_a_new_log_begins_with_a_takeover(bucket: Faulty) -> None:
    one = Writer(bucket, "1")
    taken = one.take_over()
    assert (taken.takeover.number, taken.takeover.epoch, taken.tails) == (0, 1, {})
    one.ship(2)
    chain = find_chain(bucket)
    assert chain.numbers == (0, 1 + WINDOW, 2 + WINDOW)
    assert chain.number == 3 + WINDOW
    assert chain.last is not None
    assert chain.last.digest == one.digest


def test_a_restart_goes_on_and_reserves_offsets(bucket: Faulty) -> None:
    one = Writer(bucket, "1")
    one.take_over()
    one.ship(3)
    again = Writer(bucket, "1")
    taken = again.take_over()
    assert taken.takeover.epoch == 2
    tail = taken.tails[UUID]
    assert (tail.end, tail.reserved, tail.position) == (2, 52, 3)
    with pytest.raises(Fenced, match="has taken over at number"):
        one.ship()
    again.ship()
    assert find_chain(bucket).last is not None


def test_late_requests_after_a_takeover_do_not_count(bucket: Faulty) -> None:
    one = Writer(bucket, "1")
    one.take_over()
    one.ship(2)
    late = [one.encoded(9) for _ in range(WINDOW)]
    two = Writer(bucket, "1")
    taken = two.take_over()
    assert taken.takeover.number == late[0].index.number
    for tick in late[1:]:
        one.log.create(tick)  # the number is free, but it does not count
    with pytest.raises(Fenced):
        one.log.create(late[0])
    assert find_chain(bucket).numbers[-1] == taken.takeover.number
    two.ship(2)
    numbers = find_chain(bucket).numbers
    assert not set(numbers) & {tick.index.number for tick in late[1:]}
    assert numbers[-1] == two.number - 1
    three = Writer(bucket, "1")
    assert three.take_over().tails[UUID].end == 1
    three.ship()
    assert find_chain(bucket).numbers[: len(numbers)] == numbers


def test_one_of_two_that_take_over_at_once_wins(bucket: Faulty) -> None:
    one, two = Writer(bucket, "1"), Writer(bucket, "2")
    one.take_over()
    one.ship()
    own = one.copy()
    bucket.before = lambda name: (one.take_over(), None)[1]
    with pytest.raises(Fenced, match="has continued it up to number"):
        two.take_over(own)
    one.ship()
    assert read_index(bucket, one.number - 1).index.copy == "1" * 32


def test_a_takeover_that_loses_the_race_tries_the_next_number(bucket: Faulty) -> None:
    one, again = Writer(bucket, "1"), Writer(bucket, "1")
    one.take_over()
    bucket.before = lambda name: one.ship()
    taken = again.take_over()
    assert taken.takeover.number == 2 + WINDOW
    assert taken.tails[UUID].end == 0
    with pytest.raises(Fenced):
        one.ship()


def test_lost_replies_are_harmless(bucket: Faulty) -> None:
    one = Writer(bucket, "1")
    bucket.lost_replies = 1
    with pytest.raises(BucketAway):
        one.take_over()
    # Nobody knows the lost takeover, so the next one follows it.
    assert one.take_over().takeover.epoch == 2
    tick = one.encoded()
    bucket.lost_replies = 1
    with pytest.raises(BucketAway):
        one.log.create(tick)
    one.log.create(tick)
    one.log.create(tick)
    one.ship()
    assert len(find_chain(bucket).numbers) == 4


def test_only_the_newest_copy_may_continue(bucket: Faulty) -> None:
    one = Writer(bucket, "1")
    one.take_over()
    one.ship(2)
    stranger = Writer(bucket, "3")
    for own in (None, stranger.own, Copy("f" * 32, "1" * 32)):
        with pytest.raises(Fenced, match="not by this data directory"):
            stranger.log.take_over(own, 1, 50)
    restored = one.copy()
    two = Writer(bucket, "9")
    two.take_over(restored)
    two.ship()
    with pytest.raises(Fenced, match="not by this data directory"):
        one.take_over()
    with pytest.raises(Fenced, match="restore again"):
        Writer(bucket, "8").log.take_over(restored._replace(copy="8" * 32), 1, 50)
    two.take_over()


def bounded(bucket: Faulty) -> Writer:
    """Return a writer whose log begins with a boundary, with takeovers below it."""
    one = Writer(bucket, "1")
    one.take_over()
    one.ship(3)
    one.take_over()
    one.sequence = 0
    one.ship(3)
    number = one.number - 2
    made = one.log.with_digest(Boundary(number, "", one.epoch, one.number - 1, 1))
    one.log.bound(made)
    one.log.bound(made)
    assert one.log.remove_below(number, 2) == 2
    assert one.log.remove_below(number, 100) == 2
    assert one.log.remove_below(number, 100) == 0
    return one


def test_removal_keeps_takeovers(bucket: Faulty) -> None:
    one = bounded(bucket)
    boundary = newest_boundary(bucket)
    names = sorted(bucket.names("log/"))
    kinds = [read_index(bucket, int(name[4:])).index.kind for name in names]
    assert kinds == [TAKEOVER, TAKEOVER, TICK, TICK]
    chain = find_chain(bucket)
    assert chain.numbers == (boundary.number, boundary.number + 1)
    one.ship()
    again = Writer(bucket, "1")
    again.take_over()
    again.ship()
    assert again.log.remove_below(boundary.number, 100) == 0
    assert sorted(bucket.names("log/"))[:2] == names[:2]


def test_a_process_that_slept_through_a_removal_is_fenced(bucket: Faulty) -> None:
    slept = Writer(bucket, "1")
    slept.take_over()
    slept.ship()
    one = Writer(bucket, "1")
    one.take_over()
    one.ship(4)
    number = one.number - 1
    one.log.bound(one.log.with_digest(Boundary(number, "", one.epoch, number, 1)))
    one.log.remove_below(number, 100)
    with pytest.raises(Fenced):
        slept.ship()


def shorten(one: Writer, bucket: Faulty) -> int:
    """Let a writer ship more, and remove all ticks below its last one. Return that number."""
    one.ship(3)
    number = one.number - 1
    one.log.bound(one.log.with_digest(Boundary(number, "", one.epoch, number, 1)))
    one.log.remove_below(number, 100)
    return number


def test_a_takeover_on_a_name_that_was_removed_does_not_count(bucket: Faulty) -> None:
    """The taker wants a number that is an ordinary tick by now, and was removed since."""
    one, late = Writer(bucket, "1"), Writer(bucket, "1")
    one.take_over()
    one.ship(2)
    wanted = one.number
    bucket.before = lambda name: (shorten(one, bucket), None)[1]
    late.take_over()
    chain = find_chain(bucket)
    assert wanted < chain.boundary.number < late.takeover
    assert chain.last is not None
    assert chain.last.index.number == late.takeover
    with pytest.raises(Fenced):
        one.ship()


def test_a_reader_begins_again_when_the_boundary_moves(
    bucket: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Writer(bucket, "1")
    one.take_over()
    one.ship(2)
    names = bucket.names
    moved: list[int] = []

    def moving(below: str) -> Iterator[str]:
        if below == "log/" and not moved:
            moved.append(0)
            moved[0] = shorten(one, bucket)
        return names(below)

    monkeypatch.setattr(bucket, "names", moving)
    chain = find_chain(bucket)
    assert chain.numbers == (moved[0],)
    assert chain.number == one.number


def test_a_newer_boundary_replaces_the_older_one(bucket: Faulty) -> None:
    one = bounded(bucket)
    one.ship(2)
    number = one.number - 1
    one.log.bound(one.log.with_digest(Boundary(number, "", one.epoch, number, 2)))
    assert len(list(bucket.names("boundary/"))) == 1
    found = newest_boundary(bucket)
    assert found.number == number
    assert found.digest == read_index(bucket, number).index.previous
    chain = find_chain(bucket)
    assert chain.numbers == (number,)
    bucket.remove([log_object(number)])
    with pytest.raises(BucketRefuses, match="although the log begins with it"):
        find_chain(bucket)


def test_damage_and_endless_races_are_told(bucket: Faulty, tmp_path: Path) -> None:
    one = Writer(bucket, "1")
    one.take_over()
    one.ship()
    path = tmp_path / log_object(one.number - 1)
    data = path.read_bytes()
    path.write_bytes(data[:-20] + b"?" + data[-19:])
    with pytest.raises(BucketRefuses, match="check it with zsq fsck"):
        find_chain(bucket)
    path.write_bytes(data)
    again = Writer(bucket, "1")

    def race(name: str) -> None:
        one.ship()
        bucket.before = race

    bucket.before = race
    original, one.log._bucket = one.log._bucket, FolderBucket(Files(), bucket.url)
    with pytest.raises(BucketError, match="does another copy"):
        again.take_over()
    assert original is bucket


def test_a_create_that_is_refused_for_a_moment_is_tried_again(bucket: Faulty) -> None:
    """S3 answers 409 while another request for the name is under way, which may fail."""
    writer = Writer(bucket, "a")
    writer.take_over()
    tick = writer.encoded()
    bucket.false_conflicts = 2
    writer.log.create(tick)
    assert log_object(tick.index.number) in set(bucket.names("log/"))
    bucket.false_conflicts, tick = 99, writer.encoded()
    with pytest.raises(ObjectMissing):
        writer.log.create(tick)
    assert bucket.false_conflicts == 99 - CREATES_MAX


def test_ticks_are_removed_only_below_a_boundary_that_is_there(bucket: Faulty) -> None:
    """A store may say that the boundary exists although it does not."""
    writer = Writer(bucket, "a")
    writer.take_over()
    for _ in range(3):
        writer.log.create(writer.encoded())
    bucket.false_conflicts = 1
    boundary = writer.log.with_digest(Boundary(writer.number - 1, "", 1, writer.number - 1, 1))
    writer.log.bound(boundary)
    assert newest_boundary(bucket).number == boundary.number
    bucket.false_conflicts = 99
    with pytest.raises(ObjectMissing):
        writer.log.bound(boundary._replace(number=boundary.number + 1))
    assert newest_boundary(bucket).number == boundary.number
