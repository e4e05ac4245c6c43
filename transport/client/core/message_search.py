"""Matching: which messages of a block a search wants. Pure.

A search may have to look through gigabytes in the gateway's only thread. So the work is a generator
that pauses: it yields PAUSE after each bounded piece of work, and the index of each message that
fits. The caller lets other requests run at a pause. A piece takes at most about a millisecond.

Columns are searched as a whole. A block's bodies lie one after the other, so one search of their
bytes finds the first message with a text, and a block without the text costs no loop over its
messages. Keys and tags are searched in the same way. The first condition of a search chooses the
messages, and the others are checked only for these.

Two alternatives were rejected. A loop over messages takes 20 times as long for small messages. A
thread for each search would still hold Python's lock while it searches a column.

*Ignoring case.* If the text is ASCII, only the letters A to Z are treated alike, because that needs
no decoding. For other texts each body is decoded, and compared as Unicode recommends (casefold).

*Fields.* `field=a.b=value` decodes a body as JSON, or as msgpack if it cannot be JSON. Bodies of
more than FIELD_BYTES_MAX bytes are not decoded, because decoding cannot pause. They are counted, so
that a page can say that the search has left them out.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from ...block.block import Block, Column
from ...wire.codec import unpack_body, user_headers

PAUSE: Final = -1
WINDOW_BYTES: Final = 1024 * 1024  # a column is searched in windows of this size
CHECKED_BYTES: Final = 64 * 1024  # of bodies that are decoded between two pauses
CHECKED_MESSAGES: Final = 500  # that are checked between two pauses
FIELD_BYTES_MAX: Final = 64 * 1024  # larger bodies are not decoded for the value of a field
TEXT_CHARS_MAX: Final = 1_000
PATH_NAMES_MAX: Final = 32
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Named:
    """A name, and the value that it must have, or None if any value will do."""

    name: str
    value: str | None = None


@dataclass(frozen=True, slots=True)
class SearchConditions:
    """The conditions of a search. A message must meet all of them. None means no condition."""

    text: str | None = None
    ignore_case: bool = False
    key: bytes | None = None
    tag: bytes | None = None
    header: Named | None = None
    field: Named | None = None


@dataclass(slots=True)
class Undecoded:
    """The number of bodies that were too large to be decoded."""

    count: int = 0


def matches(
    block: Block, start: int, stop: int, wanted: SearchConditions, undecoded: Undecoded
) -> Iterator[int]:
    """Yield the indexes from `start` to `stop` of the messages that fit, in order, and PAUSE.

    `undecoded` grows with each body that is not decoded.
    """
    chosen, rest = _candidates(block, start, stop, wanted)
    checked = 0
    for index in chosen:
        if index == PAUSE:
            yield PAUSE
            continue
        checked += 1
        if not checked % CHECKED_MESSAGES:
            yield PAUSE
        if not _fits(block, index, rest):
            continue
        if wanted.field is not None:
            yield PAUSE  # decoding a body takes up to a millisecond
            if not _field_fits(block, index, wanted.field, undecoded):
                continue
        yield index


def _candidates(
    block: Block, start: int, stop: int, wanted: SearchConditions
) -> tuple[Iterator[int], SearchConditions]:
    """Return the messages that meet one condition, and the conditions that are left to check.

    The condition is the one that is cheapest to find: tags and keys are shorter than bodies.
    """
    if wanted.tag is not None:
        return _equal(block.tag, start, stop, wanted.tag), replace(wanted, tag=None)
    if wanted.key is not None:
        return _equal(block.key, start, stop, wanted.key), replace(wanted, key=None)
    if wanted.text:
        rest = replace(wanted, text=None)
        if not wanted.ignore_case:
            return _holding(block.body, start, stop, wanted.text.encode(), False), rest
        if wanted.text.isascii():
            needle = wanted.text.lower().encode()
            return _holding(block.body, start, stop, needle, True), rest
        return _folded(block.body, start, stop, wanted.text.casefold()), rest
    return iter(range(start, stop)), wanted


def _holding(column: Column, start: int, stop: int, needle: bytes, lower: bool) -> Iterator[int]:
    """Yield the messages whose value contains the needle, by a search of the column's bytes."""
    offsets, data = column.offsets, column.data
    first = offsets[0]
    ends = offsets.tolist()
    at, end = ends[start] - first, ends[stop] - first
    while at < end:
        window_end = min(end, at + WINDOW_BYTES + len(needle) - 1)
        window = bytes(data[at:window_end])
        if lower:
            window = window.lower()
        base = at
        position = window.find(needle)
        while position >= 0:
            index = bisect_right(ends, base + position + first) - 1
            after = ends[index + 1] - first  # where the next message begins
            if base + position + len(needle) <= after and _present(column, index):
                yield index
            # All later hits in this message are of no interest: it has one already, or it ends
            # before they do.
            at = after
            position = window.find(needle, after - base) if after < window_end else -1
        at = max(at, base + WINDOW_BYTES) if window_end < end else end
        yield PAUSE


