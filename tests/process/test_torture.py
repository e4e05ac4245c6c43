"""Test of thirty kills of every kind under load: no acknowledged message is lost or doubled, and no
message whose finish was confirmed comes back. `scripts/torture` makes longer runs, and
`process/test_kill.py` kills each kind of process once.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.torture.disk import ImageDisk, missing
from support.torture.kills import POWER, SHARES
from support.torture.run import Torture, memory_folder

CYCLES = 30
POWER_CUTS = 3
SEED = 6


@pytest.fixture
def memory() -> Iterator[Path]:
    folder = memory_folder()
    yield folder
    shutil.rmtree(folder)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_thirty_kills_lose_no_acknowledged_message(tmp_path: Path, memory: Path) -> None:
    torture = Torture(tmp_path, memory, CYCLES, SEED, list(SHARES))
    torture.run()
    assert sum(torture.done.values()) == CYCLES
    assert set(torture.done) == set(SHARES), "every kind of kill was tried"
    assert torture.totals["lost"] == 0
    assert torture.totals["acknowledged"] > CYCLES * 2_000
    assert torture.orphans == 0
    assert torture.outstanding["kills with both"] > CYCLES // 2, (
        "publishes and finishes must be on their way when processes are killed"
    )
    print(f"{CYCLES} kills, {torture.totals['acknowledged']:,} messages acknowledged, 0 lost")


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(missing("ext4")), reason=missing("ext4"))
def test_power_cuts_of_a_real_file_system_lose_no_acknowledged_message(
    tmp_path: Path, memory: Path
) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    disk = ImageDisk(memory, folder, "ext4")
    try:
        disk.begin()
        torture = Torture(folder, memory, POWER_CUTS, SEED, [POWER], disk)
        torture.run()
    finally:
        disk.end()
    assert torture.done == {POWER: POWER_CUTS}
    assert torture.totals["lost"] == 0
    assert torture.totals["acknowledged"] > POWER_CUTS * 2_000
