"""Backend: the methods that a session needs from its caller. Every method returns at once.

Methods with an `answer` pass their result to it, at once or later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .identify import ClientIdentity

Answer = Callable[[str], None]
"""A function that is called once, with "" for success or with the reason of the failure."""


class Authorized(Protocol):
    """The authorization that an auth server granted."""

    @property
    def identity(self) -> str: ...
    @property
    def identity_url(self) -> str: ...
    @property
    def permission_count(self) -> int: ...


class Backend(Protocol):
    def publish(self, topic: str, bodies: list[bytes], defer_ms: int, answer: Answer) -> None:
        """Publish messages. Calls `answer("")` when they are durable."""
        ...

    def subscribe(
        self, topic: str, channel: str, identity: ClientIdentity, answer: Answer
    ) -> None: ...

    def set_ready(self, count: int) -> None: ...

    def finish(self, ids: list[bytes]) -> list[bytes]:
        """Finish messages. Return the ids that are not in flight to this client."""
        ...

    def requeue(self, id: bytes, delay_ms: int) -> bool:
        """Requeue a message. Return False if it is not in flight to this client."""
        ...

    def touch(self, id: bytes) -> bool:
        """Renew a lease. Return False if the message is not in flight to this client."""
        ...

    def held_by_other(self, id: bytes) -> bool:
        """Return True if the message is in flight to another client of the same channel."""
        ...

    def leave(self) -> None:
        """Stop new messages. Messages in flight may still be answered."""

    def authenticate(
        self, secret: bytes, identity: ClientIdentity, answer: Callable[[Authorized | str], None]
    ) -> None:
        """Authenticate the client.

        `answer` gets the authorization, or a text that says why it failed. The client does not see
        the text.
        """
        ...

    def permitted(self, permission: str, topic: str, channel: str, answer: Answer) -> None:
        """Check whether the client may `publish` to the topic or `subscribe` to the channel.

        For `publish` the channel is empty. The session calls this only if auth is required or
        offered. If auth is only offered, the client may not have sent AUTH.
        `answer(E_AUTH_FAILED)` means that the auth server could not be reached. Any other text
        means that it is not permitted.
        """
        ...

    def upgrade(self, layer: str, identity: ClientIdentity, rest: bytes, answer: Answer) -> None:
        """Add `tls`, `snappy` or `deflate` to both directions of the connection.

        The layer applies to all bytes that are written from now on. `rest` are received bytes that
        belong to the new layer. After `answer("")` (for TLS after the handshake) the session writes
        OK through the layer.
        """
        ...

    def close(self) -> None:
        """Close the connection after the written bytes are sent."""
