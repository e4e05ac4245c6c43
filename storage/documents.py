"""Parsing of JSON documents that ZSQ wrote, from files that may be damaged. Pure."""

from __future__ import annotations

import json
from typing import Any


def loads(data: str | bytes, **options: Any) -> Any:
    """Parse JSON like `json.loads`, but raise only `ValueError`.

    This includes JSON that is nested too deeply for Python's stack.
    """
    try:
        return json.loads(data, **options)
    except RecursionError:
        raise ValueError("nested too deeply") from None
