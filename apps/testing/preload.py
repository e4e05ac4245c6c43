"""Preloaded module of a test broker's forkserver: all processes of the broker use the test's clock.

The forkserver imports it before all modules of the broker.
"""

import os
from pathlib import Path
from typing import Final

from . import clock

LOOK_NS: Final = 50_000_000
"""The time after which a topic with delayed messages notices that the clock was moved."""

if clock.OFFSET_FILE in os.environ:
    clock.install(Path(os.environ[clock.OFFSET_FILE]))
    from ...actors.settings import options

    # Topics look at the wall clock so often while delayed messages wait. The broker's own value is
    # 10 s.
    options.__dict__["DELAYED_LOOK_NS"] = LOOK_NS
