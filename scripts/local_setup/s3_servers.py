"""A real server with S3's interface, for tests and benchmarks: SeaweedFS on loopback."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

START_S: Final = 60.0
BUCKET: Final = "zsq-test"


class ServerFailed(Exception):
    """The server did not start. The text is the end of its log."""


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]


def environment(port: int) -> dict[str, str]:
    """Return the environment with which a client finds the server."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test-secret",
        "AWS_REGION": "us-east-1",
    }


@contextlib.contextmanager
def running(arguments: Sequence[str], port: int, folder: Path) -> Iterator[Mapping[str, str]]:
    """Run a server until the end of the block. Yield the environment of its clients."""
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            arguments, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            _wait_until(lambda: _answers(process, port, log), log)
            yield environment(port)
        finally:
            process.kill()  # SeaweedFS takes more than 20 s to end by itself
            process.wait(20)


def _wait_until(condition: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > deadline:
            raise ServerFailed(log.read_text(errors="replace")[-2000:])
        time.sleep(0.05)


def _answers(process: subprocess.Popen[bytes], port: int, log: Path) -> bool:
    if process.poll() is not None:
        raise ServerFailed(log.read_text(errors="replace")[-2000:])
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=1).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def _makes_bucket(port: int) -> bool:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
    try:
        urllib.request.urlopen(request, timeout=5).close()
    except urllib.error.HTTPError:
        return False  # SeaweedFS answers before its parts know each other
    return True


@contextlib.contextmanager
def seaweedfs(program: str, folder: Path) -> Iterator[Mapping[str, str]]:
    """Run SeaweedFS (`program` is the path of `weed`) with an empty bucket in `folder`.

    Yield the environment of its clients.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = ("master", "volume", "filer", "s3")
    ports = free_ports(2 * len(names))
    options = [
        f"-{name}.{kind}={port}"
        for (name, kind), port in zip(
            ((name, kind) for name in names for kind in ("port", "port.grpc")), ports, strict=True
        )
    ]
    arguments = [
        program, "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3",
        "-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.max=50", "-master.volumeSizeLimitMB=64", *options,
    ]  # fmt: skip
    try:
        with running(arguments, ports[6], folder) as found:
            _wait_until(lambda: _makes_bucket(ports[6]), folder / "server.log")
            yield found
    finally:
        for port in ports:
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink()
