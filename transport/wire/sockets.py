"""ZeroMQ sockets: explicit options, one context for each process, and receiving without a copy.

A context is created when it is first needed, and again in a forked child. The child keeps the
inherited context permanently and never touches it, so that no destructor runs on it. (The threads
of that context did not survive the fork.)

In a measurement, to send a frame of 200 KB with a copy took 70 microseconds of the sending thread.
Without a copy it took 15. So large payloads are sent without a copy. Small frames are copied, which
is cheaper than to track them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import zmq
import zmq.backend

from ..block.block import Block
from ..errors import E_BAD_ARGUMENT, E_BAD_COMMAND, UsageError, ZsqError
from ..memory import keep_memory
from .address import Address
from .codec import block_frames, decode, encode
from .credentials import Credentials
from .handshake import (
    GREETING_BEGINS,
    HANDSHAKE_EVENTS,
    MECHANISM,
    MECHANISM_MISMATCH,
    OTHER_MECHANISM,
    ZMTP_BEGINS,
    mechanism_of,
    mechanism_verdict,
    what_answers,
)
from .protocol import FRAMES_MAX, HEARTBEAT_MS, READY_MAX, WINDOW_BLOCKS_MAX, Wire

# Larger frames are sent without a copy. The binding would copy smaller frames in any case, but
# after a longer check.
COPY_BYTES_MAX: Final = 64 * 1024 - 1
# High-water marks are numbers of messages. They are above every credit (blocks of a producer or a
# stage writer, deliveries and their answers of a consumer). So the credit is the limit, and no
# message is dropped silently at a high-water mark.
PUSH_HIGH_WATER_MARK: Final = 1_000
HIGH_WATER_MARK: Final = 2 * READY_MAX + 10_000
SOCKETS_MAX: Final = 16_384
PROBE_S: Final = 1.0  # the time to connect, and then the same time for the answer
PROBE_BYTES_MAX: Final = 4096
# ZMQ_ZERO_COPY_RECV of libzmq 4.3, for which the binding has no name.
_ZERO_COPY_RECV: Final = 10
RECONNECT_MS: Final = 50
RECONNECT_MS_MAX: Final = 1_000
# For a client with several addresses. It must notice soon that a machine is silent, so ZeroMQ sends
# heartbeats of its own. They are answered without the peer's Python code.
PING_MS: Final = 2_000
PONG_MS: Final = 5_000
NO_RECONNECT_MS: Final = 60_000
assert HIGH_WATER_MARK > WINDOW_BLOCKS_MAX

# zmq calls these events CONNECTED, DISCONNECTED, HANDSHAKE_SUCCEEDED, CLOSED and CONNECT_RETRIED.
CONNECTED_EVENTS: Final = int(zmq.EVENT_CONNECTED)
GONE_EVENTS: Final = int(zmq.EVENT_DISCONNECTED)
GREETED_EVENTS: Final = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
RETRY_EVENTS: Final = int(zmq.EVENT_CLOSED) | int(zmq.EVENT_CONNECT_RETRIED)
_EVENT: Final = struct.Struct("=HI")
_TCP_INFO_BYTES: Final = 136
_TCP_MOVED: Final = struct.Struct("=QQ")
_SRCFD: Final = int(zmq.MessageOption.SRCFD)

# The binding's own methods avoid the enum conversions of its wrappers. A block needs ten calls.
_send: Final[Any] = zmq.backend.Socket.send
_recv: Final[Any] = zmq.backend.Socket.recv
_get: Final[Any] = zmq.backend.Socket.get
_NOW: Final = int(zmq.NOBLOCK)
_NOW_MORE: Final = int(zmq.NOBLOCK) | int(zmq.SNDMORE)
_EVENTS: Final = int(zmq.EVENTS)
_POLLIN: Final = int(zmq.POLLIN)

Socket = zmq.Socket[bytes]
# The contexts by the pid of their process. A child keeps the inherited contexts, and never uses
# them.
_contexts: dict[int, zmq.Context[Socket]] = {}


def make_context(sockets_max: int) -> zmq.Context[Socket]:
    """Return a new context, whose small frames take only the memory that they need.

    By default libzmq reads into a buffer of 8 KiB, and frames up to that size stay in it. So a
    message that arrives alone and is kept keeps 8 KiB, whatever its size. In a measurement, 10,000
    messages of 200 bytes took 75 MB of a topic and 92 MB of a channel. With a copy of each small
    frame they took 17 and 14 MB. Larger frames have memory of their own in both cases.
    """
    new: zmq.Context[Socket] = zmq.Context()
    new.set(zmq.MAX_SOCKETS, sockets_max)
    with contextlib.suppress(zmq.ZMQError):  # another build of libzmq may not have this option
        new.set(_ZERO_COPY_RECV, 0)
    return new


class ContextShare(zmq.Context):  # type: ignore[type-arg]
    """One user's share of a context that has many. `destroy` closes the sockets of this user.

    `inside` are the endpoints that users of the context have bound inside it, too.
    """

    # Only attributes that the class knows can be set.
    inside: set[str] = set()  # noqa: RUF012

    def __init__(self, shared: zmq.Context[Socket], inside: set[str]) -> None:
        super().__init__(shared)
        self.inside = inside

    def term(self) -> None:
        """Leave the context to its other users."""


def context() -> zmq.Context[Socket]:
    """Return this process's own context."""
    pid = os.getpid()
    known = _contexts.get(pid)
    if known is None or known.closed:
        keep_memory()
        if known is not None and _contexts.get(pid) is known:
            del _contexts[pid]
        # Two threads may make their first sockets at once. A lock might be held during a fork.
        new = make_context(SOCKETS_MAX)
        known = _contexts.setdefault(pid, new)
        if known is not new:
            new.term()
    return known


