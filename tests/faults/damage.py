"""`scripts/prove damage`: flip bits of files, cut files, and swap, restore and remove parts of
them. All damage must be harmless, or detected and reported.

    scripts/prove damage --count 100000
    scripts/prove damage --replay '1|flip|00000000000000000000.chunk|1234' --keep

The first command flips 100,000 bits in files of the log, and tries the other kinds of damage too.
The second one tries one case again.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

from .damage_check import Expected, examine, expected, need
from .damage_fsck import compare, opinion, repair
from .damage_kinds import FOREIGN, LMDB_FILES, Case, damaged, in_lmdb, may_refuse, structured
from .damage_lives import KILLED, RICH, SCARRED, TINY, log_files, make
from .damage_lmdb import forking, lives
from .damage_specimens import Bench, Specimen, Tree

BASICS: Final = (TINY, RICH, KILLED, SCARRED)
FIRST_RANDOM: Final = 4
FLIPS_A_SPECIMEN: Final = 20_000
TELL_S: Final = 10.0
EVERY: Final = 16
# Number of a try modulo EVERY -> what else is tried: a repair, fsck, or (again) two more starts.
ALSO: Final = {
    0: "repair",
    4: "fsck",
    8: "again",
    12: "fsck",
}
MEMORY: Final = "/dev/shm"


class Workshop:
    """The place where specimens are made and damaged. Each process has one."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._specimens: dict[int, Specimen] = {}
        self.bench = Bench(f"{folder}/bench")

    def specimen(self, number: int) -> Specimen:
        if number not in self._specimens:
            self._specimens[number] = make(number, f"{self._folder}/making")
            FOREIGN[number] = make(number, f"{self._folder}/making", foreign=True)
        return self._specimens[number]

    def run(self, case: Case, also: str = "") -> str:
        """Try one case, and return the outcome as a word. `also`: what else is tried, a word of
        ALSO.

        Raise `ViolationError`, or whatever error the product raises.
        """
        specimen = self.specimen(case.specimen)
        tree = damaged(specimen, case)
        want = expected(specimen, tree)
        want.may_refuse = may_refuse(specimen, case)
        self.bench.lay(tree)
        if in_lmdb(case.path):
            return self._run_lmdb(specimen, tree, want)
        sound = not case.path.startswith("delayed/")
        said = (
            opinion(specimen, tree, self.bench.directory, sound=sound)
            if also in {"fsck", "repair"}
            else None
        )
        seen = examine(specimen, self.bench.directory, want, again=also == "again")
        if said is not None:
            compare(said, seen, want)
            if also == "repair":
                repair(specimen, tree, self.bench, want, seen, sound=sound)
        if seen.refused:
            return "refused"
        return "lost" if seen.lost else "told" if seen.alarms else "harmless"

    def _run_lmdb(self, specimen: Specimen, tree: Tree, want: Expected) -> str:
        came = lives(specimen, self.bench.directory, want)
        # Fsck runs only after these outcomes, because it writes to a copy of the LMDB environment.
        # Running it each time would be most of the work.
        if came in {"rebuilt", "killed"}:
            self.bench.lay(tree)
            need(
                opinion(specimen, tree, self.bench.directory, sound=False).damage,
                f"{came}, and fsck finds nothing",
            )
        return came


