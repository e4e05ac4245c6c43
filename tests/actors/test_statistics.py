"""What `stats` says of health."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from zsq.actors import statistics
from zsq.actors.channel_rows import channel_rows
from zsq.actors.deferred import Deferred
from zsq.actors.delivery import Delivery
from zsq.actors.group_states import GroupState
from zsq.actors.options import DEFERRED_ROWS_MAX


@pytest.mark.parametrize("rows", [DEFERRED_ROWS_MAX - 1, DEFERRED_ROWS_MAX])
def test_a_channel_that_holds_all_it_can_says_so(rows: int) -> None:
    full = rows == DEFERRED_ROWS_MAX
    delivery = Delivery(1, 0, [], {}, paused=False, deferred=Deferred(rows, rows, 5))
    child = SimpleNamespace(state="up", stats=delivery.statistics(0), data={})
    storage = SimpleNamespace(stats={"appends": 1}, data={})
    supervisor = SimpleNamespace(alarms=SimpleNamespace(texts=lambda topic: []))
    group: Any = SimpleNamespace(
        name="t",
        supervisor=supervisor,
        channels={"c": child},
        topic=None,
        storage=storage,
        state=GroupState.UP,
        failure="",
        failed_channels=set,
    )
    (row,) = channel_rows(group, 0, 0)
    assert (row["health"] == "OK", "10,000,000 requeues" in row["health"], "deferred_full" in row) == (not full, full, False)
    assert (statistics._health(group) == "OK") == (not full)
    child.state = "starting"
    assert channel_rows(group, 0, 0)[0]["health"] == "starting"
