"""Disk checks of `zsq doctor`: data directory, file system, free space, and time of a sync."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ...actors.supervisor.run_directory import IPC_PATH_BYTES_MAX
from ...actors.supervisor.topics.registry import REGISTRY_NAME
from ...actors.supervisor.topics.registry_format import decode
from ...storage.errors import ForeignDirectory, Locked
from ...storage.files import Files
from ...storage.space import RESERVE_BYTES_MAX, RESERVE_SHARE
from .system import ADVICE, OK, PROBLEM, CheckResult

SYNCS: Final = 200
SYNCS_S: Final = 3.0  # the measurement ends after this many seconds, however slow the disk is
SYNC_BYTES: Final = 4_096
P99_SLOW_S: Final = 0.05
# No disk is as fast as this. It is memory, or a cache that does not write at a sync.
P50_FAST_S: Final = 0.000_02
FREE_SHARE: Final = 10  # the check gives advice below a tenth of free space
MEMORY_SYSTEMS: Final = frozenset({"tmpfs", "ramfs"})
NETWORK_SYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "lustre", "afs"}
)
# After a power cut, a file that was renamed may have neither of its names.
UNJOURNALED_SYSTEMS: Final = frozenset({"ext2", "vfat", "msdos", "exfat"})
STANDBY_NAME: Final = "standby"
LAYER_SYSTEMS: Final = frozenset({"overlay", "aufs", "squashfs"})
DANGEROUS: Final = frozenset({"nobarrier", "barrier=0", "nobarriers"})
REGISTRY_BYTES_MAX: Final = 64 << 20


class Mount(NamedTuple):
    where: str
    kind: str
    options: frozenset[str]


def there(path: Path) -> Path:
    """Return the directory itself, or its nearest parent that exists."""
    path = path.absolute()
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


def temporary(data_dir: Path) -> Iterator[CheckResult]:
    """Check whether a directory for temporary files can be written."""
    try:
        yield CheckResult(OK, "temporary files", f"go to {tempfile.gettempdir()}")
    except FileNotFoundError:
        yield CheckResult(
            ADVICE,
            "temporary files",
            f"no usual directory can be written; the broker uses {data_dir.absolute()}/tmp",
            "set TMPDIR to a directory that this user may write, such as a tmpfs",
        )


def directory(data_dir: Path) -> Iterator[CheckResult]:
    """Check whether a broker could start on the directory, and what it contains."""
    path = data_dir.absolute()
    if not path.exists():
        if path.parent.is_dir() and os.access(path.parent, os.W_OK | os.X_OK):
            yield CheckResult(OK, "data directory", f"{path} does not exist; zsq serve creates it")
        else:
            yield CheckResult(
                PROBLEM,
                "data directory",
                f"{path} does not exist and cannot be created",
                f"create {path.parent}, writable by the user who runs the broker",
            )
        return
    if not path.is_dir() or not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        text = f"{path} cannot be read and written by this user"
        yield CheckResult(
            PROBLEM, "data directory", text, "change its owner with chown, or run as its owner"
        )
        return
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        yield CheckResult(
            ADVICE, "data directory", f"{path} is open to other users", f"chmod 700 {path}"
        )
    if len(os.fsencode(path)) > IPC_PATH_BYTES_MAX - 21:
        text = (
            "its path is too long for sockets; the broker puts them elsewhere, and names the "
            "place in run.json"
        )
        yield CheckResult(OK, "data directory", text)
    yield _content(path)


def is_of_standby(data_dir: Path) -> bool:
    """Return True if a standby has the directory: it has the bucket's messages in a folder."""
    return (data_dir / STANDBY_NAME).is_dir() and not (data_dir / REGISTRY_NAME).exists()


def _content(path: Path) -> CheckResult:
    names = set(os.listdir(path))
    if is_of_standby(path):
        pid = holder(path)
        if pid:
            text = f"{path}: of a standby, its process is {pid}"
            return CheckResult(OK, "data directory", text)
        text = f"{path}: of a standby, and none runs on it"
        return CheckResult(ADVICE, "data directory", text, "start it with zsq standby")
    if REGISTRY_NAME not in names:
        if not names - {"lock", "log", "lost+found"}:
            return CheckResult(OK, "data directory", f"{path} is empty")
        text = f"{path} is not empty and has no {REGISTRY_NAME}"
        return CheckResult(
            PROBLEM,
            "data directory",
            text,
            (
                "use another directory; if it was a data directory: zsq fsck DIR --repair, or zsq "
                "restore"
            ),
        )
    try:
        content = decode(
            (path / REGISTRY_NAME).read_bytes()[:REGISTRY_BYTES_MAX], str(path / REGISTRY_NAME)
        )
    except ForeignDirectory as error:
        return CheckResult(
            PROBLEM, "data directory", str(error), f"run zsq fsck {path} --repair, or zsq restore"
        )
    left = [
        name
        for name, row in content.topics.items()
        if row.state == "live" and not (path / "topics" / f"{row.number:06d}").is_dir()
    ]
    if left:
        return CheckResult(
            PROBLEM,
            "data directory",
            f"the directories of topics {', '.join(sorted(left)[:5])} are missing",
            "mount them, or use zsq restore",
        )
    pid = holder(path)
    held = f"its broker is process {pid}" if pid else "no broker runs on it"
    return CheckResult(OK, "data directory", f"{path}: {len(content.topics)} topics, {held}")


def holder(path: Path) -> int:
    """Return the pid of the broker that holds the directory, -1 if unknown, 0 if there is none.

    The function takes the lock only for a moment.
    """
    files = Files()
    try:
        lock = files.lock(str(path / "lock"), write=False)
    except Locked as error:
        return error.pid or -1
    except OSError:
        return 0
    if lock >= 0:
        files.close(lock)
    return 0


