"""Tests of the channel of a queue that somebody made before the workers started."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.broker import Broker
from support.keys import Keyring

import zsq
from zsq.apps.integrations.naming import CHANNEL
from zsq.apps.integrations.queues import make_queue

pytestmark = pytest.mark.timeout(200)
USERS = """
[users.worker]
curve = ["KEY worker"]
publish = ["*"]
subscribe = ["*"]

[users.boss]
curve = ["KEY boss"]
admin = ["*"]
"""


def hold_s(admin: zsq.Admin, topic: str) -> float:
    row = admin.stats(topic, CHANNEL)["topics"][0]["channels"][0]
    return float(row["settings"]["max_hold_s"])


@pytest.fixture(scope="module")
def admin(broker: Broker) -> Iterator[zsq.Admin]:
    with zsq.Admin(broker.tcp) as one:
        yield one


def test_a_worker_removes_the_limit_of_a_channel_that_existed(
    admin: zsq.Admin, caplog: pytest.LogCaptureFixture
) -> None:
    admin.create_topic("before")
    admin.create_channel("before", CHANNEL, max_attempts=5)
    make_queue(admin, "before", works=False)
    assert hold_s(admin, "before") == 900, "a program that only sends changes nothing"
    with caplog.at_level(logging.WARNING, "zsq"):
        make_queue(admin, "before", works=True)
        make_queue(admin, "before", works=True)
    assert hold_s(admin, "before") == -1
    assert [record.getMessage() for record in caplog.records] == [
        "channel before/workers has max_hold_s 900, so a longer task would run twice; it was set "
        "to no limit"
    ]
    row = admin.stats("before", CHANNEL)["topics"][0]["channels"][0]
    assert row["settings"]["max_attempts"] == 5, "other settings are kept"


def test_a_new_channel_has_no_limit(admin: zsq.Admin, caplog: pytest.LogCaptureFixture) -> None:
    make_queue(admin, "new", works=True)
    assert hold_s(admin, "new") == -1
    assert not caplog.records


def test_a_channel_with_tags_is_refused(admin: zsq.Admin) -> None:
    admin.create_topic("tagged")
    admin.create_channel("tagged", CHANNEL, tags="eu")
    with pytest.raises(zsq.UsageError, match=r"has tags 'eu'.*zsq channel delete tagged workers"):
        make_queue(admin, "tagged", works=True)


def test_a_worker_that_may_not_change_the_channel_is_refused(tmp_path: Path) -> None:
    keys = Keyring(tmp_path, ["worker", "boss"])
    keys.allow(USERS)
    with (
        Broker(tmp_path / "data", *keys.options()) as broker,
        zsq.Admin(broker.tcp, key_file=str(keys.file("boss"))) as boss,
        zsq.Admin(broker.tcp, key_file=str(keys.file("worker"))) as worker,
    ):
        make_queue(worker, "new", works=True)
        assert boss.topics() == {}, "the first use creates it"
        boss.create_topic("before")
        boss.create_channel("before", CHANNEL)
        with pytest.raises(zsq.Refused) as refused:
            make_queue(worker, "before", works=True)
        assert refused.value.code == "E_FORBIDDEN"
        assert "channel before/workers has max_hold_s 900" in refused.value.text
        assert "zsq channel set before workers --max-hold none" in refused.value.text
        boss.configure_channel("before", CHANNEL, max_hold_s=-1)
        make_queue(worker, "before", works=True)


def test_a_new_queue_gives_a_task_that_kills_its_worker_ten_attempts(admin: zsq.Admin) -> None:
    make_queue(admin, "deadly", works=False)
    row = admin.stats("deadly", CHANNEL)["topics"][0]["channels"][0]
    assert row["settings"]["max_attempts"] == 10
