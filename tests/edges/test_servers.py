"""Tests of clients in servers: each one is started, serves a few requests, and ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest
from support.broker import Broker, wait_for

import zsq

from .outcomes import CUT
from .servers import (
    CTRL_C,
    GEVENT_CODES,
    LOOK,
    SERVERS,
    SIGTERM,
    WORKER_ENDS,
    Server,
    application,
    gevent_program,
)

REQUESTS: Final = 4
WAIT_S: Final = 60.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("servers") / "data") as broker:
        yield broker


def paths(url: str, topic: str) -> list[str]:
    """Return the bodies in a topic, sorted."""
    found: list[str] = []
    with contextlib.suppress(zsq.NotFound), zsq.Reader(topic, url=url) as reader:
        offset, head = reader.bounds()
        while offset < head:
            fetched = reader.read(offset)
            for block in fetched.blocks:
                found += [(body or b"").decode() for body in block.body.values()]
            offset = fetched.next_offset
    return sorted(found)


class Running:
    """A server that serves an application from a folder."""

    def __init__(self, folder: Path, server: Server, url: str, options: tuple[str, ...]) -> None:
        self._application = folder / "application.py"
        self._application.write_text(application(url, closes=server.closes))
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *server.command, *options],
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._root = ""

    @property
    def log(self) -> str:
        return self._log.read_text()

    def _listens(self) -> bool:
        found = re.search(r"http://127\.0\.0\.1:[1-9]\d*", self.log)
        self._root = found[0] if found else ""
        return bool(found)

    def get(self, path: str) -> int:
        """Ask until there is an answer. Return the pid of the worker."""
        pids: list[int] = []

        def answered() -> bool:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{self._root}{path}", timeout=5) as answer,
            ):
                pids.append(int(answer.read()))
            return bool(pids)

        wait_for(self._listens, WAIT_S, "the server listens")
        wait_for(answered, WAIT_S, "the server answers")
        return pids[0]

    def change(self) -> None:
        with self._application.open("a") as file:
            file.write("# changed\n")

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def reloads(running: Running, pids: set[int]) -> bool:
    """Change the application, and wait a while for another worker.

    uvicorn does not notice a change from before its first look.
    """
    running.change()
    with contextlib.suppress(AssertionError):
        wait_for(lambda: running.get(LOOK) not in pids, 3)
        return True
    return False


def is_polling(pids: Iterable[int]) -> bool:
    """Return True if the main threads of these processes wait for events.

    A worker with threads takes the lock of its pool in the handler of Ctrl-C, and waits for ever if
    its main thread holds it: it does so while it starts a thread, and the thread has answered the
    request by then. This is gunicorn's (27.0): no client takes part in it.
    """
    return all("poll" in Path(f"/proc/{pid}/wchan").read_text() for pid in pids)


@pytest.mark.parametrize(
    ("name", "ending"),
    [(name, ending) for name, server in SERVERS.items() for ending, cell in server.outcomes.items() if cell],
)  # fmt: skip
def test_a_server_sends_what_its_client_has(
    name: str, ending: str, broker: Broker, tmp_path: Path
) -> None:
    def stored() -> int:
        return len(paths(broker.tcp, "served")) - before

    before = 0
    server, before = SERVERS[name], stored()
    is_gunicorn = name.startswith("gunicorn")
    options = ("--max-requests", "1") if ending == WORKER_ENDS and is_gunicorn else ()
    running = Running(tmp_path, server, broker.tcp, options)
    wanted = 0 if server.outcomes[ending] == (CUT, None) else REQUESTS
    try:
        pids = {running.get(f"/{number}") for number in range(REQUESTS)}
        if ending == WORKER_ENDS and not is_gunicorn:
            wait_for(lambda: reloads(running, pids), WAIT_S, "a new worker")
        elif ending == SIGTERM:
            running.end(signal.SIGTERM)
        elif ending == CTRL_C:
            if "threads" in name:
                wait_for(lambda: is_polling(pids), WAIT_S, "the worker's main thread is idle")
            running.end(signal.SIGINT)

        if ending == WORKER_ENDS and wanted:
            # Gunicorn's last worker has not ended yet.
            least = REQUESTS - 1 if is_gunicorn else REQUESTS
            wait_for(lambda: stored() >= least, WAIT_S, running.log)
        else:
            assert stored() == wanted, running.log
    finally:
        running.close()


@pytest.mark.parametrize("ending", GEVENT_CODES)
def test_a_gevent_program_sends_what_it_has(ending: str, broker: Broker, tmp_path: Path) -> None:
    program, topic = tmp_path / "program.py", f"gevent-{list(GEVENT_CODES).index(ending)}"
    program.write_text(gevent_program(broker.tcp, topic, ending))
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    assert code == GEVENT_CODES[ending], done.stderr
    assert paths(broker.tcp, topic) == [str(number) for number in range(10)], done.stderr
