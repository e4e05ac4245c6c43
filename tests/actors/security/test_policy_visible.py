"""Tests of which of the broker's statistics each user sees, and of what an auth server's two
permissions mean over HTTP.
"""

from __future__ import annotations

import json
from typing import Any

from zsq.actors.gateways.shared.auth_policy import LOOKING, granted
from zsq.actors.security.access import Access
from zsq.actors.security.policy import (
    EVERYBODY,
    NOBODY,
    UNWELL,
    AccessPolicy,
    Principal,
    visible,
)
from zsq.transport.nsq.permissions import parse_state
from zsq.transport.wire.actions import Action

STATS: dict[str, Any] = {
    "health": "failed topics: hidden",
    "topics": [{"topic_name": "clicks"}, {"topic_name": "hidden"}],
    "alarms": [{"topic": "clicks"}, {"topic": "hidden"}],
    "recent_alarms": [{"topic": "hidden"}],
    "alarm_receivers": [{"name": "webhook https://hidden.example"}],
    "producers": [
        {
            "client_id": "a",
            "pub_counts": [{"topic": "clicks", "count": 1}, {"topic": "hidden", "count": 2}],
        },
        {"client_id": "hidden", "pub_counts": [{"topic": "hidden", "count": 2}]},
    ],
    "processes": [
        {"name": "channel hidden/c", "kind": "channel", "pid": 7, "private_bytes": 1, "restarts": 0}
    ],
}


def user(lists: str) -> Principal:
    return Principal("a", AccessPolicy(Access.parse(f"[users.a]\n{lists}")))


def test_statistics_contain_nothing_of_topics_that_may_not_be_viewed() -> None:
    for lists in (
        'view = ["clicks"]',
        'publish = ["clicks"]',
        'admin = ["clicks"]',
        'subscribe = ["clicks/c"]',
    ):
        principal = user(lists)
        shown = visible(STATS, principal, "stats")
        assert "hidden" not in json.dumps(shown)
        assert shown["health"] == UNWELL
        assert shown["topics"] == [{"topic_name": "clicks"}]
        assert shown["producers"] == [
            {"client_id": "a", "pub_counts": [{"topic": "clicks", "count": 1}]}
        ]
        assert shown["alarms"] == [{"topic": "clicks"}]
    assert visible(STATS, NOBODY, "stats")["topics"] == []
    assert STATS["topics"] == [{"topic_name": "clicks"}, {"topic_name": "hidden"}], (
        "what is shared is not changed"
    )


def test_a_user_who_sees_all_topics_does_not_see_facts_of_the_broker() -> None:
    for principal in (user('view = ["*"]'), LOOKING):
        shown = visible(STATS, principal, "stats")
        assert shown["topics"] == STATS["topics"]
        assert shown["alarm_receivers"] == []
        assert shown["processes"] == [{"kind": "channel", "private_bytes": 1, "restarts": 0}]
    for one in (user('admin = ["*"]'), EVERYBODY):
        assert visible(STATS, one, "stats") == STATS


def test_grants_of_an_auth_server_permit_only_their_channels() -> None:
    def those(*channels: str, permissions: tuple[str, ...] = ("publish", "subscribe")) -> Principal:
        row = {"topic": "clicks", "channels": channels, "permissions": permissions}
        return granted(
            parse_state(json.dumps({"ttl": 9, "identity": "me", "authorizations": [row]}).encode())
        )

    some, everything = those("c"), those(".*")
    assert (some.name, some.may(Action.ADMINISTER), some.may(Action.SEE_ALL)) == ("me", False, True)
    assert some.may(Action.CONSUME, "clicks", "c")
    assert not some.may(Action.READ, "clicks"), "reading by offset is reading all channels"
    assert not some.may(Action.CONSUME, "clicks"), "and so is to consume a channel without a name"
    assert everything.may(Action.READ, "clicks")
    assert not those(".*", permissions=("publish",)).may(Action.READ, "clicks")
    assert some.may(Action.MANAGE_CHANNEL, "clicks", "c")
    assert not some.may(Action.MANAGE_CHANNEL, "clicks", "d")
    assert not everything.may(Action.MANAGE_CHANNEL, "clicks", ""), "no channel is named"
    assert everything.may(Action.MANAGE_TOPIC, "clicks")
    assert not those(".*", permissions=("subscribe",)).may(Action.MANAGE_TOPIC, "clicks")
    assert not everything.may(Action.MANAGE_TOPIC, "other")
