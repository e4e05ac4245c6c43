"""Loss of the broker and its disk in the middle of the pipeline, and its restore from the bucket.

The clients know only the address. They wait until a broker answers there again.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from local_setup.broker import BrokerFailed, LocalBroker, serve_elsewhere
from local_setup.processes import kill_group
from local_setup.s3_servers import Traffic

from .bucket import LAG_S, URL, BucketServer

RESTORED: Final = "restored"
POLL_S: Final = 0.02
RESTORE_WAIT_S: Final = 120.0
# What a channel has finished is shipped within the lag. The rest is for a busy machine.
FINISHED_S: Final = LAG_S + 2.0
NOTHING: Final = Traffic(0, 0)


class Interrupted(Exception):
    """The restore was stopped, because the demo ends."""


@dataclass(slots=True)
class Sampled:
    """The values of a counter over the last seconds."""

    seconds: float
    samples: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, now_s: float, value: int) -> None:
        self.samples.append((now_s, value))
        while len(self.samples) > 1 and self.samples[1][0] <= now_s - self.seconds:
            self.samples.popleft()

    @property
    def grown(self) -> int:
        """Return how much the counter grew within these seconds, or a little longer."""
        return self.samples[-1][1] - self.samples[0][1] if self.samples else 0


@dataclass(slots=True)
class Before:
    """Progress of the pipeline at the moment of the loss. `recent` is what `Sampled` found."""

    streamed: int = 0
    workers: int = 0
    totals: int = 0
    published: int = 0
    recent: int = 0


@dataclass(slots=True)
class Loss:
    """Kills the broker, destroys its data directory, restores it, and starts a broker again.

    `killed_at` is the time of the kill, and `gone_at` the time when all processes had ended. The
    other times are durations. `ready_s` begins with the kill.
    """

    server: BucketServer
    before: Before = field(default_factory=Before)
    happened: bool = False
    killed_at: float = 0.0
    gone_at: float = 0.0
    processes: int = 0
    destroyed_files: int = 0
    destroyed_bytes: int = 0
    destroy_s: float = 0.0
    restore_s: float = 0.0
    start_s: float = 0.0
    ready_s: float = 0.0
    restored: dict[str, Any] = field(default_factory=dict)
    fetched: Traffic = NOTHING
    later: Traffic = NOTHING
    _began: bool = False
    _counted: Traffic = NOTHING
    _stopping: threading.Event = field(default_factory=threading.Event)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def is_due(self) -> bool:
        """True until the loss begins."""
        return not self._began

    def happen(self, broker: LocalBroker, before: Before) -> LocalBroker:
        """Lose the broker and its disk. Return the broker that has taken its place."""
        self._began = True
        self.before = before
        self.killed_at = time.monotonic()
        self.processes = kill_group(broker.process)
        self.gone_at = time.monotonic()
        self.destroyed_files, self.destroyed_bytes = size_of(broker.data_dir)
        shutil.rmtree(broker.data_dir)
        counted = self.server.traffic()
        start = time.monotonic()
        self.destroy_s = start - self.killed_at
        self.restored = self._restore(broker.folder)
        restored = time.monotonic()
        self.restore_s = restored - start
        self._counted = self.server.traffic()
        self.fetched = self._counted.since(counted)
        again = self._stack.enter_context(serve_elsewhere(broker, RESTORED, *self.server.options))
        now = time.monotonic()
        self.start_s, self.ready_s = now - restored, now - self.killed_at
        self.happened = True
        return again

    def count_later(self) -> None:
        """Count what was fetched from the bucket since the restore."""
        self.later = self.server.traffic().since(self._counted)

    def _restore(self, folder: Path) -> dict[str, Any]:
        """Run `zsq restore` and return what it prints."""
        out, log = folder / "restore.json", folder / "restore.log"
        line = [sys.executable, "-P", "-m", "zsq", "restore", URL, str(folder / RESTORED), "--json"]
        deadline = time.monotonic() + RESTORE_WAIT_S
        with out.open("wb") as stdout, log.open("wb") as stderr:
            process = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
            )
            try:
                while process.poll() is None:
                    if self._stopping.wait(POLL_S):
                        raise Interrupted
                    if time.monotonic() > deadline:
                        raise BrokerFailed(f"zsq restore took more than {RESTORE_WAIT_S:.0f} s")
            finally:
                process.kill()
                process.wait()
        if process.returncode:
            said = log.read_text(errors="replace") + out.read_text(errors="replace")
            raise BrokerFailed(f"zsq restore ended with code {process.returncode}:\n{said}")
        found = json.loads(out.read_bytes())
        assert isinstance(found, dict)
        return found

    @property
    def skipped(self) -> int:
        """Return how many offsets the restored broker steps over, in all topics."""
        return sum(
            stop - first
            for topic in self.restored.get("topics", ())
            for first, stop in topic["gaps"]
        )

    def stop(self) -> None:
        """End a restore that runs."""
        self._stopping.set()

    def close(self) -> None:
        """Stop the broker that was started."""
        self._stack.close()


def is_moment(streamed: int, published: int, paused_at: float, now_s: float) -> bool:
    """Return True when the broker should be lost.

    Spark's stream has read its first micro-batch, and live rows are being published. The auditor
    has paused (`paused_at` is not 0), and what it has finished is in the bucket by the lag.
    """
    return streamed > 0 and published > 0 and 0 < paused_at < now_s - FINISHED_S


def size_of(folder: Path) -> tuple[int, int]:
    """Return the number of files in a folder and below, and the disk space that they take."""
    sizes = [path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file()]
    return len(sizes), sum(sizes)
