"""Limits of the HTTP gateway on bytes, counts and time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from .....transport.block.block import MESSAGE_BYTES_LARGEST, MESSAGE_BYTES_MAX
from ...limiter import Bound

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
    # Bounds in all, and for each user or address. What exceeds them is answered with 503. Searches
    # (their steps) and looks (reads of messages) include those that wait for others. Each of the
    # console's publishes opens a client of the broker.
    requests: Bound = field(default=Bound(1_024, 256))
    bodies: Bound = field(default=Bound(128 * MIB, 64 * MIB))  # bytes in memory
    live_views: Bound = field(default=Bound(256, 64))
    tails: Bound = field(default=Bound(32, 8))
    downloads: Bound = field(default=Bound(8, 4))
    searches: Bound = field(default=Bound(64, 4))
    looks: Bound = field(default=Bound(64, 8))
    publishes: Bound = field(default=Bound(16, 8))
    redrives: Bound = field(default=Bound(8, 4))
    # A receive holds places for all leases that it may get. A subscription is a consumer of the
    # broker, which receives share.
    receives: Bound = field(default=Bound(512, 128))
    leases: Bound = field(default=Bound(100_000, 20_000))
    subscriptions: Bound = field(default=Bound(256, 64))
    head_bytes_max: int = 32 * KIB  # the largest request line with headers
    # The time for a complete head, from its first byte or from the start of a new connection.
    head_s: float = 10.0
    body_s: float = 30.0  # the time for a client to send a body
    # The time for the first bytes of a body. Each `body_bytes_a_s` bytes give another second.
    body_begin_s: float = 5.0
    body_bytes_a_s: int = 1_024
    request_s: float = 60.0  # the time for a request and its answer
    stalled_s: float = 15.0  # the time for which a client may read nothing of its answer
    # The time for which a peer may acknowledge nothing: its machine or network has vanished.
    vanished_s: float = 30.0
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
