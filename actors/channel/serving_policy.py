"""Extension point of a channel: it decides whether consumers may still be served here.

`ServingPolicy` is the channel without an extension, which always serves. A room of `actors/` fills
the point with a subclass, which it names in `SERVING`. When a finish is confirmed is decided by the
storage and its own extension (`actors/storage/extension_point.py`).
"""

from __future__ import annotations

from functools import cache

from ...transport.errors import Refused
from ..runtime.extensions import filled
from ..settings.starts import ChannelStart


class ServingPolicy:
    """The answer without an extension."""

    look_ms = 0.0
    """How often a channel with consumers asks for `refusal`, 0 for never."""

    def __init__(self, start: ChannelStart) -> None:
        """Take the start message of the channel."""

    def refusal(self) -> Refused | None:
        """Return the error with which consumers are turned away, or None."""
        return None

    def check(self) -> None:
        """Raise `Refused` if consumers are turned away."""
        if (refused := self.refusal()) is not None:
            raise refused


@cache
def serving_policy_class() -> type[ServingPolicy]:
    """Return the class that fills the extension point."""
    classes: tuple[type[ServingPolicy], ...] = filled("SERVING")
    assert len(classes) <= 1, f"two extensions decide about consumers: {classes}"
    return classes[0] if classes else ServingPolicy
