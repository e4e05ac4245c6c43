"""`scripts/prove fuzz`: nearly correct inputs for all code that reads what others wrote. That code
must return a value, or raise the documented error.

Fault model: a peer may send anything, and a file may contain any bytes. An input of up to 1 MiB
never causes another exception, never takes more than `MEMORY_MAX` of memory, and never more than a
second of CPU time. Inputs come in batches. The seed, the target and the number of a batch identify
all its inputs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import platform
import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from random import Random
from typing import Final

from faults.fuzz_targets import TARGETS
from faults.fuzzing import Target, Tried, plan, run_batch

_TELL_S: Final = 10.0


def run_batches(name: str, seed: int, first: int, count: int) -> tuple[str, Tried]:
    """Run batches in a child process. The first violation ends it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    found = Tried()
    for batch in range(first, first + count):
        found = found.plus(run_batch(TARGETS[name], seed, batch))
        if found.violations:
            break
    return name, found


def _replay(target: Target, seed: int, batch: int) -> int:
    found = run_batch(target, seed, batch)
    print(
        f"{target.name}, batch {batch} of seed {seed}: {found.inputs} inputs, {found.taken} taken"
    )
    for violation in found.violations:
        print(f"input {violation.number}: {violation.what}")
    return 1 if found.violations else 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "scripts/prove fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--count", type=int, default=1_000_000, help="inputs in all (1,000,000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument(
        "--target",
        choices=sorted(TARGETS),
        action="append",
        help="only this one (may be given again)",
    )
    parser.add_argument(
        "--batch",
        type=int,
        default=-1,
        help="try this batch of --target again, and show what fails",
    )
    given = parser.parse_args(arguments)
    targets = [TARGETS[name] for name in given.target or TARGETS]
    if given.batch >= 0:
        return max(_replay(target, given.seed, given.batch) for target in targets)
    return _try_all(targets, given.count, given.seed, given.jobs)


def _try_all(targets: Sequence[Target], count: int, seed: int, jobs: int) -> int:
    began = told = time.monotonic()
    found = {target.name: Tried() for target in targets}
    orders = []
    for name, batches in plan(targets, count).items():
        size = max(1, min(100, batches // (4 * jobs)))
        orders += [
            (name, seed, first, min(size, batches - first)) for first in range(0, batches, size)
        ]
    Random(seed).shuffle(orders)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        for done in as_completed([pool.submit(run_batches, *order) for order in orders]):
            name, tried = done.result()
            found[name] = found[name].plus(tried)
            if time.monotonic() - told > _TELL_S:
                told = time.monotonic()
                inputs = sum(one.inputs for one in found.values())
                bad = sum(len(one.violations) for one in found.values())
                print(f"{inputs:,} inputs in {told - began:.0f} s, {bad} violations", flush=True)
    return _summary(found, seed, jobs, time.monotonic() - began)


def _summary(found: dict[str, Tried], seed: int, jobs: int, seconds: float) -> int:
    for name, tried in sorted(found.items()):
        share = 100 * tried.taken // max(1, tried.inputs)
        print(
            f"  {name:<16} {tried.inputs:>11,} inputs, {share:>3}% taken, the others refused; "
            f"{len(tried.violations)} violations"
        )
    violations = [violation for tried in found.values() for violation in tried.violations]
    for violation in violations[:5]:
        print(
            f"\n{violation.target}, batch {violation.batch}, input {violation.number}: "
            f"{violation.what}\nagain: {violation.replay(seed)}"
        )
    inputs = sum(tried.inputs for tried in found.values())
    print(
        f"\nfuzz: {inputs:,} inputs to {len(found)} targets, {len(violations)} violations; "
        f"{seconds:.0f} s with {jobs} processes"
        f" ({inputs / max(seconds, 0.001):,.0f}/s), seed {seed}, Python "
        f"{platform.python_version()}, {platform.machine()}"
    )
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
