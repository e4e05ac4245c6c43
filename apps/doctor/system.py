"""System checks of `zsq doctor`: Python, libraries, the user's limits, memory and clock.

A finding is ok, advice (it works, but could be better or safer), or a problem (it does not work, or
may lose data). Each says what was found. Advice and problems say what to do. The checks change
nothing. `disk.py` checks the disk, `net.py` ports and brokers.
"""

from __future__ import annotations

import ctypes
import errno
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

OK: Final = "ok"
ADVICE: Final = "advice"
PROBLEM: Final = "problem"
LEVELS: Final = (OK, ADVICE, PROBLEM)

LIBZMQ_MIN: Final = (4, 3, 5)  # contains security fixes for CURVE and for the heartbeats of links
FILES_MIN: Final = 4_096
# This is enough for a gateway with 10,000 connections, or a supervisor with 2,000 actors.
FILES_WANTED: Final = 16_384
TASKS_WANTED: Final = 16_384
TASKS_A_TOPIC: Final = 6  # the threads of a topic, with two of ZeroMQ and those of its storage
TASKS_A_CHANNEL: Final = 3
MEMORY_MIN: Final = 512 << 20
# The private memory of an actor with little work: the mean of a topic and a channel, rounded up.
ACTOR_BYTES: Final = 9 << 20
SHM_MIN: Final = 64 << 20  # the size limit of an #ephemeral topic
YEAR_MIN: Final = 2024


class CheckResult(NamedTuple):
    level: str
    what: str
    text: str
    advice: str = ""


Check = Callable[[], Iterator[CheckResult]]


def examined(checks: Mapping[str, Check]) -> list[CheckResult]:
    """Return all findings.

    A check that raises an error becomes a finding, and the others continue.
    """
    results: list[CheckResult] = []
    for name, check in checks.items():
        try:
            results += check()
        except Exception as error:  # the system may differ from what the checks expect
            is_disk = isinstance(error, OSError) and error.errno == errno.EIO
            results.append(
                CheckResult(
                    PROBLEM if is_disk else ADVICE,
                    name,
                    f"the check failed: {error or type(error).__name__}",
                    "the disk fails: see dmesg, and docs/recovery.md, A lost disk"
                    if is_disk
                    else "check it by hand",
                )
            )
    return results


def worst(findings: list[CheckResult]) -> str:
    return max((finding.level for finding in findings), key=LEVELS.index, default=OK)


# This Python and its libraries


def python() -> Iterator[CheckResult]:
    version = sys.version.split()[0]
    if sys.version_info < (3, 11, 1):  # the environment may be older than the package allows
        yield CheckResult(
            PROBLEM, "python", f"{version} ({sys.executable})", "install Python 3.11.1 or later"
        )
    else:
        yield CheckResult(OK, "python", f"{version} ({sys.executable})")


def libzmq() -> Iterator[CheckResult]:
    import zmq

    version = zmq.zmq_version_info()
    text = f"{zmq.zmq_version()}, pyzmq {zmq.__version__}"
    if version < LIBZMQ_MIN:
        wanted = ".".join(map(str, LIBZMQ_MIN))
        yield CheckResult(
            PROBLEM,
            "libzmq",
            text,
            (
                f"ZSQ needs {wanted} or later; install pyzmq's wheel: pip install "
                "--force-reinstall "
                "pyzmq"
            ),
        )
    elif missing := [name for name in ("ipc", "curve") if not zmq.has(name)]:
        advice = (
            "install pyzmq's wheel; a broker needs ipc to run, and curve for encryption and "
            "authentication"
        )
        yield CheckResult(
            PROBLEM if "ipc" in missing else ADVICE,
            "libzmq",
            f"{text}, without {', '.join(missing)}",
            advice,
        )
    else:
        yield CheckResult(OK, "libzmq", text)


DEVELOPERS: Final = frozenset({"test", "lint"})  # extras that a broker does not need


def libraries() -> Iterator[CheckResult]:
    """Compare the installed libraries with those that the package requires."""
    versions: list[str] = []
    for line in metadata.requires("zsq") or ():
        requirement, _, marker = line.partition(";")
        name = re.split(r"[<>=!~ \[]", requirement.strip())[0]
        extra = re.search(r"extra\s*==\s*['\"](\w+)", marker)
        if extra is not None and extra[1] in DEVELOPERS:
            continue
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            if extra is None:
                yield CheckResult(
                    PROBLEM, "libraries", f"{name} is missing", "reinstall zsq with pip"
                )
            continue
        if not satisfies(version, requirement):
            level = PROBLEM if extra is None else ADVICE
            yield CheckResult(
                level,
                "libraries",
                f"{name} {version} is installed, but {requirement.strip()} is needed",
                f"pip install '{requirement.strip()}'",
            )
        elif extra is None and name != "pyzmq":
            versions.append(f"{name} {version}")
    yield CheckResult(OK, "libraries", ", ".join(versions))
    for extra_name, module, purpose in (
        ("http", "starlette", "the HTTP API and the console"),
        ("nsq", "cramjam", "snappy for NSQ clients"),
        ("nsq", "google-re2", "permissions from NSQ auth servers"),
    ):
        try:
            metadata.version(module)
        except metadata.PackageNotFoundError:
            yield CheckResult(
                ADVICE,
                "libraries",
                f"not installed: {purpose}",
                f"pip install 'zsq[{extra_name}]', if you need it",
            )


