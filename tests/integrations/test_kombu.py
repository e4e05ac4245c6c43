"""Tests of the Kombu transport with the real Kombu and a real broker."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from support.broker import Broker, kill, wait_for
from support.topic_names import topic_name_of

import zsq
from zsq.apps.integrations.kombu import names
from zsq.transport.client.core.publish_arguments import as_tag
from zsq.transport.names import check_name
from zsq.transport.settings import split_tags

pytestmark = pytest.mark.timeout(400)
WAIT_S = 120.0
Connect = Callable[..., Any]


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return topic_name_of(request.node.name)[:30]


@pytest.fixture
def connect(broker: Broker) -> Iterator[Connect]:
    """Return a function that opens a connection. All of them are closed with the test."""
    with contextlib.ExitStack() as stack:

        def open_one(path: str = "", **options: Any) -> Any:
            url = f"zsq://127.0.0.1:{broker.port}/{path}"
            return stack.enter_context(Connection(url, transport_options=options))

        yield open_one


def received(connection: Any, queues: list[Any], count: int, **options: Any) -> list[Any]:
    """Return the next messages, which are acknowledged."""
    found: list[Any] = []

    def on_message(message: Any) -> None:
        message.ack()
        found.append(message)

    with Consumer(connection, queues, on_message=on_message, **options):
        while len(found) < count:
            connection.drain_events(timeout=WAIT_S)
    return found


def payloads(messages: list[Any]) -> list[Any]:
    return [message.payload for message in messages]


def test_a_queue_keeps_its_order_its_size_and_its_bodies(connect: Connect, name: str) -> None:
    connection = connect()
    queue = Queue(name, Exchange(name, "direct"), name)
    bodies = [{"number": 1}, "text \u00fc", [1, 2, None], {"bytes": "no"}]
    producer = Producer(connection)
    for body in bodies:
        producer.publish(body, exchange=name, routing_key=name, declare=[queue])
    producer.publish(b"\0\xff", exchange=name, routing_key=name)
    producer.publish({"t": (1, 2)}, exchange=name, routing_key=name, serializer="pickle")
    assert queue(connection.default_channel).queue_declare(passive=True).message_count == 6
    found = received(
        connection, [queue], 6, accept=["json", "pickle", "application/data", "text/plain"]
    )
    assert [one.payload for one in found[:4]] == bodies
    assert bytes(found[4].body) == b"\0\xff"
    assert found[5].payload == {"t": (1, 2)}
    assert queue(connection.default_channel).queue_declare(passive=True).message_count == 0


def test_a_new_process_knows_the_alias_and_the_bindings_of_others(
    connect: Connect, broker: Broker, name: str
) -> None:
    """The publisher declares nothing: it finds the queue of the topic exchange in the broker."""
    connection = connect()
    queue = Queue(name, Exchange(f"{name}.x", "topic"), "tasks.#")
    queue(connection.default_channel).declare()
    program = (
        "import sys\nfrom kombu import Connection, Exchange\n"
        "with Connection(sys.argv[1]) as connection:\n"
        "    producer = connection.Producer()\n"
        "    exchange = Exchange(sys.argv[2], 'topic')\n"
        "    for key in ('tasks.a.b', 'other', 'tasks'):\n"
        "        producer.publish(key, exchange=exchange, routing_key=key, declare=[exchange])\n"
    )
    url = f"zsq://127.0.0.1:{broker.port}//"
    subprocess.run([sys.executable, "-c", program, url, f"{name}.x"], check=True, timeout=200)
    assert payloads(received(connection, [queue], 2)) == ["tasks.a.b", "tasks"]


def test_a_program_that_ends_loses_nothing_that_it_has_collected(broker: Broker, name: str) -> None:
    """With `linger_ms`, a program sends faster than the broker stores, and closes nothing."""
    program = """
import sys
from kombu import Connection, Queue
queue = Queue(sys.argv[2])
connection = Connection(sys.argv[1], transport_options={"linger_ms": 1})
producer = connection.Producer()
for number in range(3000):
    producer.publish(number, routing_key=sys.argv[2], serializer="json", declare=[queue])
