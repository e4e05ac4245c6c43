"""Tests of the view of a topic's processes."""

from __future__ import annotations

from support.group import a_channel, processes_of

from zsq.actors.runtime.child import ChildSpec
from zsq.actors.runtime.process_table import Child


def process(key: int, stats: dict[str, object], name: str = "c") -> Child:
    lifeline = None
    return Child(
        ChildSpec(key, "channel", name, a_channel(name)),
        key,
        lifeline,  # type: ignore[arg-type]
        stats=stats,
    )


def test_the_process_before_reports_until_the_new_one_has() -> None:
    before = process(1, {"next_offset": 5})
    now = process(2, {})
    group = processes_of(process(3, {}), {"c": now})
    group.channels["c"].predecessor = before
    assert group.reporter("c") is before
    now.stats = {"next_offset": 0}
    assert group.reporter("c") is now


def test_a_channel_that_is_gone_reports_nothing() -> None:
    topic = process(1, {"storage": {}}, "")
    group = processes_of(process(2, {}, ""), {})
    group.predecessor = topic
    assert group.reporter() is topic
    assert group.reporter("gone") is None
