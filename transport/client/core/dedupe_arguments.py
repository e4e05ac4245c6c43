"""Ids of messages as arguments of a publish: checks, and headers with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...errors import E_BAD_ARGUMENT, E_TOO_BIG, UsageError
from ...wire.codec import DEDUPE_HEADER, HeaderValue
from ...wire.dedupe import ID_BYTES_MAX, pack_id
from .publish_arguments import PackedHeaders

Id = str | bytes


def check_id(value: Any) -> Id:
    """Return the id. Raises `UsageError` if it is not a text or bytes of allowed length."""
    if not isinstance(value, str | bytes):
        kind = type(value).__name__
        raise UsageError(E_BAD_ARGUMENT, f"a dedupe_id must be text or bytes, not {kind}")
    try:
        size = len(value.encode() if isinstance(value, str) else value)
    except UnicodeEncodeError as error:
        raise UsageError(E_BAD_ARGUMENT, f"a dedupe_id must be UTF-8 or bytes: {error}") from None
    if not size:
        raise UsageError(E_BAD_ARGUMENT, "a dedupe_id must not be empty; leave it out instead")
    if size > ID_BYTES_MAX:
        text = f"a dedupe_id of {size} bytes is over the limit of {ID_BYTES_MAX} bytes"
        raise UsageError(E_TOO_BIG, text)
    return value


def with_id(
    headers: Mapping[str, HeaderValue] | None, dedupe_id: Id | None
) -> Mapping[str, HeaderValue] | None:
    """Return the headers of a message with its id."""
    if dedupe_id is None:
        return headers
    if headers is not None and not isinstance(headers, Mapping):
        return headers  # `as_headers` says what is wrong with them
    return {**(headers or {}), DEDUPE_HEADER: check_id(dedupe_id)}


def _packed(name: Id) -> PackedHeaders | Mapping[str, HeaderValue]:
    if type(name) is str and name.isascii() and 0 < len(name) <= ID_BYTES_MAX:
        return PackedHeaders(pack_id(name.encode()))
    return {DEDUPE_HEADER: check_id(name)}


def with_id_of_each(headers: Any, dedupe_ids: Iterable[Id | None] | None, count: int) -> Any:
    """Return the headers of a `publish_many` (a mapping for all or for each) with these ids."""
    if dedupe_ids is None:
        return headers
    if isinstance(dedupe_ids, str | bytes):
        text = "dedupe_ids needs one id (or None) for each message, not one text"
        raise UsageError(E_BAD_ARGUMENT, text)
    ids = list(dedupe_ids)
    if len(ids) != count:
        text = f"{len(ids)} dedupe_ids for {count} messages; give one (or None) for each"
        raise UsageError(E_BAD_ARGUMENT, text)
    if headers is None:
        # This takes a tenth of the time of packing a mapping for each message.
        return [None if name is None else _packed(name) for name in ids]
    if isinstance(headers, Mapping):
        return [with_id(headers, name) for name in ids]
    if not isinstance(headers, Sequence) or len(headers) != count:
        return headers  # `pack_many` says what is wrong with them
    return [with_id(one, name) for one, name in zip(headers, ids, strict=True)]
