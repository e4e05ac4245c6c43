"""Tests of the bounds of a topic in memory. Such a topic always has bounds."""

from __future__ import annotations

from typing import Any

import pytest

from zsq.actors.supervisor.topics.topic_group import retention_in_memory
from zsq.transport.errors import UsageError

MIB = 1024 * 1024
MAX = 64 * MIB


def test_by_default_a_topic_in_memory_drops_finished_and_oldest_messages() -> None:
    found = retention_in_memory({}, MAX)
    assert (found.keep_bytes, found.max_bytes, found.when_full) == (0, MAX, "drop-oldest")


def test_a_topic_in_memory_takes_other_bounds_within_the_maximum() -> None:
    found = retention_in_memory(
        {"keep_bytes": MAX, "max_bytes": 8 * MIB, "when_full": "reject", "keep_time_s": 5}, MAX
    )
    assert (found.keep_bytes, found.max_bytes, found.when_full, found.keep_time_s) == (
        MAX,
        8 * MIB,
        "reject",
        5,
    )


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (
            {"max_bytes": -1},
            "max_bytes of a topic in memory is at most 67108864 [(]64 MiB[)], not no bound",
        ),
        ({"max_bytes": MAX + 1}, "not 67108865 bytes; use a topic on disk"),
        ({"keep_bytes": -1}, "keep_bytes of a topic in memory"),
        ({"keep_bytes": MAX + 1}, "keep_bytes of a topic in memory"),
        ({"max_bytes": 5}, "max_bytes must be at least"),
        ({"colour": 5}, "unknown setting colour"),
    ],
)
def test_a_topic_in_memory_without_a_bound_is_refused(own: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        retention_in_memory(own, MAX)
