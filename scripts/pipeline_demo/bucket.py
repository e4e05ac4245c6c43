"""Bucket of `--bucket`: an S3 server on this machine, and the options of a broker that uses it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from local_setup.s3_servers import BUCKET, Traffic, find_weed, free_ports, seaweedfs, traffic

URL: Final = f"s3://{BUCKET}/demo"
LAG_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class BucketServer:
    """A running S3 server. Brokers before and after the loss listen at the same addresses."""

    metrics_port: int
    listen: str
    listen_push: str

    @property
    def url(self) -> str:
        """Return the address of the broker."""
        return f"tcp://{self.listen}"

    @property
    def options(self) -> tuple[str, ...]:
        """Return the options of the broker."""
        return (
            *("--listen", self.listen, "--listen-push", self.listen_push),
            *("--bucket", URL, "--bucket-lag", f"{LAG_S:g}s"),
        )

    def traffic(self) -> Traffic:
        return traffic(self.metrics_port)


@contextlib.contextmanager
def bucket_server() -> Iterator[BucketServer]:
    """Run SeaweedFS in a temporary directory.

    Its address and credentials are in the environment of this process until the end of the context,
    so that brokers, `zsq restore` and Spark find it.
    """
    metrics, broker, push = free_ports(3)
    kept = dict(os.environ)
    with (
        tempfile.TemporaryDirectory(prefix="zsq-demo-s3-", ignore_cleanup_errors=True) as folder,
        seaweedfs(find_weed(), Path(folder), metrics) as environment,
    ):
        os.environ.update(environment)
        try:
            yield BucketServer(metrics, f"127.0.0.1:{broker}", f"127.0.0.1:{push}")
        finally:
            os.environ.clear()
            os.environ.update(kept)
