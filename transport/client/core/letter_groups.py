"""Dead letters of a topic grouped by their error: how many there are of each, and since when. Pure.

Letters of one group came from the same channel, for the same reason, with the same error. The error
is the last line of the text, because a traceback ends with the exception. Numbers in it become `#`,
so that "user 17 is missing" and "user 18 is missing" are one error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final, NamedTuple, TypedDict

from ...units import NS_PER_MS
from ...wire.codec import HeaderValue
from ...wire.dead_letter import CHANNEL, ERROR, REASON, TIME, TOPIC

ERROR_CHARS: Final = 200  # the most characters of an error
GROUPS_MAX: Final = 200  # the most groups in an answer
_NUMBER: Final = re.compile(r"\d+")


class LetterKind(NamedTuple):
    """Kind of a dead letter: what all letters of a group have in common, by their headers."""

    topic: str
    channel: str
    reason: str
    error: str

    @property
    def id(self) -> str:
        return blake2b("\n".join(self).encode(), digest_size=8).hexdigest()


class ShownGroup(TypedDict):
    """A group of dead letters. Times are when the letters died."""

    id: str
    topic: str
    channel: str
    reason: str
    error: str
    count: int
    oldest_ms: int
    newest_ms: int


def kind_of(headers: Mapping[str, HeaderValue]) -> LetterKind:
    error = _text(headers.get(ERROR)).strip().rpartition("\n")[2]
    return LetterKind(
        _text(headers.get(TOPIC)),
        _text(headers.get(CHANNEL)),
        _text(headers.get(REASON)),
        _NUMBER.sub("#", error[:ERROR_CHARS]),
    )


def died_ns(headers: Mapping[str, HeaderValue], timestamp_ns: int) -> int:
    """Return when the letter died, or the time of its message if the letter does not say it."""
    time_ns = headers.get(TIME)
    return time_ns if type(time_ns) is int else timestamp_ns


class LetterConditions(NamedTuple):
    """The conditions by which dead letters are selected. None means no condition.

    `error` is a part of the error's text, and `group` the id of a group of letters.
    """

    error: str | None = None
    reason: str | None = None
    since_ns: int | None = None
    group: str | None = None

    def fit(self, headers: Mapping[str, HeaderValue], timestamp_ns: int) -> bool:
        """Return True if the letter with these headers meets all conditions."""
        return (
            (self.error is None or self.error in _text(headers.get(ERROR)))
            and (self.reason is None or self.reason == headers.get(REASON))
            and (self.since_ns is None or died_ns(headers, timestamp_ns) >= self.since_ns)
            and (self.group is None or self.group == kind_of(headers).id)
        )


def letter_groups(letters: Iterable[tuple[Mapping[str, HeaderValue], int]]) -> list[ShownGroup]:
    """Group letters, given as headers and the time of the message in ns. The largest group is first."""
    groups: dict[LetterKind, list[int]] = {}
    for headers, timestamp_ns in letters:
        died_ms = died_ns(headers, timestamp_ns) // NS_PER_MS
        groups.setdefault(kind_of(headers), []).append(died_ms)
    rows = sorted(groups.items(), key=lambda row: (-len(row[1]), row[0]))
    return [
        {
            "id": kind.id, "topic": kind.topic, "channel": kind.channel, "reason": kind.reason,
            "error": kind.error, "count": len(times), "oldest_ms": min(times), "newest_ms": max(times),
        }
        for kind, times in rows[:GROUPS_MAX]
    ]  # fmt: skip


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
