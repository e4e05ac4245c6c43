"""Ports: ZeroMQ sockets for protocol messages, the only way in which actors send and receive.

Sends never block. `send` returns False if the peer is gone or its pipe is full, and the caller
decides. (A topic, for example, stops sending to that channel, which reads from storage later.)
Column frames are copied neither on receipt nor when they are sent. The small frames (envelope,
control, headers) are plain bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import zmq
import zmq.backend

from ...transport.block.block import Block
from ...transport.errors import E_TOO_BIG, UsageError
from ...transport.wire.codec import decode, encode, frames_blocks, request_of
from ...transport.wire.protocol import FRAME_BYTES_MAX, FRAMES_MAX, Beat, Done, Failed, Pulse, Wire
from ...transport.wire.sockets import descriptor_of, send_frames
from .polling import PolledSocket

log = logging.getLogger("zsq")

Envelope = tuple[bytes, ...]
MessageT = TypeVar("MessageT", bound=Wire)
_ENVELOPE_MAX: Final = 4
_USER: Final = b"user "

# The binding's methods, without the Python code of the class above them. That code takes a third of
# an actor's work for one message.
_recv: Final[Any] = zmq.backend.Socket.recv
_NOW: Final = int(zmq.NOBLOCK)


def user_label(name: str) -> bytes:
    """Return the part of the envelope by which a gateway names the user of a link."""
    return _USER + name.encode()


def user_of(envelope: tuple[bytes, ...]) -> str:
    """Return the user who sent this, or "".

    If users must authenticate, the envelope is (gateway, label, client). Otherwise, and over ipc,
    the envelope contains no user.
    """
    return (
        envelope[1].removeprefix(_USER).decode()
        if len(envelope) == 3 and envelope[1].startswith(_USER)
        else ""
    )


class Mail(NamedTuple):
    """A message as it arrived, with its envelope and its block frames.

    Each block has two frames: the bytes of its header, then its columns.
    """

    envelope: Envelope
    message: Wire
    frames: list[Any]

    def blocks(self) -> list[Block]:
        return frames_blocks(self.frames)


class Port(PolledSocket):
    """A socket of the kind zmq.ROUTER, DEALER, PULL (only receives) or PUSH (only sends).

    Nothing is opened before bind or connect.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        kind: int,
        *,
        routing_id: bytes = b"",
        mark: int = 20_000,
    ) -> None:
        super().__init__(context.socket(kind))
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        # This number of messages is above every credit. The memory is limited by credits in bytes.
        self.socket.setsockopt(zmq.SNDHWM, mark)
        self.socket.setsockopt(zmq.RCVHWM, mark)
        if routing_id:
            self.socket.setsockopt(zmq.ROUTING_ID, routing_id)
        if kind == zmq.ROUTER:
            self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            self.socket.setsockopt(zmq.HANDSHAKE_IVL, 5_000)
        self.routes: dict[type[Wire], Callable[[Port, Mail, Any], None]] = {}
        # If this is set, it receives the frames itself, and `routes` is not used.
        self.on_readable: Callable[[Port], None] | None = None
        self._control: Any = None  # the control frame that was received last

    def route(self, kind: type[MessageT], handler: Callable[[Port, Mail, MessageT], None]) -> None:
        """Let `handler` take the messages of this class.

        A message without a handler is answered with E_BAD_COMMAND.
        """
        self.routes[kind] = handler

    def receive(self, limit: int) -> Iterator[Mail | tuple[Envelope, Failed]]:
        """Yield the waiting messages, at most `limit`.

        A frame that is not a protocol message is yielded as (envelope, answer).
        """
        socket = self.socket
        for number in range(limit):
            # Most often one message arrived alone. Then a check costs less (2.5 microseconds) than
            # a receive that finds nothing and raises an exception (8). More messages are received
            # until there are none, because a check makes two system calls for each.
            if number == 1 and not self.readable():
                return
            try:
                frames = self._receive_frames(socket)
            except zmq.Again:
                # libzmq has processed the socket's commands before it says so.
                self.unchecked = False
                return
            if frames is None:
                continue  # no envelope: there is no peer to answer
            envelope, control, rest = frames
            try:
                yield Mail(envelope, decode(control), rest)
            except UsageError as error:
                yield envelope, Failed(request_of(control), error.code, error.text)

    def _receive_frames(
        self, socket: zmq.Socket[bytes]
    ) -> tuple[Envelope, bytes, list[Any]] | None:
        """Receive one message as frame objects, which know whether more frames follow.

        To receive bytes and to ask the socket whether more follow costs 0.99 microseconds a frame.
        Frame objects cost 0.54 microseconds. Small frames are turned into bytes.
        """
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
        frame = self._control = _recv(socket, _NOW, False)
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
        """Return True if ZeroMQ took the message, False if the peer is gone or takes no more."""
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
        self.unchecked = True
        try:
            return send_frames(self._socket, frames)
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return False
            raise

    def is_gone(self, envelope: Envelope) -> bool:
        """Return True if the connection of this peer of a ROUTER has ended.

        The peer gets a Beat if it has not.
        """
        try:
            send_frames(self.socket, [*envelope, b"", encode(Beat())])
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return True
            raise
        return False

    def descriptor(self) -> int:
        """Return the descriptor of the connection from which the last message came, or -1."""
        return -1 if self._control is None else descriptor_of(self._control)

    @property
    def closed(self) -> bool:
        return self._socket.closed

    def close(self) -> None:
        # A monitor may be closed before this socket's connections have ended. ZeroMQ's I/O thread
        # would report their ends to nobody, and wait for ever, and with it the whole context.
        self.socket.disable_monitor()
        self.socket.close(linger=200)


def _replacement(message: Wire, size: int) -> bytes:
    """Return the control frame that replaces a frame over the limit, or b"" if there is none.

    The receiver's libzmq would close the connection at such a frame, and all requests that wait
    on it would be lost. So a request is answered with an error, and a pulse is sent without its
    statistics. Answers are paged or cut where they are made: this is the last resort.
    """
    log.error(
        "%s was not sent: it is %d bytes, and the limit of a frame is %d",
        type(message).__name__,
        size,
        FRAME_BYTES_MAX,
    )
    if isinstance(message, Done):
        text = (
            f"the answer is {size} bytes; the limit is {FRAME_BYTES_MAX}: ask for less (one "
            "topic, one channel, fewer entries)"
        )
        return encode(Failed(message.request, E_TOO_BIG, text))
    return (
        encode(Pulse(message.key, message.request, {}, {})) if isinstance(message, Pulse) else b""
    )
