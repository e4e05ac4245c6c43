"""`scripts/mutate`: mutation tests. Remove each line that keeps a promise (such as a sync or a
check), one at a time, and find out whether a test fails.

A site is a place in the source with such a line. Detectors (tests/mutate/detectors.py) find the
sites: every sync, folder sync, truncation, rename, lock and kill, every comparison of checksums,
identities, leases and sequences, and every limit. They search storage/, actors/, transport/ and
apps/, except the code that measures, shows or advises. First each test runs once with nothing
removed, and the sites that it executes are recorded in the folder. Then each site is switched off
in turn. The tests that execute it run until one fails: first those with a similar name, then the
fastest. That test must pass again when nothing is removed. Answers are stored at once, so --resume
can continue a run.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from mutate.sites import Site, sources, switched
from mutate.tree import ROOT, SITES_NAME, Tree

_NEAR_S: Final = 0.5  # seconds: a faster test with a similar name runs before all others
# Slower tests are run file by file, so that the tests of a file can share a broker.
_SLOW_S: Final = 2.0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        "scripts/mutate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="the sites, and nothing else")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="sites of this class, or with this in `path:line` or code",
    )
    parser.add_argument(
        "--tests",
        action="append",
        default=[],
        metavar="TEXT",
        help="ask the tests of these files only",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="record also the tests that are known, of the files asked",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()) / "zsq-mutate",
        help="for the copy and the answers",
    )
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument(
        "--resume",
        action="store_true",
        help="keep what is known of unchanged code: tests' ways and caught sites",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="record no tests that are marked slow; without it, another time, they are",
    )
    parser.add_argument(
        "--other",
        action="store_true",
        help="the comparisons only, each with the other answer: as if it always fired",
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="ask with as many examples as in CI, not with the few of --fast",
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=120.0,
        metavar="S",
        help="ask at most as many tests about a site as took this long",
    )
    given = parser.parse_args(arguments)
    if given.list:
        return _list(given.only, other=given.other)
    given.folder.mkdir(parents=True, exist_ok=True)
    if not given.resume:
        for name in ("record.jsonl", "answers.jsonl"):
            (given.folder / name).unlink(missing_ok=True)
    elif (given.folder / "tree" / SITES_NAME).exists():
        _gathered(Tree(given.folder / "tree").load(), given.folder, whole=False, quick=given.quick)
    shutil.rmtree(given.folder / "tree", ignore_errors=True)
    tree = Tree(given.folder / "tree", other=given.other)
    commit = tree.make(given.commit)
    print(
        f"{len(tree.sites)} sites in {commit[:10]}; what happens is kept in {given.folder}",
        flush=True,
    )
    tests = _record(tree, given)
    _try(tree, tests, given)
    return _tell(tree, tests, given)


def _list(only: list[str], *, other: bool) -> int:
    found = [
        site
        for path in sources(ROOT)
        for site in switched(
            path.read_text(), path.relative_to(ROOT).as_posix(), 0, "", other=other
        )[1]
    ]
    found = [site for site in found if _wanted(site, only)]
    for site in found:
        print(f"{site.kind:10} {site.how:9} {site.path}:{site.line}: {site.code}")
    print(
        f"{len(found)} sites:",
        ", ".join(
            f"{kind} {count}" for kind, count in Counter(site.kind for site in found).items()
        ),
    )
    return 0


def _wanted(site: Site, only: list[str]) -> bool:
    return not only or any(
        text == site.kind or text in f"{site.path}:{site.line}: {site.code}" for text in only
    )


def _record(tree: Tree, given: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return for each test its seconds, whether it passed, and the keys of the sites that it
    executes. Only files that are new or have changed are recorded again.
    """
    store = given.folder / "record.jsonl"
    known = {row["test"]: row for line in _lines(store) for row in [json.loads(line)]}
    known = {
        name: row
        for name, row in known.items()
        if row["hash"] == tree.hash_of(name.partition("::")[0])
    }
    files = {
        name.partition("::")[0] for name, row in known.items() if given.quick or not row["quick"]
    }
    wanted = [
        name for name in tree.test_files(given.tests) if given.again or f"tests/{name}" not in files
    ]
    wanted.sort(
        key=lambda name: (name.startswith(("process/", "compat/", "apps/", "faults/")), name)
    )
    out, log = given.folder / "recording", given.folder / "record.log"
    if wanted:
        print(f"recording {len(wanted)} files of tests", flush=True)
        begin_s = time.monotonic()
        shards = [
            [str(tree.product / "tests" / name) for name in wanted[at :: given.jobs]]
            for at in range(given.jobs)
        ]
        runs = [
            tree.pytest(
                "--mutate-record",
                f"{out}.{at}",
                *(["-m", "not slow and not long"] if given.quick else []),
                *shard,
                log=log,
            )
            for at, shard in enumerate(shards)
            if shard
        ]
        for run in runs:
            run.wait()
        rows = _gathered(tree, given.folder, quick=given.quick)
        known |= {row["test"]: row for row in rows}
        red = sorted(row["test"] for row in rows if not row["passed"])
        print(
            (
                f"recorded {len(rows)} tests in {time.monotonic() - begin_s:.0f} s; not asked, as "
                f"they fail as it is: {red or 'none'}"
            ),
            flush=True,
        )
    asked = {f"tests/{name}" for name in tree.test_files(given.tests)}
    return {name: row for name, row in known.items() if name.partition("::")[0] in asked}


