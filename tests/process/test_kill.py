"""Tests of kill -9 for every kind of process, with unanswered publishes and finishes: no
acknowledged message is lost, and no message whose finish was confirmed comes back.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

import pytest
from support.broker import Broker, kill, wait_for
from support.history import History, body_of

import zsq

TOPIC, CHANNEL = "kills", "c"
BEFORE = 400  # the number of messages that are delivered before the kill
BLOCKS_OUT = 5  # unanswered publishes at the kill
PER_BLOCK = 40


class Load:
    """A consumer in the background, and a producer in the test's thread. On request the consumer
    holds messages back until it is told to go on.
    """

    def __init__(self, url: str) -> None:
        self.history = History()
        self.producer = zsq.Producer(url, heartbeat_ms=1_000)
        self.consumer = zsq.Consumer(TOPIC, CHANNEL, url=url, ready=200, heartbeat_ms=1_000)
        self.hold = threading.Event()  # the next message waits for `go` before it is finished
        self.held = threading.Event()
        self.go = threading.Event()
        self.finishing = threading.Event()
        # Set when the finish that had no answer at the kill has succeeded or failed.
        self.answered = threading.Event()
        self.next = 0
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._consume, daemon=True)
        self._thread.start()

    def publish(self, count: int, *, wait: bool = True) -> tuple[zsq.Receipt, set[int]]:
        numbers = set(range(self.next, self.next + count))
        self.next += count
        with self.history.lock:
            self.history.sent |= numbers
        receipt = self.producer.publish_many(
            TOPIC, [body_of(n) for n in sorted(numbers)], wait=wait
        )
        if wait:
            self.acknowledged(numbers)
        return receipt, numbers

    def acknowledged(self, numbers: set[int]) -> None:
        with self.history.lock:
            self.history.acknowledged |= numbers

    def _consume(self) -> None:
        try:
            for message in self.consumer:
                number = self.history.got(CHANNEL, message)
                chosen = self.hold.is_set() and not self.held.is_set()
                if chosen:
                    self.held.set()
                    assert self.go.wait(60)
                    self.finishing.set()
                elif number % 7 == 3 and message.attempts == 1:
                    message.requeue()
                    continue
                try:
                    message.finish(sync=True)
                except (zsq.LeaseLost, zsq.BrokerUnreachable):
                    self.history.doubt(CHANNEL, number)
                    continue
                finally:
                    if chosen:
                        self.answered.set()
                self.history.confirm(CHANNEL, {number})
        except BaseException as error:
            self._failure = error

    def close(self) -> None:
        self.go.set()
        self.consumer.close()
        self._thread.join(30)
        self.producer.close()
        if self._failure is not None:
            raise self._failure


@pytest.fixture
def load(own_broker: Broker, request: pytest.FixtureRequest) -> Iterator[Load]:
    one = Load(own_broker.tcp if "gateway" in request.node.name else own_broker.ipc)
    yield one
    one.close()


def outstanding(broker: Broker, load: Load) -> list[tuple[zsq.Receipt, set[int]]]:
    """Make publishes and a finish that certainly have no answer yet. The topic's process is
    stopped, so that nothing can be committed.
    """
    load.publish(BEFORE)
    load.hold.set()
    load.publish(10)
    assert load.held.wait(20), "nothing was delivered"
    (storage,) = broker.pids("topic")
    os.kill(storage, signal.SIGSTOP)
    waiting = [load.publish(PER_BLOCK, wait=False) for _ in range(BLOCKS_OUT)]
    load.go.set()
    assert load.finishing.wait(20)
    still_outstanding(load, waiting)
    return waiting


def still_outstanding(load: Load, waiting: list[tuple[zsq.Receipt, set[int]]]) -> None:
    assert not any(receipt.done for receipt, _ in waiting), (
        "publishes must be outstanding at the kill"
    )
    assert not load.answered.is_set(), "a finish must be outstanding at the kill"


def settle(broker: Broker, load: Load, waiting: list[tuple[zsq.Receipt, set[int]]]) -> None:
    """After the restart, check that everything is answered, that new messages flow, and that the
    history is consistent.
    """
    for receipt, numbers in waiting:
        receipt.wait(60)
        load.acknowledged(numbers)
    load.publish(100)
    wait_for(lambda: load.history.all_finished(CHANNEL), 60, "the finish of everything")

    def drained() -> bool:
        with zsq.Admin(broker.ipc) as admin:
            (row,) = admin.stats(TOPIC, CHANNEL)["topics"][0]["channels"]
        return not row["depth"] and not row["deferred_count"] and not row["in_flight_count"]

    wait_for(drained, 30, "an empty channel")
    load.history.check(broker.ipc, TOPIC)


@pytest.mark.parametrize("kind", ["topic", "channel", "scan_worker", "scan_loop", "gateway"])
def test_nothing_is_lost_when_one_actor_is_killed(
    own_broker: Broker, load: Load, kind: str
) -> None:
    waiting = outstanding(own_broker, load)
    (storage,) = own_broker.pids("topic")
    (victim,) = own_broker.pids(kind)
    still_outstanding(load, waiting)
    kill(victim)
    own_broker.wait_gone([victim])
    # The victim may have been the topic's process itself.
    with contextlib.suppress(ProcessLookupError):
        os.kill(storage, signal.SIGCONT)
    settle(own_broker, load, waiting)


@pytest.mark.parametrize("kind", ["supervisor", "forkserver", "everything"])
def test_nothing_is_lost_when_all_processes_end_at_once(
    own_broker: Broker, load: Load, kind: str
) -> None:
    waiting = outstanding(own_broker, load)
    everyone = [actor["pid"] for actor in own_broker.actors()]
    victims = everyone if kind == "everything" else own_broker.pids(kind)
    still_outstanding(load, waiting)
    for victim in victims:
        kill(victim)
    own_broker.wait_gone(everyone)  # no process that was left behind owns a file
    assert own_broker.process is not None
    assert own_broker.process.wait(40) != 0
    own_broker.start()
    settle(own_broker, load, waiting)
