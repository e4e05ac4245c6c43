"""Tests of the clocks of brokers for tests: only they can be moved, and only forward."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.broker import Broker

import zsq
from zsq.apps.testing.clock import OFFSET_FILE, ClockOffset
from zsq.testing import LocalBroker, MemoryBroker, Namespace

DAY_NS = 86_400_000_000_000


@pytest.fixture
def memory() -> Iterator[MemoryBroker]:
    with MemoryBroker() as one:
        yield one


@pytest.mark.parametrize("step", [-1, float("nan")])
def test_a_clock_moves_only_forward(
    zsq_broker: LocalBroker, memory: MemoryBroker, step: float
) -> None:
    for broker in (zsq_broker, memory):
        with pytest.raises(zsq.UsageError, match="forward only"):
            broker.advance(step)


def test_only_a_running_broker_has_a_clock(tmp_path: Path) -> None:
    for broker in (LocalBroker(tmp_path), MemoryBroker()):
        with pytest.raises(zsq.UsageError, match="does not run"):
            broker.advance(1)


def test_the_clock_of_the_in_memory_broker_stands_still(memory: MemoryBroker) -> None:
    before = memory.now_ns()
    with memory.producer() as producer, memory.reader("t") as reader:
        producer.publish("t", b"a")
        producer.publish("t", b"b")
        blocks = reader.read(0).blocks
        assert [block.header.time_ns for block in blocks] == [before, before]
        memory.advance(7)
        assert memory.now_ns() == before + 7_000_000_000


def test_a_lease_of_the_in_memory_broker_ends_exactly_then(memory: MemoryBroker) -> None:
    with memory.producer() as producer:
        producer.publish("t", b"a")
    with (
        memory.consumer("t", "c", message_timeout=30, ready=1) as one,
        memory.consumer("t", "c", message_timeout=30, ready=1) as other,
    ):
        message = one.receive(30)
        assert message is not None
        memory.advance(29)
        message.touch()
        memory.advance(29.9)
        assert other.receive(0.1) is None
        memory.advance(0.1)
        again = other.receive(30)
        assert again is not None
        assert again.attempts == 2
        with pytest.raises(zsq.LeaseLost):
            message.finish(sync=True)


def test_an_answer_before_the_step_counts_at_the_time_before_it(memory: MemoryBroker) -> None:
    """A finish without `sync=True` is sent up to 20 ms later."""
    with memory.producer() as producer, memory.consumer("t", "c", message_timeout=30) as consumer:
        for number in range(3):
            producer.publish("t", b"a")
            message = consumer.receive(30)
            assert message is not None
            assert message.offset == number
            message.finish()
            memory.advance(31)
        consumer.flush()
        assert consumer.stale_count == 0


def test_unfinished_counts_what_consumers_hold_and_depth_what_waits(memory: MemoryBroker) -> None:
    with memory.producer() as producer, memory.consumer("t", "c") as consumer:
        producer.publish_many("t", [b"a", b"b", b"c"])
        assert memory.unfinished("t", "c") == 3
        messages = [consumer.receive(30) for _ in range(3)]
        assert (memory.depth("t", "c"), memory.unfinished("t", "c")) == (0, 3)
        assert None not in messages
        for message, answer in zip(messages, ("finish", "requeue", "reject"), strict=True):
            getattr(message, answer)()
        assert memory.unfinished("t", "c") == 1
        for count in (memory.depth, memory.unfinished):
            with pytest.raises(zsq.NotFound):
                count("t", "other")


@pytest.mark.slow
def test_a_broker_in_production_has_no_such_clock(tmp_path: Path) -> None:
    """`zsq serve` reads the time of the system, also if the variable of a test broker is set."""
    ClockOffset(tmp_path / "clock").add(10 * DAY_NS)
    broker = Broker(tmp_path / "data")
    broker.environment[OFFSET_FILE] = str(tmp_path / "clock")
    try:
        broker.start()
        with zsq.Producer(broker.ipc) as producer, zsq.Reader("t", url=broker.ipc) as reader:
            producer.publish("t", b"a")
            stored_ns = reader.read(0).blocks[0].header.time_ns
    finally:
        broker.close()
    assert abs(time.time_ns() - stored_ns) < DAY_NS


def test_the_real_brokers_messages_have_the_moved_time(zsq_broker: LocalBroker) -> None:
    with Namespace(zsq_broker) as space:
        space.advance(3 * 86_400)
        space.publish("t", b"a")
        stored_ns = space.reader("t").read(0).blocks[0].header.time_ns
    assert abs(zsq_broker.now_ns() - stored_ns) < DAY_NS
    assert stored_ns - time.time_ns() > 2 * DAY_NS


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda space: space.admin().stats(), "stats"),
        (lambda space: space.admin().peek(space.topic("t"), "c"), "peek"),
        (lambda space: space.admin().create_topic("other", parts=2), "parts"),
        (lambda space: space.producer().publish("t#ephemeral", b""), "#ephemeral"),
        (lambda space: space.consumer("t", "c#ephemeral").subscribe(), "#ephemeral"),
        (lambda space: space.reader("t").measure(0), "measure"),
    ],
)
def test_what_the_in_memory_broker_lacks_is_refused_clearly(
    memory: MemoryBroker, call: Callable[[Namespace], object], named: str
) -> None:
    with Namespace(memory) as space:
        space.publish("t", b"")
        with pytest.raises(zsq.UsageError, match="E_UNSUPPORTED") as error:
            call(space)
        assert named in str(error.value)
        assert "use LocalBroker" in str(error.value)