def _equal(column: Column | None, start: int, stop: int, value: bytes) -> Iterator[int]:
    """Yield the messages that have exactly this value."""
    if column is None:
        return
    indexes = _holding(column, start, stop, value, False) if value else iter(range(start, stop))
    for index in indexes:
        if index == PAUSE or column.value(index) == value:
            yield index


def _folded(column: Column, start: int, stop: int, needle: str) -> Iterator[int]:
    size = 0
    for index in range(start, stop):
        body = column.value(index) or b""
        size += len(body) + 64
        if size > CHECKED_BYTES:
            size = 0
            yield PAUSE
        if needle in body.decode(errors="replace").casefold():
            yield index


def _present(column: Column, index: int) -> bool:
    validity = column.validity
    return validity is None or bool(validity[index >> 3] & (1 << (index & 7)))


def _fits(block: Block, index: int, wanted: SearchConditions) -> bool:
    """Check the conditions except that on a field."""
    if wanted.tag is not None and _value(block.tag, index) != wanted.tag:
        return False
    if wanted.key is not None and _value(block.key, index) != wanted.key:
        return False
    if wanted.header is not None and not _header_fits(block, index, wanted.header):
        return False
    if wanted.text:
        body = block.body.value(index) or b""
        if not wanted.ignore_case:
            return wanted.text.encode() in body
        if wanted.text.isascii():
            return wanted.text.lower().encode() in body.lower()
        return wanted.text.casefold() in body.decode(errors="replace").casefold()
    return True


def _value(column: Column | None, index: int) -> bytes | None:
    return None if column is None else column.value(index)


def _header_fits(block: Block, index: int, wanted: Named) -> bool:
    data = _value(block.headers, index)
    if data is None or wanted.name.encode() not in data:
        return False
    value: Any = user_headers(data).get(wanted.name, _MISSING)
    return value is not _MISSING and _same(value, wanted.value)


def _field_fits(block: Block, index: int, wanted: Named, undecoded: Undecoded) -> bool:
    body = block.body.value(index) or b""
    if len(body) > FIELD_BYTES_MAX:
        undecoded.count += 1
        return False
    try:
        value = decoded(body)
    except ValueError:
        return False
    return _same(at_path(value, wanted.name), wanted.value)


def decoded(body: bytes) -> Any:
    """Return the value of a body that is JSON or msgpack. Raises `ValueError` if it is neither.

    A JSON text begins with one of a few bytes, and most of them mean a small number in msgpack. So
    a body that is valid JSON is taken as JSON.
    """
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        pass
    try:
        return unpack_body(body)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def at_path(value: Any, path: str) -> Any:
    """Return the value at a path such as `user.tags.0`, or `_MISSING`."""
    for name in path.split("."):
        if isinstance(value, dict):
            value = value.get(name, value.get(name.encode(), _MISSING))
        elif isinstance(value, list | tuple) and name.isascii() and name.isdecimal():
            number = int(name) if len(name) < 10 else len(value)
            value = value[number] if number < len(value) else _MISSING
        else:
            return _MISSING
        if value is _MISSING:
            return value
    return value


def _same(value: Any, wanted: str | None) -> bool:
    """Return True if a value is the wanted one, as a person writes it: 7, 1.5, true, null, text."""
    if value is _MISSING:
        return False
    if wanted is None:
        return True
    if isinstance(value, str):
        return value == wanted
    if isinstance(value, bytes):
        return value == wanted.encode()
    if value is None or isinstance(value, bool):
        return wanted == json.dumps(value)
    if isinstance(value, int | float):
        try:
            return value == (int(wanted) if isinstance(value, int) else float(wanted))
        except (ValueError, OverflowError):
            return False
    return False


def named(text: str, caption: str, form: str = "NAME") -> Named:
    """Parse NAME or NAME=VALUE, or the same with PATH. Raises `ValueError` with the reason."""
    name, equals, value = text.partition("=")
    if not name:
        raise ValueError(f"{caption} must be {form} or {form}=VALUE, not {text[:40]!r}")
    if name.count(".") >= PATH_NAMES_MAX or len(text) > TEXT_CHARS_MAX:
        raise ValueError(
            f"{caption} must have at most {PATH_NAMES_MAX} names and {TEXT_CHARS_MAX} characters"
        )
    return Named(name, value if equals else None)
