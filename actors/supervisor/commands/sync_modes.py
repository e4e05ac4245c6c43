"""Sync modes of topics: which modes a topic may be created with, and which changes are possible.

A topic that runs may get another mode, because it syncs all that is written before. So each message
that was acknowledged or delivered is durable then. Two kinds of topics keep their mode: those in
memory, and at a broker that ships to the bucket those with `never`, which are not shipped. Pure.
"""

from __future__ import annotations

from typing import Final

from ....transport.errors import E_BAD_ARGUMENT, UsageError
from ....transport.names import is_ephemeral
from ....transport.settings import SYNC_MODES, Retention
from ...settings.options import ServeOptions

BUCKET: Final = "bucket"
NEVER: Final = "never"


def check_new(topic: str, sync: str, kept: Retention, options: ServeOptions) -> None:
    """Raise `UsageError` (E_BAD_ARGUMENT) if a topic on disk cannot be created with this mode.

    `kept` is the retention that the topic will have.
    """
    _check_known(sync)
    if sync == BUCKET:
        _check_shipped(topic, options)
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


def check_change(topic: str, before: str, sync: str, options: ServeOptions) -> None:
    """Raise `UsageError` (E_BAD_ARGUMENT) if the topic's mode `before` cannot become `sync`."""
    _check_known(sync)
    if sync == before:
        return
    if is_ephemeral(topic):
        raise UsageError(
            E_BAD_ARGUMENT,
            f"topic {topic!r} is kept in memory, so its sync stays {before}; choose a name without "
            "#ephemeral",
        )
    if NEVER in (before, sync) and options.ships:
        raise UsageError(
            E_BAD_ARGUMENT,
            f"topic {topic!r} has sync {before}, which cannot become {sync} at a broker that ships "
            "to a bucket: a topic with never is not shipped, so the bucket would have an older "
            "copy, or none; create another topic",
        )
    if sync == BUCKET:
        _check_shipped(topic, options)


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


def _check_shipped(topic: str, options: ServeOptions) -> None:
    if not options.ships:
        missing = "--bucket-lag none" if options.bucket else "no --bucket"
        raise UsageError(
            E_BAD_ARGUMENT,
            f"topic {topic!r} cannot have sync bucket, because this broker runs with {missing}: "
            "start it with --bucket, and --bucket-lag with a time",
        )
