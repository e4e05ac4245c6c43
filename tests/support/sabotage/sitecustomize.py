"""Module on the PYTHONPATH of a broker under test. All syncs of chunks fail with EIO while the file
that ZSQ_SABOTAGE names exists. If the file has a process id, only syncs of that process fail.
"""

from __future__ import annotations

import errno
import os
from typing import Any

_flag = os.environ.get("ZSQ_SABOTAGE", "")
_fdatasync = os.fdatasync


def _is_sabotaged() -> bool:
    try:
        with open(_flag, encoding="ascii") as file:
            return file.read() in ("", str(os.getpid()))
    except FileNotFoundError:
        return False


def _sync(fd: Any) -> None:
    path = os.readlink(f"/proc/self/fd/{fd}")
    if path.endswith(".chunk") and _is_sabotaged():
        raise OSError(errno.EIO, "sabotaged", path)
    _fdatasync(fd)


if _flag:
    os.fdatasync = _sync
