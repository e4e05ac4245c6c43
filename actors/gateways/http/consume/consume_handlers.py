"""Handlers of receive, finish, requeue and touch, for one channel each.

They check the options, find the subscription, and show messages as `zsq sub --json` does. Which
tokens may be answered is decided in `leases.py`. The permission was checked by the path.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, TypedDict, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from .....transport.client.core.confirm import Confirm
from .....transport.client.core.consumer_session import LeasedBlock
from .....transport.client.core.message import as_error, when_again
from .....transport.errors import E_CLOSING, E_LEASE, Refused
from .....transport.message_object import MessageObject, as_object
from .....transport.wire.protocol import (
    DEAD,
    DELAY_MS_MAX,
    MESSAGE_TIMEOUT_MS,
    MESSAGE_TIMEOUT_MS_MAX,
    MESSAGE_TIMEOUT_MS_MIN,
)
from ..console.answers import answer, as_json, bad, large_answer, options_of
from ..web.authority import Handler, names_in_path, principal_of
from ..web.body import JsonObject
from ..web.permissions import CHANNEL_PATH
from ..web.places import Limiters, holder_of
from ..web.responses import ApiError
from .leases import Outcome, Token, Verb, parse_token
from .subscription import GONE, Failure, HttpSubscription, Received, Wanted

_T = TypeVar("_T")
COUNT: Final = 10
COUNT_MAX: Final = 1_000
BYTES: Final = 1024 * 1024
BYTES_MAX: Final = 4 * 1024 * 1024
WAIT_S_MAX: Final = 20
RECEIVE_OPTIONS: Final = frozenset({"max", "max_bytes", "wait_s", "lease_s"})
TOKENS: Final = frozenset({"tokens"})
REQUEUE_OPTIONS: Final = TOKENS | {"delay_s", "backoff", "defer", "reject", "error"}


class FailedToken(TypedDict):
    token: str
    message: str


Owner = tuple[str, str, str]
"""The user, the topic, and the channel to which a token belongs."""


class ConsumePaths:
    """The handlers of these paths, with all subscriptions. `url` is the broker's run directory."""

    def __init__(self, url: str, limiters: Limiters) -> None:
        self._url = url
        self._limiters = limiters
        self._gateway = secrets.token_hex(4)
        self._numbers: dict[tuple[Owner, int], list[int]] = {}  # by owner and lease time
        self._subscriptions: dict[int, tuple[Owner, HttpSubscription]] = {}
        self._number = 0
        self._is_closing = False

    def paths(self) -> dict[str, dict[str, Handler]]:
        return {
            f"{CHANNEL_PATH}/receive": {"POST": self.receive},
            f"{CHANNEL_PATH}/finish": {"POST": self.finish},
            f"{CHANNEL_PATH}/requeue": {"POST": self.requeue},
            f"{CHANNEL_PATH}/touch": {"POST": self.touch},
        }

    def close(self) -> None:
        """End all subscriptions. Whoever waits gets an error."""
        self._is_closing = True
        for _, subscription in list(self._subscriptions.values()):
            subscription.close(Refused(E_CLOSING, "the broker is stopping"))

    async def receive(self, request: Request) -> Response:
        options = _only(await options_of(request, self._limiters), RECEIVE_OPTIONS)
        count_max = int(_number(options, "max", COUNT, 1, COUNT_MAX, whole=True))
        max_bytes = int(_number(options, "max_bytes", BYTES, 1, BYTES_MAX, whole=True))
        wait_s = _number(options, "wait_s", WAIT_S_MAX, 0, WAIT_S_MAX)
        least_s, most_s = MESSAGE_TIMEOUT_MS_MIN // 1000, MESSAGE_TIMEOUT_MS_MAX // 1000
        lease_s = _number(options, "lease_s", MESSAGE_TIMEOUT_MS // 1000, least_s, most_s)
        wanted = Wanted(holder_of(request), count_max, max_bytes)
        with self._limiters.receives.place(wanted.holder):
            work = self._receive(request, wanted, int(lease_s * 1000), wait_s)
            number, received = await _while_client_waits(request, work, self._give_back)
        try:
            return large_answer(self._parts(number, received), wanted.holder, self._limiters)
        except Refused:
            self._give_back((number, received))
            raise

    async def _receive(
        self, request: Request, wanted: Wanted, lease_ms: int, wait_s: float
    ) -> tuple[int, list[Received]]:
        """Receive from a subscription that is not full. Return its number, and the messages."""
        until_s = time.monotonic() + wait_s
        while True:
            number, subscription = self._subscription(request, lease_ms)
            received = await subscription.receive(wanted, until_s - time.monotonic())
            if received or not subscription.is_full or time.monotonic() >= until_s:
                return number, received

    def _give_back(self, result: tuple[int, list[Received]]) -> None:
        number, received = result
        if number in self._subscriptions:
            self._subscriptions[number][1].give_back(received)

    async def finish(self, request: Request) -> Response:
        options = _only(await options_of(request, self._limiters), TOKENS)
        return await self._answer(
            request,
            options,
            Verb.FINISH,
            lambda delivery, indexes: delivery.session.finish_sync(delivery, indexes),
        )

    async def requeue(self, request: Request) -> Response:
        options = _only(await options_of(request, self._limiters), REQUEUE_OPTIONS)
        backoff, defer, reject = (_flag(options, name) for name in ("backoff", "defer", "reject"))
        if reject and ("delay_s" in options or backoff or defer):
            raise bad("give reject, or delay_s, backoff or defer, not both")
        if defer and (backoff or "error" in options):
            raise bad("a message that is deferred has not failed: give no backoff and no error")
        delay_s = _number(options, "delay_s", 0, 0, DELAY_MS_MAX // 1000)
        delay_ms = DEAD if reject else when_again(delay_s, backoff)
        error = options.get("error", "")
        if not isinstance(error, str):
            raise bad("error must be a text")
        error = as_error(error)
        return await self._answer(
            request,
            options,
            Verb.REQUEUE,
            lambda delivery, indexes: delivery.session.requeue_sync(
                delivery, indexes, delay_ms, error, defer=defer
            ),
        )

    async def touch(self, request: Request) -> Response:
        options = _only(await options_of(request, self._limiters), TOKENS)
        return await self._answer(
            request,
            options,
            Verb.TOUCH,
            lambda delivery, indexes: delivery.session.touch_sync(delivery, indexes),
        )

    def _subscription(self, request: Request, lease_ms: int) -> tuple[int, HttpSubscription]:
        """Return a subscription of this user and channel that is not full, and its number."""
        user, topic, channel = owner = _owner(request)
        if self._is_closing:
            raise Refused(E_CLOSING, "the broker is stopping")
        numbers = self._numbers.setdefault((owner, lease_ms), [])
        for number in numbers:
            if not self._subscriptions[number][1].is_full:
                return number, self._subscriptions[number][1]
        holder = holder_of(request)
        self._limiters.subscriptions.take(holder)
        self._number += 1
        number = self._number

        def over() -> None:
            del self._subscriptions[number]
            numbers.remove(number)
            if not numbers:
                del self._numbers[owner, lease_ms]
            self._limiters.subscriptions.give_back(holder)

        subscription = HttpSubscription(
            self._url,
            topic,
            channel,
            lease_ms,
            f"http/{user}" if user else "http",
            {"user": user, "from": "", "via": "http"},
            self._limiters.leases,
            over,
        )
        numbers.append(number)
        self._subscriptions[number] = owner, subscription
        return number, subscription

    def _parts(self, number: int, received: Sequence[Received]) -> Iterator[bytes]:
        """Yield the parts of the answer of a receive, which is a JSON object."""
        yield b'{"messages":['
        for at, message in enumerate(received):
            yield b"," * bool(at) + as_json(self._shown(number, message))
        yield b"]}"

    def _shown(self, number: int, received: Received) -> MessageObject:
        token = Token(self._gateway, number, received.number)
        shown = as_object(received.message)
        shown |= {"id": received.id, "attempts": received.attempts, "token": str(token)}
        if received.part is not None:
            shown["part"] = received.part
        return shown

    async def _answer(
        self,
        request: Request,
        options: JsonObject,
        verb: Verb,
        send: Callable[[LeasedBlock, list[int]], Confirm],
    ) -> Response:
        """Answer the tokens in the options, and show which of them were not answered."""
        owner, tokens = _owner(request), _tokens(options)
        failures: dict[Token, Failure] = {}
        by_subscription: dict[int, list[int]] = {}
        for token in tokens:
            row = self._subscriptions.get(token.subscription)
            if token.gateway != self._gateway or row is None or row[0] != owner:
                failures[token] = GONE
            else:
                by_subscription.setdefault(token.subscription, []).append(token.number)
        for number, numbers in by_subscription.items():
            row = self._subscriptions.get(number)
            failed = (
                dict.fromkeys(numbers, GONE)
                if row is None
                else await row[1].answer(verb, numbers, send)
            )
            for each, failure in failed.items():
                failures[Token(self._gateway, number, each)] = failure
        if failures:
            raise _refused(failures, len(tokens) - len(failures))
        return answer({"done": len(tokens)})


def _owner(request: Request) -> Owner:
    return principal_of(request).name, *names_in_path(request)


async def _while_client_waits(
    request: Request, work: Coroutine[Any, Any, _T], give_back: Callable[[_T], object]
) -> _T:
    """Return the result of `work`. If the client leaves first, give the result back."""

    async def leave() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(leave())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not leaving.done():
            return await working
        if working.done() and working.exception() is None:
            give_back(working.result())
        raise ClientDisconnect
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


def _refused(failures: dict[Token, Failure], done: int) -> ApiError:
    first = next(iter(failures.values()))
    status = 409
    if any(failure.outcome is Outcome.GONE for failure in failures.values()):
        status = 410
    failed: list[FailedToken] = [
        {"token": str(token), "message": f"{E_LEASE} {failure.text}"}
        for token, failure in failures.items()
    ]
    more = {"done": done, "failed": failed}
    return ApiError(status, f"{E_LEASE} {first.text}", more=more)


def _tokens(options: JsonObject) -> list[Token]:
    """Return the tokens, each once."""
    texts = options.get("tokens")
    if not isinstance(texts, list) or not 1 <= len(texts) <= COUNT_MAX:
        raise bad(f"tokens must be a list of 1 to {COUNT_MAX:,} tokens")
    tokens: dict[Token, None] = {}
    for text in texts:
        token = parse_token(text) if isinstance(text, str) else None
        if token is None:
            raise bad(f"{repr(text)[:60]} is no token of a receive")
        tokens[token] = None
    return list(tokens)


def _only(options: JsonObject, known: frozenset[str]) -> JsonObject:
    unknown = options.keys() - known
    if unknown:
        names = ", ".join(sorted(known))
        raise bad(f"unknown option {min(unknown)[:80]!r}; the options are {names}")
    return options


def _flag(options: JsonObject, name: str) -> bool:
    value = options.get(name, False)
    if not isinstance(value, bool):
        raise bad(f"{name} must be true or false, not {repr(value)[:40]}")
    return value


def _number(
    options: JsonObject, name: str, otherwise: int, least: int, most: int, *, whole: bool = False
) -> float:
    value = options.get(name, otherwise)
    if (
        isinstance(value, bool)
        or not isinstance(value, int if whole else int | float)
        or not least <= value <= most
    ):
        kind = "a whole number" if whole else "a number"
        raise bad(f"{name} must be {kind} from {least} to {most:,}, not {repr(value)[:40]}")
    return value
