"""Sleepers: topics that were asleep when the broker ended, and are asleep when it begins again.

A topic normally starts with the broker, because only its processes know its channels. A broker with
many topics that nobody uses would start hundreds of processes, only to end them after a minute. So
a broker that ends in an orderly way writes what it knows of its sleeping topics to
`DATA_DIR/asleep`: their channels and last pulses. The next broker takes this file, removes it, and
begins with these topics asleep.

    asleep = one line of JSON, then a line with its CRC-32C (8 hex digits)
    {"version": of zsq, "settings": "...",
     "topics": {NAME: {"uuid": "...", "files": digest, "topic": {}, "channels": {NAME: {}}}}}

It is only a shortcut. A topic starts as usual if anything differs from what the file says: the
version of ZSQ, a setting that may give the topic work, the topic's identity, or one of its files
(`files` is a digest of their names, sizes and times, because commands may change a topic while no
broker runs). After a kill there is no file.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from .... import __version__
from ....storage import documents
from ....storage.files import Files
from ....transport.checksum import crc32c
from ...settings.options import ServeOptions
from ...statistics.broker_view import GroupState, channel_pulse, storage_pulse, topic_pulse
from .registry_format import TopicRow
from .topic_group import TopicGroup

log = logging.getLogger("zsq")

NAME: Final = "asleep"
_LOCK_FILES: Final = ("lock", "lock.mdb")
# Counts of the processes that ended. After a restart they begin at 0, as those of other topics.
_COUNTS: Final = {"message_count": 0, "message_bytes": 0}
_STORAGE_COUNTS: Final = {"entered_bytes": 0, "refused_count": 0, "removed_bytes": 0}


@dataclass(frozen=True, slots=True)
class Sleeper:
    """A topic that was asleep: its last pulses."""

    uuid: str
    files: int
    topic: Mapping[str, Any]
    channels: Mapping[str, Mapping[str, Any]]


def sleepers_of(
    groups: Iterable[TopicGroup], folder: Callable[[TopicRow], str]
) -> dict[str, Sleeper]:
    """Return the topics that are asleep. `folder` gives the folder of a topic's row."""
    sleepers = {}
    for group in groups:
        if group.state is not GroupState.ASLEEP or group.row.state != "live":
            continue
        storage = {**storage_pulse(group), **_STORAGE_COUNTS}
        topic: dict[str, Any] = {**topic_pulse(group), **_COUNTS, "storage": storage}
        channels = {name: {**channel_pulse(group, name)} for name in group.channels}
        with contextlib.suppress(OSError):
            files = digest_of(folder(group.row))
            sleepers[group.name] = Sleeper(group.row.uuid, files, topic, channels)
    return sleepers


def digest_of(folder: str) -> int:
    """Return a digest of the names, sizes and times of a topic's files. Raises `OSError`."""
    lines = []
    for place, folders, names in os.walk(folder, onerror=_raise):
        folders.sort()
        for name in sorted(names):
            if name not in _LOCK_FILES:
                path = f"{place}/{name}"
                status = os.stat(path)
                lines.append(f"{path} {status.st_ino} {status.st_size} {status.st_mtime_ns}")
    return crc32c("\n".join(lines).encode())


def _raise(error: OSError) -> None:
    raise error


def save(
    files: Files, data_dir: Path, options: ServeOptions, sleepers: Mapping[str, Sleeper]
) -> None:
    """Write the file. A failure is only logged, because the topics then start as usual."""
    if not sleepers:
        return
    topics = {name: asdict(sleeper) for name, sleeper in sleepers.items()}
    document = {"version": __version__, "settings": _settings(options), "topics": topics}
    try:
        data = json.dumps(document).encode()
        files.replace_file(str(data_dir / NAME), b"%s\n%08x\n" % (data, crc32c(data)))
    except (OSError, TypeError, ValueError) as error:
        log.warning("all topics start with the next broker: %s", error)


def take(files: Files, data_dir: Path, options: ServeOptions) -> dict[str, Sleeper]:
    """Return the topics of the file, and remove it, so that it is never used twice."""
    path = str(data_dir / NAME)
    try:
        if not files.exists(path):
            return {}
        data = Path(path).read_bytes()
        files.remove(path)
        # After a power cut it must not come back: a topic may have changed, and its files may have
        # the same sizes and times as before.
        files.sync_folder(str(data_dir))
        line, _, rest = data.partition(b"\n")
        if rest != b"%08x\n" % crc32c(line):
            return {}
        document = documents.loads(line)
        if document["version"] != __version__ or document["settings"] != _settings(options):
            return {}
        sleepers = {str(name): Sleeper(**sleeper) for name, sleeper in document["topics"].items()}
        return {name: sleeper for name, sleeper in sleepers.items() if _is_whole(sleeper)}
    except (OSError, ValueError, TypeError, KeyError) as error:
        log.warning("all topics start, because %s cannot be used: %s", path, error)
        return {}


def _is_whole(sleeper: Sleeper) -> bool:
    """Return True if the topic's pulses have what a topic that sleeps needs."""
    storage = sleeper.topic.get("storage", {})
    needed = ("start", "head", "delayed_count", "delayed_next_due_ns")
    return all(type(storage.get(name)) is int for name in needed)


def _settings(options: ServeOptions) -> str:
    """Return the settings that may give work to a topic that nobody uses."""
    shipped = options.bucket_lag_s > 0
    return repr(
        (options.sleep_after_s > 0, options.bucket, shipped, sorted(options.retention.items()))
    )


def is_unchanged(sleeper: Sleeper, row: TopicRow, folder: str) -> bool:
    """Return True if the topic is as it was when the file was written."""
    try:
        return (
            row.state == "live" and row.uuid == sleeper.uuid and digest_of(folder) == sleeper.files
        )
    except OSError:
        return False
