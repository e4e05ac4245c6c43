"""Tests with bits that are flipped in the memory of a broker's process: consumers still get every
message as it was sent.

The test writes into that memory through /proc/PID/mem. The system allows this for processes of the
same user, unless kernel.yama.ptrace_scope forbids it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.broker import Broker, wait_for

import zsq

COUNT = 400
BODIES = [b"flipped-bits-%06d-" % i * 4 for i in range(COUNT)]


def flip(pid: int, what: bytes) -> int:
    """Flip a bit in each copy of `what` in the private memory of the process. Return the number of
    copies.
    """
    try:
        memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
    except PermissionError:
        pytest.skip("the system does not let a process write into another's memory")
    found = 0
    try:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            where, rights, _, _, inode, *_ = line.split()
            if not rights.startswith("rw") or inode != "0":
                continue
            start, end = (int(number, 16) for number in where.split("-"))
            try:
                data = os.pread(memory, end - start, start)
            except OSError:  # this part cannot be read, or was unmapped in the meantime
                continue
            at = data.find(what)
            while at >= 0:
                os.pwrite(memory, bytes([data[at] ^ 0x10]), start + at)
                found += 1
                at = data.find(what, at + 1)
    finally:
        os.close(memory)
    return found


def take_all(consumer: zsq.Consumer) -> dict[int, bytes]:
    got = {}
    for _ in range(COUNT):
        message = consumer.receive(20)
        assert message is not None
        got[message.offset] = message.body
        message.finish()
    return got


def test_a_flip_in_a_channels_memory_is_read_from_storage_again(own_broker: Broker) -> None:
    with zsq.Admin(own_broker.ipc) as admin, zsq.Producer(own_broker.ipc) as producer:
        admin.create_channel("t", "c")
        with zsq.Consumer("t", "c", url=own_broker.ipc, ready=5) as consumer:
            producer.publish_many("t", BODIES)
            first = consumer.receive(20)
            assert first is not None
            first.requeue()
            (channel,) = own_broker.pids("channel")
            assert flip(channel, BODIES[300])
            got = take_all(consumer)
    assert got == dict(enumerate(BODIES))
    assert b"a block changed in memory since its producer sent it" in own_broker.log.read_bytes()
    assert own_broker.pids("channel") == [channel], "it went on"


def test_a_flip_in_storages_ring_is_read_from_the_file(own_broker: Broker) -> None:
    with zsq.Admin(own_broker.ipc) as admin, zsq.Producer(own_broker.ipc) as producer:
        admin.create_channel("t", "c")
        producer.publish_many("t", BODIES)
        (storage,) = own_broker.pids("topic")
        assert flip(storage, BODIES[300])
        with zsq.Consumer("t", "c", url=own_broker.ipc, ready=COUNT) as consumer:
            got = take_all(consumer)
    assert got == dict(enumerate(BODIES))
    wait_for(
        lambda: b"a block changed in storage's memory" in own_broker.log.read_bytes(),
        30,
        "the log line",
    )
