"""Role: whether this broker is primary or standby, and what to do at each change.

| this data directory | the log of ticks | `zsq standby` | `zsq serve` |
|---|---|---|---|
| has no registry | anything | follows | is a new broker |
| has no registry | there is none, with `--first` | is a new broker | is a new broker |
| has no topic, and never shipped | anything | follows | is primary, if the bucket is its own |
| was primary | its last tick is ours | is primary | is primary |
| was primary | its last tick is ours, and is released | waits for the standby first | is primary |
| was primary | another one has taken over | sets aside, and follows | the same, once it notices |

A former primary cannot use its old data: a part of it may contradict what the new primary has. What
the bucket does not have is set aside first (`rescue.py`). Then the data is removed.

A process that was primary becomes a standby by replacing itself with a fresh one (`exec`). Its pid
stays, so a service manager does not notice. A standby becomes primary in the same process, because
that takes less time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from ....storage.bucket.archive.archive_format import BROKER_NAME
from ....storage.bucket.bucket import Bucket, BucketError, ObjectMissing
from ....storage.bucket.bucket_url import parse_bucket_url
from ....storage.bucket.object_store import open_bucket
from ....storage.bucket.shipping.tick_format import COPY_NAME, LOG, STANDBY_NAME, Copy
from ....storage.errors import ForeignDirectory, Locked, StorageError
from ....storage.files import Files
from ....transport.system import SignalFlag
from ....transport.wire.credentials import open_to_others
from ...runtime import forkserver, logs
from ...runtime.actor import StartFailed
from ...runtime.process import advertised, set_title
from ...settings.options import SIGNALS_AS_ONE_S, ServeOptions
from ...supervisor.reloading import Fresh
from ...supervisor.serve import serve
from ...supervisor.service_manager import ServiceManager
from ...supervisor.supervisor import EXIT_NOT_PRIMARY
from ...supervisor.topics import sleepers
from ...supervisor.topics.registry import OLD_NAME, REGISTRY_NAME
from ...supervisor.topics.registry_format import decode
from .rescue import REGISTRY_BYTES_MAX, set_aside_broker
from .standby import StandbyLoop, StandbyThread
from .standby_gateway import StandbyGateway
from .takeover import (
    FOLLOWED,
    TOPICS,
    UNFINISHED_NAME,
    Standing,
    TakeoverFailed,
    mark_unfinished,
    read_copy,
    standing,
)

log = logging.getLogger("zsq")

ROLE: Final = "ZSQ_ROLE"  # the variable by which a former primary says that it is a standby now
STANDBY: Final = "standby"
CALL_S: Final = 5.0
PAUSE_S: Final = 2.0
HANDED_S: Final = 0.2  # how often a broker that has handed over looks for its successor
END_S: Final = 3.0
NEVER_S: Final = 3_600.0
TICK_S: Final = 1.0
# What a broker has in its data directory, the registry first: without it, it is no broker's.
_OWN: Final = (
    REGISTRY_NAME, OLD_NAME, f"{REGISTRY_NAME}.tmp", COPY_NAME, sleepers.NAME, TOPICS, "trash",
    FOLLOWED,
)  # fmt: skip


def run_broker(
    options: ServeOptions,
    read_again: Callable[[], Fresh] | None,
    environment: Mapping[str, str],
    *,
    is_standby: bool,
    is_first: bool = False,
) -> int:
    """Run a broker in one role after the other, until SIGTERM or SIGINT. Return the exit code.

    `environment` is that of the start of this process. With `is_first`, a standby of a bucket that
    is still empty is the primary of a new broker.
    """
    if is_standby or environment.get(ROLE) == STANDBY:
        term = StandbyTerm(options, is_first)
        code = term.run()
        if code is not None:
            return code
        options = replace(options, is_probed=term.is_probed)
    code = serve(options, read_again)
    if code == EXIT_NOT_PRIMARY:
        _restart(environment)
    return code


def _restart(environment: Mapping[str, str]) -> NoReturn:
    """Replace this process with a fresh one that is a standby."""
    forkserver.end()  # otherwise each term as primary would leave zombies
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    arguments = [sys.executable, *sys.orig_argv[1:]]
    os.execve(sys.executable, arguments, {**environment, ROLE: STANDBY})


def remove_old(files: Files, data_dir: Path) -> None:
    """Remove what a broker or an unfinished takeover has left.

    Raises `ForeignDirectory` if it may be a broker that has lost its registry.
    """
    has_registry = files.exists(f"{data_dir}/{REGISTRY_NAME}")
    is_marked = files.exists(f"{data_dir}/{UNFINISHED_NAME}")
    if not has_registry and not is_marked and files.exists(f"{data_dir}/{TOPICS}"):
        raise ForeignDirectory(
            f"{data_dir} has topics, but no {REGISTRY_NAME}; a standby would remove them: "
            "start zsq serve, which makes the registry again, or use another directory"
        )
    if has_registry:  # what the bucket does not have of it was set aside
        mark_unfinished(files, data_dir)
    for name in (*_OWN, UNFINISHED_NAME):
        path = f"{data_dir}/{name}"
        if not files.exists(path):
            continue
        if files.is_folder(path):
            files.remove_tree(path)
        else:
            files.remove(path)
        files.sync_folder(str(data_dir))


class StandbyTerm:
    """One run as a standby."""

    def __init__(self, options: ServeOptions, is_first: bool) -> None:
        self._options = options
        self._is_first = is_first
        self.is_probed = False
        self._files = Files()
        self._data_dir = options.data_dir.absolute()
        self.ends = SignalFlag()  # a signal came, or the thread has ended
        self._is_told = False
        self._told_s = 0.0
        # The variables must stay in the environment: the supervisor needs them later.
        self._service = ServiceManager(dict(os.environ))

    def run(self) -> int | None:
        """Return the exit code, or None if this broker is primary now."""
        options = self._options
        logs.set_up(options.log_level, options.log_format, logs.SUPERVISOR)
        lock = self._lock()
        if lock is None:
            return 1
        set_title(f"standby {self._data_dir}")
        before = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        }
        ticking = threading.Event()
        ticker = threading.Thread(target=self._tick, args=(ticking,), name="zsq-service")
        ticker.start()
        try:
            return self._stand_by()
        except StartFailed as error:
            return self._fail(str(error))
        except (StorageError, TakeoverFailed) as error:
            return self._fail(str(error))
        except OSError as error:
            return self._fail(f"cannot use data directory {self._data_dir}: {error}")
        finally:
            ticking.set()
            ticker.join()
            for number, handler in before.items():
                signal.signal(number, handler)
            self._files.close(lock)

    def _tick(self, over: threading.Event) -> None:
        """Tell the service manager that this process lives, also while the bucket is away."""
        while not over.wait(TICK_S):
            self._service.tick(time.monotonic_ns(), "finding out who is primary")

    def _say(self, text: str, level: int = logging.INFO) -> None:
        logs.say(text, self._options.log_format, level)

    def _fail(self, text: str) -> int:
        self._say(f"zsq: {text}", logging.ERROR)
        return 1

    def _lock(self) -> int | None:
        try:
            if not self._files.exists(str(self._data_dir)):
                self._files.make_folder(str(self._data_dir))
            if why := open_to_others(self._data_dir, self._data_dir.stat()):
                self._fail(f"the data directory {why}")
                return None
            return self._files.lock(str(self._data_dir / "lock"))
        except Locked as error:
            self._fail(
                f"{self._data_dir} is in use by another zsq (pid {error.pid}); stop that one first"
            )
        except (OSError, StorageError) as error:
            self._fail(f"cannot use data directory {self._data_dir}: {error}")
        return None

    def _on_signal(self, number: int, frame: object) -> None:
        if number == signal.SIGHUP:
            return  # the settings are read when this broker is primary
        now_s = time.monotonic()
        if self._is_told and now_s - self._told_s > SIGNALS_AS_ONE_S:
            os._exit(1)
        self._told_s = self._told_s if self._is_told else now_s
        self._is_told = True
        self.ends.set()

    def _stand_by(self) -> int | None:
        bucket = open_bucket(parse_bucket_url(self._options.bucket), call_s=CALL_S)
        files, data_dir = self._files, self._data_dir
        read_copy(files, f"{data_dir}/{STANDBY_NAME}")  # refuses a newer one, before any change
        if files.exists(f"{data_dir}/{REGISTRY_NAME}"):
            is_primary = self._look_back(bucket)
            if is_primary is None:
                return 0
            if is_primary:
                if files.exists(f"{data_dir}/{UNFINISHED_NAME}"):  # the takeover was complete
                    files.remove(f"{data_dir}/{UNFINISHED_NAME}")
                return None
        elif self._is_first and not self._is_there(bucket):
            if files.exists(f"{data_dir}/{STANDBY_NAME}"):
                raise ForeignDirectory(
                    f"{self._options.bucket} is empty, and {data_dir} is the directory of a "
                    "standby: if the store is not mounted, mount it; to begin a new broker in this "
                    "bucket, "
                    "use an empty directory"
                )
            self._say(f"{self._options.bucket} is empty: this broker is the primary of a new one")
            return None
        remove_old(files, data_dir)
        return self._follow(bucket)

    def _is_there(self, bucket: Bucket) -> bool:
        """Return True if a broker uses this prefix, or if the bucket does not tell."""
        try:
            with contextlib.suppress(ObjectMissing):
                bucket.size(BROKER_NAME)
                return True
            return any(True for _ in bucket.names(f"{LOG}/"))
        except BucketError as error:
            log.error("cannot find out whether the bucket is empty: %s", error)
        return True

    def _has_topics(self) -> bool:
        path = f"{self._data_dir}/{REGISTRY_NAME}"
        return bool(decode(self._files.read_file(path, REGISTRY_BYTES_MAX), path).topics)

    def _look_back(self, bucket: Bucket) -> bool | None:
        """Find out whether this former primary is still primary. If not, set aside what it has.

        After a handover, wait for the standby. If none takes over, this broker is primary again.
        Return None if a signal came.
        """
        data_dir = self._data_dir
        copy = read_copy(self._files, f"{data_dir}/{COPY_NAME}")
        if copy is None and not self._has_topics():
            return False  # it was started once, and was never used
        if copy is None:
            raise ForeignDirectory(
                f"{data_dir} is the data directory of a broker that has shipped nothing to a "
                "bucket; a standby would remove its messages: use another directory"
            )
        begun_ns = time.monotonic_ns()
        while (standing := self._standing(bucket, copy)) is not None:
            waited_s = (time.monotonic_ns() - begun_ns) / 1e9
            if standing.is_newest and (
                not standing.is_released or waited_s > self._options.patience_s
            ):
                return True
            if not standing.is_newest:
                return False if self.set_aside(bucket, standing) else None
            if self.ends.wait(HANDED_S):
                return None
        return None

    def set_aside(self, bucket: Bucket, standing: Standing) -> bool:
        """Set aside what the bucket does not have. Try until the bucket answers. Return False if a
        signal came before that.
        """
        while True:
            try:
                sentence = set_aside_broker(self._files, bucket, str(self._data_dir)).sentence
            except BucketError as error:
                log.error(
                    "cannot find out what the bucket does not have: %s; it is tried again", error
                )
                if self.ends.wait(PAUSE_S):
                    return False
            else:
                self._say(sentence)
                if not standing.is_ended:  # otherwise there is nobody to follow
                    self._say(f"this broker is a standby now: {standing.who} has taken over")
                return True

    def _standing(self, bucket: Bucket, copy: Copy) -> Standing | None:
        """Ask the bucket until it answers. Return None if a signal came."""
        while True:
            try:
                return standing(bucket, copy)
            except BucketError as error:
                log.error("cannot find out who is primary: %s; it is tried again", error)
                if self.ends.wait(PAUSE_S):
                    return None

    def _follow(self, bucket: Bucket) -> int | None:
        options = self._options
        addresses = advertised(options.gateway, options.advertise)
        make = partial(
            StandbyLoop, self._files, bucket, self._data_dir, options.patience_s, addresses
        )
        thread = StandbyThread(make, self.ends.set)
        gateway = StandbyGateway(options, thread.loop.status)
        gateway.open()
        from .... import __version__

        self._say(
            f"zsq {__version__} is a standby of {options.bucket}: {', '.join(gateway.places)} (pid "
            f"{os.getpid()})"
        )
        self._service.ready(f"standby of {options.bucket}")
        try:
            thread.start()
            self.ends.wait()
            thread.stop()
            # A call to a bucket that does not answer must not delay the end.
            if not thread.join(END_S if self._is_told else NEVER_S):
                log.info("ends while the bucket does not answer")
                gateway.close()
                logging.shutdown()
                os._exit(0)
        finally:
            gateway.close()
        if thread.failure is not None:
            raise thread.failure
        self.is_probed = True
        return None if thread.is_primary and not self._is_told else 0
