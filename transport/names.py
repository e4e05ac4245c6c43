"""Names: the rule for the names of topics and channels.

A name is never part of a path or an endpoint. Paths and endpoints contain numbers instead.

A part of a topic that lies at several brokers has the topic's name, `#`, and the part's number:
`clicks#3`. Users cannot create a topic with such a name, because only the directory of the cluster
says which parts exist.

A name with `*` is a pattern. No topic and no channel can have such a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from .errors import E_BAD_NAME, UsageError

NAME_CHARS_MAX: Final = 64
EPHEMERAL_SUFFIX: Final = "#ephemeral"
PARTS_MAX: Final = 256
PARTS_NAMED: Final = 8  # the most parts that a sentence names
PART_SHIFT: Final = 56  # in a message id of a topic with parts, the part's number is above this bit
_NAME: Final = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?", re.ASCII)
PATTERN: Final = re.compile(r"[.a-zA-Z0-9_*-]+(#ephemeral)?", re.ASCII)
_PART: Final = re.compile(r"([.a-zA-Z0-9_-]+)#(0|[1-9][0-9]{0,2})", re.ASCII)


def check_name(name: str, what: str = "topic") -> str:
    """Return `name` if it is legal (NSQ's rule). Raises `UsageError` (E_BAD_NAME) if not.

    The name of a part is legal as the name of a topic.
    """
    if not isinstance(name, str):
        raise UsageError(
            E_BAD_NAME,
            f"a {what} name must be text (str), not {type(name).__name__}: {repr(name)[:80]}",
        )
    if what == "topic" and part_of(name) is not None:
        return name
    if len(name) > NAME_CHARS_MAX or not _NAME.fullmatch(name):
        text = (
            f"{what} name {repr(name)[:80]} is not legal: use 1 to {NAME_CHARS_MAX} of the "
            "characters A-Z a-z 0-9 . _ -"
        )
        if what in ("topic", "channel"):
            text += f" (and end it in {EPHEMERAL_SUFFIX!r} to keep it only in memory)"
        raise UsageError(E_BAD_NAME, text)
    if name in {".", ".."}:
        raise UsageError(
            E_BAD_NAME, f"{what} name {name!r} is not legal: '.' and '..' mean folders"
        )
    return name


def is_ephemeral(name: str) -> bool:
    return name.endswith(EPHEMERAL_SUFFIX)


def meant(name: str, names: Iterable[str]) -> str:
    """Return a question that suggests the known name most like `name`, or "" if none is like it."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(names), n=1)
    return f". Did you mean {close[0]!r}?" if close else ""


def channel_missing(topic: str, channel: str) -> str:
    """Return the text of the error about a missing channel. See `is_channel_missing`."""
    return f"channel {channel!r} of topic {topic!r} does not exist"


def is_channel_missing(text: str) -> bool:
    """Return True if the text of an E_NOT_FOUND says that the topic is there, without the channel.

    A client needs to know this of the broker of a part. One without the topic is another broker.
    """
    return text.startswith("channel ")


def part_name(topic: str, number: int) -> str:
    """Return the name of a part."""
    return f"{topic}#{number}"


def part_of(name: str) -> tuple[str, int] | None:
    """Return the topic and the number of a part with this name, or None for any other name."""
    match = _PART.fullmatch(name)
    if match is None or len(name) > NAME_CHARS_MAX or int(match[2]) >= PARTS_MAX:
        return None
    return match[1], int(match[2])


def base_of(name: str) -> str:
    """Return the topic that a user knows: the topic of a part, or else `name` itself."""
    part = part_of(name)
    return name if part is None else part[0]


def parts_text(names: Iterable[str]) -> str:
    """Return the names of parts for a sentence. A topic may have 256 of them."""
    *most, last = [*names]
    if len(most) >= PARTS_NAMED:
        return f"{', '.join(most[:PARTS_NAMED])} and {len(most) + 1 - PARTS_NAMED} more parts"
    return f"{', '.join(most)} and {last}" if most else last


@dataclass(frozen=True, slots=True)
class NamePattern:
    """A pattern for a whole name; `*` stands for any characters.

    It is not translated to a regular expression, because matching that may take exponential time.
    """

    text: str

    def matches(self, name: str) -> bool:
        """Return True if the pattern matches the name.

        One pass finds the first part at the start, the last part at the end, and the others in
        order between them.
        """
        first, *others = self.text.split("*")
        if not others:
            return name == first
        last = others.pop()
        if (
            not name.startswith(first)
            or not name.endswith(last)
            or len(name) < len(first) + len(last)
        ):
            return False
        place, end = len(first), len(name) - len(last)
        for part in others:
            found = name.find(part, place, end)
            if found < 0:
                return False
            place = found + len(part)
        return True
