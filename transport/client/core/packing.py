"""Packing: messages and their attributes become blocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ...block.block import (
    BLOCK_COUNT_MAX,
    KEY_BYTES_MAX,
    MESSAGE_BYTES_LARGEST,
    Block,
    Limits,
    pack,
)
from ...errors import E_BAD_ARGUMENT, E_TOO_BIG, UsageError
from ...wire.header_flags import with_flags
from .publish_arguments import Attributes, Text, as_body, as_headers, as_tag, as_text, too_big

BATCH_BYTES_MAX: Final = 5 * 1024 * 1024  # the approximate limit for the bodies in one block
Column = list[bytes | None] | None


def pack_many(
    bodies: Sequence[bytes],
    keys: Sequence[Text] | None,
    tags: Sequence[Text] | None,
    headers: Any,
    time_ns: int | None = None,
    *,
    key: Text = None,
    tag: Text = None,
    size_max: int = MESSAGE_BYTES_LARGEST,
) -> Iterator[Block]:
    """Pack messages into blocks of at most 10,000 messages and about 5 MiB, in order.

    Invalid arguments are reported before the first block is yielded.

    - `time_ns`: The time of the messages, if it is not the time at which they are stored.
    - `key`, `tag`: A value for all messages. `headers` may be one map for all, too.
    - `size_max`: The limit for the bytes of a body.
    """
    if isinstance(bodies, bytes | bytearray | memoryview | str):
        kind = type(bodies).__name__
        raise UsageError(
            E_BAD_ARGUMENT,
            f"publish_many needs a list of messages, not {kind}; for one message use publish",
        )
    bodies = bodies if isinstance(bodies, list | tuple) else list(bodies)
    count = len(bodies)
    if not count:
        raise UsageError(E_BAD_ARGUMENT, "publish_many needs at least one message")
    columns: dict[str, Any] = {
        "keys": _column(
            key, keys, count, "key", lambda value: as_text(value, KEY_BYTES_MAX, "key")
        ),
        "tags": _column(tag, tags, count, "tag", as_tag),
        "headers": [as_headers(headers)] * count
        if isinstance(headers, Mapping)
        else _column(None, headers, count, "", as_headers),
    }
    for name, column in columns.items():
        if column is not None and len(column) != count:
            raise UsageError(
                E_BAD_ARGUMENT,
                f"{len(column)} {name} for {count} messages; give one (or None) for each",
            )
    # The messages of most calls fit into one block, and packing checks sizes and types anyway. So
    # they are examined one by one only if they do not fit.
    try:
        block = packed(bodies, time_ns, **columns, size_max=size_max)
        if count == 1 or block.length <= BATCH_BYTES_MAX:
            return iter((block,))
    except UsageError as error:
        if error.code != E_TOO_BIG or count == 1:
            raise
    bodies = [as_body(body) for body in bodies]
    if (largest := largest_of(bodies)) > size_max:
        raise too_big(largest, size_max)
    spans = list(_spans(bodies, columns))
    if len(spans) == 1 and spans[0] == (0, count):
        return iter((packed(bodies, time_ns, **columns),))
    return (
        packed(
            bodies[a:b],
            time_ns,
            **{name: column and column[a:b] for name, column in columns.items()},
        )
        for a, b in spans
    )


def _column(
    shared: Any, values: Any, count: int, name: str, check: Callable[[Any], bytes | None]
) -> Column:
    """Return one value for each message: `shared` for all of them, or one of `values` for each."""
    if shared is not None and values is not None:
        raise UsageError(
            E_BAD_ARGUMENT,
            (
                f"{name}= applies to all messages and {name}s= has one value for each; give one of "
                "them"
            ),
        )
    if shared is not None:
        return [check(shared)] * count
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable | None):
        raise UsageError(
            E_BAD_ARGUMENT,
            (
                f"{name}s= needs one {name} for each message; to give all messages the same one, "
                f"use {name}="
            ),
        )
    return None if values is None else [check(value) for value in values]


def packed(
    bodies: Sequence[bytes],
    time_ns: int | None,
    keys: Any = None,
    tags: Any = None,
    headers: Any = None,
    *,
    size_max: int = MESSAGE_BYTES_LARGEST,
) -> Block:
    """Pack values that are already bytes into a block.

    `time_ns`: the time of the messages. `size_max`: the limit for the bytes of a body.
    """
    times = None if time_ns is None else [time_ns] * len(bodies)
    limits = Limits(size_max)
    block = pack(bodies, keys=keys, tags=tags, headers=headers, times=times, limits=limits)
    return with_flags(block, headers)


def _spans(bodies: Sequence[bytes], columns: Mapping[str, Column]) -> Iterator[tuple[int, int]]:
    """Yield the messages of each block as (start, stop)."""
    sizes = list(map(len, bodies))
    for column in columns.values():
        if column is not None:
            sizes = [size + len(value or b"") for size, value in zip(sizes, column, strict=True)]
    start = room = 0
    for index, size in enumerate(sizes):
        if index > start and (room + size > BATCH_BYTES_MAX or index - start >= BLOCK_COUNT_MAX):
            yield start, index
            start, room = index, 0
        room += size
    yield start, len(bodies)


def one_block(body: bytes, attributes: Attributes | None, delay_ms: int) -> Block:
    columns = [None if value is None else [value] for value in attributes or (None, None, None)]
    return packed([body], time.time_ns() if delay_ms else None, *columns)


def largest_of(bodies: Any) -> int:
    """Return the size of the largest body.

    Return 0 if the bodies are not a list of bytes. Packing then raises a better error.
    """
    try:
        return max(map(len, bodies), default=0) if isinstance(bodies, list | tuple) else 0
    except TypeError:
        return 0
