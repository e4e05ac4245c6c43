"""Tests of waiting for a broker that cannot be reached: for how long, what is logged meanwhile, and
what ends the wait.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.fake_connection import QuietPeer

import zsq
from zsq.transport.client.blocking.consumer import make_session
from zsq.transport.client.core.producer_engine import ProducerEngine
from zsq.transport.client.core.requester import RequestEngine
from zsq.transport.client.core.subscription import ConsumerEngine
from zsq.transport.client.link.engine import Engine
from zsq.transport.client.link.link import Link
from zsq.transport.client.link.timeouts import FAR_NS, LONGEST_S, MS, check_timeout, deadline_of
from zsq.transport.errors import BrokerUnreachable, UsageError
from zsq.transport.wire.address import DefaultTimeout, Target, parse
from zsq.transport.wire.addresses import Rotation

S = 1_000 * MS
Broker = Any


def consuming(url: str) -> ConsumerEngine:
    return ConsumerEngine(parse(url), "t", "c", make_session(10, None, None, 0), None, {})


def told(engine: Engine, caplog: pytest.LogCaptureFixture, until_s: int) -> list[int]:
    """Return the seconds of a simulated clock at which a warning was logged."""
    found = []
    for tenth in range(until_s * 10 + 1):
        before = len(caplog.records)
        engine.timers(tenth * 100 * MS)
        found += [tenth // 10] * (len(caplog.records) - before)
    return found


@pytest.fixture
def nowhere(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/none"


def test_a_wait_is_logged_after_1_s_10_s_and_every_minute(
    nowhere: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = consuming(nowhere)
    engine.tells = True
    engine.link.start(0)
    try:
        assert told(engine, caplog, 200) == [1, 10, 60, 120, 180]
        text = caplog.records[-1].getMessage()
        assert text.startswith(f"channel t/c: no broker at {nowhere} for 180 s (")
        assert caplog.records[-1].levelno == logging.WARNING
    finally:
        engine.stop()


def test_a_lost_link_is_not_logged_if_no_caller_waits(
    nowhere: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A producer whose messages are all stored does not need a broker."""
    engine = ProducerEngine(parse(nowhere), 0, 1, 1, None)
    engine.tells = True
    lane = engine.lane("t")
    lane.link.start(0)
    try:
        assert told(engine, caplog, 100) == []
    finally:
        engine.stop()


@pytest.mark.parametrize("url", ["ipc", "tcp://127.0.0.1:1", "tcp://localhost:1", "tcp://[::1]:1"])
def test_a_default_timeout_ends_after_1_s_where_nothing_listens(url: str, nowhere: str) -> None:
    began = time.monotonic()
    with (
        zsq.Producer(nowhere if url == "ipc" else url) as producer,
        pytest.raises(BrokerUnreachable, match=r"nothing listens.*url="),
    ):
        producer.publish("t", b"body")
    with (
        zsq.Admin(nowhere if url == "ipc" else url) as admin,
        pytest.raises(BrokerUnreachable, match="nothing listens"),
    ):
        admin.topics()
    assert 2 <= time.monotonic() - began < 20


def test_asyncio_clients_report_soon_that_nothing_listens(nowhere: str) -> None:
    async def main() -> None:
        async with zsq.aio.Producer(nowhere) as producer:
            with pytest.raises(BrokerUnreachable, match="nothing listens"):
                await producer.publish("t", b"body")
        async with zsq.aio.Reader("t", url=nowhere) as reader:
            with pytest.raises(BrokerUnreachable, match="nothing listens"):
                await reader.bounds()

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < 20


def test_a_time_out_that_the_user_gave_is_waited_for(broker: Broker) -> None:
    """The broker may be about to start, so the call fails only at the time-out."""
    broker.die()
    with zsq.Producer(broker.url, timeout=60) as producer:
        starting = threading.Timer(2.0, broker.start)
        starting.start()
        assert producer.publish("t", b"body").offset == 0
        starting.join()


def test_a_client_that_has_reached_its_broker_waits_for_its_return(nowhere: str) -> None:
    engine = RequestEngine(parse(nowhere), Target("topic", "t"))
    engine.hasty = engine.met = True
    request = engine.ask(1, zsq.transport.wire.protocol.Stats(1, "", ""), repeatable=True)
    began_ns = time.monotonic_ns()
    try:
        for second in range(20):
            engine.timers(began_ns + second * S)
        assert not request.done
        engine.met = False
        second, until_s = 21, time.monotonic() + 10
        # ZeroMQ's own thread reports the refused connection.
        while request.error is None and time.monotonic() < until_s:
            engine.timers(began_ns + second * S)
            second += 1
            threading.Event().wait(0.005)
        assert isinstance(request.error, BrokerUnreachable)
    finally:
        engine.stop()


