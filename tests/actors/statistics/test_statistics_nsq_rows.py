"""Tests of NSQ's clients in the statistics."""

from __future__ import annotations

from typing import Any

from zsq.actors.statistics.statistics import OF_GATEWAY, add_clients, label_of


def row(client_id: str, remote: str, topic: str = "", channel: str = "", count: int = 0) -> Any:
    said = dict.fromkeys(OF_GATEWAY, "") | {
        "client_id": client_id,
        "remote_address": remote,
        "hostname": f"host of {client_id}",
    }
    counts = [{"topic": "t", "count": count}] if count else []
    return said | {
        "pub_counts": counts,
        "label": label_of(client_id, remote),
        "topic": topic,
        "channel": channel,
        "finish_count": 99,
    }


def topics() -> Any:
    clients = [
        {"client_id": "a 1.1.1.1:5", "finish_count": 3},
        {"client_id": "host/own"},
        {"client_id": "a 1.1.1.1:6"},
    ]
    return [{"topic_name": "t", "channels": [{"channel_name": "c", "clients": tuple(clients)}]}]


def test_nsq_consumers_are_described_and_producers_have_their_own_rows() -> None:
    found = topics()
    producers = add_clients(
        found,
        [
            row("a", "1.1.1.1:5", "t", "c"),
            row("a", "1.1.1.1:6", "t", "other"),
            row("p", "1.1.1.1:7", count=4),
        ],
    )
    first, own, other = found[0]["channels"][0]["clients"]
    assert (first["client_id"], first["hostname"], first["finish_count"]) == (
        "a",
        "host of a",
        3,
    ), "the channel counts"
    assert own == {"client_id": "host/own"}
    assert other == {"client_id": "a 1.1.1.1:6"}, "it is in another channel"
    assert [(one["client_id"], one["pub_counts"]) for one in producers] == [
        ("p", [{"topic": "t", "count": 4}])
    ]
    assert not {"label", "topic", "channel"} & producers[0].keys()


def test_a_consumer_of_a_topic_with_parts_is_described_in_each_part() -> None:
    found: Any = [{**one, "topic_name": name} for name in ("t#0", "t#1") for one in topics()]
    told = [row("a", "1.1.1.1:5", "t", "c"), row("a", "1.1.1.1:6", "t#1", "c")]
    add_clients(found, told)
    hosts = [[one.get("hostname") for one in row["channels"][0]["clients"]] for row in found]
    assert hosts == [["host of a", None, None], ["host of a", None, "host of a"]]


def test_a_row_that_is_none_is_left_out() -> None:
    """The supervisor assembles these rows, so an invalid row from a gateway must not end it."""
    found = topics()
    told: Any = [{"label": "x"}, {}, {**row("p", "1.1.1.1:7", count=4), "extra": 1}]
    assert add_clients(found, told)[0]["client_id"] == "p"
    assert found == topics()


def test_without_a_gateway_nothing_changes() -> None:
    found = topics()
    assert add_clients(found, []) == []
    assert found == topics()
