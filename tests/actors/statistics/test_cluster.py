"""Tests of the report about a cluster: roles of addresses, merged answers, and sums of parts."""

from __future__ import annotations

from typing import Any

import pytest

from zsq.actors.statistics import cluster
from zsq.actors.statistics.cluster import Answer, PartSeen, Seen
from zsq.actors.statistics.overview import CHANNEL_FIELDS, TOPIC_FIELDS
from zsq.transport.errors import E_BAD_KEY, E_FENCED, E_FORBIDDEN, E_STANDBY, E_TIMEOUT

ONE, TWO = "tcp://one:4153", "tcp://two:4153"


def seen(uuid: str = "u0", parts: Any = None, health: str = "OK", **bucket: Any) -> Seen:
    usual = {"shipping": "open", "lag_s": 0.5, "epoch": 3, "standbys": 0}
    return Seen(uuid, health, usual | bucket, parts or {})


def part(head: int, start: int = 0, **channels: int) -> PartSeen:
    backlog = max(channels.values(), default=7)
    return PartSeen("up", "OK", "", start, head, head - start, backlog, 0.25, channels)


def broker(number: int = 0, *urls: str, me: bool = False) -> Any:
    return {
        "number": number,
        "uuid": f"u{number}",
        "addresses": urls or (ONE,),
        "me": me,
        "draining": 0,
        "gone": False,
    }


def topic(name: str, *parts: int, closed: tuple[int, ...] = ()) -> Any:
    return {"topic": name, "uuid": f"of-{name}", "parts": parts, "closed": closed, "moves": {}}


def told(brokers: Any, *topics: Any) -> Any:
    known: Any = {
        "directory": 9,
        "is_shared": True,
        "trouble": "none",
        "auto": {"is_on": False},
        "moving": 0,
        "planned": 0,
    }
    return {"brokers": brokers, "topics": topics, **known}


@pytest.mark.parametrize(
    ("answer", "newest", "role"),
    [
        (Answer(ONE, seen()), 3, "primary"),
        (Answer(ONE, seen(epoch=2)), 3, "fenced"),
        (Answer(ONE, seen(epoch=0)), 3, "primary"),  # it has just started
        (Answer(ONE, seen(shipping="lost")), 3, "fenced"),
        (Answer(ONE, Seen("u0", "OK", {}, {})), 3, "primary"),  # it shows no bucket
        (Answer(ONE, seen("u7")), 3, "other"),
        (Answer(ONE, code=E_STANDBY), 3, "standby"),
        (Answer(ONE, code=E_FENCED), 3, "fenced"),
        (Answer(ONE, code=E_FORBIDDEN), 3, "refused"),
        (Answer(ONE, code=E_BAD_KEY), 3, "refused"),
        (Answer(ONE, code=E_TIMEOUT), 3, "away"),
        (Answer(ONE), 3, "away"),
    ],
)
def test_an_answer_says_the_role_of_its_address(answer: Answer, newest: int, role: str) -> None:
    assert cluster.role_of(answer, "u0", newest) == role


@pytest.mark.parametrize(
    ("answers", "role", "state", "epoch"),
    [
        ([], "away", "away", None),
        ([Answer(ONE, code=E_TIMEOUT), Answer(TWO, seen())], "primary", "up", 3),
        ([Answer(ONE, seen(epoch=3)), Answer(TWO, seen(epoch=4))], "primary", "up", 4),
        ([Answer(ONE, seen(shipping="lost")), Answer(TWO, code=E_STANDBY)], "fenced", "away", 3),
        ([Answer(ONE, code=E_TIMEOUT), Answer(TWO, code=E_STANDBY)], "standby", "away", None),
        ([Answer(ONE, code=E_FORBIDDEN), Answer(TWO)], "refused", "away", None),
        ([Answer(ONE, seen("u7")), Answer(TWO)], "other", "away", 3),
    ],
)
def test_the_best_role_is_that_of_the_broker(
    answers: list[Answer], role: str, state: str, epoch: int | None
) -> None:
    row, found = cluster.broker_row(broker(0, ONE, TWO), answers, 0)
    assert (row["role"], row["state"], row["epoch"]) == (role, state, epoch)
    assert (found is not None) == (state == "up")


def test_another_broker_at_an_address_does_not_fence_this_one() -> None:
    answers = [Answer(ONE, seen(epoch=1)), Answer(TWO, seen("u7", epoch=9))]
    row, _ = cluster.broker_row(broker(0, ONE, TWO), answers, 0)
    assert [(one["url"], one["role"]) for one in row["places"]] == [
        (ONE, "primary"),
        (TWO, "other"),
    ]


