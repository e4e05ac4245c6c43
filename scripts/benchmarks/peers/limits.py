"""Two limits, measured in the same run: raw pyzmq over the same hops, and writev + fdatasync.

The raw path has five processes and these hops for each block: producer to topic, topic to storage,
storage's answer to the topic, topic to channel, channel to consumer, and the topic's answer to the
producer. A window limits the producer's unanswered blocks. The raw path packs, checks, stores and
finishes nothing. ZSQ's topic and storage have since become one process. The raw path still has two,
so that ratios of different versions of ZSQ can be compared.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import zmq

from zsq.transport.block.block import pack

from ..harness.crew import Crew
from ..harness.loads import WINDOW_BYTES, Shape, Start, make_bodies

SYNC_BYTES: Final = 2 << 20  # the bytes of one sync, as a topic gathers under load
IOV_BLOCKS: Final = 512  # blocks of two pieces each, because `writev` accepts 1,024 pieces at once
RAW_WAIT_MS: Final = 120_000
HWM: Final = 64  # the high-water mark of a socket, in blocks for each direction


def raw_rate(shape: Shape) -> float:
    """Return the messages a second through five processes."""
    # The directory is in the system's folder, because the path of a socket must be short.
    with (
        tempfile.TemporaryDirectory(prefix="raw-") as run,
        Crew() as crew,
    ):
        crew.add(_consumer, run, shape)
        crew.add(raw_channel, run, shape)
        crew.add(_storage, run, shape)
        crew.add(raw_topic, run, shape)
        crew.add(_producer, run, shape)
        start = crew.go()
        [end] = crew.ends()  # only the consumer returns a time
    return shape.messages / (end - start)


def disk_rate(shape: Shape, folder: Path) -> float:
    """Return the messages a second with one `writev` and one `fdatasync` for every 2 MiB."""
    bodies = make_bodies(shape)[: shape.block]
    block = pack(bodies)
    pieces = [block.wire_header(), block.payload]
    together = max(1, SYNC_BYTES // block.length)
    with tempfile.NamedTemporaryFile(prefix="limit-", dir=folder) as file:
        descriptor = file.fileno()
        left = shape.blocks
        start = time.monotonic()
        while left:
            count = min(together, left)
            for at in range(0, count, IOV_BLOCKS):
                os.writev(descriptor, pieces * min(IOV_BLOCKS, count - at))
            os.fdatasync(descriptor)
            left -= count
        return shape.blocks * len(bodies) / (time.monotonic() - start)


def sync_seconds(size: int, rounds: int, folder: Path) -> list[float]:
    """Return the seconds of a small write with its fdatasync, `rounds` times."""
    taken = []
    data = os.urandom(size)
    with tempfile.NamedTemporaryFile(prefix="limit-", dir=folder) as file:
        descriptor = file.fileno()
        for _ in range(rounds):
            start = time.monotonic()
            os.write(descriptor, data)
            os.fdatasync(descriptor)
            taken.append(time.monotonic() - start)
    return taken


class Ends:
    """The sockets of one raw process."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.context = zmq.Context()

    def open(self, kind: int, name: str, *, bind: bool) -> Any:
        socket = self.context.socket(kind)
        socket.set_hwm(HWM)
        socket.linger = 10_000
        socket.rcvtimeo = socket.sndtimeo = RAW_WAIT_MS
        address = f"ipc://{self.run}/{name}"
        socket.bind(address) if bind else socket.connect(address)
        return socket

    def close(self) -> None:
        self.context.destroy(linger=10_000)


def _producer(start: Start, run: str, shape: Shape) -> None:
    ends = Ends(run)
    out, words = ends.open(zmq.PUSH, "topic", bind=False), ends.open(zmq.PULL, "words", bind=True)
    block = pack(make_bodies(shape)[: shape.block])
    header = block.wire_header()
    # With a larger window, topic and storage could wait for each other.
    window = max(2, min(HWM, WINDOW_BYTES // 2 // block.length))
    start()
    answered = 0
    for sent in range(shape.blocks):
        while sent - answered >= window:
            words.recv()
            answered += 1
        out.send_multipart((b"pub", header, block.payload), copy=False)
    for _ in range(answered, shape.blocks):
        words.recv()
    ends.close()


def raw_topic(start: Start, run: str, shape: Shape) -> None:
    """Send each block to storage and, after its answer, to the channel.

    Then answer the producer.
    """
    ends = Ends(run)
    arriving, stored = (
        ends.open(zmq.PULL, "topic", bind=True),
        ends.open(zmq.PULL, "stored", bind=True),
    )
    storage, channel = (
        ends.open(zmq.PUSH, "storage", bind=False),
        ends.open(zmq.PUSH, "channel", bind=False),
    )
    words = ends.open(zmq.PUSH, "words", bind=False)
    poller = zmq.Poller()
    poller.register(arriving, zmq.POLLIN)
    poller.register(stored, zmq.POLLIN)
    start()
    waiting: list[Any] = []
    done = 0
    while done < shape.blocks:
        ready = dict(poller.poll(RAW_WAIT_MS))
        if arriving in ready:
            frames = arriving.recv_multipart(copy=False)
            waiting.append(frames)
            storage.send_multipart(frames, copy=False)
        if stored in ready:
            stored.recv()
            channel.send_multipart(waiting.pop(0), copy=False)
            words.send(b"stored")
            done += 1
    ends.close()


def _storage(start: Start, run: str, shape: Shape) -> None:
    ends = Ends(run)
    arriving, stored = (
        ends.open(zmq.PULL, "storage", bind=True),
        ends.open(zmq.PUSH, "stored", bind=False),
    )
    start()
    for _ in range(shape.blocks):
        arriving.recv_multipart(copy=False)
        stored.send(b"appended")
    ends.close()


def raw_channel(start: Start, run: str, shape: Shape) -> None:
    """Pass each block to the consumer."""
    ends = Ends(run)
    arriving, out = (
        ends.open(zmq.PULL, "channel", bind=True),
        ends.open(zmq.PUSH, "consumer", bind=False),
    )
    start()
    for _ in range(shape.blocks):
        out.send_multipart(arriving.recv_multipart(copy=False), copy=False)
    ends.close()


def _consumer(start: Start, run: str, shape: Shape) -> float:
    ends = Ends(run)
    arriving = ends.open(zmq.PULL, "consumer", bind=True)
    start()
    for _ in range(shape.blocks):
        arriving.recv_multipart(copy=False)
    end = time.monotonic()
    ends.close()
    return end
