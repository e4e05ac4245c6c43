"""Test that the backlog needs disk space and no memory. It compares the private memory of every
process with 1 waiting message and with 10 million.
"""

from __future__ import annotations

from collections.abc import Callable

from support.broker import Broker, wait_for

import zsq

BACKLOG = 10_000_000
BLOCK = 10_000
GROWTH_BYTES_MAX = 10 * 1024 * 1024
# malloc keeps free pieces of memory between those in use. So in a third of the runs the process of
# the topic, which contains its storage, is 10 to 13 MB above its start. The budget for the backlog
# itself is 10 MB.
TOPIC_BYTES_MAX = 16 * 1024 * 1024


def private(broker: Broker) -> dict[str, int]:
    return {actor["name"]: actor["private_bytes"] for actor in broker.actors()}


def bound(name: str) -> int:
    return TOPIC_BYTES_MAX if name.startswith("topic ") else GROWTH_BYTES_MAX


def settle(growth: Callable[[], dict[str, int]], what: str) -> None:
    """Wait until the processes have returned the memory of a burst, which takes some seconds."""
    try:
        wait_for(lambda: not growth(), 45, "memory")
    except AssertionError:
        raise AssertionError(
            f"memory is not within its bound {what}: {growth()} bytes more"
        ) from None


def test_ten_million_waiting_cost_no_memory(own_broker: Broker) -> None:
    bodies = [b"%019d" % n for n in range(BLOCK)]
    with zsq.Admin(own_broker.ipc) as admin, zsq.Producer(own_broker.ipc) as producer:
        admin.create_channel("big", "c")
        producer.publish("big", b"one")
        with zsq.Consumer("big", "c", url=own_broker.ipc) as consumer:
            message = consumer.receive(10)
            assert message is not None
            message.requeue(delay=3_000)
        before = private(own_broker)
        for _ in range(BACKLOG // BLOCK):
            producer.publish_many("big", bodies, wait=False)
        producer.flush()
        (row,) = admin.stats("big", "c")["topics"][0]["channels"]
        assert row["depth"] == BACKLOG

        def growth() -> dict[str, int]:
            now = private(own_broker)
            return {
                name: now[name] - size
                for name, size in before.items()
                if now[name] - size >= bound(name)
            }

        settle(growth, "of what one message costs")
        # The backlog is also read.
        with zsq.Consumer("big", "c", url=own_broker.ipc, ready=BLOCK) as consumer:
            for _ in range(20):
                batch = consumer.receive_batch(10)
                assert batch is not None
                batch.finish()
            consumer.flush()
        settle(growth, "after reading")
