"""Calls of the operating system that fail, at the n-th call of a workload for every n: the first rounds of `scripts/prove calls`."""

from __future__ import annotations

from itertools import islice

import pytest
from faults import calls

ROUNDS = 1


@pytest.mark.parametrize("life", calls.LIVES)
def test_each_call_of_a_workload_fails(life: str) -> None:
    count = ROUNDS * len(calls.trace_of(life))
    tried = calls.try_all(list(islice(calls.cases(life, seed=0), count)))
    print(f"{life}: {tried.cases} failing calls")
    assert tried.violations == []
    assert tried.cases == count
