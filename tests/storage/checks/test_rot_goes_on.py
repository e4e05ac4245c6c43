"""Tests of new damage next to earlier damage or to an unfinished write: it is reported, kept and
remembered like any other damage.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from zsq.storage.checks.fsck import DAMAGE, NOTE, TopicReport, check_topic
from zsq.storage.delayed.delayed import DelayedStore
from zsq.storage.directory.store import StoreOptions
from zsq.storage.files import Files
from zsq.storage.log.damage import DAMAGED, bad_heads
from zsq.storage.log.log_format import CHUNK_HEADER_BYTES, index_name

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from tests.storage.conftest import StorageHarness

OPTIONS = StoreOptions(
    chunk_bytes=640, index_every_bytes=1, map_bytes=1 << 20, reserve_bytes=0, ring_bytes=0
)


@pytest.fixture
def topic(tmp_path: Path, harness: StorageHarness) -> StorageHarness:
    """Make a closed topic: five blocks in a sealed chunk, three in the last one."""
    (tmp_path / "topic").mkdir()
    made = type(harness)(tmp_path / "topic", OPTIONS)
    made.open()
    for _ in range(8):
        made.publish(count=1, size=1)
        made.sync()
    assert made.log.chunks == (0, 5)
    made.abandon_cleanly()
    return made


def rot(harness: StorageHarness, base: int, number: int) -> None:
    path = harness.chunk_path(base)
    data = path.read_bytes()
    size = int.from_bytes(data[CHUNK_HEADER_BYTES + 8 : CHUNK_HEADER_BYTES + 12], "little")
    harness.flip(path, (CHUNK_HEADER_BYTES + size * number + 66) * 8)


def look(harness: StorageHarness, *, repair: bool = False) -> TopicReport:
    from zsq.storage.directory.store import TopicIdentity

    found = check_topic(
        Files(),
        harness.directory,
        TopicIdentity("clicks", "00112233445566778899aabbccddeeff"),
        9_000,
        repair=repair,
    )
    harness.files.reset()
    return found


def test_a_tail_that_recovery_has_set_aside_is_known_to_fsck(topic: StorageHarness) -> None:
    rot(topic, 5, 2)
    assert [
        finding.level
        for finding in look(topic, repair=True).findings
        if "bytes at its end" in finding.text
    ] == [DAMAGE]
    again = look(topic)
    assert not again.damaged
    assert [finding.level for finding in again.findings if "known, and kept" in finding.text] == [
        NOTE
    ]
    assert again.end == 8
    topic.open()
    topic.publish()
    assert topic.log.chunks == (0, 5, 8)
    topic.abandon()


def test_new_damage_behind_known_damage_is_found_by_fsck(topic: StorageHarness) -> None:
    rot(topic, 0, 1)
    assert look(topic, repair=True).findings
    assert not look(topic).damaged
    rot(topic, 0, 2)
    assert look(topic).damaged
    assert not look(topic, repair=True).damaged
    assert not look(topic).damaged
    (head,) = bad_heads(Files(), topic.directory)
    assert (head.bad.first_offset, head.bad.count, head.bad.blocks) == (1, 2, 2)
    topic.open()
    assert topic.check(lost_max=2) == [0, 3, 4, 5, 6, 7]
    assert topic.damage == [], "known from the start on"
    topic.abandon()


def test_a_group_of_appended_and_adopted_parts_is_sound(group_case: StorageHarness) -> None:
    """The group's blocks are at the end of one chunk, and its mark (the record of its transaction)
    is in another one.
    """
    group_case.publish()
    a, b = group_case.stage("a", 1, blocks=1, count=1, size=1), group_case.stage("b", 1, blocks=5)
    group_case.seal(a, b)
    group_case.commit(1, a, b)
    group_case.publish()
    group_case.sync()
    assert len(group_case.log.chunks) == 3
    group_case.abandon_cleanly()
    assert look(group_case).findings == []
    mark = group_case.chunk_path(4)
    group_case.flip(mark, mark.read_bytes().index(b"version") * 8)
    assert any("has no mark" in finding.text for finding in look(group_case).damaged)


@pytest.mark.parametrize("size", [70, 81, 124, 130, 160])
def test_a_chunk_cut_within_its_header_is_mended_at_once(topic: StorageHarness, size: int) -> None:
    topic.replace(topic.chunk_path(0), topic.chunk_path(0).read_bytes()[:size])
    report = look(topic, repair=True)
    assert report.findings
    assert not report.damaged
    assert not look(topic).damaged
    topic.open()
    assert topic.check(lost_max=5) == [5, 6, 7]
    assert topic.damage == [], "known from the start on"
    assert topic.log.holes == ((0, 5),)
    topic.abandon()


def test_rot_where_an_unfinished_write_was_cut_off_is_told_and_kept(topic: StorageHarness) -> None:
    """The bytes of the unfinished write are in a `.bad` file. The new damage needs the same file
    name.
    """
    topic.open()
    topic.publish(count=1, size=1)
    topic.sent.pop()
    topic.offsets.pop(8)
    path = topic.chunk_path(5)
    topic.abandon()
    topic.files.reset()
    topic.replace(path, path.read_bytes()[:-9])
    assert topic.open().report.cut_bytes
    topic.publish(count=1, size=1)
    topic.sync()
    topic.abandon_cleanly()
    rot(topic, 5, 3)
    report = topic.open().report
    assert any("it is skipped" in alarm for alarm in report.alarms)
    assert report.holes == ((8, 1),)
    (head,) = bad_heads(Files(), topic.directory)
    assert (head.bad.kind, head.bad.first_offset, head.bad.count) == (DAMAGED, 8, 1)
    topic.abandon()


def test_rot_next_to_what_is_known_is_told(topic: StorageHarness) -> None:
    topic.path(index_name(5)).unlink()  # so that recovery reads the whole chunk
    rot(topic, 5, 0)
    assert any("it is skipped" in alarm for alarm in topic.open().report.alarms)
    topic.abandon()
    assert not topic.open().report.alarms, "once"
    topic.abandon()
    rot(topic, 5, 1)
    report = topic.open().report
    assert any("it is skipped" in alarm for alarm in report.alarms)
    assert report.holes == ((5, 2),)
    (head,) = bad_heads(Files(), topic.directory)
    assert (head.bad.first_offset, head.bad.count) == (5, 2)
    topic.abandon()
    assert not topic.open().report.alarms
    topic.abandon()


def test_bytes_cut_off_behind_known_damage_are_reported_too(topic: StorageHarness) -> None:
    """The record of the first damage must stay, because its bytes are stored nowhere else."""
    rot(topic, 0, 0)
    look(topic, repair=True)
    topic.replace(topic.chunk_path(0), topic.chunk_path(0).read_bytes()[: CHUNK_HEADER_BYTES + 4])
    report = look(topic, repair=True)
    assert any(
        "the blocks that followed are missing" in finding.text and finding.repaired
        for finding in report.findings
    )
    assert not look(topic).damaged
    heads = bad_heads(Files(), topic.directory)
    assert sorted((head.bad.first_offset, head.bad.count, head.kept > 0) for head in heads) == [
        (0, 1, True),
        (1, 4, False),
    ]
    topic.open()
    assert topic.check(lost_max=5) == [5, 6, 7]
    assert topic.damage == []
    topic.abandon()


def test_delayed_messages_of_another_topic_are_told(topic: StorageHarness) -> None:
    """A start of the topic is refused because of these messages."""
    topic.path("delayed").mkdir()
    DelayedStore(str(topic.path("delayed")), bytes(16), create=True).close()
    assert [finding.text for finding in look(topic).damaged] == [
        "it holds the delayed messages of another topic"
    ]


def test_a_damaged_mark_at_the_end_of_an_adopted_chunk_is_kept(group_case: StorageHarness) -> None:
    """A start does not move the mark to a `.bad` file: the chunk is sealed, and its messages are
    complete.
    """
    key = group_case.stage("a", 1, blocks=5)
    group_case.seal(key)
    group_case.commit(1, key)
    group_case.abandon_cleanly()
    path = group_case.chunk_path(0)
    group_case.flip(path, path.read_bytes().index(b"version") * 8)
    assert look(group_case, repair=True).findings
    assert not look(group_case).damaged
