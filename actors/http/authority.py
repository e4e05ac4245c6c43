"""What an auth server permits over HTTP: the same secrets and permissions as for NSQ's TCP clients, which nsqd leaves out.

The secret comes as `Authorization: Bearer SECRET`. Publishing, and changing a topic, wants `publish` on the topic; changing a channel wants
`subscribe` on it; changing /config wants a secret that the auth server knows. Reading (statistics, lookup, metrics) is open: it shows names
and numbers, no messages. Without an auth server everything is permitted to whoever can connect.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from ...transport.nsq.permissions import AuthState
from ..nsq.auth import Authenticator, AuthFailed, Who
from .errors import api_error
from .parameters import Parameters, legal

log = logging.getLogger("zsq")

Handler = Callable[[Request], Awaitable[Response]]
PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"


def needs(method: str, path: str) -> str | None:
    """The permission for it; "" for any, None for none at all."""
    if path in ("/pub", "/mpub") or path.startswith("/topic/"):
        return PUBLISH
    if path.startswith("/channel/"):
        return SUBSCRIBE
    return "" if method == "PUT" else None


class Authority:
    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    def guarded(self, permission: str, handler: Handler) -> Handler:
        async def handle(request: Request) -> Response:
            await self.check(request, permission)
            return await handler(request)

        return handle

    async def check(self, request: Request, permission: str) -> None:
        """Before a body is read. Names that are not legal are left to the handler, which refuses them."""
        state = await self._state(request)
        if not permission:
            return
        parameters = Parameters(request.scope["query_string"])
        topic = parameters.get("topic") or ""
        channel = (parameters.get("channel") or "") if permission == SUBSCRIBE else ""
        if legal(topic) and (permission != SUBSCRIBE or legal(channel)) and not state.permits(permission, topic, channel):
            raise api_error("UNAUTHORIZED")

    async def _state(self, request: Request) -> AuthState:
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            error = api_error("AUTH_FIRST")
            error.headers["www-authenticate"] = "Bearer"
            raise error
        remote_ip = request.client.host if request.client is not None else ""
        try:
            return await self._authenticator.state(Who(remote_ip, False, "", secret.strip()))
        except AuthFailed as error:
            log.warning("auth of an HTTP request from %s failed: %s", remote_ip, error)
            raise api_error("AUTH_FAILED") from None