def end_context(timeout_s: float) -> None:
    """Wait until sockets that were closed with a linger have sent what they had.

    A process that then ends with `os._exit` calls this after it has closed all sockets, and uses
    none afterwards. The end of the interpreter waits in the same way.
    """
    known = _contexts.get(os.getpid())
    if known is not None:
        # It would wait without limit for a socket that is open.
        thread = threading.Thread(target=known.term, name="end of zsq sockets", daemon=True)
        thread.start()
        thread.join(timeout_s)


def _secure(socket: Socket, credentials: Credentials | None) -> None:
    """Make the socket use encryption, and accept only one server."""
    if credentials is not None:
        socket.setsockopt(zmq.CURVE_SERVERKEY, credentials.server.encode())
        socket.setsockopt(zmq.CURVE_PUBLICKEY, credentials.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, credentials.secret.encode())


def connect(socket: Socket, endpoint: str) -> None:
    """Connect to an endpoint of the file system, or to a numeric address.

    ZeroMQ would resolve a name in its only I/O thread, and so stop all sockets of the process.
    """
    if endpoint.startswith("tcp://["):
        socket.setsockopt(zmq.IPV6, 1)
    socket.connect(endpoint)


def make_dealer(credentials: Credentials | None = None, *, moves: bool = False) -> Socket:
    """Return an unconnected DEALER.

    After `connect`, it tries until it is connected. Messages sent before that wait in its pipe.
    `moves`: True if its owner has another address. The owner closes the socket when the connection
    is refused. If the peer is silent, the connection ends by itself after `PING_MS` + `PONG_MS`.
    """
    socket: Socket = context().socket(zmq.DEALER)
    _secure(socket, credentials)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
    if moves:
        socket.setsockopt(zmq.RECONNECT_IVL, NO_RECONNECT_MS)
        socket.setsockopt(zmq.HEARTBEAT_IVL, PING_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, PONG_MS)
    else:
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS_MAX)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, HEARTBEAT_MS // 1000)
    return socket


