"""Extensions: rooms of `actors/` that fill extension points of the core, found by their names.

An extension has a file `extension.py`, whose constants are the points that it fills. Each is the
value itself, or its name as MODULE:NAME, which is resolved when the core asks for it. The file is
in a room of `actors/`, or in a room of such a room (`gateways/nsq`). So the core imports no
extension. HACKING.md lists the points, and the tables to which an extension still adds rows.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from glob import glob
from importlib import import_module
from pathlib import Path
from typing import Any, Final

_ACTORS: Final = __name__.rsplit(".", 2)[0]


@cache
def filled(point: str) -> tuple[Any, ...]:
    """Return what the extensions give for this point, in the order of their names."""
    modules = [import_module(name) for name in extensions()]
    values = [getattr(module, point) for module in modules if hasattr(module, point)]
    return tuple(
        pkgutil.resolve_name(value) if isinstance(value, str) else value for value in values
    )


@cache
def extensions() -> tuple[str, ...]:
    """Return the dotted names of the modules of all extensions."""
    layer = Path(__file__).parents[1]
    paths = [glob(f"{rooms}/extension.py", root_dir=layer) for rooms in ("*", "*/*")]
    names = [path.removesuffix(".py").replace("/", ".") for path in (*paths[0], *paths[1])]
    return tuple(f"{_ACTORS}.{name}" for name in sorted(names))
