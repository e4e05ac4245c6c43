"""Web: send what a channel gets to an HTTP server, one POST for each message or batch.

The server gets each message at least once. A message is finished when the server has answered 2xx.
What the server refuses for good (other 4xx, and redirects) uses an attempt of the message at once.
What may pass (no connection, time-outs, 408, 425, 429 and 5xx) is tried again for some time before
it does, so that a server that is away for a minute makes no dead letters.

Redirects are not followed: the signature and the headers would go to another server.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import io
import json
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Final, cast
from urllib.parse import SplitResult, urlsplit

from ...transport.client.blocking.client import Consumer, Message
from ...transport.client.core.message import StoredMessage
from ...transport.client.core.message_batch import MessageBatch
from ...transport.errors import E_BAD_ARGUMENT, UsageError, ZsqError
from ...transport.message_object import as_object
from .mirror import Say, Stop

RETRY_S: Final = 60.0
ANSWER_S: Final = 30.0
RETRY_FIRST_S: Final = 0.5  # the first wait; each further one is twice as long, with jitter
RETRY_MAX_S: Final = 30.0
DEFER_MAX_S: Final = 86_400.0  # a server may ask for more by mistake
BATCH_WAIT_S: Final = 0.5
FAILURES_MAX: Final = 16  # single messages of a refused batch that may fail in a row
POLL_S: Final = 0.2
ANSWER_BYTES_MAX: Final = 64 * 1024  # of an answer's body; a longer one ends the connection
TEXT_MAX: Final = 200
PASSING: Final = frozenset({408, 425, 429})
SIGNATURE: Final = "X-ZSQ-Signature"
TYPES: Final = {
    "body": "application/octet-stream",
    "json": "application/json",
    "array": "application/json",
    "lines": "application/x-ndjson",
}


@dataclass(frozen=True)
class WebPlan:
    """The requests to send, and their source.

    `lines`: "body", "json" (one object), "lines" or "array" (objects of a batch). `retry_s`: how
    long one delivery tries again. `secret`: the key of the signature, or b"" for none.
    """

    url: str
    topic: str
    channel: str
    to: str
    lines: str = "body"
    batch: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    secret: bytes = b""
    concurrency: int = 1
    answer_s: float = ANSWER_S
    retry_s: float = RETRY_S
    sample: int = 0
    timeout: float = 30.0
    followed_s: float | None = None
    idle_s: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass
class WebReport:
    """The result of a run. `failed`: the deliveries that failed. These messages come again."""

    messages: int = 0
    failed: int = 0


class ServerRefused(Exception):
    """The server refused a request, or did not answer. The message comes again later."""

    def __init__(self, text: str, *, is_final: bool = False, delay_s: float = 0.0) -> None:
        super().__init__(text)
        self.is_final = is_final  # the same request would be refused again
        self.delay_s = delay_s  # what the server asked for

    def __repr__(self) -> str:
        return str(self)


class _Stopped(Exception):
    """The command was stopped while it waited to try again."""


def check_url(to: str) -> SplitResult:
    """Return the parts of the address. Raises `UsageError`."""
    try:
        parts = urlsplit(to)
        port = parts.port
    except ValueError as error:
        raise UsageError(E_BAD_ARGUMENT, f"--to {to!r:.100}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise UsageError(E_BAD_ARGUMENT, f"--to {to!r:.100} is no http:// or https:// address")
    if parts.username is not None:
        text = "--to must have no password, which all users of this machine could read"
        raise UsageError(E_BAD_ARGUMENT, f"{text}; give it with --header-file")
    if any(ord(char) <= 0x20 or ord(char) >= 0x7F for char in to):
        raise UsageError(E_BAD_ARGUMENT, "--to must be ASCII without spaces: use %-escapes")
    return parts


def sign(secret: bytes, body: bytes, now_s: int) -> str:
    """Return the value of the signature's header: HMAC-SHA256 of the time, a dot, and the body."""
    digest = hmac.new(secret, b"%d." % now_s + body, hashlib.sha256).hexdigest()
    return f"t={now_s},v1={digest}"


