"""Run directory: the directory of the broker's sockets, DATA_DIR/run, with mode 0700.

If its paths would be too long for ipc, a short directory elsewhere replaces it, and run.json names
it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import socket
import struct
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ...transport.wire.address import RUN_ID_FILE

log = logging.getLogger("zsq")

IPC_PATH_BYTES_MAX: Final = 107
_NAME_BYTES_MAX: Final = 16  # a socket's name is "supervisor" or a number


def make(data_dir: Path) -> str:
    """Create an empty run directory with a new run id, and remove the one that a dead broker left.

    The caller holds the data directory's lock.
    """
    run_dir = _make_empty(data_dir)
    # A broker must start even on a full disk. Without the run id, clients on this machine use the
    # gateway and not the sockets in this directory.
    with contextlib.suppress(OSError):
        fd = os.open(
            f"{run_dir}/{RUN_ID_FILE}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )
        try:
            os.write(fd, os.urandom(16).hex().encode())
        finally:
            os.close(fd)
    return run_dir


def _make_empty(data_dir: Path) -> str:
    pointer = data_dir / "run.json"
    if pointer.exists():
        clear(data_dir, _named(pointer))
    wanted = data_dir / "run"
    shutil.rmtree(wanted, ignore_errors=True)
    if len(os.fsencode(wanted)) + 1 + _NAME_BYTES_MAX <= IPC_PATH_BYTES_MAX:
        wanted.mkdir(mode=0o700)
        return str(wanted)
    short = tempfile.mkdtemp(prefix="zsq-")  # mkdtemp makes it 0700
    if len(os.fsencode(short)) + 1 + _NAME_BYTES_MAX > IPC_PATH_BYTES_MAX:
        os.rmdir(short)
        short = tempfile.mkdtemp(prefix="zsq-", dir="/tmp")
    pointer.write_text(json.dumps({"run": short}))
    return short


def _named(pointer: Path) -> str:
    try:
        return str(json.loads(pointer.read_text())["run"])
    except (ValueError, KeyError, TypeError, OSError):
        return ""


def clear(data_dir: Path, run_dir: str) -> None:
    """Remove the run directory.

    A run directory outside the data directory is removed only if its name shows that zsq made it.
    """
    if run_dir == str(data_dir / "run") or Path(run_dir).name.startswith("zsq-"):
        shutil.rmtree(run_dir, ignore_errors=True)
    (data_dir / "run.json").unlink(missing_ok=True)


def remove_sockets(run_dir: str, endpoints: Iterable[str]) -> None:
    """Remove the socket files of an ended process, given its endpoints.

    libzmq removes them only if the process ends regularly. Those of a killed process would stay,
    because no later process uses the same numbers.
    """
    for endpoint in endpoints:
        if endpoint.startswith(f"ipc://{run_dir}/"):
            with contextlib.suppress(OSError):
                os.unlink(endpoint.removeprefix("ipc://"))


class TwinRuns(Exception):
    """Another broker with the same uuid runs on this machine.

    The text names its process and the remedy.
    """


def claim(uuid: str, copy: str = "") -> socket.socket:
    """Claim the broker's uuid on this machine for as long as the returned socket exists.

    `copy` is the identity of the data directory if the broker ships to a bucket. Raises `TwinRuns`
    if another broker has claimed it.

    A copy of a data directory has the same uuid, and its lock does not show that the original is in
    use. The claim is an abstract unix socket. The kernel releases it when the process ends for any
    reason, and it needs no folder that all users can write to. It is visible only within one
    network namespace, so two containers do not see each other's claims. (Rejected: a lock file in
    /tmp or in the user's run directory. Any user may remove a file in /tmp, or create it before the
    broker does. And not every service has a user's run directory.)

    Any user of the machine can bind this name. If another user has bound it, this broker starts
    nevertheless.
    """
    name = f"\0zsq-broker-{uuid}{copy}"
    claimed = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        claimed.bind(name)
        claimed.listen(16)
    except OSError:
        claimed.close()
        pid, uid = _owner(name)
        if uid == os.geteuid():
            text = (
                f"this data directory is a copy of one on which another broker runs (pid {pid}, "
                f"uuid {uuid})"
            )
            raise TwinRuns(
                f"{text}: two brokers must not have the same uuid. Stop that one, or make the "
                "copy with `zsq backup`"
            ) from None
        log.warning(
            (
                "user %d uses the socket name that belongs to this data directory, so a second "
                "broker on a copy of it cannot be detected"
            ),
            uid,
        )
        return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    return claimed


def _owner(name: str) -> tuple[int, int]:
    """Return the process id and user id of the listener, or (-1, -1) if none answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
        probe.settimeout(1.0)
        probe.connect(name)
        pid, uid, _ = struct.unpack(
            "3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        )
        return pid, uid
    return -1, -1
