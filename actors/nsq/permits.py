"""Who may do what at this gateway: an auth server's word, asked for as it is needed, or the access file's. Without both all may do all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from ...transport.nsq.backend import Authorized
from ...transport.nsq.errors import E_AUTH_FAILED
from .auth import AuthFailed, Who

if TYPE_CHECKING:
    from .connection import Connection

log = logging.getLogger("zsq")


class Granted(Authorized, Protocol):
    def permits(self, permission: str, topic: str, channel: str = "") -> bool: ...


class Authority(Protocol):
    """`Authenticator`, or `AccessAuthenticator`."""

    def known(self, who: Who) -> Granted | None: ...

    async def state(self, who: Who, *, fresh: bool = False) -> Granted: ...

    async def permitted(self, who: Who, permission: str, topic: str, channel: str = "") -> bool: ...

    async def close(self) -> None: ...

    def statistics(self) -> dict[str, Any]: ...


class Permits:
    def __init__(self, authenticator: Authority) -> None:
        self._authenticator = authenticator
        self._secrets: dict[Connection, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def authenticate(self, connection: Connection, secret: bytes, answer: Callable[[Authorized | str], None]) -> None:
        """Asked anew each time, as AUTH does; the secret is kept for what the connection does later."""
        who = self._who(connection, secret.decode(errors="surrogateescape"))

        async def ask() -> None:
            try:
                state = await self._authenticator.state(who, fresh=True)
            except AuthFailed as error:
                log.warning("auth of %s failed: %s", connection.remote, error)
                answer(str(error))
                return
            self._secrets[connection] = who.secret
            answer(state)

        self._start(ask())

    def permitted(self, connection: Connection, permission: str, topic: str, channel: str, answer: Callable[[str], None]) -> None:
        """At once where the auth server's word still holds; else it is asked again."""
        who = self._who(connection, self._secrets.get(connection, ""))
        state = self._authenticator.known(who)
        if state is not None:
            answer("" if state.permits(permission, topic, channel) else "not permitted")
            return

        async def ask() -> None:
            try:
                answer("" if await self._authenticator.permitted(who, permission, topic, channel) else "not permitted")
            except AuthFailed as error:
                log.warning("auth of %s failed: %s", connection.remote, error)
                answer(E_AUTH_FAILED)

        self._start(ask())

    def still_permitted(self, connection: Connection, permission: str, topic: str, channel: str) -> bool:
        """As far as is known without asking."""
        state = self._authenticator.known(self._who(connection, self._secrets.get(connection, "")))
        return state is None or state.permits(permission, topic, channel)

    def forget(self, connection: Connection) -> None:
        self._secrets.pop(connection, None)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await self._authenticator.close()

    def statistics(self) -> dict[str, Any]:
        return self._authenticator.statistics()

    def _who(self, connection: Connection, secret: str) -> Who:
        tls = connection.layers.tls
        return Who(connection.remote_ip, tls is not None, tls.common_name if tls is not None else "", secret)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
