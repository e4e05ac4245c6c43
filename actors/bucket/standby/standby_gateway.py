"""Standby gateway: tells clients that this broker is a standby, and who is the primary.

It listens at the addresses at which the broker will listen when it is primary. A ZeroMQ client gets
E_STANDBY as the reply to each request. It then tries its other addresses.

Over HTTP, for people, load balancers and monitoring:

| path | reply |
|---|---|
| /ping | 200: the process lives |
| /ready | 503: send nothing here |
| /health | 200: the process lives, and what it does, as JSON |
| /stats, /stats?format=json | the same |
| /metrics | the same, for Prometheus |

A standby checks no tokens. So with an access file, /health shows only the role and the state, and
nobody may use the last two.
"""

from __future__ import annotations

import json
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import zmq

from ....transport.errors import E_HELLO, E_STANDBY, UsageError, ZsqError
from ....transport.wire import protocol as p
from ....transport.wire.codec import decode, encode, request_of
from ....transport.wire.sockets import make_context
from ...runtime.actor import StartFailed
from ...runtime.listening import bind, join_place, open_sockets, reason_of
from ...runtime.port import Port
from ...security.access import AccessError
from ...security.curve import ZAP_ENDPOINT, CurveAuthentication
from ...settings import options
from ...settings.options import HttpOptions, ServeOptions

log = logging.getLogger("zsq")

POLL_MS: Final = 200
REQUEST_S: Final = 10.0  # a client that is silent for so long is disconnected
CONNECTIONS_MAX: Final = 64  # over HTTP; more are closed at once
SERVER: Final = "zsq"
BACKLOG: Final = 128


@dataclass(frozen=True, slots=True)
class StandbyStatus:
    """The report of a standby about itself. Times are in seconds.

    `state` is "starting", "following", "away" (the bucket does not answer), or "taking over".
    `number` is the last tick that was applied, -1 for none, and `quiet_s` the time since it was
    seen. `takes_over_in_s` is when the standby takes over if nothing happens, -1 while it cannot,
    because it has no log with a registry.
    """

    state: str
    bucket: str
    number: int = -1
    epoch: int = 0
    quiet_s: float = 0.0
    takes_over_in_s: float = 0.0
    patience_s: float = 0.0
    topics: int = 0
    applied_bytes: int = 0
    primary: tuple[str, ...] = ()
    primary_host: str = ""
    trouble: str = ""
    role: str = "standby"

    def sentence(self) -> str:
        """Return the text of E_STANDBY."""
        where = " or ".join(self.primary) or self.primary_host
        hint = f"the primary is {where}" if where else "the primary is not known yet"
        return f"this broker is a standby of {self.bucket}, and {hint}"