def make_push(endpoint: str, credentials: Credentials | None = None) -> Socket:
    """Return a connected PUSH.

    It gets no replies, and messages that it accepts may never arrive. So the receiver must report
    on another link which messages have arrived.
    """
    socket: Socket = context().socket(zmq.PUSH)
    _secure(socket, credentials)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, PUSH_HIGH_WATER_MARK)
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS_MAX)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, HEARTBEAT_MS // 1000)
    try:
        connect(socket, endpoint)
    except zmq.ZMQError:
        socket.close(linger=0)
        raise
    return socket


def watch(socket: Socket) -> Socket:
    """Return a monitor of the connection.

    It reports when the peer is reached, is gone, cannot be reached, or ends the handshake.

    Its queue has no limit. With a limit, ZeroMQ's I/O thread would wait at the limit until the
    monitor is read, and so would all other sockets of the process. With libzmq's default, this
    happened when a client was not used for 17 minutes while its broker was down.
    """
    monitor: Socket = socket.get_monitor_socket(
        CONNECTED_EVENTS | GREETED_EVENTS | GONE_EVENTS | RETRY_EVENTS | HANDSHAKE_EVENTS
    )
    monitor.setsockopt(zmq.RCVHWM, 0)
    return monitor


def watch_ends(socket: Socket) -> Socket:
    """Return a monitor that reports the end of each connection of a bound socket (`read_ends`).

    Its queue has no limit, for the reason that `watch` gives.
    """
    monitor: Socket = socket.get_monitor_socket(GONE_EVENTS)
    monitor.setsockopt(zmq.RCVHWM, 0)
    return monitor


def read_ends(monitor: Socket) -> list[int]:
    """Return the descriptors of the connections that have ended since the last call."""
    ended: list[int] = []
    while True:
        try:
            frames = monitor.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return ended
        ended.append(_EVENT.unpack_from(frames[0])[1])


def descriptor_of(frame: Any) -> int:
    """Return the descriptor of the connection that a received frame came from, or -1.

    ZeroMQ calls the property deprecated, because the descriptor may have been closed and opened
    again meanwhile. So it may only be a hint.
    """
    try:
        return int(frame.get(_SRCFD))
    except (zmq.ZMQError, ValueError):
        return -1


class BytesMoved(NamedTuple):
    """The bytes that the system of a peer has acknowledged, and those that came from it."""

    acknowledged: int = 0
    received: int = 0


def bytes_moved(descriptor: int) -> BytesMoved:
    """Return the bytes that a TCP connection has moved so far.

    They are 0 for other connections, and where the system does not say it (only Linux does).
    (The offsets are those of `bytes_acked` and `bytes_received` in Linux's `struct tcp_info`.)
    """
    if descriptor < 0 or not hasattr(socket, "TCP_INFO"):
        return BytesMoved()
    try:
        # A copy of the descriptor: this one is ZeroMQ's, and must stay open.
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            if copy.family not in (socket.AF_INET, socket.AF_INET6):
                return BytesMoved()
            info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return BytesMoved()
    if len(info) < _TCP_INFO_BYTES:
        return BytesMoved()
    return BytesMoved(*_TCP_MOVED.unpack_from(info, 120))


def close(socket: Socket, monitor: Socket | None, linger_ms: int = 0) -> None:
    """Close a socket and its monitor.

    `linger_ms`: how long the context may continue to send queued messages.
    """
    if monitor is not None:
        socket.disable_monitor()
        monitor.close(linger=0)
    socket.close(linger=linger_ms)


def read_events(monitor: Socket) -> int:
    """Return all pending events of the monitor as one set of bits, without waiting."""
    events = 0
    while True:
        try:
            frames = monitor.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return events
        event, detail = _EVENT.unpack_from(frames[0])
        events |= 0 if event == OTHER_MECHANISM and detail != MECHANISM_MISMATCH else event


def send_frames(socket: Socket, frames: Sequence[Any]) -> bool:
    """Send now or not at all. Return False if the pipe is full.

    Large frames are not copied and must not be changed afterwards.
    """
    last = len(frames) - 1
    try:
        for index, frame in enumerate(frames):
            flags = _NOW if index == last else _NOW_MORE
            try:
                _send(socket, frame, flags, len(frame) <= COPY_BYTES_MAX)
            except RuntimeError:
                # The interpreter ends, and pyzmq has ended what it needs to send without a copy.
                # Clients that are still open send the rest now.
                _send(socket, frame, flags, True)
    except zmq.Again:
        # Only the first frame can fail in this way. The other frames are always accepted.
        return False
    return True


