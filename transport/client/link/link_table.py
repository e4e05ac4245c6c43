"""Link table: the states of a link, and what each event does in each state.

PROTOCOL.md draws its diagram from `LINK_TABLE`. `Link` carries the actions out.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


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
    AT_GATEWAY = "attempt at a gateway"
    AT_SUPERVISOR = "attempt in a run directory"
    RESOLVED = "name resolved"
    NAMED = "Done: the gateway's run directory"
    REACHED = "Done: the target is connected"
    GREETED = "greeting answered"
    DIED = "died"
    REFUSE = "Failed"
    STOP = "stop"


class LinkAction(Enum):
    RESOLVE = "resolve the name"
    LOOK_UP = "send Lookup"
    OPEN = "send Open"
    GREET = "send the greeting"
    WATCH = "watch for silence"
    TELL_UP = "send what waits"
    LEAVE = "send Bye"
    CLOSE = "close the socket"
    TELL_LOST = "note what has no answer"
    TELL_REFUSED = "fail what waits"


class LinkTransition(NamedTuple):
    """The state after an event, and the link's actions, in order."""

    after: LinkState
    actions: tuple[LinkAction, ...]


_S, _E, _A, _to = LinkState, LinkEvent, LinkAction, LinkTransition
_ENDS: Final = {
    _E.DIED: _to(_S.WAITING, (_A.CLOSE,)),
    _E.REFUSE: _to(_S.REFUSED, (_A.CLOSE, _A.TELL_REFUSED)),
    _E.STOP: _to(_S.IDLE, (_A.CLOSE,)),
}
_REACHED: Final = _to(_S.GREETING, (_A.GREET,))
_BEGINS: Final = {
    _E.AT_GATEWAY: _to(_S.RESOLVING, (_A.RESOLVE,)),
    _E.AT_SUPERVISOR: _to(_S.LOOKING, (_A.LOOK_UP,)),
    _E.REACHED: _REACHED,  # the target is the supervisor
    **_ENDS,
}
_LOSES: Final = {
    _E.DIED: _to(_S.WAITING, (_A.CLOSE, _A.TELL_LOST)),
    _E.REFUSE: _to(_S.REFUSED, (_A.CLOSE, _A.TELL_LOST, _A.TELL_REFUSED)),
}
LINK_TABLE: Final[dict[LinkState, dict[LinkEvent, LinkTransition]]] = {
    _S.IDLE: _BEGINS,
    _S.WAITING: _BEGINS,
    _S.REFUSED: _BEGINS,
    _S.RESOLVING: {_E.RESOLVED: _to(_S.OPENING, (_A.OPEN,)), **_ENDS},
    _S.LOOKING: {_E.REACHED: _REACHED, **_ENDS},
    # After NAMED, the next attempt begins at once. It is in the run directory, or at a gateway if
    # another link of this client has gone to another address meanwhile.
    _S.OPENING: {_E.REACHED: _REACHED, _E.NAMED: _to(_S.WAITING, (_A.LEAVE,)), **_ENDS},
    _S.GREETING: {
        _E.GREETED: _to(_S.UP, (_A.WATCH, _A.TELL_UP)),
        _E.STOP: _to(_S.IDLE, (_A.CLOSE,)),
        **_LOSES,
    },
    _S.UP: {_E.STOP: _to(_S.IDLE, (_A.CLOSE,)), **_LOSES},
}
