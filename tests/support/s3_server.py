"""Real servers with S3's interface: SeaweedFS, which is fit for ZSQ, and rclone, which is not."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from local_setup import s3_servers
from local_setup.s3_servers import BUCKET as BUCKET
from local_setup.s3_servers import environment as environment
from local_setup.s3_servers import free_ports, running


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


@contextlib.contextmanager
def seaweedfs(folder: Path) -> Iterator[Mapping[str, str]]:
    """Run SeaweedFS with an empty bucket. Yield the environment of its clients."""
    with s3_servers.seaweedfs(program("weed"), folder) as found:
        yield found


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
