"""Lifetime headers: until when a message may be delivered, and the key by which it is revoked.

| header | value | flag of the block |
|---|---|---|
| `zsq-expires-ms` | milliseconds, from 0 on | EXPIRES |
| `zsq-revoke-key` | text of 1 to 256 bytes | REVOCABLE |

The time counts from the moment when the broker stored the message. For a delayed message, it
counts from its due time. So neither the clock of a producer nor that of a consumer matters. An
absolute time was rejected: a producer whose clock is five minutes slow would publish messages that
are expired when they arrive.

As for an address (`dead_letter.py`), the client that packs the block sets the flag, and nobody
looks at the headers of a block without it. A value that is not valid means nothing. Pure
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ..block.block import Block, Column, pack
from ..block.block_format import EXPIRES, LARGEST, REVOCABLE
from ..errors import E_BAD_ARGUMENT, UsageError
from .codec import EXPIRES_HEADER, HeaderValue, pack_headers, unpack_headers

REVOKE_KEY_HEADER: Final = "zsq-revoke-key"
EXPIRES_MS_MAX: Final = 10 * 366 * 86_400_000
REVOKE_KEY_BYTES_MAX: Final = 256
_DIGITS_MAX: Final = 15


def _packed(name: str) -> bytes:
    """Return the name of a header as it appears in a msgpack map."""
    assert len(name) < 32
    return bytes([0xA0 | len(name)]) + name.encode()


_FLAGS: Final = ((_packed(EXPIRES_HEADER), EXPIRES), (_packed(REVOKE_KEY_HEADER), REVOCABLE))
_EXPIRES: Final = _FLAGS[0][0]
_REVOKE_KEY: Final = _FLAGS[1][0]


def with_lifetime(block: Block, headers: Iterable[bytes | None] | None) -> Block:
    """Return the block, with the flags of the lifetime headers that a message of it has.

    `headers`: the headers as they were packed into the block.
    """
    if headers is None:
        return block
    joined = b"".join(filter(None, headers))
    flags = sum(flag for name, flag in _FLAGS if name in joined)
    return _flagged(block, flags) if flags else block


def _flagged(block: Block, flags: int) -> Block:
    header = block.header._replace(flags=block.header.flags | flags)
    return Block(header, block.payload, block.columns)


def expires_ms(value: object) -> int | None:
    """Return the value of the header as milliseconds, or None if it is not valid.

    A text of digits is a number, because the command line has only texts.
    """
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value) if len(value) <= _DIGITS_MAX else EXPIRES_MS_MAX
    if type(value) is not int or value < 0:
        return None
    return min(value, EXPIRES_MS_MAX)


def revoke_key(value: object) -> str | None:
    """Return the value of the header as a key, or None if it is not valid."""
    if isinstance(value, str) and 0 < len(value.encode(errors="replace")) <= REVOKE_KEY_BYTES_MAX:
        return value
    return None


def lifetimes_ms(block: Block) -> list[int | None]:
    """Return for each message of the block how long it lives, or None for no limit."""
    flag, column = block.header.flags & EXPIRES, block.headers
    if not flag or column is None:
        return [None] * block.count
    return [expires_ms(value) for value in _values(column, _EXPIRES, EXPIRES_HEADER)]


def revoke_keys(block: Block) -> list[str | None]:
    """Return for each message of the block its key, or None. The flag is not looked at."""
    column = block.headers
    if column is None:
        return [None] * block.count
    return [revoke_key(value) for value in _values(column, _REVOKE_KEY, REVOKE_KEY_HEADER)]


def _values(column: Column, packed_name: bytes, name: str) -> list[HeaderValue]:
    """Return the value of this header of each message, or None.

    Equal headers are unpacked once, because most blocks repeat them.
    """
    known: dict[bytes | None, HeaderValue] = {None: None}
    values: list[HeaderValue] = []
    for packed in column.values():
        if packed not in known:
            known[packed] = _value(packed or b"", packed_name, name)
        values.append(known[packed])
    return values


def _value(packed: bytes, packed_name: bytes, name: str) -> HeaderValue:
    if packed_name not in packed:
        return None
    try:
        return unpack_headers(packed).get(name)
    except UsageError:
        return None


# What a publish gives


def lifetime_headers(
    expires_in_ms: int | None, delay_ms: int, key: str | None
) -> dict[str, HeaderValue]:
    """Return the headers of a message that lives `expires_in_ms` from its publish on."""
    headers: dict[str, HeaderValue] = {}
    if expires_in_ms is not None:
        headers[EXPIRES_HEADER] = max(0, expires_in_ms - delay_ms)
    if key is not None:
        headers[REVOKE_KEY_HEADER] = check_revoke_key(key)
    return headers


def check_revoke_key(key: Any) -> str:
    """Return the key. Raises `UsageError` (E_BAD_ARGUMENT) if it is not valid."""
    try:
        good = isinstance(key, str) and 0 < len(key.encode()) <= REVOKE_KEY_BYTES_MAX
    except UnicodeEncodeError:
        good = False
    if not good:
        text = f"a revoke key must be a text of 1 to {REVOKE_KEY_BYTES_MAX} bytes, not {key!r:.60}"
        raise UsageError(E_BAD_ARGUMENT, text)
    return str(key)


# A delayed message that came due


def aged(block: Block, late_ms: int) -> Block:
    """Return the block with lifetimes that are `late_ms` shorter.

    A delayed message lives from its due time on. If the broker was away at that time, the message
    is stored late, and from then on its time counts.
    """
    if late_ms <= 0 or not block.header.flags & EXPIRES or block.headers is None:
        return block
    keys, tags = (None if column is None else column.values() for column in (block.key, block.tag))
    new = pack(
        [body or b"" for body in block.body.values()],
        keys=keys,
        tags=tags,
        headers=[_aged_headers(packed, late_ms) for packed in block.headers.values()],
        times=None if block.times is None else list(block.times),
        limits=LARGEST,
    )
    old = block.header
    header = new.header._replace(
        flags=old.flags,
        first_offset=old.first_offset,
        time_ns=old.time_ns,
        producer_id=old.producer_id,
        sequence=old.sequence,
    )
    return Block(header, new.payload, new.columns)


def _aged_headers(packed: bytes | None, late_ms: int) -> bytes | None:
    if packed is None or _EXPIRES not in packed:
        return packed
    try:
        headers: Mapping[str, HeaderValue] = unpack_headers(packed)
    except UsageError:
        return packed
    lives_ms = expires_ms(headers.get(EXPIRES_HEADER))
    if lives_ms is None:
        return packed
    return pack_headers({**headers, EXPIRES_HEADER: max(0, lives_ms - late_ms)})
