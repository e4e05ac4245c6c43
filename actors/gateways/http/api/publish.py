"""Handlers of /pub and /mpub, and their publisher: simultaneous requests share a block.

`GatheredPublisher` uses the NSQ gateway's `Gatherer`. A single request does not wait for others.
A hundred simultaneous requests need one append and one sync.

A `Gatherer` has a lane for each topic. Clients choose the names, so after LANES_MAX different
topics a new `Gatherer` takes over, and the old one ends after its last answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from .....transport.client.asyncio.aio import Admin
from .....transport.client.blocking.producer import Published
from .....transport.client.core.unique_arguments import with_unique_key
from .....transport.errors import UsageError, from_wire
from .....transport.wire.codec import pack_headers
from .....transport.wire.dedupe import ID_BYTES_MAX, pack_id
from ...shared.gatherer import Gatherer
from ..web.body import Parameters, announced, counted, lines, share_of
from ..web.places import Limiters
from ..web.responses import answer, api_error, text

LANES_MAX: Final = 512
IDEMPOTENCY_HEADER: Final = "Idempotency-Key"
END_S: Final = 35.0  # the time limit for ending a publisher; a publish has a shorter one


class GatheredPublisher:
    """A publisher that collects messages, in one event loop.

    `make` creates a `Gatherer` when one is needed.
    """

    def __init__(self, make: Callable[[], Gatherer], lanes_max: int = LANES_MAX) -> None:
        self._make = make
        self._lanes_max = lanes_max
        self._names: set[str] = set()
        self._stopping = False
        self._gatherer: Gatherer | None = None
        self._retired: set[Gatherer] = set()
        self._ends: set[asyncio.Task[None]] = set()

    async def publish(
        self, topic: str, bodies: Sequence[bytes], defer_ms: int, headers: Sequence[bytes] = ()
    ) -> list[Published]:
        """Publish at least one message. Return when all are durable. Raises `ZsqError`.

        With the packed `headers` of the messages, which have their ids or keys, return where each
        of them is, and which are duplicates.
        """
        places: dict[int, list[Published]] = {}
        answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def answer(why: str) -> None:
            if not answered.done():  # if the request has ended, nothing waits for the answer
                answered.set_result(why)

        self._for(topic).publish(
            topic, bodies, defer_ms, answer, headers, places.__setitem__ if headers else None
        )
        if why := await answered:
            code, _, text = why.partition(" ")
            raise from_wire(code, text)
        return [one for at in sorted(places) for one in places[at]]

    def _for(self, topic: str) -> Gatherer:
        if self._gatherer is None or (
            topic not in self._names and len(self._names) >= self._lanes_max
        ):
            self._retire()
            self._gatherer = self._make()
            if self._stopping:
                self._gatherer.stop_waiting()
        self._names.add(topic)
        return self._gatherer

    def _retire(self) -> None:
        gatherer, self._gatherer = self._gatherer, None
        self._names.clear()
        if gatherer is not None:
            end = asyncio.get_running_loop().create_task(gatherer.finish(END_S))
            self._ends.add(end)
            self._retired.add(gatherer)
            end.add_done_callback(self._ends.discard)
            end.add_done_callback(lambda _: self._retired.discard(gatherer))

    def stop_waiting(self) -> None:
        """Call `Gatherer.stop_waiting` for all publishes, because the broker stops."""
        self._stopping = True
        for gatherer in (*self._retired, *([self._gatherer] if self._gatherer is not None else [])):
            gatherer.stop_waiting()

    def statistics(self) -> dict[str, int]:
        return self._gatherer.statistics() if self._gatherer is not None else {}

    async def close(self) -> None:
        """Wait until all publishes are answered."""
        self._retire()
        if self._ends:
            await asyncio.wait(set(self._ends))


class PublishHandlers:
    """The handlers of /pub and /mpub."""

    def __init__(self, publisher: GatheredPublisher, broker: Admin, limiters: Limiters) -> None:
        self._publisher = publisher
        self._broker = broker
        self._limits = limiters.limits
        self._limiters = limiters

    async def pub(self, request: Request) -> Response:
        limits = self._limits
        with share_of(request, self._limiters) as share:
            body = await share.read(limits.max_msg_size, api_error("MSG_TOO_BIG"))
            if not body:
                raise api_error("MSG_EMPTY")
            parameters = Parameters(request.scope["query_string"])
            topic = parameters.topic()
            headers = ids_of(request, 1, many=False)
            defer_ms = parameters.defer_ms(limits.max_req_timeout_ms)
            if key := key_of(parameters, defer_ms=defer_ms, has_id=bool(headers)):
                headers = [key]
            places = await self._publisher.publish(topic, [body], defer_ms, headers)
        return placed(places) if headers else text("OK")

    async def mpub(self, request: Request) -> Response:
        limits = self._limits
        length = announced(request)
        if length is not None and length > limits.max_body_size:
            raise api_error("BODY_TOO_BIG")
        parameters = Parameters(request.scope["query_string"])
        topic, binary = parameters.topic(), parameters.binary()
        with share_of(request, self._limiters) as share:
            body = await share.read(limits.max_body_size, api_error("BODY_TOO_BIG"))
            if binary:
                bodies = counted(body, limits.max_msg_size, limits.max_body_size)
            else:
                bodies = lines(body, limits.max_msg_size)
            share.take(len(body))  # counted again, because the messages are a copy of the body
            del body
            headers = ids_of(request, len(bodies), many=True)
            places: list[Published] = []
            if bodies:
                places = await self._publisher.publish(topic, bodies, 0, headers)
            else:
                await self._broker.create_topic(topic)  # nsqd creates the topic too
        return placed(places) if headers else text("OK")


def key_of(parameters: Parameters, *, defer_ms: int, has_id: bool) -> bytes | None:
    """Return the packed headers of a message with the parameters `unique_key` and `unique`."""
    key, unique = parameters.get("unique_key"), parameters.get("unique")
    if key is None and unique is None:
        return None
    try:
        headers = with_unique_key(None, key, unique, delay_ms=defer_ms, has_id=has_id)
    except UsageError:
        raise api_error("INVALID_UNIQUE_KEY") from None
    return pack_headers(headers or {})


def ids_of(request: Request, count: int, *, many: bool) -> list[bytes]:
    """Return the packed ids of the messages of a request with the header Idempotency-Key, or [].

    The message of /pub has the key as its id. Message i of /mpub has KEY/i. So a client that
    repeats the whole request after a lost answer stores nothing twice.
    """
    key = request.headers.get(IDEMPOTENCY_HEADER)
    if key is None:
        return []
    ids = [f"{key}/{index}" if many else key for index in range(count)]
    if not key or len(max(ids, key=len, default="").encode()) > ID_BYTES_MAX:
        raise api_error("INVALID_IDEMPOTENCY_KEY")
    return [pack_id(one.encode()) for one in ids]


def placed(places: Sequence[Published]) -> Response:
    """Return the answer to a request with ids: the first offset, and what was not stored again."""
    duplicates = [index for index, one in enumerate(places) if one.duplicate]
    return answer({
        "offset": places[0].offset,
        "duplicate": len(duplicates) == len(places),
        "duplicates": duplicates,
    })  # fmt: skip
