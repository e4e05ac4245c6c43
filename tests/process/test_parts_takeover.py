"""Test of a cluster whose first broker has a standby: it is killed, and clients of parts go on.

`scripts/torture --standby` kills brokers without parts again and again. Here it counts that parts
stay at their broker, that clients learn the new address from the directory, and that no message of
a part is lost, stored twice, or out of order.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import zsq_command
from support.broker import Broker, wait_for
from support.cluster import Cluster, running

import zsq

PARTS = 4
KEYS = [b"%d" % number for number in range(8)]
DONE_S = 120
SAFE = ("--sync", "bucket", "--patience", "2s")


@contextlib.contextmanager
def with_standby(folder: Path) -> Iterator[tuple[Cluster, Broker]]:
    """Run a cluster and the standby of its first broker."""
    with running(folder, *SAFE) as cluster:
        options = ("--bucket", f"{cluster.place}/one", "--cluster", cluster.place, *SAFE)
        standby = Broker(folder / "three", *options, "--bucket-lag", "100ms")
        standby.command = "standby"
        try:
            one = cluster.brokers[0]
            one.stop()  # it looks for standbys at its start
            standby.launch()
            standby.wait_said("follows file://")
            one.start()
            one.wait_said("takes over when this broker is gone for 2 s")
            yield cluster, standby
        finally:
            standby.close()


@pytest.mark.timeout(600)
def test_clients_of_parts_go_on_at_the_standby_and_nothing_is_lost(tmp_path: Path) -> None:
    acknowledged: dict[bytes, int] = defaultdict(int)  # by key: the number of the next message
    received: dict[bytes, list[int]] = defaultdict(list)
    over = threading.Event()
    failures: list[BaseException] = []

    def publish(url: str) -> None:
        try:
            with zsq.Producer(url, timeout=DONE_S) as producer:
                for turn in itertools.count():
                    if over.is_set():
                        return
                    bodies = [b"%s %d" % (key, turn) for key in KEYS]
                    producer.publish_many("t", bodies, keys=KEYS)
                    for key in KEYS:
                        acknowledged[key] = turn + 1
        except BaseException as error:
            failures.append(error)
            raise

    with with_standby(tmp_path) as (cluster, standby):
        one, two = cluster.brokers
        with zsq.Admin(cluster.url) as admin:
            admin.create_topic("t", parts=PARTS, sync="bucket")
            admin.create_channel("t", "c")
        # It knows only the broker that lives on. Where the parts of the other one are, it learns.
        thread = threading.Thread(target=publish, args=(two.tcp,))
        thread.start()
        try:
            with zsq.Consumer("t", "c", url=two.tcp, timeout=DONE_S) as consumer:

                def receive_more(count: int) -> None:
                    for _ in range(count):
                        message = consumer.receive(timeout=DONE_S)
                        assert message is not None, "no message came"
                        assert message.body is not None
                        key, number = message.body.split()
                        received[key].append(int(number))
                        message.finish()

                receive_more(20 * len(KEYS))
                one.signal_all(signal.SIGKILL)
                before = {key: acknowledged[key] for key in KEYS}
                standby.wait_said("is primary", DONE_S)
                wait_for(
                    lambda: failures or all(acknowledged[key] > before[key] + 5 for key in KEYS),
                    DONE_S,
                    "publishes to all parts after the takeover",
                )
                over.set()
                thread.join(DONE_S)
                assert not failures
                with zsq.Admin(standby.tcp) as admin:
                    view = admin.cluster(fresh=True)
                first = view["brokers"][0]
                assert first["me"], "the standby has the number of its primary"
                assert standby.tcp.rpartition(":")[2] in str(first["addresses"])
                (topic,) = view["topics"]
                assert set(topic["parts"]) == {0, 1}, "no part changed its broker"
                while any(len(set(received[key])) < acknowledged[key] for key in KEYS):
                    receive_more(1)
            shown = zsq_command.run_text("--url", two.tcp, "cluster", "--json")
            (row,) = json.loads(shown.stdout)["topics"]
            assert row["messages"] == sum(acknowledged.values()), "without offsets it skipped"
        finally:
            over.set()
            thread.join(DONE_S)
        stored: dict[bytes, list[int]] = defaultdict(list)
        for part in range(PARTS):
            with zsq.Reader("t", part=part, url=two.tcp) as reader:
                at, head = reader.bounds()
                while at < head:
                    fetched = reader.read(at)
                    for block in fetched.blocks:
                        for body in block.body.values():
                            key, number = bytes(body or b"").split()
                            stored[key].append(int(number))
                    at = fetched.next_offset
    for key in KEYS:
        assert stored[key] == list(range(acknowledged[key])), "lost, stored twice, or out of order"
        assert set(received[key]) == set(range(acknowledged[key]))
