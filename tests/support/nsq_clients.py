"""The NSQ client libraries that tests use, each in a small program (tests/compat/clients/): what
each library can do, how its program is started, and how a test exchanges events with it.
"""

from __future__ import annotations

import fcntl
import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

TESTS: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = TESTS / "compat" / "clients"
NSQJS: Final = "0.13.0"
EVENT_S: Final = 30.0
_LAYERS: Final = ("tls", "deflate", "snappy", "tls+deflate", "tls+snappy")

Event = dict[str, Any]


@dataclass(frozen=True)
class Client:
    """A client library. `asks_timeout`: a client can ask for its own message timeout. `packs`: its
    producer, and not only its consumer, can use compression and TLS.

    `looks_again`: its consumer continues to ask nsqlookupd after a connection was refused.
    """

    name: str
    needs: tuple[str, ...] = ()  # Python modules that must be installed
    layers: tuple[str, ...] = _LAYERS
    asks_timeout: bool = True
    packs: bool = True
    looks_again: bool = True

    def command(self) -> list[str]:
        if self.name == "nsqjs":
            return [str(program("node")), str(FOLDER / "nsqjs_client.js")]
        return [sys.executable, "-m", f"compat.clients.{self.name}_client"]

    def missing(self) -> str:
        """Return why this client cannot run here, or an empty text if it can."""
        if self.name == "nsqjs":
            return nsqjs_missing()
        missing = [module for module in self.needs if importlib.util.find_spec(module) is None]
        return f"{self.name} is not installed: no {', '.join(missing)}" if missing else ""


CLIENTS: Final = (
    Client("pynsq", ("nsq", "tornado", "snappy")),
    # The producer of gnsq mistakes the OK of the TLS or compression layer for the OK of a publish.
    Client("gnsq", ("gnsq", "gevent", "snappy"), asks_timeout=False, packs=False),
    Client("ansq", ("ansq",), layers=(), looks_again=False),
    Client("nsqjs"),
)


# nsqjs comes from npm. These functions install it once, into the user's cache.


def node_modules() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "zsq-tests" / f"nsqjs-{NSQJS}" / "node_modules"


def program(name: str) -> str | None:
    """Return the path of node or npm on this machine, or of the one that the extra `test-clients`
    installs.
    """
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))


@functools.cache
def nsqjs_missing() -> str:
    npm = program("npm")
    for name in ("node", "npm"):
        if program(name) is None:
            return f"there is no {name}"
    folder = node_modules().parent
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        # Other test processes wait here, and then find nsqjs installed.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return ""
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            command = [
                str(npm),
                "install",
                "--no-audit",
                "--no-fund",
                "--prefix",
                made,
                f"nsqjs@{NSQJS}",
            ]
            try:
                done = subprocess.run(
                    command,
                    capture_output=True,
                    text=True,
                    timeout=90,
                    check=False,
                    stdin=subprocess.DEVNULL,
                )
            except subprocess.TimeoutExpired:
                return "npm install did not end within 90 s"
            if done.returncode:
                return f"npm install failed: {done.stderr[-500:]}"
            shutil.copytree(made, folder.with_suffix(".new"), symlinks=True, dirs_exist_ok=True)
            folder.with_suffix(".new").rename(folder)
    return ""


class Program:
    """One client in a separate process. It ends when its stdin is closed, so it outlives neither
    its test nor the process of the test.
    """

    def __init__(self, client: Client, role: str, log: Path, **config: Any) -> None:
        usual: dict[str, Any] = {
            "nsqd": "",
            "lookupd": "",
            "topic": "",
            "channel": "ch",
            "in_flight": 10,
            "auto": False,
            "heartbeat_s": 30,
        }
        usual |= {"msg_timeout_ms": 0, "tls_ca": "", "deflate": False, "snappy": False}
        assert config.keys() <= usual.keys()
        self.log = log
        environment = os.environ | {"PYTHONPATH": str(TESTS), "NODE_PATH": str(node_modules())}
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [*client.command(), role, json.dumps(usual | config)], env=environment, cwd=TESTS, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=stderr,
            )  # fmt: skip
        self.events: list[Event] = []
        self._changed = threading.Condition()
        self._over = False
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()

    def _hear(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with self._changed:
                    self.events.append(json.loads(line))
                    self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def tell(self, op: str, **more: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"op": op, **more}).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self, op: str, message: Event, **more: Any) -> None:
        self.tell(op, id=message["id"], attempts=message["attempts"], **more)

    def next(self, kind: str, timeout_s: float = EVENT_S) -> Event:
        """Remove and return the next event of this kind."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                for event in self.events:
                    if event["event"] == kind:
                        self.events.remove(event)
                        return event
                left = deadline - time.monotonic()
                if self._over or left <= 0:
                    why = "it ended" if self._over else f"not within {timeout_s:g} s"
                    said = self.log.read_text(errors="replace")[-3000:]
                    raise AssertionError(
                        f"no {kind}: {why}; events {self.events[-5:]}; it said\n{said}"
                    )
                self._changed.wait(left)

    def message(self, timeout_s: float = EVENT_S) -> Event:
        return self.next("message", timeout_s)

    def all_of(self, kind: str) -> list[Event]:
        with self._changed:
            return [event for event in self.events if event["event"] == kind]

    def silent(self, kind: str, seconds: float) -> bool:
        """Return True if no event of this kind comes within this time."""
        with self._changed:
            return not self._changed.wait_for(
                lambda: any(event["event"] == kind for event in self.events), seconds
            )

    def publish(self, op: str, topic: str, *bodies: bytes, delay_ms: int | None = None) -> Event:
        """Publish without waiting for the answer."""
        more = {} if delay_ms is None else {"delay_ms": delay_ms}
        self.tell(op, topic=topic, bodies=[body.decode("latin-1") for body in bodies], **more)
        return more

    def close(self) -> None:
        """End the program in an orderly way, and check its exit code."""
        self.tell("close")
        self.next("closed")
        assert self.process.wait(EVENT_S) == 0, self.log.read_text(errors="replace")[-3000:]

    def end(self) -> None:
        """Kill the program if it still runs, however the test ended."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(EVENT_S)
        if self.process.stdin is not None:
            self.process.stdin.close()
        self._hearing.join(EVENT_S)
