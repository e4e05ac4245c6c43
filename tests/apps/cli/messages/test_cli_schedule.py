"""Tests of `zsq schedule` with a broker."""

from __future__ import annotations

import json

import pytest
from support.zsq_command import Zsq

pytestmark = pytest.mark.slow


def test_a_schedule_is_added_listed_paused_resumed_and_removed(zsq: Zsq) -> None:
    assert zsq("topic", "create", "t").returncode == 0
    done = zsq("schedule", "list")
    assert (done.returncode, done.stdout) == (0, "")
    assert "no schedules at this broker; add one with zsq schedule add" in done.stderr
    assert "no schedules of t; add one with" in zsq("schedule", "list", "t").stderr
    nightly = ("nightly", "0 3 * * *", "t", "report", "--timezone", "Europe/Berlin")
    done = zsq("schedule", "add", *nightly, "--key", "k", "--tag", "g", "--header", "a=b")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("schedule nightly is added; the first due time is 2")
    done = zsq("schedule", "add", "piped", "@@ * * * *", "t", stdin="body\n")
    assert (done.returncode, "has a minute that is not valid: '@@'" in done.stderr) == (2, True)
    done = zsq("schedule", "add", "piped", "5 * * * *", "t", "--json", stdin="body\n")
    assert json.loads(done.stdout).keys() == {"topic", "name", "next_due_ns"}
    rows = [json.loads(line) for line in zsq("schedule", "list", "t", "--json").stdout.splitlines()]
    assert [(row["name"], row["body_bytes"], row["timezone"]) for row in rows] == [
        ("nightly", 6, "Europe/Berlin"),
        ("piped", 5, "UTC"),
    ]
    assert zsq("schedule", "pause", "nightly", "t").returncode == 0
    shown = zsq("schedule", "list").stdout
    assert "0 3 * * *" in shown
    assert "paused" in shown
    assert zsq("schedule", "resume", "nightly", "t").returncode == 0
    assert zsq("schedule", "remove", "nightly", "t").returncode == 0
    done = zsq("schedule", "remove", "nightly", "t")
    assert (done.returncode, "has no schedule 'nightly'; it has piped" in done.stderr) == (1, True)
    audited = zsq("audit", "--json").stdout
    assert '"body": "6 bytes"' in audited
    assert "report" not in audited


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("add", "n", "* * * * *", "t", "b", "--file", "/dev/null"), "cannot be combined"),
        (("add", "n", "* * * * *", "t", "x" * 40_000), "over the limit of a schedule"),
        (("add", "n", "* * * * *", "t", "b", "--missed", "some"), "Invalid value for '--missed'"),
        (("add", "n", "* * * * *", "t", "b", "--header", "a"), "is not NAME=VALUE"),
        (("add", "a b", "* * * * *", "t", "b"), "schedule name 'a b' is not legal"),
    ],
)
def test_wrong_use_is_refused(zsq: Zsq, arguments: tuple[str, ...], why: str) -> None:
    done = zsq("schedule", *arguments)
    assert (done.returncode, why in done.stderr) == (2, True), done.stderr
