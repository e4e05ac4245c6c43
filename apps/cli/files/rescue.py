"""zsq rescue: list, show and publish what a former primary had not shipped to its bucket."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ..options import confirm, with_broker, yes_option
from ..output import Grid, Heading, body_for, json_lines_option, say, tell_line, wide_console

if TYPE_CHECKING:
    from ....storage.bucket.shipping.rescue_file import Rescue
    from ....storage.files import Files
    from ...rescue import PublishedFile, PublishPlan

LIST_COLUMNS: Final = 80
PUBLISHED: Final = "published"
UNPUBLISHED: Final = "not published"


@dataclass(slots=True)
class RescueEntry:
    """A rescue file or a kept directory. `rescue` is None for a directory or a damaged file."""

    path: str
    topic: str
    state: str
    rescue: Rescue | None = None
    why: str = ""
    is_kept: bool = False

    @property
    def is_damaged(self) -> bool:
        return self.rescue is None and not self.is_kept


@click.command()
@click.argument("path", metavar="DATA_DIR|FILE", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--bucket",
    metavar="URL",
    help=(
        "First set aside what the bucket at URL does not have. The broker of DATA_DIR must be "
        "stopped. A standby does this by itself."
    ),
)
@click.option("--show", is_flag=True, help="Write the messages to standard output, one per line.")
@click.option("--publish", is_flag=True, help="Publish the messages to the broker at --url.")
@click.option("--discard", is_flag=True, help="Remove the files and kept directories.")
@click.option(
    "--topic", metavar="TOPIC", help="Only what was set aside of this topic. Default: all topics."
)
@click.option("--to", metavar="TOPIC", help="With --publish: publish to this topic instead.")
@click.option(
    "--uncertain",
    is_flag=True,
    help=(
        "With --publish: also publish messages that may be in the bucket, or that their writer "
        "commits again."
    ),
)
@yes_option
@json_lines_option
@with_broker
def rescue(
    path: Path, bucket: str | None, show: bool, publish: bool, discard: bool, topic: str | None,
    to: str | None, uncertain: bool, yes: bool, as_json: bool, url: str, timeout: float,
) -> int:  # fmt: skip
    """List what a former primary had stored and had not shipped when another broker took over.

    DATA_DIR is the data directory of the former primary. It became a standby, and has put these
    messages into files. FILE is one of the files. Nothing is published or removed by itself.

    --publish publishes each message once, in order, also if the command is killed and run again.
    What producers have sent again to the new primary is left out, as far as it can be recognized.

    Exit codes: 0 done, 1 a file is damaged, or the broker refused messages.
    """
    if show + publish + discard > 1:
        raise click.UsageError("give only one of --show, --publish and --discard")
    if (to is not None or uncertain) and not publish:
        raise click.UsageError("--to and --uncertain work only with --publish")
    from ....storage.files import Files
    from ....transport.names import check_name

    for name in (topic, to):
        if name is not None:
            check_name(name)
    files = Files()
    with _refusing():
        if bucket is not None:
            _set_aside(files, path, bucket)
        entries = [entry for entry in find(files, path) if topic in (None, entry.topic)]
        if show:
            return _show(files, entries, as_json)
        if publish:
            from ...rescue import PublishPlan

            plan = PublishPlan(url, to or "", timeout, uncertain)
            return _publish(files, entries, plan, as_json)
        if discard:
            return _discard(files, entries, yes)
    return _list(entries, path, as_json)


def _set_aside(files: Files, data_dir: Path, url: str) -> None:
    """Set aside what a stopped broker had not shipped."""
    from ....actors.bucket.standby.rescue import set_aside_broker
    from ....storage.bucket.bucket_url import parse_bucket_url
    from ....storage.bucket.object_store import open_bucket
    from ....storage.errors import Locked
    from ....transport.errors import E_IN_USE, Refused

    if not data_dir.is_dir():
        raise click.UsageError("--bucket needs a data directory")
    try:
        lock = files.lock(str(data_dir / "lock"))
    except Locked as error:
        raise Refused(
            E_IN_USE, f"{data_dir} is in use by another zsq (pid {error.pid}); stop that one first"
        ) from error
    try:
        kept = set_aside_broker(files, open_bucket(parse_bucket_url(url)), str(data_dir))
    finally:
        files.close(lock)
    say(f"zsq: {kept.sentence}", err=True)
    for topic in kept.topics:
        for problem in topic.problems:
            say(f"zsq: topic {topic.name}: {problem}", err=True)


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Convert errors of the storage layer."""
    from ....storage.bucket.bucket import BucketError
    from ....storage.errors import DiskFull, NewerVersion, StorageError
    from ....transport.errors import (
        E_BUCKET,
        E_CHECKSUM,
        E_DISK_FULL,
        E_UNSUPPORTED,
        Refused,
        ZsqError,
    )

    try:
        yield
    except DiskFull as error:
        raise Refused(E_DISK_FULL, str(error)) from error
    except BucketError as error:
        raise Refused(E_BUCKET, str(error)) from error
    except NewerVersion as error:
        raise ZsqError(E_UNSUPPORTED, str(error)) from error
    except StorageError as error:
        raise ZsqError(E_CHECKSUM, str(error)) from error


