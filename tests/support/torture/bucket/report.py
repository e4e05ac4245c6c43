"""The bucket torture as a command: run it, and print a summary that a person can check."""

from __future__ import annotations

import logging
import os
import platform
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from support.fault_proxy import FAULTS, ProxyFailed
from support.torture.bucket.homes import LAG_S, RestoreFailed
from support.torture.bucket.run import BrokenPromise, BucketTorture, plan

import zsq

FAILURES: Final = (
    BrokenPromise,
    RestoreFailed,
    AssertionError,
    ProxyFailed,
    subprocess.TimeoutExpired,
    zsq.ZsqError,
)


def command(cycles: int, seed: int, kinds: list[str], parent: Path | None, *, keep: bool) -> int:
    """Run the bucket torture in a new folder, and return the exit code."""
    logging.getLogger("zsq").setLevel(logging.ERROR)  # clients warn while no broker runs
    folder = Path(tempfile.mkdtemp(prefix="torture-", dir=parent))
    print(f"torture with a bucket: {cycles} cycles, seed {seed}, data in {folder}", flush=True)
    torture = BucketTorture(folder, plan(cycles, seed, kinds), seed)
    began = time.monotonic()
    try:
        torture.run()
    except FAILURES as error:
        told = error if isinstance(error, BrokenPromise) else repr(error)
        print(
            f"VIOLATION: {told}\n{summary(torture, time.monotonic() - began)}\n"
            "replay (the choices; times differ): scripts/torture --bucket "
            f"--cycles {cycles} --seed {seed} --kinds {','.join(kinds)}\n"
            f"data and logs stay in {folder}",
            flush=True,
        )
        return 1
    except KeyboardInterrupt:
        print(f"interrupted\n{summary(torture, time.monotonic() - began)}", flush=True)
        shutil.rmtree(folder)
        return 130
    print(summary(torture, time.monotonic() - began), flush=True)
    if not keep:
        shutil.rmtree(folder)
    return 0


def summary(torture: BucketTorture, seconds: float) -> str:
    counts, clients = torture.history.counts, torture.clients
    restores, faults = torture.restored, torture.faults
    recoveries = sorted(torture.recoveries) or [0.0]
    machine = (
        f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python "
        f"{platform.python_version()}"
    )
    injected = {name: faults.get(name, 0) for name in FAULTS}
    return f"""\
cycles {sum(torture.cycles_done.values())}: {_listed(torture.cycles_done)}
kills: {_listed(torture.kills)}
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
faults injected {sum(injected.values()):,} in {faults.get("requests", 0):,} requests: {_listed(injected)}
zsq fsck without a finding: {torture.fscks}; topics whose health was not OK at a check: {torture.unhealthy}
all clients are served {recoveries[len(recoveries) // 2]:.2f} s after a cycle (half of them), {recoveries[-1]:.2f} s (the slowest)
orphan processes {torture.orphans}
{seconds:.0f} s on {machine}, seed {torture.seed}"""


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))
