"""`scripts/prove fuzz`: nearly right inputs to all that reads what others wrote. Allowed: a value, or the documented error.

Fault model: a peer that says anything, a file whose bytes are anything. For an input of up to 1 MiB there is never another exception, never
more than `MEMORY_MAX` of memory, never more than a second of computing. Inputs come in batches; seed, target and batch name them all.
"""

from __future__ import annotations

import argparse
import multiprocessing
import platform
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from random import Random
from typing import Any, Final, NamedTuple, Self

from faults.mutation import Mutator

BATCH: Final = 500
MEMORY_MAX: Final = 64 * 1024 * 1024
TIME_MAX_S: Final = 1.0
_TELL_S: Final = 10.0
_SHOWN: Final = 400

Make = Callable[[], Any]
Run = Callable[[Any], bool]


class Target(NamedTuple):
    """`begin` makes, for each batch, (what draws an input, what tries it). Trying says whether the input was taken (or refused by the
    documented error); all that it raises is a violation. `share`: of ten thousand inputs, how many are for this one."""

    name: str
    begin: Callable[[Mutator], tuple[Make, Run]]
    share: int = 1


class Violation(NamedTuple):
    target: str
    batch: int
    number: int
    what: str

    def replay(self, seed: int) -> str:
        return f"scripts/prove fuzz --seed {seed} --target {self.target} --batch {self.batch}"


class Tried(NamedTuple):
    """Of one or more batches."""

    inputs: int = 0
    taken: int = 0
    violations: tuple[Violation, ...] = ()

    def plus(self, other: Tried) -> Tried:
        return Tried(self.inputs + other.inputs, self.taken + other.taken, self.violations + other.violations)


class TooSlowError(Exception):
    """One input computed for longer than `TIME_MAX_S`."""


class Guard:
    """Notices an input that computes too long (CPU time, so that a busy machine is no reason), without work for each input."""

    def __init__(self) -> None:
        self.number = -1
        self._seen = -2

    def __enter__(self) -> Self:
        signal.signal(signal.SIGVTALRM, self._look)
        signal.setitimer(signal.ITIMER_VIRTUAL, TIME_MAX_S, TIME_MAX_S)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL)

    def _look(self, signum: int, frame: object) -> None:
        if self._seen == self.number >= 0:
            raise TooSlowError(f"more than {TIME_MAX_S:g} s of computing for one input")
        self._seen = self.number


def peak_bytes() -> int:
    """The most memory this process had since the last `forget_peak`."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


def forget_peak() -> None:
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")


def run_batch(target: Target, seed: int, batch: int, each: Callable[[int, Any], None] | None = None, inputs: int = BATCH) -> Tried:
    """One batch, up to its first violation. `each` sees every input before it is tried."""
    make, run = target.begin(Mutator(Random(f"{seed} {target.name} {batch}")))
    taken = 0
    given: Any = None
    forget_peak()
    before = peak_bytes()
    with Guard() as guard:
        for number in range(inputs):
            try:
                given = make()
                if each is not None:
                    each(number, given)
                guard.number = number
                taken += run(given)
            except Exception as error:
                guard.number = -1
                where = "".join(traceback.format_exception(error)[-4:])
                text = f"{type(error).__name__}: {str(error)[:_SHOWN]}\ninput: {_short(given)}\n{where}"
                return Tried(number + 1, taken, (Violation(target.name, batch, number, text),))
            finally:
                guard.number = -1
    grown = peak_bytes() - before
    if grown > MEMORY_MAX:
        return Tried(inputs, taken, (Violation(target.name, batch, -1, f"memory grew by {grown >> 20} MiB within a batch"),))
    return Tried(inputs, taken)


def _short(given: Any) -> str:
    try:
        text = repr(given)
    except RecursionError:
        text = "nested too far to be shown"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def run_batches(name: str, seed: int, first: int, count: int) -> tuple[str, Tried]:
    """In a child process; its first violation ends it."""
    from faults.fuzz_targets import TARGETS

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    found = Tried()
    for batch in range(first, first + count):
        found = found.plus(run_batch(TARGETS[name], seed, batch))
        if found.violations:
            break
    return name, found


def plan(targets: Sequence[Target], count: int) -> dict[str, int]:
    """How many batches of each target make `count` inputs in all; at least one."""
    shares = sum(target.share for target in targets)
    return {target.name: max(1, -(-count * target.share // shares // BATCH)) for target in targets}


def _replay(target: Target, seed: int, batch: int) -> int:
    def each(number: int, given: Any) -> None:
        forget_peak()
        nonlocal before
        before = peak_bytes()
        last[:] = [number, given]

    before = 0
    last: list[Any] = []
    found = run_batch(target, seed, batch, each)
    print(f"{target.name}, batch {batch} of seed {seed}: {found.inputs} inputs, {found.taken} taken")
    for violation in found.violations:
        print(f"input {violation.number}: {violation.what}")
    return 1 if found.violations else 0


def main(arguments: list[str]) -> int:
    from faults.fuzz_targets import TARGETS

    parser = argparse.ArgumentParser("scripts/prove fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000, help="inputs in all (1,000,000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--target", choices=sorted(TARGETS), action="append", help="only this one (may be given again)")
    parser.add_argument("--batch", type=int, default=-1, help="try this batch of --target again, and show what fails")
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
        orders += [(name, seed, first, min(size, batches - first)) for first in range(0, batches, size)]
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
        print(f"  {name:<16} {tried.inputs:>11,} inputs, {share:>3}% taken, the others refused; {len(tried.violations)} violations")
    violations = [violation for tried in found.values() for violation in tried.violations]
    for violation in violations[:5]:
        print(f"\n{violation.target}, batch {violation.batch}, input {violation.number}: {violation.what}\nagain: {violation.replay(seed)}")
    inputs = sum(tried.inputs for tried in found.values())
    print(
        f"\nfuzz: {inputs:,} inputs to {len(found)} targets, {len(violations)} violations; {seconds:.0f} s with {jobs} processes"
        f" ({inputs / max(seconds, 0.001):,.0f}/s), seed {seed}, Python {platform.python_version()}, {platform.machine()}"
    )
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
