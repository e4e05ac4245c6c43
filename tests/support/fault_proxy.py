"""Fault proxy: an HTTP proxy between a client of an object store and a real server with S3's
interface, which injects faults by a seeded plan.

It passes requests on as they are, with the `Host` header that the client signed. So the signature
stays valid: S3 signs the name that the client used, and not the server's address.

These are the faults that a real store and its network have, and that ZSQ must survive: a request or
an answer is lost, an answer says "failed" although the request took effect, a request is carried
out twice or much later, a body ends early, and the store is away. The proxy never invents a
success, never changes a body, and never takes back what the store has stored. ZSQ need not survive
a store that does so.

Whether a request gets a fault depends on the seed, its operation, its key, and how often this
operation was asked for this key. It does not depend on the requests for other keys. So a run with
the same names and the same seed has the same plan, although its requests come in another order.

`FaultProxy` runs in a thread, and `FaultProxyProcess` in its own process. Both have the same
methods. The process ends when its parent ends, unless a fork of the parent keeps its standard input
open. h11 parses HTTP. No library was found that can fail a request after it took effect, and tell a
conditional write from others: toxiproxy knows TCP only, and mitmproxy depends on more packages than
ZSQ.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from urllib.parse import parse_qs, unquote, urlsplit

import h11

BODY_BYTES_MAX: Final = 64 * 1024 * 1024
# Larger bodies of requests are large. Few of them are in memory at a time.
SMALL_BYTES: Final = 1024 * 1024
LARGE_AT_ONCE: Final = 4
CONNECTIONS_MAX: Final = 128
LATE_MAX: Final = 64
LATE_BYTES_MAX: Final = 64 * 1024 * 1024
HEAD_BYTES_MAX: Final = 64 * 1024
PIECE_BYTES: Final = 256 * 1024
OCCURRENCES_MAX: Final = 100_000
JOURNAL_MAX: Final = 10_000
IDLE_S: Final = 600.0  # a connection without a request
ORIGIN_S: Final = 60.0  # the server, for a piece of its answer
SILENCE_S: Final = 600.0  # a client that waits for an answer that does not come
STOP_S: Final = 20.0

# The operations of S3, as (method, what the query or the headers must have, operation). The first
# row that matches counts.
_OPERATIONS: Final = (
    ("PUT", "if-none-match", "create"),
    ("PUT", "partNumber", "part"),
    ("PUT", "", "put"),
    ("POST", "uploads", "begin_upload"),
    ("POST", "uploadId", "complete_upload"),
    ("POST", "delete", "remove_many"),
    ("DELETE", "uploadId", "abort_upload"),
    ("DELETE", "", "remove"),
    ("GET", "list-type", "list"),
    ("GET", "", "read"),
    ("HEAD", "", "size"),
)
OPERATIONS: Final = (*(name for *_, name in _OPERATIONS), "other")
READS: Final = ("list", "read", "size", "other")

# A request has at most one of these outcomes. The first ones come instead of forwarding the
# request, the others afterwards. The number is the status of the answer.
_INSTEAD: Final = {"error_500": 500, "error_503": 503, "error_409": 409, "lost_request": 0}
_AFTERWARDS: Final = {
    "error_after": 500, "lost_answer": 0, "timed_out_answer": 0, "conflict_409": 409, "conflict_412": 412,
    "cut_body": 0,
}  # fmt: skip
OUTCOMES: Final = (*_INSTEAD, *_AFTERWARDS)
_ALONGSIDE: Final = ("doubled", "doubled_late", "delay_before", "delay_after")
FAULTS: Final = (*OUTCOMES, *_ALONGSIDE)
_CODES: Final = {
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    413: "EntityTooLarge",
    500: "InternalError",
    503: "SlowDown",
}
REFUSE: Final = "refuse"
SILENT: Final = "silent"


@dataclass(frozen=True, slots=True)
class Faults:
    """The plan. Each fault has the probability with which a request gets it, from 0.0 to 1.0.

    A request gets at most one outcome, so the probabilities of the outcomes add up to at most 1.0.
    A doubled request and the delays come in addition to any outcome, but a request that is not
    forwarded is not doubled. A fault that is not possible for its request is left out and not
    counted, for example a cut body of an answer without a body.
    """

    seed: int
    """The seed of all choices."""
    matching: str = ""
    """Only requests whose key matches have faults. This regular expression is searched in the key,
    which has the prefix of the bucket's URL but not the bucket: `^a/log/` or `(^|/)log/`. The key
    of a list is its prefix, and that of a removal of many objects is the first key."""
    operations: tuple[str, ...] = OPERATIONS
    """Only these operations have faults."""
    faults_max: int | None = None
    """Stop after so many faults. None has no limit."""

    error_500: float = 0.0
    """Outcome: answer 500 and do not forward the request."""
    error_503: float = 0.0
    """Outcome: answer 503 with `Retry-After: retry_after_s` and do not forward the request."""
    retry_after_s: int = 1
    error_409: float = 0.0
    """Outcome: answer a create with 409 and do not forward it. S3 does so while another request for
    this key is under way, which may fail. So the object may be missing afterwards."""
    lost_request: float = 0.0
    """Outcome: close the connection and do not forward the request."""

    error_after: float = 0.0
    """Outcome: let the request take effect, then answer 500."""
    lost_answer: float = 0.0
    """Outcome: let the request take effect, then close the connection without an answer."""
    timed_out_answer: float = 0.0
    """Outcome: let the request take effect, then answer nothing until the client gives up."""
    conflict_409: float = 0.0
    """Outcome: let a create (`If-None-Match: *`) succeed, then answer 409, as if another request
    was under way. A create that the server refused keeps its answer."""
    conflict_412: float = 0.0
    """Outcome: let a create succeed, then answer 412, as if its own first attempt met it."""
    cut_body: float = 0.0
    """Outcome: send half of the answer's body, then close the connection."""

    doubled: float = 0.0
    """Carry out a write twice, one after the other. The client gets the answer of the first."""
    doubled_late: float = 0.0
    """Carry out a write again after some seconds, also if the client no longer exists. While the
    store is away, the second request waits. At most LATE_MAX requests with LATE_BYTES_MAX are kept
    for this, and beyond that the fault is left out."""
    late_s_min: float = 0.5
    late_s_max: float = 5.0
    """The second request comes after a time between these two."""

    delay_before: float = 0.0
    """Wait `delay_s` before the request is forwarded."""
    delay_after: float = 0.0
    """Wait `delay_s` after the request took effect, before its answer."""
    delay_s: float = 0.4

    def __post_init__(self) -> None:
        for name in FAULTS:
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must be from 0.0 to 1.0, not {getattr(self, name)}")
        total = math.fsum(getattr(self, name) for name in OUTCOMES)
        if total > 1.0:
            raise ValueError(f"the outcomes must add up to at most 1.0, not {total}")
        if unknown := set(self.operations) - set(OPERATIONS):
            raise ValueError(f"operations must be of {OPERATIONS}, not {sorted(unknown)}")
        if not 0.0 <= self.late_s_min <= self.late_s_max:
            raise ValueError(f"late_s_min must be from 0.0 to late_s_max, not {self.late_s_min}")
        if self.delay_s < 0.0 or self.retry_after_s < 0:
            raise ValueError("delay_s and retry_after_s must be at least 0")
        re.compile(self.matching)

    def chosen(self, operation: str, key: str, occurrence: int) -> Chosen:
        """Return the faults of a request, which asks for this key the `occurrence`th time."""
        if operation not in self.operations or not re.search(self.matching, key):
            return Chosen()
        rolls = random.Random(f"{self.seed}/{operation}/{key}/{occurrence}")
        # All rolls are made for each request. So another probability of one fault does not change
        # the plan of the others.
        roll = rolls.random()
        sums = itertools.accumulate(getattr(self, name) for name in OUTCOMES)
        outcome = next((name for name, end in zip(OUTCOMES, sums, strict=True) if roll < end), "")
        others = {name: rolls.random() < getattr(self, name) for name in _ALONGSIDE}
        late_s = rolls.uniform(self.late_s_min, self.late_s_max)
        return Chosen(outcome, **others, late_s=late_s, delay_s=self.delay_s)


