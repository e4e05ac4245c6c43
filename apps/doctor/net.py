"""Network checks of `zsq doctor`: free ports, owners of ports, and a running broker's health."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ... import __version__
from ...actors.runtime.listening import open_sockets, reason_of, split_place
from ...storage.errors import REFUSED_TEXT
from ...transport.client.blocking.client import Admin
from ...transport.errors import ZsqError
from ...transport.reports import BrokerStats
from .system import ADVICE, OK, PROBLEM, CheckResult

RESTARTS_MANY: Final = 5
SURPRISE_S: Final = 0.5  # the wait for a broker that should not run


def ports(places: Sequence[str], broker_pid: int) -> Iterator[CheckResult]:
    """Check `places`, each HOST:PORT.

    A port that the directory's broker holds is no problem. `broker_pid` is its pid, or 0 if none
    runs.
    """
    free: list[str] = []
    for place in places:
        _, port = split_place(place)
        failure = _listen(place)
        if failure is None:
            free.append(place)
        elif failure.errno != errno.EADDRINUSE:
            yield CheckResult(
                PROBLEM,
                "ports",
                f"cannot listen at {place}: {reason_of(failure)}",
                "use another address: --listen, --nsq-listen, --http-listen",
            )
        else:
            pids = owners(port)
            if broker_pid and any(_is_below(pid, broker_pid) for pid in pids):
                yield CheckResult(OK, "ports", f"{place}: used by this directory's broker")
                continue
            who = (
                ", ".join(f"{_name(pid)} (pid {pid})" for pid in sorted(pids))
                or "a process of another user or container"
            )
            yield CheckResult(
                ADVICE,
                "ports",
                f"{place} is in use by {who}",
                "stop that process, or use another address",
            )
    if free:
        yield CheckResult(OK, "ports", f"free: {', '.join(free)}")


def _listen(place: str) -> OSError | None:
    """Try to listen as the gateways do. Return the error, or None if the port is free."""
    try:
        for probe in open_sockets(place, 1):
            probe.close()
    except OSError as error:
        return error
    return None


def owners(port: int, proc: Path = Path("/proc")) -> set[int]:
    """Return the pids that listen on the port, as far as this user may see them."""
    inodes: set[str] = set()
    for name in ("net/tcp", "net/tcp6"):
        try:
            lines = (proc / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    pids: set[int] = set()
    for path in proc.iterdir() if inodes else ():
        if path.name.isdecimal() and _holds(path / "fd", inodes):
            pids.add(int(path.name))
    return pids


def _holds(folder: Path, inodes: set[str]) -> bool:
    try:
        for fd in folder.iterdir():
            match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(fd))
            if match and match.group(1) in inodes:
                return True
    except OSError:
        return False
    return False


def _is_below(pid: int, ancestor: int) -> bool:
    """Return True if `pid` is `ancestor` or a descendant of it, at most 7 generations below."""
    for _ in range(8):
        if pid == ancestor:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return False


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "a process"


def broker(url: str, timeout_s: float, *, expected: bool) -> Iterator[CheckResult]:
    """Check a running broker. `expected` is True if one should run.

    Otherwise the wait is short, so that no log says that it waits.
    """
    try:
        with Admin(url, timeout=timeout_s if expected else min(timeout_s, SURPRISE_S)) as admin:
            stats: Any = admin.stats()
    except ZsqError as error:
        level = PROBLEM if expected else OK
        yield CheckResult(
            level,
            "broker",
            f"no broker answers at {url}: {error.text}" if expected else "no broker runs",
            "see the broker's log, and start it with zsq serve" if expected else "",
        )
        return
    yield from health(stats)


def health(stats: BrokerStats) -> Iterator[CheckResult]:
    """Check the answer to the request `stats`."""
    actors = stats.get("processes", ())
    text = (
        f"version {stats['version']}, pid {stats['pid']}: {len(stats['topics'])} topics, "
        f"{len(actors)} processes"
    )
    yield CheckResult(OK, "broker", text)
    if stats["version"] != __version__:
        yield CheckResult(
            ADVICE,
            "broker",
            f"it runs version {stats['version']}, but {__version__} is installed",
            "restart the broker",
        )
    if disk_full := stats.get("disk", {}).get("full"):
        yield CheckResult(
            PROBLEM, "broker", disk_full, "free space; see docs/runbooks.md, A full disk"
        )
    for topic in stats["topics"]:
        # What a backlog alarm says is below, once.
        alarms = (row for row in stats.get("alarms", ()) if row["topic"] == topic["topic_name"])
        known = ["OK", "; ".join(f"alarm: {row['text']}" for row in alarms)]
        if topic.get("health", "OK") not in known and not (
            disk_full and topic["health"] == REFUSED_TEXT
        ):
            yield CheckResult(
                PROBLEM,
                "broker",
                f"topic {topic['topic_name']}: {topic['health']}",
                "see the broker's log, and docs/runbooks.md",
            )
    for alarm in stats.get("alarms", ()):
        if disk_full and not alarm.get("topic"):
            continue  # `health` already reports the full disk
        yield CheckResult(ADVICE, "broker", f"alarm: {alarm['text']}", "see zsq alarms")
    restarted = sorted(
        {
            actor["name"]
            for actor in actors
            if "name" in actor and actor.get("restarts", 0) >= RESTARTS_MANY
        }
    )
    if restarted:
        yield CheckResult(
            ADVICE,
            "broker",
            f"restarted {RESTARTS_MANY} times or more: {', '.join(restarted[:5])}",
            "see the broker's log",
        )