def forward_to_web(
    plan: WebPlan, stopping: Stop, say: Say, advance: Callable[[int], None] = lambda done: None
) -> WebReport:
    """Send until the flag is set, or until no message came for `idle_s`."""
    report = WebReport()
    sender = _Sender(plan, check_url(plan.to), stopping, report, say, advance)
    consumer = Consumer(
        plan.topic,
        plan.channel,
        url=plan.url,
        sample_rate=plan.sample,
        timeout=plan.followed_s,
        **plan.settings,
    )
    ended = threading.Event()

    def watch() -> None:
        while not (ended.is_set() or stopping.wait(POLL_S) or sender.is_idle()):
            pass
        consumer.close(plan.answer_s + plan.timeout)

    watcher = threading.Thread(target=watch, name="zsq forward", daemon=True)
    try:
        with stopping.interruptible():
            consumer.subscribe(plan.timeout)
        watcher.start()
        consumer.run(
            sender.handle_batch if plan.batch else sender.handle,
            concurrency=plan.concurrency,
            on_error=sender.note_error,
            signals=False,
            batch=plan.batch or None,
            batch_wait=BATCH_WAIT_S,
        )
    except KeyboardInterrupt:
        if watcher.ident is not None:
            raise  # a second signal
    finally:
        ended.set()
        consumer.close(plan.timeout)
        if watcher.ident is not None:
            watcher.join()
    return report


