"""What bounds an `#ephemeral` topic: its messages are in memory, so nothing of it may be without a bound. Pure.

Without settings of its own it keeps nothing that is finished, and loses what is oldest beyond its bound, as NSQ's did. `reject` may be
chosen instead. The broker's settings for retention are meant for disks, and do not hold here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..storage.retention import NONE, Retention, resolve
from ..transport.errors import E_BAD_ARGUMENT, UsageError

_MIB: Final = 1024 * 1024


def retention_in_memory(own: Mapping[str, Any], bytes_max: int) -> Retention:
    """The policy of a topic in memory with these settings. `UsageError` E_BAD_ARGUMENT."""
    found = resolve({"keep_bytes": 0, "max_bytes": bytes_max, "when_full": "drop-oldest"}, own)
    for name in ("keep_bytes", "max_bytes"):
        value = getattr(found, name)
        if value == NONE or value > bytes_max:
            shown = "no bound" if value == NONE else f"{value} bytes"
            limit = f"{bytes_max} ({bytes_max // _MIB} MiB)"
            raise UsageError(E_BAD_ARGUMENT, f"{name} of a topic in memory is at most {limit}, not {shown}; use a topic on disk for more")
    return found
