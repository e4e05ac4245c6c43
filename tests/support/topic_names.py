"""Topic names for tests that share a broker. Each name is derived from the name of the test."""

from __future__ import annotations

import re
import zlib

CHARS_MAX = 56


def topic_name_of(test: str) -> str:
    """Return a valid topic name of at most 56 characters. It differs for each test and each set of
    its parameters.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", test.removeprefix("test_").lower()).strip("-")
    return (
        slug
        if len(slug) <= CHARS_MAX
        else f"{slug[: CHARS_MAX - 9]}-{zlib.crc32(test.encode()):08x}"
    )