def find(files: Files, path: Path) -> list[RescueEntry]:
    """Return what was set aside in a data directory, or one file.

    Raises `StorageError` if a single file is not a rescue file.
    """
    from ....storage.bucket.shipping.rescue_file import SUFFIX, read_rescue
    from ....storage.bucket.shipping.set_aside import PUBLISHED as ENDING
    from ....storage.bucket.shipping.set_aside import Found, find_rescued, read_note
    from ....storage.errors import StorageError

    if path.is_dir():
        rescued = find_rescued(files, str(path))
    else:
        rescued = [Found(str(path), is_published=path.name.endswith(ENDING))]
        read_rescue(files, str(path))
    entries = []
    for file in rescued:
        name = Path(file.path).name
        if file.is_kept:
            entries.append(
                RescueEntry(file.path, name, "kept", why=read_note(files, file.path), is_kept=True)
            )
            continue
        topic = name.removesuffix(ENDING).removesuffix(SUFFIX)
        try:
            rescue = read_rescue(files, file.path)
        except StorageError as error:
            entries.append(RescueEntry(file.path, topic, "DAMAGED", why=str(error)))
            continue
        state = PUBLISHED if file.is_published else UNPUBLISHED
        entries.append(RescueEntry(file.path, rescue.head.topic, state, rescue))
    return entries


# The list


def _list(entries: Sequence[RescueEntry], path: Path, as_json: bool) -> int:
    if as_json:
        for entry in entries:
            tell_line(as_object(entry))
        return int(any(entry.is_damaged for entry in entries))
    if not entries:
        say(f"{path}: nothing is set aside")
        return 0
    grid = Grid(
        "set aside", ("topic",),
        (
            "messages", "offsets", "delayed", "uncertain", Heading("last stored", True),
            Heading("published", True),
        ),
    )  # fmt: skip
    for entry in entries:
        if entry.rescue is not None:
            grid.add(*_cells(entry, entry.rescue))
    console = wide_console(LIST_COLUMNS)
    for table in grid.tables(console.width):
        console.print(table)
    for head in {
        entry.rescue.head.takeover: entry.rescue.head for entry in entries if entry.rescue
    }.values():
        say(
            f"host {head.taken_by} took over on {_when(head.taken_ns)} (epoch {head.epoch}, number "
            f"{head.takeover} of the log)"
        )
    for entry in entries:
        if entry.is_kept:
            say(f"topic {entry.topic}: the directory is kept in {entry.path}: {entry.why}")
        elif entry.is_damaged:
            say(f"damage: {entry.why}")
    if any(entry.state == UNPUBLISHED for entry in entries):
        say(f"next: zsq rescue {path} --show, or --publish --url URL")
    return int(any(entry.is_damaged for entry in entries))


