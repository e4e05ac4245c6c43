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
CLUSTER: Final = f"s3://{BUCKET}/cluster"
LAG_S: Final = 1.0
PATIENCE_S: Final = 2.0  # of the standby


@dataclass(frozen=True, slots=True)
class BucketServer:
    """A running S3 server. Brokers before and after the loss listen at the same addresses."""

    metrics_port: int
    listen: str
    listen_push: str
    standby_listen: str = ""
    standby_push: str = ""
    second_listen: str = ""
    second_push: str = ""

    @property
    def url(self) -> str:
        """Return the address of the broker, and that of its standby if there is one."""
        places = filter(None, (self.listen, self.standby_listen))
        return ",".join(f"tcp://{place}" for place in places)

    @property
    def options(self) -> tuple[str, ...]:
        """Return the options of the broker."""
        return self._options(self.listen, self.listen_push)

    @property
    def second_options(self) -> tuple[str, ...]:
        """Return the options of the second broker of the cluster."""
        place = ("--listen", self.second_listen, "--listen-push", self.second_push)
        return (*place, "--bucket", f"{URL}-two", *self._lag, *self._cluster)

    @property
    def standby_options(self) -> tuple[str, ...]:
        """Return the options of the standby."""
        return self._options(self.standby_listen, self.standby_push)

    def _options(self, listen: str, push: str) -> tuple[str, ...]:
        patience = ("--patience", f"{PATIENCE_S:g}s") if self.standby_listen else ()
        return (
            *("--listen", listen, "--listen-push", push),
            *("--bucket", URL),
            *self._lag,
            *self._cluster,
            *patience,
        )

    @property
    def _lag(self) -> tuple[str, ...]:
        return ("--bucket-lag", f"{LAG_S:g}s")

    @property
    def _cluster(self) -> tuple[str, ...]:
        return ("--cluster", CLUSTER) if self.second_listen else ()

    def traffic(self) -> Traffic:
        return traffic(self.metrics_port)


@contextlib.contextmanager
def bucket_server(*, with_standby: bool, with_second: bool = False) -> Iterator[BucketServer]:
    """Run SeaweedFS in a temporary directory. Choose addresses for a broker, a standby, and a
    second broker.

    Its address and credentials are in the environment of this process until the end of the context,
    so that brokers, `zsq restore` and Spark find it.
    """
    metrics, *ports = free_ports(7)
    places = [f"127.0.0.1:{port}" for port in ports]
    used = 6 if with_second else 4 if with_standby else 2
    kept = dict(os.environ)
    with (
        tempfile.TemporaryDirectory(prefix="zsq-demo-s3-", ignore_cleanup_errors=True) as folder,
        seaweedfs(find_weed(), Path(folder), metrics) as environment,
    ):
        os.environ.update(environment)
        try:
            yield BucketServer(metrics, *places[:used])
        finally:
            os.environ.clear()
            os.environ.update(kept)
