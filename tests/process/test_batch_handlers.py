"""Tests of handlers of batches at a real broker: killed programs, signals, restarts and parts."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

import pytest
from support.broker import Broker, wait_for
from support.cluster import running

import zsq

WAIT_S: Final = 30.0
PROGRAM: Final = """
import sys, threading, zsq

def handle(batch):
    print("began", len(batch), flush=True)
    sys.stdin.readline()
    print("ended", flush=True)

zsq.Consumer("t", "c", url=sys.argv[1]).run(handle, batch=10, batch_wait=0.1)
"""


class Program:
    """A program whose handler of batches waits for a line on its standard input."""

    def __init__(self, url: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def program(own_broker: Broker) -> Iterator[Program]:
    publish(own_broker.ipc, 100)
    started = Program(own_broker.ipc)
    yield started
    started.close()


def publish(url: str, count: int, **settings: Any) -> None:
    with zsq.Admin(url) as admin, zsq.Producer(url) as producer:
        admin.create_channel("t", "c", **settings)
        for number in range(count):
            producer.publish("t", b"%d" % number, key=b"%d" % number)


def channel(admin: zsq.Admin) -> dict[str, Any]:
    return dict(admin.stats("t", "c")["topics"][0]["channels"][0])


def rest(broker: Broker) -> dict[bytes, int]:
    """Return the messages that are left, with their attempts."""
    found = {}
    with zsq.Consumer("t", "c", url=broker.ipc) as consumer:
        while (message := consumer.receive(1)) is not None:
            found[message.body] = message.attempts
            message.finish()
    return found


def test_sigterm_waits_for_the_batch_that_is_handled(own_broker: Broker, program: Program) -> None:
    assert program.line() == "began 10"
    program.process.send_signal(signal.SIGTERM)
    program.go_on()
    assert program.line() == "ended"
    assert program.process.wait(WAIT_S) == 0
    assert rest(own_broker) == {b"%d" % number: 1 for number in range(10, 100)}


def test_a_killed_program_gives_its_batch_back(own_broker: Broker, program: Program) -> None:
    assert program.line() == "began 10"
    program.process.kill()
    left = rest(own_broker)
    assert sorted(left) == sorted(b"%d" % number for number in range(100))
    assert {left[b"%d" % number] for number in range(10, 100)} == {1}


def test_a_batch_goes_on_over_a_restart_of_the_broker(own_broker: Broker) -> None:
    publish(own_broker.ipc, 100)
    handled: list[bytes] = []
    go_on, began = threading.Event(), threading.Event()

    def handle(batch: Any) -> None:
        began.set()
        assert go_on.wait(WAIT_S)
        handled.extend(batch.bodies)

    consumer = zsq.Consumer("t", "c", url=own_broker.ipc)
    options: Any = {"batch": 10, "signals": False}
    thread = threading.Thread(target=consumer.run, args=(handle,), kwargs=options)
    thread.start()
    assert began.wait(WAIT_S)
    own_broker.stop()
    own_broker.start()
    with zsq.Admin(own_broker.ipc) as admin:

        def in_flight() -> int:
            (topic,) = admin.stats()["topics"]
            return sum(channel["in_flight_count"] for channel in topic["channels"])

        wait_for(lambda: in_flight() > 0, what="the same messages, which come again")
        go_on.set()
        wait_for(lambda: len(set(handled)) == 100, what="all messages")
        wait_for(lambda: admin.unfinished("t", "c") == 0, what="their finishes")
    consumer.close()
    thread.join(WAIT_S)
    assert len(handled) == 100, "no message was handled twice"


def test_a_batch_has_messages_of_several_parts(tmp_path: Path) -> None:
    with running(tmp_path) as cluster, zsq.Admin(cluster.url) as admin:
        admin.create_topic("t", parts=4)
        publish(cluster.url, 200)
        parts: list[set[int | None]] = []
        handled: set[tuple[int | None, int]] = set()

        def handle(batch: Any) -> None:
            parts.append({message.part for message in batch})
            handled.update((message.part, message.offset) for message in batch)

        consumer = zsq.Consumer("t", "c", url=cluster.url)
        options: Any = {"batch": 150, "batch_wait": 1, "signals": False}
        thread = threading.Thread(target=consumer.run, args=(handle,), kwargs=options)
        thread.start()
        wait_for(lambda: len(handled) == 200, what="all messages")
        consumer.close()
        thread.join(WAIT_S)
        assert max(map(len, parts)) > 1


def test_a_lease_lasts_as_long_as_a_batch_is_handled(own_broker: Broker) -> None:
    publish(own_broker.ipc, 20)
    handled: list[bytes] = []
    over, began = threading.Event(), threading.Event()

    def handle(batch: Any) -> None:
        began.set()
        over.wait(10)
        handled.extend(batch.bodies)

    consumer = zsq.Consumer("t", "c", url=own_broker.ipc, message_timeout=1)
    options: Any = {"batch": 20, "signals": False}
    thread = threading.Thread(target=consumer.run, args=(handle,), kwargs=options)
    thread.start()
    assert began.wait(WAIT_S)
    with zsq.Consumer("t", "c", url=own_broker.ipc) as other:
        assert other.receive(2) is None, "no lease has ended"
    over.set()
    wait_for(lambda: len(handled) == 20, what="the batch")
    consumer.close()
    thread.join(WAIT_S)
    assert rest(own_broker) == {}


class Working:
    """A consumer whose handler of batches is under way in a thread."""

    def __init__(self, broker: Broker, handler: Any, **options: Any) -> None:
        self.batches: list[list[bytes]] = []
        self.consumer = zsq.Consumer("t", "c", url=broker.ipc)

        def handle(batch: Any) -> None:
            self.batches.append(batch.bodies)
            handler(batch)

        options = {"signals": False, "on_error": lambda *_: None, **options}
        self._thread = threading.Thread(target=self.consumer.run, args=(handle,), kwargs=options)
        self._thread.start()

    @property
    def handled(self) -> int:
        return sum(map(len, self.batches))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.close()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


def test_a_restart_of_the_broker_while_a_batch_is_gathered_stops_nothing(
    own_broker: Broker,
) -> None:
    """celery-batches 107: the timer of the batch was lost with the connection."""
    publish(own_broker.ipc, 5)
    with Working(own_broker, lambda batch: None, batch=50, batch_wait=3) as working:
        with zsq.Admin(own_broker.ipc) as admin:
            wait_for(lambda: channel(admin)["in_flight_count"] == 5, what="gathered messages")
        own_broker.stop()
        own_broker.start()
        wait_for(lambda: working.handled >= 5, what="the batch")
        publish(own_broker.ipc, 50)
        wait_for(lambda: working.handled >= 55, what="the next batches")
        extensions = working.consumer._drive().engine.extensions
        wait_for(lambda: not extensions._works, what="the end of all handlers")
    assert rest(own_broker) == {}


def test_messages_that_are_due_at_once_make_no_larger_batches(own_broker: Broker) -> None:
    """celery-batches 84: all tasks that were due came in one batch, whatever its limit was."""

    def handle(batch: Any) -> None:
        if batch[0].attempts == 1:
            raise ValueError

    publish(own_broker.ipc, 100)
    options: Any = {"batch": 10, "batch_wait": 0.1, "requeue_delay": 0.5, "backoff": False}
    with Working(own_broker, handle, **options) as working:
        wait_for(lambda: working.handled >= 200, what="all messages twice")
    assert max(map(len, working.batches)) == 10


def test_a_batch_that_was_ended_by_time_is_not_counted_for_the_next_one(
    own_broker: Broker,
) -> None:
    """celery-batches 95: after a batch of one message, the next message was a full batch."""
    with Working(own_broker, lambda batch: None, batch=2, batch_wait=0.3) as working:
        publish(own_broker.ipc, 1)
        wait_for(lambda: working.handled == 1, what="a batch that was ended by time")
        with zsq.Producer(own_broker.ipc) as producer:
            producer.publish_many("t", [b"a", b"b"])
        wait_for(lambda: working.handled == 3, what="the next batch")
    assert working.batches == [[b"0"], [b"a", b"b"]]


def test_a_poison_message_becomes_a_dead_letter_and_no_other_does(own_broker: Broker) -> None:
    """spring-kafka 3297, 1382 and 4436: the batch came again without end, or was committed."""
    finished: set[bytes] = set()

    def handle(batch: Any) -> None:
        if b"42" in batch.bodies:
            raise ValueError("poison")
        finished.update(batch.bodies)

    publish(own_broker.ipc, 100, max_attempts=3, backoff_s=0)
    options: Any = {"batch": 100, "batch_wait": 0.3, "halving": True}
    with Working(own_broker, handle, **options), zsq.Admin(own_broker.ipc) as admin:
        wait_for(lambda: channel(admin)["dead_letter_count"] == 1, what="the dead letter")
    assert finished == {b"%d" % number for number in range(100)} - {b"42"}
    assert rest(own_broker) == {}
