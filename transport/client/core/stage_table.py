"""Stage table: the states of a stage's writer, and what each event does in each state.

PROTOCOL.md draws its diagram from `STAGE_TABLE`. `StageSession` carries the actions out.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from ..link.reaction import Reaction
from .transition import Transition


class StageState(Enum):
    DOWN = "down"  # there is no link
    OPENING = "opening"  # OpenStage is sent
    OPEN = "open"  # blocks go out as the credit allows
    PAUSED = "paused"  # the broker cannot take more at the moment
    SEALED = "sealed"  # the final seal is answered: all blocks are durable
    COMMITTED = "committed"  # the transaction is committed, by this writer or another one
    FAILED = "failed"  # the stage failed permanently; `error` has the reason


class StageEvent(Enum):
    BEGIN = "begin"  # there is a new link, and OpenStage is sent
    OPENED = "Done to OpenStage"
    STAGED = "Staged"
    MISSING = "Missing"
    FORGOTTEN = "Missing, of a block that had arrived"
    SEALED = "Done to an interim Seal"
    FINISHED = "Done to the final Seal"
    COMMITTED = "committed or superseded"
    PAUSE = "Failed, for the moment"
    RESUME = "pause is over"
    STALL = "nothing arrives"
    RESTART = "Failed, about the link"
    FAIL = "Failed"
    LOST = "link lost"


class StageAction(Enum):
    CONTINUE = "continue with the expected block"
    NOTE = "note what arrived"
    GO_BACK = "push again from the expected block"
    DROP = "drop durable blocks"
    CLEAR = "drop all blocks"


StageTransition = Transition[StageState, StageAction]
_S, _E, _A, _to = StageState, StageEvent, StageAction, Transition
_LOST: Final[dict[StageEvent, StageTransition]] = {_E.LOST: _to(_S.DOWN)}
_CLEAR: Final = (_A.CLEAR,)
_ARRIVES: Final = (_A.NOTE, _A.DROP)
_FLOWS: Final[dict[StageEvent, StageTransition]] = {
    _E.FINISHED: _to(_S.SEALED, _ARRIVES),
    _E.PAUSE: _to(_S.PAUSED),
    _E.COMMITTED: _to(_S.COMMITTED, _CLEAR),
    _E.FAIL: _to(_S.FAILED, _CLEAR),
    **_LOST,
}


def _unchanged(state: StageState) -> dict[StageEvent, StageTransition]:
    """Return the row of a final state, in which messages may still arrive and change nothing."""
    late = (_E.STAGED, _E.MISSING, _E.FORGOTTEN, _E.FAIL, _E.LOST)
    return dict.fromkeys(late, _to(state))


STAGE_TABLE: Final[dict[StageState, dict[StageEvent, StageTransition]]] = {
    _S.DOWN: {_E.BEGIN: _to(_S.OPENING), _E.FAIL: _to(_S.FAILED, _CLEAR), **_LOST},
    _S.OPENING: {
        _E.OPENED: _to(_S.OPEN, (_A.CONTINUE,), Reaction.UP),
        _E.STAGED: _to(_S.OPENING),
        _E.COMMITTED: _to(_S.COMMITTED, _CLEAR, Reaction.UP),
        _E.RESTART: _to(_S.OPENING, (), Reaction.RESTART),
        _E.FAIL: _to(_S.FAILED, _CLEAR, Reaction.UP),
        **_LOST,
    },
    _S.OPEN: {
        _E.STAGED: _to(_S.OPEN, (_A.NOTE,)),
        _E.MISSING: _to(_S.OPEN, (_A.NOTE, _A.GO_BACK)),
        _E.FORGOTTEN: _to(_S.OPEN, (), Reaction.RENEW),
        _E.SEALED: _to(_S.OPEN, _ARRIVES),
        _E.STALL: _to(_S.OPEN, (), Reaction.RENEW),
        _E.RESTART: _to(_S.OPEN, (), Reaction.RESTART),
        **_FLOWS,
    },
    _S.PAUSED: {
        _E.STAGED: _to(_S.PAUSED, (_A.NOTE,)),
        _E.MISSING: _to(_S.PAUSED, (_A.NOTE,)),
        _E.FORGOTTEN: _to(_S.PAUSED, (), Reaction.RENEW),
        _E.SEALED: _to(_S.PAUSED, _ARRIVES),
        _E.RESUME: _to(_S.OPEN, (_A.GO_BACK,)),
        _E.RESTART: _to(_S.PAUSED, (), Reaction.RESTART),
        **_FLOWS,
    },
    _S.SEALED: _unchanged(_S.SEALED),
    _S.COMMITTED: _unchanged(_S.COMMITTED),
    _S.FAILED: _unchanged(_S.FAILED),
}
ENDED: Final = frozenset({_S.SEALED, _S.COMMITTED, _S.FAILED})
