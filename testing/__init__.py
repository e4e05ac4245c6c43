"""Testing with ZSQ under its public name, `zsq.testing` (see docs/testing.md)."""

from ..apps.testing.asserting import assert_published
from ..apps.testing.local import LocalBroker, StartFailed
from ..apps.testing.namespace import Namespace

__all__ = ["LocalBroker", "Namespace", "StartFailed", "assert_published"]
