"""Preloaded module of a test broker's forkserver: all processes of the broker use the test's clock.

The forkserver imports it before all modules of the broker.
"""

import os
from pathlib import Path

from . import clock

clock.install(Path(os.environ[clock.OFFSET_FILE]))
