"""Backup of a data directory, with its broker running or stopped, and restore.

With a running broker, the storages select the files (`storage/checks/backup.py`) and this process
copies them. It takes the states of all topics first, then the logs of all topics. So if a state in
the backup says that a message is finished, the logs in the backup contain everything that its
consumer published before it finished the message, in any topic.

This process holds a lock file. If it dies, the storages see that the lock is free, and release the
files that they hold for the backup.

With a stopped broker, this process copies the files as they are and holds the directory's lock.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from .. import __version__
from ..actors.storage import backups
from ..actors.supervisor.data_dir import locked_data_dir
from ..actors.supervisor.topics.registry import REGISTRY_NAME
from ..actors.supervisor.topics.registry_format import AWAY, Content, TopicRow, decode, encode
from ..storage.checks import backup as format_
from ..storage.checks.backup import DATA_NAME, MANIFEST_NAME, PARTIAL_SUFFIX, Manifest, Writer
from ..storage.errors import Damaged, Locked, StorageError
from ..storage.files import Files
from ..storage.log.log_format import BACKUP_NAME, CHUNK_SUFFIX, LOCK_NAME
from ..transport.client.blocking.client import Admin
from ..transport.client.core.administration import manage
from ..transport.errors import (
    E_BAD_ARGUMENT,
    E_CHECKSUM,
    E_IN_USE,
    E_INTERNAL,
    E_NOT_FOUND,
    NotFound,
    Refused,
    UsageError,
    ZsqError,
    from_wire,
)

AUDIT: Final = "audit.log"
REGISTRY_BYTES_MAX: Final = 64 * 1024 * 1024
ROUNDS_MAX: Final = 20  # the most searches for topics that were created during the backup
# Seconds to wait for the lock. A storage takes it for a moment when it checks it.
LOCK_WAIT_S: Final = 2.0
PACE_STEP_S: Final = 0.05

Advance = Callable[[int], None]


class CopyPace:
    """Limits copying to `bytes_s` bytes a second by waiting. 0 means no limit."""

    def __init__(self, bytes_s: int, advance: Advance) -> None:
        self._bytes_s = bytes_s
        self._advance = advance
        self._began = time.monotonic()
        self._done = 0

    def __call__(self, count: int) -> None:
        self._advance(count)
        if self._bytes_s:
            self._done += count
            wait = self._began + self._done / self._bytes_s - time.monotonic()
            if wait > PACE_STEP_S:
                time.sleep(wait)


class _Storages(Admin):
    """Sends backup requests to the storage of each topic."""

    def part(self, topic: str, do: str, name: str) -> dict[str, Any]:
        part: dict[str, Any] = self._carry_out(
            manage("backup", topic, None, {"do": do, "id": name}, repeatable=False)
        )
        return part


@dataclass(slots=True)
class BackupPlan:
    """Settings of a backup. `since` is an older backup or "". `without` has topics to leave out."""

    data_dir: Path
    target: Path
    since: str = ""
    without: Sequence[str] = ()
    bytes_s: int = 0
    timeout_s: float = 30.0
    advance: Advance = field(default=lambda count: None)


def back_up(files: Files, plan: BackupPlan) -> Manifest:
    """Make a backup. It is complete when this returns. On failure, the target does not exist.

    Raises `ZsqError` or `OSError`.
    """
    target = str(plan.target)
    data_dir = plan.data_dir.resolve()
    if plan.target.resolve().is_relative_to(data_dir):
        raise UsageError(
            E_BAD_ARGUMENT,
            (
                f"{target} is inside the data directory {data_dir}: a backup must be outside, best "
                "on another disk"
            ),
        )
    if files.exists(target):
        raise UsageError(
            E_BAD_ARGUMENT, f"{target} already exists; name a new folder for the backup"
        )
    base = (plan.since, _manifest(files, plan.since)) if plan.since else None
    partial = target + PARTIAL_SUFFIX
    with _lock(files, plan.data_dir):
        _clear(files, partial)
        files.make_folder(partial)
        try:
            files.make_folder(f"{partial}/{DATA_NAME}")
            manifest = _copy(
                files,
                plan,
                Writer(files, f"{partial}/{DATA_NAME}", CopyPace(plan.bytes_s, plan.advance), base),
            )
            files.write_file(f"{partial}/{MANIFEST_NAME}", format_.encode_manifest(manifest))
            files.sync_folder(partial)
            files.rename(partial, target)
            files.sync_folder(str(plan.target.absolute().parent))
        except StorageError as error:
            raise Refused(E_INTERNAL, str(error)) from error
        finally:
            with contextlib.suppress(OSError):
                if files.exists(partial):
                    files.remove_tree(partial)
    return manifest


def _manifest(files: Files, backup: str) -> Manifest:
    try:
        return format_.read_manifest(files, backup)
    except StorageError as error:
        raise UsageError(E_BAD_ARGUMENT, str(error)) from None


def _clear(files: Files, partial: str) -> None:
    """Remove what an interrupted backup has left."""
    if not files.exists(partial):
        return
    if set(files.list(partial)) - {DATA_NAME, MANIFEST_NAME}:
        raise UsageError(
            E_BAD_ARGUMENT,
            f"{partial} exists and is not an unfinished backup; move it to another place",
        )
    files.remove_tree(partial)


@contextlib.contextmanager
def _lock(files: Files, data_dir: Path) -> Iterator[None]:
    """Hold the lock that allows only one backup of a directory at a time."""
    if not files.exists(str(data_dir / REGISTRY_NAME)):
        raise NotFound(
            E_NOT_FOUND,
            (
                f"{data_dir} is not a zsq data directory: it has no {REGISTRY_NAME}; check the "
                "path, and whether it is mounted"
            ),
        )
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            lock = files.lock(str(data_dir / backups.LOCK_NAME))
            break
        except Locked as error:
            if time.monotonic() > deadline:
                raise Refused(
                    E_IN_USE,
                    (
                        f"another backup of {data_dir} is running (process {error.pid}); try again "
                        "when it has ended"
                    ),
                ) from None
            time.sleep(0.02)
    try:
        yield
    finally:
        files.close(lock)


def _copy(files: Files, plan: BackupPlan, writer: Writer) -> Manifest:
    began_ns = time.time_ns()
    try:
        with locked_data_dir(files, plan.data_dir, write=False):
            return _Stopped(files, plan, writer, began_ns).run()
    except Refused as error:
        if error.code != E_IN_USE:
            raise
    return _Running(files, plan, writer, began_ns).run()


class _Copying:
    """The part of a backup that is the same with a running and a stopped broker."""

    def __init__(self, files: Files, plan: BackupPlan, writer: Writer, began_ns: int) -> None:
        self.files = files
        self.plan = plan
        self.writer = writer
        content = self.registry()
        for name in plan.without:
            if name not in content.topics:
                raise NotFound(
                    E_NOT_FOUND,
                    f"topic {name!r} does not exist, so it cannot be left out; check --without",
                )
        self.manifest = Manifest(
            __version__,
            str(plan.data_dir.absolute()),
            content.uuid,
            began_ns,
            left_out=sorted(plan.without),
        )

    def registry(self) -> Content:
        path = str(self.plan.data_dir / REGISTRY_NAME)
        return decode(self.files.read_file(path, REGISTRY_BYTES_MAX), path)

    def wanted(self, content: Content) -> dict[str, TopicRow]:
        return {
            name: row
            for name, row in content.topics.items()
            if row.state not in ("deleting", *AWAY) and name not in self.plan.without
        }

    def topic(self, name: str, row: TopicRow, **more: Any) -> None:
        self.manifest.topics[name] = {
            "number": row.number,
            "uuid": row.uuid,
            "start": None,
            "end": None,
            **more,
        }

    def finish(self, content: Content) -> Manifest:
        """Write the registry of exactly the copied topics, and return the manifest."""
        kept = {
            name: row
            for name, row in content.topics.items()
            if self.manifest.topics.get(name, {}).get("uuid") == row.uuid
        }
        content.topics = kept
        self.writer.write(REGISTRY_NAME, encode(content))
        audit = str(self.plan.data_dir / AUDIT)
        if self.files.exists(audit):
            self.writer.copy(audit, AUDIT)
        self.writer.finish()
        self.manifest.files = self.writer.rows
        self.manifest.ended_ns = time.time_ns()
        return self.manifest


def _place(row: TopicRow) -> str:
    return f"topics/{row.number:06d}"


class _Stopped(_Copying):
    def run(self) -> Manifest:
        self.manifest.live = False
        content = self.registry()
        for name, row in self.wanted(content).items():
            folder = str(self.plan.data_dir / _place(row))
            if not self.files.exists(folder):
                if row.state == "new":
                    continue
                text = (
                    f"the directory of topic {name!r} is missing: {folder}; restore it, or "
                    f"leave the topic out with --without {name}"
                )
                raise NotFound(E_NOT_FOUND, text)
            for path in format_.walk(self.files, folder, (LOCK_NAME, BACKUP_NAME)):
                self.writer.copy(f"{folder}/{path}", f"{_place(row)}/{path}", cold=True)
            self.topic(name, row)
        return self.finish(content)


class _Running(_Copying):
    """Backup with a running broker.

    `_taken` has the answer of each topic's storage. It is None until the topic's log is requested.
    """

    def run(self) -> Manifest:
        self._id = os.urandom(8).hex()
        self._taken: dict[str, tuple[TopicRow, dict[str, Any] | None]] = {}
        with _Storages(
            f"ipc://{self.plan.data_dir.absolute()}/run", timeout=self.plan.timeout_s
        ) as admin:
            self._admin = admin
            try:
                content = self._take_states()
                for name, (row, _) in list(self._taken.items()):
                    self._asked(name, row, "log")
                for name, (row, taken) in list(self._taken.items()):
                    if taken is not None:
                        self._copy_topic(name, row, taken)
            finally:
                for name in list(self._taken):
                    self._let_go(name)
        return self.finish(content)

    def _take_states(self) -> Content:
        """Take the states of all topics until no topic is missing.

        Topics that are created meanwhile are included. A consumer may have published to such a
        topic and then finished a message whose state is in the backup.
        """
        missing: dict[str, TopicRow] = {}
        for _ in range(ROUNDS_MAX):
            content = self.registry()
            missing = {
                name: row
                for name, row in self.wanted(content).items()
                if name not in self._taken or self._taken[name][0].uuid != row.uuid
            }
            if not missing:
                return content
            for name, row in missing.items():
                self._asked(name, row, "state")
        raise Refused(
            E_INTERNAL,
            (
                "topics were created again and again while the backup ran (the last: "
                f"{', '.join(sorted(missing)[:5])}); try again"
            ),
        )

    def _asked(self, name: str, row: TopicRow, do: str) -> None:
        """Request a part of a topic's backup. A topic that was deleted meanwhile is dropped."""
        try:
            answer = self._admin.part(name, do, self._id)
        except ZsqError as error:
            if not self._is_there(name, row):
                self._taken.pop(name, None)
                return
            text = (
                f"topic {name!r}: {error.text} (use --without {name} to back up all other topics)"
            )
            raise from_wire(error.code, text) from None
        self._taken[name] = row, answer if do == "log" else None

    def _is_there(self, name: str, row: TopicRow) -> bool:
        present = self.registry().topics.get(name)
        return (
            present is not None
            and present.uuid == row.uuid
            and present.state not in ("deleting", *AWAY)
        )

    def _copy_topic(self, name: str, row: TopicRow, taken: dict[str, Any]) -> None:
        folder, newest = str(taken["folder"]), str(taken["newest"])
        try:
            for path in format_.walk(self.files, folder):
                cold = path.endswith(CHUNK_SUFFIX) and path != newest
                self.writer.copy(
                    f"{folder}/{path}",
                    f"{_place(row)}/{path}",
                    int(taken["newest_bytes"]) if path == newest else None,
                    cold=cold,
                )
        except (FileNotFoundError, Damaged) as error:
            if self._is_there(name, row):
                text = (
                    f"topic {name!r} was restarted while it was copied ({error}); start the "
                    "backup again"
                )
                raise Refused(E_INTERNAL, text) from None
            self.writer.drop(_place(row))
        else:
            lacks = {"missing_chunks": taken["missing"], "damaged_messages": taken["damaged"]}
            self.topic(name, row, start=taken["start"], end=taken["end"], **lacks)
        self._let_go(name)

    def _let_go(self, name: str) -> None:
        """Release a topic's storage.

        Errors are ignored, because the storage also watches the lock.
        """
        self._taken.pop(name, None)
        with contextlib.suppress(ZsqError):
            self._admin.part(name, "end", self._id)