class Chosen(NamedTuple):
    """The faults that the plan has for one request."""

    outcome: str = ""
    doubled: bool = False
    doubled_late: bool = False
    delay_before: bool = False
    delay_after: bool = False
    late_s: float = 0.0
    delay_s: float = 0.0


class Injection(NamedTuple):
    """One fault in the journal: when it was injected, and into what request."""

    at_s: float  # time.time()
    fault: str
    operation: str
    key: str


class ProxyFailed(Exception):
    """The proxy did not start, or did not answer a command."""


class _HangUp(Exception):
    """Close the connection to the client without another byte."""


def operation_of(head: h11.Request) -> tuple[str, str]:
    """Return the operation of a request and the key of its object."""
    url = urlsplit(head.target.decode("ascii"))
    query = parse_qs(url.query, keep_blank_values=True)
    marks = {*query, "", *(name.decode() for name, _ in head.headers)}
    method = head.method.decode("ascii")
    key = unquote(url.path).lstrip("/").partition("/")[2]
    rows = (name for of, mark, name in _OPERATIONS if of == method and mark in marks)
    name = next(rows, "other")
    return name, query.get("prefix", [""])[0] if name == "list" else key


class _Request(NamedTuple):
    head: h11.Request
    body: bytes
    operation: str
    key: str

    @classmethod
    def made(cls, head: h11.Request, body: bytes) -> Self:
        operation, key = operation_of(head)
        if operation == "remove_many" and (first := re.search(rb"<Key>([^<]*)</Key>", body)):
            key = first.group(1).decode(errors="replace")
        return cls(head, body, operation, key)

    @property
    def conditional(self) -> bool:
        return (b"if-none-match", b"*") in list(self.head.headers)


