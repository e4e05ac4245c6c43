"""Which command may come when: the states of an NSQ client's connection and what leads from one to another. Pure."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class State(IntEnum):
    """Numbers as nsqd's statistics show them; MAGIC is before its first state."""

    MAGIC = -1  # four bytes that say the protocol's version are awaited
    INIT = 0
    ENDED = 1
    SUBSCRIBED = 3
    CLOSING = 4  # CLS was sent: what is in flight may still be answered


_ALWAYS: Final = (b"PUB", b"MPUB", b"DPUB", b"NOP")
SESSION_TABLE: Final[dict[State, dict[bytes, State]]] = {
    State.MAGIC: {},
    State.INIT: {
        b"IDENTIFY": State.INIT, b"AUTH": State.INIT, b"SUB": State.SUBSCRIBED,
        **dict.fromkeys(_ALWAYS, State.INIT),
    },
    State.SUBSCRIBED: {
        b"RDY": State.SUBSCRIBED, b"FIN": State.SUBSCRIBED, b"REQ": State.SUBSCRIBED, b"TOUCH": State.SUBSCRIBED,
        b"CLS": State.CLOSING,
        **dict.fromkeys(_ALWAYS, State.SUBSCRIBED),
    },
    State.CLOSING: {
        b"RDY": State.CLOSING,  # and nothing comes of it
        b"FIN": State.CLOSING, b"REQ": State.CLOSING, b"TOUCH": State.CLOSING,
        **dict.fromkeys(_ALWAYS, State.CLOSING),
    },
    State.ENDED: {},
}  # fmt: skip
"""What may come in a state, and the state after it (SUB: after it was answered). What has no entry ends the connection."""

COMMANDS: Final = frozenset(name for row in SESSION_TABLE.values() for name in row)
