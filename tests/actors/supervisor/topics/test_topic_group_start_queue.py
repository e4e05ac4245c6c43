"""Tests of which channel is started next."""

from __future__ import annotations

from zsq.actors.supervisor.topics.topic_group import StartQueue


def taken(queue: StartQueue) -> list[str]:
    found = []
    while queue.ready():
        found.append(queue.take())
    return found


def test_channels_start_in_order_and_the_next_one_when_one_is_done() -> None:
    queue = StartQueue(2)
    for name in "abcd":
        queue.add(name)
    assert taken(queue) == ["a", "b"]
    queue.done("b")
    assert taken(queue) == ["c"]
    queue.done("a")
    queue.done("c")
    assert taken(queue) == ["d"]


def test_a_channel_that_a_client_waits_for_starts_first_and_once() -> None:
    queue = StartQueue(10)
    for name in "abc":
        queue.add(name)
    queue.add("c", first=True)
    queue.add("c")
    queue.add("d", first=True)
    assert taken(queue) == ["c", "d", "a", "b"]


def test_a_channel_that_is_no_longer_wanted_makes_room_for_others() -> None:
    queue = StartQueue(1)
    for name in "abc":
        queue.add(name)
    assert taken(queue) == ["a"]
    queue.done("b")
    queue.done("a")
    assert taken(queue) == ["c"]
    queue.add("a")
    queue.clear()
    assert (taken(queue), queue.starting) == ([], set())
