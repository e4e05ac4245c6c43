"""Tests of producers that continue while consumers stop. The backlog needs disk space, but no
memory. A topic with a bound lets producers wait or fail, as they have chosen.
"""

from __future__ import annotations

import contextlib
import threading

import pytest
from support.broker import Broker, wait_for

import zsq
from zsq.transport.errors import E_TOPIC_FULL

MIB = 1 << 20
BODY = 1000
BLOCK = 1000
BOUND = 16 * MIB


def private(broker: Broker) -> dict[str, int]:
    return {actor["name"]: actor["private_bytes"] for actor in broker.actors()}


def test_a_consumer_that_stops_costs_no_memory(own_broker: Broker) -> None:
    """The consumer has subscribed, receives as many messages as its credit allows, and answers
    nothing more. A second channel has no consumer at all.
    """
    bodies = [b"%0*d" % (BODY, number) for number in range(BLOCK)]
    with (
        zsq.Admin(own_broker.ipc) as admin,
        zsq.Producer(own_broker.ipc) as producer,
        zsq.Consumer("t", "stuck", url=own_broker.ipc, ready=100) as stuck,
    ):
        admin.create_channel("t", "idle")
        for _ in range(20):  # now every process has the memory that it needs only once
            producer.publish_many("t", bodies)
        assert stuck.receive_batch(20) is not None
        wait_for(
            lambda: admin.stats("t", "stuck")["topics"][0]["channels"][0]["in_flight_count"] == 100,
            20,
            "all of its credit is out",
        )
        before = private(own_broker)
        for _ in range(300):  # 300 MB in all
            producer.publish_many("t", bodies, wait=False)
        producer.flush()

        def grown() -> dict[str, int]:
            now = private(own_broker)
            return {
                name: (now[name] - size) // MIB
                for name, size in before.items()
                if now[name] - size > 10 * MIB
            }

        wait_for(lambda: not grown(), 20, f"memory within 10 MB of before: {grown()}")
        rows = {
            row["channel_name"]: row["depth"] for row in admin.stats("t")["topics"][0]["channels"]
        }
        assert rows == {"stuck": 320 * BLOCK - 100, "idle": 320 * BLOCK}


def full(broker: Broker, admin: zsq.Admin) -> int:
    """Fill a topic up to its bound. Return how many messages it accepted."""
    admin.create_topic("t", max_bytes=BOUND, when_full="reject")
    admin.create_channel("t", "c")
    taken = 0
    with zsq.Producer(broker.ipc) as producer:
        while taken < 10 * BOUND // BODY:
            receipt = producer.publish_many(
                "t", [b"%0*d" % (BODY, taken + number) for number in range(BLOCK)], wait=False
            )
            wait_for(lambda receipt=receipt: receipt.done, 20, "an answer")  # type: ignore[misc]
            if receipt.error is not None:
                break
            taken += BLOCK
        with pytest.raises(zsq.Refused, match=E_TOPIC_FULL):
            receipt.wait()
    assert BOUND * 0.9 < taken * BODY < BOUND * 1.3
    return taken


def test_a_producer_that_waits_goes_on_when_there_is_room(broker: Broker) -> None:
    with zsq.Admin(broker.ipc) as admin:
        taken = full(broker, admin)
        more = 30
        with (
            zsq.Producer(broker.ipc, when_full="wait", timeout=60) as patient,
            zsq.Consumer("t", "c", url=broker.ipc, ready=5_000) as consumer,
        ):
            receipts = [
                patient.publish_many(
                    "t", [b"%0*d" % (BODY, taken + i * BLOCK + n) for n in range(BLOCK)], wait=False
                )
                for i in range(10)
            ]
            threading.Thread(
                target=lambda: [
                    patient.publish_many("t", _bodies(taken, i)) for i in range(10, more)
                ],
                daemon=True,
            ).start()
            wait_for(
                lambda: admin.stats("t")["topics"][0]["refused_count"] >= 3,
                20,
                "asked again, and refused",
            )
            assert not any(receipt.done for receipt in receipts)
            got: list[int] = []
            while len(got) < taken + more * BLOCK:
                batch = consumer.receive_batch(30)
                assert batch is not None
                got += [int(body) for body in batch.bodies]
                batch.finish()
            assert got == list(range(taken + more * BLOCK)), "each once, in order"
            patient.flush()
            assert all(receipt.done and receipt.error is None for receipt in receipts)


def _bodies(taken: int, number: int) -> list[bytes]:
    return [b"%0*d" % (BODY, taken + number * BLOCK + n) for n in range(BLOCK)]


def test_waiting_ends_with_the_time_out_and_says_why(broker: Broker) -> None:
    with zsq.Admin(broker.ipc) as admin:
        full(broker, admin)
    patient = zsq.Producer(broker.ipc, when_full="wait", timeout=1.5)
    try:
        with pytest.raises(zsq.BrokerUnreachable, match=E_TOPIC_FULL):
            patient.publish("t", bytes(BODY))
    finally:
        with contextlib.suppress(zsq.BrokerUnreachable):
            patient.close(0.1)


def test_a_wrong_choice_is_told_at_once() -> None:
    with pytest.raises(zsq.UsageError, match="fail or wait"):
        zsq.Producer(when_full="drop")
