"""Preloaded modules: the forkserver imports this before the classes of topics and channels.

They import the classes of extensions only when they start.
"""

from ..channel.serving_policy import serving_policy_class
from ..storage.extension_point import extension_class

extension_class()
serving_policy_class()
