"""What the forkserver imports before it forks.

All that a child needs first is here, also what only unpickles it: each child would import it anew (11 of 26 ms to make a channel).
"""

import gc
import multiprocessing.popen_forkserver  # noqa: F401
import os
import pkgutil

from ..runtime import process_table as _process_table  # noqa: F401
from .actor_table import ACTORS, NOT_PRELOADED

for _kind in ACTORS.keys() - NOT_PRELOADED:
    pkgutil.resolve_name(ACTORS[_kind])

if "ZSQ_SUPERVISOR_PID" in os.environ:
    gc.collect()
    gc.freeze()  # a collection in a child would write to every object's page, and so copy what all children share
