"""Authentication and authorization of HTTP requests, in one place for all paths.

A request authenticates with `Authorization: Bearer TOKEN`. With an access file, its users have
tokens. A request without a token belongs to the user `[anonymous]` if the file has that section.
With an auth server, the token is the secret of NSQ's AUTH. (nsqd asks its auth server only for TCP
clients.) If there is neither, every request may do everything.

`permissions.py` lists the actions that each path requires. An application with a path that is not
listed there does not start. Permissions are checked before the body is read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from .....transport.errors import E_FORBIDDEN, Refused
from .....transport.wire.actions import Action
from ....security.access import ANONYMOUS
from ....security.complaints import Complaints
from ....security.policy import (
    EVERYBODY,
    NOBODY,
    RULES,
    AccessPolicy,
    Principal,
)
from ...acting_clients import ACTING, FirstUse
from ...shared.auth import Authenticator, AuthFailed, Who
from ...shared.auth_policy import LOOKING
from .body import Parameters, legal
from .permissions import Actions
from .places import place_of
from .responses import ApiError, api_error

Handler = Callable[[Request], Awaitable[Response]]
# ZSQ's own paths begin with this. Their names must be valid and given only once.
API: Final = "/api/"
_RIGHTS: Final = "zsq.rights"


class Rights:
    """The permissions of the client that sent a request, also when the request is over.

    What goes on after its request, such as a stream or a redrive, calls `now` before each of its
    steps.
    """

    def __init__(self, principal: Principal, ask: Callable[[], Awaitable[Principal]]) -> None:
        self.principal = principal  # the client at its request
        self._ask = ask

    async def now(self) -> Principal:
        """Return the client's principal by the current rules.

        Raises `Refused` if the client is not known any more.
        """
        try:
            return await self._ask()
        except ApiError as error:
            raise Refused(
                E_FORBIDDEN, f"the client that began this is not accepted any more: {error.message}"
            ) from None

    async def have_changed(self) -> bool:
        """Return True if the rules were read again, or the answer of an auth server is over."""
        try:
            return await self._ask() != self.principal
        except ApiError:
            return True


class HttpAuthority:
    """The authorization of all requests, by `authenticator`, by `policy`, or by neither.

    `policy` may be replaced at any time. `first_use` checks publishes that would create a topic.
    """

    def __init__(
        self,
        authenticator: Authenticator | None = None,
        policy: AccessPolicy | None = None,
        first_use: FirstUse | None = None,
    ) -> None:
        self._first_use = first_use
        self._authenticator = authenticator
        self.policy = policy
        self._complaints = Complaints()

    @property
    def everybody_shows_who_they_are(self) -> bool:
        """True if requests without a token may use only the open paths."""
        return self.policy is not None and self.policy.anonymous is None

    def guarded(self, actions: Actions, handler: Handler) -> Handler:
        async def handle(request: Request) -> Response:
            place = place_of(request)
            needs_place = Action.OPEN not in actions
            if needs_place and self._authenticator is not None:
                place.take()  # for the address, because an auth server may take long
            principal = await self._principal(request, actions)
            if principal.name not in ("", ANONYMOUS):
                place.pass_to(f"user {principal.name}")
            if needs_place:
                place.take()
            try:
                check(actions, principal, request)
                await self._check_first_use(actions, principal, request)
            except ApiError as error:
                if error.status in (401, 403):
                    needs = " and ".join(RULES[action].needs for action in actions)
                    self._warn(
                        request,
                        f"{principal.name or 'an unknown user'} needs the permission {needs}",
                    )
                raise
            give(request, Rights(principal, lambda: self._principal(request, actions)))
            ACTING.set({"user": principal.name, "from": _remote(request), "via": "http"})
            return await handler(request)

        return handle

    async def _check_first_use(
        self, actions: Actions, principal: Principal, request: Request
    ) -> None:
        """Refuse a publish or a receive that would create what the principal may not create.

        The other paths that create something require `admin`, which includes that permission.
        """
        creates = Action.PUBLISH in actions or "channel" in request.path_params
        if creates and self._first_use is not None and principal is not EVERYBODY:
            topic, channel = _names(actions, request)
            if topic and not await self._first_use.permits(principal, topic, channel):
                raise api_error("UNAUTHORIZED")

    async def _principal(self, request: Request, actions: Actions) -> Principal:
        """Return the request's principal.

        Open paths never refuse a request. But /ping shows more to a known user, and the console
        shows the user's permissions.
        """
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
            principal = (
                self.policy.by_token(token)
                if token
                else None
                if _shows_something(request)
                else self.policy.anonymous
            )
            if principal is not None:
                return principal
            if token:
                self._warn(request, "no user of the access file has this token")
                raise api_error("AUTH_FAILED")
        if not token:
            error = api_error("AUTH_FIRST")
            error.headers["www-authenticate"] = "Bearer"
            raise error
        assert self._authenticator is not None
        try:
            return await self._authenticator.state(Who(_remote(request), False, "", token))
        except AuthFailed as error:
            self._warn(request, f"authentication failed: {error}")
            raise api_error("AUTH_FAILED") from None

    def _warn(self, request: Request, why: str) -> None:
        path = repr(request.scope["path"][:100])
        text = "%s %s from %s refused: %s"
        self._complaints.add(text, request.method, path, _remote(request), why)


def check(actions: Actions, principal: Principal, request: Request) -> None:
    """Check that the principal may do the actions. Raises `ApiError` if not.

    On nsqd's paths, requests with invalid names pass, because their handlers refuse them.
    """
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
    """Return the topic and channel that the handler will use.

    Both are "" if a needed name is invalid or no topic is given.
    """
    needed = {name for action in actions for name in RULES[action].names or ()}
    if "channel" in request.path_params:
        return names_in_path(request)
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


def names_in_path(request: Request) -> tuple[str, str]:
    """Return the topic and channel in the path. Raises `ApiError` if one is invalid."""
    topic, channel = request.path_params["topic"], request.path_params["channel"]
    if not legal(topic):
        raise api_error("INVALID_TOPIC")
    if not legal(channel, "channel"):
        raise api_error("INVALID_ARG_CHANNEL")
    return topic, channel


def principal_of(request: Request) -> Principal:
    """Return the principal of a request that passed `guarded`.

    Handlers use it if the path alone does not decide the permission.
    """
    return rights_of(request).principal


def rights_of(request: Request) -> Rights:
    """Return the rights of a request that passed `guarded`."""
    rights: Rights = request.scope[_RIGHTS]
    return rights


def give(request: Request, rights: Rights) -> None:
    request.scope[_RIGHTS] = rights


def _shows_something(request: Request) -> bool:
    return "authorization" in request.headers


def _token(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _remote(request: Request) -> str:
    return request.client.host if request.client is not None else ""
