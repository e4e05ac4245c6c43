"""Lease cell: until when a primary may acknowledge publishes, in memory that its processes share.

The archive actor writes it, and all topics and channels read it. See
`storage/bucket/shipping/standbys.py`. It is a file of 16 bytes in the run directory, which the
processes map: a time of `boot_ns`, or 0 if no lease is needed, because there is no standby, and the
patience of the standby. A read costs some 200 ns and no call of the system. Each start of a broker
makes a new run directory, so no lease outlives a broker.

If the lease has been over for the patience, this broker is not primary any more as far as it can
know (`LeaseWatch.is_lost`). Then it turns away those that only receive: consumers, readers, and
writers of stages. They would otherwise stay with a primary that was replaced, because it goes on
answering their heartbeats as long as it does not reach the bucket.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import Final

from ...transport.errors import E_STANDBY, Refused
from ..primitives.boot_clock import boot_ns

FILE: Final = "lease"
OVER: Final = 1  # a time that is over
_BYTES: Final = 16
PATIENCE_S: Final = 10.0  # if the patience of the standby is not known
LOST: Final = (
    "this broker has not reached the bucket for so long that its standby has taken over, or does "
    "not reach the bucket either"
)


def run_dir_of(endpoint: str) -> str:
    """Return the run directory of an actor's endpoint, or "" for ""."""
    return endpoint.removeprefix("ipc://").rpartition("/")[0]


class LeaseCell:
    """The cell in a run directory. Without `make`, it must exist."""

    def __init__(self, run_dir: str, *, make: bool = False) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0)
        fd = os.open(f"{run_dir}/{FILE}", flags, 0o600)
        try:
            if make and os.fstat(fd).st_size < _BYTES:
                os.pwrite(fd, bytes(_BYTES), 0)  # a hole could not be filled on a full disk
            self._map = mmap.mmap(fd, _BYTES)
        finally:
            os.close(fd)
        self._word = memoryview(self._map).cast("q")

    @property
    def until_ns(self) -> int:
        return self._word[0]

    def write(self, until_ns: int) -> None:
        self._word[0] = until_ns

    @property
    def patience_ns(self) -> int:
        """The patience of the standby, or 0 if it was never known."""
        return self._word[1]

    def write_patience(self, patience_ns: int) -> None:
        self._word[1] = patience_ns

    def is_valid(self, now_ns: int) -> bool:
        """Return True if a publish may be acknowledged now."""
        until_ns = self._word[0]
        return not until_ns or now_ns < until_ns

    def close(self) -> None:
        self._word.release()
        self._map.close()


class LeaseWatch:
    """The lease as one process of the broker sees it.

    `run_dir` is "" in a broker that ships nothing to a bucket. `over_ns` is the time since when
    the lease is over, as far as this process has looked, or 0.
    """

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir
        self._cell: LeaseCell | None = None
        self.over_ns = 0

    @property
    def is_over(self) -> bool:
        if not self._run_dir:
            return False
        if self._cell is None:
            with contextlib.suppress(OSError, ValueError):  # the archive actor has not made it yet
                self._cell = LeaseCell(self._run_dir)
            if self._cell is None:
                return False
        # Without a standby, this costs no call for the time.
        until_ns = self._cell.until_ns
        if not until_ns or self._cell.is_valid(now_ns := boot_ns()):
            self.over_ns = 0
            return False
        if not self.over_ns:
            self.over_ns = until_ns if until_ns > OVER else now_ns
        return True

    @property
    def is_lost(self) -> bool:
        """True if the lease has been over for the patience of the standby."""
        if not self.is_over:
            return False
        assert self._cell is not None
        patience_ns = self._cell.patience_ns or int(PATIENCE_S * 1e9)
        return boot_ns() - self.over_ns > patience_ns

    def check(self) -> None:
        """Raise `Refused` (E_STANDBY) if this broker is not primary any more."""
        if self.is_lost:
            raise Refused(E_STANDBY, LOST)
