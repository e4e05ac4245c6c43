"""Peers of the NSQ gateway: an event loop that only moves bytes, and nsqd if it is on PATH."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, cast

import uvloop

from ..harness.crew import Crew, MemberFailed
from ..harness.loads import BODIES_MAX, Shape, Start, make_bodies
from .nsq_client import CLOSE_WAIT, HEAD, OK, consume, make_channel, publish_blocks

FIN_BYTES: Final = 21
CHUNK: Final = 500  # the number of messages in one write of the source
READY_S: Final = 20.0
SYNCED: Final = "nsqd, synced"
KINDS: Final = {"nsqd": (), SYNCED: ("--mem-queue-size=0", "--sync-every=1")}
# With these options nsqd syncs after each message, so it gets only this part of the messages.
SYNCED_SHARE: Final = 20
IN_MEMORY: Final = "nsqd, in memory"
ON_DISK: Final = "nsqd, on disk"
BLOCK_KINDS: Final = {IN_MEMORY: (f"--mem-queue-size={1 << 20}",), ON_DISK: ("--mem-queue-size=0",)}
MESSAGES_MAX: Final = 400_000  # in one round; the queue in memory has room for more
CONNECTIONS: Final = 4  # connections that send MPUBs
AHEAD: Final = 4  # unanswered MPUBs of each connection
READY: Final = 2_500  # the ready count, the largest that nsqd allows by default


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def find() -> str | None:
    return shutil.which("nsqd")


@contextlib.contextmanager
def nsqd(program: str, kind: str, folder: Path) -> Iterator[tuple[int, int]]:
    """Run an nsqd, and yield its port and pid.

    `kind` is a key of KINDS or BLOCK_KINDS. The closest to ZSQ is SYNCED: all messages are on disk
    and synced after each write.
    """
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="nsqd-", dir=folder) as place:
        options = [
            f"--tcp-address=127.0.0.1:{port}",
            f"--http-address=127.0.0.1:{free_port()}",
            f"--data-path={place}",
            *(KINDS | BLOCK_KINDS)[kind],
        ]
        process = subprocess.Popen(
            [program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            deadline = time.monotonic() + READY_S
            while not _answers(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise MemberFailed("nsqd did not start")
                time.sleep(0.02)
            yield port, process.pid
        finally:
            process.terminate()
            process.wait(READY_S)


def rate(
    port: int, topic: str, shape: Shape, channels: int, produces: bool, consumes: bool
) -> float:
    """Return the deliveries a second, or the messages a second if nothing consumes.

    The server on `port` gets MPUBs of a block and a FIN for each message.
    """
    names = [f"bench{index}" for index in range(channels)]
    for name in names:
        make_channel(port, topic, name)
    publishing = (publish_blocks, port, topic, shape, CONNECTIONS, AHEAD)
    different = min(shape.messages, BODIES_MAX)
    if not produces:
        with Crew() as crew:
            crew.add(*publishing)
            crew.go()
            crew.results()
    with Crew() as crew:
        for name in names if consumes else ():
            crew.add(consume, port, topic, shape.size, READY, shape.messages, different, name)
        if produces:
            crew.add(*publishing)
        begin = crew.go()
        ended: float = max(done.end for done in crew.results())
    return shape.messages * (channels if consumes else 1) / (ended - begin)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


# Plain uvloop


class _Plain(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, over: asyncio.Semaphore) -> None:
        self._over = over

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._over.release()


class _Sink(_Plain):
    """Sends OK for every `size` bytes without parsing them."""

    def __init__(self, over: asyncio.Semaphore, size: int) -> None:
        super().__init__(over)
        self._size = size
        self._bytes = -len(b"  V2")

    def data_received(self, data: bytes) -> None:
        self._bytes += len(data)
        count, self._bytes = (
            divmod(self._bytes, self._size) if self._bytes >= self._size else (0, self._bytes)
        )
        if count:
            self.transport.write(OK * count)


class _Source(_Plain):
    """Sends chunks of messages while at most `ready` are unanswered; counts FINs by their bytes."""

    def __init__(self, over: asyncio.Semaphore, chunks: list[bytes], messages: int) -> None:
        super().__init__(over)
        self._chunks = chunks
        self._messages = messages
        self._lines = b""
        self._ready = 0
        self._sent = 0
        self._bytes = 0

    def data_received(self, data: bytes) -> None:
        if self._ready:
            self._bytes += len(data)
        else:
            self._greet(data)
        while (
            self._ready
            and self._sent < len(self._chunks)
            and self._sent * CHUNK - self._bytes // FIN_BYTES <= self._ready - CHUNK
        ):
            self.transport.write(self._chunks[self._sent])
            self._sent += 1
        if self._bytes == self._messages * FIN_BYTES + len(b"CLS\n"):
            self.transport.write(CLOSE_WAIT)

    def _greet(self, data: bytes) -> None:
        """Read SUB and answer it, then read RDY. No message is sent before RDY."""
        self._lines += data
        if self._lines.endswith(b"\n"):
            if self._lines.startswith(b"RDY"):
                self._ready = int(self._lines.split()[1])
            else:
                self.transport.write(OK)
            self._lines = b""


def sink(start: Start, port: int, connections: int, size: int) -> None:
    _serve(start, port, connections, lambda over: _Sink(over, size))


def source(start: Start, port: int, shape: Shape) -> None:
    chunks = _chunks(shape)
    _serve(start, port, 1, lambda over: _Source(over, chunks, shape.messages))


def _chunks(shape: Shape) -> list[bytes]:
    bodies = make_bodies(shape)
    size = HEAD.size - 4 + shape.size
    now = time.time_ns()
    frames = [
        HEAD.pack(size, 2, now, 1, b"%016x" % number) + bodies[number % len(bodies)]
        for number in range(shape.messages)
    ]
    return [b"".join(frames[first : first + CHUNK]) for first in range(0, len(frames), CHUNK)]


def _serve(
    start: Start, port: int, connections: int, make: Callable[[asyncio.Semaphore], _Plain]
) -> None:
    """Serve until `connections` connections have come and ended."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        over = asyncio.Semaphore(0)
        server = await loop.create_server(lambda: make(over), "127.0.0.1", port, backlog=1024)
        await loop.run_in_executor(None, start)
        for _ in range(connections):
            await over.acquire()
        server.close()

    uvloop.run(run())


def pub_bytes(topic: str, size: int) -> int:
    return len(b"PUB %s\n" % topic.encode()) + struct.calcsize(">i") + size
