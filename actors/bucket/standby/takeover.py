"""Takeover: a standby's copy of a broker becomes the data directory of the primary.

    1  a takeover is created in the log of ticks. From now on nobody else is primary
    2  the directories of the topics are put right (`storage/bucket/shipping/restore.py`)
    3  they are moved to their places, and `shipping.json` is written
    4  `registry.json` is written. From now on this is a data directory like any other

If the process ends before step 4, the directory has no registry, but the mark `unfinished`, and the
standby begins again. Its identity, with which it has taken over, is in `standby.json` from its
start on.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ....storage.bucket.bucket import Bucket
from ....storage.bucket.shipping.follower import Follower
from ....storage.bucket.shipping.restore import RestoredTopic
from ....storage.bucket.shipping.ship_log import ShipLog, find_chain
from ....storage.bucket.shipping.tick_format import COPY_NAME, Copy, decode_copy, encode_copy
from ....storage.bucket.shipping.tick_reader import ShippedTopic
from ....storage.directory.store import TopicIdentity
from ....storage.errors import Damaged, ForeignDirectory, NewerVersion
from ....storage.files import Files
from ...settings.options import SHIP_RESERVE
from ...supervisor.topics.registry import REGISTRY_NAME
from ...supervisor.topics.registry_format import GIVEN, Content, TopicRow, decode, encode

log = logging.getLogger("zsq")

FOLLOWED: Final = "standby"  # the folder of the copy, in the data directory
TOPICS: Final = "topics"
UNFINISHED_NAME: Final = "unfinished"  # see `mark_unfinished`
COPY_BYTES_MAX: Final = 64 * 1024


class TakeoverFailed(Exception):
    """The log of ticks is taken over, but the broker cannot be restored. The text says why."""


class Chosen(NamedTuple):
    """The registry of the new primary, and its topics by uuid. `left_out` says why, by names."""

    content: Content
    topics: Mapping[str, TopicIdentity]
    left_out: Mapping[str, str]


def choose(registry: bytes, shipped: Mapping[str, ShippedTopic], archive: str, name: str) -> Chosen:
    """Return what the new primary has of this registry, in which `name` is its place."""
    content = decode(registry, name)
    kept: dict[str, TopicRow] = {}
    left_out: dict[str, str] = {}
    for topic, row in content.topics.items():
        shipped_topic = shipped.get(row.uuid)
        if row.retention.get("archive") == "off":
            left_out[topic] = "it is kept only on the disk (--archive off)"
        elif row.state == "deleting":
            left_out[topic] = "it was being deleted"
        elif shipped_topic is None or shipped_topic.begins < 0:
            left_out[topic] = "the bucket has nothing of it"
        else:
            row.state = GIVEN if row.state == GIVEN else "live"
            kept[topic] = row
    content.topics = kept
    content.bucket = archive
    topics = {
        row.uuid: TopicIdentity(topic, row.uuid, row.base_offset) for topic, row in kept.items()
    }
    return Chosen(content, topics, left_out)


def fence(
    bucket: Bucket, follower: Follower, copy: str, addresses: Sequence[str], lease_ms: int
) -> None:
    """Create a takeover behind the last tick that was applied.

    Raises `Fenced` if the log has gone on meanwhile, or another `BucketError`.
    """
    assert follower.last is not None
    archive = follower.last.index.archive
    copy_before = Copy(archive, copy, follower.number, follower.last.digest)
    ship_log = ShipLog(bucket, archive, copy, socket.gethostname(), addresses)
    ship_log.take_over(copy_before, time.time_ns(), SHIP_RESERVE, lease_ms, follower.recent)


def make_primary(
    files: Files, data_dir: Path, follower: Follower, copy: str, url: str
) -> list[RestoredTopic]:
    """Make the data directory of the new primary. Raises `TakeoverFailed` or an error of a file."""
    assert follower.last is not None
    archive = follower.last.index.archive
    try:
        chosen = choose(follower.registry, follower.shipped(), archive, f"{url}, its registry")
    except ForeignDirectory as error:
        raise TakeoverFailed(str(error)) from error
    for name, why in chosen.left_out.items():
        log.warning("topic %s is not taken over: %s", name, why)
    restored = follower.finish(chosen.topics)
    for topic in restored:
        if topic.problems:
            raise TakeoverFailed(f"topic {topic.name}: {'; '.join(topic.problems)}")
    follower.close()
    folder, topics = f"{data_dir}/{FOLLOWED}", f"{data_dir}/{TOPICS}"
    mark_unfinished(files, data_dir)
    files.make_folder(topics)
    for row in chosen.content.topics.values():
        files.rename(f"{folder}/{row.uuid}", f"{topics}/{row.number:06d}")
    files.sync_folder(topics)
    files.replace_file(f"{data_dir}/{COPY_NAME}", encode_copy(Copy(archive, copy)))
    files.replace_file(f"{data_dir}/{REGISTRY_NAME}", encode(chosen.content))
    files.remove_tree(folder)
    files.remove(f"{data_dir}/{UNFINISHED_NAME}")
    files.sync_folder(str(data_dir))
    return restored


def mark_unfinished(files: Files, data_dir: Path) -> None:
    """Note that a directory without a registry is worth nothing from now on.

    Without this mark, such a directory is a broker's that has lost its registry, and nobody may
    remove its topics.
    """
    path = f"{data_dir}/{UNFINISHED_NAME}"
    if not files.exists(path):
        files.write_file(path, b"")
        files.sync_folder(str(data_dir))


def read_copy(files: Files, path: str) -> Copy | None:
    """Return the identity in a file, or None if there is none, or a damaged one.

    Raises `NewerVersion`.
    """
    if not files.exists(path):
        return None
    try:
        return decode_copy(files.read_file(path, COPY_BYTES_MAX))
    except NewerVersion as error:
        raise error.at(path) from error
    except Damaged:
        return None


class Standing(NamedTuple):
    """The place of a data directory that was a primary, by the log of ticks.

    `is_newest` means that nobody has taken over since. `is_released` means that it has handed over,
    and that a standby should have taken over. `is_ended` means that the cluster has forgotten the
    broker, so that nobody may go on.
    """

    is_newest: bool
    is_released: bool
    who: str
    is_ended: bool = False


def standing(bucket: Bucket, copy: Copy) -> Standing:
    """Return whether a former primary may go on.

    Raises `BucketError`, or `ForeignDirectory` if the bucket has the log of another broker.
    """
    last = find_chain(bucket).last
    if last is None:
        return Standing(True, False, "")
    index = last.index
    if index.copy != copy.copy and index.archive != copy.archive:
        raise ForeignDirectory(
            f"{bucket.url} belongs to another broker (archive {index.archive[:8]}), and this data "
            f"directory was shipped to another bucket (archive {copy.archive[:8]}): check the URL, "
            "or use an empty directory"
        )
    who = f"copy {index.copy[:8]} on host {index.host}"
    return Standing(index.copy == copy.copy, index.is_released, who, index.is_ended)
