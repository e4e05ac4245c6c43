"""Broker clients of a gateway, which send requests on behalf of the gateway's own clients.

The audit log names the gateway's client, not the gateway.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Final

from ...transport.client.asyncio.aio import Admin, Producer
from ...transport.client.core.asking import Question, Reply, ask_admin
from ...transport.wire.actions import Action
from ...transport.wire.admin_requests import SetLookupdsRequest
from ...transport.wire.protocol import Manage, Wire
from ..security.policy import Principal

NOBODY: Final[Mapping[str, str]] = {}
ACTING: Final[ContextVar[Mapping[str, str]]] = ContextVar("acting", default=NOBODY)
"""The `user`, `from` and `via` of the current request and of tasks that it started."""


class ActingAdmin(Admin):
    """Sends orders in the name of the acting client.

    `via` is the gateway's name. It is used if `ACTING` is empty.
    """

    def __init__(self, url: str, *, timeout: float, via: str) -> None:
        super().__init__(url, timeout=timeout)
        self._via = via

    async def _ask(self, question: Question) -> Reply:
        by = {"user": "", "from": "", "via": self._via, **ACTING.get()}

        def named(number: int) -> Wire:
            message = question.make(number)
            return replace(message, by=by) if isinstance(message, Manage) else message

        return await super()._ask(question._replace(make=named))

    async def set_lookupds(self, addresses: Sequence[str]) -> None:
        """Let the broker register with the nsqlookupds at these addresses, until it ends."""
        await self._carry_out(ask_admin(SetLookupdsRequest(addresses=tuple(addresses))))


class ActingProducer(Producer):
    """Publishes in the name of the client that acts while this producer is created.

    If publishing creates a topic, the audit log names that client.
    """

    def __init__(self, url: str, *, timeout: float, via: str) -> None:
        super().__init__(url, timeout=timeout)
        addresses, *rest = self._options
        by = {"user": "", "from": "", "via": via, **ACTING.get()}
        self._options = (addresses.on_behalf(by), *rest)  # type: ignore[assignment]


# Seconds for which a list of topics is used before it is requested again.
FIRST_USE_KNOWN_S: Final = 1.0


class FirstUse:
    """Decides if a principal may use a topic or channel whose first use would create it.

    `topics` returns the names of all topics with their channels. It is called only for principals
    whose policy does not let them create the name.
    """

    def __init__(self, topics: Callable[[], Awaitable[Mapping[str, list[str]]]]) -> None:
        self._topics = topics
        self._known: Mapping[str, list[str]] = {}
        self._known_s = -FIRST_USE_KNOWN_S

    @staticmethod
    def at_once(principal: Principal, topic: str, channel: str = "") -> bool:
        """Return True if the principal may create the names even if they do not exist."""
        return principal.may(Action.CREATE, topic) and principal.may(Action.CREATE, topic, channel)

    async def permits(self, principal: Principal, topic: str, channel: str = "") -> bool:
        if self.at_once(principal, topic, channel):
            return True
        if time.monotonic() - self._known_s > FIRST_USE_KNOWN_S:
            self._known, self._known_s = await self._topics(), time.monotonic()
        if topic not in self._known:
            return False
        return (
            not channel
            or channel in self._known[topic]
            or principal.may(Action.CREATE, topic, channel)
        )
