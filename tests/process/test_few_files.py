"""Tests of a process that may not open any more files: a request that needs a file is refused or
waits, with a clear error, and everything else continues.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import time
from collections.abc import Iterator

import pytest
from support.broker import Broker, kill, wait_for

import zsq
from zsq.transport.errors import E_LIMIT, ZsqError

MIB = 1 << 20


def pid_of(broker: Broker, name: str) -> int:
    [pid] = [actor["pid"] for actor in broker.actors() if actor["name"] == name]
    return int(pid)


@contextlib.contextmanager
def no_more_files(pid: int, spare: int = 0) -> Iterator[None]:
    """Keep the open files of the process, but let it open at most `spare` others."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    lowest_free = next(
        number for number in range(1 << 20) if not os.path.lexists(f"/proc/{pid}/fd/{number}")
    )
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest_free + spare, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def publishes(broker: Broker, topic: str) -> None:
    """Publish to a topic that is not affected."""
    with zsq.Producer(broker.ipc, timeout=10) as producer:
        producer.publish(topic, b"x")


def test_a_storage_that_cannot_roll_is_started_again(own_broker: Broker) -> None:
    body = os.urandom(4000)
    with zsq.Admin(own_broker.ipc) as admin, zsq.Producer(own_broker.ipc, timeout=60) as producer:
        admin.create_topic("t", max_bytes=64 * MIB)
        admin.create_channel("t", "c")
        admin.create_topic("other")
        others = pid_of(own_broker, "topic other")
        pid = pid_of(own_broker, "topic t")
        sent = 0
        with no_more_files(pid):
            while pid == pid_of(own_broker, "topic t"):
                receipt = producer.publish_many(
                    "t", [b"%d " % (sent + number) + body for number in range(200)]
                )
                receipt.wait(60)
                sent += 200
                assert sent < 10_000, "it was never to roll"
            publishes(own_broker, "other")
        seen: list[int] = []
        with zsq.Consumer("t", "c", url=own_broker.ipc) as consumer:
            while len(seen) < sent:
                message = consumer.receive(20)
                assert message is not None
                seen.append(int(message.body.split(b" ")[0]))
                message.finish()
        assert seen == list(range(sent))
        assert pid_of(own_broker, "topic other") == others
        assert b"Too many open files" in own_broker.log.read_bytes()


def test_a_supervisor_that_can_start_nothing_says_so(own_broker: Broker) -> None:
    with (
        zsq.Admin(own_broker.ipc, timeout=20) as admin,
        zsq.Producer(own_broker.ipc, timeout=20) as producer,
    ):
        admin.create_topic("t")
        producer.publish("t", b"before")
        assert own_broker.process is not None
        with no_more_files(own_broker.process.pid):
            with pytest.raises(ZsqError, match="Too many open files"):
                admin.create_topic("new")
            producer.publish("t", b"meanwhile")
        wait_for(lambda: made(admin, "newer"), 30, "a topic made once files can be opened")
        producer.publish("newer", b"after")
        producer.publish("t", b"after")
    publishes(own_broker, "t")


def test_a_process_that_dies_while_no_file_can_be_opened_starts_later(own_broker: Broker) -> None:
    with (
        zsq.Admin(own_broker.ipc, timeout=20) as admin,
        zsq.Producer(own_broker.ipc, timeout=60) as producer,
    ):
        admin.create_topic("t")
        admin.create_topic("other")
        producer.publish("t", b"before")
        producer.publish("other", b"before")
        victim, other = pid_of(own_broker, "topic t"), pid_of(own_broker, "topic other")
        assert own_broker.process is not None
        with no_more_files(own_broker.process.pid):
            kill(victim)
            own_broker.wait_gone([victim])
            with pytest.raises(ZsqError):
                producer.publish("t", b"meanwhile")
            for number in range(50):
                producer.publish("other", b"%d" % number)
            wait_for(
                lambda: b"Too many open files" in own_broker.log.read_bytes(),
                20,
                "the supervisor's complaint",
            )
        wait_for(lambda: accepted(producer), 30, "publishing by itself once files can be opened")
        assert pid_of(own_broker, "topic other") == other
    publishes(own_broker, "t")


def accepted(producer: zsq.Producer) -> bool:
    with contextlib.suppress(ZsqError):
        producer.publish("t", b"after")
        return True
    return False


def made(admin: zsq.Admin, topic: str) -> bool:
    with contextlib.suppress(ZsqError):
        admin.create_topic(topic)
        return True
    return False


