"""The bucket torture as a command: run it, and print a summary that a person can check."""

from __future__ import annotations

import logging
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from support.fault_proxy import FAULTS, ProxyFailed
from support.torture.bucket.checks import BrokenPromise, BucketChecks
from support.torture.bucket.homes import LAG_S, RestoreFailed
from support.torture.bucket.run import BucketTorture, plan

import zsq

FAILURES: Final = (
    BrokenPromise,
    RestoreFailed,
    AssertionError,
    ProxyFailed,
    subprocess.TimeoutExpired,
    zsq.ZsqError,
)


Run = TypeVar("Run", bound=BucketChecks)


@dataclass(frozen=True)
class Torture(Generic[Run]):
    """One of the tortures with a bucket: its option, and how to plan, make and summarize a run."""

    option: str
    plan: Callable[[int, int, Sequence[str]], list[str]]
    make: Callable[[Path, Sequence[str], int], Run]
    summary: Callable[[Run, float], str]


def command(
    of: Torture[Run], cycles: int, seed: int, kinds: list[str], parent: Path | None, *, keep: bool
) -> int:
    """Run one of the tortures in a new folder, and return the exit code."""
    logging.getLogger("zsq").setLevel(logging.ERROR)  # clients warn while no broker runs
    folder = Path(tempfile.mkdtemp(prefix="torture-", dir=parent))
    print(f"torture {of.option}: {cycles} cycles, seed {seed}, data in {folder}", flush=True)
    torture = of.make(folder, of.plan(cycles, seed, kinds), seed)
    began = time.monotonic()
    try:
        torture.run()
    except FAILURES as error:
        told = error if isinstance(error, BrokenPromise) else repr(error)
        print(
            f"VIOLATION: {told}\n{of.summary(torture, time.monotonic() - began)}\n"
            f"replay (the choices; times differ): scripts/torture {of.option} "
            f"--cycles {cycles} --seed {seed} --kinds {','.join(kinds)}\n"
            f"data and logs stay in {folder}",
            flush=True,
        )
        return 1
    except KeyboardInterrupt:
        print(f"interrupted\n{of.summary(torture, time.monotonic() - began)}", flush=True)
        shutil.rmtree(folder)
        return 130
    print(of.summary(torture, time.monotonic() - began), flush=True)
    if not keep:
        shutil.rmtree(folder)
    return 0


def machine() -> str:
    return (
        f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python "
        f"{platform.python_version()}"
    )


def summary(torture: BucketTorture, seconds: float) -> str:
    counts, clients = torture.history.counts, torture.clients
    restores, faults = torture.restored, torture.faults
    recoveries = sorted(torture.recoveries) or [0.0]
    injected = {name: faults.get(name, 0) for name in FAULTS}
    return f"""\
cycles {sum(torture.cycles_done.values())}: {listed(torture.cycles_done)}
kills: {listed(torture.kills)}
restores {restores["restores"]}, {restores["eager restores"]} of them --eager, {restores["killed restores"]} more killed, \
{restores["failed restores"]} more failed; {restores["restore ms"] / 1000 / max(1, restores["restores"]):.2f} s on average
acknowledged {counts["acknowledged"]:,} messages, checked {counts["checked"]:,}, delayed ones checked {counts["delayed checked"]:,}
  lost with a disk, within the bound {counts["lost within the bound"]:,}; a publish of the same broker was sent at most \
{counts["lost span ms"]} ms after a lost one was acknowledged; the bound is {LAG_S * 1000:g} ms
  refused with E_BUCKET {clients["refused"]:,}, with E_FENCED {clients["fenced"]:,}
messages read {counts["read"]:,}, delivered {counts["delivered"]:,}, again {counts["delivered again"]:,}
  finishes confirmed {counts["finished"]:,}, in doubt {clients["finishes in doubt"]:,}, delivered again after the loss of a disk \
{counts["finished again"]:,}, confirmed at most {counts["finish span ms"]} ms before a publish that the bucket has
broken promises {len(torture.history.complaints)}
faults injected {sum(injected.values()):,} in {faults.get("requests", 0):,} requests: {listed(injected)}
zsq fsck without a finding: {torture.fscks}; topics whose health was not OK at a check: {torture.unhealthy}
all clients are served {recoveries[len(recoveries) // 2]:.2f} s after a cycle (half of them), {recoveries[-1]:.2f} s (the slowest)
orphan processes {torture.orphans}
{seconds:.0f} s on {machine()}, seed {torture.seed}"""


def listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))


BUCKET: Final = Torture("--bucket", plan, BucketTorture, summary)
