"""Tests of processes that hang and miss their scans. A channel is reported, killed and started
again, and the messages that its consumers held are delivered again.

Messages of other topics do not wait for a process that hangs.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from contextlib import ExitStack

from support.broker import Broker, wait_for

import zsq
from zsq.actors.settings import options


def test_a_hung_channel_is_reported_and_started_again(own_broker: Broker) -> None:
    with (
        zsq.Producer(own_broker.ipc) as producer,
        zsq.Consumer("t", "c", url=own_broker.ipc, ready=10) as consumer,
    ):
        producer.publish_many("t", [b"%d" % number for number in range(10)])
        first = consumer.receive_batch(20)
        assert first is not None
        assert len(first) == 10
        (before,) = own_broker.pids("channel")
        os.kill(before, signal.SIGSTOP)
        wait_for(
            lambda: b"does not answer the scan" in own_broker.log.read_bytes(),
            options.SCAN_HUNG_S * 4,
            "the report",
        )
        own_broker.wait_gone([before])
        again = consumer.receive_batch(30)
        assert again is not None
        assert again.offsets == first.offsets
        assert min(again.attempts) >= max(first.attempts), "attempts never fall"
        first.finish()  # these leases belong to the process that hung
        again.finish(sync=True)
        assert own_broker.pids("channel") != [before]
        with zsq.Admin(own_broker.ipc) as admin:
            (row,) = admin.stats("t", "c")["topics"][0]["channels"]
            assert (row["depth"], row["in_flight_count"]) == (0, 0)


def test_a_storage_that_hangs_delays_no_other_topic(own_broker: Broker) -> None:
    """The topic's process is not killed, because a sync may take as long as it needs. Messages of
    other topics whose lease ends are delivered again as usual.
    """
    with (
        zsq.Admin(own_broker.ipc) as admin,
        zsq.Producer(own_broker.ipc) as producer,
        ExitStack() as stack,
    ):
        admin.create_topic("other")
        consumers = [
            stack.enter_context(
                zsq.Consumer("t", f"c{number}", url=own_broker.ipc, ready=5, message_timeout=1.0)
            )
            for number in range(4)
        ]
        for consumer in consumers:
            consumer.subscribe(20)
        (storage,) = [
            actor["pid"] for actor in own_broker.actors() if actor["name"] == "topic other"
        ]
        os.kill(storage, signal.SIGSTOP)
        stack.callback(os.kill, storage, signal.SIGCONT)
        producer.publish("t", b"x")
        late: list[float] = []
        came: dict[int, float] = {}
        while len(late) < 16:
            for number, consumer in enumerate(consumers):
                if consumer.receive(0.01) is not None:
                    if number in came:
                        late.append(time.monotonic() - came[number] - 1.0)
                    came[number] = time.monotonic()
        assert min(late) > -0.1
        assert statistics.median(late) < 0.5, sorted(late)
