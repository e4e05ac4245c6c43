"""Dead letters: copies of failed messages in another topic, with headers about their origin.

A dead letter has the body, key, tag and headers of the message, and the time at which the message
was first stored. All headers together have a size limit, and the message's own headers may already
reach it. In that case the traceback is shortened first, from its oldest frames on, and then the
error text. If that is not enough, own headers are left out, the largest first, and
`zsq-dead-left-out` counts them.

The module also handles messages for only one channel of a topic. The header `zsq-channel` names the
channel, and a flag of the block says that the block may contain such messages. The client that
packs the block sets the flag, so that a channel needs to inspect only blocks with the flag.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from ..block.block import Block, Column
from ..block.block_format import ADDRESSED, HEADERS_BYTES_MAX
from ..errors import E_BAD_ARGUMENT, E_BAD_BLOCK, UsageError
from .codec import (
    CHANNEL_HEADER,
    DEDUPE_HEADER,
    EXPIRES_HEADER,
    HEADERS_MAX,
    UNIQUE_HEADER,
    UNIQUE_KEY_HEADER,
    HeaderValue,
    check_headers,
    pack_headers,
    unpack_headers,
)

# The name of the header as it appears in a msgpack map.
_PACKED: Final = bytes([0xA0 | len(CHANNEL_HEADER)]) + CHANNEL_HEADER.encode()
assert len(CHANNEL_HEADER) < 32


def with_address(block: Block, headers: Iterable[bytes | None] | None) -> Block:
    """Return the block, with the flag ADDRESSED if a message has the header `zsq-channel`.

    `headers`: the headers as they were packed into the block. One search finds the header in all of
    them.
    """
    if headers is None or _PACKED not in b"".join(filter(None, headers)):
        return block
    return Block(
        block.header._replace(flags=block.header.flags | ADDRESSED), block.payload, block.columns
    )


def addressees(block: Block) -> Iterator[tuple[int, str]]:
    """Yield (index, channel) of the messages that are addressed to one channel.

    A message with invalid headers is not addressed to one channel.
    """
    column = block.headers
    if not block.header.flags & ADDRESSED or column is None:
        return
    yield from _named(column)


def check_block_headers(block: Block) -> None:
    """Check the headers of a block of a client.

    Raises `UsageError` (E_BAD_BLOCK) if they are not valid, or if one has an address and the block
    does not have the flag. Rights and channels go by the flag.
    """
    column = block.headers
    if column is None:
        return
    check_headers(column)
    if not block.header.flags & ADDRESSED and any(_named(column)):
        text = (
            f"a message has the header {CHANNEL_HEADER}, but its block does not have the flag "
            f"{ADDRESSED}; a block of a stage may have neither"
        )
        raise UsageError(E_BAD_BLOCK, text)


def _named(column: Column) -> Iterator[tuple[int, str]]:
    if _PACKED not in bytes(column.data):
        return
    for index, packed in enumerate(column.values()):
        channel = addressee(packed)
        if channel is not None:
            yield index, channel


def addressee(packed: bytes | None) -> str | None:
    """Return the channel to which headers address their message, or None."""
    if not packed or _PACKED not in packed:
        return None
    try:
        channel = unpack_headers(packed).get(CHANNEL_HEADER)
    except UsageError:
        return None
    return channel if isinstance(channel, str) else None


PREFIX: Final = "zsq-dead-"
REDRIVEN: Final = "zsq-redriven-"
TOPIC: Final = f"{PREFIX}topic"
# The uuid of that topic. A topic that is created again has another uuid.
UUID: Final = f"{PREFIX}uuid"
OFFSET: Final = f"{PREFIX}offset"
CHANNEL: Final = f"{PREFIX}channel"
ATTEMPTS_MADE: Final = f"{PREFIX}attempts"
REASON: Final = f"{PREFIX}reason"
ERROR: Final = f"{PREFIX}error"
CONSUMER: Final = f"{PREFIX}consumer"  # the label of the consumer of the last delivery
TRACEBACK: Final = f"{PREFIX}traceback"
TIME: Final = f"{PREFIX}time"  # when the message died, in nanoseconds since 1970
LEFT_OUT: Final = f"{PREFIX}left-out"  # the number of own headers for which there was no room
UNREADABLE: Final = f"{PREFIX}headers"  # the own headers, unchanged, if they were not a map

# Reasons why a message became a dead letter.
ATTEMPTS: Final = "max_attempts"
REJECT: Final = "rejected"
EXPIRY: Final = "expired"
FOUND: Final = (
    "its channel ended while it was in flight or waited; the result of its last delivery is "
    "not known"
)

_STORED_ONCE: Final = (DEDUPE_HEADER, UNIQUE_HEADER, UNIQUE_KEY_HEADER)
_ROOM: Final = 2  # the headers that a redrive may add: its target channel, and one as a reserve
_ROOM_BYTES: Final = 256  # the bytes of these headers, and of longer names after a redrive


def pack_dead(headers: bytes | None, about: Mapping[str, HeaderValue]) -> bytes:
    """Return the packed headers of a dead letter: its own headers, and those about its death.

    The result is within the limits, whatever the own headers were.
    """
    try:
        return _pack(_own(headers), dict(about))
    except UsageError:
        kept: dict[str, HeaderValue] = (
            {UNREADABLE: headers}
            if headers is not None and len(headers) < HEADERS_BYTES_MAX // 2
            else {}
        )
        return _pack(kept, dict(about))


def _pack(kept: dict[str, HeaderValue], death: dict[str, HeaderValue]) -> bytes:
    left_out = max(0, len(kept) + len(death) + 1 - (HEADERS_MAX - _ROOM))
    if left_out:
        _leave_out(kept, left_out)
    while True:
        packed = pack_headers({**kept, **death, **({LEFT_OUT: left_out} if left_out else {})})
        over = len(packed) - (HEADERS_BYTES_MAX - _ROOM_BYTES)
        if over <= 0:
            return packed
        error = str(death.get(ERROR, "")).encode()
        traceback = str(death.pop(TRACEBACK, "")).encode()
        if traceback and over < len(traceback):
            death[TRACEBACK] = traceback[over:].decode(errors="ignore")
        elif traceback:
            pass  # it is left out
        elif error:
            death[ERROR] = error[: max(0, len(error) - over)].decode(errors="ignore")
        else:
            assert kept, "what is said of a death fits"
            _leave_out(kept, 1)
            left_out += 1


def _own(data: bytes | None) -> dict[str, HeaderValue]:
    """Return the own headers that a dead letter keeps.

    A letter that dies again describes only its last death. It is no longer addressed to the channel
    of a redrive. It does not expire, and neither does a redriven message.
    It has no id, because a redrive within the window would be a duplicate of it, and holds no key,
    because its own topic is another one.
    """
    headers = unpack_headers(data)
    if not all(type(name) is str for name in headers):
        raise UsageError(E_BAD_ARGUMENT, "a header's name must be text")
    return {
        name: value
        for name, value in headers.items()
        if not name.startswith(PREFIX)
        and name not in (CHANNEL_HEADER, EXPIRES_HEADER, *_STORED_ONCE)
    }


def _leave_out(headers: dict[str, HeaderValue], count: int) -> None:
    for name in sorted(
        headers, key=lambda name: len(name) + len(pack_headers({"": headers[name]})), reverse=True
    )[:count]:
        del headers[name]


def redriven(headers: Mapping[str, HeaderValue], channel: str | None) -> dict[str, HeaderValue]:
    """Return the headers of a dead letter that is sent back.

    The headers about its death get the prefix `zsq-redriven-`, without the traceback: a letter that
    dies again and again must not grow. If `channel` is given, only this channel gets the letter.
    """
    without = (CHANNEL_HEADER, TRACEBACK, *_STORED_ONCE)
    kept = {name: value for name, value in headers.items() if name not in without}
    # Other programs may have packed names that are not text.
    history = {name for name in kept if type(name) is str and name.startswith(PREFIX)}
    letter = {
        name: value
        for name, value in kept.items()
        if name not in history and not (type(name) is str and name.startswith(REDRIVEN))
    }
    letter |= {REDRIVEN + name.removeprefix(PREFIX): kept[name] for name in kept if name in history}
    return letter | ({CHANNEL_HEADER: channel} if channel is not None else {})
