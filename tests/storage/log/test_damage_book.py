"""Tests of the record of damage: how much damage is remembered, for how long, and when a hole is
forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c

from zsq.storage.checks import fsck
from zsq.storage.directory.store import StoreOptions, TopicIdentity
from zsq.storage.errors import NewerVersion
from zsq.storage.files import Files
from zsq.storage.log import damage
from zsq.storage.log.damage import (
    BAD_HEAD_BYTES,
    PAGE_BYTES,
    Bad,
    BadHead,
    DamageBook,
    Hole,
    decode_bad_head,
    encode_bad_head,
    keep_bytes,
)
from zsq.storage.log.log_format import CHUNK_HEADER_BYTES
from zsq.storage.log.survey import survey

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness

IDENTITY = TopicIdentity("clicks", "00112233445566778899aabbccddeeff")
TINY = StoreOptions(
    chunk_bytes=460, index_every_bytes=1, map_bytes=1 << 20, reserve_bytes=0, ring_bytes=0
)


@pytest.fixture
def topic(tmp_path: Path, harness: StorageHarness) -> Iterator[StorageHarness]:
    """Make an open topic: sealed chunks 0 and 3 of three blocks each, and a last one of two, one
    message in each block.
    """
    (tmp_path / "topic").mkdir()
    made = type(harness)(tmp_path / "topic", TINY)
    made.open()
    for _ in range(8):
        made.publish(count=1, size=1)
        made.sync()
    yield made
    made.abandon()


def bad(base: int, offset: int, *, size: int = 10, count: int = 1) -> Bad:
    return Bad(base, 200, size, offset, count, "its checksum does not match")


def test_damage_in_removed_chunks_is_forgotten(tmp_path: Path) -> None:
    book = DamageBook(Files(), str(tmp_path), [Hole(70, 2)])
    book.note(bad(0, 10, count=5))
    book.note(bad(50, 60))
    book.forget_below(15)
    assert book.holes == [(60, 1), (70, 2)]
    assert book.by_chunk() == {50: 1}
    assert not book.is_known(0, 200)
    book.forget_below(71)
    assert book.holes == [(70, 2)], "a part of it is still in the log"
    assert book.by_chunk() == {}


def test_only_kept_bytes_of_large_damage_count_toward_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(damage, "BAD_KEPT_BYTES_MAX", 100)
    monkeypatch.setattr(damage, "BAD_TOTAL_BYTES_MAX", 150)
    book = DamageBook(Files(), str(tmp_path))
    for number, taken in enumerate((True, True, False)):
        book.note(bad(number, number, size=1_000_000))
        assert (book.take(0) is not None) == taken, number


def test_damaged_places_are_bounded_and_every_lost_range_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk with a million bad blocks must not fill the memory too."""
    monkeypatch.setattr(damage, "BAD_FILES_MAX", 2)
    book = DamageBook(Files(), str(tmp_path))
    for number in range(10):
        book.note(bad(number, 2 * number))
    assert len(book.by_chunk()) == 4
    assert (book.messages, book.skip(18)) == (10, 19)


def test_a_file_of_another_version_is_not_read_as_one_of_this(tmp_path: Path) -> None:
    data = encode_bad_head(BadHead(bad(0, 1), 5, 0, 0))
    assert decode_bad_head(data) is not None
    other = data[: BAD_HEAD_BYTES - 10].replace(b'"version": 1', b'"version": 9')
    with pytest.raises(NewerVersion, match="format version 9"):
        decode_bad_head(other + b" %08x\n" % crc32c(other))


def test_a_chunk_that_comes_back_without_its_first_message_is_still_a_hole(
    topic: StorageHarness,
) -> None:
    topic.abandon_cleanly()
    path = topic.chunk_path(3)
    away = path.with_suffix(".away")
    path.rename(away)
    topic.files.reset()
    assert topic.open().report.holes == ((3, 3),)
    job = topic.log.reader.damage.take(7_000)
    assert job is not None
    job()
    topic.abandon_cleanly()
    away.rename(path)
    topic.flip(path, (CHUNK_HEADER_BYTES + 20) * 8)  # a bit in the header of the first block
    topic.files.reset()
    report = topic.open().report
    assert report.holes == ((3, 3),), "the first of its messages is not there"


