"""A broker whose syncs take longer by a time that can be changed while it runs: how a slower disk would do.

The product knows nothing of it. The broker is started by `PROGRAM` in place of `python -m zsq`: that adds this module to what the
forkserver imports, so every child has it before it is forked, and here each sync of the seam to the operating system
(`storage/files.py`) is followed by a sleep in the same thread, as a disk would keep that thread waiting. A commit of LMDB syncs twice
(its pages, then its head) below Python, where nothing can be put between; so the commit as a whole is followed by two sleeps.
Rejected: a shim in front of the C library, since it wants a compiler.

The time lies in a file of eight bytes that all processes have mapped: one broker is measured with several delays in turns.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing.forkserver as forkserver
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
    """The time that is added to each sync, in seconds; `set` is seen by all processes that have mapped the file."""

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
    """`work`, which comes back later by so many syncs; not where it fails, since who waits for a disk then is not told sooner by us."""

    def slow(*arguments: Any, **options: Any) -> Any:
        result = work(*arguments, **options)
        delay.wait(syncs)
        return result

    return slow


def install(delay: SyncDelay) -> None:
    """In this process and all that are forked from it."""
    for owner, name, syncs in (
        (Files, "sync", 1),
        (Files, "sync_folder", 1),
        (StateStore, "commit", LMDB_SYNCS),
        (DelayedStore, "_commit", LMDB_SYNCS),
    ):
        setattr(owner, name, slowed(getattr(owner, name), delay, syncs))


@contextlib.contextmanager
def slow_broker(*options: str, under: Path | None = None) -> Iterator[tuple[LocalBroker, SyncDelay]]:
    """A temporary broker, and the delay of its syncs: none at first."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="zsq-bench-", dir=under) as place:
        path = Path(place, "delay")
        delay = SyncDelay.create(path)
        variables = environment(**{VARIABLE: str(path)})
        with temporary_broker(*options, prefix="broker-", under=Path(place), program=PROGRAM, environment=variables) as broker:
            yield broker, delay


def serve() -> None:
    """`zsq`, but that its forkserver imports this module too."""
    from zsq.apps.cli import main

    preload = forkserver.set_forkserver_preload

    def with_this_one(modules_names: list[str]) -> None:
        preload([*modules_names, __name__])

    forkserver.set_forkserver_preload = with_this_one
    main()


if VARIABLE in os.environ:
    install(SyncDelay(os.environ[VARIABLE]))
