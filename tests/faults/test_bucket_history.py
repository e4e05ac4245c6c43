"""Tests of the bucket torture's checker (`support/torture/bucket/history.py`): it finds every
broken promise. A complaint about anything else fails a torture.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.torture.bucket.history import BLOCK, CLOCK_S, FINISH_S, BucketHistory, Sent, body_of

LAG_S = 1.0
SAFE, FAST = 0, 1


class Story:
    """A history that a test tells step by step. The time of each step is given in seconds."""

    def __init__(self) -> None:
        self.history = BucketHistory((("safe", True), ("fast", False)), LAG_S)
        self.log: list[tuple[int, bytes]] = []

    def publish(
        self, topic: int, offset: int, sent_s: float, *, count: int = 1, lifetime: int = 1
    ) -> Sent:
        """Publish messages that are acknowledged 0.1 s later."""
        sent = self.history.send(count, sent_s)
        self.history.acknowledged(topic, sent, offset, sent_s + 0.1, lifetime)
        return sent

    def delay(self, topic: int, sent_s: float) -> Sent:
        sent = self.history.send(1, sent_s, is_delayed=True)
        self.history.acknowledged(topic, sent, -1, sent_s + 0.1, 1)
        return sent

    def read(self, topic: int, rows: Sequence[tuple[int, int]]) -> None:
        """Read a log with these (offset, number), and check what was acknowledged before."""
        wanted = self.history.to_check(topic)
        for offset, number in rows:
            self.history.read(topic, offset, body_of(number))
        self.history.check(topic, wanted)

    def lose_disk(self, topic: int, position: int) -> None:
        self.history.lose_disk(1)
        self.history.read_again(topic, position)

    def complaint(self) -> str:
        (found,) = self.history.complaints
        return found


@pytest.fixture
def story() -> Story:
    return Story()


def test_the_checker_finds_a_message_that_is_lost_without_the_loss_of_a_disk(story: Story) -> None:
    story.publish(FAST, 0, 1.0)
    story.read(FAST, [])
    assert "is lost, although no disk was lost since" in story.complaint()


def test_the_checker_finds_a_message_that_a_topic_with_sync_bucket_loses(story: Story) -> None:
    sent = story.publish(SAFE, 0, 1.0)
    story.read(SAFE, [(0, sent.number)])
    story.lose_disk(SAFE, 0)
    story.read(SAFE, [])
    assert "is lost, although the topic has --sync bucket" in story.complaint()


def test_the_checker_finds_a_lost_message_that_is_older_than_the_bound(story: Story) -> None:
    story.publish(FAST, 0, 1.0)
    last = story.publish(FAST, 1, 1.1 + LAG_S + 2 * CLOCK_S)
    story.lose_disk(FAST, 0)
    story.read(FAST, [])
    assert f"{LAG_S + 2 * CLOCK_S:.3f} s later was acknowledged" in story.complaint()
    assert last.is_lost


def test_the_checker_finds_a_publish_that_is_stored_in_part(story: Story) -> None:
    sent = story.publish(FAST, 0, 1.0, count=3)
    story.lose_disk(FAST, 0)
    story.read(FAST, [(0, sent.number), (1, sent.number + 1)])
    assert "is stored in part: 1 are missing" in story.complaint()


def test_the_checker_finds_another_body(story: Story) -> None:
    sent = story.publish(SAFE, 0, 1.0)
    story.history.read(SAFE, 0, body_of(sent.number) + b"x")
    assert "the log has a message at 0 with another body" in story.complaint()


def test_the_checker_finds_a_message_that_nobody_sent(story: Story) -> None:
    sent = story.publish(SAFE, 0, 1.0)
    story.history.read(SAFE, 0, body_of(sent.number + BLOCK))
    assert "with another body" in story.complaint()


def test_the_checker_finds_an_offset_that_is_used_twice(story: Story) -> None:
    story.publish(FAST, 7, 1.0)
    story.lose_disk(FAST, 0)
    story.read(FAST, [])
    story.publish(FAST, 7, 5.0, lifetime=2)
    assert "offset 7 is used twice" in story.complaint()


def test_the_checker_finds_a_message_at_another_offset(story: Story) -> None:
    sent = story.publish(SAFE, 0, 1.0)
    story.read(SAFE, [(5, sent.number)])
    assert "was acknowledged at 0, and the log has it at [5]" in story.complaint()


def test_the_checker_finds_a_message_that_is_stored_twice(story: Story) -> None:
    sent = story.publish(SAFE, 0, 1.0)
    story.history.read(SAFE, 0, body_of(sent.number))
    story.history.read(SAFE, 1, body_of(sent.number))
    assert f"message {sent.number} is stored twice, at 0 and at 1" in story.complaint()


def test_the_checker_finds_a_delayed_message_that_does_not_come(story: Story) -> None:
    story.delay(SAFE, 1.0)
    story.history.check_delayed(SAFE)
    assert "is lost, although no disk was lost since" in story.complaint()


def test_the_checker_finds_a_finished_message_that_comes_again(story: Story) -> None:
    sent = story.publish(FAST, 0, 1.0)
    for _ in range(2):
        story.history.deliver(FAST, 0, body_of(sent.number), 1)
        story.history.finish(FAST, [sent.number], 2.0, 1)
    assert "is delivered after its finish was confirmed, although no disk" in story.complaint()


@pytest.mark.parametrize("late", [False, True])
def test_the_checker_finds_an_old_finish_that_is_lost_with_the_disk(
    story: Story, *, late: bool
) -> None:
    sent = story.publish(FAST, 0, 1.0)
    story.history.deliver(FAST, 0, body_of(sent.number), 1)
    story.history.finish(FAST, [sent.number], 2.0, 1)
    story.publish(SAFE, 0, 2.0 + LAG_S + FINISH_S + (0.1 if late else -0.1))
    story.history.lose_disk(1)
    story.history.deliver(FAST, 0, body_of(sent.number), 2)
    assert bool(story.history.complaints) is late


def test_the_checker_finds_a_broker_that_acknowledges_after_its_successor(story: Story) -> None:
    story.publish(SAFE, 0, 1.0, lifetime=1)
    story.publish(SAFE, 70_000, 2.0, lifetime=2)
    story.publish(SAFE, 1, 2.05, lifetime=1)
    assert story.history.complaints == []
    story.publish(SAFE, 2, 2.2, lifetime=1)
    assert "data directory 1 acknowledged a message that was sent 0.100 s" in story.complaint()


def test_the_checker_finds_it_too_when_the_first_answer_of_the_successor_comes_last(
    story: Story,
) -> None:
    story.publish(SAFE, 0, 3.0, lifetime=1)
    story.publish(SAFE, 70_000, 2.0, lifetime=2)
    assert "data directory 1 acknowledged a message that was sent 0.900 s" in story.complaint()


def test_the_checker_finds_a_message_that_the_channel_does_not_deliver(story: Story) -> None:
    sent = story.publish(SAFE, 0, 1.0)
    story.read(SAFE, [(0, sent.number)])
    story.history.check_delivered(SAFE)
    assert "1 messages of the log were never delivered" in story.complaint()
