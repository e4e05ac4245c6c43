"""Rescue: sets aside what a former primary had stored and had not shipped.

`storage/bucket/shipping/set_aside.py` does the work. This module tells it which topics there are.
"""

from __future__ import annotations

from typing import Final

from ....storage.bucket.bucket import Bucket
from ....storage.bucket.shipping.set_aside import FormerTopic, Rescued, set_aside
from ....storage.directory.store import TopicIdentity
from ....storage.files import Files
from ...supervisor.topics.registry import REGISTRY_NAME
from ...supervisor.topics.registry_format import AWAY, Content, decode

REGISTRY_BYTES_MAX: Final = 64 * 1024 * 1024


def set_aside_broker(files: Files, bucket: Bucket, data_dir: str) -> Rescued:
    """Set aside in `data_dir`/rescue what the bucket does not have of this former primary.

    Nobody may run on the data directory, and the caller holds its lock. After this, nothing else in
    the directory is needed any more. It may be repeated, also after a crash. Raises `StorageError`
    or `OSError`. Then nothing is lost, and nothing may be removed.
    """
    path = f"{data_dir}/{REGISTRY_NAME}"
    content = decode(files.read_file(path, REGISTRY_BYTES_MAX), path)
    return set_aside(files, bucket, data_dir, former_topics(files, data_dir, content), content.uuid)


def former_topics(files: Files, data_dir: str, content: Content) -> list[FormerTopic]:
    """Return the topics of a data directory, without those that were being deleted or moved.

    A directory that the registry does not name is left out, as at the start of a broker.
    """
    topics = []
    for name, row in sorted(content.topics.items()):
        directory = f"{data_dir}/topics/{row.number:06d}"
        # A `new` topic may have no directory yet. Then it has no message.
        is_gone = row.state == "new" and not files.exists(directory)
        if row.in_memory or row.state in ("deleting", *AWAY) or is_gone:
            continue
        is_off = row.retention.get("archive") == "off"
        identity = TopicIdentity(name, row.uuid, row.base_offset)
        topics.append(FormerTopic(identity, directory, is_off))
    return topics
