"""The table of evidence: runs long tests, each by its own command, and writes what they found.

A row has the command, what it printed of its result, the day, the commit, and how long it took. A
run that fails stays in the table as fallen, until the same row is run again. So nothing is in the
table that its command did not print. `--check` says which rows are no evidence for the commit that
is checked out: rows that are missing, have fallen, or were run with other code of the product.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import zsq

from .build import git

ROOT: Final = Path(zsq.__file__).resolve().parent
PRODUCT: Final = (
    "actors", "aio", "apps", "pyspark_zsq", "storage", "testing", "transport", "__init__.py", "__main__.py", "pyproject.toml",
)  # fmt: skip
LOGS: Final = ROOT / "build" / "evidence"  # what each command printed
BEGIN: Final = "<!-- evidence: begin -->\n"
END: Final = "<!-- evidence: end -->\n"
HEAD: Final = "| name | test | result | command | date, commit, time |\n|---|---|---|---|---|\n"
GAP: Final = r"(?s:.*?)"
ACKNOWLEDGED: Final = r"(acknowledged [\d,]+ messages, lost \d+)"
KILLS: Final = (
    rf"{ACKNOWLEDGED}.*?(stored twice \d+){GAP}(finishes confirmed [\d,]*\d)"
    r".*?(come again after a confirmed one \d+)"
)
CUTS: Final = rf"(cycles \d+){GAP}{ACKNOWLEDGED}"
MOVES: Final = rf"(moves \d+){GAP}{ACKNOWLEDGED}, (stored twice \d+)"
PROMISES: Final = rf"(cycles \d+){GAP}(acknowledged [\d,]+ messages){GAP}(broken promises \d+)"
SEEDS: Final = rf"([\d,]+ seeds) \({GAP}(broken promises: .*)"
EXPLAINED: Final = r"(explained to the last message at \d+ checkpoints)"
LAST_LINE: Final = r"([^\n]+)\n*\Z"
PYTEST: Final = r"=+ (\d+ passed.*?) in [\d.]+s"


class Row(NamedTuple):
    """A test, its command, and the groups of its output that are the result."""

    name: str
    what: str
    command: str
    result: str


ROWS: Final = (
    Row("kills", "kills under load", "scripts/torture --cycles 1000 --seed 1",
        KILLS),
    Row("ext4", "power cuts of ext4", "scripts/torture --power ext4 --cycles 100 --seed 1",
        CUTS),
    Row("xfs", "power cuts of XFS", "scripts/torture --power xfs --cycles 60 --seed 1",
        CUTS),
    Row("btrfs", "power cuts of Btrfs", "scripts/torture --power btrfs --cycles 40 --seed 1",
        CUTS),
    Row("crash-states", "disks that a power cut can leave", "scripts/prove crash-states", LAST_LINE),
    Row("calls", "system calls that fail", "scripts/prove calls", LAST_LINE),
    Row("damage", "damaged files", "scripts/prove damage", LAST_LINE),
    Row("fuzz", "garbage", "scripts/prove fuzz", LAST_LINE),
    Row("core-alone", "the core without its extensions", "scripts/prove core-alone -n 2", PYTEST),
    Row("simulation", "simulation", "scripts/simulate.py --seeds 2000", SEEDS),
    Row("simulation-bucket", "simulation with a bucket", "scripts/simulate.py --archived --seeds 300",
        SEEDS),
    Row("simulation-standby", "simulation with a standby", "scripts/simulate.py --standby --seeds 300",
        SEEDS),
    Row("simulation-attributes", "simulation with ids, lifetimes, and fair channels",
        "scripts/simulate.py --attributes --seeds 300", SEEDS),
    Row("bucket", "kills with a bucket, lost disks", "scripts/torture --bucket --cycles 60 --seed 1",
        PROMISES),
    Row("standby", "takeovers by a standby", "scripts/torture --standby --cycles 100 --seed 1",
        PROMISES),
    Row("drain", "brokers that drain, and are lost", "scripts/torture --drain --cycles 100 --seed 1",
        MOVES),
    Row("soak", "a mixed load, every message explained", "scripts/torture --soak 30 --seed 1", EXPLAINED),
    Row("mutations", "safety checks that are removed", "scripts/mutate --quick", r"(\d+ of \d+ removals caught by a test)"),
    Row("demo", "flights through Spark and back", "./scripts/demo --chaos", r"(all good)"),
    Row("demo-bucket", "the same, and the broker is lost", "./scripts/demo --bucket", r"(all good)"),
    Row("demo-standby", "the same, and a standby takes over", "./scripts/demo --standby", r"(all good)"),
    Row("demo-cluster", "the same, with parts at two brokers", "./scripts/demo --cluster", r"(all good)"),
    Row("spark", "PySpark 4.0.5, 4.1.4, 4.2.1 and 4.3.0",
        "env ZSQ_TEST_SPARK_VERSIONS=all ./scripts/test --long tests/spark_versions", PYTEST),
    Row("suites", "the tests of Celery, Kombu and Dramatiq",
        "./scripts/test --long tests/integrations/test_celery_suite.py tests/integrations/test_kombu_suite.py "
        "tests/integrations/test_dramatiq_suite.py", PYTEST),
    Row("nsq", "clients of NSQ", "./scripts/test --long tests/compat/test_nsq_clients.py", PYTEST),
)  # fmt: skip


def main() -> None:
    """Run the rows that are named, or all, and write them. Ends with 1 if one has fallen."""
    parser = argparse.ArgumentParser(prog="evidence", description=__doc__)
    parser.add_argument("names", nargs="*", help="rows; without any, all of them")
    parser.add_argument("--list", action="store_true", help="the rows, and nothing else")
    parser.add_argument("--docs", type=Path, help="the page whose table gets the rows")
    parser.add_argument(
        "--check", action="store_true", help="what the table of --docs lacks for this commit"
    )
    given = parser.parse_args()
    by_name = {row.name: row for row in ROWS}
    if unknown := [name for name in given.names if name not in by_name]:
        parser.error(f"unknown rows: {', '.join(unknown)} (--list shows them)")
    chosen = [by_name[name] for name in given.names] or [*ROWS]
    if given.list:
        for row in chosen:
            print(f"{row.name:22} {row.command}")
        return
    if given.check:
        if given.docs is None:
            parser.error("--check needs --docs")
        lacks = lacking(given.docs.read_text(), chosen, is_other_code)
        print("\n".join(lacks) or "each row was run on this code, and held")
        sys.exit(bool(lacks))
    fallen = 0
    for row in chosen:
        print(f"{row.name}: {row.command}", flush=True)
        line, held = carried_out(row)
        fallen += not held
        print(line, flush=True)
        if given.docs is not None:
            given.docs.write_text(with_row(given.docs.read_text(), row.name, line))
    sys.exit(bool(fallen))


def carried_out(row: Row) -> tuple[str, bool]:
    """Run a row. Return its line of the table, and whether its command held."""
    began = time.monotonic()
    done = subprocess.run(
        row.command.split(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    minutes = (time.monotonic() - began) / 60
    found = re.search(row.result, done.stdout)
    held = done.returncode == 0 and found is not None
    if found is not None:
        text = ", ".join(part.strip() for part in found.groups())
    else:
        text = " ".join(done.stdout.split()[-20:])
    LOGS.mkdir(parents=True, exist_ok=True)
    (LOGS / f"{row.name}.log").write_text(done.stdout)
    result = text if held else f"**fallen**: exit code {done.returncode}, {text}"
    where = f"{datetime.date.today()}, {git(ROOT, 'rev-parse', '--short=10', 'HEAD').strip()}"
    cells = (row.name, row.what, result, f"`{row.command}`", f"{where}, {minutes:.1f} min")
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |", held


def lacking(page: str, rows: list[Row], is_other: Callable[[str], bool]) -> list[str]:
    """Return a sentence for each row that is no evidence for the commit that is checked out.

    `is_other` says if the product of a commit differs from it.
    """
    table = _table(page)
    lacks = []
    for row in rows:
        cells = table.get(row.name, "").split(" | ")
        if len(cells) < 2:
            lacks.append(f"{row.name}: not run")
        elif cells[2].startswith("**fallen**"):
            lacks.append(f"{row.name}: has fallen")
        elif is_other(commit := cells[-1].split(", ")[1]):
            lacks.append(f"{row.name}: run at {commit}, whose code differs from this commit's")
    return lacks


def is_other_code(commit: str) -> bool:
    """Return True if the product at `commit` differs from the one of the folder, or is unknown."""
    asked = ["git", "-C", str(ROOT), "diff", "--quiet", commit, "--", *PRODUCT]
    return subprocess.run(asked, stderr=subprocess.DEVNULL, check=False).returncode != 0


def _table(page: str) -> dict[str, str]:
    """Return the lines of the page's table by the names of their rows."""
    table = page.partition(BEGIN)[2].partition(END)[0]
    return {line.split("|")[1].strip(): line for line in table.splitlines()[2:]}


def with_row(page: str, name: str, line: str) -> str:
    """Return the page with this line in its table, in the order of ROWS."""
    before = page.partition(BEGIN)[0]
    after = page.partition(END)[2]
    lines = _table(page) | {name: line}
    rows = "".join(f"{lines[row.name]}\n" for row in ROWS if row.name in lines)
    return f"{before}{BEGIN}{HEAD}{rows}{END}{after}"


if __name__ == "__main__":
    main()
