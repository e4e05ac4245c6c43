"""Sync modes of topics: which modes a topic may be created with, and which changes are possible.

`always` and `bucket` may replace each other while a topic runs, because both sync the log before
anything else happens. The other modes decide how the log is written, so they are chosen when a
topic is created. Pure.
"""

from __future__ import annotations

from typing import Final

from ....transport.errors import E_BAD_ARGUMENT, UsageError
from ....transport.settings import SYNC_MODES, Retention
from ...settings.options import ServeOptions

BUCKET: Final = "bucket"
CHANGEABLE: Final = ("always", BUCKET)


def check_new(topic: str, sync: str, kept: Retention, given: ServeOptions) -> None:
    """Raise `UsageError` (E_BAD_ARGUMENT) if a topic on disk cannot be created with this mode.

    `kept` is the retention that the topic will have.
    """
    _check_known(sync)
    if sync == BUCKET:
        _check_shipped(topic, given)
        check_archive(topic, sync, kept)


def check_in_memory(topic: str, sync: str) -> None:
    """Raise `UsageError` (E_BAD_ARGUMENT) if a topic in memory was asked to have this mode."""
    _check_known(sync)
    if sync == BUCKET:
        raise UsageError(
            E_BAD_ARGUMENT,
            f"topic {topic!r} is kept in memory and never shipped to the bucket, so it cannot have "
            "sync bucket; choose a name without #ephemeral",
        )


def check_change(topic: str, before: str, sync: str, given: ServeOptions) -> None:
    """Raise `UsageError` (E_BAD_ARGUMENT) if the topic's mode `before` cannot become `sync`."""
    _check_known(sync)
    if sync == before:
        return
    if not {before, sync} <= {*CHANGEABLE}:
        raise UsageError(
            E_BAD_ARGUMENT,
            f"topic {topic!r} has sync {before}, which cannot become {sync}: interval and never "
            "are chosen when a topic is created, and only always and bucket may replace each "
            "other; create another topic",
        )
    if sync == BUCKET:
        _check_shipped(topic, given)


def check_archive(topic: str, sync: str, kept: Retention) -> None:
    """Raise `UsageError` (E_BAD_ARGUMENT) if the topic answers from the bucket, and is not in
    it.
    """
    if sync == BUCKET and kept.archive != "on":
        raise UsageError(
            E_BAD_ARGUMENT,
            f"topic {topic!r} cannot have both sync bucket and archive off: with archive off, it "
            "is on the disk only; set archive on (--archive on), or sync always",
        )


def _check_known(sync: str) -> None:
    if sync not in SYNC_MODES:
        raise UsageError(
            E_BAD_ARGUMENT, f"sync must be one of {', '.join(SYNC_MODES)}, not {sync!r:.40}"
        )


def _check_shipped(topic: str, given: ServeOptions) -> None:
    if not given.bucket or not given.bucket_lag_s:
        missing = "--bucket-lag none" if given.bucket else "no --bucket"
        raise UsageError(
            E_BAD_ARGUMENT,
            f"topic {topic!r} cannot have sync bucket, because this broker runs with {missing}: "
            "start it with --bucket, and --bucket-lag with a time",
        )
