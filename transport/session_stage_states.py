"""The states of a stage's writer and what leads from one to another. Pure."""

from __future__ import annotations

from enum import Enum
from typing import Final


class StageState(Enum):
    DOWN = "down"  # no link
    OPENING = "opening"  # OpenStage is sent
    OPEN = "open"  # blocks go out as the credit allows
    PAUSED = "paused"  # the broker cannot take more at the moment
    SEALED = "sealed"  # finally: all is durable
    COMMITTED = "committed"  # the transaction is, whoever wrote it: nothing more is wanted
    FAILED = "failed"  # for good; `error` says why


class StageEvent(Enum):
    BEGIN = "begin"  # a new link: OpenStage goes out
    OPENED = "Done to OpenStage"
    STAGED = "Staged"
    MISSING = "Missing"
    SEALED = "Done to an interim Seal"
    FINISHED = "Done to the final Seal"
    COMMITTED = "committed or superseded"
    PAUSE = "Failed, for the moment"
    RESUME = "pause is over"
    FAIL = "Failed"
    LOST = "link lost"


_S, _E = StageState, StageEvent
_ENDS: Final = {_E.COMMITTED: _S.COMMITTED, _E.FAIL: _S.FAILED, _E.LOST: _S.DOWN}
_LATE: Final = (_E.STAGED, _E.MISSING, _E.FAIL, _E.LOST)  # change nothing any more
STAGE_TABLE: Final[dict[StageState, dict[StageEvent, StageState]]] = {
    _S.DOWN: {_E.BEGIN: _S.OPENING, _E.FAIL: _S.FAILED, _E.LOST: _S.DOWN},
    _S.OPENING: {_E.OPENED: _S.OPEN, _E.STAGED: _S.OPENING, **_ENDS},
    _S.OPEN: {
        _E.STAGED: _S.OPEN, _E.MISSING: _S.OPEN, _E.SEALED: _S.OPEN, _E.FINISHED: _S.SEALED, _E.PAUSE: _S.PAUSED, **_ENDS,
    },
    _S.PAUSED: {
        _E.STAGED: _S.PAUSED, _E.MISSING: _S.PAUSED, _E.SEALED: _S.PAUSED, _E.FINISHED: _S.SEALED, _E.PAUSE: _S.PAUSED,
        _E.RESUME: _S.OPEN, **_ENDS,
    },
    _S.SEALED: dict.fromkeys(_LATE, _S.SEALED),
    _S.COMMITTED: dict.fromkeys(_LATE, _S.COMMITTED),
    _S.FAILED: dict.fromkeys(_LATE, _S.FAILED),
}  # fmt: skip
ENDED: Final = frozenset({_S.SEALED, _S.COMMITTED, _S.FAILED})
