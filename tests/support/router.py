"""Sockets of fake brokers and fake clients, and how they receive a protocol message."""

from __future__ import annotations

from typing import Any

import zmq

from zsq.transport.wire.protocol import FRAME_BYTES_MAX, Wire
from zsq.transport.wire.sockets import (
    HIGH_WATER_MARK,
    Socket,
    context,
    open_frames,
    recv_frames,
)


def make_router(endpoint: str) -> Socket:
    """Return a bound ROUTER. It drops no message silently, and refuses frames over the limit."""
    socket: Socket = context().socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
    socket.bind(endpoint)
    return socket


def recv_word(socket: Socket) -> tuple[list[bytes], Wire, list[Any]] | None:
    """Return (envelope, message, block frames) of the next message, or None if there is none.

    Raises `UsageError` (E_BAD_COMMAND) if it is not a valid protocol message.
    """
    frames = recv_frames(socket)
    return None if frames is None else open_frames(frames)
