"""Ten thousand flipped bits and much else that a disk, or a person with a shell, can do to a topic's files."""

from __future__ import annotations

import sys

import pytest
from faults import damage

FLIPS = 10_000


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_thousand_flipped_bits(capsys: pytest.CaptureFixture[str]) -> None:
    summary = damage.run(FLIPS, 0, 0, 1, 1, sys.stdout)
    damage.report(summary, 0, 1, 1, sys.stdout)
    assert not summary.violations
    assert sum(summary.total("flip ").values()) >= FLIPS
