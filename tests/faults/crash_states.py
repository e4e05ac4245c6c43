"""`scripts/prove crash-states`: make the disks that a power cut may leave after each step of each
workload, start on each of them, and check all promises.

    scripts/prove crash-states --count 100000 --seed 1 --jobs 2
    scripts/prove crash-states --replay groups/167/15

The first command tries 100,000 distinct disks, systematic ones first, then random ones. The second
one tries one of them again and shows the changes that were pending.

A disk is counted once, even if several ways lead to it. If a disk may be found with several sets of
promises, it is checked once with each of them.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Final

from support.faulty_files import FaultyFiles, keep_none

from .recording import RecordingFiles
from .same_process import looking_in_this_process
from .states import (
    WHOLE,
    Disk,
    Fate,
    Tree,
    continued,
    digest,
    fates,
    lay_down,
    prefixes,
    random_fates,
    tree_of,
)
from .subject import Recorded, recorder
from .workloads import WORKLOADS, workload

PR_SET_PDEATHSIG: Final = 1
NOW: Final = "now-"
ALL: Final = 1 << 62
AGAIN_EACH: Final = 2  # one of this many disks loses its power again after its recovery
# Random fates that are tried after each step, in each round after the first.
RANDOM_A_ROUND: Final = 40
ROUNDS_MAX: Final = 1_000
SAY_EVERY_S: Final = 10.0
VIOLATIONS_MAX: Final = 20


@dataclass(slots=True)
class Result:
    """The results of many checks. `disks`: digests of the distinct disks. `violations`: (where,
    what) of the first violations.
    """

    disks: set[bytes] = field(default_factory=set)
    nested: set[bytes] = field(default_factory=set)
    """Disks left by a crash during the recovery from a crash."""
    checks: int = 0
    violations: list[tuple[str, str]] = field(default_factory=list)

    def take(self, other: Result) -> None:
        self.disks |= other.disks
        self.nested |= other.nested
        self.checks += other.checks
        self.violations += other.violations

    def sentence(self) -> str:
        return (
            f"{len(self.disks)} distinct disks after a power cut, {len(self.nested)} after a "
            "crash in the recovery of one, "
            f"{self.checks} recoveries checked, {len(self.violations)} violations"
        )


class Prover:
    """Checks disks of one recorded workload. `folder`: where the disks are written."""

    def __init__(self, recorded: Recorded, folder: Path, seed: int = 1) -> None:
        self.recorded = recorded
        self.trace = recorded.trace
        self.folder = folder
        self.seed = seed
        self.salt = recorded.name.partition("/")[0].encode()
        """Equal disks of two workloads count as two."""
        self._checked: set[bytes] = set()
        self._laid = 0

    def disks(self) -> list[Disk]:
        return list(prefixes(self.trace))

    def prove(self, disk: Disk, number: int, result: Result, stop: int = ALL) -> None:
        """Check all disks that may be found after these steps. If only `stop` disks are to be
        counted in all, choose some of every kind.

        Round 0 is the systematic one, the other rounds are random.
        """
        counted = self.counted(result)
        promised = (
            self.trace.steps[disk.steps].promised
            if disk.steps < len(self.trace.steps)
            else len(self.trace.promises) - 1
        )
        numbered = enumerate(self.fates(disk, number))
        for index, fate in numbered if stop == ALL else mixed(numbered, random.Random(disk.steps)):
            if len(counted) >= stop or len(result.violations) >= VIOLATIONS_MAX:
                return
            tree = tree_of(disk, fate)
            found = digest(tree, self.salt)
            if (key := found + promised.to_bytes(4, "little")) in self._checked:
                continue
            self._checked.add(key)
            counted.add(found)
            result.checks += 1
            where = f"{self.recorded.name}/{disk.steps}/{index}" + (f"/{number}" if number else "")
            self._note(where)
            try:
                self.check(tree, disk.steps, again=found[0] % AGAIN_EACH == 0)
            except Exception:
                result.violations.append((where, traceback.format_exc()))

    def _note(self, where: str) -> None:
        """Record which disk is tried now, so that it is known if this process dies. LMDB may crash
        (SIGBUS) when a page is missing.
        """
        (self.folder / f"{NOW}{os.getpid()}").write_text(where)

    def fates(self, disk: Disk, number: int) -> Iterator[Fate]:
        chance = random.Random(f"{self.recorded.name} {disk.steps} {self.seed} {number}")
        return random_fates(disk, chance, RANDOM_A_ROUND) if number else fates(disk, chance)

    def counted(self, result: Result) -> set[bytes]:
        return result.disks

    def check(self, tree: Tree, steps: int, *, again: bool) -> None:
        with self.laid(tree) as root, looking_in_this_process():
            subject = self.recorded.revive(FaultyFiles(str(root)), self.trace.promised(steps))
            try:
                subject.recover()
                subject.live()
                if again:
                    subject.abandon()
                    subject.files.crash(keep_none)
                    subject.recover()
                    subject.verify()
            finally:
                subject.abandon()

    def nested(self, disk: Disk, fate: Fate, where: str) -> Prover:
        """Record the recovery on this disk, so that it can be interrupted too. If all pending
        changes reached the disk, only the process has died: the next process sees what it wrote
        without a sync, but that may still be lost.
        """
        with self.laid(tree_of(disk, fate)) as root, looking_in_this_process():
            subject = self.recorded.revive(
                RecordingFiles(str(root)), self.trace.promised(disk.steps)
            )
            try:
                with recorder(subject).recording(subject.promise) as trace:
                    subject.recover()
                    trace.recovered = len(trace.steps)
                    subject.live()
            finally:
                subject.abandon()
        if all(kept == WHOLE for kept in fate):
            trace = continued(disk, trace)
        return NestedProver(replace(self.recorded, name=where, trace=trace), self.folder, self.seed)

    @contextmanager
    def laid(self, tree: Tree) -> Iterator[Path]:
        self._laid += 1
        root = self.folder / f"{os.getpid()}-{id(self)}-{self._laid}"
        root.mkdir()
        try:
            lay_down(str(root), tree)
            yield root
        finally:
            shutil.rmtree(root)


def mixed(
    numbered: Iterable[tuple[int, Fate]], chance: random.Random
) -> Iterator[tuple[int, Fate]]:
    """Mix the fates: two in which each change is lost or kept as a whole, then one with a part of a
    change. There are many more fates with a part of a change.
    """
    whole: list[tuple[int, Fate]] = []
    torn: list[tuple[int, Fate]] = []
    for one in numbered:
        (whole if all(kept is None or kept.stop == WHOLE.stop for kept in one[1]) else torn).append(
            one
        )
    chance.shuffle(whole)
    chance.shuffle(torn)
    while whole or torn:
        yield from (some.pop() for some in (whole, whole, torn) if some)


class NestedProver(Prover):
    def counted(self, result: Result) -> set[bytes]:
        return result.nested


@contextmanager
def work_folder() -> Iterator[Path]:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="zsq-prove-", dir=memory) as folder:
        yield Path(folder)


def record(name: str, folder: Path) -> Recorded:
    root = folder / f"record-{name}"
    root.mkdir()
    with looking_in_this_process():
        return workload(name).record(name, root)


def prove_some(name: str, folder: Path, count: int, nested: int, seed: int) -> Result:
    """Check `count` different disks after a power cut, spread over the whole workload. Then check
    `nested` disks after a second crash, during recovery.
    """
    prover = Prover(record(name, folder), folder, seed)
    result = Result()
    disks = prover.disks()
    random.Random(f"{name} {seed}").shuffle(disks)
    share = 1 + count // len(disks)
    # In the first half of the turns, try a share of the disks after each step. In the second half,
    # try as many as are still needed.
    for at in range(2 * len(disks)):
        disk = disks[at % len(disks)]
        prover.prove(
            disk, 0, result, min(count, len(result.disks) + share) if at < len(disks) else count
        )
    for turn in range(1, ROUNDS_MAX):
        if len(result.nested) >= nested or result.violations:
            break
        _prove_nested(prover, disks, turn, result, min(nested, len(result.nested) + 25))
    return result


def _prove_nested(
    prover: Prover, disks: Sequence[Disk], turn: int, result: Result, stop: int = ALL
) -> None:
    """Interrupt the recovery on one of these disks. In every second turn, the crash before that
    recovery ended only the process, not the machine.
    """
    chance = random.Random(f"{prover.recorded.name} {prover.seed} nested {turn}")
    disk = chance.choice(disks)
    found = list(prover.fates(disk, 0))
    index = chance.randrange(len(found)) if turn % 2 else 0
    where = f"{prover.recorded.name}/{disk.steps}/{index}+"
    try:
        inner = prover.nested(disk, found[index], where)
    except Exception:
        result.violations.append(
            (f"{prover.recorded.name}/{disk.steps}/{index}", traceback.format_exc())
        )
        return
    states = inner.disks()[: inner.trace.recovered + 1]
    chance.shuffle(states)
    share = 1 + max(0, stop - len(result.nested)) // len(states)
    for state in states:
        inner.prove(
            state, 0, result, stop if stop == ALL else min(stop, len(result.nested) + share)
        )


# In many processes

_PROVERS: dict[str, tuple[Prover, list[Disk]]] = {}


def _prove_part(name: str, steps: Sequence[int], number: int) -> Result:
    prover, disks = _PROVERS[name]
    result = Result()
    for step in steps:
        prover.prove(disks[step], number, result)
    return result


def _prove_turns(name: str, turns: Sequence[int]) -> Result:
    result = Result()
    for turn in turns:
        _prove_nested(*_PROVERS[name], turn, result)
    return result


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


Futures = list[Future[Result]]


class Progress:
    """Adds up the results of the processes, and prints the sum from time to time."""

    def __init__(self) -> None:
        self.total = Result()
        self.began = self._said = time.monotonic()

    def take(self, parts: Sequence[Future[Result]], enough: Callable[[Result], bool]) -> bool:
        """Add results. Return True if there are enough, so that the remaining parts are not
        needed.
        """
        for part in as_completed(parts):
            if part.cancelled():
                continue
            total = self.total
            total.take(part.result())
            if time.monotonic() - self._said > SAY_EVERY_S:
                self._said = time.monotonic()
                seconds = self._said - self.began
                print(f"{seconds:7.0f} s: {total.sentence()}", flush=True)
            if enough(total) or len(total.violations) >= VIOLATIONS_MAX:
                for other in parts:
                    other.cancel()
        return enough(self.total) or len(self.total.violations) >= VIOLATIONS_MAX


def prove_all(count: int, nested: int, seed: int, jobs: int, names: Sequence[str]) -> Result:
    """Try every systematic disk of these workloads, then crashes in recovery, then random disks
    until there are as many as requested.
    """
    progress = Progress()
    with work_folder() as folder:
        for name in names:
            prover = Prover(record(name, folder), folder, seed)
            _PROVERS[name] = (prover, prover.disks())
            print(
                (
                    f"{name}: {len(prover.trace.steps)} steps, {len(prover.trace.promises)} "
                    "sets of "
                    "promises"
                ),
                flush=True,
            )

        try:
            _prove_rounds(progress, count, nested, jobs, names)
        except BrokenProcessPool:
            where = [path.read_text() for path in folder.glob(f"{NOW}*")]
            progress.total.violations += [
                (one, "a process died, of this or of what another one looked at") for one in where
            ]
    return progress.total


def _prove_rounds(
    progress: Progress, count: int, nested: int, jobs: int, names: Sequence[str]
) -> None:
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork"), _die_with_parent) as pool:

        def parts(number: int) -> Futures:
            return [
                pool.submit(
                    _prove_part, name, range(at, min(at + 8, len(_PROVERS[name][1]))), number
                )
                for name in names
                for at in range(0, len(_PROVERS[name][1]), 8)
            ]

        try:
            _rounds(
                progress,
                count,
                nested,
                parts,
                lambda turns: [pool.submit(_prove_turns, name, turns) for name in names],
            )
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _rounds(
    progress: Progress,
    count: int,
    nested: int,
    parts: Callable[[int], Futures],
    turns: Callable[[Sequence[int]], Futures],
) -> None:
    if progress.take(parts(0), lambda total: False):
        return
    for turn in range(0, ROUNDS_MAX if nested else 0, 4):
        if progress.take(turns(range(turn, turn + 4)), lambda total: len(total.nested) >= nested):
            break
    for number in range(1, ROUNDS_MAX):
        if progress.take(parts(number), lambda total: len(total.disks) >= count):
            break


def replay(where: str, seed: int) -> int:
    outer, _, inner = where.partition("+/")
    with work_folder() as folder:
        name, *numbers = outer.split("/")
        prover = Prover(record(name, folder), folder, seed)
        disk, fate = _found(prover, numbers)
        if inner:
            print(
                "the process died here"
                if all(kept == WHOLE for kept in fate)
                else "the power was lost here",
                "and then in recovery:",
            )
            _tell(prover, disk, fate)
            prover = prover.nested(disk, fate, f"{outer}+")
            disk, fate = _found(prover, inner.split("/"))
        _tell(prover, disk, fate)
        try:
            prover.check(tree_of(disk, fate), disk.steps, again=True)
        except Exception:
            traceback.print_exc()
            return 1
    print("all that was promised is there")
    return 0


def _found(prover: Prover, numbers: Sequence[str]) -> tuple[Disk, Fate]:
    """Find a disk by its steps, its number, and optionally its round."""
    disk = prover.disks()[int(numbers[0])]
    return disk, next(
        islice(
            prover.fates(disk, int(numbers[2]) if len(numbers) > 2 else 0), int(numbers[1]), None
        )
    )


def _tell(prover: Prover, disk: Disk, fate: Fate) -> None:
    for step in prover.trace.steps[max(0, disk.steps - 12) : disk.steps]:
        print("done:   ", prover.trace.say(step))
    for step, kept in zip(disk.pending, fate, strict=True):
        print(
            "pending:",
            prover.trace.say(step),
            "->",
            "lost" if kept is None else "whole" if kept == WHOLE else kept,
        )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="prove crash-states",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--count", type=int, default=5_000, help="distinct disks at least (default 5000)"
    )
    parser.add_argument(
        "--nested",
        type=int,
        help="distinct disks of a crash in recovery at least (default a tenth of the others)",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--workload",
        action="append",
        choices=sorted(WORKLOADS),
        help="only this; may be given again",
    )
    parser.add_argument(
        "--wild", type=int, default=12, help="so many workloads more, made of the seed"
    )
    parser.add_argument(
        "--replay", metavar="WHERE", help="workload/steps/number[/round], as a violation says it"
    )
    chosen = parser.parse_args(arguments)
    if chosen.replay:
        return replay(chosen.replay, chosen.seed)
    # Let SIGTERM raise KeyboardInterrupt, so that the folders are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    nested = chosen.count // 10 if chosen.nested is None else chosen.nested
    names = chosen.workload or [
        *WORKLOADS,
        *(f"wild-{chosen.seed}-{number}" for number in range(chosen.wild)),
    ]
    result = prove_all(chosen.count, nested, chosen.seed, chosen.jobs, names)
    for where, what in result.violations[:3]:
        print(
            f"\n{what}\nreplay: scripts/prove crash-states --seed {chosen.seed} --replay {where}",
            file=sys.stderr,
        )
    print(
        f"{result.sentence()}; {time.monotonic() - began:.0f} s, seed {chosen.seed}, "
        f"{chosen.jobs} jobs, "
        f"Python {platform.python_version()} on {platform.machine()}"
    )
    enough = len(result.disks) >= chosen.count and len(result.nested) >= nested
    return 0 if enough and not result.violations else 1
