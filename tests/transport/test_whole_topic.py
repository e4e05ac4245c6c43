"""Tests of the sums of a topic's parts."""

from __future__ import annotations

from typing import Any

from zsq.transport.whole_topic import TopicName, whole_names, whole_topic


def channel(depth: int, *clients: str, **more: object) -> dict[str, Any]:
    return {
        "channel_name": "c", "depth": depth, "client_count": len(clients), "paused": False, "health": "OK",
        "clients": [{"client_id": name} for name in clients], "settings": {"max_attempts": depth}, **more,
    }  # fmt: skip


def row(name: str, *channels: dict[str, Any], **more: object) -> dict[str, Any]:
    return {"topic_name": name, "channels": list(channels), "sync": "always", **more}


def test_a_topic_without_parts_and_one_part_are_as_they_are() -> None:
    for name in ("t", "t#1"):
        only = row(name, channel(3))
        found = whole_topic({"topics": [only]}, name)
        assert (found.row, found.parts, found.missing) == (only, (), "")


def test_figures_are_the_sums_of_the_parts_in_their_order() -> None:
    latency = [{"count": n, "percentiles": [{"quantile": 0.5, "value": n}]} for n in (5, 2)]
    rows = [
        row("t#10", head=7, paused=True, health="failed", rates={"x": 1.0}, delayed_next_due_ns=0,
            oldest_message_age_s=2.0, e2e_processing_latency=latency[0]),
        row("t#2", head=5, paused=False, health="OK", rates={"x": 2.0, "y": 1.0}, delayed_next_due_ns=9,
            oldest_message_age_s=4.0, e2e_processing_latency=latency[1]),
    ]  # fmt: skip
    found = whole_topic({"topics": rows}, "t")
    assert [part["topic_name"] for part in found.parts] == ["t#2", "t#10"]
    assert found.row == {
        "topic_name": "t", "channels": [], "sync": "always", "head": 12, "paused": True, "health": "failed",
        "rates": {"x": 3.0, "y": 1.0}, "delayed_next_due_ns": 9, "oldest_message_age_s": 4.0,
        "e2e_processing_latency": {"count": 7, "percentiles": [{"quantile": 0.5, "value": 5}]},
    }  # fmt: skip


def test_a_channel_is_that_of_all_parts_and_a_consumer_counts_once() -> None:
    rows = [
        row("t#0", channel(3, "one", "two", drain_s=None)),
        row("t#1", channel(4, "two", "three", drain_s=1.0)),
        row("t#2"),
    ]
    found = whole_topic({"topics": rows}, "t")
    own = found.channel("c")
    assert own is not None
    assert (own["depth"], own["client_count"], own["drain_s"]) == (7, 3, None)
    assert own["settings"] == {"max_attempts": 3}
    assert [part["topic_name"] for part, _ in found.in_parts("c")] == ["t#0", "t#1"]
    assert found.channel("other") is None


def test_texts_that_differ_name_their_parts() -> None:
    closed = ["", "publishers", "", "publishers"]
    rows = [row(f"t#{number}", closed=text) for number, text in enumerate(closed)]
    assert whole_topic({"topics": rows}, "t").row["closed"] == "t#1 and t#3: publishers"


def test_parts_that_did_not_answer_are_named() -> None:
    unanswered = {f"t#{number}": "away" for number in range(1, 12)}
    found = whole_topic({"topics": [row("t#0")], "unanswered": unanswered}, "t")
    assert found.missing == (
        "t#1, t#2, t#3, t#4, t#5, t#6, t#7, t#8 and 3 more parts did not answer and are "
        "left out: away"
    )


def test_a_topic_with_parts_is_one_name() -> None:
    names = whole_names({"u": ["x"], "t#0": ["b"], "t#2": ["a", "b"]}, {"t": [0, 1, 3], "far": [0]})
    assert names == {
        "far": TopicName([], [0]), "t": TopicName(["a", "b"], [0, 1, 3]), "u": TopicName(["x"]),
    }  # fmt: skip
