"""Tests of which channel owns a dead-letter topic, and where its messages may be sent. The uuid of
the topic decides, not only its name.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from zsq.actors.statistics.broker_view import GroupState
from zsq.actors.supervisor.commands.dead_letter_topics import claim, redrive
from zsq.actors.supervisor.topics.registry_format import TopicRow
from zsq.transport.errors import Refused, UsageError, ZsqError
from zsq.transport.wire.admin_requests import RedriveRequest

OLD, NEW, OTHER, PARTED = "a" * 32, "b" * 32, "c" * 32, "d" * 32


class Topics:
    """A broker with topic t and its dead-letter topic t.c.dead, which `owner` owns."""

    def __init__(self, owner: dict[str, str]) -> None:
        self.owned: list[dict[str, str]] = []
        self.broker = SimpleNamespace(
            groups={"t": self.group(NEW), "t.c.dead": self.group(OTHER, owner)},
            registry=SimpleNamespace(
                topics={"t.c.dead": SimpleNamespace(dead_letters_of=owner)},
                own=lambda topic, one: self.owned.append(one),
            ),
        )

    @staticmethod
    def group(uuid: str, owner: dict[str, str] | None = None, part_of: str = "") -> Any:
        row = TopicRow(1, uuid, "always", 0, dead_letters_of=owner or {}, part_of=part_of)
        return SimpleNamespace(
            row=row, state=GroupState.UP, channels={"c": None}, want=lambda _, then: then(None)
        )

    def claim(self, uuid: str, topic: str = "t") -> None:
        by = {"dead_topic": topic, "dead_uuid": uuid, "dead_channel": "c"}
        claim(cast("Any", self.broker), cast("Any", SimpleNamespace(topic="t.c.dead", by=by)))

    def redrive(self, uuid: str, topic: str = "t") -> ZsqError | None:
        answers: list[ZsqError | None] = []
        requests: Any = SimpleNamespace(
            broker=self.broker, settle=lambda _, error: answers.append(error)
        )
        redrive(
            requests,
            RedriveRequest("t.c.dead", to=topic, origin=(topic, uuid, "c")),
        )
        (answer,) = answers
        return answer


def test_a_channel_of_a_deleted_topic_does_not_take_the_letters_of_the_new_one_of_its_name() -> (
    None
):
    """The process of the old channel may still run while the topic is created again."""
    topics = Topics({"uuid": NEW, "channel": "c"})
    topics.claim(NEW)
    with pytest.raises(
        Refused, match=r"already takes the dead letters of channel 'c' of topic 't'"
    ):
        topics.claim(OLD)
    assert topics.owned == [{"uuid": NEW, "channel": "c"}]


def test_a_dead_letter_topic_is_free_when_the_topic_of_its_owner_is_gone() -> None:
    topics = Topics({"uuid": OLD, "channel": "c"})
    topics.claim(NEW)
    assert topics.owned == [{"uuid": NEW, "channel": "c"}]


def test_letters_of_a_topic_that_was_created_again_are_not_sent_back_by_its_name() -> None:
    topics = Topics({})
    refusal = topics.redrive(OLD)
    assert refusal is not None
    assert "was deleted or created again" in refusal.text


def test_a_redrive_without_a_whole_uuid_is_refused() -> None:
    with pytest.raises(UsageError, match="must be the topic, its uuid"):
        Topics({}).redrive(OLD[:-1])


def test_all_parts_of_a_topic_own_its_dead_letter_topic() -> None:
    owner = {"uuid": PARTED, "channel": "c"}
    topics = Topics(owner)
    del topics.broker.groups["t"]
    topics.broker.groups |= {
        "t#0": topics.group(OLD, part_of=PARTED),
        "t#1": topics.group(NEW, part_of=PARTED),
    }
    topics.claim(OLD, "t#0")
    topics.claim(NEW, "t#1")
    assert topics.owned == [owner, owner]
    assert topics.redrive(OLD, "t#0") is None
    assert topics.redrive(NEW, "t#1") is None
    topics.broker.groups["other"] = topics.group("e" * 32)
    with pytest.raises(Refused, match=r"of channel 'c' of topic 't#0'"):
        topics.claim("f" * 32, "t")