def test_a_broker_that_answers_shows_its_bucket() -> None:
    row, _ = cluster.broker_row(broker(), [Answer(ONE, seen(health="disk is full"))], 4)
    assert row == {
        "number": 0, "uuid": "u0", "me": False, "addresses": [ONE], "state": "up", "role": "primary", "epoch": 3,
        "health": "disk is full", "lag_s": 0.5, "standbys": 0, "parts": 4, "why": "", "handover": "",
        "draining": 0, "gone": False, "free_bytes": None,
        "places": [{"url": ONE, "role": "primary", "epoch": 3, "why": ""}],
    }  # fmt: skip


def test_a_broker_that_does_not_answer_says_why_once() -> None:
    answers = [Answer(ONE, why="no answer"), Answer(TWO, why="no answer")]
    row, _ = cluster.broker_row(broker(0, ONE, TWO), answers, 4)
    assert (row["why"], row["lag_s"], row["standbys"]) == ("no answer", None, None)


def test_a_standby_is_no_reason_why_no_primary_answers() -> None:
    answers = [Answer(ONE, why="no answer"), Answer(TWO, code=E_STANDBY, why="a standby")]
    assert cluster.broker_row(broker(0, ONE, TWO), answers, 0)[0]["why"] == "no answer"
    assert cluster.broker_row(broker(0, TWO), answers[1:], 0)[0]["why"] == "a standby"


def test_the_broker_that_is_asked_says_its_own_addresses() -> None:
    row, _ = cluster.broker_row(broker(me=True), [Answer("", seen(addresses=f"{ONE},{TWO}"))], 0)
    assert [(one["url"], one["role"], one["epoch"]) for one in row["places"]] == [
        (ONE, "primary", 3),
        (TWO, "primary", 3),
    ]


@pytest.mark.parametrize(
    ("answers", "command"),
    [
        ([Answer(ONE, seen())], ""),
        (
            [Answer(ONE, seen(standbys=1)), Answer(TWO, code=E_STANDBY)],
            f"zsq handover --url {ONE},{TWO}",
        ),
        # the standby was not reached from here, but the primary knows its address
        ([Answer(ONE, seen(standbys=1, standby_addresses=TWO))], f"zsq handover --url {ONE},{TWO}"),
        ([Answer("", seen(standbys=1))], "zsq handover"),
        ([Answer("", seen(standbys=1, trouble="no answer"))], ""),
        (
            [Answer(ONE, seen(standbys=1, standby_addresses="tcp://$(reboot):1"))],
            f"zsq handover --url '{ONE},tcp://$(reboot):1'",
        ),
        ([Answer(ONE, code=E_STANDBY)], ""),
    ],
)
def test_the_command_that_hands_over_names_both_brokers(
    answers: list[Answer], command: str
) -> None:
    assert cluster.broker_row(broker(0, ONE, TWO), answers, 0)[0]["handover"] == command


def test_a_topic_is_summed_up_over_the_brokers_that_answer() -> None:
    here = {"t#0": part(10, 4, a=3, b=5), "t#2": part(6, a=4)}
    answers = {0: [Answer(ONE, seen(parts=here))], 1: [Answer(TWO, code=E_TIMEOUT)]}
    found = cluster.merge(
        told([broker(0, ONE), broker(1, TWO)], topic("t", 0, 1, 0, closed=(1,))), answers
    )
    (row,) = found["topics"]
    assert [one["parts"] for one in found["brokers"]] == [2, 1]
    assert (row["answered"], row["messages"], row["closed_count"]) == (2, 12, 1)
    assert (row["channels"], row["backlog"]) == ({"a": 7, "b": 5}, 7)
    assert [(one["name"], one["state"], one["closed"]) for one in row["parts"]] == [
        ("t#0", "up", False),
        ("t#1", "away", True),
        ("t#2", "up", False),
    ]
    assert (row["parts"][0]["start"], row["parts"][0]["head"]) == (4, 10)
    assert (row["parts"][0]["lag_s"], row["parts"][0]["backlog"]) == (0.25, 5)
    assert row["parts"][1]["messages"] is None
    assert (found["directory"], found["trouble"], found["is_cluster"]) == (9, "none", True)


