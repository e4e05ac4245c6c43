"""Checks and repairs of a data directory whose broker is stopped.

The directory's lock is held during the check, which goes through the directory topic by topic.

A lost registry is rebuilt from the copy that was made before its last change and from the identity
file in each topic's directory. The copy is one change behind. The last change was one of these:

* A topic was made. Its directory has a number that the copy has not assigned yet, and its identity
  file contains the rest.
* Settings were changed. The settings before the change apply.
* A deletion began or ended. Either the topic is not deleted, or its directory is missing and the
  next start completes the deletion.
* An import was committed. The copy contains its numbers.

A directory is left out if the copy had assigned its number but does not list its topic, because
such a directory was not in use. Without a copy, all directories are taken as topics, and what only
the registry contained is lost. The result lists each loss. If two directories have the same topic
name or uuid, nothing is rebuilt, and a person must move one of them away.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ...storage.checks.fsck import DAMAGE, NOTE, Finding, TopicReport, check_topic
from ...storage.directory.store import TopicIdentity, read_identity
from ...storage.errors import ForeignDirectory, Locked
from ...storage.files import Files
from ...storage.log.log_format import IDENTITY_NAME
from ...transport.errors import E_IN_USE, E_NOT_FOUND, NotFound, Refused
from .topics.registry import OLD_NAME, REGISTRY_NAME, Registry
from .topics.registry_format import Content, RegistryDamaged, TopicRow, decode

BYTES_MAX: Final = 64 * 1024 * 1024
_FOLDER: Final = re.compile(r"[0-9]{6,15}", re.ASCII)
_TRASH: Final = re.compile(r"([0-9]{6,15})-", re.ASCII)


class NotRebuilt(Exception):
    """The registry cannot be rebuilt. The text contains the reason."""


@dataclass(slots=True)
class Rebuilt:
    content: Content
    said: list[str] = field(default_factory=list)
    """The sources of the content, and what is lost."""


def read_copy(files: Files, path: str) -> Content | None:
    """Return the content of a copy, or None if it is missing or damaged.

    Raises `ForeignDirectory` if a newer zsq wrote it.
    """
    try:
        return decode(files.read_file(path, BYTES_MAX), path)
    except (RegistryDamaged, OSError):
        return None


def rebuild(files: Files, data_dir: Path, old_name: str) -> Rebuilt:
    """Rebuild the registry's content in memory only.

    Raises `NotRebuilt` if no source exists, or if the sources contradict each other.
    """
    old = read_copy(files, str(data_dir / old_name))
    identities = _identities(files, data_dir)
    if old is None and not any(identities.values()):
        raise NotRebuilt(
            f"{old_name} is missing or damaged too, and no directory in topics/ has a readable "
            "identity file"
        )
    if old is not None:
        rebuilt = Rebuilt(
            old, [f"rebuilt from {old_name}, which holds the state before the last change"]
        )
    else:
        rebuilt = Rebuilt(Content(uuid.uuid4().hex, 0), ["rebuilt from the topics' identity files"])
    used = set() if old is None else set(range(1, old.next_number)) - _begun(old)
    _add_topics(rebuilt, identities, used)
    content = rebuilt.content
    # If the record of a begun import stayed, the next start would remove the directories of that
    # import. One of them may be a topic whose identity cannot be read.
    content.imports = {
        digest: record for digest, record in content.imports.items() if record["state"] != "begun"
    }
    numbers = [
        *identities,
        *_trashed(files, data_dir),
        *(row.number for row in content.topics.values()),
    ]
    content.next_number = max([content.next_number, *(number + 1 for number in numbers)])
    if old is None:
        rebuilt.said.append(
            f"the copy {old_name} is lost too, and with it: this directory's uuid and node "
            "number (now 0), the topics' settings (now the"
            " defaults) and sync modes (now always), their schedules, which topics had parts here "
            "(create them again with --parts: they get their parts), the records of imports, and "
            "the last "
            "offsets of deleted topics (a new topic of that"
            " name begins at offset 0)"
        )
    return rebuilt


def _identities(files: Files, data_dir: Path) -> dict[int, TopicIdentity | None]:
    """Return the topics' identities by number. A missing or damaged identity is None."""
    folder = str(data_dir / "topics")
    identities: dict[int, TopicIdentity | None] = {}
    for name in files.list(folder) if files.exists(folder) else ():
        if _FOLDER.fullmatch(name):
            try:
                identities[int(name)] = read_identity(files, f"{folder}/{name}")
            except ForeignDirectory as error:
                raise NotRebuilt(str(error)) from None
            except OSError:
                identities[int(name)] = None
    return identities


def _trashed(files: Files, data_dir: Path) -> list[int]:
    folder = str(data_dir / "trash")
    names = files.list(folder) if files.exists(folder) else []
    return [int(match[1]) for name in names if (match := _TRASH.match(name))]


def _begun(old: Content) -> set[int]:
    return {
        number
        for record in old.imports.values()
        if record["state"] == "begun"
        for number in record.get("numbers", ())
    }


def _add_topics(
    rebuilt: Rebuilt, identities: dict[int, TopicIdentity | None], used: set[int]
) -> None:
    topics = rebuilt.content.topics
    rows = {row.number for row in topics.values()}
    added = []
    for number, identity in sorted(identities.items()):
        if number in rows:
            continue
        shown = f"topics/{number:06d}"
        if number in used:
            rebuilt.said.append(
                f"{shown} was not a topic before the last change: left out, its files were not "
                "changed"
            )
        elif identity is None:
            rebuilt.said.append(
                f"{shown} has no readable identity file (`topic`): left out, its files were not "
                "changed"
            )
        else:
            row = TopicRow(number, identity.uuid, "always", identity.base_offset, "live")
            for name, other in list(topics.items()):
                if other.state == "deleting" and other.number not in identities:
                    del topics[name]  # its files were removed, and a new topic may have its name
                    continue
                if name == identity.name or other.uuid == row.uuid:
                    raise NotRebuilt(
                        f"{shown} and topics/{other.number:06d} both belong to topic {name!r}: "
                        "move one of them away"
                    )
            topics[identity.name] = row
            added.append(f"{identity.name} ({shown})")
    for row in topics.values():
        if row.state == "new" and row.number in identities:
            row.state = "live"
    if added:
        rebuilt.said.append(
            "topics restored from their identity files, with sync always and the default "
            f"settings: {', '.join(added)}"
        )