@pytest.mark.parametrize(
    ("end", "alarm"),
    [
        (3, ""),
        (4, "ends at offset 4, but the next chunk begins at 3"),
        (1, "2 messages are missing"),
        (-1, "its footer is missing or damaged"),
    ],
)
def test_a_chunk_ends_where_the_next_one_begins(
    topic: StorageHarness, end: int, alarm: str
) -> None:
    (found,) = survey(topic.files, topic.directory, IDENTITY.uuid_bytes, [0], 1)
    assert found.facts is not None
    assert found.facts.next_offset == 3
    said = topic.log.survey.learn([found._replace(facts=found.facts._replace(next_offset=end))])
    assert len(said) == bool(alarm)
    assert all(alarm in one for one in said)


def test_a_stretch_of_many_pieces_is_kept_whole_and_checked_whole(
    tmp_path: Path, harness: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(damage, "PIECE_BYTES", 100)
    monkeypatch.setattr(fsck, "PIECE_BYTES", 100)
    harness.publish(count=10, size=50)
    harness.sync()
    content = harness.chunk_path().read_bytes()
    wrong = Bad(
        0,
        CHUNK_HEADER_BYTES,
        len(content) - CHUNK_HEADER_BYTES,
        0,
        10,
        "its checksum does not match",
    )
    assert wrong.bytes > 6 * damage.PIECE_BYTES
    assert keep_bytes(harness.files, harness.directory, wrong, 5) == wrong.bytes
    kept = harness.path(wrong.name).read_bytes()
    head = decode_bad_head(kept)
    assert head is not None
    assert kept[BAD_HEAD_BYTES:] == content[CHUNK_HEADER_BYTES:]
    assert head.crc == crc32c(content[CHUNK_HEADER_BYTES:])
    harness.abandon_cleanly()

    def doubted() -> bool:
        report = fsck.check_topic(Files(), harness.directory, IDENTITY, 9_000, repair=False)
        return any(
            "its head or its content is damaged" in finding.text for finding in report.findings
        )

    assert not doubted()
    harness.path(wrong.name).write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    assert doubted()


def test_lost_offsets_below_the_logs_start_are_no_longer_reported(topic: StorageHarness) -> None:
    topic.abandon_cleanly()
    topic.chunk_path(3).unlink()
    topic.files.reset()
    assert topic.open().report.holes == ((3, 3),)
    job = topic.log.reader.damage.take(7_000)
    assert job is not None
    job()
    topic.abandon_cleanly()
    topic.chunk_path(0).unlink()
    topic.files.reset()
    topic.open()
    assert topic.log.chunks == (6,)
    assert topic.log.holes == ()
    assert topic.log.reader.damage.messages == 0


def test_readable_pages_beside_an_unreadable_one_are_set_aside(harness: StorageHarness) -> None:
    harness.abandon_cleanly()
    harness.options = replace(harness.options, chunk_bytes=1 << 20)
    harness.open()
    harness.publish(count=1, size=20_000)
    harness.sync()
    path = harness.chunk_path()
    content = path.read_bytes()
    wrong = Bad(0, CHUNK_HEADER_BYTES, len(content) - CHUNK_HEADER_BYTES, 0, 1, "by plan")
    at = CHUNK_HEADER_BYTES + 2 * PAGE_BYTES + 5
    harness.files.unreadable = (path.name, at)
    keep_bytes(harness.files, harness.directory, wrong, 5)
    kept = content[:CHUNK_HEADER_BYTES] + harness.path(wrong.name).read_bytes()[BAD_HEAD_BYTES:]
    page = at - 5
    assert kept == content[:page] + bytes(PAGE_BYTES) + content[page + PAGE_BYTES :]


@pytest.mark.parametrize(
    ("count", "end", "found"),
    [
        (2, 12, 10),
        (3, 12, 7),
        (5, 12, 5),
        (6, 12, 2),
        (7, 12, 1),
        (99, 12, 0),
        (1, 7, 6),
        (2, 3, 1),
    ],
)
def test_the_newest_messages_are_counted_without_those_that_are_lost(
    harness: StorageHarness, count: int, end: int, found: int
) -> None:
    """The messages are 0 to 12, and 3, 4, 8 and 9 are lost."""
    harness.publish(blocks=4, count=3)
    harness.sync()
    for hole in (Hole(3, 2), Hole(8, 2)):
        harness.log.reader.damage.add(hole)
    assert harness.log.reader.newest(count, end) == found
