"""Tests of sync modes: which one a topic may be created with, and which one may become another."""

from __future__ import annotations

from pathlib import Path

import pytest

from zsq.actors.settings.options import ServeOptions
from zsq.actors.supervisor.commands import sync_modes
from zsq.transport.errors import UsageError
from zsq.transport.settings import SYNC_MODES, Retention

SHIPS = ServeOptions(Path("d"), bucket="file:///b")
ARCHIVES = ServeOptions(Path("d"), bucket="file:///b", bucket_lag_s=0)
ALONE = ServeOptions(Path("d"))


@pytest.mark.parametrize("sync", SYNC_MODES)
def test_a_broker_that_ships_creates_topics_with_every_mode(sync: str) -> None:
    sync_modes.check_new("t", sync, Retention(), SHIPS)


@pytest.mark.parametrize(
    ("given", "missing"), [(ARCHIVES, "--bucket-lag none"), (ALONE, "no --bucket")]
)
def test_a_broker_that_does_not_ship_refuses_the_mode_bucket(
    given: ServeOptions, missing: str
) -> None:
    for sync in SYNC_MODES.keys() - {"bucket"}:
        sync_modes.check_new("t", sync, Retention(), given)
    with pytest.raises(UsageError, match=f"this broker runs with {missing}: start it with"):
        sync_modes.check_new("t", "bucket", Retention(), given)
    with pytest.raises(UsageError, match=f"this broker runs with {missing}: start it with"):
        sync_modes.check_change("t", "always", "bucket", given)
    sync_modes.check_change("t", "bucket", "always", given)
    sync_modes.check_change("t", "bucket", "bucket", given)


def test_a_topic_that_answers_from_the_bucket_is_in_the_bucket() -> None:
    with pytest.raises(UsageError, match="cannot have both sync bucket and archive off"):
        sync_modes.check_new("t", "bucket", Retention(archive="off"), SHIPS)
    sync_modes.check_new("t", "always", Retention(archive="off"), SHIPS)


def test_a_topic_in_memory_cannot_have_the_mode_bucket() -> None:
    for sync in SYNC_MODES.keys() - {"bucket"}:
        sync_modes.check_in_memory("t#ephemeral", sync)
    with pytest.raises(UsageError, match="is kept in memory and never shipped"):
        sync_modes.check_in_memory("t#ephemeral", "bucket")


@pytest.mark.parametrize("before", SYNC_MODES)
@pytest.mark.parametrize("sync", SYNC_MODES)
def test_a_mode_may_become_another_one_unless_the_bucket_would_have_an_old_copy(
    before: str, sync: str
) -> None:
    if sync != "bucket":
        sync_modes.check_change("t", before, sync, ALONE)
        sync_modes.check_change("t", before, sync, ARCHIVES)
    if before == sync or "never" not in (before, sync):
        sync_modes.check_change("t", before, sync, SHIPS)
        return
    with pytest.raises(UsageError, match="a topic with never is not shipped"):
        sync_modes.check_change("t", before, sync, SHIPS)


def test_a_topic_in_memory_keeps_its_mode() -> None:
    with pytest.raises(UsageError, match="is kept in memory, so its sync stays never"):
        sync_modes.check_change("t#ephemeral", "never", "always", ALONE)


def test_an_unknown_mode_is_refused() -> None:
    said = "one of always, bucket, interval, never, not 'often'"
    with pytest.raises(UsageError, match=said):
        sync_modes.check_new("t", "often", Retention(), SHIPS)
    with pytest.raises(UsageError, match=said):
        sync_modes.check_change("t", "always", "often", SHIPS)
