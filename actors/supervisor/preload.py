"""Preloaded modules: the forkserver imports this module before it forks.

It imports everything that a child needs first, including what only unpickling needs. Otherwise each
child would import it again, which takes 11 of the 26 ms that the creation of a channel takes.
"""

import gc
import multiprocessing.popen_forkserver  # noqa: F401
import os
import pkgutil

from ..channel.serving_policy import serving_policy_class
from ..runtime import process_table as _process_table  # noqa: F401
from ..runtime.services import preloaded
from ..storage.extension_point import extension_class

for _actor in preloaded():
    pkgutil.resolve_name(_actor)
extension_class()
serving_policy_class()

if "ZSQ_SUPERVISOR_PID" in os.environ:
    gc.collect()
    # Without this a collection in a child would write to every object, and so copy all shared
    # pages.
    gc.freeze()
