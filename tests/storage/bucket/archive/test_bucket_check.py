"""Tests of the check of a bucket: each object that is missing, short or changed is named, and what
a broker leaves in the middle of its work is no damage.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.archive_harness import SEGMENT_BYTES, ArchiveHarness, fill

from zsq.storage.bucket.archive.archive_format import (
    BROKER_NAME,
    Manifest,
    chunk_object,
    encode_manifest,
    index_object,
    manifest_object,
)
from zsq.storage.bucket.archive.bucket_check import DAMAGE, NOTE, ArchiveReport, check_bucket
from zsq.storage.bucket.archive.claim import claim
from zsq.storage.bucket.archive.manifests import Manifests
from zsq.storage.log.chunk import ArchivedChunk

BROKER = "b" * 32


def manifest(archive: ArchiveHarness, rows: list[ArchivedChunk]) -> Manifest:
    end = archive.log.synced_end
    return Manifest("clicks", archive.uuid, BROKER, "run", 1, 0, end, tuple(rows))


@pytest.fixture
def rows(archive: ArchiveHarness) -> list[ArchivedChunk]:
    fill(archive)
    claim(archive.bucket, BROKER, "", "c" * 32)
    found = archive.archive()
    Manifests(archive.bucket).write(manifest(archive, found))
    return found


def path_of(archive: ArchiveHarness, name: str) -> Path:
    return Path(f"{archive.bucket.url.folder}/{name}")


def report_of(archive: ArchiveHarness) -> ArchiveReport:
    _, (report,) = check_bucket(archive.bucket)
    return report


def test_a_whole_archive_is_clean(archive: ArchiveHarness, rows: list[ArchivedChunk]) -> None:
    read: list[int] = []
    findings, (report,) = check_bucket(archive.bucket, advance=read.append)
    assert [(one.level, BROKER in one.text) for one in findings] == [(NOTE, True)]
    assert (report.name, report.chunks, report.damaged) == ("clicks", len(rows), 0)
    assert not report.findings
    assert (report.start, report.end) == (0, rows[-1].next_offset)
    assert sum(read) == report.bytes == sum(row.size for row in rows)
    assert check_bucket(archive.bucket, "clicks")[1] == [report]
    assert check_bucket(archive.bucket, "other")[1] == []


@pytest.mark.parametrize(
    ("which", "change", "text"),
    [
        (chunk_object, "missing", "it is missing"),
        (index_object, "missing", "it is missing"),
        (chunk_object, "short", "bytes instead of"),
        (chunk_object, "flip", "the checksum of segments [1] is wrong"),
        (index_object, "flip", "the index object is damaged"),
    ],
)
def test_each_defect_of_an_object_is_named(
    archive: ArchiveHarness, rows: list[ArchivedChunk], which: object, change: str, text: str
) -> None:
    assert callable(which)
    row = rows[2]
    name = which(archive.uuid, row.base_offset, row.crc)
    path = path_of(archive, name)
    data = bytearray(path.read_bytes())
    if change == "missing":
        path.unlink()
    elif change == "short":
        path.write_bytes(data[:-1])
    else:
        data[SEGMENT_BYTES + 3 if which is chunk_object else len(data) - 1] ^= 1
        path.write_bytes(bytes(data))
    report = report_of(archive)
    (finding,) = report.findings
    assert (finding.level, finding.name, report.damaged) == (DAMAGE, name, 1)
    assert text in finding.text
    assert f"from offset {row.base_offset} to {row.next_offset}" in finding.text


def test_what_an_upload_or_a_removal_leaves_is_only_noted(
    archive: ArchiveHarness, rows: list[ArchivedChunk]
) -> None:
    archive.bucket.create(
        manifest_object(archive.uuid, 2), encode_manifest(manifest(archive, rows[1:]))
    )
    report = report_of(archive)
    assert not report.damaged
    assert sorted(finding.text.split(":")[0] for finding in report.findings) == [
        "1 older manifests",
        f"2 objects that the manifest does not list, such as "
        f"{chunk_object(archive.uuid, 0, rows[0].crc)}",
    ]


def test_a_gap_between_the_chunks_is_noted(
    archive: ArchiveHarness, rows: list[ArchivedChunk]
) -> None:
    found = manifest(archive, [*rows[:2], *rows[3:]])
    archive.bucket.create(manifest_object(archive.uuid, 2), encode_manifest(found))
    texts = [finding.text for finding in report_of(archive).findings]
    assert any(
        f"from offset {rows[2].base_offset} to {rows[3].base_offset} are not in the bucket" in text
        for text in texts
    )


def test_a_damaged_manifest_and_a_damaged_claim_are_damage(
    archive: ArchiveHarness, rows: list[ArchivedChunk]
) -> None:
    for name in (BROKER_NAME, manifest_object(archive.uuid, 1)):
        path_of(archive, name).write_text("{}")
    findings, (report,) = check_bucket(archive.bucket)
    assert [one.level for one in findings] == [DAMAGE]
    assert report.damaged == 1
    assert report.name == archive.uuid


def test_an_unused_prefix_has_no_topics(archive: ArchiveHarness) -> None:
    ((level, name, text),), reports = check_bucket(archive.bucket)
    assert (level, name, reports) == (NOTE, BROKER_NAME, [])
    assert "no broker has used this prefix" in text
