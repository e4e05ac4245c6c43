"""Values that another program may have written: objects of a bucket, backups, entries of a cluster.

A checksum shows that bytes are as they were written, not who wrote them. So each value that becomes
part of a path, the name of an object, or a size is checked where it is decoded. All functions raise
`ValueError`, which decoders turn into `Damaged`.
"""

from __future__ import annotations

import re
from typing import Final

OFFSET_MAX: Final = 1 << 62
_UUID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)


def is_uuid(value: object) -> bool:
    """Return True for 32 hex digits, as they name topics in paths and objects."""
    return isinstance(value, str) and _UUID.fullmatch(value) is not None


def uuid_of(value: object) -> str:
    if not is_uuid(value):
        raise ValueError(f"{value!r:.80} is not a uuid of 32 hex digits")
    return str(value)


def path_of(value: object) -> str:
    """Return a relative path with `/` that stays in its folder."""
    if (
        not isinstance(value, str)
        or "\0" in value
        or any(part in ("", ".", "..") for part in value.split("/"))
    ):
        raise ValueError(f"{value!r:.80} is not a path that stays in its folder")
    return value


def whole_number(value: object, most: int = OFFSET_MAX) -> int:
    """Return a whole number from 0 to `most`, such as an offset or a size."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{value!r:.80} is not a whole number from 0 to {most}")
    return value


def text_of(value: object, chars_max: int = 1_000) -> str:
    if not isinstance(value, str) or len(value) > chars_max:
        raise ValueError(f"{value!r:.80} is not a text of at most {chars_max} characters")
    return value
