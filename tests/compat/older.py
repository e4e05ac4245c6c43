"""A program that creates data with one version of ZSQ, so that a later version can be checked
against it. It uses only the public API, so that both versions can run it.

`python older.py URL` publishes and consumes a little of everything, and prints as JSON what must be
found afterwards.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from typing import Any

import zsq

MESSAGES = 3_000
FAR_S = 100 * 86_400


def bodies() -> list[bytes]:
    return [b"message %d " % number + b"x" * (number % 60) for number in range(MESSAGES)]


def fill(url: str) -> dict[str, Any]:
    with zsq.Admin(url) as admin, zsq.Producer(url) as producer:
        admin.create_topic("orders")
        admin.create_channel("orders", "work", start="earliest", max_attempts=2)
        admin.create_channel("orders", "strict", start="earliest", ordered=True)
        admin.create_channel("orders", "idle", start="earliest")
        every = bodies()
        for begin in range(0, MESSAGES, 500):
            part = range(begin, begin + 500)
            keys, tags = (
                [b"k%d" % (number % 7) for number in part],
                [b"even" if number % 2 == 0 else None for number in part],
            )
            producer.publish_many("orders", every[begin : begin + 500], keys=keys, tags=tags).wait()
        producer.publish("orders", b"with headers", headers={"trace": b"\x00\xff"}).wait()
        for number in range(20):
            producer.publish("orders", b"later %d" % number, delay=FAR_S + number).wait()
        finished, requeued, dead = _consume(url)
        _finish_some(url, "strict", 300)
        admin.create_topic("quiet", keep_time_s=3_600)
        producer.publish_many("quiet", [b"a", b"b", b"c"]).wait()
        admin.create_channel("quiet", "paused", start="earliest")
        admin.pause("quiet", "paused")
        return {
            "bodies": hashlib.sha256(b"\n".join(every)).hexdigest(), "finished": sorted(finished), "requeued": sorted(requeued),
            "dead": sorted(dead), "strict_finished": 300, "delayed": 20, "quiet": 3,
        }  # fmt: skip


def _consume(url: str) -> tuple[list[int], list[int], list[int]]:
    """Finish every third message, requeue every hundredth with a long delay, and reject twenty,
    which become dead letters.
    """
    finished, requeued, dead = [], [], []
    with zsq.Consumer("orders", "work", url=url, ready=2_500) as consumer:
        for _ in range(MESSAGES + 1):
            message = consumer.receive(10)
            assert message is not None
            if message.offset % 150 == 149:
                message.reject()
                dead.append(message.offset)
            elif message.offset % 100 == 0:
                message.requeue(60.0)
                requeued.append(message.offset)
            elif message.offset % 3 == 0:
                message.finish()
                finished.append(message.offset)
        consumer.flush()
    deadline = time.monotonic() + 30
    with zsq.Admin(url) as admin:
        while _count(admin, "orders.work.dead") < len(dead):
            assert time.monotonic() < deadline, "dead letters do not arrive"
    return finished, requeued, dead


def _count(admin: zsq.Admin, topic: str) -> int:
    return sum(
        row["message_count"] for row in admin.stats()["topics"] if row["topic_name"] == topic
    )


def _finish_some(url: str, channel: str, count: int) -> None:
    with zsq.Consumer("orders", channel, url=url, ready=1) as consumer:
        for _ in range(count):
            message = consumer.receive(10)
            assert message is not None
            message.finish()
        consumer.flush()


if __name__ == "__main__":
    print(json.dumps(fill(sys.argv[1])))
