"""Module on the PYTHONPATH of a broker under test. The file that ZSQ_WALL_CLOCK names has the
seconds by which the wall clock of all processes of the broker is set. Other clocks go on.
"""

from __future__ import annotations

import os
import time

_path = os.environ.get("ZSQ_WALL_CLOCK", "")
_time_ns = time.time_ns


def _set_ns() -> int:
    with open(_path, encoding="ascii") as file:
        return _time_ns() + int(file.read()) * 1_000_000_000


def _set_s() -> float:
    return _set_ns() / 1e9


if _path:
    time.time_ns = _set_ns
    time.time = _set_s
