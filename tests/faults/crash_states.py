"""`scripts/prove crash-states`: what a power cut may leave after each step of each workload; a start on it, and all that was promised.

    scripts/prove crash-states --count 100000 --seed 1 --jobs 2      as many distinct disks; systematic ones first, then random ones
    scripts/prove crash-states --replay groups/167/15                one of them, with what was on its way to the disk

A disk is counted once, however many ways lead to it; it is checked once for each set of promises under which it may be found.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from unittest import mock

from zsq.storage import state_check

from .states import Disk, Fate, Tree, digest, fates, lay_down, prefixes, random_fates, tree_of
from .workloads import WORKLOADS, Recorded

RANDOM_A_ROUND: Final = 40  # random fates of what is pending, after each step, in each round behind the first
ROUNDS_MAX: Final = 1_000
SAY_EVERY_S: Final = 10.0
VIOLATIONS_MAX: Final = 20


@dataclass(slots=True)
class Result:
    """`disks`: digests of the distinct ones; `violations`: (where, what), of the first."""

    disks: set[bytes] = field(default_factory=set)
    checks: int = 0
    violations: list[tuple[str, str]] = field(default_factory=list)

    def take(self, other: Result) -> None:
        self.disks |= other.disks
        self.checks += other.checks
        self.violations += other.violations


class Prover:
    """Checks disks of one recorded workload. `folder`: where they are laid down."""

    def __init__(self, recorded: Recorded, folder: Path, seed: int = 1) -> None:
        self.recorded = recorded
        self.trace = recorded.trace
        self.folder = folder
        self.seed = seed
        self._checked: set[bytes] = set()
        self._laid = 0

    def disks(self) -> list[Disk]:
        return list(prefixes(self.trace))

    def prove(self, disk: Disk, rounds: range, result: Result, stop: int = 1 << 62) -> None:
        """All that may be found after these steps; round 0 is the systematic one, the others are random."""
        promised = self.trace.steps[disk.steps].promised if disk.steps < len(self.trace.steps) else len(self.trace.promises) - 1
        for number in rounds:
            for index, fate in enumerate(self.fates(disk, number)):
                if len(result.disks) >= stop or len(result.violations) >= VIOLATIONS_MAX:
                    return
                tree = tree_of(disk, fate)
                found = digest(tree, self.recorded.name.encode())
                if (key := found + promised.to_bytes(4, "little")) in self._checked:
                    continue
                self._checked.add(key)
                result.disks.add(found)
                result.checks += 1
                where = f"{self.recorded.name}/{disk.steps}/{index}" + (f"/{number}" if number else "")
                try:
                    self.check(tree, disk.steps)
                except Exception:
                    result.violations.append((where, traceback.format_exc()))

    def fates(self, disk: Disk, number: int) -> Iterator[Fate]:
        chance = random.Random(f"{self.recorded.name} {disk.steps} {self.seed} {number}")
        return random_fates(disk, chance, RANDOM_A_ROUND) if number else fates(disk, chance)

    def check(self, tree: Tree, steps: int) -> None:
        self._laid += 1
        root = self.folder / f"{os.getpid()}-{self._laid}"
        root.mkdir()
        try:
            lay_down(str(root), tree)
            with looking_in_this_process():
                self.recorded.check(str(root), self.trace.promised(steps))
        finally:
            shutil.rmtree(root)


@contextmanager
def looking_in_this_process() -> Iterator[None]:
    """What recovery has examined by another process, for fear of flipped bits: there are none here, and it takes 100 times as long."""
    with mock.patch.object(state_check, "_examine", lambda path, timeout_s: state_check.Verdict(state_check._read(path), finished=True)):
        yield


@contextmanager
def work_folder() -> Iterator[Path]:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="zsq-prove-", dir=memory) as folder:
        yield Path(folder)


def record(name: str, folder: Path) -> Recorded:
    root = folder / f"record-{name}"
    root.mkdir()
    return WORKLOADS[name].record(name, root)


def prove_some(name: str, folder: Path, count: int, seed: int) -> Result:
    """So many distinct disks of a workload, picked from all over it."""
    prover = Prover(record(name, folder), folder, seed)
    result = Result()
    disks = prover.disks()
    random.Random(f"{name} {seed}").shuffle(disks)
    for number in range(ROUNDS_MAX):
        share = max(1, count // len(disks))
        for disk in disks:
            prover.prove(disk, range(number, number + 1), result, min(count, len(result.disks) + share) if not number else count)
        for disk in disks if not number else []:
            prover.prove(disk, range(1), result, count)
        if len(result.disks) >= count or result.violations:
            break
    return result


# In many processes

_PROVERS: dict[str, tuple[Prover, list[Disk]]] = {}


def _prove_part(name: str, steps: Sequence[int], rounds: range) -> Result:
    prover, disks = _PROVERS[name]
    result = Result()
    for number in steps:
        prover.prove(disks[number], rounds, result)
    return result


def prove_all(count: int, seed: int, jobs: int, names: Sequence[str]) -> Result:
    """Every systematic disk of these workloads; then random ones, until there are `count`."""
    total = Result()
    began = said = time.monotonic()
    with work_folder() as folder:
        for name in names:
            prover = Prover(record(name, folder), folder, seed)
            _PROVERS[name] = (prover, prover.disks())
            print(f"{name}: {len(prover.trace.steps)} steps, {len(prover.trace.promises)} sets of promises", flush=True)
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
            for number in range(ROUNDS_MAX):
                parts: list[Future[Result]] = []
                for name in names:
                    length = len(_PROVERS[name][1])
                    parts += [
                        pool.submit(_prove_part, name, range(at, min(at + 8, length)), range(number, number + 1))
                        for at in range(0, length, 8)
                    ]
                for part in as_completed(parts):
                    total.take(part.result())
                    if time.monotonic() - said > SAY_EVERY_S:
                        said = time.monotonic()
                        print(
                            f"{said - began:7.0f} s: {len(total.disks)} distinct disks, {total.checks} recoveries, "
                            f"{len(total.violations)} violations",
                            flush=True,
                        )
                    if (number and len(total.disks) >= count) or len(total.violations) >= VIOLATIONS_MAX:
                        pool.shutdown(cancel_futures=True)
                        return total
                if len(total.disks) >= count:
                    break
    return total


def replay(where: str, seed: int) -> int:
    name, steps, index, *rounds = where.split("/")
    with work_folder() as folder:
        prover = Prover(record(name, folder), folder, seed)
        disk = prover.disks()[int(steps)]
        fate = next(fate for number, fate in enumerate(prover.fates(disk, int(rounds[0]) if rounds else 0)) if number == int(index))
        for step in prover.trace.steps[max(0, disk.steps - 12) : disk.steps]:
            print("done:   ", prover.trace.say(step))
        for step, kept in zip(disk.pending, fate, strict=True):
            print("pending:", prover.trace.say(step), "->", kept)
        try:
            prover.check(tree_of(disk, fate), disk.steps)
        except Exception:
            traceback.print_exc()
            return 1
    print("all that was promised is there")
    return 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="prove crash-states", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5_000, help="distinct disks at least (default 5000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--workload", action="append", choices=sorted(WORKLOADS), help="only this; may be given again")
    parser.add_argument("--replay", metavar="WHERE", help="workload/steps/number[/round], as a violation says it")
    chosen = parser.parse_args(arguments)
    if chosen.replay:
        return replay(chosen.replay, chosen.seed)
    began = time.monotonic()
    result = prove_all(chosen.count, chosen.seed, chosen.jobs, chosen.workload or list(WORKLOADS))
    for where, what in result.violations[:3]:
        print(f"\n{what}\nreplay: scripts/prove crash-states --seed {chosen.seed} --replay {where}", file=sys.stderr)
    print(
        f"{len(result.disks)} distinct disks after a power cut, {result.checks} recoveries on them: "
        f"{len(result.violations)} violations; {time.monotonic() - began:.0f} s, seed {chosen.seed}, {chosen.jobs} jobs, "
        f"Python {platform.python_version()} on {platform.machine()}"
    )
    return 1 if result.violations or len(result.disks) < chosen.count else 0