def _length(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """Return the length that the headers give, or None if they give none."""
    return next((int(value) for name, value in headers if name == b"content-length"), None)


class _Peer:
    """One side of the proxy: a connection of a client, or one to the server."""

    def __init__(
        self,
        role: type[h11.CLIENT | h11.SERVER],
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        wait_s: float,
    ) -> None:
        self.http = h11.Connection(role, max_incomplete_event_size=HEAD_BYTES_MAX)
        self.reader, self.writer = streams
        self._wait_s = wait_s

    async def event(self) -> Any:
        while (event := self.http.next_event()) is h11.NEED_DATA:
            if self.http.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            async with asyncio.timeout(self._wait_s):
                self.http.receive_data(await self.reader.read(PIECE_BYTES))
        return event

    async def piece(self) -> bytes:
        """Return the next piece of a body, or nothing at its end."""
        event = await self.event()
        if isinstance(event, h11.Data):
            return bytes(event.data)
        if not isinstance(event, h11.EndOfMessage):
            raise _HangUp
        return b""

    async def skip_body(self) -> None:
        while await self.piece():
            pass

    async def send(self, *events: h11.Event) -> None:
        for event in events:
            self.writer.write(self.http.send(event) or b"")
        async with asyncio.timeout(self._wait_s):
            await self.writer.drain()

    async def answer(
        self, status: int, *headers: tuple[str, str], without_body: bool = False
    ) -> None:
        """Answer as S3 does when it fails. The answer to HEAD has no body."""
        code = _CODES[status]
        body = f"<Error><Code>{code}</Code><Message>injected by the proxy</Message></Error>"
        every = [
            ("Content-Type", "application/xml"),
            ("Content-Length", str(len(body))),
            *headers,
        ]
        await self.send(
            h11.Response(status_code=status, headers=every, reason=code.encode()),
            h11.Data(data=b"" if without_body else body.encode()),
            h11.EndOfMessage(),
        )

    def close(self) -> None:
        self.writer.close()


async def _pause(seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), seconds)


