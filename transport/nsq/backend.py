"""What a session asks of the shell around it; all of it returns at once, and answers come by the callables, then or later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .identify import ClientIdentity

Answer = Callable[[str], None]
"""Told once: "" for yes, else why not."""


class Authorized(Protocol):
    """What an auth server granted."""

    @property
    def identity(self) -> str: ...
    @property
    def identity_url(self) -> str: ...
    @property
    def permission_count(self) -> int: ...


class Backend(Protocol):
    def publish(self, topic: str, bodies: list[bytes], defer_ms: int, answer: Answer) -> None:
        """`answer("")` when they are durable."""
        ...

    def subscribe(self, topic: str, channel: str, identity: ClientIdentity, answer: Answer) -> None: ...

    def set_ready(self, count: int) -> None: ...

    def finish(self, ids: list[bytes]) -> list[bytes]:
        """Those of them that are not in flight to this client."""
        ...

    def requeue(self, id: bytes, delay_ms: int) -> bool:
        """False if it is not in flight to this client."""
        ...

    def touch(self, id: bytes) -> bool:
        """False if it is not in flight to this client."""
        ...

    def held_by_other(self, id: bytes) -> bool:
        """Return True if another client of the same channel holds it."""
        ...

    def leave(self) -> None:
        """No new messages; what is in flight may still be answered."""

    def authenticate(self, secret: bytes, identity: ClientIdentity, answer: Callable[[Authorized | str], None]) -> None:
        """A string says why it failed; the client is not told."""
        ...

    def permitted(self, permission: str, topic: str, channel: str, answer: Answer) -> None:
        """Whether the authorized client may `publish` to the topic (then there is no channel) or `subscribe` to the channel.

        Asked only where auth is required or offered; then the client may be one that did not AUTH.
        `answer(E_AUTH_FAILED)`: the auth server could not be asked; any other text: not permitted.
        """
        ...

    def upgrade(self, layer: str, identity: ClientIdentity, rest: bytes, answer: Answer) -> None:
        """Lay `tls`, `snappy` or `deflate` over the connection, for both directions, behind what was written so far.

        `rest` was received already and belongs to the new layer. After `answer("")` (TLS: the handshake is done) the session writes OK
        through it.
        """
        ...

    def close(self) -> None:
        """End the connection after what was written is out."""
