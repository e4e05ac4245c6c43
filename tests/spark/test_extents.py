"""Tests of reading the extent of a topic (its oldest offset and its next one). The extent includes
the topic's identity, so that offsets are not mistaken for those of another topic with the same
name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from zsq.apps.spark import logs
from zsq.apps.spark.logs import Extent, TopicLogs
from zsq.transport.errors import Refused


class Remade:
    """A reader of a topic that is deleted and made again after some requests."""

    def __init__(self, uuids: Iterator[str]) -> None:
        self._uuids = uuids

    def uuid(self) -> str:
        return next(self._uuids)

    def bounds(self) -> tuple[int, int]:
        return 10, 20


def extent(*uuids: str) -> Extent:
    found = TopicLogs("tcp://h:1", 1.0)
    found._readers["t"] = cast("Any", Remade(iter(uuids)))
    return found.extent("t")


def test_an_extent_is_of_one_topic() -> None:
    assert extent("a", "a") == Extent(10, 20, "a")
    assert extent("a", "b", "b", "b") == Extent(10, 20, "b"), (
        "it was made again in between: asked once more"
    )


def test_a_topic_that_is_recreated_again_and_again_is_refused() -> None:
    with pytest.raises(Refused, match="created again repeatedly"):
        extent(*(str(number) for number in range(2 * logs.TRIES)))
