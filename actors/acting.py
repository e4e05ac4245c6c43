"""Who acts: the client of a gateway that gives orders in the name of its own clients, for the audit log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final

from ..transport.aio import Admin
from ..transport.block import Block
from ..transport.protocol import Manage, Wire

NOBODY: Final[Mapping[str, str]] = {}
ACTING: Final[ContextVar[Mapping[str, str]]] = ContextVar("acting", default=NOBODY)
"""Of the request that is being answered, and of what it started: `user`, `from` and `via`."""


class ActingAdmin(Admin):
    """Says with each order in whose name it is. `via`: where nobody is named."""

    def __init__(self, url: str, *, timeout: float, via: str) -> None:
        super().__init__(url, timeout=timeout)
        self._via = via

    async def _ask(self, make: Callable[[int], Wire], *, repeatable: bool) -> tuple[Any, list[Block]]:
        by = {"user": "", "from": "", "via": self._via, **ACTING.get()}

        def named(number: int) -> Wire:
            word = make(number)
            return replace(word, by=by) if isinstance(word, Manage) else word

        return await super()._ask(named, repeatable=repeatable)
