"""Who may do what over HTTP, at one place for every path: the access file's word, an auth server's, or none, which permits everything.

What is shown is `Authorization: Bearer TOKEN`. With an access file its users have tokens, and who shows none is `[anonymous]`, where that
is there. With an auth server the token is the secret of NSQ's AUTH; nsqd asks its auth server for TCP clients only. What a path needs
stands in needs.py. Checked before a body is read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from ..access import Access
from ..acting import ACTING
from ..nsq.auth import Authenticator, AuthFailed, Who
from .errors import ApiError, api_error
from .needs import API, Need
from .parameters import Parameters, legal
from .rights import EVERYTHING, LOOKING, NOTHING, OfAuthServer, OfUser, Rights, give

log = logging.getLogger("zsq")

Handler = Callable[[Request], Awaitable[Response]]
WARNINGS_S: Final = 10.0  # one warning of refused callers in so long: they could fill the disk with them
_TOPIC: Final = frozenset({Need.READ, Need.SUBSCRIBE, Need.PUBLISH, Need.ADMIN_TOPIC, Need.ADMIN_CHANNEL})
_CHANNEL: Final = frozenset({Need.SUBSCRIBE, Need.ADMIN_CHANNEL})


class Authority:
    """`authenticator` or `access`, or none of both. `access` may be set anew while requests come."""

    def __init__(self, authenticator: Authenticator | None = None, access: Access | None = None) -> None:
        self._authenticator = authenticator
        self.access = access
        self._warned_s = 0.0
        self._refused = 0

    @property
    def everybody_shows_who_they_are(self) -> bool:
        """Nothing but what is open to all is to be had without a token."""
        return self.access is not None and self.access.anonymous is None

    def guarded(self, need: Need, handler: Handler) -> Handler:
        async def handle(request: Request) -> Response:
            rights = await self._rights(request, need)
            try:
                check(need, rights, request)
            except ApiError as error:
                if error.status in (401, 403):
                    self._warn(request, f"{rights.name or 'nobody known'}: {need.value} is not permitted")
                raise
            give(request, rights)
            ACTING.set({"user": rights.name, "from": _remote(request), "via": "http"})
            return await handler(request)

        return handle

    async def _rights(self, request: Request, need: Need) -> Rights:
        """Of what is open to all nobody is turned away: who is known is told more by /ping, and sees in the console what they may do."""
        if self.access is None and self._authenticator is None:
            return EVERYTHING
        if self.access is None and (need is Need.OPEN or (need is Need.VIEW and not _token(request))):
            return LOOKING
        if need is not Need.OPEN and (self.access is not None or need is not Need.VIEW):
            return await self._known(request)
        try:
            return await self._known(request)
        except ApiError:
            return LOOKING if self.access is None else NOTHING

    async def _known(self, request: Request) -> Rights:
        token = _token(request)
        if self.access is not None:
            user = self.access.by_token(token) if token else None if _shows_something(request) else self.access.anonymous
            if user is not None:
                return OfUser(user)
            if token:
                self._warn(request, "a token that nobody has")
                raise api_error("AUTH_FAILED")
        if not token:
            error = api_error("AUTH_FIRST")
            error.headers["www-authenticate"] = "Bearer"
            raise error
        assert self._authenticator is not None
        try:
            return OfAuthServer(await self._authenticator.state(Who(_remote(request), False, "", token)))
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


def check(need: Need, rights: Rights, request: Request) -> None:
    """`ApiError` where it is not permitted. Names that are not legal are left to the handlers of nsqd's paths, which refuse them."""
    if need in (Need.OPEN, Need.KNOWN) or rights is EVERYTHING:
        return
    if need in (Need.CONFIG, Need.BROKER):
        permitted = rights.may_configure if need is Need.CONFIG else rights.is_broker_admin
    else:
        topic, channel = _names(need, request)
        permitted = not topic or _permits(need, rights, topic, channel)
    if not permitted:
        raise api_error("UNAUTHORIZED")


def _permits(need: Need, rights: Rights, topic: str, channel: str) -> bool:
    match need:
        case Need.PUBLISH:
            return rights.may_publish(topic)
        case Need.READ:
            return rights.may_subscribe(topic)
        case Need.SUBSCRIBE:
            return rights.may_subscribe(topic, channel)
        case Need.ADMIN_TOPIC | Need.ADMIN_CHANNEL:
            return rights.may_admin(topic, channel)
        case _:
            return rights.may_view(topic)


def _names(need: Need, request: Request) -> tuple[str, str]:
    """Topic and channel as the handler will see them; "" for a topic: there is no legal one, or for VIEW none is named."""
    query: bytes = request.scope["query_string"]
    parameters = Parameters(query)
    if request.scope["path"].startswith(API):
        for name in ("topic", "channel"):
            if parameters.count(name) > 1:
                raise api_error("INVALID_REQUEST")
        if need in _TOPIC:
            parameters.topic()
        if need in _CHANNEL:
            parameters.topic_and_channel()
    topic = parameters.get("topic") or ""
    channel = (parameters.get("channel") or "") if need in _CHANNEL else ""
    good = legal(topic) and (need not in _CHANNEL or legal(channel))
    return (topic, channel) if good else ("", "")


def _shows_something(request: Request) -> bool:
    return "authorization" in request.headers


def _token(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _remote(request: Request) -> str:
    return request.client.host if request.client is not None else ""