class _Proxy:
    """The proxy in its event loop. All its methods are called there."""

    def __init__(self, origin: tuple[str, int], faults: Faults) -> None:
        self._origin = origin
        self._faults = faults
        self._left = faults.faults_max
        self._away = ""
        self._changed = asyncio.Event()  # replaced when `_away` changes
        self._tasks: set[asyncio.Task[None]] = set()
        self._clients: set[_Peer] = set()
        self._late_tasks = 0
        self._late_bytes = 0
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)
        self._occurrences: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._counts: Counter[str] = Counter()
        self._journal: deque[Injection] = deque(maxlen=JOURNAL_MAX)

    async def start(self, port: int) -> int:
        # This socket keeps the port while the proxy refuses connections. It never listens.
        self._holder = self._bound(port)
        self.port = int(self._holder.getsockname()[1])
        await self._listen()
        return self.port

    def _bound(self, port: int) -> socket.socket:
        # asyncio switches Nagle's algorithm off only for sockets that name their protocol.
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(("127.0.0.1", port))
        return made

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(
            self._connected, sock=self._bound(self.port), limit=PIECE_BYTES, backlog=CONNECTIONS_MAX
        )

    async def stop(self) -> None:
        self._server.close()
        self._holder.close()
        for client in self._clients:
            client.writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Commands.

    async def command(self, name: str, argument: Any) -> Any:
        if name == "counts":
            return dict(self._counts) | {"late_pending": self._late_tasks}
        if name == "journal":
            return list(self._journal)
        if name == "set_faults":
            self._faults = Faults(**argument | {"operations": tuple(argument["operations"])})
            self._left = self._faults.faults_max
        elif name == "away" and argument in ("", REFUSE, SILENT):
            await self._be_away(argument)
        else:
            raise ValueError(f"there is no command {name} {argument!r}")
        return None

    async def _be_away(self, how: str) -> None:
        before, self._away = self._away, how
        self._changed.set()
        self._changed = asyncio.Event()
        if how == REFUSE and before != REFUSE:
            self._server.close()
            for client in self._clients:
                client.writer.transport.abort()
        if how != REFUSE and before == REFUSE:
            await self._listen()

    # The life of a connection.

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) >= CONNECTIONS_MAX or self._away == REFUSE:
            self._counts["connections_refused"] += 1
            writer.transport.abort()
            return
        client = _Peer(h11.SERVER, (reader, writer), IDLE_S)
        self._clients.add(client)
        self._start(self._serve(client))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, client: _Peer) -> None:
        try:
            while await self._exchange(client):
                client.http.start_next_cycle()
        except (OSError, h11.ProtocolError, _HangUp):
            pass
        finally:
            client.close()
            with contextlib.suppress(OSError):
                async with asyncio.timeout(IDLE_S):
                    await client.writer.wait_closed()
            self._clients.discard(client)

    async def _exchange(self, client: _Peer) -> bool:
        """Carry out one request. Return True if the connection may have another one."""
        head = await client.event()
        if not isinstance(head, h11.Request):
            return False
        self._counts["requests"] += 1
        length = _length(head.headers)
        if length is None and b"transfer-encoding" in dict(head.headers):
            length = BODY_BYTES_MAX
        large = (length or 0) > SMALL_BYTES
        async with self._large if large else contextlib.nullcontext():
            body = bytearray()
            while piece := await client.piece():
                body += piece
                if max(len(body), length or 0) > BODY_BYTES_MAX:
                    self._counts["too_large"] += 1
                    await client.answer(413)
                    return False
            request = _Request.made(head, bytes(body))
            del body
            chosen = self._chosen(request)
            reply = await self._carried_out(client, request, chosen)
        if reply is not None:
            try:
                await self._answered(client, request._replace(body=b""), chosen, reply)
            finally:
                reply.origin.close()
        return client.http.our_state is h11.DONE and client.http.their_state is h11.DONE

    # Before the server has the request.

    def _chosen(self, request: _Request) -> Chosen:
        at = (request.operation, request.key)
        occurrence = self._occurrences.pop(at, 0)
        self._occurrences[at] = occurrence + 1
        if len(self._occurrences) > OCCURRENCES_MAX:
            self._occurrences.popitem(last=False)
        return self._faults.chosen(*at, occurrence)

    def _injects(self, fault: str, request: _Request) -> bool:
        """Count a fault. Return False if the plan allows no more."""
        if self._left == 0:
            return False
        if self._left is not None:
            self._left -= 1
        self._counts[fault] += 1
        self._journal.append(Injection(time.time(), fault, request.operation, request.key))
        return True

    async def _unless_away(self) -> None:
        """Hang up if the store is away. If it is silent, do so when that has ended."""
        if self._away == SILENT:
            await self._changed.wait()
            raise _HangUp
        if self._away == REFUSE:
            raise _HangUp

    async def _carried_out(self, client: _Peer, request: _Request, chosen: Chosen) -> _Reply | None:
        """Forward the request. Return None if it was answered, or lost, instead."""
        await self._unless_away()
        retry_after_s = self._faults.retry_after_s
        if chosen.delay_before and self._injects("delay_before", request):
            await _pause(chosen.delay_s)
            await self._unless_away()
        possible = chosen.outcome in _INSTEAD and (
            chosen.outcome != "error_409" or request.conditional
        )
        if possible and self._injects(chosen.outcome, request):
            status = _INSTEAD[chosen.outcome]
            if not status:
                raise _HangUp
            again = ("Retry-After", str(retry_after_s))
            await client.answer(
                status,
                *[again] if status == 503 else [],
                without_body=request.operation == "size",
            )
            return None
        try:
            reply = await self._forwarded(request)
        except (OSError, h11.ProtocolError) as error:
            self._counts["origin_failed"] += 1
            raise _HangUp from error
        self._counts["forwarded"] += 1
        if request.operation not in READS:
            if chosen.doubled and self._injects("doubled", request):
                await self._again(request)
            if chosen.doubled_late and self._late_fits(request):
                self._start(self._later(request, chosen.late_s))
        return reply

    async def _forwarded(self, request: _Request) -> _Reply:
        """Send a request to the server over a new connection, and return the head of its answer.

        A connection that is kept might be closed by the server just when it is used again. The
        proxy would have to repeat the request, and the plan would not have foreseen that.
        """
        async with asyncio.timeout(ORIGIN_S):
            streams = await asyncio.open_connection(*self._origin, limit=PIECE_BYTES)
        origin = _Peer(h11.CLIENT, streams, ORIGIN_S)
        try:
            head = request.head
            same = h11.Request(
                method=head.method, target=head.target, headers=head.headers.raw_items()
            )
            await origin.send(same, h11.Data(data=request.body), h11.EndOfMessage())
            while isinstance(event := await origin.event(), h11.InformationalResponse):
                pass
        except BaseException:
            origin.close()
            raise
        if not isinstance(event, h11.Response):
            origin.close()
            raise ConnectionResetError("the server closed the connection without an answer")
        return _Reply(event, origin)

    # The second time.

    async def _again(self, request: _Request) -> None:
        try:
            reply = await self._forwarded(request)
        except (OSError, h11.ProtocolError):
            self._counts["second_failed"] += 1
            return
        try:
            with contextlib.suppress(OSError, h11.ProtocolError, _HangUp):
                await reply.origin.skip_body()
        finally:
            reply.origin.close()
        succeeded = reply.head.status_code < 300
        self._counts["second_succeeded" if succeeded else "second_refused"] += 1

    def _late_fits(self, request: _Request) -> bool:
        fits = (
            self._late_tasks < LATE_MAX
            and self._late_bytes + len(request.body) <= LATE_BYTES_MAX
            and self._injects("doubled_late", request)
        )
        if fits:
            self._late_tasks += 1
            self._late_bytes += len(request.body)
        return fits

    async def _later(self, request: _Request, seconds: float) -> None:
        try:
            await _pause(seconds)
            while self._away:
                await self._changed.wait()
            await self._again(request)
        except asyncio.CancelledError:
            self._counts["late_dropped"] += 1
            raise
        finally:
            self._late_tasks -= 1
            self._late_bytes -= len(request.body)

    # After the server has carried out the request.

    async def _answered(
        self, client: _Peer, request: _Request, chosen: Chosen, reply: _Reply
    ) -> None:
        if chosen.delay_after and self._injects("delay_after", request):
            await _pause(chosen.delay_s)
        await self._unless_away()
        fault = chosen.outcome if self._is_possible(chosen.outcome, request, reply) else ""
        if not fault or not self._injects(fault, request):
            await self._passed_on(client, reply, cut=False)
            return
        if fault == "cut_body":
            await self._passed_on(client, reply, cut=True)
            return
        # The request has taken effect when the whole answer has come.
        await reply.origin.skip_body()
        if status := _AFTERWARDS[fault]:
            await client.answer(status, without_body=request.operation == "size")
            return
        if fault == "timed_out_answer":
            async with asyncio.timeout(SILENCE_S):
                while await client.reader.read(PIECE_BYTES):
                    pass
        raise _HangUp

    def _is_possible(self, outcome: str, request: _Request, reply: _Reply) -> bool:
        if outcome in ("conflict_409", "conflict_412"):
            return request.conditional and reply.head.status_code < 300
        if outcome == "cut_body":
            return request.operation != "size" and _length(reply.head.headers) not in (0, 1)
        return outcome in _AFTERWARDS

    async def _passed_on(self, client: _Peer, reply: _Reply, *, cut: bool) -> None:
        """Send the server's answer to the client. Cut it in the middle, or in the middle of its
        first piece if its length is not known.
        """
        head = reply.head
        await client.send(
            h11.Response(
                status_code=head.status_code, headers=head.headers.raw_items(), reason=head.reason
            )
        )
        length = _length(head.headers)
        left = None if not cut or length is None else length // 2
        while piece := await reply.origin.piece():
            if cut and left is None:
                left = len(piece) // 2
            await client.send(h11.Data(data=piece if left is None else piece[:left]))
            if left is not None:
                left -= len(piece)
                if left <= 0:
                    raise _HangUp
        await client.send(h11.EndOfMessage())