def _gathered(
    tree: Tree, folder: Path, *, whole: bool = True, quick: bool = False
) -> list[dict[str, Any]]:
    """Return what was recorded, with the sites' keys in place of their numbers. If the recording
    was interrupted, leave out the last test file.
    """
    rows = []
    for path in folder.glob("recording.*"):
        if path.suffix != ".seen":
            found = [json.loads(line) for line in _lines(path)]
            last = found[-1]["test"].partition("::")[0] if found and not whole else ""
            rows += [row for row in found if not last or row["test"].partition("::")[0] != last]
        path.unlink()
    with (folder / "record.jsonl").open("a") as kept:
        for row in rows:
            row |= {"seen": [tree.sites[number].key for number in row["seen"]], "quick": quick}
            row["hash"] = tree.hash_of(row["test"].partition("::")[0])
            kept.write(json.dumps(row) + "\n")
    return rows


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _answers(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the last answer about each site. If a test has once noticed the removal, that answer
    is kept.
    """
    found: dict[str, dict[str, Any]] = {}
    for line in _lines(folder / "answers.jsonl"):
        row = json.loads(line)
        if not found.get(row["key"], {}).get("caught"):
            found[row["key"]] = row
    return found


def _try(tree: Tree, tests: dict[str, dict[str, Any]], given: argparse.Namespace) -> None:
    known = _answers(given.folder)
    passing: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in tests.values():
        if row["passed"]:
            for key in row["seen"]:
                passing[key].append(row)
    orders = []
    for number, site in enumerate(tree.sites):
        if known.get(site.key, {}).get("caught") or not _wanted(site, given.only):
            continue
        asked, left = _ordered(site, passing[site.key], given.budget)
        orders.append(
            {"number": number, "key": site.key, "full": given.full, "left": left, "tests": asked}
        )
    folder = given.folder / "orders"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "next").write_text("0")
    orders.sort(key=lambda order: sum(took for _, took in order["tests"][:5]))
    for at, order in enumerate(orders):
        (folder / f"order.{at}").write_text(json.dumps(order))
    files = sorted({name.partition("::")[0] for order in orders for name, _ in order["tests"]})
    print(f"{len(orders)} sites to try, with {len(files)} files of tests", flush=True)
    paths = [str(tree.product / name) for name in files if (tree.product / name).exists()]
    runs = [
        tree.pytest(
            "--mutate-try", str(folder), *paths, log=given.folder / "try.log", full=given.full
        )
        for _ in range(given.jobs)
        if paths
    ]
    told, names = 0, {site.key: site for site in tree.sites}
    with (given.folder / "answers.jsonl").open("a") as kept:
        while True:
            over = all(run.poll() is not None for run in runs)
            lines = [line for path in sorted(folder.glob("answers.*")) for line in _lines(path)]
            for line in sorted(set(lines) - _TOLD):
                _TOLD.add(line)
                kept.write(line + "\n")
                kept.flush()
                told += 1
                row = json.loads(line)
                site = names[row["key"]]
                by = (
                    f"caught by {row['caught']} ({row['when']})"
                    if row["caught"]
                    else f"SURVIVED {row['ran']} tests, {row['left']} not asked"
                )
                print(
                    (
                        f"{told}/{len(orders)} {site.kind} {site.path}:{site.line}: "
                        f"{site.code[:80]}: {by}, {row['s']:.1f} s"
                    ),
                    flush=True,
                )
            if over:
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                next(run for run in runs if run.returncode is None).wait(1)


_TOLD: Final[set[str]] = set()


def _ordered(
    site: Site, rows: list[dict[str, Any]], budget_s: float
) -> tuple[list[tuple[str, float]], int]:
    """Return (the tests to run, the number of tests that the time budget leaves out). Fast tests
    with a similar name come first. The others are sorted by their duration, the slow ones file by
    file.
    """
    near = re.split(r"[_.]", Path(site.path).stem)
    file_s = Counter[str]()
    for row in rows:
        file_s[row["test"].partition("::")[0]] += row["s"]

    def rank(row: dict[str, Any]) -> tuple[Any, ...]:
        name = row["test"].partition("::")[0]
        close = -sum(word in Path(name).stem for word in near) if row["s"] < _NEAR_S else 0
        slow = row["s"] > _SLOW_S
        return (slow, close, file_s[name] if slow else row["s"], row["test"])

    rows = sorted(rows, key=rank)
    until = list(itertools.accumulate(row["s"] for row in rows))
    asked = [
        (row["test"], row["s"])
        for row, s in zip(rows, until, strict=True)
        if s <= budget_s or row["s"] == s
    ]
    return asked, len(rows) - len(asked)


def _tell(tree: Tree, tests: dict[str, dict[str, Any]], given: argparse.Namespace) -> int:
    answers = _answers(given.folder)
    wanted = [site for site in tree.sites if _wanted(site, given.only)]
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    survivors = []
    for site in wanted:
        row = answers.get(site.key)
        state = "not tried" if not row else "caught" if row["caught"] else "survived"
        kinds[site.kind][state] += 1
        if state in {"survived", "not tried"}:
            survivors.append(site)
    for site in survivors:
        over = [name for name, one in tests.items() if site.key in one["seen"] and one["passed"]]
        print(
            f"SURVIVOR {site.kind} {site.path}:{site.line} in {site.function}: {site.code}\n    "
            f"{len(over)} tests run over it: {over[:5]}"
        )
    for kind, states in kinds.items():
        print(f"{kind:10} {states['caught']} of {states.total()} caught")
    caught, total = sum(states["caught"] for states in kinds.values()), len(wanted)
    print(f"{caught} of {total} removals caught by a test")
    return 0 if caught == total else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
