"""Protocol messages: every message between processes is a record with a fixed opcode.

PROTOCOL.md shows the bytes of each message. A message consists of one control frame (a msgpack
array: the opcode, then the fields in this order), and then two frames for each of its blocks (the
64-byte header, the columns). The routing ids and an empty frame precede the control frame.

Opcodes are never reused, and a released message never changes its meaning. A message with a new
meaning gets a new opcode. The field types are those of msgpack: int, str, bytes, bool, float, tuple
and dict.
"""

from __future__ import annotations

from typing import Final

from . import protocol_client, protocol_inner, protocol_orders
from .protocol_client import *
from .protocol_client import Wire
from .protocol_inner import *
from .protocol_orders import *

__all__ = [*protocol_client.__all__, *protocol_inner.__all__, *protocol_orders.__all__, "WORDS"]

_named = [
    getattr(file, name)
    for file in (protocol_client, protocol_inner, protocol_orders)
    for name in file.__all__
]
_words = [
    message
    for message in _named
    if isinstance(message, type) and issubclass(message, Wire) and message.op
]
WORDS: Final[dict[int, type[Wire]]] = {message.op: message for message in _words}
assert len(WORDS) == len(_words), "an opcode is used twice"
