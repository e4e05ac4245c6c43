"""Extensions: rooms of `actors/` that fill extension points of the core, found by their names.

An extension has a file `extension.py`, whose constants are the points that it fills. Each is the
value itself, or its name as MODULE:NAME, which is resolved when the core asks for it. So the core
imports no extension, and a new one changes no table of the core. HACKING.md lists the points.
"""

from __future__ import annotations

import importlib.util
import pkgutil
from functools import cache
from typing import Any


@cache
def filled(point: str) -> tuple[Any, ...]:
    """Return what the extensions give for this point, in the order of their names."""
    values = []
    package = __name__.rsplit(".", 2)[0]
    for room in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        if room.ispkg and importlib.util.find_spec(f"{room.name}.extension") is not None:
            module = importlib.import_module(f"{room.name}.extension")
            if hasattr(module, point):
                value = getattr(module, point)
                values.append(pkgutil.resolve_name(value) if isinstance(value, str) else value)
    return tuple(values)
