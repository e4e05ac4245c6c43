"""Permissions of NSQ clients, from auth servers or the access file.

Auth servers are asked when needed. Without auth servers and without an access file, clients may do
everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ....transport.errors import ZsqError
from ....transport.nsq.backend import Authorized
from ....transport.nsq.errors import E_AUTH_FAILED
from ...security.complaints import Complaints
from ..acting_clients import FirstUse
from ..shared.auth import AccessAuthenticator, Authenticator, AuthFailed, Who
from .permissions import may_command


class Permits:
    """The permissions of the clients of a gateway.

    A complaint names a client by its address (`remote`). `first_use` is given only with an access
    file.
    """

    def __init__(
        self,
        authenticator: Authenticator | AccessAuthenticator,
        complaints: Complaints,
        first_use: FirstUse | None = None,
    ) -> None:
        self._authenticator = authenticator
        self._complaints = complaints
        self._first_use = first_use
        self._tasks: set[asyncio.Task[None]] = set()

    def authenticate(
        self, who: Who, remote: str, answer: Callable[[Authorized | str], None]
    ) -> None:
        """Authenticate a client, always with a new request."""

        async def ask() -> None:
            try:
                answer(await self._authenticator.state(who, fresh=True))
            except AuthFailed as error:
                self._complaints.add("nsq gateway: authentication of %s failed: %s", remote, error)
                answer(str(error))

        self._start(ask())

    def permitted(
        self,
        who: Who,
        remote: str,
        permission: str,
        topic: str,
        channel: str,
        answer: Callable[[str], None],
    ) -> None:
        """Answer "" if the client has the permission, else the reason.

        It answers at once if a valid reply is kept, and otherwise asks the auth server again.
        """
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
                self._complaints.add("nsq gateway: authentication of %s failed: %s", remote, error)
                answer(E_AUTH_FAILED)
            except ZsqError as error:  # the broker did not list its topics
                self._complaints.add(
                    "nsq gateway: a command of %s is refused, because its permission cannot be "
                    "checked: %s",
                    remote,
                    error,
                )
                answer("not permitted")

        self._start(ask())

    def still_permitted(self, who: Who, permission: str, topic: str, channel: str) -> bool:
        """Return False if the permission is known to have ended, without a request."""
        known = self._authenticator.known(who)
        return known is None or may_command(known, permission, topic, channel)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await self._authenticator.close()

    def statistics(self) -> dict[str, int]:
        return self._authenticator.statistics()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
