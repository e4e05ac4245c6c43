"""The brokers of the bucket torture: each has a data directory that may be lost, and that is then
restored from the bucket under another name.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Final

from support.broker import Broker
from support.torture.bucket.store import RESTORE_S, URL, Command, Store
from support.torture.kills import Killer
from support.torture.processes import await_end, of_sessions, send

PROGRAM: Final = Path(__file__).with_name("serve.py")
LAG_S: Final = 0.5
CHUNK_BYTES: Final = 256 << 10
KEPT_BYTES: Final = 512 << 10
SERVE: Final = (
    "--bucket", URL, "--bucket-lag", f"{int(LAG_S * 1000)}ms", "--chunk-bytes", str(CHUNK_BYTES), "--keep-bytes",
    str(KEPT_BYTES), "--alarm-command", "true", "--alarm-depth", "1000000000",
)  # fmt: skip
START_S: Final = 120.0
RESTORES_MAX: Final = 12
EAGER_EVERY: Final = 4  # one of so many restores fetches the archived log files too


class RestoreFailed(Exception):
    """No restore succeeded. The text is the output of the last one."""


class Home:
    """A data directory and its broker, on a machine of its own (see `serve.py`).

    `lifetime` is the number of the directory.
    """

    def __init__(self, folder: Path, lifetime: int, port: int, seed: int) -> None:
        self.lifetime = lifetime
        self.broker = Broker(folder / f"data-{lifetime}", *SERVE)
        self.broker.program = (str(PROGRAM), str(lifetime))
        if port:
            self.broker.port = port
        self.killer = Killer(self.broker, None, seed)

    @property
    def url(self) -> str:
        return self.broker.tcp

    @property
    def folder(self) -> Path:
        return self.broker.data_dir

    def start(self) -> None:
        self.broker.start(START_S)
        self.killer.note_generation()

    def launch(self) -> None:
        """Start the broker without waiting until it is ready."""
        self.broker.launch()
        self.killer.note_generation()

    def kill_everything(self) -> int:
        """Kill all processes, wait for their end, and return their number."""
        found = self.killer.living()
        for process in found:
            send(process, signal.SIGKILL)
        self.killer.reap()
        return len(found)

    def stop(self) -> None:
        """Stop all processes with SIGSTOP."""
        for process in self.killer.living():
            send(process, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let stopped processes go on."""
        for process in self.killer.living():
            send(process, signal.SIGCONT)

    def lose(self) -> None:
        """Kill all processes and delete the data directory."""
        self.kill_everything()
        shutil.rmtree(self.folder)

    def end(self) -> int:
        """Kill what still lives. Return the number of those processes."""
        left = of_sessions(self.killer.sessions)
        self.killer.end_all()
        await_end(left, 20)
        return len(left)


class Restores:
    """Restores data directories with `zsq restore`, through the proxy. Some restores are killed."""

    def __init__(
        self, store: Store, folder: Path, chance: random.Random, counts: Counter[str]
    ) -> None:
        self._store = store
        self._folder = folder
        self._random = chance
        self.counts = counts

    def restore(self, data_dir: Path, *, killed: bool) -> str:
        """Restore the directory. With `killed`, the first restore is killed at some moment.

        Return a text about what was done. Raises `RestoreFailed`.
        """
        eager = self._random.random() < 1 / EAGER_EVERY
        option = ["--eager"] if eager else []
        kills = failures = 0
        log = self._folder / "restore.log"
        began = time.monotonic()
        for attempt in range(RESTORES_MAX):
            command = Command(log, self._store.faulty, "restore", URL, str(data_dir), *option)
            if killed and not attempt:
                if not command.wait(self._random.uniform(0.2, 1.6)):
                    command.kill()
                    kills += 1
                    continue
            elif not command.wait(RESTORE_S):
                command.kill()
                raise RestoreFailed(f"a restore did not end within {RESTORE_S:g} s")
            if command.code == 0:
                self.counts["restores"] += 1
                self.counts["eager restores"] += eager
                self.counts["killed restores"] += kills
                self.counts["failed restores"] += failures
                self.counts["restore ms"] += int((time.monotonic() - began) * 1000)
                text = f"restored{' --eager' if eager else ''} in {time.monotonic() - began:.1f} s"
                text += f", {kills} restore killed" if kills else ""
                return text + (f", {failures} restores failed" if failures else "")
            failures += 1
            if "E_BUCKET" not in command.output():
                raise RestoreFailed(f"a restore failed, but not by the proxy: {command.output()}")
            if data_dir.exists():
                raise RestoreFailed(f"a failed restore has left {data_dir}: {command.output()}")
        raise RestoreFailed(f"{RESTORES_MAX} restores failed: {command.output()}")
