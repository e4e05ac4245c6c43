"""Asks auth servers who somebody is and what they may do, as nsqd does, and remembers the answer for as long as it says.

`GET http://AUTH/auth?remote_ip=&tls=&secret=&common_name=` (or the same as a form by POST). The addresses are tried in the order in which
they were given, so that a near one comes first; nsqd begins at any. Where none gives a good answer nobody is let in: an old answer
does not live longer because nobody can be asked for a new one.

An answer counts for all that come with the same secret from the same place, connections and HTTP requests alike. AUTH itself always
asks, as in nsqd: who was given a permission a second ago has it with the next connection.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from ...transport.errors import E_BAD_ARGUMENT, UsageError
from ...transport.nsq.permissions import AuthState, BadAuthorization, parse_state
from ...transport.nsq.tls import client_context
from .asking import CONNECT_S, REQUEST_S, NotAnswered, Way, ask, parse_url

METHODS: Final = ("get", "post")
SECRET_MAX: Final = 4096  # bytes; it stands in an address
KNOWN_MAX: Final = 10_000  # whose answers are remembered
ASKED_MAX: Final = 64  # questions at a time; more wait
WAITING_MAX: Final = 10_000  # ... and these are too many


class Who(NamedTuple):
    """As the auth server is told; `common_name` is of a verified certificate only, `remote_ip` empty on a unix socket."""

    remote_ip: str
    tls: bool
    common_name: str
    secret: str


class AuthFailed(Exception):
    """No auth server gave a good answer; the text, for the log, says what each said. No secret is in it."""


class Authenticator:
    """One for a gateway. `addresses`: HOST:PORT, or a whole http or https address."""

    def __init__(
        self,
        addresses: Sequence[str],
        method: str = "get",
        *,
        context: ssl.SSLContext | None = None,
        connect_s: float = CONNECT_S,
        request_s: float = REQUEST_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if method not in METHODS:
            raise UsageError(E_BAD_ARGUMENT, f"auth-http-request-method {method!r}: it is get or post")
        self._servers = [(one, parse_url(one if "://" in one else f"http://{one}/auth")) for one in addresses]
        if context is None and any(url.secure for _, url in self._servers):
            context = client_context()
        self._way = Way(method == "post", context, connect_s, request_s)
        self._clock = clock
        self._known: OrderedDict[Who, tuple[AuthState, float]] = OrderedDict()
        self._asking: dict[Who, asyncio.Task[AuthState]] = {}
        self._slots = asyncio.Semaphore(ASKED_MAX)
        self._asked = self._failed = 0

    @property
    def needed(self) -> bool:
        """Whether anybody is asked at all; without an auth server everything is permitted, and AUTH is refused."""
        return bool(self._servers)

    def known(self, who: Who) -> AuthState | None:
        """What is known and still holds; at once, for the path of each command."""
        found = self._known.get(who)
        if found is None:
            return None
        state, expires = found
        if self._clock() >= expires:
            del self._known[who]
            return None
        self._known.move_to_end(who)
        return state

    async def state(self, who: Who, *, fresh: bool = False) -> AuthState:
        """What holds for `who`; `fresh` asks although something is known, as AUTH does. `AuthFailed` if nobody tells."""
        state = None if fresh else self.known(who)
        if state is not None:
            return state
        task = self._asking.get(who)
        if task is None:  # all who wait for the same answer wait for one question
            if len(self._asking) >= WAITING_MAX:
                raise AuthFailed(f"{WAITING_MAX} questions to auth servers are waiting already")
            task = self._asking[who] = asyncio.create_task(self._ask(who))
            task.add_done_callback(lambda done: self._answered(who, done))
        return await asyncio.shield(task)  # who does not wait any longer ends only their own waiting

    async def permitted(self, who: Who, permission: str, topic: str, channel: str = "") -> bool:
        return (await self.state(who)).permits(permission, topic, channel)

    def forget(self) -> None:
        """Everybody is asked for again: for an administrator who took a secret back and does not want to wait."""
        self._known.clear()

    async def close(self) -> None:
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def statistics(self) -> dict[str, Any]:
        return {"known": len(self._known), "asking": len(self._asking), "asked": self._asked, "failed": self._failed}

    async def _ask(self, who: Who) -> AuthState:
        if len(who.secret.encode(errors="surrogateescape")) > SECRET_MAX:
            raise AuthFailed(f"the secret is longer than {SECRET_MAX} bytes")
        tls = "true" if who.tls else "false"
        parameters = {"remote_ip": who.remote_ip, "tls": tls, "secret": who.secret, "common_name": who.common_name}
        failures: list[str] = []
        async with self._slots:
            for name, url in self._servers:
                self._asked += 1
                try:
                    return parse_state(await ask(url, parameters, self._way))
                except (NotAnswered, BadAuthorization) as error:
                    self._failed += 1
                    failures.append(f"{name}: {error}")
        raise AuthFailed("; ".join(failures) or "no auth server is given")

    def _answered(self, who: Who, task: asyncio.Task[AuthState]) -> None:
        del self._asking[who]
        if task.cancelled() or task.exception() is not None:
            return  # what was known before holds as long as was said then
        state = task.result()
        self._known[who] = (state, self._clock() + state.ttl_s)
        self._known.move_to_end(who)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