def test_parts_without_a_channel_add_what_waits_for_a_first_one() -> None:
    parts = {"t#0": part(10, a=3), "t#1": part(9)}
    row = cluster.topic_row(topic("t", 0, 0), {0: seen(parts=parts)})
    assert row["backlog"] == 3 + 7


@pytest.mark.parametrize(
    ("parts", "state", "closed"),
    [
        ({}, "not open yet", False),
        ({"t#0": part(1)._replace(state="asleep")}, "asleep", False),
        ({"t#0": part(1)._replace(health="failed")}, "failed", False),
        ({"t#0": part(1)._replace(closed="publishers")}, "up", True),
    ],
)
def test_a_part_shows_its_state(parts: dict[str, PartSeen], state: str, closed: bool) -> None:
    (row,) = cluster.topic_row(topic("t", 0), {0: seen(parts=parts)})["parts"]
    assert (row["state"], row["closed"]) == (state, closed)


def test_a_part_that_moves_shows_where_to() -> None:
    moving: Any = {**topic("t", 0, 1), "moves": {1: 0}}
    rows = cluster.topic_row(moving, {0: seen(), 1: seen()})["parts"]
    assert [row["to"] for row in rows] == [None, 0]


def test_a_broker_that_was_forgotten_is_not_called_away() -> None:
    gone: Any = {**broker(1), "gone": True}
    row, _ = cluster.broker_row(gone, (), 0)
    assert (row["role"], row["gone"]) == ("forgotten", True)


# Answers of brokers

CHANNEL = {"depth": 4, "in_flight": 2, "deferred": 1}


def overview() -> Any:
    of_topic = {
        "state": "up",
        "health": "OK",
        "closed": "",
        "start": 2,
        "head": 9,
        "kept": 5,
        "backlog": 7,
        "log_bytes": 70,
    }
    row = tuple(of_topic.get(name, 0) for name in TOPIC_FIELDS)
    channel = tuple(CHANNEL.get(name, 0) for name in CHANNEL_FIELDS)
    return {
        "topics": {"t#1": (row, {"a": channel}), "plain": (row, {}), "e#ephemeral": (row, {})},
        "topic_fields": TOPIC_FIELDS,
        "channel_fields": CHANNEL_FIELDS,
        "broker": {"uuid": "u0", "health": "OK"},
        "bucket": {"epoch": 3},
    }


def stats() -> Any:
    channel = {"channel_name": "a", "depth": 4, "in_flight_count": 2, "deferred_count": 1}
    row = {
        "topic_name": "t#1", "asleep": False, "health": "OK", "closed": "", "start": 2, "head": 9, "kept_count": 5, "depth": 0,
        "ship_lag_s": 0.5, "log_bytes": 70, "channels": [channel],
    }  # fmt: skip
    topics = [row, row | {"topic_name": "plain"}, row | {"topic_name": "e#ephemeral"}]
    return {"uuid": "u0", "health": "OK", "topics": topics, "bucket": {"epoch": 3}}


def test_an_overview_and_statistics_say_the_same_of_parts() -> None:
    wanted = PartSeen("up", "OK", "", 2, 9, 5, 7, None, {"a": 7}, 70)
    assert cluster.seen_in_overview(overview()) == Seen("u0", "OK", {"epoch": 3}, {"t#1": wanted})
    told = cluster.seen_in_stats(stats())
    assert told == Seen("u0", "OK", {"epoch": 3}, {"t#1": wanted._replace(lag_s=0.5)})


def test_a_part_without_a_channel_has_what_waits_for_a_first_one() -> None:
    found = stats()
    found["topics"] = [found["topics"][0] | {"channels": [], "depth": 5, "asleep": True}]
    (one,) = cluster.seen_in_stats(found).parts.values()
    assert (one.backlog, one.state) == (5, "asleep")


def test_a_broker_without_a_cluster_is_alone_in_it() -> None:
    only: Any = {
        "number": 0,
        "uuid": "x",
        "addresses": (),
        "bucket": "",
        "me": True,
        "draining": 0,
        "gone": False,
    }
    local: Any = {**told([only]), "is_shared": False}
    found = cluster.alone(local, seen("x", addresses=f"{ONE},{TWO}"))
    assert found["brokers"] == [{**only, "addresses": (ONE, TWO)}]
    assert cluster.merge(found, {})["is_cluster"] is False


def test_an_older_broker_says_no_addresses() -> None:
    assert Seen("u", "OK", {}, {}).addresses("standby_addresses") == ()
