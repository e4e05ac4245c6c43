"""Extensions: rooms of `actors/` that fill extension points of the core, found by their names.

An extension has a file `extension.py`, whose constants are the points that it fills. Each is the
value itself, or its name as MODULE:NAME, which is resolved when the core asks for it. The file is
in a room of `actors/`, or in a room of such a room (`gateways/nsq`). So the core imports no
extension. HACKING.md lists the points, and the tables to which an extension still adds rows.
"""

from __future__ import annotations

import importlib.util
import pkgutil
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

_ACTORS: Final = __name__.rsplit(".", 2)[0]


@cache
def filled(point: str) -> tuple[Any, ...]:
    """Return what the extensions give for this point, in the order of their names."""
    modules = [importlib.import_module(name) for name in extensions()]
    values = [getattr(module, point) for module in modules if hasattr(module, point)]
    return tuple(
        pkgutil.resolve_name(value) if isinstance(value, str) else value for value in values
    )


def extensions() -> list[str]:
    """Return the dotted names of the modules of all extensions."""
    rooms = [
        *_rooms_of(_ACTORS),
        *(inner for room in _rooms_of(_ACTORS) for inner in _rooms_of(room)),
    ]
    names = sorted(f"{room}.extension" for room in rooms)
    return [name for name in names if importlib.util.find_spec(name) is not None]


def _rooms_of(package: str) -> Iterator[str]:
    path = importlib.import_module(package).__path__
    for module in pkgutil.iter_modules(path, f"{package}."):
        if module.ispkg:
            yield module.name
