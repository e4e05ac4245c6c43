"""Asks auth servers who somebody is and what they may do, as nsqd does, and remembers the answer for as long as it says.

`GET http://AUTH/auth?remote_ip=&tls=&secret=&common_name=` (or the same as a form by POST). The addresses are tried in the order in which
they were given, so that a near one comes first; nsqd begins at any. Where none gives a good answer nobody is let in: an old answer
does not live longer because nobody can be asked for a new one.

An answer counts for all that come with the same secret from the same place, connections and HTTP requests alike. AUTH itself always
asks, as in nsqd: who was given a permission a second ago has it with the next connection.

Strangers can cause questions, so they must not keep the others from asking. What AUTH asks and what is asked again for clients that
authenticated before have slots of their own. One address has half of the slots at most. A question that finds no slot within WAIT_S fails.
Answers that permit nothing are remembered apart from the others and in smaller number.

Who an NSQ client is by the access file: in the place of an auth server, answered at once.

The secret of AUTH is the token. A client that does not AUTH is `[anonymous]`, where the file says what that may publish or subscribe to;
without it AUTH comes first, as with an auth server. Everything is looked up again for each command, so new rules hold as soon as they are
there.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from ....transport.errors import E_BAD_ARGUMENT, UsageError
from ....transport.nsq.permissions import AuthState, BadAuthorization, parse_state
from ....transport.nsq.tls import client_context
from ...runtime.actor import StartFailed
from ...security.access import Access, AccessError
from ...security.curve import load_rules
from ...security.policy import NOBODY, AccessPolicy, Principal, granted
from .asking import CONNECT_S, REQUEST_S, NotAnswered, Way, ask, parse_url

METHODS: Final = ("get", "post")
SECRET_MAX: Final = 4096  # bytes; it stands in an address
KNOWN_MAX: Final = 10_000  # whose answers are remembered
DENIED_MAX: Final = 1_000  # the same, of those who may do nothing
AUTHORIZATIONS_KNOWN_MAX: Final = 100_000  # in all answers that are remembered
ASKED_MAX: Final = 64  # questions at a time by AUTH, and as many for clients that authenticated before; more wait
ASKED_BY_ADDRESS_MAX: Final = ASKED_MAX // 2  # of them, for clients of one address
WAITING_MAX: Final = 10_000  # ... and these are too many
WAIT_S: Final = 10.0  # for a slot


class Who(NamedTuple):
    """As the auth server is told; `common_name` is of a verified certificate only, `remote_ip` empty on a unix socket."""

    remote_ip: str
    tls: bool
    common_name: str
    secret: str


class AuthFailed(Exception):
    """No auth server gave a good answer; the text, for the log, says what each said. No secret is in it."""


class _Slots:
    """Questions that may be asked at a time: so many in all, and half of them for one address."""

    def __init__(self) -> None:
        self.waiting = 0  # or being asked
        self._all = asyncio.Semaphore(ASKED_MAX)
        self._by_address: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # as long as somebody waits there

    @contextlib.asynccontextmanager
    async def one(self, address: str) -> AsyncIterator[None]:
        """A slot, within WAIT_S; `AuthFailed` if there is none."""
        own = self._by_address.get(address)
        if own is None:
            own = self._by_address[address] = asyncio.Semaphore(ASKED_BY_ADDRESS_MAX)
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(WAIT_S):
                    await stack.enter_async_context(own)
                    await stack.enter_async_context(self._all)
            except TimeoutError:
                raise AuthFailed(f"other questions to auth servers were not answered within {WAIT_S:g} s") from None
            yield


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
        self._known: OrderedDict[Who, tuple[Principal, float]] = OrderedDict()
        self._denied: OrderedDict[Who, tuple[Principal, float]] = OrderedDict()
        self._authorizations = 0  # in all that are known
        self._asking: dict[tuple[Who, bool], asyncio.Task[AuthState]] = {}  # bool: whether AUTH asks
        self._slots = {True: _Slots(), False: _Slots()}  # by whether AUTH asks
        self._asked = self._failed = 0

    def known(self, who: Who) -> Principal | None:
        """What is known and still holds; at once, for the path of each command."""
        for where in (self._known, self._denied):
            found = where.get(who)
            if found is None:
                continue
            if self._clock() >= found[1]:
                self._forget(who)
                return None
            where.move_to_end(who)
            return found[0]
        return None

    async def state(self, who: Who, *, fresh: bool = False) -> Principal:
        """What holds for `who`; `fresh` asks although something is known, as AUTH does. `AuthFailed` if nobody tells."""
        known = None if fresh else self.known(who)
        if known is not None:
            return known
        task = self._asking.get((who, False)) or (self._asking.get((who, True)) if fresh else None)  # AUTH's own may wait longer for a slot
        if task is None:  # all who wait for the same answer wait for one question
            slots = self._slots[fresh]
            if slots.waiting >= WAITING_MAX:
                raise AuthFailed(f"{WAITING_MAX} questions to auth servers are waiting already")
            slots.waiting += 1
            task = self._asking[who, fresh] = asyncio.create_task(self._ask(who, slots))
            task.add_done_callback(lambda done: self._answered(who, fresh, done))
        return granted(await asyncio.shield(task))  # who does not wait any longer ends only their own waiting

    def forget(self) -> None:
        """Everybody is asked for again: for an administrator who took a secret back and does not want to wait."""
        self._known.clear()
        self._denied.clear()
        self._authorizations = 0

    async def close(self) -> None:
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def statistics(self) -> dict[str, int]:
        return {"known": len(self._known) + len(self._denied), "asking": len(self._asking), "asked": self._asked, "failed": self._failed}

    async def _ask(self, who: Who, slots: _Slots) -> AuthState:
        if len(who.secret.encode(errors="surrogateescape")) > SECRET_MAX:
            raise AuthFailed(f"the secret is longer than {SECRET_MAX} bytes")
        tls = "true" if who.tls else "false"
        parameters = {"remote_ip": who.remote_ip, "tls": tls, "secret": who.secret, "common_name": who.common_name}
        failures: list[str] = []
        async with slots.one(who.remote_ip):
            for name, url in self._servers:
                self._asked += 1
                try:
                    return parse_state(await ask(url, parameters, self._way))
                except (NotAnswered, BadAuthorization) as error:
                    self._failed += 1
                    failures.append(f"{name}: {error}")
        raise AuthFailed("; ".join(failures) or "no auth server is given")

    def _answered(self, who: Who, fresh: bool, task: asyncio.Task[AuthState]) -> None:
        self._slots[fresh].waiting -= 1
        del self._asking[who, fresh]
        if task.cancelled() or task.exception() is not None:
            return  # what was known before holds as long as was said then
        state = task.result()
        self._forget(who)
        until = self._clock() + state.ttl_s
        if not state.authorizations:
            self._denied[who] = (granted(state), until)
            if len(self._denied) > DENIED_MAX:
                self._denied.popitem(last=False)
            return
        self._known[who] = (granted(state), until)
        self._authorizations += len(state.authorizations)
        while len(self._known) > KNOWN_MAX or (self._authorizations > AUTHORIZATIONS_KNOWN_MAX and len(self._known) > 1):
            self._forget(next(iter(self._known)))

    def _forget(self, who: Who) -> None:
        self._denied.pop(who, None)
        found = self._known.pop(who, None)
        if found is not None:
            self._authorizations -= found[0].permission_count


def load_access(path: str) -> Access | None:
    """`StartFailed` says what is wrong with the file; None where there is none."""
    try:
        return load_rules(path) if path else None
    except AccessError as error:
        raise StartFailed(str(error)) from None


class AccessAuthenticator:
    """`policy` may be set anew."""

    def __init__(self, policy: AccessPolicy) -> None:
        self.policy = policy
        self._failed = 0

    @property
    def takes_anonymous(self) -> bool:
        return self.policy.anonymous is not None and self.policy.anonymous.permission_count > 0

    def known(self, who: Who) -> Principal:
        return (self.policy.by_token(who.secret) if who.secret else self.policy.anonymous) or NOBODY

    async def state(self, who: Who, *, fresh: bool = False) -> Principal:
        found = self.policy.by_token(who.secret) if who.secret else None
        if found is None:
            self._failed += 1
            raise AuthFailed("a token that nobody has")
        return found

    async def close(self) -> None:
        pass

    def statistics(self) -> dict[str, int]:
        return {"known": len(self.policy.access.users), "failed": self._failed}
