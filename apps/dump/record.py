"""One line of a dump: a kind and its fields; how bytes and times are shown. Pure."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Final

Record = dict[str, Any]
"""`kind` first; times are fields that end with `_ns`."""

DAMAGED: Final = "damaged"
SHOWN_CHARACTERS_MAX: Final = 200  # of one value in a readable line; JSON has all of it
_TIME_MAX_NS: Final = 253_402_300_799 * 10**9  # the last second of the year 9999
_SECOND_NS: Final = 10**9


def record(kind: str, **fields: Any) -> Record:
    return {"kind": kind, **fields}


def damaged(why: object, **fields: Any) -> Record:
    """Something that could not be read as what it should be."""
    return {"kind": DAMAGED, **fields, "why": str(why)}


def with_bytes(found: Record, **values: bytes | None) -> Record:
    """Add bytes: as text where they are UTF-8, else under NAME_hex; nothing where there are none."""
    for name, value in values.items():
        if value is not None:
            try:
                found[name] = value.decode()
            except UnicodeDecodeError:
                found[f"{name}_hex"] = value.hex()
    return found


def plain(value: Any) -> Any:
    """What msgpack gave, as JSON can have it."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(plain(key)): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value


def as_json(found: Record) -> str:
    return json.dumps(found, default=plain)


def as_line(found: Record) -> str:
    """`kind name=value ...`; text in JSON's quotes where it would not be one word."""
    return " ".join([str(found["kind"]), *(f"{name}={_shown(name, value)}" for name, value in found.items() if name != "kind")])


def _shown(name: str, value: Any) -> str:
    if name.endswith("_ns") and isinstance(value, int) and 0 < value <= _TIME_MAX_NS:
        seconds, rest = divmod(value, _SECOND_NS)
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
    if isinstance(value, str):
        text = value if value and value.isprintable() and " " not in value and '"' not in value else json.dumps(value, ensure_ascii=False)
    else:
        text = json.dumps(value, default=plain)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}... ({len(text)} characters)"
