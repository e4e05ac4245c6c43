"""Authentication of NSQ clients by auth servers or by the access file.

`Authenticator` asks auth servers, as nsqd does:
`GET http://AUTH/auth?remote_ip=&tls=&secret=&common_name=` (or the same as a form by POST). It
tries the addresses in the given order, so that a near server can come first. nsqd starts at a
random address. If no server gives a valid reply, the client is not admitted. A reply is kept for
the time that it states, and no longer, even if no server can be reached.

A reply applies to all clients with the same secret and address, to connections and HTTP requests
alike. AUTH itself always asks, as in nsqd, so a new permission applies from the next connection on.

Clients that are not authenticated cause requests too. These must not block the requests of other
clients. So requests by AUTH and requests to renew a reply have separate slots. One address uses at
most half of the slots. A request that gets no slot within WAIT_S fails. Replies that permit nothing
are kept separately, and fewer of them.

`AccessAuthenticator` uses the access file in place of an auth server and answers at once. The
secret of AUTH is the token. A client that does not send AUTH is the user `[anonymous]` if the file
gives permissions to that user. Otherwise the client must send AUTH first, as with an auth server.
Rules are looked up for each command, so new rules apply at once.
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

from ....transport.errors import E_BAD_ARGUMENT, Refused, UsageError
from ....transport.nsq.permissions import AuthState, BadAuthorization, parse_state
from ....transport.nsq.tls import client_context
from ...runtime.actor import StartFailed
from ...security.access import Access, AccessError
from ...security.curve import load_rules
from ...security.policy import NOBODY, AccessPolicy, Principal
from ..limiter import Bound, Limiter
from .auth_policy import granted
from .http_client import CONNECT_S, REQUEST_S, NotAnswered, Way, ask, parse_url

METHODS: Final = ("get", "post")
SECRET_MAX: Final = 4096  # the most bytes of a secret, which is part of a URL
KNOWN_MAX: Final = 10_000  # the most replies that are kept
DENIED_MAX: Final = 1_000  # the most replies without permissions that are kept
AUTHORIZATIONS_KNOWN_MAX: Final = 100_000  # the most authorizations in all kept replies together
# The most requests by AUTH at the same time, and also the most requests that renew replies.
# Further requests wait for a slot.
ASKED_MAX: Final = 64
ASKED_BY_ADDRESS_MAX: Final = ASKED_MAX // 2  # of ASKED_MAX, the most for clients of one address
# The most requests that run or wait for a slot, in all and for each address. Further requests fail.
WAITING: Final = Bound(10_000, 5_000)
WAIT_S: Final = 10.0  # a request that gets no slot within this time fails


class Who(NamedTuple):
    """A client as described to the auth server.

    `common_name` is set only for a verified certificate. `remote_ip` is empty on a unix socket.
    """

    remote_ip: str
    tls: bool
    common_name: str
    secret: str


class AuthFailed(Exception):
    """Raised if no auth server gave a valid reply.

    The text is for the log. It gives the reason for each server and contains no secret.
    """


class _Slots:
    """The ASKED_MAX slots that requests need. One address can use at most half of them."""

    def __init__(self) -> None:
        self.places = Limiter("requests to auth servers", WAITING, "try again later")
        self._all = asyncio.Semaphore(ASKED_MAX)
        # A semaphore is kept as long as a request uses it.
        self._by_address: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def one(self, address: str) -> AsyncIterator[None]:
        """Hold a slot. Raises `AuthFailed` if none becomes free within WAIT_S."""
        own = self._by_address.get(address)
        if own is None:
            own = self._by_address[address] = asyncio.Semaphore(ASKED_BY_ADDRESS_MAX)
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(WAIT_S):
                    await stack.enter_async_context(own)
                    await stack.enter_async_context(self._all)
            except TimeoutError:
                raise AuthFailed(
                    f"too many other requests to auth servers were not answered within {WAIT_S:g} s"
                ) from None
            yield


class Authenticator:
    """The client of the auth servers, one for each gateway.

    `addresses` are HOST:PORT or complete http or https addresses.
    """

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
            raise UsageError(
                E_BAD_ARGUMENT, f"auth-http-request-method must be get or post, not {method!r}"
            )
        self._servers = [
            (one, parse_url(one if "://" in one else f"http://{one}/auth")) for one in addresses
        ]
        if context is None and any(url.secure for _, url in self._servers):
            context = client_context()
        self._way = Way(method == "post", context, connect_s, request_s)
        self._clock = clock
        self._known: OrderedDict[Who, tuple[Principal, float]] = OrderedDict()
        self._denied: OrderedDict[Who, tuple[Principal, float]] = OrderedDict()
        self._authorizations = 0  # the number of authorizations in all kept replies
        # The bool is True for a request by AUTH.
        self._asking: dict[tuple[Who, bool], asyncio.Task[AuthState]] = {}
        self._slots = {True: _Slots(), False: _Slots()}  # True is the key of the slots for AUTH
        self._asked = self._failed = 0

    def known(self, who: Who) -> Principal | None:
        """Return the principal from a kept reply that is still valid, else None.

        It never waits, because it runs for each command.
        """
        for where in (self._known, self._denied):
            kept = where.get(who)
            if kept is None:
                continue
            if self._clock() >= kept[1]:
                self._forget(who)
                return None
            where.move_to_end(who)
            return kept[0]
        return None

    async def state(self, who: Who, *, fresh: bool = False) -> Principal:
        """Return the principal of `who`, and ask an auth server if no valid reply is kept.

        With `fresh` it always asks, as AUTH does. Raises `AuthFailed` if no server gives a reply.
        """
        known = None if fresh else self.known(who)
        if known is not None:
            return known
        # A request by AUTH may wait longer for a slot.
        task = self._asking.get((who, False)) or (self._asking.get((who, True)) if fresh else None)
        if task is None:  # clients that need the same reply share one request
            slots = self._slots[fresh]
            try:
                slots.places.take(f"address {who.remote_ip}")
            except Refused as error:
                raise AuthFailed(error.text) from None
            task = self._asking[who, fresh] = asyncio.create_task(self._ask(who, slots))
            task.add_done_callback(lambda done: self._answered(who, fresh, done))
        # Cancelling one caller does not cancel the shared request.
        return granted(await asyncio.shield(task))

    async def close(self) -> None:
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def statistics(self) -> dict[str, int]:
        return {
            "known": len(self._known) + len(self._denied),
            "asking": len(self._asking),
            "asked": self._asked,
            "failed": self._failed,
        }

    async def _ask(self, who: Who, slots: _Slots) -> AuthState:
        size = len(who.secret.encode(errors="surrogateescape"))
        if size > SECRET_MAX:
            raise AuthFailed(f"the secret has {size} bytes; the limit is {SECRET_MAX}")
        tls = "true" if who.tls else "false"
        parameters = {
            "remote_ip": who.remote_ip,
            "tls": tls,
            "secret": who.secret,
            "common_name": who.common_name,
        }
        failures: list[str] = []
        async with slots.one(who.remote_ip):
            for name, url in self._servers:
                self._asked += 1
                try:
                    return parse_state(await ask(url, parameters, self._way))
                except (NotAnswered, BadAuthorization) as error:
                    self._failed += 1
                    failures.append(f"{name}: {error}")
        raise AuthFailed("; ".join(failures) or "no auth server is configured")

    def _answered(self, who: Who, fresh: bool, task: asyncio.Task[AuthState]) -> None:
        self._slots[fresh].places.give_back(f"address {who.remote_ip}")
        del self._asking[who, fresh]
        if task.cancelled() or task.exception() is not None:
            return  # a kept earlier reply stays valid for its time
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
        while len(self._known) > KNOWN_MAX or (
            self._authorizations > AUTHORIZATIONS_KNOWN_MAX and len(self._known) > 1
        ):
            self._forget(next(iter(self._known)))

    def _forget(self, who: Who) -> None:
        self._denied.pop(who, None)
        kept = self._known.pop(who, None)
        if kept is not None:
            self._authorizations -= kept[0].permission_count


def load_access(path: str) -> Access | None:
    """Load the access file. Return None if there is none; raises `StartFailed` if it is invalid."""
    try:
        return load_rules(path) if path else None
    except AccessError as error:
        raise StartFailed(str(error)) from None


class AccessAuthenticator:
    """Authentication by the access file. `policy` may be replaced at any time."""

    def __init__(self, policy: AccessPolicy) -> None:
        self.policy = policy
        self._failed = 0

    @property
    def takes_anonymous(self) -> bool:
        return self.policy.anonymous is not None and self.policy.anonymous.permission_count > 0

    def known(self, who: Who) -> Principal:
        return (self.policy.by_token(who.secret) if who.secret else self.policy.anonymous) or NOBODY

    async def state(self, who: Who, *, fresh: bool = False) -> Principal:
        principal = self.policy.by_token(who.secret) if who.secret else None
        if principal is None:
            self._failed += 1
            raise AuthFailed("no user of the access file has this token")
        return principal

    async def close(self) -> None:
        pass

    def statistics(self) -> dict[str, int]:
        return {"known": len(self.policy.access.users), "failed": self._failed}