# Restoring


def check(
    files: Files, backup: str, advance: Advance = lambda count: None
) -> tuple[Manifest, list[str]]:
    """Read every byte of a backup, and return the manifest and a sentence for each problem."""
    manifest = _manifest(files, backup)
    problems = [
        format_.check_file(files, f"{backup}/{DATA_NAME}/{row.path}", row, advance)
        for row in manifest.files
    ]
    return manifest, [problem for problem in problems if problem]


def restore(
    files: Files, backup: str, data_dir: Path, advance: Advance = lambda count: None
) -> Manifest:
    """Restore a backup to a new data directory.

    The directory is complete when this returns. On failure it does not exist. Raises `ZsqError` or
    `OSError`.
    """
    manifest = _manifest(files, backup)
    with new_data_dir(files, data_dir) as partial:
        writer = Writer(files, partial, advance)
        for row in manifest.files:
            copied = writer.copy(f"{backup}/{DATA_NAME}/{row.path}", row.path, cold=True)
            if (copied.bytes, copied.crc) != (row.bytes, row.crc):
                text = f"{backup} is damaged: {row.path} does not match the manifest"
                raise ZsqError(E_CHECKSUM, f"{text}; `zsq restore --check` lists all damaged files")
        _give_uuid(files, partial, writer)
        writer.finish()
    return manifest


