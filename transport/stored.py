"""What is read by offset: blocks, or one message. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from .block import Block
from .codec import HeaderValue, unpack_headers
from .errors import E_BAD_ARGUMENT, E_NOT_FOUND, NotFound, UsageError

ID_DIGITS: Final = 16
OFFSET_BITS: Final = 54


class Fetched(NamedTuple):
    """What a read found. `start`: oldest offset kept; `head`: the next offset to come; `blocks`: consecutive, the first one holds the
    offset that was asked for or, where that is lost or not kept any more, what follows; none if there is nothing yet.
    `next_offset`: where to read on."""

    start: int
    head: int
    blocks: list[Block]
    next_offset: int


class StoredMessage(NamedTuple):
    """One message as it lies in the log. `timestamp_ns`: when it was stored, or the time of its own that it was published with."""

    topic: str
    offset: int
    timestamp_ns: int
    body: bytes
    key: bytes | None
    tag: str | None
    headers: dict[str, HeaderValue]


def stored(topic: str, offset: int, found: Fetched) -> StoredMessage:
    """The message of that offset out of what was read there; `NotFound` says why it is not there."""
    block = found.blocks[0] if found.blocks else None
    if block is None or not block.first_offset <= offset < block.next_offset:
        why = f"it is lost: damaged and set aside; the next one is {found.next_offset if block is None else block.first_offset}"
        if offset < found.start:
            why = f"the topic begins at {found.start}: what lies before was removed"
        elif offset >= found.head:
            why = f"the topic ends at {found.head}"
        raise NotFound(E_NOT_FOUND, f"topic {topic} has no message {offset}: {why}")
    return message_at(topic, block, offset - block.first_offset)


def message_at(topic: str, block: Block, index: int) -> StoredMessage:
    key, tag, headers = (None if column is None else column.value(index) for column in (block.key, block.tag, block.headers))
    return StoredMessage(
        topic, block.first_offset + index, block.time_of(index), block.body.value(index) or b"", key,
        None if tag is None else tag.decode(errors="replace"), {} if headers is None else unpack_headers(headers),
    )  # fmt: skip


def parse_id(text: str) -> tuple[int | None, int]:
    """(node, offset) of a message id of 16 hex digits (10 bits of node, 54 of offset), or (None, offset) of a decimal offset."""
    if len(text) == ID_DIGITS and text.isascii() and all(digit in "0123456789abcdefABCDEF" for digit in text):
        number = int(text, 16)
        return number >> OFFSET_BITS, number & ((1 << OFFSET_BITS) - 1)
    if text.isascii() and text.isdigit() and len(text) < ID_DIGITS:
        return None, int(text)
    raise UsageError(E_BAD_ARGUMENT, f"{text!r} is neither an offset (at most 15 digits) nor a message id ({ID_DIGITS} hex digits)")
