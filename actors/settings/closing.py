"""Whom a topic is closed to: first to publishers, so that it can be drained, then to consumers too, so that it can be deleted. Pure.

| state | close to publishers | close to consumers | open to publishers | open to consumers |
|---|---|---|---|---|
| open | draining | closed | open | open |
| draining: no publishes, channels go on | draining | closed | open | draining |
| closed: no publishes, no consumers | closed | closed | open | draining |

There is no state "closed to consumers only": what would come in meanwhile could never be drained, and who wants to hold consumers
for a while pauses. So closing to consumers closes to publishers too, and opening to publishers opens to consumers too.

The state is durable in the registry's row before any actor hears of it. Topic, storage and channels are told by an order, and started
with it: whichever of them dies in between comes back with what the row says.

Delayed messages that were taken before still become due: they were acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...transport.errors import E_BAD_ARGUMENT, UsageError

OPEN: Final = ""
DRAINING: Final = "publishers"
CLOSED: Final = "consumers"
STATES: Final = (OPEN, DRAINING, CLOSED)  # as the registry's row and the statistics say it: whom it is closed to, at most
ACTIONS: Final = ("close", "open")
SIDES: Final = ("publishers", "consumers")

TRANSITIONS: Final[dict[str, dict[tuple[str, str], str]]] = {
    OPEN: {
        ("close", "publishers"): DRAINING,
        ("close", "consumers"): CLOSED,
        ("open", "publishers"): OPEN,
        ("open", "consumers"): OPEN,
    },
    DRAINING: {
        ("close", "publishers"): DRAINING,
        ("close", "consumers"): CLOSED,
        ("open", "publishers"): OPEN,
        ("open", "consumers"): DRAINING,
    },
    CLOSED: {
        ("close", "publishers"): CLOSED,
        ("close", "consumers"): CLOSED,
        ("open", "publishers"): OPEN,
        ("open", "consumers"): DRAINING,
    },
}

TO_PUBLISHERS: Final = "the topic is closed to publishers; publish elsewhere, or have it opened again (zsq topic open)"
TO_CONSUMERS: Final = "the topic is closed to consumers; have it opened to them again (zsq topic open --consumers)"


def after(state: str, action: str, options: Mapping[str, object]) -> str:
    """The state after Manage `close` or `open`, by its option `to` (default: publishers). `UsageError` E_BAD_ARGUMENT."""
    to = options.get("to", "publishers")
    if not isinstance(to, str) or to not in SIDES:
        raise UsageError(E_BAD_ARGUMENT, f"a topic is closed or opened to {' or '.join(SIDES)}, not to {repr(to)[:40]}")
    unknown = options.keys() - {"to"}
    if unknown:
        raise UsageError(E_BAD_ARGUMENT, f"{action} has no option {', '.join(sorted(map(str, unknown)))[:80]}; known: to")
    return TRANSITIONS[state][action, to]


def to_publishers(state: str) -> bool:
    return state != OPEN


def to_consumers(state: str) -> bool:
    return state == CLOSED
