"""JSON of ours, read back from files that anything may have happened to. Pure."""

from __future__ import annotations

import json
from typing import Any


def loads(data: str | bytes, **options: Any) -> Any:
    """`json.loads` whose only complaint is `ValueError`: nesting too deep for Python's stack is one more way of being no document."""
    try:
        return json.loads(data, **options)
    except RecursionError:
        raise ValueError("nested too deeply") from None
