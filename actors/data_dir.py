"""A data directory whose broker is stopped: held by its lock, and checked topic by topic."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ..storage.errors import ForeignDirectory, Locked
from ..storage.files import Files
from ..storage.fsck import TopicReport, check_topic
from ..storage.fsck_chunk import DAMAGE, NOTE, Finding
from ..storage.store import Identity
from ..transport.errors import E_EXISTS, E_NOT_FOUND, NotFound, Refused
from .registry import Registry

REGISTRY_NAME = "registry.json"


@contextlib.contextmanager
def locked_data_dir(files: Files, data_dir: Path) -> Iterator[None]:
    """`NotFound` where it is no data directory (nothing is made there), `Refused` while a broker runs on it."""
    if not files.exists(str(data_dir / "lock")) and not files.exists(str(data_dir / REGISTRY_NAME)):
        raise NotFound(E_NOT_FOUND, f"{data_dir} is no data directory of zsq: it has no {REGISTRY_NAME}; is it mounted?")
    try:
        lock = files.lock(str(data_dir / "lock"))
    except Locked as error:
        raise Refused(E_EXISTS, f"{data_dir} is in use by `zsq serve` (pid {error.pid}); stop it first") from None
    try:
        yield
    finally:
        files.close(lock)


def check_data_dir(
    files: Files, data_dir: Path, topic: str | None, now_ns: int, *, repair: bool = False
) -> tuple[list[Finding], list[TopicReport]]:
    """What is wrong with the directory itself, and with each topic (or the one named: `NotFound` if there is none)."""
    findings: list[Finding] = []
    path = str(data_dir / REGISTRY_NAME)
    if not files.exists(path):
        return [Finding(DAMAGE, path, "the registry is missing: restore it from a backup; without it the broker does not start")], []
    registry = Registry(files, data_dir, 0)
    try:
        registry.open()
    except ForeignDirectory as error:
        return [Finding(DAMAGE, path, str(error))], []
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
                raise Refused(E_EXISTS, f"topic {name!r} is in use by process {error.pid}; stop it first") from None
            except OSError as error:
                reports.append(TopicReport(name, directory, [Finding(DAMAGE, directory, f"it cannot be checked: {error}")]))
        elif row.state == "live":
            missing = Finding(DAMAGE, directory, "its directory is missing, or not mounted: it is not made anew; restore it from a backup")
            reports.append(TopicReport(name, directory, [missing]))
    return findings, reports
