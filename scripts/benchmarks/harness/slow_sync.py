"""Broker with slower syncs, to show how it would run with a slower disk. The delay can be changed.

The product has no code for this. `PROGRAM` replaces `python -m zsq` and imports this module before
the forkserver is forked. So each process has it. Here a sleep in the same thread follows each sync
of `storage/files.py`, as a slower disk would keep that thread waiting. A commit of LMDB syncs twice
below Python (its pages, then its meta page), where no sleep can be added. Therefore two sleeps
follow the whole commit. A shim in front of the C library was rejected, because it needs a compiler.

The delay lies in a file of eight bytes that all processes map. So one broker can be measured with
several delays in turn.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from local_setup import environment
from local_setup.broker import LocalBroker, temporary_broker
from zsq.storage.delayed.delayed import DelayedStore
from zsq.storage.files import Files
from zsq.storage.state.state import StateStore

VARIABLE: Final = "ZSQ_BENCH_SYNC_DELAY"
PROGRAM: Final = ("-c", f"from {__name__} import serve; serve()")
LMDB_SYNCS: Final = 2
_SECONDS: Final = struct.Struct("=d")


class SyncDelay:
    """The delay of each sync in seconds. All processes that have mapped the file see a `set`."""

    def __init__(self, path: Path | str) -> None:
        with open(path, "r+b") as file:
            self._shared = mmap.mmap(file.fileno(), _SECONDS.size)

    @classmethod
    def create(cls, path: Path) -> SyncDelay:
        path.write_bytes(_SECONDS.pack(0.0))
        return cls(path)

    def get(self) -> float:
        return float(_SECONDS.unpack_from(self._shared)[0])

    def set(self, seconds: float) -> None:
        _SECONDS.pack_into(self._shared, 0, seconds)

    def wait(self, syncs: int = 1) -> None:
        if seconds := self.get():
            time.sleep(seconds * syncs)


def slowed(work: Callable[..., Any], delay: SyncDelay, syncs: int = 1) -> Callable[..., Any]:
    """Return a function that calls `work` and then waits as long as `syncs` syncs are delayed.

    If `work` raises an error, there is no wait.
    """

    def slow(*arguments: Any, **options: Any) -> Any:
        result = work(*arguments, **options)
        delay.wait(syncs)
        return result

    return slow


def install(delay: SyncDelay) -> None:
    """Slow down the syncs of this process and all processes forked from it."""
    for owner, name, syncs in (
        (Files, "sync", 1),
        (Files, "sync_folder", 1),
        (StateStore, "commit", LMDB_SYNCS),
        (DelayedStore, "_commit", LMDB_SYNCS),
    ):
        setattr(owner, name, slowed(getattr(owner, name), delay, syncs))


@contextlib.contextmanager
def slow_broker(
    *options: str, under: Path | None = None
) -> Iterator[tuple[LocalBroker, SyncDelay]]:
    """Start a temporary broker, and yield it with the delay of its syncs, at first 0."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="zsq-bench-", dir=under) as place:
        path = Path(place, "delay")
        delay = SyncDelay.create(path)
        variables = environment(**{VARIABLE: str(path)})
        with temporary_broker(
            *options, prefix="broker-", under=Path(place), program=PROGRAM, environment=variables
        ) as broker:
            yield broker, delay


def serve() -> None:
    """Run `zsq`, whose processes are forked from this one."""
    from zsq.apps.cli import main

    main()


if VARIABLE in os.environ:
    install(SyncDelay(os.environ[VARIABLE]))
