"""Tests of fsck and backups of a topic whose old chunks are only in the bucket."""

from __future__ import annotations

from support.archive_harness import ArchiveHarness, fill
from support.storage_harness import IDENTITY

from zsq.storage.checks.backup import sync_log
from zsq.storage.checks.fsck import DAMAGE, NOTE, TopicReport, check_topic
from zsq.storage.log.log_format import chunk_name
from zsq.storage.state.state import StateBatch


def checked(archive: ArchiveHarness) -> TopicReport:
    archive.opened.close()
    archive.store = None
    found = check_topic(archive.files, archive.directory, IDENTITY, 1)
    archive.open()
    return found


def test_fsck_finds_no_damage_if_the_bucket_has_the_old_chunks(archive: ArchiveHarness) -> None:
    fill(archive)
    archive.archive(keep=2)
    kept = archive.log.chunks[-2]
    report = checked(archive)
    assert not report.damaged
    (note,) = report.findings
    assert (note.level, report.chunks, report.start) == (NOTE, 2, kept)
    assert f"from offset 0 to {kept} are only in the bucket; they are not checked" in note.text


def test_fsck_names_what_neither_the_disk_nor_the_bucket_has(archive: ArchiveHarness) -> None:
    fill(archive)
    archive.archive(keep=2)
    chunks = archive.log.chunks
    archive.opened.state.commit(StateBatch(archived_gone=[chunks[3]]))
    report = checked(archive)
    (damage,) = report.damaged
    assert damage.level == DAMAGE
    assert (damage.first_offset, damage.count) == (chunks[3], chunks[4] - chunks[3])


def test_fsck_knows_a_chunk_in_the_middle_that_only_the_bucket_has(archive: ArchiveHarness) -> None:
    fill(archive)
    archive.archive(keep=6)
    chunks = archive.log.chunks
    archive.files.remove(f"{archive.directory}/{chunk_name(chunks[2])}")
    report = checked(archive)
    assert not report.damaged
    (note,) = report.findings
    assert f"from offset {chunks[2]} to {chunks[3]} are only in the bucket" in note.text
    archive.opened.state.commit(StateBatch(archived_gone=[chunks[2]]))
    assert checked(archive).damaged


def test_a_backup_takes_the_files_of_the_disk_and_misses_none(archive: ArchiveHarness) -> None:
    fill(archive)
    archive.archive(keep=2)
    taken = sync_log(archive.files, archive.directory, archive.log)
    assert taken.bases == archive.log.chunks[-2:]
    assert taken.start == 0
