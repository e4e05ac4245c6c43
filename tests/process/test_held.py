"""Tests of held and begun messages with real programs: deploys, restarts, slow handlers, messages
that kill their consumer, consumers that were lost, and workers beside a full one.

Each program is a file of a few lines, as a user writes it, and prints what its handler begins.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from support.broker import Broker, wait_for

import zsq

WORKER: Final = r"""
import os, sys, time
import zsq

def handle(message):
    os.write(1, b"%d %d\n" % (message.offset, message.attempts))
    if message.body == b"poison":
        os._exit(1)
    time.sleep(float(sys.argv[2]))

options = eval(sys.argv[3])
concurrency = options.pop("concurrency", 1)
zsq.Consumer("t", "c", url=sys.argv[1], **options).run(handle, concurrency=concurrency)
"""


class Worker:
    """A running program. `begun` are the offsets and attempts that its handler has printed."""

    def __init__(self, folder: Path, url: str, handler_s: float, **options: Any) -> None:
        program = folder / "worker.py"
        program.write_text(WORKER)
        self._out = folder / f"out-{time.monotonic_ns()}"
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, str(program), url, str(handler_s), repr(options)], stdout=out
            )

    @property
    def begun(self) -> list[tuple[int, int]]:
        lines = self._out.read_text().split("\n")[:-1]
        return [(int(line.split()[0]), int(line.split()[1])) for line in lines]

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


Start = Callable[..., Worker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    workers: list[Worker] = []

    def begin(url: str, handler_s: float, **options: Any) -> Worker:
        workers.append(Worker(tmp_path, url, handler_s, **options))
        return workers[-1]

    yield begin
    for worker in workers:
        if worker.process.poll() is None:
            worker.process.kill()
            worker.process.wait()


def prepare(broker: Broker, bodies: list[bytes], **settings: Any) -> None:
    with zsq.Admin(url=broker.ipc) as admin, zsq.Producer(url=broker.ipc) as producer:
        admin.create_topic("t")
        admin.create_channel("t", "c", **settings)
        if bodies:
            producer.publish_many("t", bodies)


def row(broker: Broker) -> dict[str, Any]:
    with zsq.Admin(url=broker.ipc, timeout=30) as admin:
        found: dict[str, Any] = admin.stats("t", "c")["topics"][0]["channels"][0]
        return found


def left(broker: Broker) -> int:
    found = row(broker)
    names = ("depth", "in_flight_count", "deferred_count", "dying_count")
    return sum(int(found[name]) for name in names)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_deploys_make_no_dead_letters(own_broker: Broker, start: Start) -> None:
    """Each deploy is a clean SIGTERM. Consumers with a large window give back what they hold."""
    prepare(own_broker, numbers(24), max_attempts=2)
    seen: Counter[int] = Counter()
    for _ in range(5):
        worker = start(own_broker.tcp, 0.05, ready=2500)
        wait_for(lambda worker=worker: len(worker.begun) >= 3, 60, "some messages")  # type: ignore[misc]
        assert worker.end() == 0
        seen.update(offset for offset, attempts in worker.begun if attempts == 1)
        assert all(attempts == 1 for _, attempts in worker.begun)
    last = start(own_broker.tcp, 0)
    wait_for(lambda: left(own_broker) == 0, 60, "all are handled")
    seen.update(offset for offset, _ in last.begun)
    assert row(own_broker)["dead_letter_count"] == 0
    assert seen == Counter(range(24)), "each message was handled once"


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_restarts_of_the_broker_make_no_dead_letters(
    own_broker: Broker, start: Start, way: str
) -> None:
    prepare(own_broker, numbers(30), max_attempts=3)
    worker = start(own_broker.tcp, 0.1, ready=2500)
    for _ in range(3):
        before = len(worker.begun)
        wait_for(lambda before=before: len(worker.begun) >= before + 2, 60, "more")  # type: ignore[misc]
        if way == "stop":
            own_broker.stop()
        else:
            own_broker.signal_all(signal.SIGKILL)
        own_broker.start()
    wait_for(lambda: left(own_broker) == 0, 90, "all are handled")
    assert row(own_broker)["dead_letter_count"] == 0
    assert {offset for offset, _ in worker.begun} == set(range(30))


def test_messages_that_wait_in_a_slow_consumer_do_not_time_out(
    own_broker: Broker, start: Start
) -> None:
    prepare(own_broker, numbers(12), max_attempts=1)
    worker = start(own_broker.tcp, 0.3, ready=2500, message_timeout=1)
    wait_for(lambda: left(own_broker) == 0, 60, "all are handled")
    assert worker.begun == [(offset, 1) for offset in range(12)]
    found = row(own_broker)
    assert (found["dead_letter_count"], found["timeout_count"]) == (0, 0)


def test_run_extends_the_lease_of_a_long_handler(own_broker: Broker, start: Start) -> None:
    prepare(own_broker, numbers(2), max_attempts=1)
    workers = [start(own_broker.tcp, 4, message_timeout=1) for _ in range(2)]
    wait_for(lambda: left(own_broker) == 0, 60, "all are handled")
    assert sorted(workers[0].begun + workers[1].begun) == [(0, 1), (1, 1)]
    assert row(own_broker)["timeout_count"] == 0


def test_max_extension_bounds_the_lease_of_a_handler(broker: Broker) -> None:
    prepare(broker, numbers(1))
    seen: list[int] = []
    with zsq.Consumer("t", "c", url=broker.ipc, message_timeout=1) as other:
        consumer = zsq.Consumer("t", "c", url=broker.tcp, message_timeout=1)

        def handle(message: zsq.Message) -> None:
            if message.attempts == 1:
                again = other.receive(20)
                assert again is not None
                seen.append(again.attempts)
                assert not message.leased
                again.finish(sync=True)
            consumer.close()

        consumer.run(handle, max_extension=0.5)
    assert seen == [2]


@pytest.mark.parametrize("concurrency", [1, 8])
def test_a_message_that_kills_its_consumers_becomes_the_only_dead_letter(
    own_broker: Broker, start: Start, concurrency: int
) -> None:
    prepare(own_broker, [*numbers(3), b"poison", *numbers(20)], max_attempts=2)
    deaths = 0
    worker = None
    while deaths < 12 and (worker is None or left(own_broker) > 0):
        worker = start(own_broker.ipc, 0.01, concurrency=concurrency)
        wait_for(
            lambda worker=worker: worker.process.poll() is not None or left(own_broker) == 0,  # type: ignore[misc]
            90,
            "an end",
        )
        deaths += worker.process.poll() is not None
    found = row(own_broker)
    assert (found["dead_letter_count"], found["finish_count"]) == (1, 23)
    with zsq.Reader("t.c.dead", url=own_broker.ipc) as reader:
        assert reader.message(0).body == b"poison"
        assert reader.bounds()[1] == 1
    assert deaths <= 2 + 4, "the attempts, and a few deaths in groups"


def test_lost_consumers_use_no_attempts(own_broker: Broker, start: Start) -> None:
    """Three consumers are killed while they hold nothing. Their links may be noticed later."""
    prepare(own_broker, [], max_attempts=3)
    ghosts = [start(own_broker.tcp, 0, ready=500, heartbeat_ms=60_000) for _ in range(3)]
    wait_for(lambda: row(own_broker)["client_count"] == 3, 60, "three consumers")
    for ghost in ghosts:
        ghost.end(signal.SIGKILL)
    start(own_broker.tcp, 0)
    with zsq.Producer(url=own_broker.tcp) as producer:
        producer.publish_many("t", numbers(1000))
    wait_for(lambda: row(own_broker)["finish_count"] == 1000, 90, "all are handled")
    assert row(own_broker)["dead_letter_count"] == 0


@pytest.mark.parametrize("options", [{}, {"ready": 2500}], ids=["default", "ready"])
def test_a_second_worker_gets_its_share(
    own_broker: Broker, start: Start, options: dict[str, Any]
) -> None:
    """The first worker would need 100 s for all messages, and it has received them."""
    prepare(own_broker, numbers(500))
    first = start(own_broker.tcp, 0.2, **options)
    wait_for(lambda: len(first.begun) >= 2, 60, "the first worker")
    second = start(own_broker.tcp, 0.2, **options)
    wait_for(lambda: len(second.begun) >= 10, 60, "the second worker")
    begun = first.begun + second.begun
    assert {attempts for _, attempts in begun} == {1}
    assert len({*begun}) == len(begun)


@pytest.mark.parametrize("how", ["ipc", "tcp of the same machine", "tcp"])
def test_the_messages_of_a_killed_consumer_come_back_at_once(
    own_broker: Broker, start: Start, how: str
) -> None:
    """The channel is idle, and the heartbeats are the default ones: every 4 s and every 30 s."""
    url = own_broker.ipc if how == "ipc" else own_broker.tcp
    options = {"transport": "auto" if how == "tcp of the same machine" else "tcp"}
    prepare(own_broker, numbers(3), max_attempts=5)
    worker = start(url, 600, ready=10, **options)
    wait_for(lambda: worker.begun == [(0, 1)], 60, "the first message is begun")
    with zsq.Consumer("t", "c", url=own_broker.ipc, ready=10) as consumer:
        worker.end(signal.SIGKILL)
        found = set()
        for _ in range(3):
            message = consumer.receive(4)  # much less than two heartbeats
            assert message is not None
            found.add(message.offset)
            message.finish()
    assert found == {0, 1, 2}


def test_a_consumer_is_told_how_many_finishes_came_too_late(broker: Broker) -> None:
    """The program receives ten messages, works on all of them for too long, and finishes them."""
    prepare(broker, numbers(10))
    with zsq.Consumer("t", "c", url=broker.tcp, message_timeout=1) as consumer:
        messages = [consumer.receive(20) for _ in range(10)]
        wait_for(lambda: row(broker)["timeout_count"] == 10, 20, "all leases have ended")
        for message in messages:
            assert message is not None
            message.finish()
        with pytest.raises(zsq.LeaseLost, match=r"^E_LEASE 10 finishes "):
            consumer.flush()
