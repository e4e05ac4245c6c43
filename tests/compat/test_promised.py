"""Tests that nothing of the promised surface goes. `promised.py` collects it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from . import promised


def test_nothing_that_is_promised_is_gone() -> None:
    was = json.loads(promised.FILE.read_text())
    lost = promised.missing(was, json.loads(promised.as_text(promised.collected())))
    assert not lost, "docs/compatibility.md promises it: " + "\n".join(lost)


def test_what_was_added_is_promised_too() -> None:
    now = promised.as_text(promised.collected())
    assert promised.FILE.read_text() == now, f"run {promised.HOW}"


FUNCTION = {
    "topic": "positional or keyword, required",
    "body": "positional or keyword, required",
    "key": "keyword-only, optional, None",
}


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (FUNCTION, []),
        ({**FUNCTION, "tag": "keyword-only, optional"}, []),
        ({**FUNCTION, "body": "positional or keyword, optional"}, []),
        ({**FUNCTION, "tag": "keyword-only, required"}, ["f / tag is new and required"]),
        (
            {**FUNCTION, "key": "keyword-only, required"},
            ["f / key: was 'keyword-only, optional, None', is 'keyword-only, required'"],
        ),
        ({name: FUNCTION[name] for name in ("topic", "body")}, ["f / key is gone"]),
        (
            {name: FUNCTION[name] for name in ("body", "topic", "key")},
            ["f: the order of topic, body has changed"],
        ),
        ({**FUNCTION, "body": "positional or keyword, optional, None"}, []),
        (
            {**FUNCTION, "key": "keyword-only, optional, b''"},
            ["f / key: was 'keyword-only, optional, None', is \"keyword-only, optional, b''\""],
        ),
        ("attribute", [f"f: was {FUNCTION!r}, is 'attribute'"]),
    ],
)
def test_what_breaks_a_caller_is_found(now: Any, said: list[str]) -> None:
    assert promised.missing(FUNCTION, now, "f") == said


def test_a_code_that_changes_is_found() -> None:
    assert promised.missing({"E_LIMIT": "E_LIMIT"}, {"E_LIMIT": "E_BOUND"}, "errors") == [
        "errors / E_LIMIT: was 'E_LIMIT', is 'E_BOUND'"
    ]