"""
    with zsq.Admin(broker.tcp) as admin:
        url = f"zsq://127.0.0.1:{broker.port}"
        line = [sys.executable, "-c", "import zsq.apps.integrations.kombu\n" + program, url, name]
        subprocess.run(line, check=True, timeout=WAIT_S)
        assert admin.stats(name)["topics"][0]["message_count"] == 3000


def test_each_queue_of_a_fanout_exchange_gets_every_message_and_nothing_older(
    connect: Connect, name: str
) -> None:
    connection, other = connect(), connect()
    exchange = Exchange(name, "fanout", durable=False)
    queues = [Queue(f"{name}.{i}@host", exchange, durable=False, auto_delete=True) for i in "ab"]
    Producer(other).publish("old", exchange=exchange, declare=[exchange])
    found: list[Any] = []
    with Consumer(connection, queues, callbacks=[lambda body, _: found.append(body)], no_ack=True):
        Producer(other).publish("new", exchange=exchange, declare=[exchange])
        while len(found) < 2:
            connection.drain_events(timeout=WAIT_S)
    assert found == ["new", "new"]


def test_a_reply_finds_the_queue_in_memory_of_another_connection(
    connect: Connect, name: str
) -> None:
    asker, answerer = connect(), connect()
    reply = Exchange(f"reply.{name}", "direct", durable=False)
    queue = Queue(f"{name}.reply", reply, name, durable=False, auto_delete=True)
    other = Queue(f"{name}.other", reply, "other", durable=False, auto_delete=True)
    direct = Queue(f"{name}.direct", durable=False, auto_delete=True)
    bound = [one(asker.default_channel) for one in (queue, other)]
    for one in bound:
        one.declare()
    found: list[Any] = []
    callbacks = [lambda body, _: found.append(body)]
    with Consumer(asker, [*bound, direct], callbacks=callbacks, no_ack=True):
        producer = Producer(answerer)
        producer.publish("pong", exchange=reply, routing_key=name, declare=[reply])
        producer.publish("to the name", exchange="", routing_key=direct.name)
        while len(found) < 2:
            asker.drain_events(timeout=WAIT_S)
    assert sorted(found) == ["pong", "to the name"]


@pytest.mark.parametrize(("highest", "order"), [(0, [0, 3, 9]), (9, [9, 3, 0])])
def test_urgent_messages_come_first(
    connect: Connect, broker: Broker, name: str, highest: int, order: list[int]
) -> None:
    name = f"{name}{highest}"
    connection = connect(highest_priority=highest)
    queue = Queue(name, Exchange(name), name)
    producer = Producer(connection)
    for priority in (9, 3, 0):
        producer.publish(
            priority, exchange=name, routing_key=name, priority=priority, declare=[queue]
        )
    found: list[Any] = []

    def on_message(body: Any, message: Any) -> None:
        found.append(body)
        message.ack()

    with Consumer(connection, [queue], callbacks=[on_message]):
        # All three have arrived before the first one is delivered.
        channel = connection.default_channel
        wait_for(
            lambda: sum(one.arrived for one in channel._queue_sources()) == 3,
            WAIT_S,
            "three messages",
        )
        while len(found) < 3:
            connection.drain_events(timeout=WAIT_S)
    assert found == order
    with zsq.Admin(broker.tcp) as admin:
        assert {topic for topic in admin.topics() if topic.startswith(f"{name}")} >= {
            name,
            f"{name}.priority-3",
            f"{name}.priority-9",
        }


def test_a_rejected_message_comes_back_or_becomes_a_dead_letter(
    connect: Connect, broker: Broker, name: str
) -> None:
    connection = connect()
    queue = Queue(name, Exchange(name), name)(connection.default_channel)
    Producer(connection).publish({"n": 1}, exchange=name, routing_key=name, declare=[queue])
    first = queue.get()
    assert not first.delivery_info.get("redelivered")
    assert queue.get() is None
    first.requeue()
    again = queue.get()
    assert again.delivery_info["redelivered"]
    again.reject()
    assert queue.get() is None
    with zsq.Consumer(f"{name}.workers.dead", "look", url=broker.tcp) as dead:
        message = dead.receive(WAIT_S)
        assert message is not None
        assert message.json()["body"] == '{"n": 1}'
        assert "rejected without requeue" in str(message.headers["zsq-dead-error"])


@pytest.mark.parametrize("how", ["consume", "get"])
def test_what_another_program_has_published_becomes_a_dead_letter(
    connect: Connect, broker: Broker, name: str, how: str
) -> None:
    """Otherwise it would end each worker that gets it."""
    connection = connect()
    queue = Queue(name, Exchange(name), name)
    bound = queue(connection.default_channel)
    bound.declare()
    foreign = [
        b"hello",
        b"\xff",
        b"[1]",
        b'{"body": "x"}',
        b"",
        b'{"body": "x", "properties": {}, "headers": [1]}',
        b'{"body": "x", "properties": {"delivery_info": 1}}',
        b'{"body": 5, "properties": {"body_encoding": "base64"}}',
        b'{"body": "x", "properties": {"a": {"__type__": "decimal", "__value__": "x"}}}',
        b'{"body": "x", "properties": ' + b"[" * 100_000,
    ]
    with zsq.Producer(broker.tcp) as producer:
        for body in foreign:
            producer.publish(name, body)
    Producer(connection).publish({"n": 1}, exchange=name, routing_key=name)
    if how == "consume":
        (found,) = received(connection, [queue], 1)
    else:
        found = next(message for _ in range(5) if (message := bound.get()) is not None)
    assert found.payload == {"n": 1}
    with zsq.Consumer(f"{name}.workers.dead", "look", url=broker.tcp) as dead:
        for body in foreign:
            message = dead.receive(WAIT_S)
            assert message is not None
            assert message.body == body
            assert "no message of Kombu" in str(message.headers["zsq-dead-error"])
            message.finish()


def test_a_foreign_message_among_the_bindings_is_skipped(
    connect: Connect, broker: Broker, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise no program could declare or publish, until somebody deletes the topic."""
    first, second = connect(name), connect(name)
    queue = Queue("one", Exchange("x", "topic"), "#.one")
    queue(first.default_channel).declare()
    topic = f"{name}.kombu.bindings"
    foreign = [b"hello", b"\xff", b"[1]", b"{}", b'{"bind": ["x", 1]}', b'{"queue": ["x"]}', b""]
    foreign += [b'{"bind": ["x", "#", "\\ud800"]}', b'{"else": "x"}', b"[" * 100_000]
    with zsq.Producer(broker.tcp) as producer:
        for body in foreign:
            producer.publish(topic, body)
    with zsq.Admin(broker.tcp) as admin:
        offset = admin.stats(topic)["topics"][0]["message_count"] - len(foreign)
    other = Queue("two", Exchange("x", "topic"), "#.two")
    other(second.default_channel).declare()
    publisher = Producer(connect(name, transport="tcp"))  # a link of its own, which reads them too
    publisher.publish(
        "to one", exchange=queue.exchange, routing_key="to.one", declare=[queue.exchange]
    )
    publisher.publish(
        "to two", exchange=queue.exchange, routing_key="to.two", declare=[queue.exchange]
    )
    assert payloads(received(first, [queue], 1)) == ["to one"]
    assert payloads(received(second, [other], 1)) == ["to two"]
    warnings = [text for text in caplog.messages if "no binding of Kombu" in text]
    assert len(warnings) == 2, "one of each link"
    assert all(f"message {offset} of topic {topic}" in text for text in warnings)


