"""Who asks over HTTP, at one place for every path: a user of the access file, whoever an auth server names, or without both everybody.

What is shown is `Authorization: Bearer TOKEN`. With an access file its users have tokens, and who shows none is `[anonymous]`, where that
is there. With an auth server the token is the secret of NSQ's AUTH; nsqd asks its auth server for TCP clients only. What a path asks of its
caller stands in `actors/security/policy.py`, and an application with a path that has no row there does not start. Checked before a body is
read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from ....security.policy import EVERYBODY, LOOKING, NOBODY, RULES, AccessPolicy, Action, Actions, Principal
from ...acting import ACTING, FirstUse
from ...nsq.auth import Authenticator, AuthFailed, Who
from .body import Parameters, legal
from .responses import ApiError, api_error

log = logging.getLogger("zsq")

Handler = Callable[[Request], Awaitable[Response]]
API: Final = "/api/"  # ours: here names must be there and be legal, once each
WARNINGS_S: Final = 10.0  # one warning of refused callers in so long: they could fill the disk with them
_KEY: Final = "zsq.principal"


class HttpAuthority:
    """`authenticator` or `policy`, or none of both. `policy` may be set anew while requests come. `first_use`: with an access file."""

    def __init__(
        self, authenticator: Authenticator | None = None, policy: AccessPolicy | None = None, first_use: FirstUse | None = None
    ) -> None:
        self._first_use = first_use
        self._authenticator = authenticator
        self.policy = policy
        self._warned_s = 0.0
        self._refused = 0

    @property
    def everybody_shows_who_they_are(self) -> bool:
        """Nothing but what is open to all is to be had without a token."""
        return self.policy is not None and self.policy.anonymous is None

    def guarded(self, actions: Actions, handler: Handler) -> Handler:
        async def handle(request: Request) -> Response:
            principal = await self._principal(request, actions)
            try:
                check(actions, principal, request)
                await self._check_first_use(actions, principal, request)
            except ApiError as error:
                if error.status in (401, 403):
                    needs = ", and ".join(action.value for action in actions)
                    self._warn(request, f"{principal.name or 'nobody known'}: {needs} is not permitted")
                raise
            give(request, principal)
            ACTING.set({"user": principal.name, "from": _remote(request), "via": "http"})
            return await handler(request)

        return handle

    async def _check_first_use(self, actions: Actions, principal: Principal, request: Request) -> None:
        """Publishing would make the topic; all other paths that make something need `admin`, which may."""
        if Action.PUBLISH in actions and self._first_use is not None and principal is not EVERYBODY:
            topic, _ = _names(actions, request)
            if topic and not await self._first_use.permits(principal, topic):
                raise api_error("UNAUTHORIZED")

    async def _principal(self, request: Request, actions: Actions) -> Principal:
        """Of what is open to all nobody is turned away: who is known is told more by /ping, and sees in the console what they may do."""
        if self.policy is None and self._authenticator is None:
            return EVERYBODY
        is_open = Action.OPEN in actions
        if self.policy is None and (is_open or (Action.SEE in actions and not _token(request))):
            return LOOKING
        if not is_open and (self.policy is not None or Action.SEE not in actions):
            return await self._known(request)
        try:
            return await self._known(request)
        except ApiError:
            return LOOKING if self.policy is None else NOBODY

    async def _known(self, request: Request) -> Principal:
        token = _token(request)
        if self.policy is not None:
            found = self.policy.by_token(token) if token else None if _shows_something(request) else self.policy.anonymous
            if found is not None:
                return found
            if token:
                self._warn(request, "a token that nobody has")
                raise api_error("AUTH_FAILED")
        if not token:
            error = api_error("AUTH_FIRST")
            error.headers["www-authenticate"] = "Bearer"
            raise error
        assert self._authenticator is not None
        try:
            return await self._authenticator.state(Who(_remote(request), False, "", token))
        except AuthFailed as error:
            self._warn(request, f"auth failed: {error}")
            raise api_error("AUTH_FAILED") from None

    def _warn(self, request: Request, why: str) -> None:
        self._refused += 1
        if time.monotonic() - self._warned_s < WARNINGS_S:
            return
        self._warned_s, count, self._refused = time.monotonic(), self._refused, 0
        more = f" ({count - 1} others were refused before)" if count > 1 else ""
        log.warning("%s %s from %s refused: %s%s", request.method, repr(request.scope["path"][:100]), _remote(request), why, more)


def check(actions: Actions, principal: Principal, request: Request) -> None:
    """`ApiError` where it is not permitted. Names that are not legal are left to the handlers of nsqd's paths, which refuse them."""
    if principal is EVERYBODY:
        return
    for action in actions:
        if RULES[action].names is None:
            is_permitted = principal.may(action)
        else:
            topic, channel = _names(actions, request)
            is_permitted = not topic or principal.may(action, topic, channel)
        if not is_permitted:
            raise api_error("UNAUTHORIZED")


def _names(actions: Actions, request: Request) -> tuple[str, str]:
    """Topic and channel as the handler will see them; "" for a topic: there is no legal one, or to see none is named."""
    needed = {name for action in actions for name in RULES[action].names or ()}
    query: bytes = request.scope["query_string"]
    parameters = Parameters(query)
    if request.scope["path"].startswith(API):
        for name in ("topic", "channel"):
            if parameters.count(name) > 1:
                raise api_error("INVALID_REQUEST")
        if "topic" in needed:
            parameters.topic()
        if "channel" in needed:
            parameters.topic_and_channel()
    topic = parameters.get("topic") or ""
    channel = (parameters.get("channel") or "") if "channel" in needed else ""
    good = legal(topic) and ("channel" not in needed or legal(channel))
    return (topic, channel) if good else ("", "")


def principal_of(request: Request) -> Principal:
    """Of this request's caller, once what the path asks is met. Handlers ask it where the path alone does not decide."""
    found: Principal = request.scope[_KEY]
    return found


def give(request: Request, principal: Principal) -> None:
    request.scope[_KEY] = principal


def _shows_something(request: Request) -> bool:
    return "authorization" in request.headers


def _token(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _remote(request: Request) -> str:
    return request.client.host if request.client is not None else ""