class _Sender:
    """The handler: it sends messages, each thread over a connection of its own."""

    def __init__(
        self,
        plan: WebPlan,
        parts: SplitResult,
        stopping: Stop,
        report: WebReport,
        say: Say,
        advance: Callable[[int], None],
    ) -> None:
        self._plan = plan
        self._parts = parts
        # A query may hold a token. So it is not in messages, which end up in logs and dead letters.
        self._shown = f"{parts.scheme}://{parts.netloc}{parts.path}"
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._stopping = stopping
        self._report = report
        self._say = say
        self._advance = advance
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._connections = threading.local()
        self._lock = threading.Lock()
        self._working = 0
        self._busy_s = time.monotonic()
        self._not_before_s = 0.0  # the server asked all requests to wait until then
        self._trouble = ""

    def is_idle(self) -> bool:
        idle_s = self._plan.idle_s
        with self._lock:
            quiet_s = time.monotonic() - self._busy_s
            return idle_s is not None and not self._working and quiet_s >= idle_s

    @contextlib.contextmanager
    def _at_work(self) -> Any:
        with self._lock:
            self._working += 1
        try:
            yield
        finally:
            with self._lock:
                self._working -= 1
                self._busy_s = time.monotonic()

    # Handlers

    def handle(self, message: Message) -> None:
        with self._at_work():
            try:
                self._send([message])
            except ServerRefused as error:
                if not error.delay_s:
                    raise
                self._defer([message], error)
            except _Stopped:
                give_back([message])

    def handle_batch(self, batch: MessageBatch[Message]) -> None:
        with self._at_work():
            try:
                self._send(list(batch))
            except ServerRefused as error:
                if error.delay_s:
                    self._defer(batch, error)
                elif error.is_final and len(batch) > 1:
                    self._send_one_by_one(batch, error)
                else:
                    raise
            except _Stopped:
                give_back(batch)

    def _send_one_by_one(self, batch: MessageBatch[Message], error: ServerRefused) -> None:
        """Find the messages because of which the server refuses the batch."""
        failures = 0
        for number, message in enumerate(batch):
            if failures < FAILURES_MAX:
                try:
                    self._send([message])
                    failures = 0
                    continue
                except ServerRefused as caught:
                    error = caught
                except _Stopped:
                    give_back(batch[number:])
                    return
            failures += 1
            if error.delay_s:
                self._defer([message], error)
            else:
                batch.fail(message, error)

    def _defer(self, messages: Sequence[Message], error: ServerRefused) -> None:
        """Put messages off for as long as the server asked for.

        That uses no attempt: a limit of the server must not make dead letters.
        """
        for message in messages:
            self.note_error(message, error)
            message.defer(error.delay_s)

    def note_error(self, message: object, error: BaseException) -> None:
        """Count a delivery that failed, and tell why, once for each reason."""
        with self._lock:
            self._report.failed += len(message) if isinstance(message, MessageBatch) else 1
        self._tell(str(error) if isinstance(error, ServerRefused) else repr(error))

    def _tell(self, text: str) -> None:
        with self._lock:
            is_new = text != self._trouble
            self._trouble = text
        if is_new:
            self._say(text if text else "going on")

    # Requests

    def _send(self, messages: Sequence[Message]) -> None:
        """Send the messages in one request. Try again while the reason may pass."""
        plan = self._plan
        body = body_of(messages, plan.lines)
        headers = self._headers(messages)
        until_s = time.monotonic() + plan.retry_s
        wait_s = RETRY_FIRST_S
        while True:
            self._wait_until(self._not_before_s)
            if plan.secret:
                headers[SIGNATURE] = sign(plan.secret, body, int(time.time()))
            try:
                self._post(body, headers)
                break
            except ServerRefused as error:
                pause_s = error.delay_s or wait_s * (0.5 + random.random() / 2)
                now_s = time.monotonic()
                if error.delay_s:
                    latest_s = now_s + min(error.delay_s, plan.retry_s)
                    self._not_before_s = max(self._not_before_s, latest_s)
                if error.is_final or now_s + pause_s > until_s:
                    raise
                self._tell(f"trying again: {error}")
                self._wait_until(now_s + pause_s)
                wait_s = min(RETRY_MAX_S, 2 * wait_s)
        self._tell("")
        with self._lock:
            self._report.messages += len(messages)
        self._advance(len(messages))

    def _wait_until(self, moment_s: float) -> None:
        left_s = moment_s - time.monotonic()
        if left_s > 0 and self._stopping.wait(left_s):
            raise _Stopped

    def _headers(self, messages: Sequence[Message]) -> dict[str, str]:
        plan, first = self._plan, messages[0]
        headers = {
            "Content-Type": TYPES[plan.lines],
            "User-Agent": "zsq-forward",
            "X-ZSQ-Topic": plan.topic,
            "X-ZSQ-Channel": plan.channel,
        }
        if plan.batch:
            headers["X-ZSQ-Count"] = str(len(messages))
        else:
            headers |= {
                "X-ZSQ-Offset": str(first.offset),
                "X-ZSQ-Id": first.id,
                "X-ZSQ-Attempt": str(first.attempts),
                "X-ZSQ-Timestamp": str(first.timestamp_ns),
            }
            if first.part is not None:
                headers["X-ZSQ-Part"] = str(first.part)
            if first.key is not None:
                headers |= header_of("X-ZSQ-Key", first.key)
            if first.tag is not None:
                headers |= header_of("X-ZSQ-Tag", first.tag.encode())
        given = {name.lower() for name in plan.headers}  # the case of a name means nothing
        return {k: v for k, v in headers.items() if k.lower() not in given} | dict(plan.headers)

    def _connection(self) -> http.client.HTTPConnection:
        parts = self._parts
        connection: http.client.HTTPConnection | None = getattr(self._connections, "one", None)
        if connection is None:
            host, port, seconds = parts.hostname or "", parts.port, self._plan.answer_s
            if self._tls is not None:
                connection = http.client.HTTPSConnection(
                    host, port, timeout=seconds, context=self._tls
                )
            else:
                connection = http.client.HTTPConnection(host, port, timeout=seconds)
            connection.response_class = _Answer
            self._connections.one = connection
        return connection

    def _post(self, body: bytes, headers: Mapping[str, str]) -> None:
        connection = self._connection()
        is_kept = connection.sock is not None
        try:
            status, reason, retry_after = self._ask(connection, body, headers)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as error:
            connection.close()
            if not is_kept:
                raise ServerRefused(f"{self._shown}: {text_of(error)}") from None
            # The server has closed a connection that it had kept. This is no failure yet.
            self._post(body, headers)
            return
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ServerRefused(f"{self._shown}: {text_of(error)}") from None
        if 200 <= status < 300:
            return
        text = f"{self._shown} answered {status} {reason}"
        raise ServerRefused(
            text[:TEXT_MAX],
            is_final=status < 500 and status not in PASSING,
            delay_s=delay_of(retry_after, time.time()) if status in (429, 503) else 0.0,
        )

    def _ask(
        self, connection: http.client.HTTPConnection, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, str, str | None]:
        try:
            if connection.sock is not None:
                connection.sock.settimeout(self._plan.answer_s)  # the last answer has used some
            connection.request("POST", self._path, body, dict(headers))
            answer = connection.getresponse()
            if len(answer.read(ANSWER_BYTES_MAX)) >= ANSWER_BYTES_MAX or answer.will_close:
                connection.close()
            location = answer.headers.get("Location")
            where = f" to {location}, which is not followed" if location else ""
            return answer.status, f"{answer.reason}{where}", answer.headers.get("Retry-After")
        except BaseException:
            connection.close()
            raise