@pytest.mark.parametrize("how", ["consume", "get"])
def test_a_message_that_has_expired_is_not_delivered_and_does_not_end_a_wait(
    connect: Connect, broker: Broker, name: str, how: str
) -> None:
    connection = connect()
    queue = Queue(name, Exchange(name), name)
    bound = queue(connection.default_channel)
    producer = Producer(connection)
    celery = {"expires": datetime.now(UTC).isoformat()}
    for body, headers, expiration in (
        ("old", {}, 0.001),
        ("a task, which the worker revokes", celery, 0.001),
        ("new", {}, 3600.0),
    ):
        producer.publish(
            body,
            exchange=name,
            routing_key=name,
            headers=headers,
            expiration=expiration,
            declare=[queue],
        )
    if how == "get":
        found = [bound.get(), bound.get()]
    else:
        found = []
        with Consumer(connection, [queue], on_message=found.append):
            connection.drain_events(timeout=WAIT_S)
            connection.drain_events(timeout=WAIT_S)
    for message in found:
        message.ack()
    assert payloads(found) == ["a task, which the worker revokes", "new"]
    with zsq.Admin(broker.tcp) as admin:
        wait_for(lambda: _in_flight(admin, name) == 0, WAIT_S, "the end of all three")
        assert f"{name}.workers.dead" not in admin.topics()


