"""Where a message of a channel can be, and what moves it: one table, drawn in docs/delivery.md. Pure.

The code does not look anything up here: a message is a number in a run, and runs move between the parts of `consumer_session.py` and
`supply.py`
without being taken apart. The table says what all of that comes to. The state machines of the tests watch each offset through each call and
hold every move against it (`tests/support/watched.py`); and each move in the table is one that they have seen.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class MessageState(Enum):
    AHEAD = "ahead"  # the cursor has not passed it
    PARKED = "parked"  # ordered channels: passed, and waits for its key
    IN_FLIGHT = "in flight"  # under the lease of one consumer
    WAITING = "waiting"  # to be delivered again; the number of that delivery is not on disk
    PROMISED = "promised"  # ... is in the commit on its way
    READY = "ready"  # ... is on disk: it may be sent
    DEFERRED = "deferred"  # not before a due time
    DYING = "dying"  # no delivery any more: to the dead letters
    OVER = "over"  # finished, or skipped, too old, a dead letter, gone: nothing is kept of it


class MessageEvent(Enum):
    DELIVER = "deliver"  # a consumer has room: the next delivery is cut
    FINISH = "finish"
    REQUEUE = "requeue"  # now, after a delay, or rejected
    LEAVE = "consumer leaves"  # or is lost
    SCAN = "scan"  # leases that ended, consumers that were lost, what came due
    CAME_DUE = "the store names what is due"
    SAVE = "commit begins"
    COMMITTED = "committed"
    CONFIGURE = "configure"  # attempts, age
    BURIED = "dead letter stored"
    GONE = "gone from the log"  # damage, retention, a topic's bound
    SEEK = "seek, empty"
    STOP = "stop"  # in order


_S, _E = MessageState, MessageEvent
_AGAIN: Final = frozenset({_S.WAITING, _S.DYING})
_SEEK: Final = frozenset({_S.OVER, _S.AHEAD})
_OVER: Final = frozenset({_S.OVER})

MOVES: Final[dict[MessageState, dict[MessageEvent, frozenset[MessageState]]]] = {
    _S.AHEAD: {
        _E.DELIVER: frozenset({_S.IN_FLIGHT, _S.PARKED, _S.OVER}),  # over: not wanted (tag, age, address) or not in the sample
        _E.GONE: _OVER,
        _E.SEEK: _OVER,
    },
    _S.PARKED: {
        _E.DELIVER: frozenset({_S.IN_FLIGHT, _S.OVER} | _AGAIN),  # again, dying: of a predecessor's time, it was sent before
        _E.GONE: _OVER,
        _E.SEEK: _SEEK,
    },
    _S.IN_FLIGHT: {
        _E.FINISH: _OVER,
        _E.REQUEUE: frozenset({_S.WAITING, _S.DEFERRED, _S.DYING}),
        _E.LEAVE: _AGAIN,
        _E.SCAN: _AGAIN,
        _E.SEEK: _SEEK,
    },
    _S.WAITING: {
        _E.SAVE: frozenset({_S.PROMISED, _S.OVER}),  # over: it was found to be gone
        _E.CONFIGURE: frozenset({_S.DYING}),
        _E.SEEK: _SEEK,
    },
    _S.PROMISED: {_E.COMMITTED: frozenset({_S.READY}), _E.CONFIGURE: frozenset({_S.DYING}), _E.GONE: _OVER, _E.SEEK: _SEEK},
    _S.READY: {
        _E.DELIVER: frozenset({_S.IN_FLIGHT, _S.OVER}),  # over: too old by now
        _E.GONE: _OVER,
        _E.CONFIGURE: frozenset({_S.DYING}),
        _E.STOP: frozenset({_S.WAITING}),  # nobody got that number: it is taken back
        _E.SEEK: _SEEK,
    },
    _S.DEFERRED: {_E.SCAN: _AGAIN, _E.CAME_DUE: _AGAIN, _E.SEEK: _SEEK},
    _S.DYING: {_E.BURIED: _OVER, _E.GONE: _OVER, _E.SEEK: _SEEK},
    _S.OVER: {_E.SEEK: frozenset({_S.AHEAD})},
}
