"""Tests of the scan with workers that report late or never: nothing is counted twice or lost."""

from __future__ import annotations

import pytest

from tests.actors.scan.test_scan_rounds import LATER, Bench
from zsq.actors.scan.scan_rounds import DIRTY
from zsq.actors.settings import options


def test_a_report_after_the_end_of_a_round_does_not_count_for_the_next() -> None:
    """The late report says that all its channels were dirty. The next round has no dirty channels,
    so the late report must not make another round follow at once.
    """
    bench = Bench(40, "a", "b")
    first = bench.begin()
    late = first[0]
    bench.report(first[1])
    # The first report is overdue, and the round ended without it.
    second = bench.begin(options.SCAN_REPORT_MS + 1)
    assert second
    mine = {key for order in second for key, _ in order.targets}
    results = [(key, DIRTY, LATER) for key, _ in late.targets if key not in mine]
    assert results
    bench.report_of(late, *results)
    for order in second:
        bench.report(order)
    assert bench.begin() == []


def test_a_target_asked_again_is_not_lost_with_its_first_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(4, "a", "b")
    first = bench.begin()
    bench.report(first[1])
    again: set[int] = set()
    for _ in range(3):
        for order in bench.begin(options.SCAN_REPORT_MS + 1):
            assert order.worker == "b"
            again |= {key for key, _ in order.targets} & {key for key, _ in first[0].targets}
    assert again
    lost: list[int] = []
    monkeypatch.setattr(bench.plan, "lost", lambda key, now_ns: lost.append(key))
    bench.rounds.set_workers(["b"], bench.now)
    assert not again & {*lost}
