"""Description of the machine, which is part of every report."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sysconfig
from pathlib import Path
from typing import Final

PEERS: Final = ("nsqd", "redis-server", "nats-server")
OPTIMIZATIONS: Final = ("--enable-optimizations", "--with-lto")


def describe(folder: Path) -> dict[str, str]:
    """Return processor, usable cores, kernel, `folder`'s file system, versions, peers on PATH."""
    found = {
        "cpu": _cpu(),
        "cores": str(len(os.sched_getaffinity(0))),
        "kernel": platform.release(),
        "file system": _file_system(folder),
        "python": f"{platform.python_version()}, {python_build()}",
        "pyzmq": importlib.metadata.version("pyzmq"),
    }
    return found | {peer: shutil.which(peer) or "not found" for peer in PEERS}


def python_build() -> str:
    """Return whether the interpreter was configured with the options that make it faster."""
    arguments = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    return "configured " + ", ".join(
        f"{'with' if option in arguments else 'without'} {option}" for option in OPTIMIZATIONS
    )


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _file_system(folder: Path) -> str:
    """Return the type and device of the mount that holds `folder`."""
    best = ("", "unknown")
    path = f"{folder.resolve()}/"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        device, mount, kind, *_ = line.split()
        if path.startswith(mount.rstrip("/") + "/") and len(mount) >= len(best[0]):
            best = (mount, f"{kind} on {device}")
    return best[1]
