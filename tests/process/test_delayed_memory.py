"""Test that delayed messages need disk space and no memory. It compares the private memory of every
process with a few delayed messages and with a million.
"""

from __future__ import annotations

from pathlib import Path

from support.broker import Broker, wait_for

import zsq

IN_BLOCKS = 900_000
SINGLES = 20_000
BLOCK = 10_000
AT_ONCE = 250
# 13 MB were seen on a busy machine. An object for each message would need more than 46 MB.
GROWTH_BYTES_MAX = 16 * 1024 * 1024


def anonymous(broker: Broker) -> dict[str, int]:
    """Return the memory of each actor that is not backed by a file. Pages of LMDB's file that were
    read count as private too, but the system can take them back.
    """
    found = {}
    for actor in broker.actors():
        lines = Path(f"/proc/{actor['pid']}/smaps_rollup").read_text().splitlines()
        found[actor["name"]] = (
            next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) * 1024
        )
    return found


def test_a_million_that_wait_cost_no_memory(own_broker: Broker) -> None:
    bodies = [b"%019d" % number for number in range(BLOCK)]
    with (
        zsq.Admin(own_broker.ipc, timeout=60) as admin,
        zsq.Producer(own_broker.ipc, timeout=120) as producer,
    ):
        for _ in range(50):
            producer.publish("big", b"first", delay=3_600)
        before = anonymous(own_broker)
        for _ in range(IN_BLOCKS // BLOCK):
            producer.publish_many("big", bodies, delay=7_200, wait=False)
        for number in range(SINGLES):  # the store has one row for each of these
            producer.publish_many(
                "big", [b"%019d" % number], delay=7_000 + number % 100, wait=False
            )
            # Flush now and then, because this test does not measure how much memory a topic needs
            # for many small blocks that are not stored yet.
            if number % AT_ONCE == 0:
                producer.flush(120)
        producer.flush(120)
        count = IN_BLOCKS + SINGLES + 50
        assert admin.delayed_count("big")["messages"] == count

        def growth() -> dict[str, int]:
            now = anonymous(own_broker)
            return {
                name: now[name] - size
                for name, size in before.items()
                if now[name] - size >= GROWTH_BYTES_MAX
            }

        wait_for(lambda: not growth(), 60, f"memory as with a few: {growth()}")
        assert admin.delayed_cancel_all("big") == count
        wait_for(lambda: not growth(), 15, "memory as with a few, after all were cancelled")
