"""5,000 distinct disks that a power cut may leave, in every continuous integration run; `scripts/prove crash-states` tries more."""

from __future__ import annotations

from typing import Final

import pytest

from .crash_states import prove_some, work_folder
from .workloads import WORKLOADS

SHARES: Final[dict[str, int]] = {
    "publishes": 900,
    "channels": 900,
    "groups": 1_400,
    "delayed": 900,
    "retention": 900,
}
NESTED_EACH: Final = 100


def test_the_shares_are_all_that_is_said() -> None:
    assert SHARES.keys() == WORKLOADS.keys()
    assert sum(SHARES.values()) >= 5_000
    assert len(SHARES) * NESTED_EACH >= 500


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARES)
def test_what_was_promised_survives_a_power_cut(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with work_folder() as folder:
        result = prove_some(name, folder, SHARES[name], NESTED_EACH, seed=1)
    with capsys.disabled():
        print(f" {name}: {result.sentence()}", end="")
    for where, what in result.violations:
        raise AssertionError(f"{what}\nreplay: scripts/prove crash-states --replay {where}")
    assert len(result.disks) >= SHARES[name]
    assert len(result.nested) >= NESTED_EACH
