"""zsq backup: copy a data directory while its broker runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..output import json_option, say, tell
from ..quantities import Number, SizeType

if TYPE_CHECKING:
    from ....storage.checks.backup import Manifest


@click.command()
@click.argument("data_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("backup", type=click.Path(path_type=Path))
@click.option(
    "--since",
    metavar="BACKUP",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help=(
        "An older backup in the same directory. Its finished log files are linked instead of "
        "copied."
    ),
)
@click.option("--without", metavar="TOPIC", multiple=True, help="Leave out this topic. Repeatable.")
@click.option(
    "--rate",
    type=SizeType(),
    metavar="SIZE",
    help="Limit of bytes copied per second, such as 50MiB.",
)
@click.option(
    "--timeout",
    type=Number(min=0.05, max=3600),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds to wait for the answer of each topic.",
)
@json_option
def backup(
    data_dir: Path,
    backup: Path,
    since: Path | None,
    without: tuple[str, ...],
    rate: int | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Copy DATA_DIR to the new directory BACKUP. Its broker may run and be busy.

    Everything that was acknowledged before the command started is in the backup. BACKUP gets its
    name when it is complete and on disk.
    """
    from ....storage.files import Files
    from ...backup import BackupPlan, back_up
    from ..progress import bar

    with bar("copying", None) as advance:
        manifest = back_up(
            Files(),
            BackupPlan(data_dir, backup, str(since or ""), without, rate or 0, timeout, advance),
        )
    if as_json:
        tell(summary(manifest, backup))
        return
    for line in lines(manifest, backup):
        say(line)


WARNING = """\
The data is as old as the backup. Messages published later are missing, channels
deliver again what they finished later, and new messages get the offsets of the
missing ones. Readers that store offsets must start again, Spark with a new
checkpoint."""


def lines(manifest: Manifest, backup: Path) -> list[str]:
    linked = sum(row.bytes for row in manifest.files if row.linked)
    seconds = (manifest.ended_ns - manifest.began_ns) / 1e9
    how = "of a running broker" if manifest.live else "of a stopped broker"
    more = f", {linked:,} bytes of them as hard links" if linked else ""
    texts = [f"{backup}: {counted(manifest)}{more}, {how}, in {seconds:.1f} s"]
    for name, topic in sorted(manifest.topics.items()):
        if topic.get("missing_chunks"):
            missing = topic["missing_chunks"]
            texts.append(
                f"warning: topic {name}: {missing} of its log files are missing in the data "
                "directory; see zsq stats"
            )
        if damaged := topic.get("damaged_messages"):
            texts.append(
                f"warning: topic {name}: {damaged:,} of its messages are damaged, and so they are "
                "in the backup; see zsq fsck"
            )
    return texts


def counted(manifest: Manifest) -> str:
    return f"{len(manifest.topics)} topics, {len(manifest.files)} files, {manifest.bytes:,} bytes"


def summary(manifest: Manifest, folder: Path) -> dict[str, object]:
    facts = {
        name: getattr(manifest, name)
        for name in ("source", "began_ns", "ended_ns", "live", "topics", "left_out", "bytes")
    }
    return {
        "folder": str(folder),
        **facts,
        "files": len(manifest.files),
        "linked_bytes": sum(r.bytes for r in manifest.files if r.linked),
    }


def time_text(time_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ns / 1e9))
