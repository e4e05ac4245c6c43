"""zsq restore: create a data directory from a backup, or from a broker's bucket."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..output import Grid, json_option, say, tell, wide_console
from ..quantities import TopicPosition
from .backup import WARNING, counted, summary, time_text

if TYPE_CHECKING:
    from ....storage.bucket.shipping.restore import RestoredTopic
    from ...restore import RestoredBroker


@click.command()
@click.argument("source", metavar="BACKUP|URL")
@click.argument("target", metavar="DATA_DIR", required=False, type=click.Path(path_type=Path))
@click.option(
    "--data-dir", type=click.Path(path_type=Path), metavar="DIR", help="The same as DATA_DIR."
)
@click.option(
    "--check",
    is_flag=True,
    help="Only read and check everything that a restore needs. No directory is left.",
)
@click.option(
    "--eager",
    is_flag=True,
    help="From a bucket: fetch the archived log files too. By default they are read when needed.",
)
@click.option(
    "--at",
    type=TopicPosition(),
    metavar="TIME",
    help="From a bucket: the time to restore, such as 2026-11-20T10:30, or 15m for 15 minutes ago.",
)
@click.option(
    "--without",
    metavar="TOPIC",
    multiple=True,
    help="From a bucket: leave out this topic. Repeatable.",
)
@json_option
def restore(
    source: str, target: Path | None, data_dir: Path | None, check: bool, eager: bool, at: object,
    without: tuple[str, ...], as_json: bool,
) -> int:  # fmt: skip
    """Create the new data directory DATA_DIR from BACKUP, or from a bucket, and check every byte.

    URL is the bucket of a broker that runs with --bucket, such as s3://BUCKET/PREFIX. The new
    directory has everything up to the newest tick that the broker has shipped.

    Exit codes: 0 done (with --check: it is complete), 1 damaged.
    """
    if target is not None and data_dir is not None:
        raise click.UsageError("give the new data directory only once")
    target = target or data_dir
    if check == (target is not None):
        raise click.UsageError("give either DATA_DIR, the new data directory, or --check")
    if "://" in source:
        return _from_bucket(source, target, _time_ns(at), eager, without, as_json)
    if eager or at is not None or without:
        raise click.UsageError("--eager, --at and --without work only with the URL of a bucket")
    folder = click.Path(exists=True, file_okay=False, path_type=Path)
    return _from_backup(folder.convert(source, None, None), target, as_json)


def _time_ns(at: object) -> int | None:
    if at is None:
        return None
    if not isinstance(at, datetime):
        raise click.BadParameter("it must be a time, such as 2026-11-20T10:30", param_hint="--at")
    return int(at.timestamp() * 1_000_000) * 1_000


def _from_backup(backup: Path, data_dir: Path | None, as_json: bool) -> int:
    from ....storage.files import Files
    from ...backup import check as check_backup
    from ...backup import restore as restore_backup
    from ..progress import bar

    problems: list[str] = []
    with bar("reading", None) as advance:
        if data_dir is None:
            manifest, problems = check_backup(Files(), str(backup), advance)
        else:
            manifest = restore_backup(Files(), str(backup), data_dir, advance)
    if as_json:
        tell(summary(manifest, data_dir or backup) | {"problems": problems})
    elif data_dir is None:
        for problem in problems:
            say(f"damage: {problem}")
        say(
            f"{backup}: {f'{len(problems)} files are DAMAGED' if problems else 'complete'} "
            f"({counted(manifest)})"
        )
    else:
        say(f"restored {data_dir} as of {time_text(manifest.began_ns)} ({counted(manifest)})")
        say(WARNING)
    return 1 if problems else 0


def _from_bucket(
    url: str, data_dir: Path | None, at_ns: int | None, eager: bool, without: tuple[str, ...],
    as_json: bool,
) -> int:  # fmt: skip
    from ....storage.files import Files
    from ...restore import RestorePlan
    from ...restore import check as check_bucket
    from ...restore import restore as restore_bucket
    from ..progress import bar

    with bar("reading", None) as advance:
        plan = RestorePlan(url, at_ns, eager, without, advance)
        if data_dir is None:
            restored = check_bucket(Files(), plan)
        else:
            restored = restore_bucket(Files(), plan, data_dir)
    if as_json:
        tell(as_object(restored, data_dir))
    else:
        grid = Grid(
            "topics", ("topic",),
            ("end", "in log files", "in the bucket", "delayed", "channels", "not in the bucket"),
        )  # fmt: skip
        for topic in restored.topics:
            grid.add(*_cells(topic))
        console = wide_console()
        for table in grid.tables(console.width):
            console.print(table)
        for line in lines(restored, data_dir, time.time_ns()):
            say(line)
    return 1 if restored.damaged else 0


def _cells(topic: RestoredTopic) -> tuple[str, ...]:
    numbers = (
        topic.end, topic.log_messages, topic.archived_messages, topic.delayed_messages,
        topic.channels,
    )  # fmt: skip
    gaps = ", ".join(f"{gap.first_offset} to {gap.next_offset - 1}" for gap in topic.gaps)
    return (topic.name, *(f"{number:,}" for number in numbers), gaps)


def lines(restored: RestoredBroker, data_dir: Path | None, now_ns: int) -> list[str]:
    """Return what follows the table: what is missing, and the next step."""
    age_s = max(0, now_ns - restored.time_ns) / 1e9
    texts = [f"damage: {problem}" for problem in restored.problems]
    texts += [
        f"damage: topic {topic.name}: {problem}"
        for topic in restored.topics
        for problem in topic.problems
    ]
    texts += [f"topic {name} is left out: {why}" for name, why in restored.left_out.items()]
    if any(topic.gaps for topic in restored.topics):
        texts.append(
            'Offsets under "not in the bucket" were reserved or given out before the restore. They '
            "are not used again, and readers step over them."
        )
    dropped = sum(topic.stages_dropped for topic in restored.topics)
    if dropped:
        texts.append(f"{dropped} staged writes that were not committed are gone. Start them again.")
    texts.append(
        f"newest tick: number {restored.number}, {time_text(restored.time_ns)}, {age_s:,.1f} s old"
    )
    texts.append(
        f"read {restored.received_bytes / (1 << 20):,.1f} MiB in {restored.requests:,} requests"
    )
    if data_dir is None:
        texts.append(f"{restored.url}: {'DAMAGED' if restored.damaged else 'complete'}")
        return texts
    texts.append(f"restored {data_dir}")
    if restored.may_continue:
        texts.append(
            f"next: zsq serve --data-dir {data_dir} --bucket {restored.url} (as long as no other "
            "copy has continued there)"
        )
    else:
        texts.append(
            f"This is an earlier state: {restored.url} goes on behind it, so this directory must "
            f"not continue there. next: zsq serve --data-dir {data_dir} --bucket ANOTHER_URL; "
            "archived messages are only in the old bucket, except with --eager"
        )
    return texts


def as_object(restored: RestoredBroker, data_dir: Path | None) -> dict[str, object]:
    return {
        "url": restored.url,
        "folder": str(data_dir) if data_dir is not None else None,
        "tick": restored.number,
        "time_ns": restored.time_ns,
        "may_continue": restored.may_continue,
        "received_bytes": restored.received_bytes,
        "requests": restored.requests,
        "clean": not restored.damaged,
        "problems": restored.problems,
        "left_out": restored.left_out,
        "topics": [
            {
                "name": topic.name, "uuid": topic.uuid, "start": topic.start, "end": topic.end,
                "log_messages": topic.log_messages, "archived_messages": topic.archived_messages,
                "delayed_messages": topic.delayed_messages, "channels": topic.channels,
                "stages_dropped": topic.stages_dropped,
                "gaps": [[gap.first_offset, gap.next_offset] for gap in topic.gaps],
                "problems": topic.problems,
            }
            for topic in restored.topics
        ],
    }  # fmt: skip
