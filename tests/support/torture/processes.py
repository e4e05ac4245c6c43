"""The living processes of a broker, found in /proc by their session. This works even if the broker
itself does not answer.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TITLES: Final = {
    "zsq: supervisor ": "supervisor",
    "zsq: forkserver": "forkserver",
    "zsq: topic ": "topic",
    "zsq: channel ": "channel",
    "zsq: quiet ": "host",
    "zsq: scan loop": "scan_loop",
    "zsq: scan worker": "scan_worker",
    "zsq: gateway ": "gateway",
    "zsq: alarms": "alarm_teller",
    "zsq: bucket": "archive",
}


@dataclass(frozen=True)
class Process:
    pid: int
    session: int
    title: str
    # Clock ticks from the start of the machine to that of the process. This distinguishes two
    # processes with the same pid.
    started: int

    @property
    def kind(self) -> str:
        return next(
            (kind for title, kind in TITLES.items() if self.title.startswith(title)), "unnamed"
        )

    @property
    def topic(self) -> str:
        """Return the name of the topic for a topic's or channel's process, otherwise ""."""
        return (
            self.title.split(" ")[2].partition("/")[0] if self.kind in ("topic", "channel") else ""
        )


def is_shared(title: str) -> bool:
    """Return True for the title of a process that several actors share."""
    return title.startswith("zsq: quiet ")


def read(pid: int) -> Process | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        title = (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
            .strip()
        )
    except OSError:
        return None
    return None if fields[0] in "ZX" else Process(pid, int(fields[3]), title, int(fields[19]))


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def of_sessions(sessions: Iterable[int]) -> list[Process]:
    """Return all processes that live in these sessions. A broker is started as the leader of a
    session, and its children stay in it.
    """
    wanted = set(sessions)
    return [
        process
        for process in map(read, pids())
        if process is not None and process.session in wanted
    ]


def holders_of(folder: Path) -> list[Process]:
    """Return all processes, except this one, that have a file below the folder open. Only processes
    of the broker may have one.
    """
    prefix = str(folder) + "/"
    found = []
    for pid in pids():
        if pid == os.getpid():
            continue
        with contextlib.suppress(OSError):
            links = [
                os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")
            ]
            process = read(pid)
            if process is not None and any(link.startswith(prefix) for link in links):
                found.append(process)
    return found


def send(process: Process, number: int) -> bool:
    """Send a signal. Return False if the process has ended."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        now = read(process.pid)
        if now is None or now.started != process.started:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def await_end(processes: Iterable[Process], seconds: float) -> list[Process]:
    """Wait for the end of these processes, but at most `seconds`. Return the processes that still
    live.
    """
    deadline = time.monotonic() + seconds
    left = [
        process
        for process in processes
        if (now := read(process.pid)) is not None and now.started == process.started
    ]
    while left and time.monotonic() < deadline:
        select.select([], [], [], 0.005)
        left = [
            process
            for process in left
            if (now := read(process.pid)) is not None and now.started == process.started
        ]
    return left
