"""Tests of the table that `zsq cluster` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from click.testing import CliRunner

from zsq.apps.cli.manage import cluster

if TYPE_CHECKING:
    from zsq.actors.statistics.cluster import BrokerRow

LONG: Final = [f"tcp://broker-{n}.queue.production.example.org:4153" for n in range(2)]


def broker(number: int, *addresses: str) -> BrokerRow:
    return {
        "number": number, "uuid": "", "me": not number, "addresses": list(addresses), "state": "up",
        "role": "primary", "epoch": 1, "health": "OK", "lag_s": 0.5, "standbys": 1, "parts": 4,
        "draining": 0, "gone": False, "free_bytes": None,
        "why": "", "handover": "", "places": [{"url": addresses[-1], "role": "standby", "epoch": None, "why": ""}],
    }  # fmt: skip


def shown(monkeypatch: pytest.MonkeyPatch, columns: int, *brokers: BrokerRow) -> list[str]:
    def ask(*_: Any) -> dict[str, Any]:
        auto = {"is_on": False}
        return {
            "brokers": list(brokers), "topics": [], "is_cluster": bool(brokers[0]["addresses"]), "trouble": "", "auto": auto, "moving": 0,
            "planned": 0,
        }  # fmt: skip

    monkeypatch.setattr(cluster, "ask_cluster", ask)
    monkeypatch.setenv("COLUMNS", str(columns))
    done = CliRunner().invoke(cluster.cluster, [], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    lines: list[str] = done.output.splitlines()
    return lines


def test_long_addresses_stand_below_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, 80, broker(0, *LONG), broker(1, "tcp://b:4153", "tcp://c:4153"))
    assert lines[0].split() == ["broker", "role", "epoch", "lag", "standbys", "parts"]
    assert lines[3:] == [
        "addresses of broker 0:",
        f"  {LONG[0]}",
        f"  {LONG[1]} (standby)",
        "addresses of broker 1:",
        "  tcp://b:4153",
        "  tcp://c:4153 (standby)",
    ]
    assert max(map(len, lines)) <= 80


def test_addresses_stand_in_the_table_if_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, 200, broker(0, *LONG))
    assert lines[0].endswith("parts  addresses")
    assert lines[1].endswith(f"4      {LONG[0]},{LONG[1]} (standby)")
    assert len(lines) == 2


def test_nothing_is_said_of_the_health_of_a_broker_that_was_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = broker(1, "tcp://b:4153")
    gone["state"], gone["role"], gone["health"], gone["gone"] = "away", "forgotten", "", True
    ill = broker(2, "tcp://c:4153")
    ill["health"] = "disk is full"
    lines = shown(monkeypatch, 200, broker(0, "tcp://a:4153"), gone, ill)
    assert [line for line in lines if " is " in line] == ["broker 2 is not well: disk is full"]


def test_a_broker_without_a_cluster_is_said_to_be_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = broker(0, "tcp://a:4153")
    alone["addresses"], alone["places"] = [], []
    lines = shown(monkeypatch, 80, alone)
    assert lines[2].startswith("This broker belongs to no cluster.")
    assert max(map(len, lines)) <= 80
