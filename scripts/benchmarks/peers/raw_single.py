"""Limit of single messages: raw pyzmq over the hops of five processes, with a write and fdatasync.

The storage process writes and syncs. Nothing is packed, checked, leased or finished. See
`limits.py` for why topic and storage are two processes here.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import zmq

from ..harness.crew import Crew
from ..harness.loads import Shape, Start
from .limits import RAW_WAIT_MS, Ends, raw_channel, raw_topic

RAW_TO_CONSUMER: Final = "raw pyzmq + fdatasync, to the consumer, p50"
RAW_TO_ANSWER: Final = "raw pyzmq + fdatasync, to the answer, p50"
RAW_COST: Final = "raw pyzmq + fdatasync, processor time of a message"


@dataclass(frozen=True, slots=True)
class RawSingles:
    """The seconds to the consumer and to the answer, and the processor time of all processes."""

    arrived: list[float]
    answered: list[float]
    cpu_s: float


def raw_singles(size: int, count: int, a_second: float, folder: Path) -> RawSingles:
    """Measure `count` messages at a fixed rate."""
    shape = Shape(count, size, 1)
    # The directory is in the system's folder, because the path of a socket must be short.
    with (
        tempfile.TemporaryDirectory(prefix="raw-") as run,
        Crew() as crew,
    ):
        crew.add(_consumer, run, shape)
        crew.add(raw_channel, run, shape)
        crew.add(_storage, run, shape, folder)
        crew.add(raw_topic, run, shape)
        crew.add(_producer, run, shape, a_second)
        crew.go()
        arrived, *_, answered = crew.results()
        return RawSingles(arrived, answered, sum(crew.cpu_s))


def _producer(start: Start, run: str, shape: Shape, a_second: float) -> list[float]:
    ends = Ends(run)
    out, words = ends.open(zmq.PUSH, "topic", bind=False), ends.open(zmq.PULL, "words", bind=True)
    padding = os.urandom(shape.size)
    taken = []
    due = start() + 0.2
    for _ in range(shape.messages):
        if (left := due - time.monotonic()) > 0:
            time.sleep(left)
        now = time.monotonic()
        out.send_multipart((b"pub", b"%020d" % int(now * 1e9), padding))
        words.recv()
        taken.append(time.monotonic() - now)
        due += 1 / a_second
    ends.close()
    return taken


def _storage(start: Start, run: str, shape: Shape, folder: Path) -> None:
    ends = Ends(run)
    arriving, stored = (
        ends.open(zmq.PULL, "storage", bind=True),
        ends.open(zmq.PUSH, "stored", bind=False),
    )
    with tempfile.TemporaryFile(dir=folder) as file:
        start()
        for _ in range(shape.messages):
            frames = arriving.recv_multipart()
            os.writev(file.fileno(), frames)
            os.fdatasync(file.fileno())
            stored.send(b"appended")
    ends.close()


def _consumer(start: Start, run: str, shape: Shape) -> list[float]:
    ends = Ends(run)
    arriving = ends.open(zmq.PULL, "consumer", bind=True)
    arriving.rcvtimeo = RAW_WAIT_MS
    start()
    taken = []
    for _ in range(shape.messages):
        frames = arriving.recv_multipart()
        taken.append(time.monotonic() - int(frames[1]) / 1e9)
    ends.close()
    return taken
