"""Tests of which topics may take dead letters. This is checked when a channel is created and when
its settings change.
"""

from __future__ import annotations

from typing import Any

import pytest

from zsq.actors.settings.channel_settings import changed, dead_letter_topic, made, resolve
from zsq.transport.errors import UsageError

IN_MEMORY: dict[str, Any] = {"dead_letter_topic": "d#ephemeral"}


def test_a_durable_channel_cannot_have_a_dead_letter_topic_in_memory() -> None:
    for check in (lambda: made(IN_MEMORY, "t", "c"), lambda: changed({}, IN_MEMORY, "t", "c")):
        with pytest.raises(
            UsageError, match=r"E_BAD_ARGUMENT.*'d#ephemeral' is in memory.*name a topic on disk"
        ):
            check()
    # A channel may have been created with this setting.
    with pytest.raises(UsageError, match="name a topic on disk"):
        dead_letter_topic("t", "c", resolve(IN_MEMORY))


@pytest.mark.parametrize(
    ("topic", "channel"),
    [("t#ephemeral", "c"), ("t", "c#ephemeral"), ("t#ephemeral", "c#ephemeral")],
)
def test_an_ephemeral_channel_may_have_a_dead_letter_topic_in_memory(
    topic: str, channel: str
) -> None:
    assert made(IN_MEMORY, topic, channel) == (IN_MEMORY, None)
    assert changed({}, IN_MEMORY, topic, channel) == IN_MEMORY
    assert dead_letter_topic(topic, channel, resolve(IN_MEMORY)) == "d#ephemeral"


def test_the_default_dead_letter_topic_is_on_disk() -> None:
    assert dead_letter_topic("t#ephemeral", "c#ephemeral", resolve({})) == "t.c.dead"


def test_parts_of_a_topic_share_the_default_dead_letter_topic() -> None:
    assert dead_letter_topic("t#0", "c", resolve({})) == "t.c.dead"
    assert dead_letter_topic("t#255", "c", resolve({})) == "t.c.dead"


@pytest.mark.parametrize(("topic", "asked", "what"), [
    ("t#1", {"dead_letter_topic": "t"}, "cannot go to itself"),
    ("t#1", {"dead_letter_topic": "t#2"}, "cannot go to itself"),
    ("t", {"dead_letter_topic": "t"}, "cannot go to itself: name another topic as dead_letter_topic"),
    ("t" * 60, {"max_attempts": 5}, "use 1 to 64 of the characters.*set dead_letter_topic of channel 'c'"),
])  # fmt: skip
def test_a_dead_letter_topic_that_cannot_work_is_refused_at_once(
    topic: str, asked: dict[str, Any], what: str
) -> None:
    for check in (lambda: made(asked, topic, "c"), lambda: changed({}, asked, topic, "c")):
        with pytest.raises(UsageError, match=f"E_BAD_ARGUMENT.*{what}"):
            check()
    named = {**asked, "dead_letter_topic": "d"}
    assert made(named, topic, "c") == (named, None)
    assert changed(named, {"max_attempts": 7}, topic, "c")["max_attempts"] == 7
    with pytest.raises(UsageError, match="dead_letter_topic"):
        changed(
            {"max_attempts": 5, "dead_letter_topic": "d"},
            {"dead_letter_topic": asked.get("dead_letter_topic")},
            topic,
            "c",
        )


def test_a_long_name_is_accepted_if_attempts_are_not_limited() -> None:
    assert made({"max_age_s": 5}, "t" * 60, "c") == ({"max_age_s": 5}, None)
