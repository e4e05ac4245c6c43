"""Receivers of alarms on this machine: a webhook that records its requests and can fail, and a
server that answers one byte at a time.
"""

from __future__ import annotations

import http.server
import json
import queue
import socket
import threading
from types import TracebackType
from typing import Any, Self


class Hook:
    """A webhook. `got` records the POSTs: (headers, JSON). The first `failures` POSTs are answered
    with `status`. If `hangs` is set, nothing is ever answered.
    """

    def __init__(
        self, *, failures: int = 0, status: int = 500, hangs: bool = False, location: str = ""
    ) -> None:
        self.got: queue.Queue[tuple[dict[str, str], Any]] = queue.Queue()
        self.tries = 0
        released = self._released = threading.Event()
        hook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.tries += 1
                if hangs:
                    released.wait(60)
                    return
                if hook.tries <= failures:
                    self.send_response(status)
                    if location:
                        self.send_header("Location", location)
                    self.end_headers()
                    return
                hook.got.put((dict(self.headers), json.loads(body)))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Write nothing to stderr."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/secret-path"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


class Trickler:
    """Accepts connections, sends `first` on each, and then one byte every 20 ms for ever. So no
    time-out of a single read ends the answer.
    """

    def __init__(self, first: bytes, byte: bytes) -> None:
        self._first, self._byte = first, byte
        self._ended = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)

    def _serve(self) -> None:
        while not self._ended.is_set():
            try:
                client, _ = self._socket.accept()
                with client:
                    client.sendall(self._first)
                    while not self._ended.wait(0.02):
                        client.sendall(self._byte)
            except OSError:
                continue
