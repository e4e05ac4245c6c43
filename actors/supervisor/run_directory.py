"""The directory of sockets: DATA_DIR/run, mode 0700; where paths would be too long for ipc, a short one that run.json names."""

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

log = logging.getLogger("zsq")

IPC_PATH_BYTES_MAX: Final = 107
_NAME_BYTES_MAX: Final = 16  # "supervisor" or a number


def make(data_dir: Path) -> str:
    """An empty one; what a dead predecessor left is removed. The caller holds the data directory's lock."""
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
    """Remove the sockets. A directory elsewhere is removed only if it is one of ours: its name says so."""
    if run_dir == str(data_dir / "run") or Path(run_dir).name.startswith("zsq-"):
        shutil.rmtree(run_dir, ignore_errors=True)
    (data_dir / "run.json").unlink(missing_ok=True)


def remove_sockets(run_dir: str, endpoints: Iterable[str]) -> None:
    """Remove the socket files of a process that ended, given its own endpoints.

    libzmq removes them only where a process ends by itself. Those of a killed one would stay, and no successor uses the same numbers.
    """
    for endpoint in endpoints:
        if endpoint.startswith(f"ipc://{run_dir}/"):
            with contextlib.suppress(OSError):
                os.unlink(endpoint.removeprefix("ipc://"))


class TwinRuns(Exception):
    """Another broker of the same uuid runs on this machine; the text says which process, and what to do."""


def claim(uuid: str) -> socket.socket:
    """Take the broker's uuid for this machine, as long as the socket that is returned lives. `TwinRuns` where another broker has it.

    A copy of a data directory has the same uuid, so its lock does not tell that the original runs. The claim is an abstract unix socket,
    which the kernel releases when the process ends, however that is, and which needs no folder that all users may write. It is known only
    within one network namespace: two containers do not see each other's. (Rejected: a lock file in /tmp or in the user's run directory.
    Anybody may remove the first or put a file there before us, and not every service has the second.)

    Any user of the machine can take a name. One that another user has taken does not keep this broker from starting.
    """
    name = f"\0zsq-broker-{uuid}"
    claimed = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        claimed.bind(name)
        claimed.listen(16)
    except OSError:
        claimed.close()
        pid, uid = _owner(name)
        if uid == os.geteuid():
            text = (
                f"this data directory is a copy of one on which another broker runs (pid {pid}, uuid {uuid}): two brokers must not have the"
            )
            raise TwinRuns(f"{text} same uuid. Stop that one, or make the copy with `zsq backup`") from None
        log.warning("the name of this broker's uuid is taken by a process of user %d: a second broker on a copy would not be noticed", uid)
        return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    return claimed


def _owner(name: str) -> tuple[int, int]:
    """Process and user who listen there; -1 where nobody does any more, or does not answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
        probe.settimeout(1.0)
        probe.connect(name)
        pid, uid, _ = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        return pid, uid
    return -1, -1
