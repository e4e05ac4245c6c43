"""States of a message in a channel, and the events that change them. docs/delivery.md shows them.

The broker does not use this table: it handles runs of messages, which move between the parts of
`actors/channel/core.py` and `supply.py` without being split into messages. The table shows what
this means for a single message. The state machines of the tests follow each offset through each
call and check every move against the table (`tests/support/watched.py`). They also check that each
move in the table occurs.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class MessageState(Enum):
    AHEAD = "ahead"  # the cursor has not passed it
    # The cursor has passed it. In an ordered channel it waits for its key, in a channel with
    # priorities for the turn of its level.
    PARKED = "parked"
    HELD = "held"  # one consumer has it, and no handler has begun it
    BEGUN = "begun"  # a handler of one consumer has begun it, and its lease runs
    WAITING = "waiting"  # to be delivered again; the number of its attempts is not on disk
    COMMITTING = "committing"  # like WAITING, but that number is in the commit on its way
    READY = "ready"  # like WAITING, but that number is on disk, so the message may be sent
    DEFERRED = "deferred"  # to be delivered again, but not before a due time
    DYING = "dying"  # no more deliveries: it goes to the dead letters
    OVER = "over"  # finished, skipped, too old, dead letter, or gone: nothing is kept


class MessageEvent(Enum):
    DELIVER = "deliver"  # a consumer has room: the next delivery is made
    BEGIN = "begin"  # the consumer reports that a handler has begun it
    FINISH = "finish"
    REQUEUE = "requeue"  # the consumer requeues it, now or after a delay, or rejects it
    GIVE_BACK = "give back"  # the consumer returns it, because no handler has begun it
    LEAVE = "consumer leaves"  # the consumer leaves, is lost, or is sent away
    SCAN = "scan"  # the scan ends leases, finds lost consumers, and takes due messages
    CAME_DUE = "the store names what is due"
    SAVE = "commit begins"
    COMMITTED = "committed"
    CONFIGURE = "configure"  # a change of the allowed attempts or age
    BURIED = "dead letter stored"
    GONE = "gone from the log"  # damage, retention, or a limit of the topic
    SKIP = "a user skips it"
    SEEK = "seek, empty"


_S, _E = MessageState, MessageEvent
_AGAIN: Final = frozenset({_S.WAITING, _S.DYING})
_SEEK: Final = frozenset({_S.OVER, _S.AHEAD})
_OVER: Final = frozenset({_S.OVER})
# BEGUN: the consumer does not report what its handlers begin.
_SENT: Final = frozenset({_S.HELD, _S.BEGUN})
_REQUEUED: Final = frozenset({_S.WAITING, _S.DEFERRED, _S.DYING})

MOVES: Final[dict[MessageState, dict[MessageEvent, frozenset[MessageState]]]] = {
    _S.AHEAD: {
        # OVER: the message is not wanted (tag, age, address) or not in the sample.
        _E.DELIVER: frozenset({_S.PARKED, _S.OVER, _S.DYING} | _SENT),  # DYING: it has expired
        _E.GONE: _OVER,
        _E.SKIP: _OVER,
        _E.SEEK: _OVER,
    },
    _S.PARKED: {
        # WAITING or DYING: the message was begun before the last start of the channel.
        _E.DELIVER: frozenset({_S.OVER} | _SENT | _AGAIN),
        _E.GONE: _OVER,
        _E.SKIP: _OVER,
        _E.SEEK: _SEEK,
    },
    _S.HELD: {
        _E.BEGIN: frozenset({_S.BEGUN}),
        # An answer may be faster than the report.
        _E.FINISH: _OVER,
        _E.REQUEUE: _REQUEUED,
        _E.GIVE_BACK: _AGAIN,  # DYING: the allowed attempts were lowered meanwhile
        _E.LEAVE: _AGAIN,
        _E.SCAN: _AGAIN,
        _E.SKIP: _OVER,
        _E.SEEK: _SEEK,
    },
    _S.BEGUN: {
        _E.FINISH: _OVER,
        _E.REQUEUE: _REQUEUED,
        # The consumer closed when it was reported already, before its handler began.
        _E.GIVE_BACK: _AGAIN,
        _E.LEAVE: _AGAIN,
        _E.SCAN: _AGAIN,
        _E.SKIP: _OVER,
        _E.SEEK: _SEEK,
    },
    _S.WAITING: {
        _E.SAVE: frozenset({_S.COMMITTING, _S.OVER}),  # OVER: the message was gone
        _E.CONFIGURE: frozenset({_S.DYING}),
        _E.SKIP: _OVER,
        _E.SEEK: _SEEK,
    },
    _S.COMMITTING: {
        _E.COMMITTED: frozenset({_S.READY}),
        _E.CONFIGURE: frozenset({_S.DYING}),
        _E.GONE: _OVER,
        _E.SKIP: _OVER,
        _E.SEEK: _SEEK,
    },
    _S.READY: {
        # OVER or DYING: it has ended by now.
        _E.DELIVER: frozenset({_S.OVER, _S.DYING} | _SENT),
        _E.GONE: _OVER,
        _E.CONFIGURE: frozenset({_S.DYING}),
        _E.SKIP: _OVER,
        _E.SEEK: _SEEK,
    },
    _S.DEFERRED: {_E.SCAN: _AGAIN, _E.CAME_DUE: _AGAIN, _E.SKIP: _OVER, _E.SEEK: _SEEK},
    _S.DYING: {_E.BURIED: _OVER, _E.GONE: _OVER, _E.SKIP: _OVER, _E.SEEK: _SEEK},
    _S.OVER: {_E.SEEK: frozenset({_S.AHEAD})},
}
