"""Which channel is started next."""

from __future__ import annotations

from zsq.actors.supervisor.topics.topic_group import StartQueue


def taken(queue: StartQueue) -> list[str]:
    found = []
    while queue.ready():
        found.append(queue.take())
    return found


def test_a_few_at_a_time_in_order_and_the_next_as_one_is_done() -> None:
    queue = StartQueue(2)
    for name in "abcd":
        queue.add(name)
    assert taken(queue) == ["a", "b"]
    queue.done("b")
    assert taken(queue) == ["c"]
    queue.done("a")
    queue.done("c")
    assert taken(queue) == ["d"]


def test_one_that_somebody_waits_for_comes_first_and_once() -> None:
    queue = StartQueue(10)
    for name in "abc":
        queue.add(name)
    queue.add("c", first=True)
    queue.add("c")
    queue.add("d", first=True)
    assert taken(queue) == ["c", "d", "a", "b"]


def test_one_that_is_not_wanted_any_more_is_not_started_and_frees_its_place() -> None:
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
