"""Unique keys as arguments of a publish: checks, and headers with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import E_BAD_ARGUMENT, E_TOO_BIG, E_UNSUPPORTED, UsageError
from ...wire.codec import UNIQUE_HEADER, UNIQUE_KEY_HEADER, HeaderValue
from ...wire.unique import DELAYED_TEXT, KEY_BYTES_MAX, MODES


def unique_headers(key: Any, unique: Any) -> dict[str, HeaderValue]:
    """Return the headers of a message with a unique key. Raises `UsageError`.

    `unique` is the text of a mode, with a space or a hyphen.
    """
    if key is None or unique is None:
        text = "unique_key and unique belong together; give both or neither"
        raise UsageError(E_BAD_ARGUMENT, text)
    if not isinstance(key, str | bytes):
        text = f"unique_key must be text or bytes, not {type(key).__name__}"
        raise UsageError(E_BAD_ARGUMENT, text)
    try:
        size = len(key.encode() if isinstance(key, str) else key)
    except UnicodeEncodeError as error:
        raise UsageError(E_BAD_ARGUMENT, f"unique_key must be UTF-8 or bytes: {error}") from None
    if not size:
        raise UsageError(E_BAD_ARGUMENT, "unique_key must not be empty; leave it out instead")
    if size > KEY_BYTES_MAX:
        text = f"a unique_key of {size} bytes is over the limit of {KEY_BYTES_MAX} bytes"
        raise UsageError(E_TOO_BIG, text)
    if unique not in MODES:
        text = f"unique must be one of {', '.join(map(repr, MODES))}, not {repr(unique)[:80]}"
        raise UsageError(E_BAD_ARGUMENT, text)
    return {UNIQUE_KEY_HEADER: key, UNIQUE_HEADER: unique}


def with_unique_key(
    headers: Mapping[str, HeaderValue] | None,
    key: str | bytes | None,
    unique: str | None,
    *,
    delay_ms: int = 0,
    has_id: bool = False,
) -> Mapping[str, HeaderValue] | None:
    """Return the headers of a message with its unique key. Raises `UsageError`."""
    added = unique_headers(key, unique)
    if has_id:
        text = "a message has a dedupe_id or a unique_key, not both"
        raise UsageError(E_BAD_ARGUMENT, text)
    if delay_ms:
        raise UsageError(E_UNSUPPORTED, DELAYED_TEXT)
    if headers is not None and not isinstance(headers, Mapping):
        return headers  # `as_headers` says what is wrong with them
    return {**(headers or {}), **added}
