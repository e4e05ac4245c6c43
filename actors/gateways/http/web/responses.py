"""Responses of the HTTP API in NSQ's form, and its errors with NSQ's codes or ZSQ's own.

An error has a status and the body `{"message": CODE}`. NSQ clients use the status, and people read
the code. If the broker refuses for a reason that nsqd does not have (a full topic, a closed one, a
timeout), the message is ZSQ's code and sentence. Then the status shows what to do: for 4xx the
client must change the request, for 503 it may try again later. Only /ping answers 500 on purpose.
"""

from __future__ import annotations

import json
from typing import Any, Final

from starlette.responses import Response

from .....transport.errors import (
    E_BAD_NAME,
    E_CLOSING,
    E_FORBIDDEN,
    E_LIMIT,
    E_TOO_BIG,
    NotFound,
    UsageError,
    ZsqError,
)


class ApiError(Exception):
    """An error that is sent to the client, with a status and a message."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        hint: dict[str, str] | None = None,
        more: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.more = more or {}  # additional fields of the body
        self.status = status
        self.message = message
        self.headers = hint or {}


# All errors with their meanings. docs/http-reference.md lists them, and a test compares the two.
ANSWERS: Final[dict[str, tuple[int, str]]] = {
    "MSG_TOO_BIG": (413, "the message is larger than max-msg-size"),
    "BODY_TOO_BIG": (
        413,
        "the body is larger than max-body-size (64 KiB for a request that needs no body)",
    ),
    "BAD_BODY": (413, "`/mpub?binary=true`: the count is missing or invalid"),
    "BAD_MESSAGE": (
        413,
        (
            "`/mpub?binary=true`: a size is missing, invalid, or larger than max-msg-size; or the "
            "body ends early"
        ),
    ),
    "INVALID_VALUE": (
        400,
        (
            "`PUT /config`: the value has the wrong type for the option (413 if it is empty or too "
            "big)"
        ),
    ),
    "MSG_EMPTY": (400, "`/pub` without a body"),
    "INVALID_DEFER": (400, "`defer` is not a number of milliseconds from 0 to max-req-timeout"),
    "INVALID_REQUEST": (400, "the query cannot be parsed"),
    "INVALID_IDEMPOTENCY_KEY": (400, "the header Idempotency-Key is empty or too long"),
    "INVALID_UNIQUE_KEY": (
        400,
        "`unique_key` must have 1 to 256 bytes, with `unique=while-waiting` or `while-working`, "
        "and without `defer` and Idempotency-Key",
    ),
    "INVALID_OPTION": (400, "`/config`: the option does not exist or cannot be changed"),
    "MISSING_ARG_TOPIC": (400, "`topic` is missing"),
    "INVALID_TOPIC": (400, "`topic` is not a valid name"),
    "INVALID_ARG_TOPIC": (400, "the same, for `/channel/...`"),
    "MISSING_ARG_CHANNEL": (400, "`channel` is missing"),
    "INVALID_ARG_CHANNEL": (400, "`channel` is not a valid name"),
    "MISSING_ARG_NODE": (400, "`/topic/tombstone` without `node`"),
    "AUTH_FIRST": (
        401,
        (
            "the broker needs authentication (`--access`, or an auth server), and the request has "
            "no `Authorization: Bearer TOKEN`"
        ),
    ),
    "AUTH_FAILED": (
        403,
        "no user has this token; or no auth server accepts it; or no auth server answers",
    ),
    "UNAUTHORIZED": (403, "the user of the token has no permission for this request"),
    "TLS_REQUIRED": (
        403,
        "the broker was started with `--nsq-tls-required true` and without `--http-tls-cert`",
    ),
    "TOPIC_NOT_FOUND": (404, "the topic does not exist"),
    "CHANNEL_NOT_FOUND": (404, "the topic has no such channel"),
    "NOT_FOUND": (404, "the path does not exist"),
    "METHOD_NOT_ALLOWED": (405, "the path has other methods; the header Allow names them"),
    "REQUEST_TIMEOUT": (408, "the body did not arrive in time; the connection is closed"),
    "EXITING": (503, "the broker is stopping"),
    "INTERNAL_ERROR": (500, "a bug in the gateway; the broker's log has the details"),
}
# Statuses for errors of the broker, whose message is a code and a sentence.
BAD_ARGUMENT: Final = 400
NOT_NOW: Final = 503


def api_error(code: str, status: int = 0) -> ApiError:
    return ApiError(status or ANSWERS[code][0], code)


def from_zsq(error: ZsqError, *, for_nsq: bool = True) -> ApiError:
    """Return the HTTP error for an error of the broker.

    On nsqd's paths only a message can be too big. On ZSQ's own paths it may also be a key, a tag or
    a header, so the sentence says what it is.
    """
    if error.code == E_FORBIDDEN:
        return ApiError(403, f"{error.code} {error.text}")
    if error.code == E_CLOSING:
        return api_error("EXITING")
    if error.code == E_BAD_NAME:
        return api_error("INVALID_TOPIC")
    if error.code == E_TOO_BIG and for_nsq:
        return api_error("MSG_TOO_BIG")
    text = f"{error.code} {error.text}"
    if isinstance(error, NotFound):
        return ApiError(404, text)
    hint = {"retry-after": "1"} if error.code == E_LIMIT else None
    return ApiError(BAD_ARGUMENT if isinstance(error, UsageError) else NOT_NOW, text, hint=hint)


NSQ_HEADER: Final = {"x-nsq-content-type": "nsq; version=1.0"}
JSON: Final = "application/json; charset=utf-8"
TEXT: Final = "text/plain; charset=utf-8"


def plain(content: str, status: int = 200) -> Response:
    """Return a text without NSQ's header, for /ping."""
    return Response(content.encode(errors="replace"), status, media_type=TEXT)


def text(content: str) -> Response:
    return Response(content.encode(errors="replace"), 200, NSQ_HEADER, media_type=TEXT)


def nothing() -> Response:
    """Return an empty response with status 200."""
    return Response(b"", 200, NSQ_HEADER)


def answer(data: Any, status: int = 200) -> Response:
    return Response(
        json.dumps(data, separators=(",", ":")).encode(), status, NSQ_HEADER, media_type=JSON
    )


def refusal(error: ApiError) -> Response:
    return Response(
        json.dumps({"message": error.message, **error.more}, separators=(",", ":")).encode(),
        error.status,
        NSQ_HEADER | error.headers,
        media_type=JSON,
    )
