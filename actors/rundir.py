"""The directory of sockets: DATA_DIR/run, mode 0700; where paths would be too long for ipc, a short one that run.json names."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

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