def send_word(
    socket: Socket, envelope: Sequence[bytes], message: Wire, blocks: Sequence[Block] = ()
) -> bool:
    """Send a protocol message. `envelope`: routing ids, none for a DEALER."""
    return send_frames(socket, [*envelope, b"", encode(message), *block_frames(blocks)])


def readable(socket: Socket) -> bool:
    """Return True if a whole message has arrived."""
    return bool(_get(socket, _EVENTS) & _POLLIN)


def recv_frames(socket: Socket) -> list[Any] | None:
    """Return the next message's frames, not copied, or None if there is none."""
    try:
        frame = _recv(socket, _NOW, False)
    except zmq.Again:
        return None
    frames = [frame]
    while frame.more:
        frame = _recv(socket, _NOW, False)  # all frames of a message arrive together
        frames.append(frame)
    return frames


def open_frames(frames: Sequence[Any]) -> tuple[list[bytes], Wire, list[Any]]:
    """Split a message at its empty frame."""
    for index, frame in enumerate(frames[:8]):
        if not len(frame.buffer):
            if index + 1 >= len(frames) or len(frames) > FRAMES_MAX + index + 2:
                break
            return (
                [part.bytes for part in frames[:index]],
                decode(frames[index + 1].buffer),
                list(frames[index + 2 :]),
            )
    raise UsageError(
        E_BAD_COMMAND, "a message must have an envelope, an empty frame and a control frame"
    )


class Probe:
    """A probe that finds out once which kind of server answers at a port.

    It uses a thread, because a connection may take long, and an event loop must not block. The
    thread opens a plain TCP connection, sends one harmless HTTP request, reads a few bytes, and
    ends. If the server speaks ZeroMQ's protocol, it also asks for the server's mechanism, by the
    first bytes of a greeting on a second connection.
    """

    def __init__(self, host: str, port: int) -> None:
        self.answer: bytes | None = None  # the received bytes; None until the probe has ended
        self.mechanism = b""  # ZeroMQ's name of it, such as b"NULL"; b"" if it is not known
        thread = threading.Thread(
            target=self._ask, args=(host, port), name="zsq probe", daemon=True
        )
        thread.start()

    def _ask(self, host: str, port: int) -> None:
        request = f"GET /info HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"
        answer = self._exchange(host, port, request.encode(), PROBE_BYTES_MAX)
        if not answer or answer.startswith(ZMTP_BEGINS):
            # A server that requires a key hangs up, often without an answer to the request.
            greeting = self._exchange(host, port, GREETING_BEGINS, MECHANISM.stop)
            self.mechanism = mechanism_of(greeting)
            answer = answer or greeting
        self.answer = answer

    def verdict(self, address: Address) -> tuple[str, ZsqError | None]:
        """Return a text about what answers at this address, and an error if it is certainly wrong.

        If the machine is busy, ZeroMQ itself may never report that the mechanisms differ.
        """
        text, sure = what_answers(self.answer or b"", address.url)
        error = mechanism_verdict(self.mechanism, address)
        if sure:
            error = UsageError(E_BAD_ARGUMENT, text)
        return text if error is None else error.text, error

    @staticmethod
    def _exchange(host: str, port: int, request: bytes, size: int) -> bytes:
        """Return the first `size` bytes of the answer, or what came of them within PROBE_S."""
        received = b""
        with (
            contextlib.suppress(OSError),
            socket.create_connection((host, port), PROBE_S) as connection,
        ):
            connection.sendall(request)
            ends = time.monotonic() + PROBE_S
            while (left := ends - time.monotonic()) > 0:
                connection.settimeout(left)
                part = connection.recv(size - len(received))  # b"" if all of it was read
                if not part:
                    break
                received += part
        return received
