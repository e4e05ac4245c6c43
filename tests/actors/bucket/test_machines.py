"""Tests of the bucket's state machines: the tables in their captions are those that run."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import ModuleType
from typing import Any

import pytest

from zsq.actors.bucket.archive import shipper
from zsq.actors.bucket.topic import base_dump, shipping

Rows = set[tuple[str, str, str]]


def rows_of(caption: str) -> Rows:
    """Return state, event and next state of each row of the first table in a caption."""
    rows: Rows = set()
    for line in caption.splitlines():
        if line.startswith("| ") and not line.startswith("| state "):
            states, event, following, *_ = (cell.strip() for cell in line.strip("|").split("|"))
            rows |= {(state, event, following) for state in states.split(", ")}
    return rows


def rows_that_run(table: Mapping[tuple[Enum, Enum], Any]) -> Rows:
    return {
        (state.name, event.value, (step[0] if isinstance(step, tuple) else step).name)
        for (state, event), step in table.items()
    }


@pytest.mark.parametrize(
    ("module", "table"),
    [
        (shipping, shipping.Shipping.TABLE),
        (base_dump, base_dump.BASE_TABLE),
        (shipper, shipper.Shipper.TABLE),
    ],
)
def test_the_table_in_the_caption_is_the_one_that_runs(
    module: ModuleType, table: Mapping[tuple[Enum, Enum], Any]
) -> None:
    assert rows_of(module.__doc__ or "") == rows_that_run(table)


@pytest.mark.parametrize(
    "table", [shipping.Shipping.TABLE, base_dump.BASE_TABLE, shipper.Shipper.TABLE]
)
def test_each_state_can_be_left_except_the_last_ones(
    table: Mapping[tuple[Enum, Enum], Any],
) -> None:
    reached = {step[0] if isinstance(step, tuple) else step for step in table.values()}
    stuck = reached - {state for state, _ in table}
    assert {state.name for state in stuck} <= {"FENCED", "LOST"}
