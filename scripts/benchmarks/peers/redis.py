"""Redis streams as a peer in the benchmarks, if redis-server is on PATH.

The server runs with appendfsync always, and gets XADD and XREADGROUP + XACK in pipelines. The
client is plain Python, like ZSQ's client, and speaks RESP. It only packs each command and unpacks
each body.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ..harness.crew import Crew, MemberFailed
from ..harness.loads import Shape, Start, make_bodies

MESSAGES_MAX: Final = 200_000  # in one round; Redis is slower, and its rounds need not take longer
STREAM: Final = b"bench"
WAIT_S: Final = 60.0


def find() -> str | None:
    return shutil.which("redis-server")


def rate(server: str, folder: Path, shape: Shape, produces: bool, consumes: bool) -> float:
    """Return the messages a second through one stream and one group.

    Only the parts that `produces` and `consumes` select are measured.
    """
    with running(server, folder) as path:
        with Client(path) as client:
            client.ask([(b"XGROUP", b"CREATE", STREAM, b"group", b"0", b"MKSTREAM")])
        if not produces:
            with Crew() as crew:
                crew.add(_publish, path, shape)
                crew.go()
                crew.results()
        with Crew() as crew:
            if consumes:
                crew.add(_consume, path, shape)
            if produces:
                crew.add(_publish, path, shape)
            start = crew.go()
            return shape.messages / (max(crew.ends()) - start)


class Client:
    """A connection that sends many commands at once and reads as many answers."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(WAIT_S)
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        self._file = self._socket.makefile("rb", buffering=1 << 20)

    def __enter__(self) -> Client:  # noqa: PYI034
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    def ask(self, commands: list[tuple[bytes, ...]]) -> list[Any]:
        pieces = []
        for command in commands:
            pieces.append(b"*%d\r\n" % len(command))
            pieces += [b"$%d\r\n%s\r\n" % (len(part), part) for part in command]
        self._socket.sendall(b"".join(pieces))
        return [self._answer() for _ in commands]

    def _answer(self) -> Any:
        line = self._file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            size = int(rest)
            return None if size < 0 else self._file.read(size + 2)[:-2]
        if kind == b"*":
            return [self._answer() for _ in range(int(rest))]
        if kind in {b"+", b":"}:
            return rest
        raise MemberFailed(line.decode(errors="replace").strip() or "the connection ended")


def _publish(start: Start, path: str, shape: Shape) -> float:
    bodies = make_bodies(shape)
    with Client(path) as client:
        start()
        for first in range(0, shape.messages, shape.block):
            part = [
                bodies[number % len(bodies)]
                for number in range(first, min(first + shape.block, shape.messages))
            ]
            client.ask([(b"XADD", STREAM, b"*", b"b", body) for body in part])
        return time.monotonic()


def _consume(start: Start, path: str, shape: Shape) -> float:
    count = b"%d" % shape.block
    with Client(path) as client:
        start()
        seen = 0
        while seen < shape.messages:
            [found] = client.ask(
                [
                    (
                        b"XREADGROUP",
                        b"GROUP",
                        b"group",
                        b"me",
                        b"COUNT",
                        count,
                        b"BLOCK",
                        b"1000",
                        b"STREAMS",
                        STREAM,
                        b">",
                    )
                ]
            )
            if found:
                entries = found[0][1]
                client.ask([(b"XACK", STREAM, b"group", *(entry[0] for entry in entries))])
                seen += len(entries)
        return time.monotonic()


@contextlib.contextmanager
def running(server: str, folder: Path) -> Iterator[str]:
    """Run a server on a socket file that syncs every command before its answer."""
    # A socket's path has at most 107 characters, and the folder may have a long one.
    with (
        tempfile.TemporaryDirectory(prefix="redis-", dir=folder) as place,
        tempfile.TemporaryDirectory(prefix="zsq-") as short,
    ):
        path = f"{short}/socket"
        options = [
            "--port",
            "0",
            "--unixsocket",
            path,
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
            "--save",
            "",
            "--dir",
            place,
        ]
        process = subprocess.Popen(
            [server, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            deadline = time.monotonic() + WAIT_S
            while not _answers(path):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise MemberFailed("redis-server did not start")
                time.sleep(0.02)
            yield path
        finally:
            process.terminate()
            process.wait(WAIT_S)


def _answers(path: str) -> bool:
    with contextlib.suppress(OSError), Client(path) as client:
        return client.ask([(b"PING",)]) == [b"PONG"]
    return False
