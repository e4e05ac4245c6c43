"""Transition: what an event does in one state of a session.

The table of a session has a row for each state: which events are allowed, and what each one does.
PROTOCOL.md draws its diagrams from these tables. The session carries the actions out.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from ...errors import E_BAD_COMMAND, UsageError
from ..link.reaction import Reaction

_StateT = TypeVar("_StateT", bound=Enum)
_EventT = TypeVar("_EventT", bound=Enum)
_ActionT = TypeVar("_ActionT", bound=Enum)


class Transition(NamedTuple, Generic[_StateT, _ActionT]):
    """The state after an event, the session's actions, and what its link does next."""

    after: _StateT
    actions: tuple[_ActionT, ...] = ()
    reaction: Reaction = Reaction.NOTHING


def transition_of(
    table: Mapping[_StateT, Mapping[_EventT, Transition[_StateT, _ActionT]]],
    state: _StateT,
    event: _EventT,
) -> Transition[_StateT, _ActionT]:
    """Return what the event does. Raises `UsageError` if it is not allowed in this state."""
    transition = table[state].get(event)
    if transition is None:
        raise UsageError(E_BAD_COMMAND, f"{event.value} is not allowed in state {state.value}")
    return transition
