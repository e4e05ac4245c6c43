"""Tests of the heap of deadlines against a plain dict."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from zsq.actors.primitives.deadlines import DeadlineHeap

KEYS = st.integers(0, 9)
TIMES = st.integers(0, 30)


class HeapMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.heap: DeadlineHeap[int] = DeadlineHeap()
        self.due: dict[int, int] = {}

    @rule(key=KEYS, due=TIMES)
    def set(self, key: int, due: int) -> None:
        self.heap.set(key, due)
        self.due[key] = due

    @rule(key=KEYS)
    def remove(self, key: int) -> None:
        assert self.heap.remove(key) == (self.due.pop(key, None) is not None)

    @rule(now=TIMES)
    def pop_due(self, now: int) -> None:
        key = self.heap.pop_due(now)
        earliest = min(self.due.values(), default=now + 1)
        if key is None:
            assert earliest > now
        else:
            assert self.due.pop(key) == earliest <= now

    @precondition(lambda self: self.due)
    @rule()
    def clear(self) -> None:
        self.heap.clear()
        self.due.clear()

    @invariant()
    def agrees(self) -> None:
        assert len(self.heap) == len(self.due)
        assert {key: due for due, key in self.heap.items()} == self.due
        assert all(key in self.heap for key in self.due)
        assert self.heap.next_due() == min(self.due.values(), default=None)


TestHeap = HeapMachine.TestCase


def test_keys_need_no_order() -> None:
    heap: DeadlineHeap[object] = DeadlineHeap()
    first, second = object(), object()
    heap.set(first, 5)
    heap.set(second, 5)
    assert [heap.pop_due(5), heap.pop_due(5), heap.pop_due(5)] == [first, second, None]


def test_moved_and_removed_keys_leave_a_bounded_rest() -> None:
    heap: DeadlineHeap[int] = DeadlineHeap()
    for turn in range(10_000):
        heap.set(turn % 10, turn)
        if turn % 3 == 0:
            heap.remove(turn % 10)
    assert len(heap._heap) <= 2 * 10 + 64
