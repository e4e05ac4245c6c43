"""Testing with ZSQ under its public name, `zsq.testing` (see docs/testing.md)."""

from ..apps.testing.asserting import assert_published
from ..apps.testing.local import LocalBroker, StartFailed
from ..apps.testing.memory_broker import MemoryBroker
from ..apps.testing.namespace import Namespace

__all__ = ["LocalBroker", "MemoryBroker", "Namespace", "StartFailed", "assert_published"]
