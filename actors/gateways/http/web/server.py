"""HTTP/1.1 server: uvicorn's protocol with additional limits on connections and time.

Each connection costs memory and a descriptor, so their number is limited. A client that sends its
head too slowly or does not read its answer loses its connection. While there are connections, one
timer checks all of them each second.

`uvicorn.Server` is not used, because it takes over the process's signals, which belong to the
actor, and wakes ten times a second. Its tasks (a protocol for each connection, the Date header, an
orderly end) are done here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import ssl
import time
from email.utils import formatdate
from typing import Final

import h11
from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from .limits import HttpLimits
from .responses import JSON
from .tls_door import TlsListener

SWEEP_S: Final = 1.0
# A body may have this many chunks, and one more for each CHUNK_BYTES_MIN bytes of it.
CHUNKS_MAX: Final = 1_024
CHUNK_BYTES_MIN: Final = 128
CHUNK_HEAD_BYTES: Final = 32  # the size of a chunk, and the ends of its two lines
_END: Final = b"\r\n\r\n"  # the end of a chunked body
LAST_WORDS_S: Final = 0.5  # at shutdown, the time that clients have to read their last answers
BACKLOG: Final = 512
_INVALID: Final = b'{"message":"INVALID_REQUEST"}'


def with_path(request: h11.Request) -> h11.Request:
    """Return a request whose target is a path. If it was a URL, Host is that of the URL.

    Raises `h11.RemoteProtocolError` if the URL names no host.
    """
    scheme, slashes, rest = request.target.partition(b"://")
    if not slashes or scheme.lower() not in (b"http", b"https"):
        return request
    host = re.split(rb"[/?]", rest, maxsplit=1)[0]
    path = rest[len(host) :]
    if not host:
        raise h11.RemoteProtocolError("the target of the request names no host")
    headers = [(name, value) for name, value in request.headers if name != b"host"]
    return h11.Request(
        method=request.method,
        target=path if path.startswith(b"/") else b"/" + path,
        headers=[(b"host", host), *headers],
        http_version=request.http_version,
    )


class StrictConnection(h11.Connection):
    """h11's parser, which also refuses some requests that h11 accepts, and accepts two more.

    *Absolute targets* (`GET http://host/path`), which proxies and some clients send. Host is then
    that of the target, as RFC 9112 (3.2.2) says.

    *Keep-alive in HTTP/1.0*, which `ab -k` and old clients ask for. The connection stays open if
    the answer has a length.

    *Transfer-Encoding with Content-Length.* h11 then ignores Content-Length, as RFC 9112 allows. A
    proxy that uses the length instead takes the rest of the body for the next request. In this way
    a client could smuggle a request past the proxy. RFC 9112 (6.1) lets a server refuse such a
    request and calls Transfer-Encoding in HTTP/1.0 faulty.

    *Lines that end in LF without CR, and obsolete line folding.* RFC 9112 (2.2, 5.2) allows a
    server to accept both. A proxy that does not would divide the request differently.

    *Heads over the limit that arrive in one read.* h11 applies its limit only to incomplete ones.

    *Bodies of very small chunks.* Each chunk costs about 20 microseconds, and all chunks of one
    read are parsed without a break.

    *Trailers, and long chunk extensions.* h11 reads both without a limit, and nothing uses them.
    """

    def __init__(self, head_bytes_max: int) -> None:
        super().__init__(h11.SERVER, head_bytes_max)
        self._head_bytes_max = head_bytes_max
        self._chunks = 0
        self._body_bytes = 0
        self._is_chunked = False
        self._stays = False  # True for a request of HTTP/1.0 whose connection is to stay open
        # What arrived and is not parsed, with the last bytes before it during a body.
        self._raw = bytearray()
        self._received = 0  # the bytes since the last head or body ended

    def receive_data(self, data: bytes) -> None:
        super().receive_data(data)
        self._raw += data
        self._received += len(data)

    def next_event(self) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
        event = super().next_event()
        if event is h11.NEED_DATA:
            if self.their_state is h11.SEND_BODY:
                self._check_framing(self._received)
                del self._raw[: -len(_END)]
        elif isinstance(event, h11.Data):
            self._chunks += event.chunk_start
            self._body_bytes += len(event.data)
            if self._chunks > CHUNKS_MAX + self._body_bytes // CHUNK_BYTES_MIN:
                raise h11.RemoteProtocolError("the chunks of the body are too small")
        elif isinstance(event, h11.EndOfMessage):
            raw, size = self._parsed()
            self._check_framing(size)
            if event.headers or (self._is_chunked and not raw.endswith(_END)):
                raise h11.RemoteProtocolError("a body must end without trailers")
        elif isinstance(event, h11.Request):
            raw, size = self._parsed()
            if size > self._head_bytes_max:
                raise h11.RemoteProtocolError("the head is too large")
            if raw.count(b"\n") != raw.count(b"\r\n"):
                raise h11.RemoteProtocolError("a line must end in CR LF")
            if b"\n " in raw or b"\n\t" in raw:
                raise h11.RemoteProtocolError("a header must be one line")
            self._chunks = self._body_bytes = 0
            # The parser has already made the names lower case.
            event = with_path(event)
            names = {bytes(name) for name, _ in event.headers}
            self._stays = event.http_version == b"1.0" and any(
                name == b"connection" and value.lower() == b"keep-alive"
                for name, value in event.headers
            )
            # h11 closes after each request of HTTP/1.0, and has no public way to change that.
            self._cstate.keep_alive |= self._stays
            self._is_chunked = b"transfer-encoding" in names
            if self._is_chunked and (b"content-length" in names or event.http_version < b"1.1"):
                raise h11.RemoteProtocolError(
                    "Transfer-Encoding is not allowed together with Content-Length, or in HTTP/1.0"
                )
        return event

    def send_with_data_passthrough(self, event: h11.Event) -> list[bytes] | None:
        if (
            self._stays
            and isinstance(event, h11.Response)
            and all(name != b"connection" for name, _ in event.headers)
        ):
            headers = [*event.headers, (b"connection", b"keep-alive")]
            event = h11.Response(
                status_code=event.status_code, headers=headers, reason=event.reason
            )
        return super().send_with_data_passthrough(event)

    def _parsed(self) -> tuple[bytearray, int]:
        """Return the bytes that were parsed last, and how many bytes the head or the body had."""
        left = len(self.trailing_data[0])
        end = len(self._raw) - left
        raw, size = self._raw[:end], self._received - left
        del self._raw[:end]
        self._received = left
        return raw, size

    def _check_framing(self, size: int) -> None:
        """Check how many bytes of a body are no data: the heads of its chunks."""
        if size - self._body_bytes > self._head_bytes_max + self._chunks * CHUNK_HEAD_BYTES:
            raise h11.RemoteProtocolError("the extensions of the chunks are too long")


def is_receive(path: str) -> bool:
    """Return True for the path of a receive, which waits for messages."""
    return path.startswith("/api/v1/") and path.endswith("/receive")


def notice_loss(sock: socket.socket | None, limit_s: float) -> None:
    """Let the system end this connection if its peer has acknowledged nothing for so long.

    A peer whose machine or network vanished closes nothing. What a stream sends it fits into the
    system's buffers for a long time, so the stream would keep its place. The system asks a peer
    that gets nothing.
    """
    if sock is None or not hasattr(socket, "TCP_USER_TIMEOUT"):
        return
    with contextlib.suppress(OSError):  # it has ended already
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(limit_s / 2)))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, int(limit_s / 6)))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(limit_s * 1_000))


class BoundedProtocol(H11Protocol):
    """A connection with time limits."""

    def __init__(self, server: HttpServer) -> None:
        super().__init__(config=server.config, server_state=server.state, app_state={})
        self.conn = StrictConnection(server.limits.head_bytes_max)
        self._server = server
        self._head_since_s: float | None = None  # when waiting for a complete head began
        # This is a time of time.monotonic. uvloop's clock counts only milliseconds, and two clients
        # can connect within one millisecond.
        self._idle_since_s = 0.0
        self._eof_since_s = 0.0  # when the client said that it sends no more
        self._served = False  # the client has received an answer
        self._unsent = 0
        self._unsent_since_s = 0.0
        self._stalled_since_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        notice_loss(transport.get_extra_info("socket"), self._server.limits.vanished_s)
        self._head_since_s = self.loop.time()
        self._idle_since_s = time.monotonic()
        if len(self.connections) > self._server.limits.connections_max:
            self._server.make_room(self)
        self._server.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._server.left()

    def data_received(self, data: bytes) -> None:
        if self._head_since_s is None and not self.at_work:
            self._head_since_s = self.loop.time()
        super().data_received(data)
        if self.at_work:
            self._head_since_s = None

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer a complete request before the connection ends.

        The client sends no more, but may read on. If it got no answer, it would repeat a publish
        that is stored. An answer that has begun is a stream, whose client is gone. So is that of a
        receive: messages that are taken for it would wait until their leases end.
        """
        self._eof_since_s = self.loop.time()
        return (
            self.has_request
            and self.cycle is not None
            and not self.cycle.response_started
            and not is_receive(self.cycle.scope["path"])
        )

    @property
    def dispensable(self) -> tuple[bool, bool, float]:
        """The sort key by which connections are closed to make room, the smallest key first.

        Connections without any request come first, then those that have been idle for longest, and
        at last those whose client sends its body for longest.
        """
        return self.at_work, self._served, self._idle_since_s

    @property
    def has_request(self) -> bool:
        """True while a request that arrived completely is not answered."""
        return self.cycle is not None and self.at_work and not self.cycle.more_body

    @property
    def at_work(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def on_response_complete(self) -> None:
        self._served = True
        self._idle_since_s = time.monotonic()
        super().on_response_complete()  # this may start a request whose bytes arrived before
        if self._eof_since_s and not self.at_work:
            self.transport.close()
            return
        if not self.at_work:
            self._head_since_s = self.loop.time() if self.conn.trailing_data[0] else None

    def send_400_response(self, msg: str) -> None:
        """Answer invalid HTTP in NSQ's form, and tell the request's handler that no more data
        comes.
        """
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        headers = [
            ("content-type", JSON),
            ("content-length", str(len(_INVALID))),
            ("connection", "close"),
        ]
        try:
            for event in (
                h11.Response(status_code=400, headers=headers),
                h11.Data(data=_INVALID),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # an answer is already partly sent
            self.transport.abort()
        else:
            self.transport.close()

    def sweep(self, now_s: float) -> None:
        limits = self._server.limits
        if self._head_since_s is not None and now_s - self._head_since_s > limits.head_s:
            self.transport.abort()
            return
        if self._eof_since_s and now_s - self._eof_since_s > limits.request_s:
            self.transport.abort()
            return
        unsent = self.transport.get_write_buffer_size()
        if not self._unsent:
            self._unsent_since_s = now_s
        if unsent != self._unsent:
            self._stalled_since_s = now_s
        self._unsent = unsent
        if unsent and (
            now_s - self._stalled_since_s > limits.stalled_s
            or now_s - self._unsent_since_s > limits.request_s
        ):
            self.transport.abort()


class HttpServer:
    """The server, in the running event loop, on a socket that is already listening."""

    def __init__(self, app: ASGIApp, limits: HttpLimits) -> None:
        # Clients get their errors as answers, not in the log.
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        self.limits = limits
        self.state = ServerState()
        self.config = Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=int(limits.keep_alive_s),
            h11_max_incomplete_event_size=limits.head_bytes_max,
        )
        self.config.load()
        self._loop = asyncio.get_running_loop()
        self._listeners: list[asyncio.Server | TlsListener] = []
        self._timer: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()

    async def listen(self, sock: socket.socket, context: ssl.SSLContext | None = None) -> None:
        """Accept connections, also on this socket. With a `context`, only TLS is accepted."""
        self._listeners.append(
            await self._loop.create_server(
                lambda: BoundedProtocol(self), sock=sock, backlog=BACKLOG
            )
            if context is None
            else TlsListener(
                sock,
                context,
                lambda: BoundedProtocol(self),
                lambda: self.full and not self.make_room(),
                self.limits.head_s,
            )
        )

    @property
    def full(self) -> bool:
        waiting = sum(listener.waiting for listener in self._tls_listeners)
        return len(self.state.connections) + waiting >= self.limits.connections_max

    @property
    def _tls_listeners(self) -> list[TlsListener]:
        return [listener for listener in self._listeners if isinstance(listener, TlsListener)]

    @property
    def connections(self) -> list[BoundedProtocol]:
        # `tuple` copies the set, because /metrics counts the connections in another thread.
        return [
            connection
            for connection in tuple(self.state.connections)
            if isinstance(connection, BoundedProtocol)
        ]

    def make_room(self, new: BoundedProtocol | None = None) -> bool:
        """Close the most dispensable connection, so that silent clients cannot block others.

        `new` is the connection that needs room. It is closed only if all others have a request that
        arrived completely.

        Return False if there is none to close. HTTP lets a server close an idle connection at any
        time, and the client then repeats its request on a new one. A request whose body has not
        arrived has had no effect.
        """
        idle = min(
            (
                connection
                for connection in self.connections
                if not connection.has_request and connection is not new
            ),
            key=lambda connection: connection.dispensable,
            default=new,
        )
        if (idle is None or any(idle.dispensable[:2])) and any(
            listener.drop_oldest() for listener in self._tls_listeners
        ):
            return True
        if idle is not None:
            # Removed here, because connection_lost is called only later.
            self.state.connections.discard(idle)
            idle.transport.abort()
        return idle is not None

    def wake(self) -> None:
        """Start the timer for the first connection."""
        if self._timer is None:
            self._sweep()

    def left(self) -> None:
        if not self.state.connections:
            self._empty.set()

    def _sweep(self) -> None:
        now_s = self._loop.time()
        self.state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        for connection in self.connections:
            connection.sweep(now_s)
        self._timer = (
            self._loop.call_later(SWEEP_S, self._sweep) if self.state.connections else None
        )

    async def close(self, timeout_s: float) -> None:
        """Stop accepting connections. Running requests have `timeout_s` to finish."""
        for listener in self._listeners:
            listener.close()
        for connection in self.connections:
            connection.shutdown()
        if tasks := set(self.state.tasks):
            await asyncio.wait(tasks, timeout=timeout_s)
        for task in self.state.tasks:
            task.cancel()
        for connection in self.connections:
            connection.transport.close()  # closes after all output is sent
        await self._all_gone(LAST_WORDS_S)
        for connection in self.connections:
            connection.transport.abort()  # closes at once, even if output is left
        await self._all_gone(LAST_WORDS_S)
        if self._timer is not None:
            self._timer.cancel()

    async def _all_gone(self, timeout_s: float) -> None:
        self._empty.clear()
        if self.state.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), timeout_s)
