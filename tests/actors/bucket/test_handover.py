"""Tests of when a broker may hand over to its standby."""

from __future__ import annotations

from zsq.actors.bucket.handover import WAIT_NS, Handover

SHIPPED = {"storage": {"extension_settled": True}}


def test_each_topic_must_have_ended_with_nothing_left() -> None:
    handover = Handover([3, 4])
    handover.noted(3, SHIPPED)
    assert not handover.is_complete
    handover.noted(4, {"storage": {"extension_settled": False}})
    handover.noted(4, {"storage": {"extension_busy": False}})
    handover.noted(4, {})
    assert not handover.is_complete, "an earlier pulse says nothing about the end"
    handover.noted(4, SHIPPED)
    assert handover.is_complete


def test_without_running_topics_it_is_complete() -> None:
    assert Handover([]).is_complete


def test_the_last_pulses_are_waited_for() -> None:
    handover = Handover([3])
    assert not handover.is_late(5)
    assert not handover.is_late(5 + WAIT_NS)
    assert handover.is_late(6 + WAIT_NS)
