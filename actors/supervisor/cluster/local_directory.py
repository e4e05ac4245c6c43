"""Local directory: the topics with parts that a broker without a cluster has alone.

It is a directory as that of a cluster (`storage/cluster/directory.py`), with one broker that has
all parts. Its entries are not kept: the registry has the topics as they are now, so it stays small.
A change is durable when the registry is written, and only then seen.

When the broker is started with a cluster, each of these topics becomes one entry of the directory
in the bucket. It is taken out of the registry when that entry was read.

Rejected: a directory in a folder of the data directory, read by the archive actor as if it were a
bucket. It would need one more process, and a backup could copy it and the registry at different
times.
"""

from __future__ import annotations

import uuid
from typing import Protocol

from ....storage.cluster.directory import BrokerEntry, Directory, Entry
from ....transport.errors import from_wire
from ..topics.registry_format import LocalParts, TopicRow


class PartedRegistry(Protocol):
    """The part of the registry that has topics with parts."""

    uuid: str
    topics: dict[str, TopicRow]
    parted: LocalParts

    def note_parted(self, parted: LocalParts) -> None: ...


def directory_of(registry: PartedRegistry) -> Directory:
    """Return the directory that the registry has. Raises the error of an entry that is wrong."""
    directory = Directory()
    # Clients find its parts at the address of the broker that answers.
    entries: list[Entry] = [BrokerEntry(uuid.uuid4().hex, registry.uuid, ())]
    entries += registry.parted.topics
    for entry in entries:
        _add(directory, entry)
    directory.removed |= {*registry.parted.removed}
    return directory


def append(registry: PartedRegistry, entry: Entry) -> Directory:
    """Add an entry durably, and return the directory after it.

    Raises `Refused` if the registry cannot be written, or the error of an entry that would be void.
    """
    directory = directory_of(registry)
    _add(directory, entry)
    ids = {topic.uuid: topic.id for topic in registry.parted.topics}
    topics = tuple(
        topic.as_entry(ids.get(topic.uuid) or uuid.uuid4().hex)
        for topic in directory.topics.values()
    )
    # The uuid of a deleted topic is kept until its last part is deleted.
    left = {row.part_of for row in registry.topics.values()}
    gone = {*directory.removed} & left
    registry.note_parted(LocalParts(topics, tuple(sorted(gone))))
    return directory


def _add(directory: Directory, entry: Entry) -> None:
    if (objection := directory.add(entry)) is not None:
        raise from_wire(objection.code, objection.text)


def without(parted: LocalParts, uuids: frozenset[str]) -> LocalParts:
    """Return the topics with parts that are left when those with these uuids are in the directory
    of a cluster.
    """
    return parted._replace(topics=tuple(row for row in parted.topics if row.uuid not in uuids))
