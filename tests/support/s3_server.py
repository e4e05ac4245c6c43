"""Real servers with S3's interface: SeaweedFS, which is fit for ZSQ, and rclone, which is not."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from .broker import wait_for

START_S: Final = 60.0
BUCKET: Final = "zsq-test"


def program(name: str) -> str:
    """Return the path of a server's program, from the extra `test-bucket` or PATH.

    Without it the test is skipped. In continuous integration that is a failure.
    """
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        if "CI" in os.environ:
            pytest.fail(f"there is no {name}: continuous integration must have one")
        pytest.skip(f"there is no {name}: pip install 'zsq[test-bucket]'")
    return found


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
            _wait(process, port, log)
            yield environment(port)
        finally:
            process.kill()  # SeaweedFS takes more than 20 s to end by itself
            process.wait(20)


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    def answers() -> bool:
        assert process.poll() is None, log.read_text(errors="replace")[-2000:]
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=1).close()
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    wait_for(answers, START_S)


def make_bucket(port: int) -> None:
    def made() -> bool:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
        try:
            urllib.request.urlopen(request, timeout=5).close()
        except urllib.error.HTTPError:
            return False  # SeaweedFS answers before its parts know each other
        return True

    wait_for(made, START_S)


@contextlib.contextmanager
def seaweedfs(folder: Path) -> Iterator[Mapping[str, str]]:
    """Run SeaweedFS with an empty bucket. Yield the environment of its clients."""
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
        program("weed"), "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3",
        "-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.max=50", "-master.volumeSizeLimitMB=64", *options,
    ]  # fmt: skip
    try:
        with running(arguments, ports[6], folder) as found:
            make_bucket(ports[6])
            yield found
    finally:
        for port in ports:
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink()


@contextlib.contextmanager
def rclone(folder: Path) -> Iterator[Mapping[str, str]]:
    """Run `rclone serve s3` with an empty bucket. Yield the environment of its clients."""
    (folder / "data" / BUCKET).mkdir(parents=True)
    (port,) = free_ports(1)
    arguments = [
        program("rclone"), "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", "test,test-secret",
        "--config", str(folder / "none.conf"), "--vfs-cache-mode", "writes", "--cache-dir", str(folder / "cache"),
        str(folder / "data"),
    ]  # fmt: skip
    with running(arguments, port, folder) as found:
        yield found
