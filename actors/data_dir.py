"""A data directory whose broker is stopped: held by its lock, and checked topic by topic."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ..storage.errors import ForeignDirectory, Locked
from ..storage.files import Files
from ..storage.fsck import TopicReport, check_topic
from ..storage.fsck_chunk import DAMAGE, NOTE, Finding
from ..storage.log_format import IDENTITY_NAME
from ..storage.store import Identity
from ..transport.errors import E_IN_USE, E_NOT_FOUND, NotFound, Refused
from .registry import OLD_NAME, REGISTRY_NAME, Registry, RegistryDamaged
from .registry_rebuild import NotRebuilt, read_copy, rebuild


@contextlib.contextmanager
def locked_data_dir(files: Files, data_dir: Path, *, write: bool = True) -> Iterator[None]:
    """`NotFound` where it is no data directory (nothing is made there), `Refused` while a broker runs on it."""
    if not any(files.exists(str(data_dir / name)) for name in ("lock", REGISTRY_NAME, OLD_NAME)) and not _has_topics(files, data_dir):
        raise NotFound(E_NOT_FOUND, f"{data_dir} is no data directory of zsq: it has no {REGISTRY_NAME}; is it mounted?")
    try:
        lock = files.lock(str(data_dir / "lock"), write=write)
    except Locked as error:
        raise Refused(E_IN_USE, f"{data_dir} is in use by `zsq serve` (pid {error.pid}); stop it first") from None
    try:
        yield
    finally:
        if lock >= 0:
            files.close(lock)


def _has_topics(files: Files, data_dir: Path) -> bool:
    """A copy of a data directory without its small files."""
    folder = data_dir / "topics"
    return files.exists(str(folder)) and any(files.exists(str(folder / name / IDENTITY_NAME)) for name in files.list(str(folder)))


def _check_registry(files: Files, data_dir: Path, registry: Registry, *, repair: bool) -> tuple[list[Finding], bool]:
    """What is wrong with it, and whether it is of use now."""
    path = str(data_dir / REGISTRY_NAME)
    try:
        checked = registry.load().checked
    except FileNotFoundError:
        finding = Finding(DAMAGE, path, "the registry is missing; without it the broker does not start")
    except RegistryDamaged as error:
        finding = Finding(DAMAGE, path, str(error))
    except (ForeignDirectory, OSError) as error:
        return [Finding(DAMAGE, path, str(error))], False
    else:
        findings = []
        if not checked:
            findings.append(Finding(NOTE, path, "it has no checksum (an earlier version, or an editor); the next start writes it with one"))
        if files.exists(str(data_dir / OLD_NAME)) and read_copy(files, str(data_dir / OLD_NAME)) is None:
            text = "the copy before the last change is damaged; the next change writes it anew"
            findings.append(Finding(NOTE, str(data_dir / OLD_NAME), text))
        return findings, True
    try:
        rebuilt = rebuild(files, data_dir, OLD_NAME)
    except (NotRebuilt, ForeignDirectory, OSError) as error:
        finding.text += f" (it cannot be made again: {error})"
        return [finding], False
    finding.repair = lambda: "; ".join(["made again", *rebuilt.said, *registry.replace(rebuilt.content)])
    if repair:
        try:
            finding.repaired = finding.repair()
        except (Refused, OSError) as error:
            finding.text += f" (it could not be repaired: {error})"
    return [finding], bool(finding.repaired)


def check_data_dir(
    files: Files, data_dir: Path, topic: str | None, now_ns: int, *, repair: bool = False
) -> tuple[list[Finding], list[TopicReport]]:
    """What is wrong with the directory itself, and with each topic (or the one named: `NotFound` if there is none)."""
    registry = Registry(files, data_dir, 0)
    findings, usable = _check_registry(files, data_dir, registry, repair=repair)
    if not usable:
        return findings, []
    if topic is not None and topic not in registry.topics:
        raise NotFound(E_NOT_FOUND, f"topic {topic!r} does not exist in {data_dir}")
    folder = data_dir / "topics"
    present = set(files.list(str(folder))) if files.exists(str(folder)) else set()
    if topic is None:
        for name in sorted(present - {Path(registry.folder(row)).name for row in registry.topics.values()}):
            findings.append(Finding(NOTE, str(folder / name), "no topic of the registry lies here; the broker does not touch it"))
    reports = []
    for name, row in sorted(registry.topics.items()):
        if topic is not None and name != topic:
            continue
        directory = registry.folder(row)
        if Path(directory).name in present:
            try:
                reports.append(check_topic(files, directory, Identity(name, row.uuid, row.base_offset), now_ns, repair=repair))
            except Locked as error:
                raise Refused(E_IN_USE, f"topic {name!r} is in use by process {error.pid}; stop it first") from None
            except OSError as error:
                reports.append(TopicReport(name, directory, [Finding(DAMAGE, directory, f"it cannot be checked: {error}")]))
        elif row.state == "live":
            missing = Finding(DAMAGE, directory, "its directory is missing, or not mounted: it is not made anew; restore it from a backup")
            reports.append(TopicReport(name, directory, [missing]))
    return findings, reports
