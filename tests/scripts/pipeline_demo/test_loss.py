"""Tests of the demo's option --bucket: its checks must find what a restore loses or repeats."""

from __future__ import annotations

from typing import Final

import pytest

from pipeline_demo.live import Acknowledged, Reminders
from pipeline_demo.loss import FINISHED_S, is_moment
from pipeline_demo.loss_report import Place, misplaced, split_at

BODIES: Final = [b"0,a", b"1,b", b"2,c", b"3,d"]
BLOCKS: Final = [Acknowledged((0, 1), 10, 1.0), Acknowledged((2, 3), 70_000, 5.0)]
TOPIC: Final = {
    (-1, 10): b"0,a",
    (-1, 11): b"1,b",
    (-1, 70_000): b"2,c",
    (-1, 70_001): b"3,d",
}


def test_acknowledged_rows_are_at_their_offsets() -> None:
    assert misplaced(BLOCKS, TOPIC, BODIES) == 0


@pytest.mark.parametrize(
    "changed",
    [{(-1, 10): b"1,b"}, {(-1, 11): b"x"}, {(-1, 70_001): b""}],
)
def test_a_row_that_is_not_at_its_offset_is_found(changed: dict[Place, bytes]) -> None:
    assert misplaced(BLOCKS, TOPIC | changed, BODIES) == 1


def test_a_lost_block_is_found() -> None:
    assert misplaced(BLOCKS, {(-1, 10): b"0,a", (-1, 11): b"1,b"}, BODIES) == 2


def test_a_row_is_at_its_offset_only_in_its_part() -> None:
    block = [Acknowledged((1, 3), 10, 1.0, part=2)]
    topic = {(2, 10): b"1,b", (2, 11): b"3,d"}
    assert misplaced(block, topic, BODIES) == 0
    assert misplaced(block, {(1, 10): b"1,b", (2, 11): b"3,d"}, BODIES) == 1


def test_acknowledgements_are_split_at_the_loss() -> None:
    assert split_at(BLOCKS, 1.0) == (BLOCKS[:1], BLOCKS[1:])
    assert split_at(BLOCKS, 0.5) == ([], BLOCKS)


def test_the_loss_waits_for_the_stream_the_publisher_and_the_auditor() -> None:
    late = 10.0 + FINISHED_S + 0.1
    assert is_moment(1, 1, 10.0, late)
    assert not is_moment(0, 1, 10.0, late)
    assert not is_moment(1, 0, 10.0, late)
    assert not is_moment(1, 1, 0.0, late)
    assert not is_moment(1, 1, 10.0, 10.5)


def test_a_delayed_message_must_come_once_and_not_early() -> None:
    reminders = Reminders("tcp://127.0.0.1:1", BODIES)
    reminders.due_ns = {b"0,a": 100, b"1,b": 200}
    reminders.came = [(b"1,b", 200), (b"0,a", 150)]
    assert reminders.good
    assert reminders.is_done
    reminders.came[0] = (b"1,b", 199)
    assert not reminders.good
    reminders.came = [(b"0,a", 150)]
    assert not reminders.good
    assert not reminders.is_done
    reminders.came = [(b"0,a", 150), (b"1,b", 300), (b"1,b", 300)]
    assert not reminders.good
