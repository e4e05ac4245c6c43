"""A topic that Spark writes to, as a test sees it: its staged and its visible data, and a trap that
kills processes in the middle of a commit.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.broker import Broker, kill, wait_for

import zsq


class Topic:
    """A topic of `broker`, and the folder where its files are."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.broker, self.name = broker, name

    def row(self) -> dict[str, Any]:
        with zsq.Admin(self.broker.ipc) as admin:
            [row] = admin.stats(self.name)["topics"]
        found: dict[str, Any] = row
        return found

    def create(self) -> Topic:
        with zsq.Admin(self.broker.ipc) as admin:
            admin.create_topic(self.name)
        return self

    def head(self) -> int:
        """Return the next offset. It is 0 until something was committed."""
        with zsq.Reader(self.name, url=self.broker.ipc) as reader:
            return reader.read(0, 1).head

    @property
    def folder(self) -> Path:
        """Return the folder with the topic's log."""
        for path in (self.broker.data_dir / "topics").iterdir():
            first, _, _ = (path / "topic").read_text().partition("\n")
            if json.loads(first)["name"] == self.name:
                return path
        raise AssertionError(f"topic {self.name} has no folder")

    def storage_pid(self) -> int:
        [pid] = [
            actor["pid"] for actor in self.broker.actors() if actor["name"] == f"topic {self.name}"
        ]
        return int(pid)

    def wait_staged(self, size_bytes: int = 1) -> None:
        wait_for(
            lambda: self.row()["staged_bytes"] >= size_bytes,
            60,
            f"{size_bytes} bytes staged in {self.name}",
        )

    def no_stage_left(self, timeout_s: float = 15.0) -> None:
        wait_for(lambda: not self.row()["stages"], timeout_s, f"no stage left in {self.name}")
        wait_for(
            lambda: not list((self.folder / "staging").glob("*")),
            timeout_s,
            f"no staged file left of {self.name}",
        )

    def kill_storage(self) -> int:
        """Kill the topic's process with SIGKILL, and wait until its successor runs. Return the pid
        of the killed process.
        """
        pid = self.storage_pid()
        kill(pid)

        def follows() -> bool:
            found = [
                a
                for a in self.broker.actors()
                if a["name"] == f"topic {self.name}" and a.get("state") == "up"
            ]
            return bool(found) and found[0]["pid"] != pid

        wait_for(follows, 30, f"a new storage of {self.name}")
        return pid


def crash(broker: Broker, *first: int) -> None:
    """Kill the pids in `first`, then the supervisor, with SIGKILL. All other processes end by
    themselves.
    """
    assert broker.process is not None
    pids = sorted({actor["pid"] for actor in broker.actors()} - {broker.process.pid})
    for pid in first:
        kill(pid)
    broker.process.kill()
    broker.process.wait(20)
    broker.wait_gone(pids)


class Trap:
    """A thread that kills `pids` as soon as `sprung(files(folder))` is true for the topic's folder.
    So the kill comes in the middle of a commit, as precisely as another process can do it.
    """

    def __init__(
        self, folder: Path, pids: list[int], sprung: Callable[[dict[str, int]], bool]
    ) -> None:
        self._folder, self._pids, self._sprung = folder, pids, sprung
        self._stop = threading.Event()
        self.caught = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.is_set():
            if self._sprung(files(self._folder)):
                for pid in self._pids:
                    kill(pid)
                self.caught.set()
                return

    def close(self) -> None:
        self._stop.set()
        self._thread.join(10)


def files(folder: Path) -> dict[str, int]:
    """Return name and size of each chunk of a topic (.chunk) and of each staged file (.chunk or
    .part).
    """
    found = {}
    for path in (folder, folder / "staging"):
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.endswith((".chunk", ".part")):
                    with contextlib.suppress(FileNotFoundError):  # the file has been renamed since
                        found[entry.name] = entry.stat().st_size
    return found
