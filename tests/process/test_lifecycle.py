"""Tests of what the supervisor promises: starting, stopping, failing, and starting again."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.broker import Broker, free_port, kill, wait_for

import zsq
import zsq.aio


@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_in_the_middle_of_the_start_ends_it(tmp_path: Path, signals: int) -> None:
    """The socket exists before the processes do. A signal that arrives in between must not be
    lost.
    """
    command = [
        sys.executable,
        "-m",
        "zsq",
        "serve",
        "--data-dir",
        str(tmp_path / "data"),
        "--listen",
        f"127.0.0.1:{free_port()}",
    ]
    command += ["--no-nsq", "--no-http"]
    serve = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_for((tmp_path / "data" / "run" / "supervisor").exists, 20, "the supervisor's socket")
        for _ in range(signals):
            serve.send_signal(signal.SIGTERM)
        assert serve.wait(20) in (0, -signal.SIGTERM)
    finally:
        serve.kill()
        serve.wait()


def test_three_signals_at_once_are_one_clean_stop(own_broker: Broker) -> None:
    with zsq.Producer(own_broker.ipc) as producer:
        producer.publish("t", b"body")
    assert own_broker.process is not None
    for _ in range(3):
        own_broker.process.send_signal(signal.SIGTERM)
    assert own_broker.process.wait(20) == 0
    assert "did not stop" not in own_broker.log.read_text()


def test_a_stop_says_what_it_waits_for(own_broker: Broker) -> None:
    with zsq.Producer(own_broker.ipc) as producer:
        producer.publish("t", b"body")
    [pid] = [actor["pid"] for actor in own_broker.actors() if actor["name"] == "topic t"]
    os.kill(pid, signal.SIGSTOP)
    assert own_broker.process is not None
    own_broker.process.terminate()
    own_broker.wait_said(f"waiting for topic t (pid {pid}) to stop; it is killed if it takes 10 s")
    os.kill(pid, signal.SIGCONT)
    assert own_broker.process.wait(20) == 0
    assert "did not stop" not in own_broker.log.read_text()


def test_a_channel_whose_messages_are_not_known_is_not_deleted(own_broker: Broker) -> None:
    """While a channel is started again, it cannot say which messages it holds. Without force it is
    not deleted, and its backlog is kept.
    """
    with zsq.Admin(own_broker.ipc) as admin, zsq.Producer(own_broker.ipc) as producer:
        admin.create_channel("t", "c")
        producer.publish("t", b"precious")
        (storage,), (channel,) = own_broker.pids("topic"), own_broker.pids("channel")
        os.kill(storage, signal.SIGSTOP)  # the channel cannot start again while storage is stopped
        try:
            kill(channel)
            own_broker.wait_gone([channel])
            with pytest.raises(zsq.ZsqError):
                admin.delete_channel("t", "c")
        finally:
            os.kill(storage, signal.SIGCONT)
        with zsq.Consumer("t", "c", url=own_broker.ipc) as consumer:
            message = consumer.receive(20)
            assert message is not None
            assert message.body == b"precious"


def test_a_broker_that_begins_tells_of_a_channel_when_it_knows_it(own_broker: Broker) -> None:
    """Over ipc it answers before it is ready. What is stored is never "not found" or empty then."""
    names = [f"t{number}" for number in range(10)]
    with zsq.Admin(own_broker.ipc) as admin, zsq.Producer(own_broker.ipc) as producer:
        for name in names:
            admin.create_channel(name, "c")
            producer.publish_many(name, [b"x"] * 3)
    assert own_broker.stop() == 0
    own_broker.launch()
    with zsq.Admin(own_broker.ipc, timeout=60) as admin:
        for name in reversed(names):
            (row,) = admin.stats(name, "c")["topics"]
            (channel,) = row["channels"]
            assert (row["head"], channel["depth"], channel["health"]) == (3, 3, "OK")
        with pytest.raises(zsq.NotFound):
            admin.stats(names[0], "d")
    own_broker.wait_ready()


def test_questions_make_no_topics(broker: Broker) -> None:
    """Requests about names that do not exist are answered, and nothing is created or kept."""
    with zsq.Admin(broker.ipc) as admin:
        for number in range(200):
            with pytest.raises(zsq.NotFound):
                admin.stats(f"nobody-{number}")
        assert admin.stats()["topics"] in ([], ())


def test_a_topic_that_cannot_start_is_tried_again(own_broker: Broker) -> None:
    with zsq.Producer(own_broker.ipc) as producer:
        producer.publish("t", b"1")
    assert own_broker.stop() == 0
    (lock,) = (own_broker.data_dir / "topics").glob("*/lock")
    held = os.open(lock, os.O_RDWR)
    try:
        # This stands for an earlier process that takes long to end.
        fcntl.flock(held, fcntl.LOCK_EX)
        own_broker.start()
        with zsq.Admin(own_broker.ipc) as admin:
            wait_for(
                lambda: "lock" in admin.stats("t")["topics"][0]["health"].lower(),
                30,
                "the reason in the topic's health",
            )
    finally:
        os.close(held)
    with zsq.Producer(own_broker.ipc) as producer:
        wait_for(lambda: _published(producer), 60, "the topic's return")
    with zsq.Reader("t", url=own_broker.ipc) as reader:
        assert reader.read(0).blocks[0].body.values() == [b"1"]


def _published(producer: zsq.Producer) -> bool:
    try:
        producer.publish("t", b"2")
    except zsq.Refused:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("door", ["ipc", "tcp"])
def test_an_idle_admin_gives_its_first_order_to_the_broker_that_came_back(
    own_broker: Broker, number: int, door: str
) -> None:
    """Its link broke before the order, so the order was never sent, and is no risk to send."""
    url = own_broker.ipc if door == "ipc" else own_broker.tcp
    with zsq.Admin(url) as pausing, zsq.Admin(url) as creating:
        pausing.create_topic("t")
        creating.create_channel("t", "c")
        own_broker.signal_all(number)
        assert own_broker.process is not None
        own_broker.process.wait(40)
        own_broker.start()
        pausing.pause("t")
        creating.create_channel("t", "d")
        assert creating.topics() == {"t": ["c", "d"]}


def test_the_close_of_a_producer_ends_within_ten_seconds_and_logs_what_is_not_stored(
    own_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    producers = [zsq.Producer(own_broker.ipc, linger_ms=5, timeout=t) for t in (30, None)]
    for producer in producers:
        producer.publish("t", b"stored")
        producer.flush()
    own_broker.signal_all(signal.SIGKILL)
    begin = time.monotonic()
    with contextlib.ExitStack() as closing:
        for producer in producers:
            for _ in range(7):
                producer.publish("t", b"lost")
            thread = threading.Thread(target=lambda one=producer: _close_late(one))
            thread.start()
            closing.callback(thread.join)
    assert 9 < time.monotonic() - begin < 20
    assert caplog.text.count("close() ends: 7 published messages are not confirmed") == 2


def _close_late(producer: zsq.Producer) -> None:
    with pytest.raises(zsq.BrokerUnreachable, match="7 published messages are not confirmed"):
        producer.close()


def test_the_close_of_an_asyncio_producer_logs_what_is_not_stored(
    own_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        producer = zsq.aio.Producer(own_broker.ipc, linger_ms=5)
        await producer.publish("t", b"stored")
        await producer.flush()
        own_broker.signal_all(signal.SIGKILL)
        await producer.publish("t", b"lost")
        with pytest.raises(zsq.BrokerUnreachable):
            await producer.close(0.5)

    asyncio.run(main())
    assert "close() ends: 1 published messages are not confirmed" in caplog.text
