"""The floor of processor time: the same blocks through four processes with plain sockets.

A producer, a topic, a channel and a consumer are connected by Unix sockets. The topic also writes
each block to a file, and syncs it for every SYNC_BYTES. They move the bytes and do nothing else:
they do not pack, check, number, lease, finish or answer anything, and have one thread each.
"""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from typing import Final

from zsq.transport.block.block import pack

from ..harness.crew import Crew
from ..harness.loads import Shape, Start, make_bodies
from .limits import SYNC_BYTES

NAMES: Final = ("consumer", "channel", "topic", "producer")  # each connects to the one before


def raw_costs(shape: Shape, folder: Path) -> dict[str, float]:
    """Return the processor time of each process for a block, in seconds."""
    size = pack(make_bodies(shape)[: shape.block]).length
    # The directory is in the system's folder, because the path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="raw-") as run, Crew() as crew:
        for name in NAMES:
            crew.add(_pass_on, run, name, size, shape.blocks, folder)
            crew.wait_ready()  # the socket is bound before the next process connects to it
        crew.go()
        crew.results()
        return {name: cost / shape.blocks for name, cost in zip(NAMES, crew.cpu_s, strict=True)}


def _pass_on(start: Start, run: str, name: str, size: int, blocks: int, folder: Path) -> None:
    block = memoryview(bytearray(os.urandom(size)))
    listener = None
    if name != "producer":
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"{run}/{name}")
        listener.listen()
    out = None
    if (position := NAMES.index(name)) > 0:
        out = socket.socket(socket.AF_UNIX)
        out.connect(f"{run}/{NAMES[position - 1]}")
    with tempfile.TemporaryFile(prefix="raw-", dir=folder) as file:
        start()
        arriving = None
        if listener is not None:
            arriving, _ = listener.accept()
        for number in range(blocks):
            if arriving is not None and arriving.recv_into(block, size, socket.MSG_WAITALL) != size:
                raise ConnectionError(f"{name} got a part of block {number}")
            if name == "topic":
                os.pwrite(file.fileno(), block, number * size)
                if number * size % SYNC_BYTES + size >= SYNC_BYTES:
                    os.fdatasync(file.fileno())
            if out is not None:
                out.sendall(block)