def _cells(entry: RescueEntry, rescue: Rescue) -> tuple[str, ...]:
    head, counts = rescue.head, rescue.counts
    offsets = f"{counts.first_offset} to {counts.last_offset}" if counts.first_offset >= 0 else ""
    return (
        head.topic, f"{counts.messages:,}", offsets, f"{counts.delayed:,}",
        f"{counts.uncertain:,}", _when(counts.last_ns), "yes" if entry.state == PUBLISHED else "no",
    )  # fmt: skip


def _when(time_ns: int) -> str:
    """Return the time in the user's time zone."""
    try:
        return datetime.fromtimestamp(time_ns / 1e9).astimezone().strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return f"@{time_ns / 1e9:g}"


def as_object(entry: RescueEntry) -> dict[str, Any]:
    shown: dict[str, Any] = {"path": entry.path, "topic": entry.topic, "state": entry.state}
    if entry.rescue is not None:
        shown |= asdict(entry.rescue.head) | asdict(entry.rescue.counts)
    if entry.why:
        shown["why"] = entry.why
    return shown


# Messages


def _show(files: Files, entries: Sequence[RescueEntry], as_json: bool) -> int:
    from ....storage.bucket.shipping.rescue_file import check_rescue, message_row, rescued_blocks

    out = sys.stdout.buffer
    shown = body_for(out)
    for entry in entries:
        if entry.is_kept:
            say(
                f"zsq: topic {entry.topic}: the directory is kept in {entry.path}: {entry.why}",
                err=True,
            )
            continue
        check_rescue(files, entry.path)
        for facts, messages in rescued_blocks(files, entry.path):
            more: dict[str, Any] = {"due_ns": facts.due_ns} if facts.due_ns else {}
            more |= {"certain": False, "why": facts.why} if facts.why else {}
            for message in messages:
                if as_json:
                    row = {"topic": entry.topic} | message_row(message) | more
                    out.write(json.dumps(row).encode() + b"\n")
                else:
                    out.write(shown(message.body) + b"\n")
        out.flush()
    return 0


def _publish(files: Files, entries: Sequence[RescueEntry], plan: PublishPlan, as_json: bool) -> int:
    from ...rescue import publish
    from ..progress import bar

    count = sum(entry.rescue.counts.messages for entry in entries if entry.rescue is not None)
    with bar("publishing", count, unit="messages") as advance:
        for entry in entries:
            if entry.is_kept:
                text = f"zsq: topic {entry.topic} is not published: {entry.path} has its directory"
                say(text, err=True)
                continue
            done = publish(files, entry.path, plan._replace(advance=advance))
            if as_json:
                tell_line(asdict(done))
            else:
                say(sentence(entry, done))
    return 0


def sentence(entry: RescueEntry, done: PublishedFile) -> str:
    """Return what was published of a file."""
    if entry.path == done.path and not done.messages and not done.delayed:
        text = f"topic {entry.topic}: published before"
    else:
        text = f"topic {entry.topic}: published {done.messages:,} messages to {done.topic}"
        if done.delayed:
            text += f", and {done.delayed:,} with their delay"
    if done.known:
        text += f"; {done.known:,} were sent again by their producers and are there already"
    if done.left:
        text += f"; {done.left:,} are uncertain and are left (--uncertain publishes them)"
    return text


def _discard(files: Files, entries: Sequence[RescueEntry], yes: bool) -> int:
    from ...rescue import PUBLISHING, plain_path

    if not entries:
        say("nothing is set aside")
        return 0
    left = [entry for entry in entries if entry.state != PUBLISHED]
    messages = sum(entry.rescue.counts.messages for entry in left if entry.rescue is not None)
    kept = sum(entry.is_kept for entry in entries)
    action = f"remove {len(entries)} rescue files and directories"
    if left:
        action += f", with {messages:,} messages that were not published"
        action += f" and {kept:,} directories of topics" if kept else ""
    confirm(action, yes)
    for entry in entries:
        if entry.is_kept:
            files.remove_tree(entry.path)
        else:
            state = plain_path(entry.path) + PUBLISHING
            for path in (entry.path, state):
                if files.exists(path):
                    files.remove(path)
        files.sync_folder(entry.path.rpartition("/")[0] or ".")
        say(f"removed {entry.path}")
    return 0
