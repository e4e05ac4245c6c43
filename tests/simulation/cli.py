"""Plays seeds, each in a separate process, prints the results, and says how to replay a failure."""

from __future__ import annotations

import argparse
import dataclasses
import faulthandler
import gc
import json
import os
import platform
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any, Final

from . import broker, disk, patches, scenario
from .broken import DEFECTS
from .nemesis import KINDS
from .run import Result, digest, play, work_folder

SEED_S_MAX: Final = 120.0  # seconds of real time: a seed that takes longer counts as hanging
TELL_S: Final = 10.0
TWICE: Final = 20  # every 20th seed is played twice, and both runs must be the same


class Playing:
    """A child process that plays one seed, and the pipe through which it sends the result."""

    def __init__(self, seed: int, again: bool) -> None:
        self.seed, self.again = seed, again
        self.began = time.monotonic()
        self._said = b""
        self._root = work_folder()
        reader, writer = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(reader)
                os.write(writer, json.dumps(dataclasses.asdict(play(seed, self._root))).encode())
                status = 0
            except BaseException:  # an error of the simulator itself: nothing else would report it
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        os.close(writer)
        self.fd = reader

    def read(self) -> bool:
        """Read from the pipe. Return True at its end."""
        data = os.read(self.fd, 65536)
        self._said += data
        return not data

    def end(self) -> Result:
        os.close(self.fd)
        late = time.monotonic() - self.began > SEED_S_MAX
        if not self._said and late:
            os.kill(self.pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        shutil.rmtree(self._root, ignore_errors=True)
        if not self._said:
            why = (
                f"no result within {SEED_S_MAX:g} s"
                if late
                else f"the simulator itself failed: exit code {status}"
            )
            return Result(self.seed, [why], "", 0, 0.0)
        return Result(**json.loads(self._said))


def play_many(seeds: Iterator[tuple[int, bool]], jobs: int) -> Iterator[tuple[Result, bool]]:
    """Yield results as they arrive. The second value is True if the seed was played for the second
    time.
    """
    playing: dict[int, Playing] = {}
    more = True
    try:
        while more or playing:
            while more and len(playing) < jobs:
                try:
                    one = Playing(*next(seeds))
                except StopIteration:
                    more = False
                    break
                playing[one.fd] = one
            for fd in select.select(list(playing), [], [], 1.0)[0]:
                if playing[fd].read():
                    yield playing.pop(fd).end(), False
            for fd, one in list(playing.items()):
                if time.monotonic() - one.began > SEED_S_MAX:
                    yield playing.pop(fd).end(), one.again
    finally:
        for one in playing.values():
            os.kill(one.pid, signal.SIGKILL)
            one.end()


def _order(first: int, count: int, until: float) -> Iterator[tuple[int, bool]]:
    seed = first
    while (seed < first + count if count else True) and time.monotonic() < until:
        yield seed, False
        if seed % TWICE == 0:
            yield seed, True
        seed += 1


class Tally:
    """The sum of all results."""

    def __init__(self) -> None:
        self.results: dict[int, Result] = {}
        self.failures: list[Result] = []
        self.twice = 0
        self.counts: dict[str, int] = {}
        self.began = self._told = time.monotonic()

    def take(self, result: Result) -> None:
        before = self.results.get(result.seed)
        if before is not None:
            self.twice += 1
            if before.log_hash != result.log_hash:
                result.violations.append(
                    f"two runs of one seed differ: {before.log_hash} and {result.log_hash}"
                )
        else:
            for name, number in result.counts.items():
                self.counts[name] = self.counts.get(name, 0) + number
        self.results[result.seed] = result
        if result.violations:
            self.failures.append(result)
            tell_failure(result)
        now = time.monotonic()
        if now - self._told > TELL_S:
            self._told = now
            print(
                (
                    f"{len(self.results):,} seeds in {now - self.began:.0f} s, "
                    f"{len(self.failures)} "
                    "failed"
                ),
                flush=True,
            )

    def summary(self) -> None:
        seconds = time.monotonic() - self.began
        seeds = sorted(self.results)
        simulated = sum(one.simulated_s for one in self.results.values())
        events = sum(one.events for one in self.results.values())
        first, last = (seeds[0], seeds[-1]) if seeds else (0, 0)
        machine = f"{os.cpu_count()} cores, Python {platform.python_version()}"
        print(f"\n{len(seeds):,} seeds ({first} to {last}) in {seconds:.0f} s on {machine}")
        print(
            f"  simulated: {simulated / 3600:.2f} hours, {events:,} events; {self.twice} seeds "
            "played twice went alike"
        )
        print(
            "  " + ", ".join(f"{name} {number:,}" for name, number in sorted(self.counts.items()))
        )
        print(f"  digest of all logs: {digest([self.results[seed] for seed in seeds])}")
        print(
            (
                f"  broken promises: {sum(len(one.violations) for one in self.failures)} in "
                f"{len(self.failures)} seeds"
            ),
            flush=True,
        )


def tell_failure(result: Result) -> None:
    print(f"seed {result.seed} FAILED:")
    for text in result.violations[:5]:
        print(f"    {text}")
    only = f" --faults {','.join(scenario.ONLY)}" if scenario.ONLY else ""
    only += " --moving" if scenario.MOVING >= 1 else ""
    only += " --sharing" if scenario.SHARING else ""
    only += " --urgent" if scenario.URGENT else ""
    only += " --attributes" if scenario.ATTRIBUTES >= 1 else ""
    if scenario.STANDBYS >= 1:
        only += " --standby"
    elif scenario.ARCHIVED >= 1:
        only += " --archived"
    print(f"  replay: ./scripts/simulate.py --seed {result.seed}{only} -v", flush=True)


def _arguments(arguments: list[str]) -> Any:
    parser = argparse.ArgumentParser(prog="simulate.py", description=__doc__)
    parser.add_argument(
        "--seeds",
        type=int,
        default=0,
        help="how many (default 200, or as many as fit into --minutes)",
    )
    parser.add_argument("--first", type=int, default=1, help="the first of them (default 1)")
    parser.add_argument("--seed", type=int, help="play this one only")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="with --seed: print all that happens"
    )
    parser.add_argument(
        "--minutes", type=float, default=0.0, help="stop beginning new ones after so long"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        help="processes at a time (default: one a core)",
    )
    parser.add_argument(
        "--faults", default="", help="only these, comma-separated; of " + ", ".join(KINDS)
    )
    parser.add_argument(
        "--moving",
        action="store_true",
        help="in each seed a client moves channels by seek all the time",
    )
    parser.add_argument(
        "--sharing",
        action="store_true",
        help="in each seed quiet topics share processes, and topics move all the time",
    )
    parser.add_argument(
        "--urgent",
        action="store_true",
        help="channels without other settings have priorities, and messages use them",
    )
    parser.add_argument(
        "--attributes",
        action="store_true",
        help="in each seed a topic has messages with ids, lifetimes and revoke keys",
    )
    parser.add_argument(
        "--archived",
        action="store_true",
        help="in each seed log files are archived in a bucket, and leave the disk at once",
    )
    parser.add_argument(
        "--standby",
        action="store_true",
        help="in each seed with faults the broker ships to a bucket, and a standby follows it",
    )
    parser.add_argument(
        "--failures", type=int, default=10, help="stop after so many seeds that failed (default 10)"
    )
    parser.add_argument(
        "--broken", metavar="DEFECT", help="play with a deliberate defect; a wrong name lists them"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    given = _arguments(arguments)
    if given.faults:
        scenario.ONLY = tuple(given.faults.split(","))
    elif given.broken:
        scenario.ONLY = DEFECTS[given.broken].faults
    if given.moving or (given.broken and DEFECTS[given.broken].moving):
        scenario.MOVING = 1.0
    if given.sharing:
        scenario.SHARING, scenario.MOVED = True, scenario.MOVED_OFTEN
    defect = DEFECTS[given.broken] if given.broken else None
    if given.attributes or (defect is not None and defect.attributes):
        scenario.ATTRIBUTES = 1.0
    elif defect is not None:
        # So the seeds that find the other defects remain.
        scenario.ATTRIBUTES = scenario.CHOOSY = 0.0
    scenario.URGENT = given.urgent or (defect is not None and defect.urgent)
    stands_by = given.standby or (defect is not None and defect.standby)
    ships = stands_by or (defect is not None and defect.ships)
    if given.archived or ships or (defect is not None and defect.archived):
        scenario.ARCHIVED = 1.0
    scenario.SHIPPING = ships
    if stands_by:
        scenario.STANDBYS = 1.0
    patches.after_import()
    broker.prepare()
    disk.watch_lmdb()
    disk.check_in_process()
    if given.seed is not None:
        root = work_folder()
        result = play(given.seed, root, print if given.verbose else None)
        shutil.rmtree(root, ignore_errors=True)
        print(
            f"seed {result.seed}: {result.simulated_s:.1f} s simulated, {result.events} events, "
            f"log {result.log_hash}, {result.counts}"
        )
        if result.violations:
            tell_failure(result)
        sys.stdout.flush()
        # This ends the process at once: the greenlets of dead processes must not run again.
        os._exit(bool(result.violations))
    faulthandler.enable()  # a child that dies of a signal then prints its stack
    gc.collect()
    patches.real("gc.freeze")()
    tally = Tally()
    until = time.monotonic() + (given.minutes * 60 if given.minutes else 1e9)
    count = given.seeds or (0 if given.minutes else 200)
    for result, _ in play_many(_order(given.first, count, until), given.jobs):
        tally.take(result)
        if len(tally.failures) >= given.failures:
            break
    tally.summary()
    return 1 if tally.failures else 0
