"""Limits that a node grants to NSQ clients: nsqd's options, with nsqd's defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# The longest line of a command with its line feed. This is the size of nsqd's read buffer.
LINE_BYTES_MAX: Final = 16 * 1024
# The largest body of IDENTIFY or AUTH that a client may send before it has authenticated.
IDENTITY_BYTES_MAX: Final = 16 * 1024
STRING_BYTES_MAX: Final = 256  # the limit of each string in IDENTIFY; the rest is cut off
JSON_DEPTH_MAX: Final = 32  # the deepest nesting of objects and lists in IDENTIFY
BYTES_BEFORE_AUTH_MAX: Final = 64 * 1024  # plain bytes in both directions before authentication
DEFLATE_LEVEL_DEFAULT: Final = 6
OUTPUT_BUFFER_SIZE_MIN: Final = 64
HEARTBEAT_INTERVAL_MS_MIN: Final = 1000
MSG_TIMEOUT_MS_MIN: Final = 1000
SAMPLE_RATE_MAX: Final = 99


@dataclass(frozen=True, slots=True)
class NsqLimits:
    """The names are those of nsqd's options. Times are in milliseconds, sizes in bytes."""

    # The version in the reply to IDENTIFY. Clients compare it with NSQ's versions.
    version: str = "1.3.0"
    max_msg_size: int = 1024 * 1024
    max_body_size: int = 5 * 1024 * 1024
    max_rdy_count: int = 2500
    msg_timeout_ms: int = 60_000
    max_msg_timeout_ms: int = 15 * 60_000
    max_req_timeout_ms: int = 60 * 60_000
    client_timeout_ms: int = 60_000  # the default heartbeat interval is half of this time
    max_heartbeat_interval_ms: int = 60_000
    output_buffer_size: int = 16 * 1024
    max_output_buffer_size: int = 64 * 1024
    output_buffer_timeout_ms: int = 250
    min_output_buffer_timeout_ms: int = 25
    max_output_buffer_timeout_ms: int = 30_000
    max_channel_consumers: int = 0  # 0 means unlimited
    deflate: bool = True
    max_deflate_level: int = 6
    snappy: bool = True
    tls_v1: bool = False  # True if a certificate is configured
    tls_required: bool = False
    auth_required: bool = False
    auth_offered: bool = False  # AUTH is accepted, but clients without AUTH are served too
    # The time for AUTH if it is required, and for each TLS handshake.
    auth_deadline_ms: int = 10_000
    topology_region: str = ""
    topology_zone: str = ""

    @property
    def identity_bytes_max(self) -> int:
        """The largest body of IDENTIFY and of AUTH."""
        return min(self.max_body_size, IDENTITY_BYTES_MAX)

    @property
    def mpub_count_max(self) -> int:
        """The largest number of messages in one MPUB.

        The count has 4 bytes. Each message has 4 bytes for its size, and at least one more byte.
        """
        return (self.max_body_size - 4) // 5