def test_a_gateway_without_free_files_keeps_its_connections(own_broker: Broker) -> None:
    with zsq.Admin(own_broker.ipc) as admin:
        admin.create_channel("t", "c")
    with (
        zsq.Producer(own_broker.tcp, timeout=10) as producer,
        zsq.Consumer("t", "c", url=own_broker.tcp) as consumer,
    ):
        producer.publish("t", b"0")
        message = consumer.receive(10)
        assert message is not None
        message.finish()
        with no_more_files(pid_of(own_broker, "gateway zeromq")):
            with pytest.raises(ZsqError), zsq.Producer(own_broker.tcp, timeout=3) as late:
                late.publish("t", b"late")
            for number in range(1, 20):
                producer.publish("t", b"%d" % number)
                message = consumer.receive(10)
                assert message is not None
                message.finish()
        with zsq.Producer(own_broker.tcp, timeout=30) as later:
            later.publish("t", b"later")


def test_a_gateway_without_files_for_another_topic_refuses_it_and_lives(own_broker: Broker) -> None:
    names = [f"t{number}" for number in range(8)]
    with zsq.Admin(own_broker.ipc) as admin:
        for name in names:
            admin.create_topic(name)
    gateway = pid_of(own_broker, "gateway zeromq")
    with contextlib.ExitStack() as open_links, no_more_files(gateway, spare=10):
        refused = None
        for name in names:
            producer = open_links.enter_context(
                zsq.Producer(own_broker.tcp, timeout=10, transport="tcp")
            )
            try:
                producer.publish(name, b"x")
            except ZsqError as error:
                refused = error
                break
        assert refused is not None
        assert (refused.code, "no free file descriptor" in refused.text) == (E_LIMIT, True)
    assert pid_of(own_broker, "gateway zeromq") == gateway
    assert "Traceback" not in own_broker.log.read_text()


def test_publishes_go_on_soon_after_all_processes_lacked_files(own_broker: Broker) -> None:
    """However long the processes lack files, the topic must not fail for good. The first publish
    after that must be answered soon.
    """
    body = os.urandom(100_000)
    with zsq.Admin(own_broker.ipc, timeout=20) as admin:
        admin.create_channel("t", "c")
        producer = zsq.Producer(own_broker.ipc, timeout=60)
        producer.publish("t", b"before")
        storage, channel = pid_of(own_broker, "topic t"), pid_of(own_broker, "channel t/c")
        everybody = [actor["pid"] for actor in own_broker.actors()]
        with contextlib.ExitStack() as limits:
            for pid in everybody:
                limits.enter_context(no_more_files(pid))
            kill(channel)
            kill(storage)
            own_broker.wait_gone([storage])
            wait_for(
                lambda: own_broker.log.read_bytes().count(b"Too many open files") >= 2,
                20,
                "the complaints",
            )
            # This is enough time for some tries. After a failure, the pauses would have grown to 8
            # s and more by then.
            select.select([], [], [], 6)
        begun = time.monotonic()
        with zsq.Producer(own_broker.ipc, timeout=20) as other:
            other.publish("t", body)
        assert time.monotonic() - begun < 4, "2 s, and as much again for a busy machine"
        producer.publish("t", b"after")
        producer.close()
        with zsq.Consumer("t", "c", url=own_broker.ipc) as consumer:
            found = []
            while b"after" not in found:
                message = consumer.receive(20)
                assert message is not None
                found.append(message.body)
                message.finish()
        assert {b"before", body} <= set(found)
        assert admin.stats("t")["topics"][0]["write_trouble"] == ""
    assert b"failed more than" not in own_broker.log.read_bytes()


@pytest.mark.parametrize("kind", ["ipc", "tcp"])
def test_a_client_without_descriptors_names_the_limit(own_broker: Broker, kind: str) -> None:
    url = own_broker.ipc if kind == "ipc" else own_broker.tcp
    producers: list[zsq.Producer] = []
    consumers: list[zsq.Consumer] = []

    def publish_with_new_ones() -> None:
        while len(producers) < 20:
            producers.append(zsq.Producer(url, timeout=2))
            producers[-1].publish("t", b"x")

    def receive_with_new_ones() -> None:
        while len(consumers) < 20:
            consumers.append(zsq.Consumer("t", "c", url=url, timeout=2))
            consumers[-1].receive(0.1)

    try:
        with no_more_files(os.getpid(), spare=20):
            text = r"this process has reached its limit of open files \(\d+\); raise it"
            with pytest.raises(ZsqError, match=text):
                publish_with_new_ones()
            with pytest.raises(ZsqError, match=text):
                receive_with_new_ones()
    finally:
        for producer in producers:
            producer.close(5)
        for consumer in consumers:
            consumer.close(5)


def test_a_client_names_the_limit_wherever_it_lacks_a_descriptor(shared: Broker) -> None:
    """ZeroMQ opens one of its files itself, and says only that it cannot connect."""
    with zsq.Admin(shared.ipc) as admin:
        admin.create_topic("t")
    for spare in range(2, 14):
        with no_more_files(os.getpid(), spare=spare):
            producer, text = None, "limit of open files"
            try:
                producer = zsq.Producer(shared.ipc, timeout=0.5)
                producer.publish("t", b"x")
            except ZsqError as error:
                text = str(error)
        assert "limit of open files" in text, spare
        if producer is not None:
            producer.close(5)
