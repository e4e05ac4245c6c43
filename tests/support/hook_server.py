"""An HTTP server for tests, which records requests and answers as the test says."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Hook(NamedTuple):
    """One request: its path, headers and body."""

    path: str
    headers: dict[str, str]
    body: bytes


Answer = int | tuple[int, dict[str, str]] | Iterator[bytes]


class HookServer:
    """`answer` returns the status of the answer to a request, the status and headers, or the
    pieces of an answer, which are sent as they are.
    """

    def __init__(self) -> None:
        self.hooks: list[Hook] = []
        self.answer: Callable[[Hook], Answer] = lambda hook: 200
        self.port = 0
        self.lock = threading.Lock()

    def url(self, path: str = "/hook") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    @property
    def taken(self) -> list[bytes]:
        return [hook.body for hook in self.hooks]


@contextmanager
def serving(context: ssl.SSLContext | None = None, port: int = 0) -> Iterator[HookServer]:
    made = HookServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            hook = Hook(self.path, dict(self.headers.items()), body)
            with made.lock:
                made.hooks.append(hook)
            answer = made.answer(hook)
            if isinstance(answer, Iterator):
                with contextlib.suppress(ConnectionError):  # the client has not waited
                    for piece in answer:
                        self.wfile.write(piece)
                return
            status, headers = (answer, {}) if isinstance(answer, int) else answer
            if status == 0:  # the connection ends without an answer
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            body = b"" if status == 204 else b"ok"
            if body:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *values: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    made.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
