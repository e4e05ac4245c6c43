"""Tests of the permission that each order and each link needs, and of which rows of an answer a
principal sees.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from zsq.actors.gateways.zeromq import ALLOWED
from zsq.actors.security import policy
from zsq.actors.security.access import Access
from zsq.actors.security.policy import (
    EVERYBODY,
    FILTERS,
    LINKS,
    NOBODY,
    UNWELL,
    AccessPolicy,
    Principal,
    visible,
)
from zsq.transport.errors import E_FORBIDDEN, Refused, UsageError
from zsq.transport.wire import protocol as p
from zsq.transport.wire.actions import Action
from zsq.transport.wire.admin_requests import REQUESTS


def principals(file: str) -> dict[str, Principal]:
    access = Access.parse(file)
    own = AccessPolicy(access)
    return {name: Principal(name, own) for name in access.users}


USERS = principals("""
[users.admin]
admin = ["t"]
[users.publisher]
publish = ["t"]
[users.reader]
subscribe = ["t"]
[users.consumer]
subscribe = ["t/c"]
[users.redriver]
subscribe = ["t/redrive"]
publish = ["t"]
[users.viewer]
view = ["t"]
[users.elsewhere]
admin = ["u"]
publish = ["u"]
subscribe = ["u"]
[users.all]
view = ["*"]
""") | {"": EVERYBODY, "nobody": NOBODY}
ALL = frozenset(USERS) - {"nobody"}
ORIGIN = ("t", "0" * 32, "c")
ADMINS = frozenset({"admin", ""})
LOOKERS = ALL - {"elsewhere"}


def permits(check: Callable[[Principal], None]) -> frozenset[str]:
    """Return the names of the users who are not refused because of a missing permission."""

    def refused(user: Principal) -> bool:
        try:
            check(user)
        except Refused as error:
            return error.code == E_FORBIDDEN and "access file" in error.text
        return False

    return frozenset(name for name, user in USERS.items() if not refused(user))


def who_may(message: p.Wire) -> frozenset[str]:
    return permits(lambda user: policy.check_message(user, message))


@pytest.mark.parametrize(
    ("action", "topic", "channel", "options", "may"),
    [
        ("create", "t", "", {}, ADMINS),
        ("create", "t", "c", {}, ADMINS),
        ("delete", "t", "", {"force": True}, ADMINS),
        ("delete", "t", "c", {}, ADMINS),
        ("pause", "t", "", {}, ADMINS),
        ("unpause", "t", "c", {}, ADMINS),
        ("empty", "t", "c", {}, ADMINS),
        ("configure", "t", "", {"keep_time_s": 1}, ADMINS),
        ("close", "t", "", {"to": "publishers"}, ADMINS),
        ("open", "t", "", {"to": "publishers"}, ADMINS),
        ("seek", "t", "c", {"offset": 0}, ADMINS),
        ("backup", "t", "", {"do": "state", "id": "x"}, {""}),
        ("audit", "t", "", {}, {""}),
        ("delayed", "t", "", {"do": "cancel", "all": True}, ADMINS),
        ("delayed", "t", "", {"do": "list"}, {"reader", ""}),
        ("delayed", "t", "", {"do": "count"}, LOOKERS),
        ("redrive", "t", "", {"to": "t", "origin": ORIGIN}, {"redriver", ""}),
        ("redrive", "t", "", {"to": "t", "to_channel": "c", "origin": ORIGIN}, {""}),
        ("redrive", "t", "", {"to": "u", "origin": ORIGIN}, {""}),
        ("redrive", "t", "", {"to": "", "origin": ORIGIN}, {""}),
        ("peek", "t", "c", {"limit": 1}, {"reader", "consumer", ""}),
        ("peek", "t", "d", {"limit": 1}, {"reader", ""}),
        ("chunks", "t", "", {}, LOOKERS),
        ("ended", "t", "", {}, LOOKERS),
        ("list", "", "", {}, ALL),
        ("overview", "", "", {}, ALL),
        ("cluster", "", "", {}, ALL),
        ("create", "t", "", {"parts": 4}, ADMINS),
        ("add_parts", "t", "", {"count": 1}, ADMINS),
        ("remove_part", "t#3", "", {"force": True}, ADMINS),
        ("pause", "t#3", "", {}, ADMINS),
        ("peek", "t#3", "c", {"limit": 1}, {"reader", "consumer", ""}),
        ("redrive", "t#3", "", {"to": "t#255", "origin": ORIGIN}, {"redriver", ""}),
        ("pause", "t#256", "", {}, {""}),
        ("pause", "t#03", "", {}, {""}),
        ("pause", "t#ephemeral", "", {}, {""}),
    ],
)
def test_each_order_is_permitted_to_exactly_these_users(
    action: str, topic: str, channel: str, options: dict[str, Any], may: frozenset[str]
) -> None:
    assert who_may(p.Manage(1, action, topic, channel, options)) == may


@pytest.mark.parametrize(
    ("action", "options"),
    [("invented later", {}), ("delayed", {}), ("redrive", {"to": 3}), ("pause", {"to": "t"})],
)
def test_an_order_that_is_not_valid_is_refused_to_every_user(
    action: str, options: dict[str, Any]
) -> None:
    for user in USERS.values():
        with pytest.raises(UsageError):
            policy.check_message(user, p.Manage(1, action, "t", "", options))


def test_only_permitted_users_may_ask_for_statistics_and_endpoints() -> None:
    assert who_may(p.Stats(1, "t", "")) == LOOKERS
    assert who_may(p.Stats(1, "", "")) == ALL
    assert who_may(p.Lookup(1, "t", "", False)) == LOOKERS
    assert who_may(p.Lookup(1, "t", "c", True)) == ADMINS
    assert who_may(p.Lookup(1, "", "", True)) == {""}


@pytest.mark.parametrize(
    ("kind", "channel", "may"),
    [
        ("supervisor", "", ALL),
        ("topic", "", {"publisher", "redriver", ""}),
        ("stage", "", {"publisher", "redriver", ""}),
        ("reader", "", {"reader", ""}),
        ("channel", "c", {"reader", "consumer", ""}),
        ("channel", "d", {"reader", ""}),
        ("invented later", "", frozenset()),
    ],
)
def test_each_link_may_be_opened_by_exactly_these_users(
    kind: str, channel: str, may: frozenset[str]
) -> None:
    assert (
        permits(lambda user: policy.check_open(user, p.Open(1, kind, "t", channel, False))) == may
    )


def _opens(link: p.Open, user: Principal) -> None:
    policy.check_open(user, link)


def test_a_part_has_the_permissions_of_its_topic() -> None:
    for kind in LINKS:
        topic, part = (p.Open(1, kind, name, "c", False) for name in ("t", "t#3"))
        may = permits(partial(_opens, topic))
        assert permits(partial(_opens, part)) == may, kind
    assert not USERS["elsewhere"].may(Action.PUBLISH, "t#3")
    assert USERS["elsewhere"].may(Action.PUBLISH, "u#3")


def test_every_kind_of_link_has_its_rule() -> None:
    assert LINKS.keys() == ALLOWED.keys()


def test_naming_a_dead_letter_topic_needs_the_right_to_read_the_topic() -> None:
    """Without this rule, a user with `admin` on a topic could read its messages. The user would let
    them become dead letters in a topic of their own.
    """
    settings = {"dead_letter_topic": "mine", "max_attempts": 1}
    admin = principals('[users.x]\npublish = ["*"]\nadmin = ["*"]')["x"]
    for message in (
        p.Manage(1, "create", "t", "c", settings),
        p.Manage(1, "configure", "t", "c", settings),
    ):
        with pytest.raises(Refused, match=r"dead letters.*subscribe"):
            policy.check_message(admin, message)


def test_dead_letters_go_only_where_their_sender_may_publish() -> None:
    """Without this rule, a user who may consume one topic could write into any other topic, by
    rejecting messages.
    """
    settings = {"dead_letter_topic": "other", "max_attempts": 1}
    user = principals('[users.x]\nsubscribe = ["*"]\nadmin = ["t"]')["x"]
    for message in (
        p.Manage(1, "create", "t", "c", settings),
        p.Manage(1, "configure", "t", "c", settings),
        p.Lookup(1, "t", "c", True, settings),
    ):
        with pytest.raises(Refused, match="dead letters"):
            policy.check_message(user, message)
        policy.check_message(EVERYBODY, message)
    with pytest.raises(Refused, match="dead letters"):
        policy.check_open(user, p.Open(1, "channel", "t", "c", True, settings))
    with pytest.raises(Refused, match="dead letters"):
        policy.check_open(EVERYBODY, p.Open(1, "channel", "t", "c", True, {"dead_letter_topic": 3}))


STATS: dict[str, Any] = {
    "health": "failed topics: u",
    "topics": [{"topic_name": "t"}, {"topic_name": "u"}],
    "processes": [
        {
            "name": "topic u",
            "pid": 1,
            "kind": "topic",
            "state": "up",
            "private_bytes": 5,
            "restarts": 0,
        }
    ],
    "alarms": [{"topic": "u"}, {"topic": "t"}],
    "recent_alarms": [{"topic": "u"}],
    "alarm_receivers": [{"name": "webhook https://SECRET"}],
    "gateways": [{"name": "nsq gateway", "kind": "nsq_gateway", "connections": 3}],
    "producers": [
        {"pub_counts": [{"topic": "t"}, {"topic": "u"}]},
        {"pub_counts": [{"topic": "u"}]},
    ],
}
OVERVIEW: dict[str, Any] = {
    "topics": {"t": ((), {}), "u": ((), {})},
    "broker": {"health": "failed topics: u", "alarms": 3},
    "alarms": {"now": [{"topic": "u"}], "recent": [], "receivers": ["https://SECRET"]},
}


def test_only_the_viewable_part_of_an_answer_is_visible() -> None:
    found = visible(STATS, USERS["viewer"], "stats")
    assert "gateways" not in found, "it tells of the clients of all topics"
    assert [row["topic_name"] for row in found["topics"]] == ["t"]
    assert found["producers"] == [{"pub_counts": [{"topic": "t"}]}]
    assert found["alarms"] == [{"topic": "t"}]
    assert found["recent_alarms"] == []
    assert found["health"] == UNWELL
    assert "'u'" not in repr(found)
    glance = visible(OVERVIEW, USERS["viewer"], "overview")
    assert set(glance["topics"]) == {"t"}
    assert "u" not in repr(glance["alarms"])
    assert glance["broker"]["health"] == UNWELL


def test_a_user_sees_only_its_topics_of_a_cluster() -> None:
    answer = {
        "brokers": [{"number": 0, "addresses": ("tcp://a:4153",)}],
        "topics": [{"topic": "t", "parts": (0, 0)}, {"topic": "u", "parts": (0,)}],
        "directory": 3,
    }
    shown = visible(answer, USERS["elsewhere"], "cluster")
    assert shown == {**answer, "topics": [{"topic": "u", "parts": (0,)}]}
    assert visible(answer, USERS["all"], "cluster") == answer


def test_facts_about_the_broker_are_only_for_its_admin() -> None:
    for kind, answer in (("stats", STATS), ("overview", OVERVIEW)):
        found = repr(visible(answer, USERS["all"], kind))
        assert "SECRET" not in found
        assert "pid" not in found
        assert visible(answer, EVERYBODY, kind) == answer
    assert len(visible(STATS, USERS["all"], "stats")["topics"]) == 2
    assert visible({"existed": True}, NOBODY, "create") == {"existed": True}


def test_an_answer_about_the_whole_broker_without_a_filter_is_not_visible() -> None:
    """A new one would otherwise show all until somebody thinks of it."""
    answer = {"secrets": ["SECRET"]}
    assert visible(answer, USERS["viewer"], "a new request") == {}
    assert visible(answer, USERS["all"], "a new request") == {}
    assert visible(answer, EVERYBODY, "a new request") == answer
    whole = {row.name for row in REQUESTS if row.action is Action.SEE_SOME}
    assert whole < FILTERS.keys(), "each of them has its filter"
