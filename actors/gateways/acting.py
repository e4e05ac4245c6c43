"""Who acts: the clients of a gateway that gives orders and publishes in the name of its own clients, for the audit log."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Final

from ...transport.client.asyncio.aio import Admin, Producer
from ...transport.client.core.asking import Question, Reply
from ...transport.wire.protocol import Manage, Wire
from ..security.policy import Action, Principal

NOBODY: Final[Mapping[str, str]] = {}
ACTING: Final[ContextVar[Mapping[str, str]]] = ContextVar("acting", default=NOBODY)
"""Of the request that is being answered, and of what it started: `user`, `from` and `via`."""


class ActingAdmin(Admin):
    """Says with each order in whose name it is. `via`: where nobody is named."""

    def __init__(self, url: str, *, timeout: float, via: str) -> None:
        super().__init__(url, timeout=timeout)
        self._via = via

    async def _ask(self, question: Question) -> Reply:
        by = {"user": "", "from": "", "via": self._via, **ACTING.get()}

        def named(number: int) -> Wire:
            message = question.make(number)
            return replace(message, by=by) if isinstance(message, Manage) else message

        return await super()._ask(question._replace(make=named))


class ActingProducer(Producer):
    """Publishes in the name of who acts while it is made: a topic that comes to be by it is in the audit log under that name."""

    def __init__(self, url: str, *, timeout: float, via: str) -> None:
        super().__init__(url, timeout=timeout)
        address, *rest = self._options
        self._options = (replace(address, by={"user": "", "from": "", "via": via, **ACTING.get()}), *rest)  # type: ignore[assignment]


FIRST_USE_KNOWN_S: Final = 1.0  # the names that are there are asked for so often at most


class FirstUse:
    """Decides whether a principal may publish or subscribe where that would make the topic or the channel (`create`).

    `topics`: names of all topics with their channels; asked only for principals whose `create` does not permit the name.
    """

    def __init__(self, topics: Callable[[], Awaitable[Mapping[str, list[str]]]]) -> None:
        self._topics = topics
        self._known: Mapping[str, list[str]] = {}
        self._known_s = -FIRST_USE_KNOWN_S

    @staticmethod
    def at_once(principal: Principal, topic: str, channel: str = "") -> bool:
        """Permitted whatever is there."""
        return principal.may(Action.CREATE, topic) and principal.may(Action.CREATE, topic, channel)

    async def permits(self, principal: Principal, topic: str, channel: str = "") -> bool:
        if self.at_once(principal, topic, channel):
            return True
        if time.monotonic() - self._known_s > FIRST_USE_KNOWN_S:
            self._known, self._known_s = await self._topics(), time.monotonic()
        if topic not in self._known:
            return False
        return not channel or channel in self._known[topic] or principal.may(Action.CREATE, topic, channel)