def spread(total: int, count: int) -> Iterator[int]:
    """Yield `count` numbers below `total`, evenly spaced, or all of them if there are no more."""
    if count >= total:
        yield from range(total)
        return
    yield from (number * total // count for number in range(count))


def flips(shop: Workshop, count: int, seed: int) -> Iterator[Case]:
    """Yield every bit of the chunks of the tiny specimen, if `count` allows it. Then yield bits
    evenly from all files of all specimens, and of random ones too when `count` is large.
    """
    tiny = shop.specimen(TINY)
    first = [(path, len(tiny.tree[path]) * 8) for path in tiny.chunks()]
    chosen = _spread(TINY, first, count)
    yield from chosen
    count -= len(chosen)
    numbers = [
        *BASICS,
        *range(FIRST_RANDOM + seed * 1000, FIRST_RANDOM + seed * 1000 + count // FLIPS_A_SPECIMEN),
    ]
    for turn, number in enumerate(numbers):
        specimen = shop.specimen(number)
        files = [
            (path, len(specimen.tree[path]) * 8)
            for path in log_files(specimen)
            if number != TINY or path not in tiny.chunks()
        ]
        chosen = _spread(number, files, count // (len(numbers) - turn))
        yield from chosen
        count -= len(chosen)


def _spread(number: int, files: Sequence[tuple[str, int]], count: int) -> list[Case]:
    """Return bits chosen evenly from these files, as if they were one file."""
    found = []
    for at in spread(sum(bits for _, bits in files), count):
        for path, bits in files:
            if at < bits:
                found.append(Case(number, "flip", path, (at,)))
                break
            at -= bits
    return found


def lmdb_flips(shop: Workshop, count: int, seed: int) -> Iterator[Case]:
    """Yield bits in LMDB's files. Two thirds of them are in a state store, the others in the
    delayed messages. Some bits of every page are chosen. Another seed chooses other bits.
    """
    numbers = (RICH, KILLED, SCARRED)
    for turn, number in enumerate(numbers):
        specimen = shop.specimen(number)
        for path, share in zip(LMDB_FILES, (2, 1), strict=True):
            bits = len(specimen.tree[path]) * 8
            wanted = count * share // (3 * len(numbers))
            for at in spread(bits, wanted):
                yield Case(number, "flip", path, ((at + seed * 7919 + turn) % bits,))


def others(shop: Workshop, count: int, seed: int) -> Iterator[Case]:
    """Yield cases of all other kinds of damage, evenly."""
    numbers = [*BASICS, *([FIRST_RANDOM + seed * 1000] if count > FLIPS_A_SPECIMEN else [])]
    for turn, number in enumerate(numbers):
        cases = list(structured(shop.specimen(number)))
        by_kind: dict[str, list[Case]] = {}
        for case in cases:
            by_kind.setdefault(case.kind, []).append(case)
        share = count // (len(numbers) - turn)
        for left, made in zip(
            range(len(by_kind), 0, -1), sorted(by_kind.values(), key=len), strict=True
        ):
            picked = [made[at] for at in spread(len(made), share // left)]
            yield from picked
            share -= len(picked)
            count -= len(picked)


def plan(shop: Workshop, count: int, more: int, lmdb: int, seed: int) -> Iterator[Case]:
    yield from flips(shop, count, seed)
    yield from others(shop, more, seed)
    yield from lmdb_flips(shop, lmdb, seed)


def work(arguments: argparse.Namespace) -> int:
    """Run as a child process: try every n-th case, and print lines of JSON."""
    number, jobs = arguments.worker
    found: collections.Counter[str] = collections.Counter()
    with (
        tempfile.TemporaryDirectory(
            prefix="zsq-damage-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None
        ) as folder,
        forking(),
    ):
        shop = Workshop(folder)
        told = time.monotonic()
        for turn, case in enumerate(
            islice(
                plan(shop, arguments.count, arguments.more, arguments.lmdb, arguments.seed),
                number,
                None,
                jobs,
            )
        ):
            kind = f"{case.kind} in LMDB" if in_lmdb(case.path) else case.kind
            try:
                found[f"{kind} {shop.run(case, ALSO.get(turn % EVERY, ''))}"] += 1
            except Exception as error:  # any error of the product is a violation
                found[f"{kind} VIOLATION"] += 1
                print(
                    json.dumps(
                        {"violation": case.text(), "why": f"{type(error).__name__}: {error}"[:500]}
                    ),
                    flush=True,
                )
            if time.monotonic() - told > 1:
                told = time.monotonic()
                print(json.dumps({"found": found}), flush=True)
    print(json.dumps({"found": found}), flush=True)
    return 0


class Summary:
    """The results that all child processes have reported so far."""

    def __init__(self) -> None:
        self.found: dict[int, dict[str, int]] = {}
        self.violations: list[tuple[str, str]] = []

    def take(self, child: int, line: str) -> None:
        said: dict[str, Any] = json.loads(line)
        if "violation" in said:
            self.violations.append((said["violation"], said["why"]))
        else:
            self.found[child] = said["found"]

    def total(self, kind: str = "") -> collections.Counter[str]:
        """Count the cases by their outcome."""
        found: collections.Counter[str] = collections.Counter()
        for counts in self.found.values():
            for name, count in counts.items():
                if name.startswith(kind):
                    found[name.rpartition(" ")[2]] += count
        return found

    def kinds(self) -> list[str]:
        return sorted(
            {name.rpartition(" ")[0] for counts in self.found.values() for name in counts}
        )


def run(count: int, more: int, lmdb: int, seed: int, jobs: int, out: IO[str]) -> Summary:
    """Try the cases in `jobs` child processes."""
    summary = Summary()
    command = [
        sys.executable,
        "-P",
        "-m",
        "faults",
        "damage",
        "--count",
        str(count),
        "--more",
        str(more),
        "--seed",
        str(seed),
    ]
    command += ["--lmdb", str(lmdb)]
    tests = str(Path(__file__).resolve().parents[1])
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (tests, os.environ.get("PYTHONPATH")))),
    }
    children = [
        subprocess.Popen(
            [*command, "--worker", str(number), str(jobs)],
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        for number in range(jobs)
    ]
    try:
        _follow(children, summary, out)
    finally:
        for child in children:
            child.kill()
            child.communicate()
    failed = [child.returncode for child in children if child.returncode]
    if failed:
        summary.violations.append(("", f"children ended with {failed}"))
    return summary


def _follow(children: Sequence[subprocess.Popen[str]], summary: Summary, out: IO[str]) -> None:
    import selectors

    told = time.monotonic()
    with selectors.DefaultSelector() as selector:
        for number, child in enumerate(children):
            assert child.stdout is not None
            selector.register(child.stdout, selectors.EVENT_READ, number)
        while selector.get_map():
            for key, _ in selector.select(TELL_S):
                line = key.fileobj.readline()  # type: ignore[union-attr]
                if line:
                    summary.take(key.data, line)
                else:
                    selector.unregister(key.fileobj)
            if time.monotonic() - told > TELL_S:
                told = time.monotonic()
                print(
                    f"{sum(summary.total().values())} tried, {len(summary.violations)} violations",
                    file=out,
                    flush=True,
                )
    for child in children:
        child.wait()


def report(summary: Summary, seconds: float, seed: int, jobs: int, out: IO[str]) -> None:
    for kind in summary.kinds():
        found = summary.total(kind + " ")
        said = ", ".join(f"{count} {what}" for what, count in sorted(found.items()))
        print(f"{kind}: {sum(found.values())} tried: {said}", file=out)
    print(
        f"damage: {sum(summary.total().values())} tried, {len(summary.violations)} violations, "
        f"{seconds:.0f} s, seed {seed}, {jobs} jobs, "
        f"{platform.machine()} with {os.cpu_count()} cores",
        file=out,
    )
    for case, why in summary.violations[:20]:
        print(f"VIOLATION {why}\n  again: scripts/prove damage --replay '{case}'", file=out)


def replay(text: str, keep: str) -> int:
    """Try one case, and print everything that is known about it."""
    folder = keep or tempfile.mkdtemp(prefix="zsq-damage-")
    try:
        with forking():
            shop = Workshop(folder)
            for also in ("again", "repair"):
                print(shop.run(Case.of(text), also))
        return 0
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/prove damage",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--count", type=int, default=10_000, help="flipped bits in files that are not LMDB's"
    )
    parser.add_argument(
        "--more", type=int, default=-1, help="damage of other kinds (a fifth of --count)"
    )
    parser.add_argument(
        "--lmdb", type=int, default=-1, help="flipped bits in LMDB's files (an eighth of --count)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the larger, random stores")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--replay", default="", help="one case, as a violation names it")
    parser.add_argument("--keep", default="", help="a folder for the damaged files of a replay")
    parser.add_argument("--worker", type=int, nargs=2, default=None, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.more < 0:
        given.more = given.count // 5
    if given.lmdb < 0:
        given.lmdb = given.count // 8
    if given.replay:
        return replay(given.replay, given.keep and str(Path(given.keep).resolve()))
    if given.worker:
        return work(given)
    began = time.monotonic()
    summary = run(given.count, given.more, given.lmdb, given.seed, given.jobs, sys.stdout)
    report(summary, time.monotonic() - began, given.seed, given.jobs, sys.stdout)
    return 1 if summary.violations else 0
