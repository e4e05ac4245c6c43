"""What of the broker's statistics is shown to whom, and what an auth server's two permissions mean over HTTP."""

from __future__ import annotations

import json
from typing import Any

from zsq.actors.access import Access
from zsq.actors.http.rights import EVERYTHING, LOOKING, NOTHING, OfAuthServer, OfUser
from zsq.actors.seen import UNWELL, seen
from zsq.transport.nsq.permissions import parse_state

STATS: dict[str, Any] = {
    "health": "failed topics: hidden",
    "topics": [{"topic_name": "clicks"}, {"topic_name": "hidden"}],
    "alarms": [{"topic": "clicks"}, {"topic": "hidden"}],
    "recent_alarms": [{"topic": "hidden"}],
    "alarm_receivers": [{"name": "webhook https://hidden.example"}],
    "producers": [
        {"client_id": "a", "pub_counts": [{"topic": "clicks", "count": 1}, {"topic": "hidden", "count": 2}]},
        {"client_id": "hidden", "pub_counts": [{"topic": "hidden", "count": 2}]},
    ],
    "processes": [{"name": "channel hidden/c", "kind": "channel", "pid": 7, "private_bytes": 1, "restarts": 0}],
}


def user(lists: str) -> OfUser:
    return OfUser(Access.parse(f"[users.a]\n{lists}").users["a"])


def test_of_topics_that_may_not_be_seen_nothing_is_left() -> None:
    for rights in (user('view = ["clicks"]'), user('publish = ["clicks"]'), user('admin = ["clicks"]'), user('subscribe = ["clicks/c"]')):
        shown = seen(STATS, rights)
        assert "hidden" not in json.dumps(shown)
        assert shown["health"] == UNWELL
        assert shown["topics"] == [{"topic_name": "clicks"}]
        assert shown["producers"] == [{"client_id": "a", "pub_counts": [{"topic": "clicks", "count": 1}]}]
        assert shown["alarms"] == [{"topic": "clicks"}]
    assert seen(STATS, NOTHING)["topics"] == []
    assert STATS["topics"] == [{"topic_name": "clicks"}, {"topic_name": "hidden"}], "what is shared is not changed"


def test_who_sees_all_still_does_not_see_what_is_the_brokers() -> None:
    for rights in (user('view = ["*"]'), LOOKING):
        shown = seen(STATS, rights)
        assert shown["topics"] == STATS["topics"]
        assert shown["alarm_receivers"] == []
        assert shown["processes"] == [{"kind": "channel", "private_bytes": 1, "restarts": 0}]
    for one in (user('admin = ["*"]'), EVERYTHING):
        assert seen(STATS, one) == STATS


def test_what_an_auth_server_permits() -> None:
    def granted(*channels: str, permissions: tuple[str, ...] = ("publish", "subscribe")) -> OfAuthServer:
        row = {"topic": "clicks", "channels": channels, "permissions": permissions}
        return OfAuthServer(parse_state(json.dumps({"ttl": 9, "identity": "me", "authorizations": [row]}).encode()))

    some, everything = granted("c"), granted(".*")
    assert (some.name, some.is_broker_admin, some.sees_all) == ("me", False, True)
    assert some.may_subscribe("clicks", "c")
    assert not some.may_subscribe("clicks"), "reading by offset is reading all channels"
    assert everything.may_subscribe("clicks")
    assert not granted(".*", permissions=("publish",)).may_subscribe("clicks")
    assert some.may_admin("clicks", "c")
    assert not some.may_admin("clicks", "d")
    assert everything.may_admin("clicks")
    assert not granted(".*", permissions=("subscribe",)).may_admin("clicks")
    assert not everything.may_admin("other")