class _Reply(NamedTuple):
    """The head of the server's answer, and the connection from which its body comes."""

    head: h11.Response
    origin: _Peer


class _Controls:
    """The methods of both proxies. They may be called from any thread."""

    port: int
    _final: dict[str, Any]
    """The counts and the journal, once the proxy has stopped."""

    def _of_the_end(self, name: str) -> Any:
        if name not in self._final:
            raise ProxyFailed("the proxy has stopped")
        return self._final[name]

    def _command(self, name: str, argument: Any = None) -> Any:
        raise NotImplementedError

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environment(self, of_server: Mapping[str, str]) -> dict[str, str]:
        """Return the environment with which a client finds the server through the proxy."""
        return {**of_server, "AWS_ENDPOINT_URL": self.url}

    def set_faults(self, faults: Faults) -> None:
        """Replace the plan, for the requests that come from now on. The counts go on.

        Requests that are under way keep the faults that were chosen for them.
        """
        self._command("set_faults", asdict(faults))

    def heal(self) -> None:
        """Inject no more faults, and be there again. Late requests still come."""
        self.set_faults(Faults(0))
        self.back()

    def away(self, how: str = REFUSE) -> None:
        """Take the store away until `back`.

        With REFUSE, all connections are cut and new ones are refused. With SILENT, connections are
        accepted and requests are read, but nothing is forwarded or answered. Those connections are
        closed when the store is back. In both cases, a request that the server has already takes
        effect, and its answer is lost.
        """
        self._command("away", how)

    def back(self) -> None:
        """End `away`."""
        self._command("away", "")

    def counts(self) -> dict[str, int]:
        """Return how often each fault was injected, and what else was counted. A name that is
        missing was not counted.

        - The names of FAULTS.
        - `requests`, and `forwarded` for those that got an answer from the server. A second
          request is not among them.
        - `second_succeeded`, `second_refused`, `second_failed`: the second requests of `doubled`
          and `doubled_late`, by the server's answer (2xx, another status, none).
        - `late_pending`: the late requests that are still to come. It is always there.
          `late_dropped`: those that did not come before the proxy stopped.
        - `origin_failed`: the server did not answer. `too_large`: the body was larger than
          BODY_BYTES_MAX. `connections_refused`: there were more than CONNECTIONS_MAX. In a good
          run, these are missing.
        """
        found: dict[str, int] = self._command("counts")
        return found

    def journal(self) -> list[Injection]:
        """Return the last JOURNAL_MAX faults."""
        return [Injection(*row) for row in self._command("journal")]

    def wait_late(self, timeout_s: float) -> None:
        """Wait until no late request is still to come. Raises `ProxyFailed` after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while left := self.counts()["late_pending"]:
            if time.monotonic() > deadline:
                raise ProxyFailed(f"{left} late requests are still to come after {timeout_s} s")
            threading.Event().wait(0.02)


def _address(origin: str) -> tuple[str, int]:
    """Return host and port of a server's URL."""
    url = urlsplit(origin)
    if url.scheme != "http" or not url.hostname or not url.port:
        raise ValueError(f"the server must be http://HOST:PORT, not {origin}")
    return url.hostname, url.port


