"""Tests of how a consumer divides its credit among topics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsq.transport.client.core.prefetch import READY_MOST
from zsq.transport.client.core.topic_credit import (
    READY_OF_PART,
    READY_OF_TOPICS,
    divide,
    share_of,
)


@pytest.mark.parametrize(
    ("ready", "demands", "held", "credits"),
    [
        (0, [5, 1], [0, 0], [0, 0]),
        (10, [10], [10], [10]),
        (10, [10, 10], [0, 0], [5, 5]),
        (10, [10, 1, 1], [0, 0, 0], [8, 1, 1]),
        (12, [12, 3, 12], [0, 0, 0], [4, 3, 4]),
        (10, [10, 10], [10, 0], [2, 2]),  # 5 are still held above the level
        (1, [1, 1, 1], [1, 0, 0], [1, 1, 1]),  # each topic gets at least one
        (READY_MOST, [READY_MOST, 1], [0, 0], [READY_MOST - 1, 1]),
        (READY_MOST, [READY_MOST] * 5, [0] * 5, [READY_OF_PART] * 5),
        (READY_MOST, [READY_MOST] * 50, [0] * 50, [READY_OF_TOPICS // 50] * 50),
    ],
)
def test_topics_share_what_the_small_demands_leave(
    ready: int, demands: list[int], held: list[int], credits: list[int]
) -> None:
    assert divide(ready, demands, held) == credits


@given(st.integers(1, READY_MOST - 1), st.lists(st.integers(1, 5_000), min_size=1, max_size=60))
def test_the_sum_is_bounded(ready: int, demands: list[int]) -> None:
    credits = divide(ready, demands, [0] * len(demands))
    assert sum(credits) <= max(ready, len(demands))
    assert all(1 <= credit <= demand for credit, demand in zip(credits, demands, strict=True))
    if sum(demands) <= ready:
        assert credits == demands


@pytest.mark.parametrize(
    ("ready", "count", "share"), [(0, 4, 0), (100, 4, 25), (2, 4, 1), (READY_MOST, 4, 1_000)]
)
def test_parts_share_the_credit_of_their_topic(ready: int, count: int, share: int) -> None:
    assert share_of(ready, count) == share
