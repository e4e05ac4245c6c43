"""Tests of messages that expire or are cancelled at a real broker: over kills, a takeover, the
doors and the commands. tests/apps/testing/test_lifetimes.py has the cases of docs/lifetimes.md.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from support.broker import Broker, wait_for
from support.standby_pair import TOPIC, Pair

import zsq
import zsq.aio

WAIT_S: Final = 60.0


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("doors") / "data", nsq=True, http=True) as broker:
        yield broker


def drained(url: str, topic: str, channel: str = "c", count: int = 1) -> list[bytes]:
    """Return the bodies that come until `count` messages were finished."""
    bodies: list[bytes] = []
    with zsq.Consumer(topic, channel, url=url) as consumer:
        while len(bodies) < count:
            message = consumer.receive(WAIT_S)
            assert message is not None, bodies
            bodies.append(message.body)
            message.finish()
        assert consumer.receive(0.1) is None
    return bodies


def channel_row(url: str, topic: str, channel: str = "c") -> Any:
    with zsq.Admin(url, timeout=20) as admin:
        rows = admin.stats(topic)["topics"][0]["channels"]
    return next(row for row in rows if row["channel_name"] == channel)


def post(broker: Broker, path: str, **options: Any) -> Any:
    url = f"http://127.0.0.1:{broker.http}{path}"
    request = urllib.request.Request(
        url, json.dumps(options).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        return json.load(answer)


def run_zsq(broker: Broker, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "zsq", *arguments, "--url", broker.tcp]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)


def test_what_was_cancelled_stays_cancelled_after_a_kill_of_the_broker(own_broker: Broker) -> None:
    """One message waits, one was requeued, one is deferred, and one is delayed."""
    with zsq.Admin(own_broker.ipc) as admin, zsq.Producer(own_broker.ipc) as producer:
        admin.create_channel("t", "c")
        for body in (b"requeued", b"deferred", b"waits"):
            producer.publish("t", body, revoke_key="k")
        producer.publish("t", b"by offset")
        producer.publish("t", b"delayed", revoke_key="k", delay=3)
        with zsq.Consumer("t", "c", url=own_broker.ipc, ready=1) as consumer:
            for delay in (0.0, 2.0):
                message = consumer.receive(WAIT_S)
                assert message is not None
                message.requeue(delay)
            assert admin.revoke("t", "k") == {"delayed": 1}
            assert admin.cancel("t", [3]) == {"c": [3]}
        own_broker.signal_all(signal.SIGKILL)
    own_broker.start()
    with zsq.Producer(own_broker.ipc) as producer:
        producer.publish("t", b"new", revoke_key="k")
        producer.publish("t", b"late", delay=4)
    assert drained(own_broker.ipc, "t", count=2) == [b"new", b"late"]
    wait_for(
        lambda: channel_row(own_broker.ipc, "t")["cancelled_count"] == 3, WAIT_S, "the counter"
    )
    assert channel_row(own_broker.ipc, "t")["skipped_count"] == 1


def test_what_expires_while_the_broker_is_down_is_not_delivered(own_broker: Broker) -> None:
    """The delayed one becomes due meanwhile, and its time counts from then."""
    with zsq.Admin(own_broker.ipc) as admin, zsq.Producer(own_broker.ipc) as producer:
        admin.create_channel("t", "c", dead_letter_expired=True)
        producer.publish("t", b"stored", expires_in=1)
        producer.publish("t", b"delayed", delay=0.5, expires_in=1)
        producer.publish("t", b"lives", delay=0.5, expires_in=600)
    own_broker.signal_all(signal.SIGKILL)
    end_s = time.monotonic() + 1.2
    wait_for(lambda: time.monotonic() > end_s, WAIT_S, "the end of two lifetimes")
    own_broker.start()
    assert drained(own_broker.ipc, "t") == [b"lives"]
    assert sorted(drained(own_broker.ipc, "t.c.dead", "look", 2)) == [b"delayed", b"stored"]


def test_what_expires_while_a_consumer_holds_it_is_given_up_at_once(own_broker: Broker) -> None:
    with (
        zsq.Admin(own_broker.ipc) as admin,
        zsq.Producer(own_broker.ipc) as producer,
        zsq.Consumer("t", "c", url=own_broker.ipc, ready=10) as consumer,
    ):
        consumer.subscribe()
        lives = {"zsq-expires-ms": 500}
        bodies = [b"first", b"expires", b"last"]
        producer.publish_many("t", bodies, headers=[None, lives, None])
        message = consumer.receive(WAIT_S)
        assert message is not None
        wait_for(lambda: admin.unfinished("t", "c") == 2, WAIT_S, "the end of a lifetime")
        message.finish()
        last = consumer.receive(WAIT_S)
        assert last is not None
        assert (last.body, last.attempts) == (b"last", 1)


def test_dead_letters_of_expired_messages_survive_a_kill(own_broker: Broker) -> None:
    """They wait, because their topic takes none. Their reason is kept in the state store."""
    with zsq.Admin(own_broker.ipc) as admin, zsq.Producer(own_broker.ipc) as producer:
        admin.create_channel("t", "c", dead_letter_expired=True)
        admin.create_topic("t.c.dead")
        admin.close_topic("t.c.dead", to="publishers")
        producer.publish("t", b"a", headers={"zsq-expires-ms": 0})
        producer.publish("t", b"b")
        assert drained(own_broker.ipc, "t") == [b"b"]
        wait_for(
            lambda: channel_row(own_broker.ipc, "t")["dying_count"] == 1, WAIT_S, "a dying message"
        )
    own_broker.signal_all(signal.SIGKILL)
    own_broker.start()
    with zsq.Admin(own_broker.ipc) as admin:
        admin.open_topic("t.c.dead", to="publishers")
    with (
        zsq.Consumer("t", "c", url=own_broker.ipc) as consumer,
        zsq.Consumer("t.c.dead", "look", url=own_broker.ipc) as letters,
    ):
        assert consumer.receive(0.1) is None
        letter = letters.receive(WAIT_S)
        assert letter is not None
        assert (letter.body, letter.headers["zsq-dead-reason"]) == (b"a", "expired")


def test_what_was_cancelled_stays_cancelled_after_a_takeover(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    try:
        pair.begin()
        with zsq.Admin(pair.one.tcp) as admin, zsq.Producer(pair.one.tcp) as producer:
            admin.create_channel(TOPIC, "c", start="latest")
            producer.publish(TOPIC, b"waits", revoke_key="k")
            producer.publish(TOPIC, b"expires", headers={"zsq-expires-ms": 0})
            producer.publish(TOPIC, b"delayed", revoke_key="k", delay=4)
            assert admin.revoke(TOPIC, ["k"]) == {"delayed": 1}
        pair.wait_shipped(pair.one)
        pair.one.signal_all(signal.SIGKILL)
        pair.two.wait_ready()
        with zsq.Producer(pair.two.tcp, timeout=30) as producer:
            producer.publish(TOPIC, b"new", revoke_key="k")
        assert drained(pair.two.tcp, TOPIC) == [b"new"]
        wait_for(
            lambda: channel_row(pair.two.tcp, TOPIC)["cancelled_count"] == 1, WAIT_S, "the counter"
        )
        assert channel_row(pair.two.tcp, TOPIC)["expired_count"] == 1
    finally:
        pair.close()


def test_run_cancels_the_handlers_of_cancelled_messages(broker: Broker) -> None:
    began: list[bytes] = []
    ended: list[tuple[bytes, str]] = []
    errors: list[BaseException] = []
    changed = asyncio.Condition()

    async def note(seen: list[Any], what: object) -> None:
        async with changed:
            seen.append(what)
            changed.notify_all()

    async def handle(message: zsq.aio.Message) -> None:
        await note(began, message.body)
        try:
            if message.body != b"end":
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            await note(ended, (message.body, f"cancelled {message.cancelled}"))
            raise
        else:
            await note(ended, (message.body, "ended"))

    async def until(condition: Callable[[], bool]) -> None:
        async with changed:
            await changed.wait_for(condition)

    async def main() -> None:
        async with zsq.aio.Admin(broker.ipc) as admin, zsq.aio.Producer(broker.ipc) as producer:
            await admin.create_channel("t", "c")
            consumer = zsq.aio.Consumer("t", "c", url=broker.ipc)
            running = asyncio.create_task(
                consumer.run(
                    handle,
                    concurrency=2,
                    signals=False,
                    cancel_handlers=True,
                    on_error=lambda _, error: errors.append(error),
                )
            )
            first = (await producer.publish("t", b"offset")).offset
            await producer.publish("t", b"key", revoke_key="k")
            await until(lambda: len(began) == 2)
            await admin.cancel("t", [first or 0])
            await admin.revoke("t", "k")
            await producer.publish("t", b"end")
            await until(lambda: len(ended) == 3)
            await consumer.close()
            await running

    asyncio.run(asyncio.wait_for(main(), WAIT_S))
    assert sorted(ended) == [(b"end", "ended"), (b"key", "cancelled True"), (b"offset", "cancelled True")]  # fmt: skip
    assert errors == []
    with zsq.Admin(broker.ipc) as admin:
        assert admin.unfinished("t", "c") == 0


def test_the_command_cancels_by_offset_key_and_id(doors: Broker) -> None:
    with zsq.Admin(doors.tcp) as admin:
        admin.create_channel("cli", "c")
    assert not run_zsq(doors, "pub", "cli", "one").returncode
    assert not run_zsq(doors, "pub", "cli", "two", "--revoke-key", "k").returncode
    assert not run_zsq(doors, "pub", "cli", "three", "--expires-in", "10m").returncode
    refused = run_zsq(doors, "pub", "cli", "x", "--expires-in", "1s", "--delay", "2s")
    assert "it would expire before it is due" in refused.stderr
    with zsq.Producer(doors.tcp) as producer:
        delayed = str(producer.publish("cli", b"later", delay=600).delayed_key)
    done = run_zsq(doors, "cancel", "cli", "0", delayed, "--yes", "--json")
    assert json.loads(done.stdout) == {
        "topic": "cli", "cancelled": {"c": [0]}, "delayed": [delayed], "not_cancelled": [],
    }  # fmt: skip
    again = run_zsq(doors, "cancel", "cli", "0", delayed, "--yes")
    assert again.returncode == 1
    assert again.stderr == f"zsq: not cancelled, because nothing waits: 0, {delayed}\n"
    revoked = run_zsq(doors, "cancel", "cli", "--revoke-key", "k", "--yes")
    assert revoked.stdout == "cli: 1 key revoked, 0 delayed messages removed\n"
    assert run_zsq(doors, "cancel", "cli").returncode == 2
    assert drained(doors.tcp, "cli") == [b"three"]
    audit = run_zsq(doors, "audit").stdout
    assert "revoke" in audit


def test_http_publishes_and_cancels(doors: Broker) -> None:
    with zsq.Admin(doors.tcp) as admin:
        admin.create_channel("http", "c")
    publish = "/api/topic/publish?topic=http"
    offset = post(doors, publish, body="one")["offset"]
    post(doors, publish, body="two", revoke_key="k", delay_s=600)
    post(doors, publish, body="three", revoke_key="k", expires_s=600)
    post(doors, publish, body="four", expires_s=0.001)
    post(doors, publish, body="five", expires_s=600)
    cancelled = post(doors, "/api/message/cancel?topic=http", offsets=[offset])
    assert cancelled["channels"] == {"c": [offset]}
    assert post(doors, "/api/message/revoke?topic=http", keys=["k"])["delayed"] == 1
    assert drained(doors.tcp, "http") == [b"five"]


def test_a_key_may_have_thousands_of_messages(doors: Broker) -> None:
    with zsq.Admin(doors.tcp) as admin, zsq.Producer(doors.tcp) as producer:
        admin.create_channel("many", "c", max_age_s=600)
        producer.publish_many("many", [b"a"] * 3000, revoke_key="k", delay=600)
        producer.publish_many("many", [b"a"] * 3000, expires_in=600, revoke_key="other")
        producer.publish_many("many", [b"b"] * 3000, revoke_key="k")
        producer.publish("many", b"end")
        assert admin.revoke("many", ["k", "other"]) == {"delayed": 3000}
    assert drained(doors.tcp, "many") == [b"end"]
    assert channel_row(doors.tcp, "many")["depth"] == 0


def test_the_lifetime_of_a_topic_reaches_its_channels_and_outlives_a_kill(
    own_broker: Broker,
) -> None:
    """One channel runs when the setting changes, and the other one is created later."""
    with zsq.Admin(own_broker.ipc) as admin, zsq.Producer(own_broker.ipc) as producer:
        admin.create_topic("t", parts=2)
        admin.create_channel("t", "c")
        for number in range(8):
            producer.publish("t", b"%d" % number, key=b"%d" % number)
        producer.publish("t", b"own", key="k", expires_in=600)

        def shown() -> int:
            return sum(len(admin.peek(part, "c").messages) for part in ("t#0", "t#1"))

        assert shown() == 9
        admin.configure_topic("t", expires_s=0.01)
        wait_for(lambda: shown() == 1, WAIT_S, "the setting")
        admin.create_channel("t", "d", start="earliest")
        assert drained(own_broker.ipc, "t", "d") == [b"own"]
        own_broker.signal_all(signal.SIGKILL)
    own_broker.start()
    assert drained(own_broker.ipc, "t") == [b"own"]
    with zsq.Admin(own_broker.ipc) as admin, zsq.Producer(own_broker.ipc) as producer:
        admin.configure_topic("t", expires_s=None)
        admin.seek("t", "c", "earliest")
        bodies = drained(own_broker.ipc, "t", count=9)
        assert sorted(bodies) == [*(b"%d" % number for number in range(8)), b"own"]


def test_a_peek_shows_no_message_that_will_not_be_delivered(doors: Broker) -> None:
    with zsq.Admin(doors.ipc) as admin, zsq.Producer(doors.ipc) as producer:
        admin.create_channel("peeked", "c")
        producer.publish("peeked", b"expired", expires_in=0.001)
        producer.publish("peeked", b"revoked", revoke_key="k")
        admin.revoke("peeked", "k")
        producer.publish("peeked", b"lives", revoke_key="k", expires_in=600)
        wait_for(lambda: len(admin.peek("peeked", "c").messages) == 1, WAIT_S, "the end of one")
        assert [one.offset for one in admin.peek("peeked", "c").messages] == [2]