def satisfies(version: str, requirement: str) -> bool:
    """Return True if the version satisfies the requirement.

    It knows the bounds that ZSQ's own metadata uses: >=, <=, ==, < and >, compared as numbers.
    """
    numbers = _numbers(version)
    for sign, bound in re.findall(r"(>=|<=|==|<|>)\s*([0-9][0-9.]*)", requirement):
        wanted = _numbers(bound)
        if not {
            ">=": numbers >= wanted,
            "<=": numbers <= wanted,
            "==": numbers == wanted,
            "<": numbers < wanted,
            ">": numbers > wanted,
        }[sign]:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    numbers = [int(part) for part in re.findall(r"\d+", version.partition("+")[0])][:4]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


# Limits of this user


def open_files() -> Iterator[CheckResult]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 1 << 20 if hard == resource.RLIM_INFINITY else hard
    text = f"{soft:,}; `zsq serve` raises the limit to {most:,}"
    advice = (
        "set LimitNOFILE=65536 in the systemd unit, or add `USER hard nofile 65536` to "
        "/etc/security/limits.conf"
    )
    yield CheckResult(
        PROBLEM if most < FILES_MIN else ADVICE if most < FILES_WANTED else OK,
        "open files",
        text,
        "" if most >= FILES_WANTED else advice,
    )


def processes(root: Path = Path("/")) -> Iterator[CheckResult]:
    """Check the limits on processes, which also count threads."""
    bounds: dict[str, int] = {}
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if hard != resource.RLIM_INFINITY:
        bounds["ulimit -u"] = hard
    for name, path in (
        ("pid_max", "proc/sys/kernel/pid_max"),
        ("threads-max", "proc/sys/kernel/threads-max"),
        ("the cgroup's pids.max", "sys/fs/cgroup/pids.max"),
    ):
        text = _read(root / path)
        if text.isdecimal():
            bounds[name] = int(text)
    if not bounds:
        yield CheckResult(OK, "processes", "no limit is set")
        return
    name, most = min(bounds.items(), key=lambda bound: bound[1])
    topics = most // (TASKS_A_TOPIC + TASKS_A_CHANNEL)
    text = (
        f"{most:,} processes and threads ({name}): enough for about {topics:,} topics with a "
        "channel each"
    )
    if most < TASKS_WANTED:
        yield CheckResult(
            ADVICE,
            "processes",
            text,
            (
                "raise TasksMax= and LimitNPROC= of the systemd unit, ulimit -u, or --pids-limit "
                "of the container"
            ),
        )
    else:
        yield CheckResult(OK, "processes", text)


# Memory and clock


def memory(root: Path = Path("/")) -> Iterator[CheckResult]:
    values = dict(re.findall(r"^(\w+):\s+(\d+) kB$", _read(root / "proc/meminfo"), re.MULTILINE))
    free = int(values.get("MemAvailable", 0)) << 10
    bound = _read(root / "sys/fs/cgroup/memory.max")
    free = min(free, int(bound)) if bound.isdecimal() else free
    text = (
        f"{free >> 20:,} MiB available: enough for {free // ACTOR_BYTES:,} topics and channels "
        "together, page cache not counted"
    )
    yield CheckResult(
        OK if free >= MEMORY_MIN else ADVICE,
        "memory",
        text,
        ""
        if free >= MEMORY_MIN
        else "give the machine or the container more memory, such as 1 GiB",
    )
    if _read(root / "proc/sys/vm/overcommit_memory") == "2":
        advice = (
            "set vm.overcommit_memory to 0 with sysctl: each process maps its files, and most "
            "of that never uses memory"
        )
        yield CheckResult(
            ADVICE,
            "memory",
            "the system does not overcommit memory (vm.overcommit_memory is 2)",
            advice,
        )


def clock() -> Iterator[CheckResult]:
    year = time.gmtime().tm_year
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    if year < YEAR_MIN:
        advice = "set the clock before the first start: message times and delays depend on it"
        yield CheckResult(PROBLEM, "clock", f"the clock shows {now}", advice)
    elif _unsynchronised():
        advice = (
            "run chrony or systemd-timesyncd: message times, ages and delays depend on the clock"
        )
        yield CheckResult(
            ADVICE, "clock", f"{now}; the kernel reports the clock as not synchronised", advice
        )
    else:
        yield CheckResult(OK, "clock", now)


def _unsynchronised() -> bool:
    """Return True if adjtimex(2) answers TIME_ERROR.

    The call changes nothing, because the first field is 0.
    """
    return bool(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512)) == 5)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
