"""Places: what requests and streams hold, and when they give it back.

A stream takes its place before its handler waits for anything, and gives it back when its response
ends. That is not left to the generator of its pieces: if the client leaves before the first piece,
the generator never begins, and nothing in it is carried out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Final

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ...limiter import Limiter
from .limits import HttpLimits

_PLACE: Final = "zsq.place"


class Limiters:
    """All limiters of the HTTP gateway. A holder is a user or an address (`holder_of`)."""

    def __init__(self, limits: HttpLimits) -> None:
        self.limits = limits
        self.requests = Limiter("requests at once", limits.requests)
        self.bodies = Limiter("bytes of bodies in memory", limits.bodies)
        self.live_views = Limiter("open pages", limits.live_views, "close some")
        self.tails = Limiter("live tails", limits.tails, "close some")
        self.downloads = Limiter("downloads at once", limits.downloads)
        self.searches = Limiter("searches at once", limits.searches)
        self.looks = Limiter("reads of messages at once", limits.looks)
        self.publishes = Limiter("publishes of the console at once", limits.publishes)
        self.redrives = Limiter("running redrives", limits.redrives, "wait until one ends")
        self.receives = Limiter("receives at once", limits.receives)
        self.leases = Limiter("leases over HTTP", limits.leases, "finish some messages")
        self.subscriptions = Limiter(
            "consumers over HTTP", limits.subscriptions, "use fewer channels and values of lease_s"
        )


class RequestPlace:
    """The place of one request, from its first `await` until its answer is sent.

    While the client sends its body, the request has no place. So bodies that do not come keep
    nobody out.
    """

    def __init__(self, requests: Limiter, holder: str) -> None:
        self._requests = requests
        self._is_taken = False
        self.holder = holder

    def take(self) -> None:
        """Take the place. Raises `Refused` (E_LIMIT) if a bound is reached."""
        if not self._is_taken:
            self._requests.take(self.holder)
            self._is_taken = True

    def give_back(self) -> None:
        if self._is_taken:
            self._requests.give_back(self.holder)
            self._is_taken = False

    def pass_to(self, holder: str) -> None:
        """Change the holder, because the request has shown who sent it. Its place is given back."""
        self.give_back()
        self.holder = holder

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Give the place back, and take it again at the end if there was no error."""
        was_taken = self._is_taken
        self.give_back()
        yield
        if was_taken:
            self.take()


def give_place(scope: Scope, place: RequestPlace) -> None:
    scope[_PLACE] = place


def place_of(request: Request) -> RequestPlace:
    """Return the place of a request that came through `Guard`."""
    place: RequestPlace = request.scope[_PLACE]
    return place


def holder_of(request: Request) -> str:
    """Return the user of a request, or its address if it shows no user."""
    return place_of(request).holder


class WorkTurns:
    """Work of which `running` pieces run at the same time. The others wait for their turn.

    The limiter bounds how many run and wait, so that one holder cannot make the others wait long.
    """

    def __init__(self, limiter: Limiter, running: int) -> None:
        self._limiter = limiter
        self._running = asyncio.Semaphore(running)

    @asynccontextmanager
    async def turn(self, holder: str) -> AsyncIterator[None]:
        with self._limiter.place(holder):
            async with self._running:
                yield


class Stream(StreamingResponse):
    """A response of many pieces, which takes over a place and gives it back when it has ended."""

    def __init__(
        self, held: ExitStack, pieces: AsyncIterator[bytes], headers: Mapping[str, str], kind: str
    ) -> None:
        super().__init__(pieces, 200, headers, media_type=kind)
        self.place = held.pop_all()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.place:
            await super().__call__(scope, receive, send)
