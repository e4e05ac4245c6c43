"""Check of a bucket: compares its objects with what the manifests and the checksums say.

It reads every object once, and changes nothing. The broker may run meanwhile. What it adds or
removes after the lists were read is not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ...errors import Damaged, ForeignDirectory
from ...files import Files
from ...log.chunk import ArchivedChunk
from ..bucket import Bucket, ObjectMissing
from .archive_format import (
    BROKER_NAME,
    CHUNKS,
    MANIFESTS,
    Manifest,
    chunk_object,
    decode_claim,
    decode_manifest,
    index_object,
    manifest_number,
    manifest_object,
    objects_of,
    segments_of,
)
from .chunk_objects import ChunkObjects, SegmentDamaged

DAMAGE: Final = "damage"
NOTE: Final = "note"


class BucketFinding(NamedTuple):
    """A finding in one object. `name` is relative to the prefix."""

    level: str
    name: str
    text: str


@dataclass(slots=True)
class ArchiveReport:
    """The findings about one topic. `start` and `end` are the offsets that the bucket has."""

    name: str
    uuid: str
    chunks: int = 0
    bytes: int = 0
    start: int = 0
    end: int = 0
    findings: list[BucketFinding] = field(default_factory=list)

    @property
    def damaged(self) -> int:
        return sum(finding.level == DAMAGE for finding in self.findings)


def check_bucket(
    bucket: Bucket, topic: str = "", advance: Callable[[int], object] = lambda size: None
) -> tuple[list[BucketFinding], list[ArchiveReport]]:
    """Return the findings about the prefix, and a report for each topic, or for the named one.

    `advance` is called with the number of bytes that were checked. Raises `BucketError` if the
    store refuses or does not answer.
    """
    findings = _claim(bucket)
    names = sorted(bucket.names(f"{MANIFESTS}/"))
    objects = sorted(bucket.names(f"{CHUNKS}/"))
    reports = []
    uuids = dict.fromkeys(name.split("/")[1] for name in (*names, *objects))
    for uuid in uuids:
        report = _check_topic(bucket, uuid, names, objects, topic, advance)
        if report is not None:
            reports.append(report)
    return findings, sorted(reports, key=lambda report: report.name)


def _claim(bucket: Bucket) -> list[BucketFinding]:
    try:
        broker = decode_claim(bucket.read(BROKER_NAME)).broker
    except ObjectMissing:
        return [BucketFinding(NOTE, BROKER_NAME, "it is missing: no broker has used this prefix")]
    except (Damaged, ForeignDirectory) as error:
        return [BucketFinding(DAMAGE, BROKER_NAME, str(error))]
    return [
        BucketFinding(NOTE, BROKER_NAME, f"this prefix belongs to the broker with uuid {broker}")
    ]


def _check_topic(
    bucket: Bucket,
    uuid: str,
    names: Iterable[str],
    objects: Iterable[str],
    topic: str,
    advance: Callable[[int], object],
) -> ArchiveReport | None:
    chunk_names = [name for name in objects if name.startswith(f"{CHUNKS}/{uuid}/")]
    numbers = sorted(
        manifest_number(name) for name in names if name.startswith(f"{MANIFESTS}/{uuid}/")
    )
    report = ArchiveReport(uuid, uuid)
    manifest = _newest(bucket, uuid, numbers, report)
    if topic and topic not in (uuid, manifest.topic if manifest is not None else ""):
        return None
    if manifest is None:
        report.findings.append(
            BucketFinding(
                NOTE, f"{CHUNKS}/{uuid}/", f"{len(chunk_names)} objects that no manifest lists"
            )
        )
        return report
    report.name, report.chunks = manifest.topic, len(manifest.chunks)
    report.bytes = sum(row.size for row in manifest.chunks)
    if manifest.chunks:
        report.start, report.end = manifest.chunks[0].base_offset, manifest.chunks[-1].next_offset
    if numbers[:-1]:
        text = f"{len(numbers) - 1} older manifests: the broker has not finished a removal"
        report.findings.append(BucketFinding(NOTE, f"{MANIFESTS}/{uuid}/", text))
    _check_chunks(bucket, manifest, set(chunk_names), report, advance)
    unlisted = set(chunk_names) - objects_of(uuid, manifest.chunks)
    if unlisted:
        text = f"{len(unlisted)} objects that the manifest does not list, such as {min(unlisted)}"
        report.findings.append(
            BucketFinding(NOTE, f"{CHUNKS}/{uuid}/", f"{text}: the broker was adding or removing")
        )
    return report


def _newest(
    bucket: Bucket, uuid: str, numbers: list[int], report: ArchiveReport
) -> Manifest | None:
    if not numbers:
        return None
    name = manifest_object(uuid, numbers[-1])
    try:
        return decode_manifest(bucket.read(name))
    except ObjectMissing:
        return None  # the broker has replaced it meanwhile
    except (Damaged, ForeignDirectory) as error:
        report.findings.append(BucketFinding(DAMAGE, name, str(error)))
        return None


def _check_chunks(
    bucket: Bucket,
    manifest: Manifest,
    names: set[str],
    report: ArchiveReport,
    advance: Callable[[int], object],
) -> None:
    objects = ChunkObjects(Files(), bucket)
    before = None
    for row in manifest.chunks:
        if before is not None and before.next_offset != row.base_offset:
            text = (
                f"the messages from offset {before.next_offset} to {row.base_offset} are not in "
                "the bucket; their log file may be on the disk"
            )
            name = chunk_object(manifest.uuid, row.base_offset, row.crc)
            report.findings.append(BucketFinding(NOTE, name, text))
        before = row
        for name, text in _check_chunk(bucket, objects, manifest.uuid, row, names):
            lost = f"the messages from offset {row.base_offset} to {row.next_offset}"
            report.findings.append(BucketFinding(DAMAGE, name, f"{text}; it is needed for {lost}"))
        advance(row.size)


def _check_chunk(
    bucket: Bucket, objects: ChunkObjects, uuid: str, row: ArchivedChunk, names: set[str]
) -> list[tuple[str, str]]:
    """Return names and defects of the chunk's two objects."""
    name = chunk_object(uuid, row.base_offset, row.crc)
    index = index_object(uuid, row.base_offset, row.crc)
    if missing := [one for one in (name, index) if one not in names]:
        return [(one, "it is missing") for one in missing]
    try:
        objects.sums(uuid, row)
    except (SegmentDamaged, ForeignDirectory, ObjectMissing) as error:
        return [(index, str(error).removeprefix(f"{bucket.url}/{index}: "))]
    if (size := bucket.size(name)) != row.size:
        return [(name, f"it has {size} bytes instead of {row.size}")]
    bad = []
    for number in range(segments_of(row.size)):
        try:
            objects.read_segment(uuid, row, number)
        except (SegmentDamaged, ObjectMissing):
            bad.append(number)
    return [(name, f"the checksum of segments {bad} is wrong")] if bad else []
