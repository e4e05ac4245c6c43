"""Tests of a message as JSON."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from zsq.transport.message_object import as_object


class Stored(NamedTuple):
    headers: dict[str, Any]
    topic: str = "orders"
    offset: int = 7
    timestamp_ns: int = 1_000_000_000
    body: bytes = b"x"
    key: bytes | None = None
    tag: str | None = None


def refused(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float("inf"), "inf"),
        (float("-inf"), "-inf"),
        (float("nan"), "nan"),
        (1.5, 1.5),
        (7, 7),
        (True, True),
        (None, None),
    ],
)
def test_a_header_of_any_number_is_valid_json(value: Any, shown: Any) -> None:
    """Other programs refuse Infinity and NaN, which Python writes."""
    line = json.dumps(as_object(Stored({"n": value})))
    assert json.loads(line, parse_constant=refused)["headers"] == {"n": shown}
