"""Answers in NSQ's form: bodies, content types, and its header."""

from __future__ import annotations

import json
from typing import Any, Final

from starlette.responses import Response

from .errors import ApiError

NSQ_HEADER: Final = {"x-nsq-content-type": "nsq; version=1.0"}
JSON: Final = "application/json; charset=utf-8"
TEXT: Final = "text/plain; charset=utf-8"


def plain(said: str, status: int = 200) -> Response:
    """/ping's, which has no header of NSQ's."""
    return Response(said.encode(errors="replace"), status, media_type=TEXT)


def text(said: str) -> Response:
    return Response(said.encode(errors="replace"), 200, NSQ_HEADER, media_type=TEXT)


def nothing() -> Response:
    """200, and that is all."""
    return Response(b"", 200, NSQ_HEADER)


def answer(data: Any, status: int = 200) -> Response:
    return Response(json.dumps(data, separators=(",", ":")).encode(), status, NSQ_HEADER, media_type=JSON)


def refusal(error: ApiError) -> Response:
    return Response(
        json.dumps({"message": error.message}, separators=(",", ":")).encode(), error.status, NSQ_HEADER | error.headers, media_type=JSON
    )
