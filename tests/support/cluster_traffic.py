"""A producer that publishes all the time to a topic with parts, and a check of the whole log."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from typing import Self

from support.broker import wait_for
from support.cluster import Cluster

import zsq

DONE_S = 90


def parts_of(cluster: Cluster, topic: str) -> list[int]:
    """Return the broker of each part, or -1 while it moves, by a broker that answers."""
    with zsq.Admin(cluster.url, timeout=30) as admin:
        (row,) = [row for row in admin.cluster(fresh=True)["topics"] if row["topic"] == topic]
    return [-1 if part in row["moves"] else at for part, at in enumerate(row["parts"])]


class Traffic:
    """A producer that publishes all the time to all parts, and what it got acknowledged."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.acknowledged: list[bytes] = []
        self.failures: list[BaseException] = []
        self._url, self._topic = cluster.url, topic
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._publish)

    def _publish(self) -> None:
        try:
            with zsq.Producer(self._url, timeout=DONE_S) as producer:
                for number in itertools.count():
                    if self._over.is_set():
                        return
                    keys = [b"%d" % key for key in range(8)]
                    bodies = [b"%s-%d" % (key, number) for key in keys]
                    producer.publish_many(self._topic, bodies, keys=keys)
                    self.acknowledged += bodies
        except BaseException as error:
            self.failures.append(error)
            raise

    def __enter__(self) -> Self:
        self._thread.start()
        wait_for(lambda: self.acknowledged or self.failures)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        assert not self.failures

    def goes_on(self) -> None:
        count = len(self.acknowledged)
        wait_for(lambda: self.failures or len(self.acknowledged) > count + 16, DONE_S)


def check_log(cluster: Cluster, topic: str, acknowledged: list[bytes]) -> None:
    """All parts together have each acknowledged message once, and each key in order."""
    bodies: list[bytes] = []
    for part in range(len(parts_of(cluster, topic))):
        offsets: list[int] = []
        with zsq.Reader(topic, part=part, url=cluster.url) as reader:
            at, head = reader.bounds()
            while at < head:
                fetched = reader.read(at)
                for block in fetched.blocks:
                    bodies += [bytes(body or b"") for body in block.body.values()]
                    offsets += range(block.first_offset, block.next_offset)
                at = fetched.next_offset
        assert offsets == sorted(set(offsets))
    assert Counter(bodies) == Counter(acknowledged)
    of_key: dict[bytes, list[int]] = {}
    for body in bodies:
        key, number = body.split(b"-")
        of_key.setdefault(key, []).append(int(number))
    assert all(numbers == sorted(numbers) for numbers in of_key.values())
