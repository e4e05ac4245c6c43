"""Module on the PYTHONPATH of a broker under test. All syncs of chunks fail with EIO while the file
that ZSQ_SABOTAGE names exists.
"""

from __future__ import annotations

import errno
import os
from typing import Any

_flag = os.environ.get("ZSQ_SABOTAGE", "")
_fdatasync = os.fdatasync


def _sync(fd: Any) -> None:
    path = os.readlink(f"/proc/self/fd/{fd}")
    if _flag and os.path.exists(_flag) and path.endswith(".chunk"):
        raise OSError(errno.EIO, "sabotaged", path)
    _fdatasync(fd)


if _flag:
    os.fdatasync = _sync