class FaultProxy(_Controls):
    """The proxy in a thread. `origin` is the URL of the server. It runs inside a `with` block."""

    def __init__(self, origin: str, faults: Faults, port: int = 0) -> None:
        self._origin = _address(origin)
        self._faults = faults
        self._wanted = port
        self._final: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy")
        self._thread.start()
        try:
            self.port = self._run(self._begun())
        except BaseException:
            self._end()
            raise
        return self

    async def _begun(self) -> int:
        self._proxy = _Proxy(self._origin, self._faults)
        return await self._proxy.start(self._wanted)

    def __exit__(self, *_: object) -> None:
        try:
            self._run(self._proxy.stop())
            self._final = {name: self._command(name) for name in ("counts", "journal")}
        finally:
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_S)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(STOP_S)

    def _command(self, name: str, argument: Any = None) -> Any:
        if self._final:
            return self._of_the_end(name)
        return self._run(self._proxy.command(name, argument))


class FaultProxyProcess(_Controls):
    """The proxy in its own process, which ends with the `with` block or with its parent.

    It reads commands from its standard input, as lines of JSON, and ends at the end of the input.
    """

    def __init__(self, origin: str, faults: Faults, port: int = 0) -> None:
        _address(origin)
        self._arguments = [
            sys.executable, str(Path(__file__).resolve()), origin, json.dumps(asdict(faults)), "--port", str(port)
        ]  # fmt: skip
        self._lock = threading.Lock()
        self._final: dict[str, Any] = {}

    def __enter__(self) -> Self:
        # Its own session: a signal to the process group of a broker does not reach it.
        self.process = subprocess.Popen(
            self._arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            self.port = self._reply()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._final = self._command("stop")
        finally:
            self._end()

    def _end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_S)
        self.process.stdout.close()

    def _reply(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise ProxyFailed("the proxy's process has ended")
        found = json.loads(line)
        if "error" in found:
            raise ValueError(found["error"])
        return found["reply"]

    def _command(self, name: str, argument: Any = None) -> Any:
        if self._final:
            return self._of_the_end(name)
        assert self.process.stdin is not None
        with self._lock:
            try:
                print(json.dumps([name, argument]), file=self.process.stdin, flush=True)
            except OSError as error:
                raise ProxyFailed(f"the proxy's process has ended: {error}") from None
            return self._reply()


def _main() -> None:
    """Run the proxy of a `FaultProxyProcess`."""
    parser = argparse.ArgumentParser(description="HTTP proxy that injects faults")
    parser.add_argument("origin", help="URL of the server: http://HOST:PORT")
    parser.add_argument("faults", help="the fields of Faults as JSON")
    parser.add_argument("--port", type=int, default=0, help="port to listen at; 0 chooses one")
    arguments = parser.parse_args()
    plan = json.loads(arguments.faults)
    faults = replace(Faults(**plan), operations=tuple(plan.get("operations", OPERATIONS)))
    proxy = FaultProxy(arguments.origin, faults, arguments.port)
    stopped = False
    with proxy:
        print(json.dumps({"reply": proxy.port}), flush=True)
        for line in sys.stdin:
            name, argument = json.loads(line)
            if name == "stop":
                stopped = True
                break
            try:
                found = {"reply": proxy._command(name, argument)}
            except ValueError as error:
                found = {"error": str(error)}
            print(json.dumps(found), flush=True)
    if stopped:
        final = {"counts": proxy.counts(), "journal": proxy.journal()}
        print(json.dumps({"reply": final}), flush=True)


if __name__ == "__main__":
    _main()