# The file system


def mounts(text: str) -> list[Mount]:
    """Parse /proc/mounts, which writes spaces as \\040."""
    mounts = []
    for line in text.splitlines():
        fields = line.split(" ")
        if len(fields) >= 4:
            mounts.append(
                Mount(
                    fields[1].encode().decode("unicode_escape"),
                    fields[2],
                    frozenset(fields[3].split(",")),
                )
            )
    return mounts


def mount_of(path: str, mounted: Sequence[Mount]) -> Mount | None:
    inside = [
        mount
        for mount in mounted
        if mount.where == "/"
        or path == mount.where
        or path.startswith(f"{mount.where.rstrip('/')}/")
    ]
    return (
        max(enumerate(inside), key=lambda numbered: (len(numbered[1].where), numbered[0]))[1]
        if inside
        else None
    )


def file_system(data_dir: Path, table: str | None = None) -> Iterator[CheckResult]:
    path = os.path.realpath(there(data_dir))
    mount = mount_of(path, mounts(Path("/proc/mounts").read_text() if table is None else table))
    if mount is None:
        yield CheckResult(
            ADVICE, "file system", f"the file system of {path} is unknown", "check with `findmnt`"
        )
        return
    text = f"{mount.kind} at {mount.where}"
    if "ro" in mount.options:
        yield CheckResult(PROBLEM, "file system", f"{text}, read-only", "mount it read-write")
    elif mount.kind in MEMORY_SYSTEMS:
        yield CheckResult(
            PROBLEM,
            "file system",
            f"{text}: its data is lost when the machine stops",
            "use a directory on a disk",
        )
    elif mount.kind in UNJOURNALED_SYSTEMS:
        yield CheckResult(
            PROBLEM,
            "file system",
            f"{text}: it has no journal, so a power cut may lose a file that is being renamed",
            "use a file system with a journal, such as ext4 or XFS",
        )
    elif mount.kind in NETWORK_SYSTEMS or mount.kind.startswith("fuse"):
        advice = (
            "use a local disk: locks, mapped files and syncs may not be reliable on a network "
            "or FUSE file system"
        )
        yield CheckResult(ADVICE, "file system", text, advice)
    elif mount.kind in LAYER_SYSTEMS:
        yield CheckResult(
            ADVICE,
            "file system",
            f"{text}: a layer of a container, removed with it",
            "use a volume",
        )
    elif unsafe := sorted(mount.options & DANGEROUS):
        yield CheckResult(
            PROBLEM,
            "file system",
            (
                f"{text}, mounted with {', '.join(unsafe)}: a sync may return before the data "
                "is on "
                "disk"
            ),
            f"mount it without {', '.join(unsafe)}",
        )
    else:
        yield CheckResult(OK, "file system", text)


def _size(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 1 << 30 else f"{count / 2**20:,.1f} MiB"


def space(data_dir: Path) -> Iterator[CheckResult]:
    path = there(data_dir)
    status = os.statvfs(path)
    free, total = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
    reserve = min(RESERVE_BYTES_MAX, total // RESERVE_SHARE)
    text = f"{_size(free)} of {_size(total)} free; publishing stops below {_size(reserve)}"
    if free <= reserve:
        yield CheckResult(
            PROBLEM, "disk space", text, "free space: publishes are refused with E_DISK_FULL"
        )
    elif free < max(2 * reserve, total // FREE_SHARE):
        yield CheckResult(
            ADVICE,
            "disk space",
            text,
            "free space, or limit topics with zsq topic set NAME --max-bytes or --keep-bytes",
        )
    else:
        yield CheckResult(OK, "disk space", text)
    if status.f_files and status.f_favail < 10_000:
        yield CheckResult(
            PROBLEM if status.f_favail < 10 else ADVICE,
            "disk space",
            f"only {status.f_favail:,} more files can be created",
            "remove files (df -i shows it), or use a file system with more inodes: a topic has "
            "about ten files",
        )


# Syncs


def sync_times(path: Path, count: int = SYNCS) -> list[float]:
    """Return the sorted times of small synced writes to a temporary file.

    A broker does the same for each publisher that waits.
    """
    times: list[float] = []
    deadline = time.monotonic() + SYNCS_S
    with tempfile.TemporaryFile(dir=path, prefix=".zsq-doctor-") as file:
        fd, data = file.fileno(), os.urandom(SYNC_BYTES)
        for number in range(count):
            began = time.perf_counter()
            os.pwrite(fd, data, number * SYNC_BYTES)
            os.fdatasync(fd)
            times.append(time.perf_counter() - began)
            if time.monotonic() > deadline:
                break
    return sorted(times)


def syncs(data_dir: Path) -> Iterator[CheckResult]:
    times = sync_times(there(data_dir))
    p50, p99 = times[len(times) // 2], times[min(len(times) - 1, len(times) * 99 // 100)]
    text = (
        f"a small write with fdatasync takes {_ms(p50)} (p50), {_ms(p99)} (p99) in {len(times)} "
        "tries"
    )
    if p50 < P50_FAST_S:
        advice = (
            "check that synced data survives a power failure: this may be a RAM disk, or a "
            "virtual disk with an unsafe cache"
        )
        yield CheckResult(ADVICE, "sync latency", f"{text}: faster than a disk is", advice)
    elif p99 > P99_SLOW_S:
        advice = (
            "use a faster disk, publish in batches (waiting publishes share one sync), or use "
            "--sync interval"
        )
        yield CheckResult(ADVICE, "sync latency", text, advice)
    else:
        yield CheckResult(OK, "sync latency", text)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"
