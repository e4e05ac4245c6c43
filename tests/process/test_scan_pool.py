"""Test of the scan's workers: their number follows the number of channels, and a worker that was
told to end does not count as failed.
"""

from __future__ import annotations

from support.broker import Broker, wait_for

import zsq


def test_the_pool_shrinks_without_restarts(own_broker: Broker) -> None:
    with zsq.Admin(own_broker.ipc) as admin:
        for number in range(13):
            admin.create_channel("t", f"c{number}")
        wait_for(
            lambda: len(own_broker.pids("scan_worker")) == 3,
            20,
            "three workers for thirteen channels",
        )
        for number in range(10):
            admin.delete_channel("t", f"c{number}")
        wait_for(
            lambda: len(own_broker.pids("scan_worker")) == 1, 20, "one worker for three channels"
        )
        before = own_broker.pids("scan_worker")
        admin.create_channel("t", "one-more")
        assert own_broker.pids("scan_worker") == before
    assert b"scan worker (pid" not in own_broker.log.read_bytes(), (
        "a worker that was told to end was reported as lost"
    )
