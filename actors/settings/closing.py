"""Closing a topic before its deletion: to publishers, so that it drains, then to consumers. Pure.

| state | close to publishers | close to consumers | open to publishers | open to consumers |
|---|---|---|---|---|
| open | draining | closed | open | open |
| draining: no publishes, channels go on | draining | closed | open | draining |
| closed: no publishes, no consumers | closed | closed | open | draining |

There is no state "closed to consumers only", because messages that came in this state could never
be drained. So closing to consumers closes to publishers too, and opening to publishers opens to
consumers too. To stop only consumers for a while, use a pause.

The state is durable in the registry's row before any actor receives it. The topic and its channels
receive it by an order, and each start includes it. An actor that dies in between is started again
with the state of the row.

Delayed messages that were accepted before still become due, because they were acknowledged.
"""

from __future__ import annotations

from typing import Final

from ...transport.wire.admin_requests import CloseRequest, OpenRequest

OPEN: Final = ""
DRAINING: Final = "publishers"
CLOSED: Final = "consumers"
# The values in the registry's row and in statistics. "consumers" means closed to both sides.
STATES: Final = (OPEN, DRAINING, CLOSED)

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

TO_PUBLISHERS: Final = (
    "the topic is closed to publishers; publish to another topic, or open it again (zsq topic open)"
)
TO_CONSUMERS: Final = "the topic is closed to consumers; open it again (zsq topic open --consumers)"


def after(state: str, request: CloseRequest | OpenRequest) -> str:
    """Return the state of a topic after the request."""
    action = "close" if isinstance(request, CloseRequest) else "open"
    return TRANSITIONS[state][action, request.to]


def to_publishers(state: str) -> bool:
    return state != OPEN


def to_consumers(state: str) -> bool:
    return state == CLOSED
