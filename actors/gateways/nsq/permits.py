"""Permissions of NSQ clients, from auth servers or the access file.

Auth servers are asked when needed. Without auth servers and without an access file, clients may do
everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from ....transport.errors import ZsqError
from ....transport.nsq.backend import Authorized
from ....transport.nsq.errors import E_AUTH_FAILED
from ....transport.nsq.layers import Layers
from ...security.policy import Principal
from ..acting import FirstUse
from ..shared.auth import AuthFailed, Who
from .permissions import may_command


class AnyAuthenticator(Protocol):
    """`Authenticator` or `AccessAuthenticator`."""

    def known(self, who: Who) -> Principal | None: ...

    async def state(self, who: Who, *, fresh: bool = False) -> Principal: ...

    async def close(self) -> None: ...

    def statistics(self) -> dict[str, int]: ...


class ClientConnection(Protocol):
    """A connection as seen by `Permits`."""

    remote: str
    remote_ip: str
    layers: Layers

    @property
    def ended(self) -> bool: ...


class Permits:
    """The permissions of all connections of a gateway.

    `complain` logs a line about a client. `first_use` is given only with an access file.
    """

    def __init__(
        self,
        authenticator: AnyAuthenticator,
        complain: Callable[..., None],
        first_use: FirstUse | None = None,
    ) -> None:
        self._authenticator = authenticator
        self._complain = complain
        self._first_use = first_use
        self._secrets: dict[ClientConnection, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def authenticate(
        self,
        connection: ClientConnection,
        secret: bytes,
        answer: Callable[[Authorized | str], None],
    ) -> None:
        """Authenticate a connection, always with a new request.

        The secret is kept to renew the reply later.
        """
        who = self._who(connection, secret.decode(errors="surrogateescape"))

        async def ask() -> None:
            try:
                state = await self._authenticator.state(who, fresh=True)
            except AuthFailed as error:
                self._complain("authentication of %s failed: %s", connection.remote, error)
                answer(str(error))
                return
            if not connection.ended:  # a connection that has ended would never remove its secret
                self._secrets[connection] = who.secret
            answer(state)

        self._start(ask())

    def permitted(
        self,
        connection: ClientConnection,
        permission: str,
        topic: str,
        channel: str,
        answer: Callable[[str], None],
    ) -> None:
        """Answer "" if the client has the permission, else the reason.

        It answers at once if a valid reply is kept, and otherwise asks the auth server again.
        """
        who = self._who(connection, self._secrets.get(connection, ""))
        first_use = self._first_use
        known = self._authenticator.known(who)
        if known is not None:
            may = may_command(known, permission, topic, channel)
            if not may or first_use is None or first_use.at_once(known, topic, channel):
                answer("" if may else "not permitted")
                return

        async def ask() -> None:
            try:
                principal = self._authenticator.known(who) or await self._authenticator.state(who)
                may = may_command(principal, permission, topic, channel)
                may = may and (
                    first_use is None or await first_use.permits(principal, topic, channel)
                )
                answer("" if may else "not permitted")
            except AuthFailed as error:
                self._complain("authentication of %s failed: %s", connection.remote, error)
                answer(E_AUTH_FAILED)
            except ZsqError as error:  # the broker did not list its topics
                self._complain(
                    "a command of %s is refused, because its permission cannot be checked: %s",
                    connection.remote,
                    error,
                )
                answer("not permitted")

        self._start(ask())

    def still_permitted(
        self, connection: ClientConnection, permission: str, topic: str, channel: str
    ) -> bool:
        """Return False if the permission is known to have ended, without a request."""
        known = self._authenticator.known(self._who(connection, self._secrets.get(connection, "")))
        return known is None or may_command(known, permission, topic, channel)

    def forget(self, connection: ClientConnection) -> None:
        self._secrets.pop(connection, None)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await self._authenticator.close()

    def statistics(self) -> dict[str, int]:
        return self._authenticator.statistics()

    def _who(self, connection: ClientConnection, secret: str) -> Who:
        tls = connection.layers.tls
        return Who(
            connection.remote_ip,
            tls is not None,
            tls.common_name if tls is not None else "",
            secret,
        )

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
