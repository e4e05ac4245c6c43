"""Ids by which a topic stores a message only once. They are in the header `zsq-dedupe-id`.

A flag of the block says that it may contain such messages. The client that packs the block sets the
flag, so that the broker examines only blocks with the flag. A header without the flag has no
effect. So a redriven message, or another copy that keeps its headers, is never taken for a
duplicate by accident: the broker itself packs such blocks without the flag.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from ..block.block import Block
from ..block.block_format import HAS_IDS
from ..errors import E_BAD_BLOCK, UsageError
from .codec import DEDUPE_HEADER, HeaderValue, unpack_headers

ID_BYTES_MAX: Final = 256
DIGEST_BYTES: Final = 16
Digests = tuple[bytes | None, ...]

# The name of the header as it appears in a msgpack map.
_PACKED: Final = bytes([0xA0 | len(DEDUPE_HEADER)]) + DEDUPE_HEADER.encode()
assert len(DEDUPE_HEADER) < 32
# Most messages with an id have no other header, and a short text as id.
_ALONE: Final = b"\x81" + _PACKED
_ALONE_BYTES: Final = len(_ALONE)
_SHORT_TEXT: Final = range(0xA1, 0xC0)


def with_ids(block: Block, headers: Iterable[bytes | None] | None) -> Block:
    """Return the block, with the flag HAS_IDS if a message has the header `zsq-dedupe-id`.

    `headers`: the headers as they were packed into the block.
    """
    if headers is None or _PACKED not in b"".join(filter(None, headers)):
        return block
    header = block.header._replace(flags=block.header.flags | HAS_IDS)
    return Block(header, block.payload, block.columns)


def digest_of(name: bytes) -> bytes:
    """Return the digest by which an id is known. Two ids with the same digest will not occur."""
    return blake2b(name, digest_size=DIGEST_BYTES).digest()


def id_of(packed: bytes | None) -> bytes | None:
    """Return the id in the packed headers of one message, or None.

    Raises `UsageError` (E_BAD_BLOCK) if it is not a text or bytes of 1 to ID_BYTES_MAX bytes.
    """
    if not packed or _PACKED not in packed:
        return None
    if (
        packed.startswith(_ALONE)
        and packed[_ALONE_BYTES] in _SHORT_TEXT
        and packed[_ALONE_BYTES] - 0xA0 == len(packed) - _ALONE_BYTES - 1
    ):
        return packed[_ALONE_BYTES + 1 :]
    headers: dict[str, HeaderValue] = unpack_headers(packed)
    if DEDUPE_HEADER not in headers:
        return None
    value = headers[DEDUPE_HEADER]
    name = value.encode() if isinstance(value, str) else value
    if not isinstance(name, bytes) or not 1 <= len(name) <= ID_BYTES_MAX:
        text = f"the header {DEDUPE_HEADER} must be text or bytes, 1 to {ID_BYTES_MAX} bytes long"
        raise UsageError(E_BAD_BLOCK, text)
    return name


def names_of(block: Block) -> list[bytes | None]:
    """Return the id of each message, or None for one without an id or with an invalid one."""
    column = block.headers
    names: list[bytes | None] = []
    for packed in () if column is None else column.values():
        try:
            names.append(id_of(packed))
        except UsageError:
            names.append(None)
    return names or [None] * block.count


def pack_id(name: bytes) -> bytes:
    """Return the packed headers of a message that has only this id, as text."""
    size = len(name)
    head = bytes([0xA0 | size]) if size < 32 else b"\xd9" + bytes([size]) if size < 256 else (
        b"\xda" + size.to_bytes(2, "big")
    )  # fmt: skip
    return _ALONE + head + name


def digests_of(block: Block) -> Digests | None:
    """Return the digest of each message's id, or None for a block without ids.

    Raises `UsageError` (E_BAD_BLOCK) for an id that is not valid.
    """
    column = block.headers
    if not block.header.flags & HAS_IDS or column is None:
        return None
    return tuple(
        None if (name := id_of(packed)) is None else digest_of(name) for packed in column.values()
    )
