"""`scripts/prove calls`: each call of a workload fails in turn, once or permanently, with each
error that such a call can have.

    scripts/prove calls --count 10000 --seed 1 --jobs 2
    scripts/prove calls --case "log 17 EIO once lost"         # one case again

A case consists of a workload, the number of one of its calls, an error, a mode (see `failing.py`)
and an ending. With the ending `died` only the process dies. With the others the power is cut too:
then what was not synced is kept (`kept`) or lost (`lost`). In each case (the terms are explained in
`__main__.py`):

- The calls raise only errors of the storage layer.
- The effect of a call that succeeded is kept.
- After a failed sync, the store accepts nothing more. After other failures it can be used again.
- The next process finds everything that was promised.

Cases come in rounds. Each round has one case for each call of each workload, and no case comes
twice. With a count of 0, all cases are tried.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import multiprocessing
import os
import platform
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Self
from unittest import mock

from faults.call_groups import GroupLife, MergeLife
from faults.call_lives import ENDINGS, ClosingLife, Life, LogLife
from faults.call_others import QueueLife, QueueStartLife, RegistryLife
from faults.call_starts import (
    CheckLife,
    CreationLife,
    MixedStartLife,
    RebuildLife,
    RepairLife,
    StartLife,
)
from faults.call_state import ChannelLife, DelayedLife, RetentionLife
from faults.failing import HITS, STICKY, WRITES, FailingFiles, Fault
from support.lmdb_calls import LmdbCalls

from zsq.storage.checks import fsck
from zsq.storage.delayed import delayed_recovery
from zsq.storage.state import state_keeper as state_rebuild
from zsq.storage.state.state_check import Verdict, findings

LIVES: Final[dict[str, type[Life]]] = {
    "log": LogLife,
    "closing": ClosingLife,
    "channels": ChannelLife,
    "delayed": DelayedLife,
    "retention": RetentionLife,
    "groups": GroupLife,
    "merge": MergeLife,
    "start": StartLife,
    "mixed-start": MixedStartLife,
    "rebuild": RebuildLife,
    "creation": CreationLife,
    "check": CheckLife,
    "repair": RepairLife,
    "queue": QueueLife,
    "queue-start": QueueStartLife,
    "registry": RegistryLife,
}
MEMORY: Final = Path("/dev/shm")
PORTION: Final = 50  # cases that a process gets at a time
TOLD_EVERY_S: Final = 10.0


class Case(NamedTuple):
    life: str
    fault: Fault
    ending: str

    def __str__(self) -> str:
        return (
            f"{self.life} {self.fault.at} {errno.errorcode[self.fault.code]} {self.fault.mode} "
            f"{self.ending}"
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        life, at, code, mode, ending = text.split()
        return cls(life, Fault(int(at), getattr(errno, code), mode), ending)


class Outcome(NamedTuple):
    """The outcome of one case. `kind`: the kind of the call that failed. `said`: the errors that
    the store's calls raised. `trouble`: the broken promise, or empty.
    """

    kind: str
    said: tuple[str, ...]
    trouble: str


@dataclass(slots=True)
class Tried:
    """The sums over many cases. `said`: for each kind of call and errno, the first error that the
    store's calls raised, and how often.
    """

    cases: int = 0
    refused: int = 0
    failed: int = 0
    said: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def add(self, other: Tried) -> None:
        self.cases += other.cases
        self.refused += other.refused
        self.failed += other.failed
        self.said += other.said
        self.violations += other.violations


def modes(kind: str, code: int) -> list[str]:
    found = ["once", "sticky"] if kind in STICKY[code] else ["once"]
    if code == errno.EIO:
        found += ["late", "half"] if kind in WRITES else ["late"]
    if code == errno.ENOSPC and kind in WRITES:
        found += ["half", "short"]
    return found


def trace_of(life: str) -> list[str]:
    """Return the kinds of all calls of a workload in which nothing fails."""
    with a_disk() as (disk, files), LmdbCalls(files.lmdb) as calls:
        one = LIVES[life](disk, files)
        files.arm(None)
        one.live()
        files.lift()
        assert calls.error is None
        assert not one.refusals
        one.end("lost")
        one.check()
        one.close()
        return files.trace


def cases(life: str, seed: int) -> Iterator[Case]:
    """Yield every call with every error in every mode with every ending, in rounds: each round has
    one case for each call that has cases left.
    """
    chance = random.Random(f"{seed} {life}")
    by_call = []
    for number, kind in enumerate(trace_of(life), 1):
        faults = [
            Fault(number, code, mode)
            for code, kinds in HITS.items()
            if kind in kinds
            for mode in modes(kind, code)
        ]
        found = [Case(life, fault, ending) for fault in faults for ending in ENDINGS]
        chance.shuffle(found)
        by_call.append(found)
    while any(by_call):
        yield from [found.pop() for found in by_call if found]


def run(case: Case) -> Outcome:
    with a_disk() as (disk, files):
        trouble = ""
        with LmdbCalls(files.lmdb) as calls:
            one = LIVES[case.life](disk, files)
            try:
                files.arm(case.fault)
                one.live()
                assert files.met, "the call was not reached"
                one.while_failing()
                files.lift()
                if not one.failed:
                    one.go_on()
                one.end(case.ending)
                one.check()
                one.afterlife()
            except Exception:
                trouble = traceback.format_exc()
            finally:
                files.lift()
                one.close()
            if calls.error is not None:
                trouble += f"\nin a hook: {calls.error!r}"
        return Outcome(files.met, tuple(one.refusals), trouble)


def try_all(chosen: Sequence[Case]) -> Tried:
    tried = Tried()
    for case in chosen:
        outcome = run(case)
        tried.cases += 1
        tried.failed += "StoreFailed" in outcome.said
        tried.refused += bool(outcome.said) and "StoreFailed" not in outcome.said
        tried.said[
            outcome.kind,
            errno.errorcode[case.fault.code],
            outcome.said[0] if outcome.said else "nothing",
        ] += 1
        if outcome.trouble:
            tried.violations.append(f'scripts/prove calls --case "{case}"\n{outcome.trouble}')
    return tried


@contextlib.contextmanager
def a_disk() -> Iterator[tuple[Path, FailingFiles]]:
    """Make a disk in a memory file system, if there is one."""
    with tempfile.TemporaryDirectory(
        prefix="zsq-calls-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None
    ) as root:
        disk = Path(root) / "disk"
        disk.mkdir()
        files = FailingFiles(str(disk))

        def examined(path: str, *_: float) -> Verdict:
            """Examine an LMDB environment in this process: nothing is damaged here that could crash
            it. The calls do not count, because the broker uses another process for this.
            """
            with files.paused():
                return Verdict(findings(path), finished=True)

        with contextlib.ExitStack() as patches:
            for module in (state_rebuild, delayed_recovery):
                patches.enter_context(mock.patch.object(module, "examine", examined))
            patches.enter_context(
                mock.patch.object(fsck, "check_environment", lambda path: examined(path).findings)
            )
            yield disk, files


def choose(count: int, seed: int) -> list[Case]:
    """Return the first rounds that have at least `count` cases, or all cases if there are fewer or
    `count` is 0.
    """
    by_life = {life: list(cases(life, seed)) for life in LIVES}
    total = sum(map(len, by_life.values()))
    share = min(1.0, count / total) if count else 1.0
    return [case for found in by_life.values() for case in found[: -int(-len(found) * share // 1)]]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/prove calls",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--count", type=int, default=0, help="about so many cases; 0: all there are"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="in which order the cases of a call come"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--case", help="this one only, as a violation names it")
    given = parser.parse_args(arguments)
    if given.case:
        outcome = run(Case.parse(given.case))
        print(
            f"{given.case}: a {outcome.kind} failed, said: "
            f"{', '.join(outcome.said) or 'nothing'}\n{outcome.trouble or 'all promises held'}"
        )
        return 1 if outcome.trouble else 0
    began = time.monotonic()
    chosen = choose(given.count, given.seed)
    print(f"{len(chosen)} cases of {len(LIVES)} workloads: {', '.join(LIVES)}", flush=True)
    tried = in_processes(chosen, given.jobs)
    tell(tried, time.monotonic() - began, given.seed)
    return 1 if tried.violations else 0


def in_processes(chosen: Sequence[Case], jobs: int) -> Tried:
    tried, told = Tried(), time.monotonic()
    portions = [chosen[at : at + PORTION] for at in range(0, len(chosen), PORTION)]
    # Without this, the children of this process would run on after it ends.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("forkserver")) as pool:
        try:
            for done in as_completed([pool.submit(try_all, portion) for portion in portions]):
                tried.add(done.result())
                if time.monotonic() - told > TOLD_EVERY_S:
                    told = time.monotonic()
                    print(f"{tried.cases} cases, {len(tried.violations)} violations", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return tried


def tell(tried: Tried, seconds: float, seed: int) -> None:
    for (kind, code, said), count in sorted(tried.said.items()):
        print(f"  {kind:<14}{code:<8}{said:<20}{count}")
    for violation in tried.violations[:3]:
        print(violation)
    print(
        f"{tried.cases} failing calls, each in a life of its own: {tried.refused} were refused "
        f"and went on, {tried.failed} ended the store "
        f"for good, {tried.cases - tried.refused - tried.failed} were of no consequence; "
        f"{len(tried.violations)} violations; "
        f"{seconds:.0f} s, seed {seed}, {platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
