"""Search through all states of a model, nearest first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

_StateT = TypeVar("_StateT")


class Broken(Exception):
    """An invariant does not hold. `steps` lead to the state."""

    def __init__(self, what: str, steps: list[str]) -> None:
        super().__init__(f"{what}, after: {'; '.join(steps)}")
        self.what = what
        self.steps = steps


def visit(
    first: _StateT,
    steps: Callable[[_StateT], Iterable[tuple[str, _StateT]]],
    broken_rule: Callable[[_StateT], str],
) -> dict[_StateT, tuple[_StateT, str] | None]:
    """Return all states, nearest first, each with the one before it and the step from there.

    `steps` yields each step that is possible, and the state after it. `broken_rule` returns the
    invariant that does not hold, or "". Raises `Broken`.
    """
    before: dict[_StateT, tuple[_StateT, str] | None] = {first: None}
    waiting = deque([first])
    while waiting:
        state = waiting.popleft()
        for text, after in steps(state):
            if after in before:
                continue
            before[after] = (state, text)
            if what := broken_rule(after):
                raise Broken(what, path(before, after))
            waiting.append(after)
    return before


def path(before: dict[_StateT, tuple[_StateT, str] | None], state: _StateT) -> list[str]:
    """Return the steps from the first state to this one."""
    texts: list[str] = []
    at = before[state]
    while at is not None:
        state, text = at
        texts.append(text)
        at = before[state]
    return texts[::-1]
