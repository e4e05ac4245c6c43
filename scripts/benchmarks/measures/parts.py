"""Parts: what a message costs in a topic with 1, 2, 4 and 8 parts, and in a topic without parts.

The cost is the processor time of the broker, the producer and the consumer. On a machine with few
cores, the rate cannot grow with the parts. But if the cost of a message stays the same, the rate
grows with the machines. The topics are in a cluster of one broker, with a folder as bucket. Topics
take turns in each round.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Final

from local_setup.broker import BrokerFailed, LocalBroker, temporary_broker
from local_setup.s3_servers import free_ports
from zsq.transport.client.blocking.client import Admin, Consumer, Producer

from ..harness.report import Report
from ..harness.usage import used_s

PARTS: Final = (1, 2, 4, 8)
PLAIN: Final = "plain"
CHANNEL: Final = "bench"
TIMEOUT_S: Final = 120.0
KEYS: Final = 1000


def parts(report: Report, messages: int, batch: int, size: int, rounds: int) -> None:
    """Measure all topics in `rounds` turns."""
    with tempfile.TemporaryDirectory(prefix="zsq-bench-bucket-") as folder:
        [port] = free_ports(1)
        place = f"file://{folder}"
        (Path(folder) / "one").mkdir()
        options = ("--listen", f"127.0.0.1:{port}", "--bucket", f"{place}/one", "--cluster", place)
        with (
            temporary_broker(*options, "--no-nsq", "--no-http", prefix="zsq-bench-") as broker,
            Admin(broker.url, timeout=TIMEOUT_S) as admin,
        ):
            admin.create_topic(PLAIN)
            for count in PARTS:
                admin.create_topic(f"parts-{count}", parts=count)
            for _ in range(rounds):
                for keyed in (False, True):
                    _turn(report, broker, PLAIN, messages, batch, size, keyed=keyed)
                    for count in PARTS:
                        # With keys, a call is divided by the parts. The blocks stay as large.
                        call = batch * count if keyed else batch
                        _turn(report, broker, f"parts-{count}", messages, call, size, keyed=keyed)


def _turn(
    report: Report, broker: LocalBroker, topic: str, messages: int, batch: int, size: int, *, keyed: bool
) -> None:  # fmt: skip
    name = topic.replace("-", " ")
    with (
        Producer(broker.url, timeout=TIMEOUT_S) as producer,
        Consumer(topic, CHANNEL, url=broker.url, timeout=TIMEOUT_S) as consumer,
    ):
        body = os.urandom(size)
        bodies = [body] * batch
        keys = [b"key-%d" % (number % KEYS) for number in range(batch)] if keyed else None
        used, begun = _used_s(broker), time.perf_counter()
        calls = max(1, messages // batch)
        for _ in range(calls):
            producer.publish_many(topic, bodies, keys=keys, wait=False)
        left = count = calls * batch
        while left > 0:
            found = consumer.receive_batch(timeout=TIMEOUT_S)
            if found is None:
                raise BrokerFailed(f"{left:,} messages of {topic} did not come")
            left -= len(found)
            found.finish()
        consumer.flush()
        producer.flush()
        took, spent = time.perf_counter() - begun, _used_s(broker) - used
    limit = topic == PLAIN
    per_message = spent / count * 1e6
    kind = "keys" if keyed else "no keys"
    report.add(
        f"{kind}: processor time, {name}", "us/message", per_message, limit=limit, against=kind
    )
    report.add(f"{kind}: rate, {name}", "/s", count / took)


def _used_s(broker: LocalBroker) -> float:
    """Return the processor time so far of the broker's processes and of this one, in seconds."""
    return used_s(broker.process.pid) + time.process_time()
