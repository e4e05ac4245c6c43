"""Tests of schedules with a real broker: each due time is in the topic once, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from support.broker import wait_for

import zsq
from zsq.apps.testing.local import LocalBroker
from zsq.transport.errors import E_EXISTS, E_UNSUPPORTED

TOPIC: Final = "reports"
HOUR_S: Final = 3_600
KILLS: Final = Path(__file__).resolve().parents[1] / "support" / "schedule_kills.py"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path_factory.mktemp("schedules")) as made:
        yield made


@pytest.fixture
def admin(broker: LocalBroker, request: pytest.FixtureRequest) -> Iterator[zsq.Admin]:
    """Return an admin. Each test has a topic of its own, and its schedules end with it."""
    with zsq.Admin(broker.url, timeout=30) as made:
        made.create_topic(TOPIC)
        yield made
        made.delete_topic(TOPIC, force=True)


def row(admin: zsq.Admin, name: str = "hourly") -> dict[str, Any]:
    (found,) = [one for one in admin.schedule_list(TOPIC) if one["name"] == name]
    return {**found}


def are_at_rest(admin: zsq.Admin, broker: LocalBroker) -> bool:
    """Return True if the schedules of the topic have published all that is due."""
    return all(
        one["state"] == "waiting" and one["next_due_ns"] > broker.now_ns()
        for one in admin.schedule_list(TOPIC)
    )


def messages(broker: LocalBroker) -> list[zsq.StoredMessage]:
    """Return all messages of the topic, in its order."""
    with zsq.Reader(TOPIC, url=broker.url, patient=True, timeout=30) as reader:
        return [reader.message(offset) for offset in range(*reader.bounds())]


def due_times(broker: LocalBroker) -> list[str]:
    return [str(one.headers["zsq-due"]) for one in messages(broker)]


def test_a_due_time_is_published_once_with_a_kill_at_every_step(
    broker: LocalBroker, admin: zsq.Admin
) -> None:
    begin = 1_790_000_000 // HOUR_S * HOUR_S
    arguments = [sys.executable, str(KILLS), broker.url, TOPIC, str(begin)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    steps = json.loads(done.stdout)
    for needed in (
        "after DiskCommitter.version_here",
        "after StageWriter.push",
        "after StageWriter.seal",
        "before DiskCommitter.commit_here",
        "after Asker._send",
        "after DiskCommitter.commit_here",
    ):
        assert needed in steps
    found = due_times(broker)
    assert found == sorted(set(found))
    assert len(found) == len(steps) + 1


def test_due_times_go_on_when_processes_of_the_broker_are_killed(
    broker: LocalBroker, admin: zsq.Admin
) -> None:
    now_s = broker.now_ns() // 10**9
    broker.advance(HOUR_S - now_s % HOUR_S + 30 * 60)  # half past: no hour ends in the test
    admin.schedule_add(
        TOPIC, "hourly", "0 * * * *", b"work", missed="all", key="k", tag="t", headers={"a": 1}
    )
    wait_for(lambda: are_at_rest(admin, broker), what="the first run")
    before = row(admin)["next_due_ns"] // 10**9
    for kind in ("scheduler", "topic", "supervisor"):
        (pid,) = [one["pid"] for one in admin.stats()["processes"] if one["kind"] == kind]
        broker.advance(2 * HOUR_S)
        os.kill(pid, signal.SIGKILL)
        if kind == "supervisor":
            broker.stop()
            broker.start()
        wait_for(lambda: are_at_rest(admin, broker), what=f"the due times after the kill of {kind}")
    found = due_times(broker)
    assert found == sorted(set(found))
    assert len(found) == 6
    assert row(admin)["last_due_ns"] // 10**9 == before + 5 * HOUR_S
    message = messages(broker)[0]
    assert (message.body, message.key, message.tag) == (b"work", b"k", "t")
    assert message.headers == {"a": 1, "zsq-schedule": "hourly", "zsq-due": found[0]}


def test_what_was_missed_while_the_broker_was_down(broker: LocalBroker, admin: zsq.Admin) -> None:
    now_s = broker.now_ns() // 10**9
    broker.advance(HOUR_S - now_s % HOUR_S + 30 * 60)  # half past
    for missed in ("all", "one", "skip"):
        admin.schedule_add(TOPIC, missed, "0 * * * *", b"x", missed=missed)
    wait_for(lambda: are_at_rest(admin, broker), what="the first runs")
    broker.stop()
    assert broker._offset is not None
    broker._offset.add(30 * HOUR_S * 10**9)
    broker.start()
    wait_for(lambda: are_at_rest(admin, broker), what="the runs after the start")
    counts = {
        one["name"]: (one["published_count"], one["missed_count"])
        for one in admin.schedule_list(TOPIC)
    }
    assert counts == {"all": (30, 0), "one": (1, 29), "skip": (0, 30)}
    assert admin.stats()["schedules"] == {
        "count": 3, "failing": 0, "published_count": 31, "missed_count": 59,
    }  # fmt: skip
    found = messages(broker)
    assert [one.headers["zsq-schedule"] for one in found].count("one") == 1
    of_all = [one.headers["zsq-due"] for one in found if one.headers["zsq-schedule"] == "all"]
    assert (len(of_all), of_all) == (30, sorted(set(of_all)))


def test_nothing_is_published_in_a_pause_or_after_the_end(
    broker: LocalBroker, admin: zsq.Admin
) -> None:
    admin.schedule_add(TOPIC, "hourly", "0 * * * *", b"x", missed="all")
    wait_for(lambda: are_at_rest(admin, broker), what="the first run")
    admin.schedule_pause(TOPIC, "hourly")
    broker.advance(5 * HOUR_S)
    assert (row(admin)["state"], row(admin)["next_due_ns"]) == ("paused", 0)
    admin.schedule_resume(TOPIC, "hourly")
    wait_for(lambda: are_at_rest(admin, broker), what="the run after the pause")
    assert (row(admin)["published_count"], row(admin)["missed_count"]) == (0, 0)
    broker.advance(HOUR_S)
    wait_for(lambda: row(admin)["published_count"] == 1, what="the next due time")
    admin.close_topic(TOPIC)
    broker.advance(HOUR_S)
    wait_for(lambda: row(admin)["state"] == "failing", what="the refusal of the closed topic")
    assert "E_CLOSED" in row(admin)["trouble"]
    admin.open_topic(TOPIC)
    wait_for(lambda: row(admin)["published_count"] == 2, what="another attempt")
    admin.schedule_remove(TOPIC, "hourly")
    assert admin.schedule_list(TOPIC) == []
    broker.advance(5 * HOUR_S)
    admin.schedule_add(TOPIC, "other", "0 * * * *", b"x")
    wait_for(lambda: row(admin, "other")["state"] == "waiting", what="the run of the other one")
    assert len(due_times(broker)) == 2


def test_a_due_time_does_not_wait_until_it_is_in_the_bucket(tmp_path: Path) -> None:
    """A commit of Spark waits up to --bucket-lag. A schedule of each minute would fall behind."""
    (tmp_path / "bucket").mkdir()
    lag = ("--bucket", f"file://{tmp_path}/bucket", "--bucket-lag", "10m")
    with LocalBroker(tmp_path, *lag) as made, zsq.Admin(made.url, timeout=30) as admin:
        admin.create_topic(TOPIC)
        admin.schedule_add(TOPIC, "hourly", "0 * * * *", b"x")
        wait_for(lambda: are_at_rest(admin, made), what="the first run")
        for count in (1, 2):
            made.advance(HOUR_S)
            wait_for(lambda: row(admin)["published_count"] == count, what="a due time")  # noqa: B023
        assert row(admin)["trouble"] == ""
        assert len(due_times(made)) == 2


def test_a_deleted_topic_takes_its_schedules_along(broker: LocalBroker, admin: zsq.Admin) -> None:
    admin.schedule_add(TOPIC, "hourly", "0 * * * *", b"x", missed="all")
    wait_for(lambda: are_at_rest(admin, broker), what="the first run")
    admin.delete_topic(TOPIC, force=True)
    assert admin.schedule_list() == []
    admin.create_topic(TOPIC)
    broker.advance(3 * HOUR_S)
    admin.schedule_add(TOPIC, "hourly", "0 * * * *", b"x", missed="all")
    wait_for(lambda: are_at_rest(admin, broker), what="the first run")
    assert due_times(broker) == []


def test_wrong_orders_are_refused_and_change_nothing(broker: LocalBroker, admin: zsq.Admin) -> None:
    admin.schedule_add(TOPIC, "hourly", "0 * * * *", b"x")
    with pytest.raises(zsq.UsageError, match="has a schedule 'hourly' already") as exists:
        admin.schedule_add(TOPIC, "hourly", "0 1 * * *", b"y")
    assert exists.value.code == E_EXISTS
    with pytest.raises(zsq.UsageError, match="has a hour that is not valid: '25'"):
        admin.schedule_add(TOPIC, "wrong", "0 25 * * *", b"x")
    with pytest.raises(zsq.UsageError, match="time zone 'Mars/Base' is not known"):
        admin.schedule_add(TOPIC, "wrong", "0 0 * * *", b"x", timezone="Mars/Base")
    with pytest.raises(zsq.UsageError, match="missed must be one of"):
        admin.schedule_add(TOPIC, "wrong", "0 0 * * *", b"x", missed="maybe")
    with pytest.raises(zsq.UsageError, match="the limit of a schedule"):
        admin.schedule_add(TOPIC, "wrong", "0 0 * * *", bytes(40_000))
    with pytest.raises(zsq.NotFound, match="'nothing' does not exist"):
        admin.schedule_add("nothing", "wrong", "0 0 * * *", b"x")
    with pytest.raises(zsq.NotFound, match="has no schedule 'daily'; it has hourly"):
        admin.schedule_pause(TOPIC, "daily")
    with zsq.Consumer("memory#ephemeral", "c", url=broker.url), pytest.raises(zsq.UsageError) as no:
        admin.schedule_add("memory#ephemeral", "wrong", "0 0 * * *", b"x")
    assert no.value.code == E_UNSUPPORTED
    assert [one["name"] for one in admin.schedule_list()] == ["hourly"]


def test_a_schedule_is_changed_in_place_and_run_once_by_hand(
    broker: LocalBroker, admin: zsq.Admin
) -> None:
    admin.schedule_add(TOPIC, "hourly", "0 * * * *", b"old", missed="all", key="k")
    wait_for(lambda: are_at_rest(admin, broker), what="the first run")
    before, count = row(admin), len(messages(broker))
    admin.schedule_pause(TOPIC, "hourly")
    admin.schedule_run(TOPIC, "hourly")
    *_, found = messages(broker)
    assert (found.body, found.key, found.headers["zsq-schedule"]) == (b"old", b"k", "hourly")
    assert len(messages(broker)) == count + 1
    admin.schedule_resume(TOPIC, "hourly")
    wait_for(lambda: are_at_rest(admin, broker), what="the run after the pause")
    changed = {"last_due_ns", "published_count", "state"}
    assert {one: value for one, value in row(admin).items() if one not in changed} == {
        one: value for one, value in before.items() if one not in changed
    }
    admin.schedule_set(TOPIC, "hourly", cron="*/5 * * * *", body=b"new")
    wait_for(lambda: are_at_rest(admin, broker), what="the changed schedule")
    assert len(messages(broker)) == count + 1, "the new expression makes no due time missed"
    assert (row(admin)["cron"], row(admin)["missed"]) == ("*/5 * * * *", "all")
    broker.advance(300)
    wait_for(lambda: len(messages(broker)) == count + 2, 30, "the next due time")
    assert (messages(broker)[-1].body, messages(broker)[-1].key) == (b"new", b"k")
    for wrong, text in ((None, "at least one change"), ("x", "cron")):
        with pytest.raises(zsq.UsageError, match=text):
            admin.schedule_set(TOPIC, "hourly", cron=wrong)
    with pytest.raises(zsq.NotFound, match="has no schedule"):
        admin.schedule_run(TOPIC, "other")


def test_a_due_time_is_left_out_while_the_last_message_is_unfinished(
    broker: LocalBroker, admin: zsq.Admin
) -> None:
    now_s = broker.now_ns() // 10**9
    broker.advance(HOUR_S - now_s % HOUR_S + 30 * 60)
    admin.create_channel(TOPIC, "c")
    for name, mode in (("waiting", "while-waiting"), ("working", "while-working")):
        admin.schedule_add(TOPIC, name, "0 * * * *", name.encode(), unique=mode)
    admin.schedule_add(TOPIC, "never", "0 * * * *", b"x")

    def after_an_hour() -> list[tuple[int, int]]:
        """Return (published, left out) of never, waiting and working."""
        wait_for(lambda: are_at_rest(admin, broker), what="the runs before")
        broker.advance(HOUR_S)
        wait_for(lambda: are_at_rest(admin, broker), what="the due times")
        return [(one["published_count"], one["missed_count"]) for one in admin.schedule_list(TOPIC)]

    assert after_an_hour() == [(1, 0), (1, 0), (1, 0)]
    assert after_an_hour() == [(2, 0), (1, 1), (1, 1)]
    with pytest.raises(zsq.ZsqError) as refused:
        admin.schedule_run(TOPIC, "working")
    assert refused.value.code == E_EXISTS
    # A kill of the topic's process loses neither the keys nor what was left out.
    for one in admin.stats()["processes"]:
        if one["kind"] == "topic":
            os.kill(one["pid"], signal.SIGKILL)
    assert after_an_hour() == [(3, 0), (1, 2), (1, 2)]
    with zsq.Consumer(TOPIC, "c", url=broker.url, message_timeout=86_400) as consumer:
        begun = [consumer.receive(30) for _ in range(5)]
        # The broker learns a moment later that they are begun.
        wait_for(lambda: after_an_hour()[1][0] == 2)
        assert after_an_hour()[2][0] == 1
        for message in begun:
            assert message is not None
            message.finish(sync=True)
    found = after_an_hour()
    assert [published for published, _ in found[1:]] == [2, 2]
    assert {sum(counts) for counts in found} == {found[0][0]}
    admin.schedule_set(TOPIC, "never", unique="while-waiting")
    rows = admin.schedule_list(TOPIC)
    assert [one["unique"] for one in rows] == ["while-waiting", "while-waiting", "while-working"]
