"""Tests of the limit on restarts, in virtual time."""

from __future__ import annotations

import pickle

import pytest

from zsq.actors.runtime.child import ChildSpec, RestartIntensity
from zsq.actors.settings import options
from zsq.actors.settings.starts import ActorStart

S = 1_000_000_000


@pytest.mark.parametrize(
    ("times", "allowed"),
    [
        ([0, 1, 2], [True, True, True]),
        ([0, 1, 2, 3], [True, True, True, False]),
        ([0, 1, 2, 10], [True, True, True, False]),
        ([0, 1, 2, 10.1], [True, True, True, True]),
        ([0, 5, 10, 15, 20, 25], [True] * 6),
        ([0, 4, 8, 12, 16, 20], [True] * 6),
        ([0, 3, 6, 9, 12], [True, True, True, False, False]),
        ([0, 0, 0, 0, 60], [True, True, True, False, True]),
    ],
)
def test_more_than_three_restarts_in_ten_seconds_are_too_many(
    times: list[float], allowed: list[bool]
) -> None:
    intensity = RestartIntensity(3, 10.0)
    assert [intensity.may_restart(int(second * S)) for second in times] == allowed
    assert intensity.count == len(times)


def test_the_default_restart_intensity_is_that_of_the_options() -> None:
    intensity = RestartIntensity()
    assert all(intensity.may_restart(0) for _ in range(options.RESTARTS_MAX))
    assert not intensity.may_restart(int(options.RESTARTS_WITHIN_S * S))
    assert intensity.may_restart(int(options.RESTARTS_WITHIN_S * S) + 1)


def test_a_spec_can_be_sent_to_a_child() -> None:
    spec = ChildSpec(7, "scan_worker", "scan worker", ActorStart(front="ipc:///run/7"))
    assert pickle.loads(pickle.dumps(spec)) == spec
