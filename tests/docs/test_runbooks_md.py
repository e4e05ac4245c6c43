"""Tests that docs/runbooks.md has an entry for each alarm of the broker and for each alert of
docs/examples/prometheus-alerts.yml, and that each entry answers the four questions.
"""

from __future__ import annotations

import re
from typing import Any, Final

import pytest
import yaml

from zsq.actors.alarms.backlog import KINDS

from .walking import ROOT

PAGE: Final = (ROOT / "docs" / "runbooks.md").read_text()
ALERTS: Final[list[dict[str, Any]]] = [
    rule
    for group in yaml.safe_load((ROOT / "docs/examples/prometheus-alerts.yml").read_text())[
        "groups"
    ]
    for rule in group["rules"]
]
ENTRIES: Final = {
    title: text
    for title, text in re.findall(
        r"^## ([^\n]+)\n\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL
    )
    if "**Means:**" in text
}


def anchor(title: str) -> str:
    """Return the anchor of a heading, as Git hosts make it."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def test_each_alarm_of_the_broker_has_an_entry() -> None:
    named = {found[1] for title in ENTRIES if (found := re.match(r"`(\w+)`: ", title))}
    assert named == set(KINDS)


def test_each_alert_has_an_entry_and_names_it() -> None:
    told = {
        name: anchor(title)
        for title, text in reversed(ENTRIES.items())
        for line in re.findall(r"^- \*\*Alerts:\*\* (.+)\.$", text, re.MULTILINE)
        for name in line.split(", ")
    }
    assert set(told) == {alert["alert"] for alert in ALERTS}
    anchors = {anchor(title) for title in ENTRIES}
    for alert in ALERTS:
        page, _, entry = alert["annotations"]["runbook"].partition("#")
        assert page == "docs/runbooks.md"
        assert entry in anchors, alert["alert"]


@pytest.mark.parametrize("title", ENTRIES)
def test_an_entry_says_what_it_means_what_is_at_risk_and_what_to_do(title: str) -> None:
    asked = re.findall(r"^- \*\*([\w ]+):\*\*", ENTRIES[title], re.MULTILINE)
    assert [one for one in asked if one != "Alerts"] == ["Means", "At risk", "Look at", "Do"]
