"""Fake ports for fuzzed actors. Incoming frames are decoded as a real port does it, and outgoing
messages are really encoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final

import msgpack
import zmq
from faults.fuzz_wire import Part, block_frames, typed_word, word_frame
from faults.mutation import Mutator
from support.routed import Routed

from zsq.actors.runtime.port import Envelope, Mail
from zsq.transport.block.block import Block
from zsq.transport.errors import UsageError
from zsq.transport.wire.codec import decode, encode, request_of
from zsq.transport.wire.protocol import WORDS, Failed, Wire

SENT_MAX: Final = 64


class FakePort(Routed):
    """A fake for `Port`, and for the socket of that port."""

    def __init__(self, mutator: Mutator, name: str = "", *, deaf: bool = False) -> None:
        super().__init__()
        self.name = name
        self.mutator = mutator
        self.deaf = deaf  # if True, the peer sometimes accepts no more messages
        self.socket = self
        self.closed = False
        self.waiting: deque[tuple[Envelope, bytes, list[Any]]] = deque()
        self.raw: deque[list[zmq.Frame]] = deque()
        self.sent: deque[tuple[Envelope, Wire, Sequence[Block]]] = deque(maxlen=SENT_MAX)

    def put(self, envelope: Envelope, control: bytes, frames: Sequence[bytes] = ()) -> None:
        self.waiting.append(
            (
                envelope,
                control,
                [part if n % 2 == 0 else Part(part) for n, part in enumerate(frames)],
            )
        )

    def say(self, envelope: Envelope, message: Wire, blocks: Sequence[Block] = ()) -> None:
        """Let a correct message of a correct peer arrive."""
        frames = [bytes(part) for block in blocks for part in (block.wire_header(), block.columns)]
        self.put(envelope, encode(message), frames)

    # The methods that an actor calls

    def receive(self, limit: int) -> Iterator[Mail | tuple[Envelope, Failed]]:
        for _ in range(min(limit, len(self.waiting))):
            envelope, control, frames = self.waiting.popleft()
            try:
                yield Mail(envelope, decode(control), frames)
            except UsageError as error:
                yield envelope, Failed(request_of(control), error.code, error.text)

    def send(self, envelope: Envelope, message: Wire, blocks: Sequence[Block] = ()) -> bool:
        encode(message)
        for block in blocks:
            block.wire_header()
        if self.deaf and self.mutator.chance(100):
            return False
        self.sent.append((envelope, message, blocks))
        return True

    def send_frames(self, frames: Sequence[Any]) -> bool:
        assert all(isinstance(getattr(frame, "bytes", frame), bytes) for frame in frames)
        return not (self.deaf and self.mutator.chance(100))

    def is_gone(self, envelope: Envelope) -> bool:
        return self.deaf and self.mutator.chance(2)

    def close(self) -> None:
        self.closed = True

    # The methods of the socket

    def poll(self, timeout_ms: int = 0) -> bool:
        return bool(self.waiting)

    def recv_multipart(self, flags: int = 0, copy: bool = True) -> list[zmq.Frame]:
        if not self.raw:
            raise zmq.Again
        return self.raw.popleft()

    def getsockopt_string(self, option: int) -> str:
        return "tcp://127.0.0.1:4153"

    def setsockopt(self, option: int, value: object) -> None:
        pass


def stranger_says(
    mutator: Mutator,
    allowed: Sequence[type[Wire]],
    known: Mapping[str, Sequence[Any]] | None = None,
) -> tuple[bytes, tuple[bytes, ...]]:
    """Return a control frame and its block frames. It is mostly a message of an `allowed` class.
    Its fields contain anything, or values from `known`, which a peer that has watched the
    connection could send.
    """
    dice = mutator.below(10)
    if dice < 7:
        message = typed_word(mutator, mutator.one(allowed).op)
        fitting = {
            field.name: mutator.one(known[field.name])
            for field in fields(message)
            if known and field.name in known and mutator.chance(2)
        }
        control = said(replace(message, **fitting))
    elif dice < 8:
        control = said(typed_word(mutator, mutator.one(list(WORDS))))
    else:
        control = word_frame(mutator, [message.op for message in allowed])
    frames: tuple[bytes, ...] = ()
    while mutator.chance(3):
        frames += block_frames(mutator)
    return control, frames if not mutator.chance(20) else frames[:-1] if frames else (b"",)


def said(message: Wire) -> bytes:
    """Return the control frame of a message, even if it is so large that no client of ZSQ would
    send it.
    """
    return bytes(
        msgpack.packb((message.op, *(getattr(message, field.name) for field in fields(message))))
    )


def own_frames(block: Block) -> tuple[bytes, bytes]:
    return block.wire_header(), bytes(block.columns)


def by_name(words: Iterable[type[Wire]]) -> tuple[type[Wire], ...]:
    """Return the classes in an order that is the same in every process."""
    return tuple(sorted(words, key=lambda message: message.__name__))
