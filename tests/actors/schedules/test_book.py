"""Tests of the book of schedules: what runs when, and what an outcome changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from zsq.actors.schedules.book import FAILING, INVALID, NEW, PAUSED, RUNNING, WAITING, Book, Outcome
from zsq.actors.settings.schedule_settings import Schedule, as_row

H = 3_600
S = 1_000_000_000
HOURLY = Schedule("a" * 32, "0 * * * *", b"x", since=100)


def row(schedule: Schedule = HOURLY, name: str = "n", topic: str = "t") -> dict[str, Any]:
    return {**as_row(schedule), "topic": topic, "name": name}


def of(book: Book) -> Mapping[str, Any]:
    (found,) = book.rows()
    return found


def waiting(last: int = -1) -> Book:
    """Return a book with a schedule that waits for its first hour."""
    book = Book()
    book.take([row()])
    (run,) = book.ready(200, 0, 4)
    book.ended(run, Outcome(last, 100, H), 0)
    return book


def test_a_new_schedule_runs_at_once_and_then_at_its_due_times() -> None:
    book = Book()
    book.take([row()])
    assert of(book)["state"] == NEW
    (run,) = book.ready(200, 0, 4)
    assert (run.topic, run.name, run.last, run.handled) == ("t", "n", None, 0)
    assert of(book)["state"] == RUNNING
    assert book.ready(10 * H, 10 * H * S, 4) == [], "it runs already"
    book.ended(run, Outcome(-1, 100, H), 0)
    assert (of(book)["state"], of(book)["next_due_ns"], of(book)["last_due_ns"]) == (
        WAITING,
        H * S,
        0,
    )
    assert book.ready(H - 0.01, 0, 4) == []
    (run,) = book.ready(H, 0, 4)
    assert (run.last, run.handled) == (-1, 100), "the topic is not asked again"
    book.ended(run, Outcome(H, H, 2 * H, published=1, left_out=2), 0)
    found = of(book)
    assert (found["published_count"], found["missed_count"], found["last_due_ns"]) == (1, 2, H * S)
    assert book.figures() == {"count": 1, "published_count": 1, "missed_count": 2, "failing": 0}


def test_a_failure_is_tried_again_after_a_growing_pause_and_asks_the_topic_again() -> None:
    book, now_ns = waiting(), 0
    (run,) = book.ready(H, now_ns, 4)
    for pause_s in (1, 2, 4, 8, 16, 32, 64, 64):
        book.ended(run, Outcome(None, 100, H, trouble="E_CLOSED closed"), now_ns)
        assert (of(book)["state"], of(book)["trouble"]) == (FAILING, "E_CLOSED closed")
        assert book.figures()["failing"] == 1
        assert book.ready(H, now_ns + pause_s * S - 1, 4) == []
        now_ns += pause_s * S
        (run,) = book.ready(H, now_ns, 4)
        assert run.last is None
    book.ended(run, Outcome(H, H, 2 * H, published=1), now_ns)
    assert (of(book)["state"], of(book)["trouble"], book.figures()["failing"]) == (WAITING, "", 0)


def test_a_pause_cancels_the_run_and_nothing_runs_before_its_end() -> None:
    book = waiting()
    (run,) = book.ready(H, 0, 4)
    paused = replace(HOURLY, paused=True)
    book.take([row(paused)])
    assert run.is_cancelled
    assert (of(book)["state"], of(book)["next_due_ns"]) == (PAUSED, 0)
    resumed = replace(HOURLY, since=5 * H + 7)
    book.take([row(resumed)])
    assert book.ready(9 * H, 0, 4) == [], "the cancelled run has not ended"
    book.ended(run, Outcome(H, H, 2 * H, published=1), 0)
    assert of(book)["published_count"] == 1, "it was published all the same"
    (run,) = book.ready(9 * H, 0, 4)
    assert (run.last, run.schedule.since) == (H, 5 * H + 7)
    book.ended(run, Outcome(9 * H, 9 * H, 10 * H, published=1), 0)
    assert (of(book)["state"], of(book)["published_count"]) == (WAITING, 2)


def test_a_run_of_a_former_version_does_not_say_when_the_new_one_is_due() -> None:
    book = Book()
    book.take([row(replace(HOURLY, cron="0 3 1 1 *"))])
    (run,) = book.ready(200, 0, 4)
    book.take([row()])
    book.ended(run, Outcome(-1, 100, 10_000 * H), 0)
    assert of(book)["state"] == NEW
    (run,) = book.ready(200, 0, 4)
    assert run.schedule == HOURLY
    book.ended(run, Outcome(-1, 100, H), 0)
    assert of(book)["next_due_ns"] == H * S


def test_a_schedule_that_is_removed_and_added_again_begins_anew() -> None:
    book = waiting()
    (run,) = book.ready(H, 0, 4)
    book.take([])
    assert run.is_cancelled
    assert book.rows() == []
    book.take([row(replace(HOURLY, uuid="b" * 32))])
    (other,) = book.ready(H, 0, 4)
    book.ended(run, Outcome(H, H, 2 * H, published=1), 0)
    assert (of(book)["published_count"], of(book)["state"]) == (0, RUNNING)
    assert book.figures()["published_count"] == 1
    assert (other.last, other.is_cancelled) == (None, False)


def test_the_same_schedules_again_change_nothing() -> None:
    book = waiting()
    (run,) = book.ready(H, 0, 4)
    book.take([row()])
    assert not run.is_cancelled
    assert of(book)["state"] == RUNNING


def test_as_many_run_as_there_are_threads_those_first_that_are_due_longest() -> None:
    book = Book()
    names = ["a", "b", "c"]
    book.take([row(replace(HOURLY, uuid=name), name) for name in names])
    runs = book.ready(200, 0, 9)
    for run, due in zip(runs, (3 * H, H, 2 * H), strict=True):
        book.ended(run, Outcome(-1, 100, due), 0)
    assert [run.name for run in book.ready(9 * H, 0, 2)] == ["b", "c"]
    assert [run.name for run in book.ready(9 * H, 0, 2)] == ["a"]


@pytest.mark.parametrize(
    "wrong",
    [{"cron": "61 * * * *"}, {"timezone": "No/Where"}, {"missed": "some"}, {"body": 7}, {"new": 1}],
)
def test_a_schedule_that_cannot_be_read_stops_only_itself(wrong: dict[str, Any]) -> None:
    book = Book()
    book.take([row() | wrong, row(name="good")])
    assert [run.name for run in book.ready(200, 0, 4)] == ["good"]
    (bad, _) = book.rows()
    assert (bad["state"], bool(bad["trouble"])) == (INVALID, True)
    assert book.figures()["failing"] == 1
    book.take([row()])
    assert of(book)["state"] == NEW
