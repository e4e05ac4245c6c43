"""Tests of the standby torture: takeovers of several kinds keep all promises. `scripts/torture
--standby` makes longer runs, `process/test_standby.py` plays each kind once, and
`faults/test_linear.py` tests the checker of publishes and reads.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import s3_server
from support.torture.standby.report import summary
from support.torture.standby.run import StandbyTorture

SEED = 4
KINDS = ("stop", "handover", "kill")


@pytest.mark.long
@pytest.mark.timeout(400)
def test_takeovers_of_several_kinds_keep_all_promises(tmp_path: Path) -> None:
    s3_server.program("weed")
    torture = StandbyTorture(tmp_path, KINDS, SEED)
    torture.run()
    print(summary(torture, 0.0))
    assert set(torture.cycles_done) == set(KINDS)
    assert torture.history.complaints == []
    assert torture.takeovers["stop"] >= 1
    assert torture.history.counts["checked"] > 500
    assert torture.counts["publishes checked"] > 100
    assert torture.counts["reads checked"] > 10
    assert torture.history.counts["transactions"] > 10
    assert torture.counts["questions for a version"] > 10
    assert torture.orphans == 0