def test_a_broker_elsewhere_may_be_reached_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only on this machine does a failed connection mean that nothing listens."""
    assert [
        parse(url).local
        for url in ("ipc:///d/run", "tcp://127.0.0.9:1", "tcp://[::1]:1", "tcp://localhost:1")
    ] == [True] * 4
    assert [
        parse(url).local
        for url in ("tcp://10.0.0.1:1", "tcp://broker:1", "tcp://localhost.example:1")
    ] == [False] * 3


@pytest.mark.parametrize("timeout", [math.nan, -1, -math.inf, 0, "30", True, b"1", [1]])
def test_a_timeout_is_a_number_of_seconds_above_0(timeout: Any) -> None:
    makers: list[Callable[[], Any]] = [
        lambda: zsq.Producer(timeout=timeout),
        lambda: zsq.Consumer("t", "c", timeout=timeout),
        lambda: zsq.Admin(timeout=timeout),
        lambda: zsq.aio.Producer(timeout=timeout),
        lambda: zsq.aio.Consumer("t", "c", timeout=timeout),
        lambda: zsq.aio.Admin(timeout=timeout),
    ]
    for make in makers:
        with pytest.raises(UsageError, match=r"timeout= must be a number"):
            make()


@pytest.mark.parametrize("timeout", [None, math.inf, 1, 0.5, DefaultTimeout(2)])
def test_none_and_infinity_mean_for_ever(timeout: Any, nowhere: str) -> None:
    zsq.Producer(nowhere, timeout=timeout).close()
    zsq.Consumer("t", "c", url=nowhere, timeout=timeout).close()
    ends = timeout is not None and not math.isinf(timeout)
    assert (check_timeout(timeout) is not None) == ends
    assert (deadline_of(timeout) < FAR_NS) == ends


def test_a_wait_of_a_single_call_may_be_infinite_or_over() -> None:
    assert deadline_of(math.inf) == FAR_NS
    assert deadline_of(-1) <= time.monotonic_ns()
    for wrong in (math.nan, "1", True):
        with pytest.raises(UsageError):
            deadline_of(wrong)


@pytest.mark.parametrize("how", ["receive", "iterate", "run", "subscribe"])
def test_a_consumer_waits_for_its_broker(how: str, broker: Broker) -> None:
    """The consumer waits as long as it takes: a service need not be started after its broker."""
    broker.put(b"body")
    broker.die()
    got: list[bytes] = []
    # This is longer than a client waits by default if nothing listens.
    with_broker = threading.Timer(1.5, broker.start)
    with_broker.start()
    consumer = zsq.Consumer("t", "c", url=broker.url)

    def handle(message: zsq.Message) -> None:
        got.append(message.body)
        consumer.close()

    if how == "run":
        consumer.run(handle, signals=False)
    elif how == "iterate":
        for message in consumer:
            got.append(message.body)
            break
    else:
        if how == "subscribe":
            consumer.subscribe()
        found = consumer.receive()
        assert found is not None
        got.append(found.body)
    consumer.close()
    with_broker.join()
    assert got == [b"body"]


def test_a_consumer_with_asyncio_waits_too(broker: Broker) -> None:
    broker.put(b"body")
    broker.die()
    with_broker = threading.Timer(1.5, broker.start)
    with_broker.start()

    async def main() -> bytes:
        async with zsq.aio.Consumer("t", "c", url=broker.url) as consumer:
            message = await consumer.receive()
            assert message is not None
            await message.finish()
            return message.body

    assert asyncio.run(main()) == b"body"
    with_broker.join()


def test_the_default_of_a_consumer_never_ends(nowhere: str) -> None:
    engine = consuming(nowhere)
    engine.link.start(0)
    try:
        assert engine.unreachable(None) == FAR_NS
        assert engine.unreachable(math.inf) == FAR_NS
        assert engine.unreachable(5) == engine.down_ns + 5 * S
        engine.give_up_at(1 << 61, None)
        with pytest.raises(BrokerUnreachable):
            engine.give_up_at(engine.down_ns + 5 * S, 5)
    finally:
        engine.stop()


@pytest.mark.parametrize("call", ["receive()", "__iter__().__next__()"])
def test_an_error_names_no_error_of_ours_as_its_cause(call: str, nowhere: str) -> None:
    """A user who reads the traceback looks for what failed. `IndexError: pop from an empty deque`
    is not a failure.
    """
    consumer = zsq.Consumer("t", "c", url=nowhere, timeout=0.1)
    with pytest.raises(BrokerUnreachable) as found:
        eval(f"consumer.{call}")
    assert found.value.__context__ is None
    consumer.close()


def test_an_interrupt_names_no_error_of_ours_as_its_cause(broker: Broker) -> None:
    code = "import sys, zsq\nfor message in zsq.Consumer('t', 'c', url=sys.argv[1]):\n    pass\n"
    child = subprocess.Popen([sys.executable, "-c", code, broker.url], stderr=subprocess.PIPE)
    broker.wait_for(lambda: bool(broker.consumers), 30)
    os.kill(child.pid, signal.SIGINT)
    _, said = child.communicate(timeout=30)
    assert b"KeyboardInterrupt" in said
    assert b"IndexError" not in said


def test_a_link_that_was_given_up_starts_again_when_needed(nowhere: str) -> None:
    engine = Engine()
    peer = QuietPeer()
    link = Link(engine, Rotation(parse(nowhere)), Target("topic", "t"), peer)
    engine.add(link)
    try:
        link.start(0)
        link.give_up(BrokerUnreachable("E_UNREACHABLE", "nobody"))
        assert [error.text for error in peer.errors] == ["nobody"]
        assert link.wanted_ns == FAR_NS
        link.start(5)
        assert link.wanted_ns == 5
    finally:
        engine.stop()


def test_a_wait_lasts_31_years_at_most() -> None:
    assert deadline_of(1e300) <= time.monotonic_ns() + int(LONGEST_S * S)
