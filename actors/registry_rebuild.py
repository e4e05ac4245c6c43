"""A lost registry, made again from the copy before its last change and from what the topics' directories say of themselves.

The old copy is one change behind. What the last change can have been, and what then becomes of it:

* a topic was made: its directory has a number that the old copy has not given yet, and its identity the rest;
* settings: those before them hold;
* a deletion began or ended: it is not deleted, or its directory is missing and the next start ends the deletion;
* an import was committed: its numbers are noted in the old copy.

A directory whose number had been given and whose topic the old copy does not know was not in use, and is left alone. Without an old copy
all directories count, and what only the registry knew is gone; each such loss is said. Where two claim one name, or one uuid, nothing
is chosen: a person moves one away.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ..storage.errors import ForeignDirectory
from ..storage.files import Files
from ..storage.store import Identity, read_identity
from .registry_format import Content, RegistryDamaged, TopicRow, decode

BYTES_MAX: Final = 64 * 1024 * 1024
_FOLDER: Final = re.compile(r"[0-9]{6,15}", re.ASCII)
_TRASH: Final = re.compile(r"([0-9]{6,15})-", re.ASCII)


class NotRebuilt(Exception):
    """Why not."""


@dataclass(slots=True)
class Rebuilt:
    content: Content
    said: list[str] = field(default_factory=list)
    """What came from where, and what is not known any more."""


def read_copy(files: Files, path: str) -> Content | None:
    """None where it is missing or damaged. `ForeignDirectory` where a newer zsq wrote it."""
    try:
        return decode(files.read_file(path, BYTES_MAX), path)
    except (RegistryDamaged, OSError):
        return None


def rebuild(files: Files, data_dir: Path, old_name: str) -> Rebuilt:
    """In memory only. `NotRebuilt` where there is nothing to make it from, or no telling what is right."""
    old = read_copy(files, str(data_dir / old_name))
    found = _identities(files, data_dir)
    if old is None and not any(found.values()):
        raise NotRebuilt(f"{old_name} is missing or damaged too, and no directory in topics/ says what it is")
    if old is not None:
        rebuilt = Rebuilt(old, [f"from {old_name}, as it was before the last change"])
    else:
        rebuilt = Rebuilt(Content(uuid.uuid4().hex, 0), ["from the topics' own identities"])
    given = set() if old is None else set(range(1, old.next_number)) - _begun(old)
    _add_topics(rebuilt, found, given)
    content = rebuilt.content
    # Else the next start clears away what is left of an import that began, and that may be a topic which does not say what it is.
    content.imports = {digest: record for digest, record in content.imports.items() if record["state"] != "begun"}
    numbers = [*found, *_trashed(files, data_dir), *(row.number for row in content.topics.values())]
    content.next_number = max([content.next_number, *(number + 1 for number in numbers)])
    if old is None:
        rebuilt.said.append(
            f"the copy {old_name} is lost too, and with it: this directory's uuid and node number (now 0), topics' settings and sync modes"
            " (now the defaults, and always), imports, and where deleted topics ended: one that is made again begins at offset 0"
        )
    return rebuilt


def _identities(files: Files, data_dir: Path) -> dict[int, Identity | None]:
    """By number; None where it does not say what it is."""
    folder = str(data_dir / "topics")
    found: dict[int, Identity | None] = {}
    for name in files.list(folder) if files.exists(folder) else ():
        if _FOLDER.fullmatch(name):
            try:
                found[int(name)] = read_identity(files, f"{folder}/{name}")
            except ForeignDirectory as error:
                raise NotRebuilt(str(error)) from None
            except OSError:
                found[int(name)] = None
    return found


def _trashed(files: Files, data_dir: Path) -> list[int]:
    folder = str(data_dir / "trash")
    names = files.list(folder) if files.exists(folder) else []
    return [int(match[1]) for name in names if (match := _TRASH.match(name))]


def _begun(old: Content) -> set[int]:
    return {number for record in old.imports.values() if record["state"] == "begun" for number in record["numbers"]}


def _add_topics(rebuilt: Rebuilt, found: dict[int, Identity | None], given: set[int]) -> None:
    topics = rebuilt.content.topics
    rows = {row.number for row in topics.values()}
    added = []
    for number, identity in sorted(found.items()):
        if number in rows:
            continue
        shown = f"topics/{number:06d}"
        if number in given:
            rebuilt.said.append(f"{shown} was no topic before the last change: left alone")
        elif identity is None:
            rebuilt.said.append(
                f"{shown} does not say which topic it is (its file `topic` is missing or damaged): left out, and left alone"
            )
        else:
            row = TopicRow(number, identity.uuid, "always", identity.base_offset, "live")
            for name, other in list(topics.items()):
                if other.state == "deleting" and other.number not in found:
                    del topics[name]  # its files were gone; its name may have been given again
                    continue
                if name == identity.name or other.uuid == row.uuid:
                    raise NotRebuilt(f"{shown} and topics/{other.number:06d} both say that they are topic {name!r}: move one of them away")
            topics[identity.name] = row
            added.append(f"{identity.name} ({shown})")
    for row in topics.values():
        if row.state == "new" and row.number in found:
            row.state = "live"
    if added:
        rebuilt.said.append(f"topics by their own identity, with sync always and the default settings: {', '.join(added)}")
