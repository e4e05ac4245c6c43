"""Temporary broker in its own directory, for the demo and the benchmarks."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

READY_WAIT_S: Final = 120.0
READY_POLL_S: Final = 0.005
STOP_WAIT_S: Final = 30.0
ZSQ: Final = ("-m", "zsq")
DATA: Final = "data"


class BrokerFailed(Exception):
    """The broker did not start, or ended. The text has the end of its log."""


@dataclass(frozen=True, slots=True)
class LocalBroker:
    """A running `zsq serve`, with its directory and its address for clients of the same machine.

    `data` is the name of the data directory in `folder`.
    """

    process: subprocess.Popen[bytes]
    folder: Path
    log: Path
    data: str = DATA

    @property
    def data_dir(self) -> Path:
        return self.folder / self.data

    @property
    def url(self) -> str:
        return f"ipc://{self.data_dir}/run"

    def check(self) -> None:
        """Raise `BrokerFailed` if the broker has ended."""
        if self.process.poll() is not None:
            raise BrokerFailed(
                f"the broker ended with code {self.process.returncode}:\n{_last_lines(self.log)}"
            )


@contextlib.contextmanager
def temporary_broker(
    *options: str,
    prefix: str = "zsq-",
    under: Path | None = None,
    program: Sequence[str] = ZSQ,
    environment: Mapping[str, str] | None = None,
) -> Iterator[LocalBroker]:
    """Run `zsq serve` in a new directory below `under` (default: the system's temporary directory).

    The broker and its directory are removed at the end of the context. The interpreter gets
    `program` in place of `-m zsq`. The arguments after it stay the same.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=under))
    try:
        with _serve(folder, folder / "broker.log", options, program, environment or {}) as broker:
            yield broker
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def serve_again(broker: LocalBroker, *options: str) -> Iterator[LocalBroker]:
    """Run a broker on the data directory of a broker that has ended. The directory stays."""
    with _serve(
        broker.folder, broker.folder / "broker-again.log", ("--no-listen", *options)
    ) as again:
        yield again


@contextlib.contextmanager
def serve_elsewhere(broker: LocalBroker, data: str, *options: str) -> Iterator[LocalBroker]:
    """Run a broker on another data directory beside that of a broker that has ended."""
    with _serve(broker.folder, broker.folder / f"broker-{data}.log", options, data=data) as again:
        yield again


@contextlib.contextmanager
def standby_of(broker: LocalBroker, data: str, *options: str) -> Iterator[LocalBroker]:
    """Run a standby of a broker on another data directory beside it."""
    log = broker.folder / f"broker-{data}.log"
    with _serve(broker.folder, log, options, data=data, command="standby") as standby:
        yield standby


@contextlib.contextmanager
def _serve(
    folder: Path,
    log: Path,
    options: Sequence[str],
    program: Sequence[str] = ZSQ,
    environment: Mapping[str, str] | None = None,
    data: str = DATA,
    command: str = "serve",
) -> Iterator[LocalBroker]:
    line = [sys.executable, "-P", *program, command, "--data-dir", str(folder / data), *options]
    env = {**os.environ, **(environment or {})}
    with log.open("wb") as out:
        # The broker runs in its own session, so that Ctrl-C reaches only this process. This process
        # then stops everything in order.
        process = subprocess.Popen(
            line, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True, env=env
        )
    try:
        broker = LocalBroker(process, folder, log, data)
        if command == "serve":
            wait_until_ready(broker)
        yield broker
    finally:
        _end(process)


def wait_until_ready(broker: LocalBroker) -> None:
    deadline = time.monotonic() + READY_WAIT_S
    while b" ready: " not in broker.log.read_bytes():
        broker.check()
        if time.monotonic() > deadline:
            raise BrokerFailed(
                f"the broker was not ready after {READY_WAIT_S:.0f} s:\n{_last_lines(broker.log)}"
            )
        time.sleep(READY_POLL_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _last_lines(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])
