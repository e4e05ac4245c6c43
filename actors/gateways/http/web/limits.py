"""Limits of the HTTP gateway on bytes, counts and time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from .....transport.block.block import MESSAGE_BYTES_LARGEST, MESSAGE_BYTES_MAX
from .responses import ApiError

KIB: Final = 1024
MIB: Final = 1024 * 1024
IDLE_BODY_BYTES_MAX: Final = 64 * KIB  # the largest body of a request that needs none


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits, in bytes, counts and seconds.

    The first three are nsqd's options. A message cannot be larger than a block can hold.
    """

    max_msg_size: int = MESSAGE_BYTES_MAX
    max_body_size: int = 5 * MIB
    max_req_timeout_ms: int = 3_600_000
    # If there are more, one that is idle is closed, or the new one if none is idle.
    connections_max: int = 1_024
    requests_max: int = 256  # the most requests at the same time; others are answered with 503
    bodies_bytes_max: int = 64 * MIB  # the most bytes that the bodies of all requests hold together
    head_bytes_max: int = 32 * KIB  # the largest request line with headers
    # The time for a complete head, from its first byte or from the start of a new connection.
    head_s: float = 10.0
    body_s: float = 30.0  # the time for a client to send a body
    request_s: float = 60.0  # the time for a request and its answer
    stalled_s: float = 15.0  # the time for which a client may read nothing of its answer
    keep_alive_s: float = 75.0  # the time for which a connection may be idle
    # After a refusal, input is dropped for this time and up to this many bytes, so that a client
    # that sends before it reads gets the answer and not a reset.
    linger_s: float = 1.0
    linger_bytes: int = 16 * MIB

    def __post_init__(self) -> None:
        if self.max_msg_size > MESSAGE_BYTES_LARGEST:
            raise ValueError(
                f"max_msg_size must be at most {MESSAGE_BYTES_LARGEST}, which fills a block, "
                f"not {self.max_msg_size}"
            )


class Budget:
    """The bytes of bodies that all requests hold together.

    A request that would exceed the maximum is refused, so that bodies cannot fill the memory.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held = 0

    @contextmanager
    def share(self) -> Iterator[Share]:
        share = Share(self)
        try:
            yield share
        finally:
            self.held -= share.held


class Share:
    """The bytes that one request holds. `take` raises `ApiError` if the budget is exceeded."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.held = 0

    def take(self, size: int) -> None:
        if self.budget.held + size > self.budget.bytes_max:
            text = (
                "E_LIMIT the bodies of all requests together would be over "
                f"{self.budget.bytes_max} bytes; try again"
            )
            raise ApiError(503, text, hint={"retry-after": "1"})
        self.budget.held += size
        self.held += size
