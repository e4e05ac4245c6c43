"""Tests of the positions in a checkpoint, of admission limits, and of how ranges are divided into
partitions.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsq import UsageError
from zsq.apps.spark.planning import PARTITION_BYTES, OffsetRange, StreamPosition, admit, split

NAMES = st.sampled_from("abcd")


def test_the_checkpoint_form_is_fixed() -> None:
    place = StreamPosition({"b": 2, "a": 1}, {"a": "ua", "b": "ub"})
    written = {
        "version": 1,
        "topics": {"a": {"0": 1}, "b": {"0": 2}},
        "uuids": {"a": "ua", "b": "ub"},
    }
    assert json.dumps(place.as_json()) == json.dumps(written), "Spark compares places as text"
    assert StreamPosition.from_json(written) == place
    assert StreamPosition.from_json(json.dumps(written)) == place


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (
            {"version": 3, "topics": {}, "uuids": {}},
            "offsets of version 3, and this zsq reads versions up to 2; use a newer zsq",
        ),
        ({"clicks": {"0": 5}}, "give the query its own checkpointLocation"),
        ("no json", "give the query its own checkpointLocation"),
        ([], "give the query its own checkpointLocation"),
        (
            {"version": 1, "topics": {"a": 5}, "uuids": {"a": "u"}},
            "give the query its own checkpointLocation",
        ),
        (
            {"version": 1, "topics": {"a": {"0": 5}}, "uuids": {}},
            "give the query its own checkpointLocation",
        ),
        ({"version": 1, "topics": {"a": {"0": -5}}, "uuids": {"a": "u"}}, "that are not valid"),
    ],
)
def test_foreign_checkpoints_are_refused(read: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        StreamPosition.from_json(read)


@given(st.dictionaries(NAMES, st.integers(0, 10**12), min_size=1), st.integers(1, 10**12))
def test_admission_stays_within_the_limit_and_starves_no_topic(
    waiting: dict[str, int], most: int
) -> None:
    found = admit(waiting, most)
    assert found.keys() == waiting.keys()
    assert all(found[topic] <= count for topic, count in waiting.items())
    assert all(found[topic] > 0 for topic, count in waiting.items() if count), "no topic starves"
    assert sum(found.values()) <= max(most, sum(waiting.values()) and most + len(waiting))
    if sum(waiting.values()) <= most:
        assert found == waiting
    if len(waiting) == 1:
        assert sum(found.values()) <= most


SPANS = st.lists(
    st.builds(lambda name, start, count, size: OffsetRange(name, start, start + count, size), NAMES, st.integers(0, 10**9),
    st.integers(0, 10**6),
              st.integers(0, 10**10)),
    max_size=4, unique_by=lambda span: span.topic,
)  # fmt: skip


@given(SPANS, st.integers(0, 200))
def test_split_loses_nothing(spans: list[OffsetRange], least: int) -> None:
    parts = split(spans, least)
    for span in spans:
        own = [part for part in parts if part.topic == span.topic]
        assert all(part.start < part.stop for part in own), "no empty task"
        edges = [span.start, *(part.stop for part in own)]
        if span.stop > span.start:
            assert [part.start for part in own] == edges[:-1]
            assert edges[-1] == span.stop
            assert len(own) >= min(span.stop - span.start, -(-span.size_bytes // PARTITION_BYTES))
    assert len(parts) >= min(least, sum(span.stop - span.start for span in spans))


def test_ranges_are_split_by_bytes_and_by_the_wanted_number() -> None:
    assert split([OffsetRange("a", 0, 100, PARTITION_BYTES)]) == [
        OffsetRange("a", 0, 100, PARTITION_BYTES)
    ]
    assert [
        (part.start, part.stop) for part in split([OffsetRange("a", 0, 100, PARTITION_BYTES + 1)])
    ] == [(0, 50), (50, 100)]
    assert [(part.start, part.stop) for part in split([OffsetRange("a", 10, 13)], 5)] == [
        (10, 11),
        (11, 12),
        (12, 13),
    ]
    assert len(split([OffsetRange("a", 0, 10), OffsetRange("b", 0, 30)], 8)) == 8
    assert split([OffsetRange("a", 5, 5)]) == []


@pytest.mark.parametrize("pieces", [2, 4, 7, 300])
def test_partitions_have_about_the_same_bytes(pieces: int) -> None:
    """The first half of the messages has a tenth of the bytes."""
    sizes = [1] * 5_000 + [9] * 5_000

    def border(span: OffsetRange, size_bytes: int) -> int:
        offset, total = span.start, 0
        while offset < span.stop and total + sizes[offset] <= size_bytes:
            total += sizes[offset]
            offset += 1
        return offset

    parts = split([OffsetRange("a", 0, 10_000, sum(sizes))], pieces, border=border)
    assert (parts[0].start, parts[-1].stop) == (0, 10_000)
    assert all(one.stop == other.start for one, other in pairwise(parts))
    assert len(parts) >= pieces
    mean = sum(sizes) / len(parts)
    assert max(sum(sizes[part.start : part.stop]) for part in parts) < 1.5 * mean


def test_a_large_block_is_cut_by_its_messages() -> None:
    def border(span: OffsetRange, size_bytes: int) -> int:
        return 100 if size_bytes < 900 else 110  # the second block has nine tenths of the bytes

    parts = split([OffsetRange("a", 0, 110, 1_000)], 10, border=border)
    assert [part.stop - part.start for part in parts] == [100, 1, 1, 1, 1, 1, 1, 1, 1, 2]
    small = split([OffsetRange("a", 0, 3, 1_000)], 3, border=lambda span, size: 2)
    assert [(part.start, part.stop) for part in small] == [(0, 1), (1, 2), (2, 3)]