@contextlib.contextmanager
def new_data_dir(files: Files, data_dir: Path) -> Iterator[str]:
    """Yield the path of a new folder, which becomes the data directory at the end.

    The caller syncs its content. On failure, the folder is removed. Raises `UsageError` if the
    directory is not empty.
    """
    target = str(data_dir.absolute())
    if files.exists(target) and (not files.is_folder(target) or files.list(target)):
        raise UsageError(
            E_BAD_ARGUMENT,
            f"{data_dir} is not empty; restore to a new directory (nothing is overwritten)",
        )
    if os.path.ismount(target):
        raise UsageError(E_BAD_ARGUMENT, f"{data_dir} is a mount point; restore to a folder in it")
    partial = f"{target}.restoring"
    if files.exists(partial):
        files.remove_tree(partial)
    files.make_folder(partial)
    try:
        yield partial
        files.rename(partial, target)
        files.sync_folder(str(data_dir.absolute().parent))
    except BaseException:
        with contextlib.suppress(OSError):
            files.remove_tree(partial)
        raise


def _give_uuid(files: Files, data_dir: str, writer: Writer) -> None:
    """Give the restored broker a new uuid, because the original may still run.

    The topics keep their uuids.
    """
    path = f"{data_dir}/{REGISTRY_NAME}"
    content = decode(files.read_file(path, REGISTRY_BYTES_MAX), path)
    content.uuid = uuid.uuid4().hex
    files.remove(path)
    writer.write(REGISTRY_NAME, encode(content))