class _HttpServer(ThreadingHTTPServer):
    """A server with a thread for each connection, and a limit of connections."""

    daemon_threads = True

    def __init__(self, sock: socket.socket, handler: type[BaseHTTPRequestHandler]) -> None:
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)
        host, port = sock.getsockname()[:2]
        super().__init__((host, port), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = sock

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: a client that goes away, or speaks another protocol, is no news."""


class StandbyGateway:
    """The sockets of a standby, in two threads. `status` is called in them."""

    def __init__(self, serve_options: ServeOptions, status: Callable[[], StandbyStatus]) -> None:
        self._status = status
        self._given = serve_options
        self._ends = threading.Event()
        self._threads: list[threading.Thread] = []
        self._http: list[_HttpServer] = []
        self.endpoint = ""
        self.places: list[str] = []

    def open(self) -> None:
        """Listen. Raises `StartFailed` if an address is not free, or a key is wrong."""
        if self._given.gateway:
            self._open_zeromq()
        http = self._given.of(HttpOptions)
        if http is not None:
            try:
                self._open_http(http)
            except StartFailed as error:
                if http.given:
                    self.close()
                    raise
                log.warning("%s", error)  # the broker too goes on without an optional gateway

    def close(self) -> None:
        """Free the addresses."""
        self._ends.set()
        for server in self._http:
            server.shutdown()
            server.server_close()
        for thread in self._threads:
            thread.join()

    def _run(self, name: str, function: Callable[[], object]) -> None:
        thread = threading.Thread(target=function, name=f"zsq-standby-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    # ZeroMQ

    def _open_zeromq(self) -> None:
        try:
            doors = CurveAuthentication(self._given.security)
        except (AccessError, UsageError) as error:
            raise StartFailed(str(error)) from None
        context = make_context(options.SOCKETS_MAX)
        zap: Port | None = None
        if doors.encrypts:
            zap = Port(context, zmq.ROUTER)
            zap.socket.bind(ZAP_ENDPOINT)
        front = Port(context, zmq.ROUTER)
        front.socket.setsockopt(zmq.LINGER, 0)
        doors.guard(front)
        try:
            bind(front.socket, self._given.gateway)
        except (OSError, zmq.ZMQError) as error:
            front.close()
            if zap is not None:
                zap.close()
            context.term()
            raise StartFailed(
                f"cannot listen on tcp://{self._given.gateway}: {reason_of(error)}; "
                "choose another --listen, or stop the process that uses it"
            ) from None
        self.endpoint = front.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.places.append(self.endpoint)
        self._run("zeromq", lambda: self._serve_zeromq(context, front, zap, doors))

    def _serve_zeromq(
        self, context: zmq.Context[Any], front: Port, zap: Port | None, doors: CurveAuthentication
    ) -> None:
        poller = zmq.Poller()
        for port in filter(None, (front, zap)):
            poller.register(port.socket, zmq.POLLIN)
        try:
            while not self._ends.is_set():
                ready = dict(poller.poll(POLL_MS))
                if zap is not None and zap.socket in ready:
                    doors.answer(zap)
                if front.socket in ready:
                    self._answer_all(front)
        finally:
            for port in filter(None, (front, zap)):
                port.close()
            context.term()

    def _answer_all(self, front: Port) -> None:
        for _ in range(options.DRAIN_MAX):
            try:
                frames = front.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) >= 3 and len(frames) <= p.FRAMES_MAX and not frames[1]:
                reply = self._reply(frames[2])
                front.send_frames([frames[0], b"", encode(reply)])

    def _reply(self, control: bytes) -> p.Failed:
        try:
            message = decode(control)
        except ZsqError as error:
            return p.Failed(request_of(control), error.code, error.text)
        if isinstance(message, p.Open):
            return p.Failed(message.request, E_STANDBY, self._status().sentence())
        return p.Failed(0, E_HELLO, "this connection has no open link: send Open first")

    # HTTP

    def _open_http(self, http: HttpOptions) -> None:
        status = self._status
        is_open = not self._given.security.access_file

        class Handler(BaseHTTPRequestHandler):
            """One request."""

            timeout = REQUEST_S
            server_version = SERVER
            sys_version = ""

            def do_GET(self) -> None:
                code, kind, body = reply_to(self.path, status(), is_open=is_open)
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_HEAD = do_GET

            def do_POST(self) -> None:
                self.close_connection = True
                self.send_error(503, explain=status().sentence())

            def log_message(self, format: str, *args: Any) -> None:
                """Log nothing, as the broker does."""

        try:
            tls: ssl.SSLContext | None = None
            if http.tls_cert:
                tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                tls.load_cert_chain(http.tls_cert, http.tls_key)
            self._http = [_HttpServer(sock, Handler) for sock in open_sockets(http.listen, BACKLOG)]
        except OSError as error:
            raise StartFailed(
                f"cannot listen on http://{http.listen}: {reason_of(error)}; choose another "
                "--http-listen"
            ) from None
        scheme = "http" if tls is None else "https"
        for server in self._http:
            if tls is not None:
                server.socket = tls.wrap_socket(
                    server.socket, server_side=True, do_handshake_on_connect=False
                )
            host, port = server.server_address[:2]
            self.places.append(f"{scheme}://{join_place(str(host), port)}")
            self._run("http", server.serve_forever)


def reply_to(path: str, status: StandbyStatus, *, is_open: bool) -> tuple[int, str, bytes]:
    """Return code, content type and body of the reply to a GET."""
    where = path.partition("?")[0].rstrip("/") or "/"
    if where == "/ping":
        return 200, "text/plain; charset=utf-8", b"OK"
    if where == "/ready":
        return 503, "text/plain; charset=utf-8", f"{status.sentence()}\n".encode()
    if where == "/health" and not is_open:
        return _json({"role": status.role, "state": status.state})
    if not is_open:
        refusal = "a standby with an access file shows only /ping, /ready and /health\n"
        return 403, "text/plain; charset=utf-8", refusal.encode()
    if where in ("/health", "/stats", "/"):
        return _json(asdict(status))
    if where == "/metrics":
        return 200, "text/plain; version=0.0.4; charset=utf-8", metrics(status).encode()
    return 503, "text/plain; charset=utf-8", f"{status.sentence()}\n".encode()


def _json(data: dict[str, Any]) -> tuple[int, str, bytes]:
    return 200, "application/json", f"{json.dumps(data, indent=2)}\n".encode()


def metrics(status: StandbyStatus) -> str:
    """Return the metrics of a standby, for Prometheus."""
    rows = (
        ("zsq_standby", "1 while this process is a standby.", 1),
        ("zsq_standby_following", "1 while the bucket answers.", int(status.state == "following")),
        ("zsq_standby_tick", "The number of the last tick that was applied.", status.number),
        ("zsq_standby_quiet_seconds", "The time since the last new tick.", status.quiet_s),
        ("zsq_standby_patience_seconds", "Its --patience.", status.patience_s),
        ("zsq_standby_applied_bytes", "Bytes that were applied.", status.applied_bytes),
    )
    return "".join(
        f"# HELP {name} {text}\n# TYPE {name} gauge\n{name} {value}\n" for name, text, value in rows
    )
