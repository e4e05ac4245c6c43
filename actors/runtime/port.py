"""A ZeroMQ socket that speaks words: the only way actors send and receive.

Sends never block: `send` says False where the peer is gone or its pipe is full, and the caller decides (a broker
takes the peer's credit away, and reads from storage later). Column frames are neither copied on receipt nor on the way
out; the small frames (envelope, control, headers) are plain bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import zmq
import zmq.backend

from ...transport.block.block import Block
from ...transport.errors import E_TOO_BIG, UsageError
from ...transport.wire.codec import decode, encode, frames_blocks
from ...transport.wire.protocol import FRAME_BYTES_MAX, FRAMES_MAX, Done, Failed, Pulse, Wire
from ...transport.wire.sockets import send_frames

log = logging.getLogger("zsq")

Envelope = tuple[bytes, ...]
MessageT = TypeVar("MessageT", bound=Wire)
_ENVELOPE_MAX: Final = 4
_USER: Final = b"user "

# The binding's own methods, without what the class above them does in Python for each frame: a third of an actor's work for one message.
_recv: Final[Any] = zmq.backend.Socket.recv
_NOW: Final = int(zmq.NOBLOCK)


def user_label(name: str) -> bytes:
    """The part of the envelope by which a gateway says whose a link is."""
    return _USER + name.encode()


def user_of(envelope: tuple[bytes, ...]) -> str:
    """Who says this: (gateway, label, client) where users must say who they are; "" elsewhere, and over ipc."""
    return envelope[1].removeprefix(_USER).decode() if len(envelope) == 3 and envelope[1].startswith(_USER) else ""


class Mail(NamedTuple):
    """What came: from whom, the word, and its block frames (header bytes and column frame in turn)."""

    envelope: Envelope
    message: Wire
    frames: list[Any]

    def blocks(self) -> list[Block]:
        return frames_blocks(self.frames)


class Port:
    """`kind` is zmq.ROUTER or zmq.DEALER; PULL only receives, PUSH only sends. Nothing is opened before bind or connect."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], kind: int, *, routing_id: bytes = b"", mark: int = 20_000) -> None:
        self.socket = context.socket(kind)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        self.socket.setsockopt(zmq.SNDHWM, mark)  # above every credit: memory is bounded by bytes, not by messages
        self.socket.setsockopt(zmq.RCVHWM, mark)
        if routing_id:
            self.socket.setsockopt(zmq.ROUTING_ID, routing_id)
        if kind == zmq.ROUTER:
            self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            self.socket.setsockopt(zmq.HANDSHAKE_IVL, 5_000)
        self.routes: dict[type[Wire], Callable[[Port, Mail, Any], None]] = {}

    def route(self, kind: type[MessageT], handler: Callable[[Port, Mail, MessageT], None]) -> None:
        """Let `handler` take the messages of this class that come in here. A class without a handler is answered E_BAD_COMMAND."""
        self.routes[kind] = handler

    def receive(self, limit: int) -> Iterator[Mail | tuple[Envelope, UsageError]]:
        """What is there, at most `limit` messages; a frame that is no word comes as (envelope, error)."""
        socket = self.socket
        for _ in range(limit):
            # Not asked before whether something is there: libzmq makes a system call for each answer, 1.3 microseconds here, and takes
            # what its thread had to tell once for all that it finds. The exception of the end costs 2.6, once.
            try:
                frames = self._receive_frames(socket)
            except zmq.Again:
                return
            if frames is None:
                continue  # no envelope: there is nobody to answer
            envelope, control, rest = frames
            try:
                yield Mail(envelope, decode(control), rest)
            except UsageError as error:
                yield envelope, error

    def _receive_frames(self, socket: zmq.Socket[bytes]) -> tuple[Envelope, bytes, list[Any]] | None:
        """As objects that know whether more follows: bytes, and the socket asked whether more follows, cost 0.99 microseconds a frame,
        these 0.54. Of the small ones their bytes are kept."""
        envelope: list[bytes] = []
        frame = _recv(socket, _NOW, False)
        while part := frame.bytes:
            envelope.append(part)
            if not frame.more or len(envelope) > _ENVELOPE_MAX:
                self._skip(socket, frame)
                return None
            frame = _recv(socket, _NOW, False)
        if not frame.more:
            return None
        frame = _recv(socket, _NOW, False)
        control: bytes = frame.bytes
        rest: list[Any] = []
        while frame.more:
            frame = _recv(socket, _NOW, False)
            rest.append(frame if len(rest) % 2 else frame.bytes)
            if len(rest) > FRAMES_MAX:
                self._skip(socket, frame)
                return None
        return tuple(envelope), control, rest

    def _skip(self, socket: zmq.Socket[bytes], frame: Any) -> None:
        while frame.more:
            frame = _recv(socket, _NOW, False)

    def send(self, envelope: Envelope, message: Wire, blocks: Sequence[Block] = ()) -> bool:
        """True if it was handed over; False if the peer is gone or does not take more."""
        control = encode(message)
        if len(control) > FRAME_BYTES_MAX:
            control = _replacement(message, len(control))
            if not control:
                return False
        frames: list[Any] = [*envelope, b"", control]
        for block in blocks:
            frames.append(block.wire_header())
            frames.append(block.payload)
        return self.send_frames(frames)

    def send_frames(self, frames: Sequence[Any]) -> bool:
        try:
            return send_frames(self.socket, frames)
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return False
            raise

    def close(self) -> None:
        self.socket.close(linger=200)


def _replacement(message: Wire, size: int) -> bytes:
    """Return what is sent in place of a control frame over the limit, b"" for nothing.

    The receiver's libzmq would close the connection at such a frame, and everything that waits on it would be lost. So the asker of a
    question gets an error, and a pulse goes without its figures. Answers are paged or cut where they are made: this is the last resort.
    """
    log.error("%s of %d bytes is over the limit of %d for a frame and was not sent", type(message).__name__, size, FRAME_BYTES_MAX)
    if isinstance(message, Done):
        text = f"the answer has {size} bytes, and at most {FRAME_BYTES_MAX} are sent: ask for less (one topic, one channel, fewer entries)"
        return encode(Failed(message.request, E_TOO_BIG, text))
    return encode(Pulse(message.key, message.request, {}, {})) if isinstance(message, Pulse) else b""
