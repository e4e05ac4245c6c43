"""How much the HTTP gateway takes from its clients at most, and for how long it waits for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from .....transport.block.block import MESSAGE_BYTES_LARGEST, MESSAGE_BYTES_MAX
from .responses import ApiError

KIB: Final = 1024
MIB: Final = 1024 * 1024
IDLE_BODY_BYTES_MAX: Final = 64 * KIB  # of a request whose body means nothing


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bytes, counts and seconds. The first three are nsqd's options; a message cannot be larger than a block's may be."""

    max_msg_size: int = MESSAGE_BYTES_MAX
    max_body_size: int = 5 * MIB
    max_req_timeout_ms: int = 3_600_000
    connections_max: int = 1_024  # more are closed at once
    requests_max: int = 256  # at the same time; more are answered 503
    bodies_bytes_max: int = 64 * MIB  # of all requests together
    head_bytes_max: int = 32 * KIB  # request line and headers
    head_s: float = 10.0  # for these, from the first byte (of a new connection: from its start)
    body_s: float = 30.0  # for a body
    request_s: float = 60.0  # for all of it, the answer included
    stalled_s: float = 15.0  # an answer of which nothing more is taken
    keep_alive_s: float = 75.0  # an idle connection
    linger_s: float = 1.0  # what still comes behind a refusal is thrown away for so long,
    linger_bytes: int = 16 * MIB  # and so much of it: who sends first and reads then sees the answer, not a reset

    def __post_init__(self) -> None:
        if self.max_msg_size > MESSAGE_BYTES_LARGEST:
            raise ValueError(f"max_msg_size {self.max_msg_size} is over what a block can hold: {MESSAGE_BYTES_LARGEST}")


class Budget:
    """Bytes of bodies held by all requests together: who would go over it is refused, so that few large ones cannot fill the memory."""

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
    """What one request holds."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.held = 0

    def take(self, size: int) -> None:
        if self.budget.held + size > self.budget.bytes_max:
            raise ApiError(503, "E_LIMIT the bodies of all requests together are too large now; try again", hint={"retry-after": "1"})
        self.budget.held += size
        self.held += size
