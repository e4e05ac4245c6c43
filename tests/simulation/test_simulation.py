"""Tests of the simulation with a hundred seeds, which are always the same. `scripts/simulate.py`
plays more. `simulation/__main__.py` explains the terms.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.simulation import broken

TESTS: Final = Path(__file__).parent.parent
FEW_SEEDS: Final = 4
SEEDS: Final = 100
ARCHIVED_SEEDS: Final = 30
URGENT_SEEDS: Final = 20
DEFECT_SEEDS: Final = 200
# Defects that `DEFECT_SEEDS` seeds are enough to find, from this seed on, each by another rule of
# the ledger. `simulation/broken.py` has all defects.
DEFECTS: Final = {
    "the log is not synced": 1,
    "a finish is confirmed before its commit": 1,
    "an answer needs no lease": 1,
    "a socket is not checked after a send": 1,
    "a seek is answered before its commit": 170,
    "what a seek moved to is delivered before its commit": 115,
    "a topic moves while a handler works": 45,
    "a seek leaves the rows of what the channel held": 1,
    "a requeue's delay is forgotten": 1,
    "recovery takes only what a commit speaks of": 1,
    "an archived file leaves the disk before its row is committed": 1,
    "the shipper answers before the tick exists": 1,
    "the shipper answers a tick before an earlier one": 247,
    "a topic ships changes before the log that they mention": 1,
    "offsets are given out that are not reserved": 1,
    "a boundary does not wait until the topics have shipped again": 1,
    "a restored topic continues at its end": 1,
    "the first piece of a topic does not have its rows": 25,
    "a restore takes changes from before all rows": 1,
    "publishes are not held at the bound": 35,
    "a commit of rows does not wait for offsets": 1,
    "a takeover does not skip the window": 104,
    "a broker that has lost goes on": 289,
    "a chunk's object is removed before its removal is shipped": 151,
    "delayed messages that may not move are due all the time": 20,
    "a takeover begins no new epoch": 1,
    "a takeover does not read the last ticks": 1,
    "late ticks behind a takeover count": 21,
    "the boundary is ignored": 1,
    "a standby does not wait for its patience": 1,
    "a primary has no heartbeats": 115,
    "a tick counts as created although its number has another one": 280,
    "a topic does not look at its lease": 3,
    "messages that were read ahead are not saved": 1,
    "a broker that has lost does not stop": 1,
    "ids are forgotten at a restart": 1,
    "ids of delayed messages are forgotten at a restart": 1,
    "revocations are forgotten at a restart": 1,
    "a revocation is answered before its commit": 1,
    "messages that expire are delivered": 1,
    "a deferral uses an attempt": 1,
    "a key may have any number of messages in flight": 50,
    "a channel with a limit sends what consumers want": 1,
}


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the simulation in a separate process, because it replaces the clock, sockets and
    threads.
    """
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
        "PYTHONHASHSEED": "0",
    }
    command = [sys.executable, "-P", "-m", "simulation", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--archived", "--urgent", ""])
def test_every_promise_holds_in_a_few_seeds(option: str) -> None:
    done = simulate("--seeds", str(FEW_SEEDS), *filter(None, [option]), "--jobs", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "broken promises: 0 in 0 seeds" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("defect", ["the log is not synced", "an answer needs no lease"])
def test_the_simulation_finds_a_defect_soon(defect: str) -> None:
    done = simulate("--seeds", "100", "--failures", "1", "--jobs", "1", "--broken", defect)
    assert done.returncode == 1, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_promise_holds_in_every_seed() -> None:
    done = simulate("--seeds", str(SEEDS), "--jobs", "2")
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"^([\d,]+) seeds \(1 to ([\d,]+)\)", done.stdout, re.MULTILINE)
    assert found is not None
    assert int(found[1].replace(",", "")) == SEEDS
    assert "broken promises: 0 in 0 seeds" in done.stdout


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_promise_holds_when_log_files_are_only_in_the_bucket() -> None:
    done = simulate("--seeds", str(ARCHIVED_SEEDS), "--archived", "--jobs", "2")
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "broken promises: 0 in 0 seeds" in done.stdout
    for name in ("kill_archive", "bucket_away", "lost_disk", "objects", "reads of the bucket"):
        found = re.search(rf"\b{name} ([\d,]+)", done.stdout)
        assert found is not None, name
        assert int(found[1].replace(",", "")) > 20, name


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_seed_gives_the_same_run_each_time() -> None:
    first, second = (simulate("--seed", "7") for _ in range(2))
    assert first.returncode == 0, first.stdout + first.stderr
    assert re.search(r"log [0-9a-f]{16}", first.stdout)
    assert first.stdout == second.stdout


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_failure_of_an_archived_seed_can_be_replayed_alone() -> None:
    """Seed 89 restores a lost disk. It is played in a child process among many, and alone."""
    options = ("--archived", "--faults", "lost_disk,bucket_away")
    among_many = simulate(*options, "--seeds", "1", "--first", "89")
    alone = simulate(*options, "--seed", "89")
    found = re.search(r"log ([0-9a-f]{16})", alone.stdout)
    assert found is not None, alone.stdout + alone.stderr
    assert "'lost_disk'" in alone.stdout
    all_logs = hashlib.sha256(found[1].encode()).hexdigest()[:16]
    assert f"digest of all logs: {all_logs}" in among_many.stdout


def test_the_code_of_each_defect_is_in_the_source_once() -> None:
    """If the source changes, no defect may silently lose its effect."""
    counts = {
        name: (TESTS.parent / defect.path).read_text().count(defect.old)
        for name, defect in broken.DEFECTS.items()
    }
    assert {name: count for name, count in counts.items() if count != 1} == {}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_every_promise_holds_in_channels_with_priorities() -> None:
    done = simulate("--seeds", str(URGENT_SEEDS), "--urgent", "--jobs", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "broken promises: 0 in 0 seeds" in done.stdout


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("defect", DEFECTS)
def test_the_simulation_finds_each_deliberate_defect(defect: str) -> None:
    number = str(DEFECT_SEEDS)
    options = (
        "--first",
        str(DEFECTS[defect]),
        "--failures",
        "1",
        "--jobs",
        "2",
        "--broken",
        defect,
    )
    done = simulate("--seeds", number, *options)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED" in done.stdout
    assert "replay: ./scripts/simulate.py --seed" in done.stdout
