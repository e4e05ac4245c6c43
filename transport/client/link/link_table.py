"""Link table: the states of a link, and the events that change them."""

from __future__ import annotations

from enum import Enum
from typing import Final


class LinkState(Enum):
    IDLE = "idle"  # no caller needs the link
    RESOLVING = "resolving"  # the name of the gateway is being resolved
    LOOKING = "looking"  # Lookup is sent: the supervisor knows where the target is
    OPENING = "opening"  # Open is sent: the gateway connects to the target
    GREETING = "greeting"  # Hello or Sub is sent
    UP = "up"
    WAITING = "waiting"  # the link is dead and pauses before the next attempt
    REFUSED = "refused"  # the broker refused the link; the next call that needs it starts again


class LinkEvent(Enum):
    RESOLVE = "gateway chosen"
    LOOK = "Lookup sent"
    OPEN = "Open sent"
    REACHED = "Done: the target is connected"
    GREETED = "greeting answered"
    DIED = "died"
    REFUSE = "Failed"
    STOP = "stop"


_S, _E = LinkState, LinkEvent
_DIES: Final = {_E.DIED: _S.WAITING, _E.REFUSE: _S.REFUSED, _E.STOP: _S.IDLE}
LINK_TABLE: Final[dict[LinkState, dict[LinkEvent, LinkState]]] = {
    _S.IDLE: {
        _E.RESOLVE: _S.RESOLVING,
        _E.LOOK: _S.LOOKING,
        _E.REACHED: _S.GREETING,
        _E.DIED: _S.WAITING,
        _E.STOP: _S.IDLE,
    },
    _S.WAITING: {
        _E.RESOLVE: _S.RESOLVING,
        _E.LOOK: _S.LOOKING,
        _E.REACHED: _S.GREETING,
        _E.DIED: _S.WAITING,
        _E.STOP: _S.IDLE,
    },
    _S.REFUSED: {
        _E.RESOLVE: _S.RESOLVING,
        _E.LOOK: _S.LOOKING,
        _E.REACHED: _S.GREETING,
        _E.DIED: _S.WAITING,
        _E.STOP: _S.IDLE,
    },
    _S.RESOLVING: {_E.OPEN: _S.OPENING, **_DIES},
    _S.LOOKING: {_E.REACHED: _S.GREETING, **_DIES},
    # The event LOOK means that the gateway has named the run directory. After RESOLVE, the link
    # asks a gateway again: another link of this client has gone to another address meanwhile, or
    # the run directory is not the gateway's any more.
    _S.OPENING: {
        _E.RESOLVE: _S.RESOLVING,
        _E.LOOK: _S.LOOKING,
        _E.REACHED: _S.GREETING,
        **_DIES,
    },
    _S.GREETING: {_E.GREETED: _S.UP, **_DIES},
    _S.UP: _DIES,
}
