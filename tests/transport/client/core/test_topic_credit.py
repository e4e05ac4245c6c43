"""Tests of how a consumer divides its credit among topics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsq.transport.client.core.prefetch import READY_MOST
from zsq.transport.client.core.topic_credit import (
    READY_OF_PART,
    READY_OF_TOPICS,
    share_of,
    share_of_topic,
)


@pytest.mark.parametrize(
    ("ready", "unanswered", "share"),
    [
        (0, [], 0),
        (0, [5, 0], 0),
        (10, [], 10),
        (10, [10], 10),
        (10, [0, 0], 5),
        (10, [10, 0], 2),  # 5 are still held above the share of the first
        (10, [5, 1], 5),
        (1, [0] * 3, 1),  # each topic gets at least one
        (READY_MOST, [0, 0], READY_MOST // 2),
        (READY_MOST, [0] * 5, READY_OF_PART),
        (READY_MOST, [0] * 50, READY_OF_TOPICS // 50),
    ],
)
def test_busy_topics_share_the_credit(ready: int, unanswered: list[int], share: int) -> None:
    assert share_of_topic(ready, unanswered) == share


@given(
    st.integers(1, READY_MOST - 1), st.lists(st.integers(0, READY_MOST), min_size=1, max_size=60)
)
def test_what_may_be_held_is_bounded(ready: int, unanswered: list[int]) -> None:
    """No topic that holds less than its share may make the sum larger than the credit."""
    share = share_of_topic(ready, unanswered)
    above = sum(max(0, held - share) for held in unanswered)
    assert share >= 1
    assert share == 1 or share * len(unanswered) <= ready
    assert share == 1 or above >= sum(max(0, held - ready) for held in unanswered)


@pytest.mark.parametrize(
    ("ready", "count", "share"), [(0, 4, 0), (100, 4, 25), (2, 4, 1), (READY_MOST, 4, 1_000)]
)
def test_parts_share_the_credit_of_their_topic(ready: int, count: int, share: int) -> None:
    assert share_of(ready, count) == share
