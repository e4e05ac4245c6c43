"""The object store of the bucket torture: a real server, the fault proxy before it, and the
commands that read the bucket.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from support.fault_proxy import FAULTS, FaultProxyProcess, Faults

from local_setup.s3_servers import BUCKET, find_weed, seaweedfs

URL: Final = f"s3://{BUCKET}/torture"
RESTORE_S: Final = 120.0
FSCK_S: Final = 300.0


def plan(seed: int) -> Faults:
    """Return the plan of faults: about one request of five gets one.

    The check of the store has none. A store that answers it like this is not fit, and the broker
    ends.
    """
    return Faults(
        seed,
        matching=r"^(?!torture/probe/)",
        error_500=0.02,
        error_503=0.01,
        retry_after_s=0,
        error_409=0.01,
        lost_request=0.02,
        error_after=0.02,
        lost_answer=0.02,
        conflict_409=0.01,
        conflict_412=0.01,
        cut_body=0.02,
        doubled=0.02,
        doubled_late=0.02,
        delay_before=0.02,
        delay_after=0.02,
        delay_s=0.2,
    )


def fewer(faults: Faults, share: float) -> Faults:
    """Return a plan with this share of the faults."""
    return replace(faults, **{name: share * getattr(faults, name) for name in FAULTS})


@dataclass(frozen=True)
class Store:
    """The server and its proxy. `direct` is the environment of clients that get no faults."""

    proxy: FaultProxyProcess
    direct: Mapping[str, str]

    @property
    def faulty(self) -> dict[str, str]:
        return self.proxy.environment(self.direct)


@contextlib.contextmanager
def running(folder: Path, seed: int) -> Iterator[Store]:
    """Run the server and the proxy. Brokers that are started meanwhile use the proxy."""
    with contextlib.ExitStack() as stack:
        direct = stack.enter_context(seaweedfs(find_weed(), folder))
        proxy = stack.enter_context(FaultProxyProcess(direct["AWS_ENDPOINT_URL"], plan(seed)))
        store = Store(proxy, direct)
        before = {name: os.environ.get(name) for name in store.faulty}
        os.environ.update(store.faulty)
        try:
            yield store
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


class Command:
    """A command of `zsq` in its own process, with its output in a file."""

    def __init__(self, log: Path, environment: Mapping[str, str], *arguments: str) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "zsq", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the command. Return True if it has ended."""
        deadline = time.monotonic() + seconds
        while self._process.poll() is None and time.monotonic() < deadline:
            select.select([], [], [], 0.01)
        return self._process.poll() is not None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(20)

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def output(self) -> str:
        return self._log.read_text(errors="replace")
