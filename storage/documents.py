"""JSON documents that ZSQ wrote, read back from files that may have been damaged. Pure."""

from __future__ import annotations

import json
from typing import Any


def loads(data: str | bytes, **options: Any) -> Any:
    """Parse JSON like `json.loads`, but raise only `ValueError`.

    It also raises `ValueError` if nesting is too deep for Python's stack.
    """
    try:
        return json.loads(data, **options)
    except RecursionError:
        raise ValueError("nested too deeply") from None
