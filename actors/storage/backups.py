"""Backups: the capture of a topic's files for the process that makes a backup.

When the backup has ended, the captured copies and links are removed.

| state | order or event | next | action |
|---|---|---|---|
| IDLE, READY | state | STATE | hold removals; then copy the state and link staged files, in the state's thread |
| STATE | done | HELD | answer |
| HELD | log | LOG | copy delayed messages in their thread; then sync the log and link it in the housekeeping thread |
| LOG | done | READY | allow removals again; answer with the files that were captured |
| STATE, LOG | failed | IDLE | allow removals again; answer with the error |
| HELD, READY | end, or the process that asked is gone | IDLE | drop the captured files |

The process that makes a backup holds a lock file of the data directory. The kernel releases the
lock however that process dies. So storage tests the lock every few seconds, and the process need
not send heartbeats.

A failed backup is no reason to stop a topic, so it never ends the topic's process.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Final

import lmdb

from ...storage.checks.backup import (
    LogTaken,
    capture_bytes,
    capture_delayed,
    capture_log,
    capture_state,
    drop_capture,
    is_captured,
    sync_log,
)
from ...storage.directory.store import Store
from ...storage.errors import Locked, StorageError
from ...storage.log.log_format import BACKUP_NAME, chunk_name
from ...transport.errors import (
    E_CLOSING,
    E_DISK_FULL,
    E_INTERNAL,
    E_NOT_FOUND,
    E_UNSUPPORTED,
    Refused,
)
from ...transport.wire.protocol import BackUpLog, BackUpState, Done, EndBackup, Failed
from ..runtime.worker_thread import Jobs
from .commits import StateCommits
from .delayed import DelayedMessages
from .retention import RetentionRunner

log = logging.getLogger("zsq")

LOCK_NAME: Final = "backup.lock"
LOOK_NS: Final = 5_000_000_000
# The longest time without removals. A backup of ten thousand topics takes less.
HELD_NS_MAX: Final = 600_000_000_000


class BackupState(Enum):
    IDLE = "idle"
    STATE = "state"
    HELD = "held"
    LOG = "log"
    READY = "ready"


class Backups:
    """The part of storage that serves backups of its topic.

    `housekeeping` creates and removes links. `answer` sends the answer to an order.
    """

    def __init__(
        self, store: Store, state: StateCommits, retention: RetentionRunner, delayed: DelayedMessages, title: str,
        housekeeping: Jobs, answer: Callable[[Done | Failed], None],
    ) -> None:  # fmt: skip
        self.state = BackupState.IDLE
        self._store = store
        self._states = state
        self._retention = retention
        self._delayed = delayed
        self._title = title
        self._housekeeping = housekeeping
        self._answer = answer
        self._lock = f"{store.directory.rsplit('/', 2)[0]}/{LOCK_NAME}"  # in the data directory
        self._id = ""
        self._request = 0
        self._began_ns = self._looked_ns = 0
        if is_captured(store.files, store.directory):  # an earlier process left them
            self._drop()

    def _check_free(self) -> None:
        """Raise `Refused` if the topic is in memory (E_UNSUPPORTED) or in a backup (E_CLOSING)."""
        if self._retention.in_memory:
            raise Refused(
                E_UNSUPPORTED, f"{self._title} is in memory; only topics on disk can be backed up"
            )
        if self.state in (BackupState.STATE, BackupState.LOG):
            raise Refused(E_CLOSING, f"{self._title} is busy with a backup; try again in a moment")

    def _check_known(self, name: str, *states: BackupState) -> None:
        """Raise `Refused` (E_NOT_FOUND) if this backup is not known, or not in one of `states`.

        Without `states`, any state is accepted.
        """
        self._check_free()
        if name != self._id or (states and self.state not in states):
            text = (
                f"{self._title} does not know this backup: the topic was restarted, or another "
                "backup began; start the backup again"
            )
            raise Refused(E_NOT_FOUND, text)

    # The state

    def take_state(self, message: BackUpState) -> None:
        """Begin to capture the state. The answer follows when it is captured."""
        self._check_free()
        files, directory = self._store.files, self._store.directory
        size, free, reserve = (
            capture_bytes(files, directory),
            files.free_bytes(directory),
            self._store.reserve_bytes,
        )
        if free < size + reserve:
            text = (
                f"{self._title}: the copy of its state needs {size} bytes beyond the reserve of "
                f"{reserve} bytes; {free} bytes are free"
            )
            raise Refused(E_DISK_FULL, text)
        self.state, self._id, self._request = BackupState.STATE, message.id, message.request
        self._began_ns = self._looked_ns = time.monotonic_ns()
        self._housekeeping.submit(self._cleared, partial(drop_capture, files, directory))

    def _cleared(self, failure: object) -> None:
        """Go on when the files of an earlier backup are removed."""
        if isinstance(failure, Exception):
            self._fail(failure)
        else:
            self._retention.hold(self._copy_state)

    def _copy_state(self) -> None:
        store = self._store
        job = partial(capture_state, store.files, store.directory, store.state, store.keeper)
        self._states.read(lambda _: _tried(job), self._state_taken)

    def _state_taken(self, failure: str) -> None:
        if failure:
            self._fail(failure)
            return
        self.state = BackupState.HELD
        self._answer(Done(self._request, {}))

    # The log

    def take_log(self, message: BackUpLog) -> None:
        """Begin to capture the log. The answer follows when it is captured."""
        self._check_known(message.id, BackupState.HELD)
        self.state, self._request = BackupState.LOG, message.request
        delayed = self._store.delayed
        if delayed is None:
            self._delayed_taken("")
        else:
            job = partial(capture_delayed, self._store.files, self._store.directory, delayed)
            self._delayed.submit(self._delayed_taken, lambda: _tried(job))

    def _delayed_taken(self, failure: object) -> None:
        if failure:
            self._fail(failure)
            return
        files, directory = self._store.files, self._store.directory
        try:
            taken = sync_log(files, directory, self._store.log)
        except OSError as error:
            self._fail(error)
            return
        self._housekeeping.submit(
            partial(self._log_taken, taken), partial(capture_log, files, directory, taken)
        )

    def _log_taken(self, taken: LogTaken, missing: int | Exception) -> None:
        if isinstance(missing, Exception):
            self._fail(missing)
            return
        self.state = BackupState.READY
        self._retention.release()
        data = {
            "folder": f"{self._store.directory}/{BACKUP_NAME}",
            "start": taken.start,
            "end": taken.end,
            "missing": missing,
            "damaged": self._store.log.reader.damage.messages,
        }
        self._answer(
            Done(
                self._request,
                data | {"newest": chunk_name(taken.bases[-1]), "newest_bytes": taken.newest_bytes},
            )
        )

    # The end

    def end(self, message: EndBackup) -> Done:
        self._check_known(message.id)
        self._end()
        return Done(message.request, {})

    def _fail(self, failure: object) -> None:
        log.warning("%s: the backup failed: %s", self._title, failure)
        self._end()
        self._answer(
            Failed(self._request, E_INTERNAL, f"{self._title} cannot be backed up: {failure}")
        )

    def _end(self) -> None:
        self.state, self._id = BackupState.IDLE, ""
        self._retention.release()
        self._drop()

    def _drop(self) -> None:
        self._housekeeping.submit(
            self._dropped, partial(drop_capture, self._store.files, self._store.directory)
        )

    def _dropped(self, failure: object) -> None:
        if isinstance(failure, Exception):
            log.error(
                "%s: the files that were captured for a backup cannot be removed: %s",
                self._title,
                failure,
            )

    def tick(self) -> None:
        """End the backup if its process is gone or does not continue.

        This is called about once a second.
        """
        now = time.monotonic_ns()
        if (
            self.state not in (BackupState.HELD, BackupState.READY)
            or now - self._looked_ns < LOOK_NS
        ):
            return
        self._looked_ns = now
        if self.state is BackupState.HELD and now - self._began_ns > HELD_NS_MAX:
            seconds = HELD_NS_MAX // 1_000_000_000
            log.warning(
                (
                    "%s: a backup did not continue within %d s and was ended; retention may remove "
                    "chunks again"
                ),
                self._title,
                seconds,
            )
            self._end()
        elif _is_free(self._store, self._lock):
            log.warning(
                (
                    "%s: the process that made a backup has ended; the files captured for it are "
                    "removed"
                ),
                self._title,
            )
            self._end()


def _tried(job: Callable[[], None]) -> str:
    """Run `job` and return its error as text, or "".

    An exception would end the process, because the parts that own these threads treat any exception
    as a failure of their store.
    """
    try:
        job()
    except (OSError, StorageError, lmdb.Error) as error:
        return str(error) or type(error).__name__
    return ""


def _is_free(store: Store, path: str) -> bool:
    try:
        fd = store.files.lock(path, write=False)
    except Locked:
        return False
    except OSError:
        return True
    if fd >= 0:
        store.files.close(fd)
    return True
