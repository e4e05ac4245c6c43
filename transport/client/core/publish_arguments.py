"""Arguments of a publish: convert a user's values to bytes, and refuse those that are wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...block.block import HEADERS_BYTES_MAX, KEY_BYTES_MAX, MESSAGE_BYTES_LARGEST, TAG_BYTES_MAX
from ...errors import E_BAD_ARGUMENT, E_TOO_BIG, UsageError
from ...settings import TAG_SEPARATOR
from ...wire.codec import HeaderValue, pack_headers
from ...wire.lifetime import EXPIRES_MS_MAX, lifetime_headers
from ...wire.protocol import DELAY_MS_MAX
from .deferral import Delay, as_seconds

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


def lifetime_of(
    expires_in: Delay | None, delay_ms: int, revoke_key: str | None
) -> dict[str, HeaderValue]:
    """Return the headers for the lifetime and the revoke key of a publish. Check both."""
    expires_ms = None
    if expires_in is not None:
        seconds = as_seconds(expires_in)
        # Zero is refused: a deadline that has just passed must not mean "never".
        if not 0 < seconds * 1000 <= EXPIRES_MS_MAX:
            text = (
                f"expires_in must be above 0 and at most {EXPIRES_MS_MAX // 86_400_000} days, "
                f"not {seconds} s"
            )
            raise UsageError(E_BAD_ARGUMENT, text)
        expires_ms = math.ceil(seconds * 1000)
        if expires_ms <= delay_ms:
            text = f"it would expire before it is due: expires_in is {seconds} s"
            raise UsageError(E_BAD_ARGUMENT, f"{text}, and the delay {delay_ms / 1000:g} s")
    return lifetime_headers(expires_ms, delay_ms, revoke_key)


def with_headers(headers: Any, more: Mapping[str, HeaderValue]) -> Any:
    """Return the headers of a message and these. The checks of `as_headers` follow later."""
    if not more:
        return headers
    return {**headers, **more} if isinstance(headers, Mapping) else headers or more


def with_headers_of_each(headers: Any, more: Mapping[str, HeaderValue]) -> Any:
    """Return the headers of a `publish_many` (one mapping, or one for each message) and these."""
    if more and isinstance(headers, Sequence) and not isinstance(headers, str | bytes):
        each: Sequence[Any] = headers
        return [with_headers(one, more) for one in each]
    return with_headers(headers, more)


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
