"""Tests of gaps: offsets that a restore from a bucket has left out. They are no lost messages."""

from __future__ import annotations

from support.storage_harness import IDENTITY, StorageHarness

from zsq.storage.checks.fsck import NOTE, check_topic
from zsq.storage.directory.store import TopicIdentity, open_store
from zsq.storage.files import Files
from zsq.storage.log.chunk import create_chunk
from zsq.storage.log.damage import (
    GAP,
    Hole,
    decode_bad_head,
    gap_before,
    gaps_text,
    keep_bytes,
)
from zsq.storage.log.index import INDEX_EVERY_BYTES
from zsq.storage.log.log_format import ChunkHeader, chunk_name, encode_chunk_header
from zsq.storage.log.removal import remove_below

BEHIND = 1_000


def with_gap(harness: StorageHarness) -> Hole:
    """Close the topic, and let it continue at BEHIND."""
    harness.publish(blocks=4)
    harness.sync()
    end = harness.log.end
    harness.log.roll(harness.now_ns)
    harness.abandon_cleanly()
    folder = harness.directory
    Files().remove(f"{folder}/{chunk_name(end)}")
    header = ChunkHeader(BEHIND, 0, 5, IDENTITY.uuid_bytes)
    create_chunk(Files(), folder, header, encode_chunk_header(header), INDEX_EVERY_BYTES).close()
    bad = gap_before(BEHIND, end)
    keep_bytes(Files(), folder, bad, 1)
    harness.files.reset()
    return bad.hole


def test_many_gaps_have_one_sentence_which_does_not_read_like_a_loss() -> None:
    gaps = [Hole(first, 10) for first in range(100, 800, 100)]
    assert gaps_text(gaps[:1]).startswith("no damage: offsets 100 to 109 were skipped when")
    assert gaps_text(gaps).startswith(
        "no damage: 7 ranges of offsets, the last one 700 to 709, were skipped when"
    )
    assert gaps_text([]) == ""


def test_a_gap_is_told_once_and_never_counted_as_lost(harness: StorageHarness) -> None:
    gap = with_gap(harness)
    report = harness.open().report
    text = f"{harness.directory}: {gaps_text([gap])}"
    assert text.endswith("readers step over them")
    assert not report.alarms, "a broker that was restored is healthy"
    assert text in report.notes
    assert report.gaps == (gap,)
    assert "lost" not in report.sentence()
    assert harness.log.end == BEHIND
    assert harness.log.reader.damage.messages == 0
    harness.publish()
    harness.sync()
    report = harness.restart().report
    assert not report.alarms
    assert text in report.notes
    assert harness.check() == [0, 1, 2, 3, 4]


def test_readers_step_over_a_gap(harness: StorageHarness) -> None:
    gap = with_gap(harness)
    harness.open()
    assert harness.log.skip(gap.first_offset + 5) == BEHIND
    harness.publish()
    harness.sync()
    (block, *_) = harness.log.read(gap.first_offset, 4096, harness.log.synced_end)
    assert block.first_offset == BEHIND
    assert harness.log.reader.newest(4, harness.log.end) == gap.first_offset - 1
    assert harness.crash().log.holes == (gap,)
    assert not harness.damage


def test_fsck_knows_a_gap(harness: StorageHarness) -> None:
    gap = with_gap(harness)
    report = check_topic(Files(), harness.directory, IDENTITY, 1)
    assert not report.damaged
    assert [one.text for one in report.findings if one.level == NOTE] == [gaps_text([gap])]


def test_a_chunk_that_is_missing_before_a_gap_is_damage(harness: StorageHarness) -> None:
    with_gap(harness)
    Files().remove(f"{harness.directory}/{chunk_name(0)}")
    harness.files.reset()
    report = check_topic(Files(), harness.directory, IDENTITY, 1)
    assert [(one.first_offset, one.count) for one in report.damaged] == [(0, BEHIND)]
    store = open_store(
        Files(), harness.directory, harness.options, TopicIdentity(IDENTITY.name, IDENTITY.uuid)
    )
    assert store.log.end == BEHIND
    store.close()


def test_the_note_of_a_gap_goes_with_the_chunk_after_it(harness: StorageHarness) -> None:
    gap = with_gap(harness)
    name = gap_before(BEHIND, gap.first_offset).name
    head = decode_bad_head((harness.path(name)).read_bytes())
    assert head is not None
    assert head.bad.kind == GAP
    remove_below(Files(), harness.directory, BEHIND)
    assert harness.path(name).exists()
    harness.files.reset()
    harness.open()
    while len(harness.log.chunks) < 3:
        harness.publish()
    harness.sync()
    remove_below(Files(), harness.directory, harness.log.chunks[-1])
    assert not harness.path(name).exists()