def test_get_returns_the_most_urgent_message(
    connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect()
    monkeypatch.setattr("zsq.apps.integrations.kombu.channel.GET_S", 0.0)
    monkeypatch.setattr("zsq.apps.integrations.kombu.channel.GET_FILLED_S", WAIT_S)
    queue = Queue(name, Exchange(name), name)
    for priority in (9, 3, 0, 3):
        Producer(connection).publish(
            priority, exchange=name, routing_key=name, priority=priority, declare=[queue]
        )
    bound = queue(connection.default_channel)
    assert [bound.get(no_ack=True).payload for _ in range(4)] == [0, 3, 3, 9]
    assert bound.get() is None
    getters = list(connection.default_channel._getters.values())
    assert len(getters) == 3
    bound.delete()
    assert all(one._closed for one in getters)
    bound.declare()
    Producer(connection).publish("after", exchange=name, routing_key=name)
    assert bound.get(no_ack=True).payload == "after"


def test_a_new_consumer_waits_for_an_urgent_message_that_has_not_arrived_yet(
    connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect()
    queue = Queue(name, Exchange(name), name)
    for priority in (9, 0):
        Producer(connection).publish(
            priority, exchange=name, routing_key=name, priority=priority, declare=[queue]
        )
    monkeypatch.setattr("zsq.apps.integrations.kombu.channel.AWAIT_S", WAIT_S)
    channel = connection.default_channel
    usable, slow = channel._usable, []
    monkeypatch.setattr(channel, "_usable", lambda one: None if one in slow else usable(one))
    found: list[Any] = []
    with Consumer(connection, [queue], callbacks=[lambda body, _: found.append(body)], no_ack=True):
        slow.append(channel._sources[name][0])
        low = channel._sources[name][9]
        wait_for(lambda: low.arrived, WAIT_S, "the message that is not urgent")
        assert not channel.deliver()
        slow.clear()
        while len(found) < 2:
            connection.drain_events(timeout=WAIT_S)
    assert found == [0, 9]


def test_a_consumer_does_not_wait_for_ever_for_what_another_one_has_taken(
    connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, other = connect(), connect()
    queue = Queue(name, Exchange(name), name)
    for priority in (9, 0):
        Producer(connection).publish(
            priority, exchange=name, routing_key=name, priority=priority, declare=[queue]
        )
    channel = connection.default_channel
    filled = channel._filled

    def filled_and_then_taken(topics: dict[int, str]) -> list[int]:
        levels: list[int] = filled(topics)
        queue(other.default_channel).get()
        return levels

    monkeypatch.setattr(channel, "_filled", filled_and_then_taken)
    assert payloads(received(connection, [queue], 1)) == [9]


def test_two_consumers_of_a_channel_share_what_a_queue_receives(
    connect: Connect, name: str
) -> None:
    connection = connect()
    queue = Queue(name, Exchange(name), name)
    found: list[Any] = []
    options = {"callbacks": [lambda body, _: found.append(body)], "no_ack": True}
    channel = connection.default_channel
    with Consumer(channel, [queue], **options):
        first = channel._sources[name][0]
        with Consumer(channel, [queue], **options):
            assert channel._sources[name][0] is first
            Producer(connection).publish("x", exchange=name, routing_key=name)
            connection.drain_events(timeout=WAIT_S)
    assert found == ["x"]


def test_a_purge_removes_what_waits_and_what_is_delayed(connect: Connect, name: str) -> None:
    connection = connect()
    queue = Queue(name, Exchange(name), name)(connection.default_channel)
    producer = Producer(connection)
    eta = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    for priority, headers in ((0, {}), (9, {}), (0, {"eta": eta})):
        producer.publish(
            "x",
            exchange=name,
            routing_key=name,
            priority=priority,
            headers=headers,
            declare=[queue],
        )
    assert queue.queue_declare(passive=True).message_count == 2
    assert queue.purge() == 3
    assert queue.purge() == 0
    assert queue.get() is None


def test_a_prefetch_limit_leaves_the_rest_to_others_and_can_grow(
    connect: Connect, name: str
) -> None:
    one, other = connect(), connect()
    queue = Queue(name, Exchange(name), name)
    for number in range(4):
        Producer(one).publish(number, exchange=name, routing_key=name, declare=[queue])
    held: list[Any] = []
    consumer = Consumer(one, [queue], on_message=held.append)
    consumer.qos(prefetch_count=1)
    with consumer:
        one.drain_events(timeout=WAIT_S)
        with pytest.raises(TimeoutError):
            one.drain_events(timeout=0.2)
        assert payloads(received(other, [queue], 2)) == [1, 2]
        consumer.qos(prefetch_count=2)
        one.drain_events(timeout=WAIT_S)
    assert payloads(held) == [0, 3]
    for message in held:  # the consumer is cancelled, and what it held can still be answered
        message.ack()
    one.default_channel.close()
    assert queue(other.default_channel).get() is None


def test_closing_a_channel_returns_what_it_holds(connect: Connect, name: str) -> None:
    one, other = connect(), connect()
    queue = Queue(name, Exchange(name), name)
    Producer(one).publish("x", exchange=name, routing_key=name, declare=[queue])
    channel = one.channel()
    assert queue(channel).get().payload == "x"
    channel.close()
    assert payloads(received(other, [queue], 1)) == ["x"]


def test_a_message_that_comes_back_to_its_worker_is_not_delivered_twice(
    connect: Connect, broker: Broker, name: str
) -> None:
    """The lease is lost with the connection, while the consumer works on the message."""
    connection = connect()
    queue = Queue(name, Exchange(name), name)
    Producer(connection).publish("x", exchange=name, routing_key=name, declare=[queue])
    held: list[Any] = []
    with Consumer(connection, [queue], on_message=held.append), zsq.Admin(broker.tcp) as admin:
        connection.drain_events(timeout=WAIT_S)
        [pid] = {
            row["pid"] for row in admin.stats()["processes"] if row["name"].endswith(f"{name}")
        } or {0}
        assert pid, [row["name"] for row in admin.stats()["processes"]]
        kill(pid)
        channel = connection.default_channel
        [working] = channel._held.values()
        first = working.message
        wait_for(
            lambda: _drained(connection) and working.message is not first,
            WAIT_S,
            "the second delivery",
        )
        assert len(held) == 1
        held[0].ack()
        wait_for(lambda: _in_flight(admin, name) == 0, WAIT_S, "the acknowledgement")


def _drained(connection: Any) -> bool:
    with contextlib.suppress(TimeoutError):
        connection.drain_events(timeout=0.05)
    return True


def _in_flight(admin: zsq.Admin, topic: str) -> int:
    row = admin.stats(topic, "workers")["topics"][0]["channels"][0]
    return int(row["in_flight_count"] + row["depth"])


def test_a_prefix_separates_applications(connect: Connect, broker: Broker, name: str) -> None:
    mine, theirs = connect("mine"), connect("theirs")
    queue = Queue(name, Exchange(name), name)
    Producer(mine).publish("x", exchange=name, routing_key=name, declare=[queue])
    assert queue(theirs.default_channel).queue_declare().message_count == 0
    with zsq.Admin(broker.tcp) as admin:
        assert {f"mine.{name}", f"theirs.{name}"} <= admin.topics().keys()
    queue(mine.default_channel).delete()
    with zsq.Admin(broker.tcp) as admin:
        assert f"mine.{name}" not in admin.topics()


@pytest.mark.parametrize(
    ("url", "wanted"),
    [("zsq://[fd00::7]:5000/x", "tcp://[fd00::7]:5000"), ("zsq://box", "tcp://box:4153")],
)
def test_the_broker_url_may_have_an_address_of_ipv6(url: str, wanted: str) -> None:
    with Connection(url) as connection:
        assert connection.transport.place.url == wanted


def test_a_broker_that_is_not_there_is_a_connection_error(name: str) -> None:
    with Connection("zsq://127.0.0.1:1", connect_timeout=0.5) as connection:
        started = time.monotonic()
        with pytest.raises(connection.connection_errors):
            connection._establish_connection()
        assert time.monotonic() - started < 10


def test_the_next_url_is_tried_at_once_if_nothing_listens_at_the_first(broker: Broker) -> None:
    """Kombu's time limit is for all URLs together. So this would fail after 100 s."""
    urls = f"zsq://127.0.0.1:1;zsq://127.0.0.1:{broker.port}/"
    with Connection(urls, connect_timeout=WAIT_S) as connection:
        started = time.monotonic()
        assert connection.default_channel
        assert time.monotonic() - started < WAIT_S / 2
        assert connection.port == broker.port


def test_a_program_that_imports_only_connections_can_import_the_transport(broker: Broker) -> None:
    """Kombu loads its entry points later than that. See kombu_alias.py."""
    program = (
        "import sys\nfrom kombu import Connection\nimport zsq.apps.integrations.kombu\n"
        "with Connection(sys.argv[1]) as connection, connection.SimpleQueue('simple') as queue:\n"
        "    queue.put('x')\n    print(queue.get(timeout=100).payload)\n"
    )
    url = f"zsq://127.0.0.1:{broker.port}/"
    line = [sys.executable, "-c", program, url]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=200, check=True)
    assert ended.stdout == "x\n"


def test_a_user_or_a_password_is_refused() -> None:
    with (
        Connection("zsq://user:secret@127.0.0.1:1") as connection,
        pytest.raises(zsq.UsageError, match="give a key file"),
    ):
        connection._establish_connection()


def test_names_are_legal_and_different() -> None:
    long = "x" * 100
    found = [
        names.queue_topic("", queue, level)
        for queue in ("celery", "celery@host", "celery_host", long, f"{long}y", ".", "")
        for level in (0, 9)
    ]
    found += [names.exchange_topic("app.", one) for one in ("", "celery.pidbox", long)]
    found += [names.binding_channel(*one) for one in ((long, "k"), (long, "l"), ("q", "q"))]
    assert len(set(found)) == len(found)
    for one in found:
        assert check_name(one) == one
        if not one.endswith("#ephemeral"):
            check_name(f"{one}.workers.dead")


def test_levels_are_the_next_lower_step() -> None:
    steps = (0, 3, 6, 9)
    found = [names.level_of(priority, steps) for priority in (0, 2, 3, 5, 9, 20, None, "x")]
    assert found == [0, 0, 3, 3, 9, 9, 0, 0]


def test_options_are_checked_before_anything_is_sent(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    for value in (0.5, 86_401):
        with pytest.raises(zsq.UsageError, match="message_timeout must be 1 to 86400 seconds"):
            connect(message_timeout=value).connect()
    with pytest.raises(zsq.UsageError, match="backoff must be True, False"):
        connect(backoff=5).connect()
    assert not caplog.records
    connect(message_timeot=5, visibility_timeout=3600, max_retries=1).connect()
    (record,) = [one for one in caplog.records if one.name == "zsq"]
    assert "message_timeot have no effect" in record.getMessage()
    assert "it knows backoff, highest_priority, key_file," in record.getMessage()


OTHER_SYSTEM = """
import sys
from kombu import Connection, Consumer, Exchange, Producer, Queue
url, name = sys.argv[1:]
found = []

def on_message(body, message):
    message.ack()
    found.append(body)

with Connection(url) as connection:
    queue = Queue(name, Exchange(name, "direct"), name)
    producer = Producer(connection)
    for number in range(20):
        producer.publish({"number": number}, exchange=name, routing_key=name, declare=[queue])
    with Consumer(connection, [queue], callbacks=[on_message]):
        while len(found) < 20:
            connection.drain_events(timeout=100)
        try:
            connection.drain_events(timeout=0.1)
        except TimeoutError:
            print(sys.platform, [one["number"] for one in found] == list(range(20)))
"""


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_queues_work_on_other_systems(broker: Broker, name: str, system: str) -> None:
    url = f"zsq://127.0.0.1:{broker.port}/"
    line = [sys.executable, "-m", "support.other_system", system, "-c", OTHER_SYSTEM, url, name]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    ended = subprocess.run(
        line, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert (ended.stdout, ended.stderr) == (f"{system} True\n", "")


@pytest.mark.parametrize("key", ["a", "a||b", "*", " a ", "50%", "a.#", "ü|"])
def test_a_channel_can_select_the_messages_of_any_routing_key(key: str) -> None:
    tag = names.tag_of(key)
    assert split_tags(tag) == (tag,)
    assert as_tag(tag) == tag.encode()
    assert names.key_of(tag) == key
