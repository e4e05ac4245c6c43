"""Tests of soak runs of 10 and 60 seconds: every message is accounted for, and the use of resources
does not grow. `scripts/torture --soak MINUTES` runs for longer.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.soak.run import Soak

SHORT_S, SECONDS = 10, 60
SEED = 11


def test_every_message_of_a_short_soak_is_explained(tmp_path: Path) -> None:
    soak = Soak(tmp_path, SHORT_S / 60, SEED)
    soak.run()
    assert soak.explained["unexplained"] == 0
    assert soak.explained["messages"] > 500


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_message_of_a_soak_is_explained_and_nothing_grows(tmp_path: Path) -> None:
    soak = Soak(tmp_path, SECONDS / 60, SEED)
    soak.run()
    soak.check_coverage_and_growth()
    print(soak.summary())
    assert soak.explained["unexplained"] == 0
    assert soak.explained["messages"] > 5_000
    assert soak.checkpoints >= 2
    assert soak.clean_s >= SECONDS
    assert sum(soak.kills.values()) >= 2
