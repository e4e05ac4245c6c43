"""Arguments of a publish: convert a user's values to bytes, and refuse those that are wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...block.block import HEADERS_BYTES_MAX, KEY_BYTES_MAX, MESSAGE_BYTES_LARGEST, TAG_BYTES_MAX
from ...errors import E_BAD_ARGUMENT, E_TOO_BIG, UsageError
from ...settings import TAG_SEPARATOR
from ...wire.codec import HeaderValue, pack_headers
from ...wire.protocol import DELAY_MS_MAX
from .message import Delay, as_seconds

Text = bytes | str | None
Attributes = tuple[bytes | None, bytes | None, bytes | None]
"""The key, the tag and the packed headers of one message."""


def as_delay_ms(delay: Delay | None) -> int:
    """Convert seconds or a timedelta to milliseconds. Return 0 for None and 0.

    The result is rounded up, so that no message comes early.
    """
    if delay is None:
        return 0
    delay = as_seconds(delay)
    if delay == 0:
        return 0
    # This also refuses NaN, because every comparison with NaN is False.
    if not 0 < delay * 1000 <= DELAY_MS_MAX:
        raise UsageError(
            E_BAD_ARGUMENT,
            (
                f"the delay of a publish must be 0 to {DELAY_MS_MAX // 1000} s (366 days), not "
                f"{delay} s"
            ),
        )
    return math.ceil(delay * 1000)


def as_body(body: Any) -> bytes:
    """Return the body as immutable bytes. Raises `UsageError` for text, or if it is too large."""
    if type(body) is not bytes:
        if not isinstance(body, bytes | bytearray | memoryview):
            text = (
                f"a body must be bytes, not {type(body).__name__}; encode it first, such as "
                "json.dumps(...).encode()"
            )
            raise UsageError(E_BAD_ARGUMENT, text)
        body = bytes(body)
    checked: bytes = body
    if len(body) > MESSAGE_BYTES_LARGEST:
        raise too_big(len(body), MESSAGE_BYTES_LARGEST)
    return checked


def too_big(size: int, size_max: int) -> UsageError:
    """Return the error for a message over the limit. The broker's error has the same text."""
    return UsageError(E_TOO_BIG, f"message of {size} bytes is over the limit of {size_max} bytes")


def as_text(value: Any, size_max: int, what: str) -> bytes | None:
    """Check a key or tag and return it as bytes."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = value.encode()
        except UnicodeEncodeError as error:
            raise UsageError(E_BAD_ARGUMENT, f"a {what} must be UTF-8 or bytes: {error}") from None
    if not isinstance(value, bytes):
        raise UsageError(
            E_BAD_ARGUMENT, f"a {what} must be text or bytes, not {type(value).__name__}"
        )
    if len(value) > size_max:
        raise UsageError(
            E_TOO_BIG, f"{what} of {len(value)} bytes is over the limit of {size_max} bytes"
        )
    return value


def as_tag(value: Any) -> bytes | None:
    """Check a tag and return it as bytes. It must be one that a channel's `tags` can select."""
    tag = as_text(value, TAG_BYTES_MAX, "tag")
    if tag is not None and TAG_SEPARATOR.encode() in tag:
        raise UsageError(
            E_BAD_ARGUMENT,
            f"a tag must not contain {TAG_SEPARATOR}, which separates the tags of a channel, "
            f"unlike {tag[:100]!r}",
        )
    return tag


class PackedHeaders(bytes):
    """Headers that are packed and checked."""

    __slots__ = ()


def as_headers(headers: Mapping[str, HeaderValue] | PackedHeaders | None) -> bytes | None:
    if type(headers) is PackedHeaders:
        return headers
    if not headers:
        return None
    if not isinstance(headers, Mapping):
        raise UsageError(E_BAD_ARGUMENT, f"headers must be a mapping, not {type(headers).__name__}")
    packed = pack_headers(headers)
    if len(packed) > HEADERS_BYTES_MAX:
        raise UsageError(
            E_TOO_BIG,
            f"headers of {len(packed)} bytes are over the limit of {HEADERS_BYTES_MAX} bytes",
        )
    return packed


def as_attributes(key: Text, tag: Text, headers: Mapping[str, HeaderValue] | None) -> Attributes:
    return (
        as_text(key, KEY_BYTES_MAX, "key"),
        as_tag(tag),
        as_headers(headers),
    )
