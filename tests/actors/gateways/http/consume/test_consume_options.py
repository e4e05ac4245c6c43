"""Tests of what requests to consume over HTTP may contain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from support.console_site import ConsoleSite

CHANNEL = "/api/v1/topics/orders/channels/mailer"
TOKEN = "0123abcd-1-1"


@pytest.fixture(scope="module")
def site() -> Iterator[ConsoleSite]:
    with closing(ConsoleSite()) as one:
        yield one


def refused(site: ConsoleSite, path: str, options: Any) -> tuple[int, str]:
    answer = site.post(path, json.dumps(options).encode())
    return answer.status_code, answer.json()["message"]


@pytest.mark.parametrize(
    ("verb", "options", "why"),
    [
        ("receive", {"max": 0}, "max must be a whole number from 1 to 1,000, not 0"),
        ("receive", {"max": 1.5}, "max must be a whole number from 1 to 1,000, not 1.5"),
        ("receive", {"max": True}, "max must be a whole number from 1 to 1,000, not True"),
        ("receive", {"wait_s": 21}, "wait_s must be a number from 0 to 20, not 21"),
        ("receive", {"wait_s": float("nan")}, "wait_s must be a number from 0 to 20, not nan"),
        ("receive", {"lease_s": 0.5}, "lease_s must be a number from 1 to 86,400, not 0.5"),
        (
            "receive",
            {"max_bytes": 1 << 30},
            "max_bytes must be a whole number from 1 to 4,194,304, not 1073741824",
        ),
        (
            "receive",
            {"count": 1},
            "unknown option 'count'; the options are lease_s, max, max_bytes, wait_s",
        ),
        ("finish", {}, "tokens must be a list of 1 to 1,000 tokens"),
        ("finish", {"tokens": []}, "tokens must be a list of 1 to 1,000 tokens"),
        ("finish", {"tokens": TOKEN}, "tokens must be a list of 1 to 1,000 tokens"),
        ("finish", {"tokens": [TOKEN, 7]}, "7 is no token of a receive"),
        ("touch", {"tokens": ["no"]}, "'no' is no token of a receive"),
        ("touch", {"tokens": [TOKEN] * 1001}, "tokens must be a list of 1 to 1,000 tokens"),
        (
            "requeue",
            {"tokens": [TOKEN], "delay_s": 31_622_401},
            "delay_s must be a number from 0 to 31,622,400, not 31622401",
        ),
        (
            "requeue",
            {"tokens": [TOKEN], "delay_s": 1, "backoff": True},
            "give a delay or backoff=True to requeue, not both",
        ),
        (
            "requeue",
            {"tokens": [TOKEN], "reject": True, "backoff": True},
            "give reject, or delay_s, backoff or defer, not both",
        ),
        ("requeue", {"tokens": [TOKEN], "error": 5}, "error must be a text"),
        ("requeue", {"tokens": [TOKEN], "reject": 1}, "reject must be true or false, not 1"),
        (
            "requeue",
            {"tokens": [TOKEN], "defer": "yes"},
            "defer must be true or false, not 'yes'",
        ),
    ],
)
def test_an_invalid_option_is_named(site: ConsoleSite, verb: str, options: Any, why: str) -> None:
    assert refused(site, f"{CHANNEL}/{verb}", options) == (400, f"E_BAD_ARGUMENT {why}")


def test_names_in_the_path_are_checked(site: ConsoleSite) -> None:
    for path, why in (
        ("/api/v1/topics/a$/channels/c/receive", "INVALID_TOPIC"),
        ("/api/v1/topics/a/channels/c$/finish", "INVALID_ARG_CHANNEL"),
    ):
        assert refused(site, path, {"tokens": [TOKEN]} if "finish" in path else {}) == (400, why)


def test_a_token_of_another_process_has_ended(site: ConsoleSite) -> None:
    answer = site.post(f"{CHANNEL}/finish", json.dumps({"tokens": [TOKEN]}).encode())
    assert answer.status_code == 410
    why = "E_LEASE the lease has ended; the message was or will be delivered again"
    assert answer.json() == {
        "message": why,
        "done": 0,
        "failed": [{"token": TOKEN, "message": why}],
    }


def test_a_gateway_that_stops_begins_no_receive(site: ConsoleSite) -> None:
    assert refused(site, f"{CHANNEL}/receive", {}) == (503, "EXITING")


def test_any_name_of_the_broker_may_be_used_but_not_by_browsers(site: ConsoleSite) -> None:
    target, host = f"{CHANNEL}/receive", {"host": "zsq.internal:4151"}
    assert site.post(target, headers=host).status_code == 503, "it was not refused by its name"
    page = {**host, "origin": "http://zsq.internal:4151"}
    assert site.post(target, headers=page).status_code == 421


def test_metrics_have_the_path_without_names(site: ConsoleSite) -> None:
    assert site.app.known(f"{CHANNEL}/receive") == (
        "/api/v1/topics/{topic}/channels/{channel}/receive"
    )
    assert site.app.known(f"{CHANNEL}/other") == "other"
    assert site.app.known("/config/log_level") == "/config/{option}"
