"""Keys that a message holds while it is unfinished, so that no second one with the key is stored.

| header | value |
|---|---|
| `zsq-unique-key` | text or bytes of 1 to 256 bytes |
| `zsq-unique` | `while-waiting` or `while-working`: which messages with this key refuse this one |

A message waits until a handler has begun it in each channel. It works until each channel has
finished it. As for ids (`dedupe.py`), the client that packs the block sets a flag, and nobody looks
at the headers of a block without it. It is a flag of its own, so that a start reads only blocks
with keys. A message has an id or a key, not both: the answer has room for one earlier message.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from ..block.block import Block
from ..block.block_format import UNIQUE
from ..errors import E_BAD_BLOCK, UsageError
from .codec import DEDUPE_HEADER, UNIQUE_HEADER, UNIQUE_KEY_HEADER, unpack_headers
from .dedupe import DIGEST_BYTES

KEY_BYTES_MAX: Final = 256
WHILE_WAITING: Final = "while-waiting"
WHILE_WORKING: Final = "while-working"
MODES: Final = (WHILE_WAITING, WHILE_WORKING)
DELAYED_TEXT: Final = (
    "a message with a unique key cannot be delayed; publish it when it is due, or use a dedupe_id"
)
_PACKED: Final = bytes([0xA0 | len(UNIQUE_KEY_HEADER)]) + UNIQUE_KEY_HEADER.encode()
assert len(UNIQUE_KEY_HEADER) < 32


class UniqueKey(NamedTuple):
    """The key of a message, and if messages that are begun refuse it too."""

    name: bytes
    while_working: bool


def with_unique(block: Block, headers: Iterable[bytes | None] | None) -> Block:
    """Return the block, with the flag UNIQUE if a message has the header `zsq-unique-key`.

    `headers`: the headers as they were packed into the block.
    """
    if headers is None or _PACKED not in b"".join(filter(None, headers)):
        return block
    header = block.header._replace(flags=block.header.flags | UNIQUE)
    return Block(header, block.payload, block.columns)


def key_of(packed: bytes | None) -> UniqueKey | None:
    """Return the key in the packed headers of one message, or None.

    Raises `UsageError` (E_BAD_BLOCK) if it is not valid.
    """
    if not packed or _PACKED not in packed:
        return None
    headers: dict[str, Any] = unpack_headers(packed)
    if UNIQUE_KEY_HEADER not in headers:
        return None
    value, mode = headers[UNIQUE_KEY_HEADER], headers.get(UNIQUE_HEADER)
    name = value.encode() if isinstance(value, str) else value
    if not isinstance(name, bytes) or not 1 <= len(name) <= KEY_BYTES_MAX:
        text = f"the header {UNIQUE_KEY_HEADER} must be text or bytes, 1 to {KEY_BYTES_MAX} bytes"
        raise UsageError(E_BAD_BLOCK, text)
    if mode not in MODES:
        text = f"the header {UNIQUE_HEADER} must be one of {MODES}, not {repr(mode)[:80]}"
        raise UsageError(E_BAD_BLOCK, text)
    if DEDUPE_HEADER in headers:
        text = f"a message has the header {UNIQUE_KEY_HEADER} or {DEDUPE_HEADER}, not both"
        raise UsageError(E_BAD_BLOCK, text)
    return UniqueKey(name, mode == WHILE_WORKING)


def keys_of(block: Block) -> list[UniqueKey | None]:
    """Return the key of each message of a block with the flag UNIQUE.

    Raises `UsageError` (E_BAD_BLOCK) for a key that is not valid.
    """
    column = block.headers
    if not block.header.flags & UNIQUE or column is None:
        return [None] * block.count
    return [key_of(packed) for packed in column.values()]


def digest_of_key(name: bytes) -> bytes:
    """Return the digest by which a key is known. It differs from that of an id."""
    return blake2b(name, digest_size=DIGEST_BYTES, person=b"zsq-unique").digest()


def read_keys(block: Block) -> None:
    """Read the keys of a block into its `ids` and `modes`. Raises `UsageError` (E_BAD_BLOCK)."""
    keys = keys_of(block)
    block.ids = tuple(
        digest if key is None else digest_of_key(key.name)
        for key, digest in zip(keys, block.ids or [None] * block.count, strict=True)
    )
    block.modes = tuple(None if key is None else key.while_working for key in keys)


def modes_of(blocks: Iterable[Block]) -> dict[int, bool]:
    """Return `Block.modes` of the messages with keys, by their indexes among the digests."""
    modes: dict[int, bool] = {}
    first = 0
    for block in blocks:
        found = [at for at, digest in enumerate(block.ids or ()) if digest is not None]
        for following, at in enumerate(found, first):
            mode = None if block.modes is None else block.modes[at]
            if mode is not None:
                modes[following] = mode
        first += len(found)
    return modes


def digests_of_keys(blocks: Iterable[Block]) -> set[bytes]:
    """Return the digests of the blocks that are those of keys."""
    return {
        digest
        for block in blocks
        if block.modes is not None
        for digest, mode in zip(block.ids or (), block.modes, strict=True)
        if digest is not None and mode is not None
    }


def names_of_keys(block: Block) -> list[bytes | None]:
    """Return the unique key of each message, or None for one without a key."""
    try:
        return [None if key is None else key.name for key in keys_of(block)]
    except UsageError:  # the broker refuses the block
        return [None] * block.count
