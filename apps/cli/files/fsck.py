"""zsq fsck: check a data directory or a bucket, and repair what can be repaired."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ..output import say, tell
from ..progress import bar

if TYPE_CHECKING:
    from ....storage.checks.fsck import Finding, TopicReport

# Each log file is read twice: for its blocks, and for the checksum of the whole file.
PASSES: Final = 2


@click.command()
@click.argument("place", metavar="DATA_DIR|URL")
@click.argument("topic", required=False)
@click.option(
    "--repair",
    is_flag=True,
    help="Repair what can be repaired. Nothing is removed unless a copy of it exists.",
)
@click.option("--json", "as_json", is_flag=True, help="Print all findings as one JSON object.")
def fsck(place: str, topic: str | None, repair: bool, as_json: bool) -> int:
    """Check every file in DATA_DIR of a stopped broker, or of one TOPIC in it.

    With the URL of a bucket, check all objects that its broker has archived and shipped there.
    The broker may run meanwhile. Every object is read, and nothing is changed.

    Exit codes: 0 nothing is damaged (with --repair: any more), 1 something is, or it could not be
    checked. Notes are harmless: they name what is known and kept, or what the next start does
    anyway.
    """
    if "://" in place:
        if repair:
            raise click.UsageError("--repair works only with a data directory")
        return _check_bucket(place, topic or "", as_json)
    folder = click.Path(exists=True, file_okay=False, path_type=Path)
    data_dir: Path = folder.convert(place, None, None)
    return _check_data_dir(data_dir, topic, repair, as_json)


def _check_bucket(text: str, topic: str, as_json: bool) -> int:
    from ....storage.bucket.archive.bucket_check import DAMAGE, check_bucket
    from ....storage.bucket.bucket_url import parse_bucket_url
    from ....storage.bucket.object_store import open_bucket
    from ....storage.bucket.shipping.ship_check import check_log
    from ....storage.errors import StorageError

    url = parse_bucket_url(text)
    try:
        bucket = open_bucket(url)
        findings, reports = check_bucket(bucket, topic)
        shipped = check_log(bucket)
    except StorageError as error:
        say(f"{url}: it cannot be checked: {error}")
        return 1
    findings += shipped.findings
    damaged = sum(row.level == DAMAGE for row in findings) + sum(row.damaged for row in reports)
    if as_json:
        tell(
            {
                "bucket": str(url),
                "clean": not damaged,
                "findings": [row._asdict() for row in findings],
                "log": {
                    "ticks": shipped.ticks, "bytes": shipped.bytes, "topics": shipped.topics, "first": shipped.first,
                    "last": shipped.last, "time_ns": shipped.time_ns, "clean": not shipped.damaged,
                },
                "topics": [
                    {
                        "name": row.name, "uuid": row.uuid, "clean": not row.damaged, "chunks": row.chunks, "bytes": row.bytes,
                        "start": row.start, "end": row.end, "findings": [each._asdict() for each in row.findings],
                    }
                    for row in reports
                ],
            }
        )  # fmt: skip
        return 1 if damaged else 0
    for finding in findings:
        say(f"{finding.level}: {finding.name}: {finding.text}")
    for report in reports:
        state = f"{report.damaged} DAMAGED" if report.damaged else "clean"
        extent = f"{report.chunks} chunks, offsets {report.start} to {report.end}"
        say(f"{report.name}: {state} ({extent}, {report.bytes:,} bytes)")
        for finding in report.findings:
            say(f"  {finding.level}: {finding.name}: {finding.text}")
    if shipped.ticks:
        state = f"{shipped.damaged} DAMAGED" if shipped.damaged else "clean"
        newest = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(shipped.time_ns / 1e9))
        say(
            f"log of ticks: {state} ({shipped.ticks} ticks, numbers {shipped.first} to "
            f"{shipped.last}, {shipped.topics} topics, {shipped.bytes:,} bytes, newest {newest})"
        )
    elif not reports:
        say("no topics")
    return 1 if damaged else 0


def _check_data_dir(data_dir: Path, topic: str | None, repair: bool, as_json: bool) -> int:
    from ....actors.supervisor.data_dir import check_data_dir, locked_data_dir
    from ..progress import bytes_below
    from .counted_files import CountedFiles

    with bar("checking", PASSES * bytes_below(data_dir / "topics", "*/*.chunk")) as advance:
        files = CountedFiles(read=advance)
        with locked_data_dir(files, data_dir, write=repair):
            findings, reports = check_data_dir(
                files, data_dir, topic, time.time_ns(), repair=repair
            )
    damaged = len(
        [each for each in findings if each.level == "damage" and not each.repaired]
    ) + sum(len(report.damaged) for report in reports)
    if as_json:
        shown = {
            "data_dir": str(data_dir),
            "clean": not damaged,
            "findings": [_as_object(finding) for finding in findings],
        }
        tell(shown | {"topics": [_topic_object(report) for report in reports]})
    else:
        for line in lines(findings, reports, data_dir):
            say(line)
    return 1 if damaged else 0


def lines(findings: list[Finding], reports: list[TopicReport], data_dir: Path) -> list[str]:
    """Return the report for users: a line for each topic, and one for each finding below it."""
    texts = [_line(finding, data_dir) for finding in findings]
    for report in reports:
        left = len(report.damaged)
        mended = sum(1 for finding in report.findings if finding.repaired)
        state = f"{left} DAMAGED" if left else "clean" if not mended else "repaired"
        extent = (
            f"{report.chunks} chunks, {report.blocks:,} blocks, {report.messages:,} messages, "
            f"{report.bytes:,} bytes"
        )
        texts.append(f"{report.name}: {state} ({extent})")
        texts += [f"  {_line(finding, data_dir)}" for finding in report.findings]
    return texts or ["no topics"]


def _line(finding: Finding, data_dir: Path) -> str:
    path = finding.path.removeprefix(f"{data_dir}/").rstrip("/")
    lost = (
        f" [offsets {finding.first_offset} to {finding.first_offset + finding.count - 1}]"
        if finding.count
        else ""
    )
    done = f" -> {finding.repaired}" if finding.repaired else ""
    return f"{finding.level}: {path}: {finding.text}{lost}{done}"


def _as_object(finding: Finding) -> Mapping[str, object]:
    shown: dict[str, object] = {"level": finding.level, "path": finding.path, "text": finding.text}
    if finding.count:
        shown |= {"first_offset": finding.first_offset, "count": finding.count}
    return shown | {
        "repairable": finding.repair is not None or finding.needs_recovery,
        "repaired": finding.repaired or None,
    }


def _topic_object(report: TopicReport) -> Mapping[str, object]:
    counts = {
        key: getattr(report, key)
        for key in ("chunks", "blocks", "messages", "bytes", "start", "end")
    }
    findings = [_as_object(finding) for finding in report.findings]
    return {
        "name": report.name,
        "directory": report.directory,
        "clean": not report.damaged,
        **counts,
        "findings": findings,
    }