class _Answer(http.client.HTTPResponse):
    """An answer that must be complete within the time-out of its socket.

    A time-out of a socket is for each of its reads, so a server that sends a byte from time to time
    would keep the command for ever.

    Interim answers, such as 103, are skipped. `http.client` does so only with 100. It takes others
    for the answer, and then the real one for the answer to the next request, so that a message
    would be finished by the answer to another one.
    """

    def __init__(self, sock: socket.socket, *more: Any, **options: Any) -> None:
        super().__init__(sock, *more, **options)
        self.fp = io.BufferedReader(_Timely(sock, self.fp.detach()))

    def begin(self) -> None:
        super().begin()
        while self.status < 200:
            if self.status == http.HTTPStatus.SWITCHING_PROTOCOLS:
                raise http.client.HTTPException("it has changed the protocol, which was not asked")
            self.headers = self.msg = cast("Any", None)
            super().begin()


class _Timely(io.RawIOBase):
    """The bytes that a socket receives until its time-out is over, counted from now."""

    def __init__(self, sock: socket.socket, raw: io.RawIOBase) -> None:
        self._sock = sock
        self._raw = raw
        seconds = sock.gettimeout()
        self._until_s = float("inf") if seconds is None else time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        if left_s < float("inf"):
            self._sock.settimeout(left_s)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def text_of(error: BaseException) -> str:
    """Return an error in one line. Pure."""
    return " ".join(str(error).split()) or type(error).__name__


def give_back(messages: Iterable[Message]) -> None:
    """Give messages back to the channel, as if no handler had begun them.

    So the end of the command uses no attempt. Otherwise a message whose server is away would become
    a dead letter because somebody stops the command.
    """
    for message in messages:
        with contextlib.suppress(ZsqError):  # the lease has ended, or the consumer is closed
            message.defer()


def body_of(messages: Sequence[Message], kind: str) -> bytes:
    """Return the body of the request. Pure."""
    if kind == "body":
        return messages[0].body
    rows = [
        json.dumps(
            as_object(
                StoredMessage(
                    message.topic,
                    message.offset,
                    message.timestamp_ns,
                    message.body,
                    message.key,
                    message.tag,
                    message.headers,
                )
            )
            | {"id": message.id, "attempts": message.attempts}
            | ({} if message.part is None else {"part": message.part})
        )
        for message in messages
    ]
    if kind == "array":
        return f"[{','.join(rows)}]".encode()
    return ("\n".join(rows) + ("\n" if kind == "lines" else "")).encode()


def header_of(name: str, value: bytes) -> dict[str, str]:
    """Return a header with this value. What is not printable ASCII is in base64 (NAME-Base64)."""
    if all(0x20 < byte < 0x7F for byte in value):
        return {name: value.decode("ascii")}
    return {f"{name}-Base64": base64.b64encode(value).decode()}


def delay_of(retry_after: str | None, now_s: float) -> float:
    """Return the seconds of a header Retry-After, or 0 if there is none that can be read. Pure."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return min(float(text), DEFER_MAX_S)
    try:
        return min(max(0.0, parsedate_to_datetime(text).timestamp() - now_s), DEFER_MAX_S)
    except (TypeError, ValueError, OverflowError):
        return 0.0
