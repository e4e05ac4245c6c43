"""What each order and link needs, by table; and what of an answer somebody sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from zsq.actors import permissions
from zsq.actors.access import Access, User
from zsq.actors.doors import EVERYBODY, NOBODY
from zsq.actors.gateway import ALLOWED
from zsq.actors.seen import UNWELL, seen
from zsq.transport import protocol as p
from zsq.transport.errors import E_FORBIDDEN, Refused

USERS = Access.parse("""
[users.admin]
admin = ["t"]
[users.publisher]
publish = ["t"]
[users.reader]
subscribe = ["t"]
[users.consumer]
subscribe = ["t/c"]
[users.viewer]
view = ["t"]
[users.elsewhere]
admin = ["u"]
publish = ["u"]
subscribe = ["u"]
[users.all]
view = ["*"]
""").users | {"": EVERYBODY, "nobody": NOBODY}
ALL = frozenset(USERS) - {"nobody"}
ADMINS = frozenset({"admin", ""})
LOOKERS = ALL - {"elsewhere"}


def permits(check: Callable[[User], None]) -> frozenset[str]:
    """The names of those who are not refused for want of a permission."""

    def refused(user: User) -> bool:
        try:
            check(user)
        except Refused as error:
            return error.code == E_FORBIDDEN and "access file" in error.text
        return False

    return frozenset(name for name, user in USERS.items() if not refused(user))


def who_may(word: p.Wire) -> frozenset[str]:
    return permits(lambda user: permissions.check_word(user, word))


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
        ("configure", "t", "", {"keep_s": 1}, ADMINS),
        ("close", "t", "", {"to": "publishers"}, ADMINS),
        ("open", "t", "", {"to": "publishers"}, ADMINS),
        ("seek", "t", "c", {"offset": 0}, ADMINS),
        ("backup", "t", "", {}, {""}),
        ("audit", "t", "", {}, {""}),
        ("invented later", "t", "", {}, {""}),
        ("invented later", "", "", {}, {""}),
        ("delayed", "t", "", {"do": "cancel", "all": True}, ADMINS),
        ("delayed", "t", "", {}, {""}),
        ("delayed", "t", "", {"do": "list"}, {"reader", ""}),
        ("delayed", "t", "", {"do": "count"}, LOOKERS),
        ("peek", "t", "c", {}, {"reader", "consumer", ""}),
        ("peek", "t", "d", {}, {"reader", ""}),
        ("chunks", "t", "", {}, LOOKERS),
        ("list", "", "", {}, ALL),
        ("overview", "", "", {}, ALL),
    ],
)
def test_who_may_order_what(action: str, topic: str, channel: str, options: dict[str, Any], may: frozenset[str]) -> None:
    assert who_may(p.Manage(1, action, topic, channel, options)) == may


def test_who_may_ask_for_statistics_and_places() -> None:
    assert who_may(p.Stats(1, "t", "")) == LOOKERS
    assert who_may(p.Stats(1, "", "")) == ALL
    assert who_may(p.Lookup(1, "t", "", False)) == LOOKERS
    assert who_may(p.Lookup(1, "t", "c", True)) == ADMINS
    assert who_may(p.Lookup(1, "", "", True)) == {""}


@pytest.mark.parametrize(
    ("kind", "channel", "may"),
    [
        ("supervisor", "", ALL),
        ("topic", "", {"publisher", ""}),
        ("stage", "", {"publisher", ""}),
        ("reader", "", {"reader", ""}),
        ("channel", "c", {"reader", "consumer", ""}),
        ("channel", "d", {"reader", ""}),
        ("invented later", "", frozenset()),
    ],
)
def test_who_may_open_which_link(kind: str, channel: str, may: frozenset[str]) -> None:
    assert permits(lambda user: permissions.check_open(user, kind, "t", channel, {})) == may


def test_every_kind_of_link_has_its_rule() -> None:
    for kind in ALLOWED:
        permissions.check_open(EVERYBODY, kind, "t", "c", {})


def test_dead_letters_go_only_where_their_sender_may_publish() -> None:
    """Else who may consume one topic could write into any other: by giving up what he gets."""
    settings = {"dead_letter_topic": "other", "max_attempts": 1}
    user = User("x", subscribe=EVERYBODY.subscribe, admin=USERS["admin"].admin)
    for word in (
        p.Manage(1, "create", "t", "c", settings),
        p.Manage(1, "configure", "t", "c", settings),
        p.Lookup(1, "t", "c", True, settings),
    ):
        with pytest.raises(Refused, match="dead letters"):
            permissions.check_word(user, word)
        permissions.check_word(EVERYBODY, word)
    with pytest.raises(Refused, match="dead letters"):
        permissions.check_open(user, "channel", "t", "c", settings)
    with pytest.raises(Refused, match="dead letters"):
        permissions.check_open(EVERYBODY, "channel", "t", "c", {"dead_letter_topic": 3})


STATS: dict[str, Any] = {
    "health": "failed topics: u",
    "topics": [{"topic_name": "t"}, {"topic_name": "u"}],
    "processes": [{"name": "topic u", "pid": 1, "kind": "topic", "state": "up", "private_bytes": 5, "restarts": 0}],
    "alarms": [{"topic": "u"}, {"topic": "t"}],
    "recent_alarms": [{"topic": "u"}],
    "alarm_receivers": [{"name": "webhook https://SECRET"}],
    "producers": [{"pub_counts": [{"topic": "t"}, {"topic": "u"}]}, {"pub_counts": [{"topic": "u"}]}],
}
OVERVIEW: dict[str, Any] = {
    "topics": {"t": ((), {}), "u": ((), {})},
    "broker": {"health": "failed topics: u", "alarms": 3},
    "alarms": {"now": [{"topic": "u"}], "recent": [], "receivers": ["https://SECRET"]},
}


def test_of_an_answer_only_what_may_be_viewed_is_seen() -> None:
    found = seen(STATS, USERS["viewer"])
    assert [row["topic_name"] for row in found["topics"]] == ["t"]
    assert found["producers"] == [{"pub_counts": [{"topic": "t"}]}]
    assert found["alarms"] == [{"topic": "t"}]
    assert found["recent_alarms"] == []
    assert found["health"] == UNWELL
    assert "'u'" not in repr(found)
    glance = seen(OVERVIEW, USERS["viewer"])
    assert set(glance["topics"]) == {"t"}
    assert "u" not in repr(glance["alarms"])
    assert glance["broker"]["health"] == UNWELL


def test_what_is_the_brokers_own_is_for_its_admin() -> None:
    for answer in (STATS, OVERVIEW):
        found = repr(seen(answer, USERS["all"]))
        assert "SECRET" not in found
        assert "pid" not in found
        assert seen(answer, EVERYBODY) == answer
    assert len(seen(STATS, USERS["all"])["topics"]) == 2
    assert seen({"existed": True}, NOBODY) == {"existed": True}
