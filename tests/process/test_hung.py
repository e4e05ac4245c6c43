"""A channel that hangs misses its scans: it is reported, killed and started again, and what its consumers held comes again."""

from __future__ import annotations

import os
import signal

from support.broker import Broker, wait_for

import zsq
from zsq.actors import options


def test_a_hung_channel_is_reported_and_started_again(broker: Broker) -> None:
    with zsq.Producer(broker.ipc) as producer, zsq.Consumer(broker.ipc, "t", "c", ready=10) as consumer:
        producer.publish_many("t", [b"%d" % number for number in range(10)])
        first = consumer.receive_batch(20)
        assert first is not None
        assert len(first) == 10
        (before,) = broker.pids("channel")
        os.kill(before, signal.SIGSTOP)
        wait_for(lambda: b"does not answer the scan" in broker.log.read_bytes(), options.SCAN_HUNG_S * 4, "the report")
        broker.wait_gone([before])
        again = consumer.receive_batch(30)
        assert again is not None
        assert again.offsets == first.offsets
        assert min(again.attempts) >= max(first.attempts), "attempts never fall"
        first.finish()  # under leases of the one that hung
        again.finish(sync=True)
        assert broker.pids("channel") != [before]
        with zsq.Admin(broker.ipc) as admin:
            (row,) = admin.stats("t", "c")["topics"][0]["channels"]
            assert (row["depth"], row["in_flight_count"]) == (0, 0)
