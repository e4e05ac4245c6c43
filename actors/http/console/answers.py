"""Answers of the console's API, and what its requests say: numbers within bounds, and options as JSON."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from ..body import read_body
from ..errors import ApiError, api_error
from ..limits import Budget, HttpLimits
from ..parameters import Parameters

HEADERS: Final = {"cache-control": "no-store", "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
JSON: Final = "application/json; charset=utf-8"
OPTIONS_BYTES_MAX: Final = 128 * 1024
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)


def answer(data: Any) -> Response:
    return Response(json.dumps(data, separators=(",", ":")).encode(), 200, HEADERS, media_type=JSON)


def bad(text: str) -> ApiError:
    return ApiError(400, f"E_BAD_ARGUMENT {text}")


def parameters_of(request: Request) -> Parameters:
    return Parameters(request.scope["query_string"])


def number(parameters: Parameters, name: str, otherwise: int, least: int, most: int) -> int:
    """Within bounds; one over them is the bound, as pages ask for as much as they like."""
    said = parameters.get(name)
    if said is None:
        return otherwise
    if not _NUMBER.fullmatch(said):
        raise bad(f"{name} is a number, not {said[:40]!r}")
    return min(max(int(said), least), most)


async def options_of(request: Request, limits: HttpLimits, budget: Budget) -> dict[str, Any]:
    """The body of a request that does something: an object, or nothing."""
    with budget.share() as share:
        body = await read_body(request, OPTIONS_BYTES_MAX, api_error("BODY_TOO_BIG"), limits.body_s, share)
    if not body:
        return {}
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise bad("the body is no JSON") from None
    if not isinstance(found, dict):
        raise bad("the body is a JSON object of options")
    return found
