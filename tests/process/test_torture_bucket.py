"""Tests of the bucket torture: cycles of every kind lose nothing older than the bound.
`scripts/torture --bucket` makes longer runs, and `faults/test_bucket_history.py` tests the checker.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import s3_server
from support.torture.bucket.report import summary
from support.torture.bucket.run import SHARES, BucketTorture

SEED = 4
KINDS = ("process", "disk", "everything", "two", "disk", "process")


def test_a_killed_broker_and_a_lost_disk_keep_all_promises(tmp_path: Path) -> None:
    s3_server.program("weed")
    torture = BucketTorture(tmp_path, ("process", "disk"), SEED)
    torture.run()
    assert torture.history.complaints == []
    assert torture.restored["restores"] >= 1
    assert torture.orphans == 0


@pytest.mark.long
@pytest.mark.timeout(400)
def test_cycles_of_every_kind_keep_all_promises(tmp_path: Path) -> None:
    s3_server.program("weed")
    torture = BucketTorture(tmp_path, KINDS, SEED)
    torture.run()
    print(summary(torture, 0.0))
    assert set(torture.cycles_done) == set(SHARES), "every kind of cycle was tried"
    assert torture.history.complaints == []
    assert torture.history.counts["checked"] > 500
    assert torture.history.counts["delayed checked"] > 10
    assert torture.history.counts["finished"] > 500
    assert torture.restored["restores"] >= KINDS.count("disk") + KINDS.count("two")
    assert torture.orphans == 0
