"""Alarm receivers: a webhook or a command.

Each sends an alarm once, within TRY_S, or raises `NotSent`.

Receivers run in a thread. Their libraries are imported at the first use, because they need 5 MB of
memory, which the other actors should not use.

A `Deadline` shuts the connection down after TRY_S, from another thread. A socket's timeout is not
enough: it begins again with each byte, so a server that sends single bytes would keep the try from
ending.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from typing import Any, Final, Protocol, Self, TypedDict

from ...transport.reports import AlarmEvent
from ...transport.resolver import connect
from ..settings.options import AlarmOptions, shown_url
from .extension import AlarmBroker


class AlarmMessage(TypedDict):
    """The JSON that a receiver gets.

    Chat services show `text`. `missed` is the number of earlier alarms that were given up.
    """

    text: str
    events: list[AlarmEvent]
    missed: int
    broker: AlarmBroker


class Deadline:
    """A context manager that ends a try after `seconds`, by shutting its connections down.

    `over` is True if the time ran out. The error of the try does not show this reason.
    """

    def __init__(self, seconds: float) -> None:
        self.over = False
        self._lock = threading.Lock()
        self._held: list[socket.socket] = []
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            for held in self._held:
                held.close()
            self._held.clear()

    def connect(
        self, place: tuple[str, int], timeout_s: float, source: tuple[str, int] | None = None
    ) -> socket.socket:
        """Connect like `socket.create_connection`, and register the connection."""
        return self.hold(connect(place, timeout_s, source))

    def hold(self, connection: socket.socket) -> socket.socket:
        """Register a connection for the shutdown.

        A copy of the descriptor is kept, because TLS takes over the original.
        """
        with self._lock:
            if self.over:
                connection.close()
                raise TimeoutError("timed out")
            self._held.append(connection.dup())
        return connection

    def _cut(self) -> None:
        with self._lock:
            self.over = True
            for held in self._held:
                with contextlib.suppress(OSError):  # the connection is already closed
                    held.shutdown(socket.SHUT_RDWR)


TRY_S: Final = 30.0  # limit of a whole try, from the start of the connection or the command
TIMEOUT_S: Final = 10.0  # limit of each step of a connection while the server sends nothing
_END_S: Final = 5.0  # how long a killed program may take to end
_TAIL: Final = 200  # the most characters that are kept of a receiver's error text


class NotSent(Exception):
    """A try failed. The text says why, without secrets."""


class Receiver(Protocol):
    name: str  # shown to people; it contains no secret

    def tell(self, message: AlarmMessage) -> None: ...

    def end(self) -> None:
        """Give up the current try, because the process ends."""
        return


class Webhook(Receiver):
    """A POST request with JSON. Any 2xx answer means success.

    Redirects are not followed, because a redirect would turn the POST into a GET.
    """

    def __init__(self, url: str, token: str) -> None:
        self.name = f"webhook {shown_url(url)}"
        self._url = url
        self._token = token

    def tell(self, message: AlarmMessage) -> None:
        import http.client
        import urllib.error
        import urllib.request

        headers = {"Content-Type": "application/json", "User-Agent": "zsq"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(
            self._url, json.dumps(message).encode(), headers, method="POST"
        )
        with Deadline(TRY_S) as deadline:
            try:
                with _opener(deadline).open(request, timeout=TIMEOUT_S) as answer:
                    # If the connection ends early, http.client treats that as the end of the
                    # headers.
                    if deadline.over:
                        raise TimeoutError
                    if not 200 <= answer.status < 300:
                        raise NotSent(f"it answered {answer.status}")
            except urllib.error.HTTPError as error:
                error.close()
                raise NotSent(f"it answered {error.code} {str(error.reason)[:_TAIL]}") from None
            except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
                reason = getattr(error, "reason", None) or error
                raise NotSent(
                    _late(deadline) or f"not reached: {str(reason)[:_TAIL] or type(error).__name__}"
                ) from None


def _opener(deadline: Deadline) -> Any:
    """Return urllib's opener without redirects. Its connections are registered at the deadline."""
    import http.client
    import ssl
    import urllib.request

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(
            self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any
        ) -> None:
            return None

    def held(kind: Any) -> Any:
        def make(*arguments: Any, **more: Any) -> Any:
            connection = kind(*arguments, **more)
            connection._create_connection = deadline.connect
            return connection

        return make

    class Http(urllib.request.HTTPHandler):
        def http_open(self, req: Any) -> Any:
            return self.do_open(held(http.client.HTTPConnection), req)

    class Https(urllib.request.HTTPSHandler):
        def https_open(self, req: Any) -> Any:
            return self.do_open(
                held(http.client.HTTPSConnection), req, context=ssl.create_default_context()
            )

    return urllib.request.build_opener(Stay, Http, Https)


class Command(Receiver):
    """A program with JSON on stdin, in a new process group and without a shell.

    It succeeds with exit code 0.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self.name = f"command {argv[0]}"
        self._argv = list(argv)
        self._running: subprocess.Popen[bytes] | None = None

    def tell(self, message: AlarmMessage) -> None:
        # These are files and not pipes, because a process that the program leaves running may hold
        # a pipe open.
        with tempfile.TemporaryFile() as stdin_file, tempfile.TemporaryFile() as errors:
            stdin_file.write(json.dumps(message).encode() + b"\n")
            stdin_file.seek(0)
            try:
                self._running = subprocess.Popen(
                    self._argv,
                    stdin=stdin_file,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    start_new_session=True,
                    cwd="/",
                )
            except OSError as error:
                raise NotSent(f"cannot be started: {error.strerror or error}") from None
            try:
                code = self._running.wait(TRY_S)
            except subprocess.TimeoutExpired:
                self.end()
                raise NotSent(f"did not end within {TRY_S:g} s and was killed") from None
            if code:
                errors.seek(max(0, errors.seek(0, os.SEEK_END) - _TAIL))
                words = " ".join(errors.read().decode(errors="replace").split())
                raise NotSent(f"ended with exit code {code}" + (f": {words}" if words else ""))

    def end(self) -> None:
        """Kill the program and the other processes of its process group, if the program still
        runs.
        """
        if self._running is not None and self._running.poll() is None:
            # A program that runs as another user cannot be killed.
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                os.killpg(self._running.pid, signal.SIGKILL)
                self._running.wait(_END_S)


def _late(deadline: Deadline) -> str:
    return f"took longer than {TRY_S:g} s: the connection was closed" if deadline.over else ""


def receivers(alarm_options: AlarmOptions) -> list[Receiver]:
    webhooks: list[Receiver] = [
        Webhook(url, alarm_options.webhook_token) for url in alarm_options.webhooks
    ]
    return [*webhooks, *(Command(argv) for argv in alarm_options.commands)]
