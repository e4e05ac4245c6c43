"""Tests of the bucket's part in a topic's storage: what waits for the lease of the primary.

The storage is a real store, and the archive actor never answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.fake_storage import STORAGE
from support.storage_harness import SMALL, StorageHarness

from zsq.actors.bucket.lease_cell import OVER, LeaseCell
from zsq.actors.bucket.topic.topic_bucket import TopicBucket
from zsq.storage.bucket.archive.chunk_cache import open_cache
from zsq.transport.errors import E_BUCKET, Refused


class Topic:
    """A storage without its actor, as its extension sees it. `timers` are those that run."""

    def __init__(self, root: Path) -> None:
        self.harness = StorageHarness(root, replace(SMALL, open_remote=open_cache(1 << 20)))
        self.store = self.harness.open()
        self.timers: set[Callable[[], None]] = set()
        self.confirmed: list[str] = []
        self.title = "topic t"
        self.state = None
        self.host = SimpleNamespace(
            every=lambda _, job: self.timers.add(job),
            cease=self.timers.discard,
            obey_reload=lambda *_: None,
            open_dealer=lambda _: SimpleNamespace(route=lambda *_: None, send=lambda *_: True),
            stopping=False,
        )
        run = root / "run"
        run.mkdir()
        self.cell = LeaseCell(str(run), make=True)
        self.given = replace(
            STORAGE, uuid="00" * 16, archive=f"ipc://{run}/7", ship_lag_s=1.0, sync="never",
        )  # fmt: skip

    def bucket(self, *, archive_setting: str = "off", **given: Any) -> TopicBucket:
        retention = replace(self.given.retention, archive=archive_setting)
        self.given = replace(self.given, retention=retention, **given)
        return TopicBucket(cast("Any", self))

    def roll(self) -> None: ...

    def fetched(self) -> None: ...

    def resume_delayed(self) -> None: ...

    def read_state(self, job: object, then: object) -> None: ...

    def confirm_appends(self) -> None:
        self.confirmed.append("appends")


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[Topic]:
    made = Topic(tmp_path)
    yield made
    made.cell.close()
    made.harness.abandon()


def test_without_a_bucket_nothing_waits(topic: Topic) -> None:
    topic.cell.write(OVER)
    bucket = topic.bucket(archive="", ship_lag_s=0.0, sync="always")
    assert not bucket.appends_must_wait()
    assert not bucket.finishes_must_wait()
    bucket.when_confirmable(lambda: topic.confirmed.append("delayed"))
    assert topic.confirmed == ["delayed"]
    bucket.check()
    bucket.sync_changed("bucket")
    with pytest.raises(Refused, match=E_BUCKET):
        bucket.check()
    assert "start it with --bucket" in bucket.refusal()


def test_nothing_is_confirmed_while_the_lease_is_over(topic: Topic) -> None:
    """Whoever finds first that it holds again ceases the timer, so the next turn confirms too."""
    bucket = topic.bucket()
    topic.cell.write(OVER)
    assert bucket.appends_must_wait()
    assert bucket.finishes_must_wait()
    assert bucket.repeats_must_wait(), "a repeated block may never have been confirmed"
    bucket.when_confirmable(lambda: topic.confirmed.append("delayed"))
    bucket.turn()
    assert topic.timers
    assert not topic.confirmed
    topic.cell.write(0)
    assert not bucket.finishes_must_wait()
    assert not topic.timers
    assert not bucket.repeats_must_wait()
    bucket.turn()
    assert topic.confirmed == ["delayed"]


def test_the_timer_confirms_when_the_lease_holds_again(topic: Topic) -> None:
    bucket = topic.bucket()
    topic.cell.write(OVER)
    bucket.when_confirmable(lambda: topic.confirmed.append("delayed"))
    (timer,) = topic.timers
    timer()
    assert not topic.confirmed
    topic.cell.write(0)
    timer()
    assert topic.confirmed == ["delayed", "appends"]


def test_a_new_sync_mode_confirms_nothing_without_a_lease(topic: Topic) -> None:
    bucket = topic.bucket(sync="bucket", archive_setting="on")
    topic.cell.write(OVER)
    assert not bucket.appends_must_wait(), "what the bucket has needs no lease"
    bucket.when_confirmable(lambda: topic.confirmed.append("delayed"))
    bucket.sync_changed("always")
    assert not topic.confirmed
    topic.cell.write(0)
    bucket.turn()
    assert topic.confirmed == ["delayed"]
