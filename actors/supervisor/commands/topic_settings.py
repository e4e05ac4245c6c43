"""Settings of a new topic: its sync mode and its retention, checked. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....storage.retention import changed, resolve
from ....transport.errors import E_BAD_ARGUMENT, UsageError
from ...settings.options import ServeOptions
from . import sync_modes


def retention_of(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the retention in a request's settings. Raises `UsageError` (E_BAD_ARGUMENT)."""
    retention = settings.get("retention") or {}
    if not isinstance(retention, dict):
        raise UsageError(
            E_BAD_ARGUMENT, f"retention must be a map of settings, not {repr(retention)[:40]}"
        )
    return {str(key): value for key, value in retention.items()}


def checked(
    topic: str, sync: str, retention: Mapping[str, Any], given: ServeOptions
) -> tuple[str, dict[str, object]]:
    """Return the sync mode and the retention of a new topic on disk.

    Without a sync mode it gets that of the broker. Raises `UsageError` if they are invalid.
    """
    own = changed({}, retention)
    sync = sync or given.sync
    sync_modes.check_new(topic, sync, resolve(given.retention, own), given)
    return sync, own