@contextlib.contextmanager
def locked_data_dir(files: Files, data_dir: Path, *, write: bool = True) -> Iterator[None]:
    """Hold the lock of a data directory that exists.

    Raises `NotFound` if it is no data directory (nothing is created), and `Refused` while a broker
    runs on it.
    """
    if not any(
        files.exists(str(data_dir / name)) for name in ("lock", REGISTRY_NAME, OLD_NAME)
    ) and not _has_topics(files, data_dir):
        raise NotFound(
            E_NOT_FOUND,
            (
                f"{data_dir} is not a ZSQ data directory: it has no {REGISTRY_NAME}; check the "
                "path, and that its disk is mounted"
            ),
        )
    try:
        lock = files.lock(str(data_dir / "lock"), write=write)
    except Locked as error:
        raise Refused(
            E_IN_USE, f"{data_dir} is in use by `zsq serve` (pid {error.pid}); stop it first"
        ) from None
    try:
        yield
    finally:
        if lock >= 0:
            files.close(lock)


def _has_topics(files: Files, data_dir: Path) -> bool:
    """Return True if any topic has its identity file. A copy of a data directory may lack all other
    small files.
    """
    folder = data_dir / "topics"
    return files.exists(str(folder)) and any(
        files.exists(str(folder / name / IDENTITY_NAME)) for name in files.list(str(folder))
    )


def _check_registry(
    files: Files, data_dir: Path, registry: Registry, *, repair: bool
) -> tuple[list[Finding], bool]:
    """Return the findings about the registry, and whether it can be used now."""
    path = str(data_dir / REGISTRY_NAME)
    try:
        checked = registry.load().checked
    except FileNotFoundError:
        finding = Finding(
            DAMAGE, path, "the registry is missing; without it the broker does not start"
        )
    except RegistryDamaged as error:
        finding = Finding(DAMAGE, path, str(error))
    except (ForeignDirectory, OSError) as error:
        return [Finding(DAMAGE, path, str(error))], False
    else:
        findings = []
        if not checked:
            findings.append(
                Finding(
                    NOTE,
                    path,
                    ("it has no checksum (it was edited by hand); the next start adds one"),
                )
            )
        if (
            files.exists(str(data_dir / OLD_NAME))
            and read_copy(files, str(data_dir / OLD_NAME)) is None
        ):
            text = "the copy before the last change is damaged; the next change replaces it"
            findings.append(Finding(NOTE, str(data_dir / OLD_NAME), text))
        return findings, True
    try:
        rebuilt = rebuild(files, data_dir, OLD_NAME)
    except (NotRebuilt, ForeignDirectory, OSError) as error:
        finding.text += f" (it cannot be rebuilt: {error})"
        return [finding], False
    finding.repair = lambda: "; ".join([*rebuilt.said, *registry.replace(rebuilt.content)])
    if repair:
        try:
            finding.repaired = finding.repair()
        except (Refused, OSError) as error:
            finding.text += f" (it could not be repaired: {error})"
    return [finding], bool(finding.repaired)


def check_data_dir(
    files: Files, data_dir: Path, topic: str | None, now_ns: int, *, repair: bool = False
) -> tuple[list[Finding], list[TopicReport]]:
    """Return the findings about the directory, and a report on each topic or only on the named one.

    Raises `NotFound` if the named topic does not exist.
    """
    registry = Registry(files, data_dir, 0)
    findings, usable = _check_registry(files, data_dir, registry, repair=repair)
    if not usable:
        return findings, []
    if topic is not None and topic not in registry.topics:
        raise NotFound(E_NOT_FOUND, f"topic {topic!r} does not exist in {data_dir}")
    folder = data_dir / "topics"
    present = set(files.list(str(folder))) if files.exists(str(folder)) else set()
    if topic is None:
        for name in sorted(
            present - {Path(registry.folder(row)).name for row in registry.topics.values()}
        ):
            findings.append(
                Finding(
                    NOTE,
                    str(folder / name),
                    "it belongs to no topic of the registry; the broker ignores it",
                )
            )
    reports = []
    for name, row in sorted(registry.topics.items()):
        if topic is not None and name != topic:
            continue
        directory = registry.folder(row)
        if Path(directory).name in present:
            try:
                reports.append(
                    check_topic(
                        files,
                        directory,
                        TopicIdentity(name, row.uuid, row.base_offset),
                        now_ns,
                        repair=repair,
                    )
                )
            except Locked as error:
                raise Refused(
                    E_IN_USE, f"topic {name!r} is in use by process {error.pid}; stop it first"
                ) from None
            except OSError as error:
                reports.append(
                    TopicReport(
                        name,
                        directory,
                        [Finding(DAMAGE, directory, f"it cannot be checked: {error}")],
                    )
                )
        elif row.state == "live":
            missing = Finding(
                DAMAGE,
                directory,
                (
                    "its directory is missing and is not created again: mount its disk, or restore "
                    "it from a backup"
                ),
            )
            reports.append(TopicReport(name, directory, [missing]))
    return findings, reports
