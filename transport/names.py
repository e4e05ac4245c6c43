"""Names: the rule for the names of topics and channels.

A name is never part of a path or an endpoint. Paths and endpoints contain numbers instead.
"""

from __future__ import annotations

import re
from typing import Final

from .errors import E_BAD_NAME, UsageError

NAME_CHARS_MAX: Final = 64
EPHEMERAL_SUFFIX: Final = "#ephemeral"
_NAME: Final = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?", re.ASCII)


def check_name(name: str, what: str = "topic") -> str:
    """Return `name` if it is legal (NSQ's rule). Raises `UsageError` (E_BAD_NAME) if not."""
    if not isinstance(name, str):
        raise UsageError(
            E_BAD_NAME,
            f"a {what} name must be text (str), not {type(name).__name__}: {repr(name)[:80]}",
        )
    if len(name) > NAME_CHARS_MAX or not _NAME.fullmatch(name):
        shown = repr(name)[:80]
        raise UsageError(
            E_BAD_NAME,
            f"{what} name {shown} is not legal: use 1 to {NAME_CHARS_MAX} of the characters"
            f" A-Z a-z 0-9 . _ - (and end it in {EPHEMERAL_SUFFIX!r} to keep it only in memory)",
        )
    if name in {".", ".."}:
        raise UsageError(
            E_BAD_NAME, f"{what} name {name!r} is not legal: '.' and '..' mean folders"
        )
    return name


def is_ephemeral(name: str) -> bool:
    return name.endswith(EPHEMERAL_SUFFIX)
