"""A topic's ordering (the check of each producer's sequence numbers) with one producer that has
sent Hello, and a short form of its answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zsq.actors.topic.ordering import Ordering, Reply
from zsq.transport.block.block import Block, pack
from zsq.transport.wire.protocol import Stored, Unstored

S = 1_000_000_000
NOW = 1_000 * S
A, B, C = (b"a",), (b"b",), (b"gateway-1", b"c")
ID = 77


def block(sequence: int, *, producer_id: int = ID, count: int = 1, size: int = 1) -> Block:
    return pack([b"x" * size] * count, producer_id=producer_id, sequence=sequence)


def greeted(known: Mapping[int, tuple[int, Sequence[Sequence[int]]]] | None = None) -> Ordering:
    ordering = Ordering(known or {})
    assert ordering.hello(A, ID, 30 * S, NOW) is not None
    return ordering


def publish(ordering: Ordering, *sequences: int, peer: tuple[bytes, ...] = A) -> list[Reply]:
    return [
        reply for sequence in sequences for reply in ordering.publish(peer, block(sequence), NOW)
    ]


def brief(replies: list[Reply]) -> list[tuple[bytes, object]]:
    """Return a short form of each reply: (peer, what is stored), or (peer, (sequence, expected,
    code)) if the block was not stored.
    """
    found: list[tuple[bytes, object]] = []
    for peer, message in replies:
        if isinstance(message, Unstored):
            found.append((peer[-1], (message.sequence, message.expected, message.code)))
        else:
            found.append(
                (
                    peer[-1],
                    message.blocks
                    if isinstance(message, Stored)
                    else (message.sequence, message.due_ns, message.serial),
                )
            )
    return found


def append(ordering: Ordering) -> int:
    handed = ordering.next_append()
    assert handed is not None
    return handed[0]
