"""Reply of an auth server: a client's identity and permissions, and how long they are valid.

The rules are nsqd's. To publish, one authorization must have the permission `publish`, a topic
pattern that matches the topic, and a channel pattern that matches the empty name, such as `.*`. To
subscribe, it must have `subscribe` and patterns that match both names.

The only difference is that here a pattern must match the whole name. nsqd searches for a pattern
anywhere in a name. For example, in nsqd `orders` also permits `old-orders-internal`, but here only
`.*orders.*` does. So a reply never grants more here than in nsqd. As in nsqd, `.` in `eu.orders`
matches any character.

A pattern is a regular expression in Go's syntax. RE2 (google-re2, in the extra `nsq`) applies it.
It has the same syntax, and like Go it takes time in proportion to the length of the name. With
Python's `re`, the pattern `([a-z]+.?)+x` would take hours for one name that an attacker chose.

If a reply contains anything unknown, the whole reply is refused, because the known part alone may
grant more than the auth server intended. Nothing here does I/O.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"
AUTHORIZATIONS_MAX: Final = 1000
PATTERNS_MAX: Final = 5000  # the most patterns in all authorizations together
PATTERN_CHARS_MAX: Final = 256
# The bytes that RE2 may use for a pattern. A pattern that expands to more is refused.
PATTERN_MEMORY: Final = 128 * 1024
# The most steps of all patterns together. To compile and apply them takes at most 0.5 s.
STEPS_MAX: Final = 100_000
TEXT_CHARS_MAX: Final = 1024  # the greatest length of identity and of identity_url
TTL_S_MAX: Final = 7 * 24 * 3600  # a longer time is reduced to this

_REMEMBERED: Final = 1024  # the number of cached results


class BadAuthorization(ValueError):
    """An invalid reply of an auth server.

    The text says why, without the content of the request.
    """


class BadPattern(ValueError):
    """The pattern is not a regular expression of RE2, or is too large. The text says why."""


class Pattern:
    def __init__(self, text: str) -> None:
        import re2  # this module is loaded only when an auth server has replied

        if len(text) > PATTERN_CHARS_MAX:
            raise BadPattern(f"it has {len(text)} characters; the limit is {PATTERN_CHARS_MAX}")
        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1  # UTF8 needs several steps for `.`
        options.max_mem = PATTERN_MEMORY
        options.never_capture = True
        options.log_errors = False
        try:
            self._found = re2.compile(_NOT_ASCII.sub("\x80", text).encode("latin-1"), options)
        except re2.error as error:
            raise BadPattern(error.args[0].decode("latin-1")) from None

    @property
    def steps(self) -> int:
        """The number of RE2's instructions: the pattern's cost for each character of a name."""
        return int(self._found.programsize)

    def matches(self, name: str) -> bool:
        """Return True if the pattern matches the whole name."""
        return name.isascii() and self._found.fullmatch(name.encode()) is not None


# Names are ASCII, so one character can replace all others in a pattern.
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")


@lru_cache(maxsize=1024)
def _compiled(text: str) -> Pattern:
    """Compile a pattern. Results are cached, as auth servers often send the same patterns."""
    return Pattern(text)


@dataclass(frozen=True, slots=True)
class Authorization:
    topic: Pattern
    channels: tuple[Pattern, ...]
    permissions: frozenset[str]

    @property
    def steps(self) -> int:
        return self.topic.steps + sum(pattern.steps for pattern in self.channels)

    def permits(self, permission: str, topic: str, channel: str) -> bool:
        return (
            permission in self.permissions
            and self.topic.matches(topic)
            and any(pattern.matches(channel) for pattern in self.channels)
        )


@dataclass(frozen=True, slots=True)
class AuthState:
    """A client's authorizations.

    `permission_count` is in the reply to AUTH. If it is 0, nothing is permitted.
    """

    identity: str
    identity_url: str
    ttl_s: int
    authorizations: tuple[Authorization, ...]
    _known: dict[tuple[str, str, str], bool] = field(
        default_factory=dict, compare=False, repr=False
    )

    @property
    def permission_count(self) -> int:
        return len(self.authorizations)

    def permits(self, permission: str, topic: str, channel: str = "") -> bool:
        """Return True if this is permitted. Only SUBSCRIBE has a channel, and needs it."""
        if (permission == PUBLISH) == bool(channel):
            return False
        command = (permission, topic, channel)
        permitted = self._known.get(command)
        if permitted is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            permitted = self._known[command] = any(
                authorization.permits(*command) for authorization in self.authorizations
            )
        return permitted


def parse_state(body: bytes) -> AuthState:
    try:
        reply = json.loads(body)
    except (ValueError, RecursionError):
        raise BadAuthorization("the answer is not JSON") from None
    if not isinstance(reply, dict):
        raise BadAuthorization("the answer is not a JSON object")
    ttl_s = reply.get("ttl", 0)
    if type(ttl_s) is not int or ttl_s <= 0:
        raise BadAuthorization(
            f"ttl must be a whole number of seconds above 0, not {repr(ttl_s)[:64]}"
        )
    rows = reply.get("authorizations") or []
    if not isinstance(rows, list) or len(rows) > AUTHORIZATIONS_MAX:
        raise BadAuthorization(
            f"authorizations must be a list of at most {AUTHORIZATIONS_MAX} objects"
        )
    patterns = sum(len(_list(row, "channels")) + 1 for row in rows)
    if patterns > PATTERNS_MAX:
        raise BadAuthorization(f"the answer has {patterns} patterns; the limit is {PATTERNS_MAX}")
    authorizations: list[Authorization] = []
    steps = 0
    for row in rows:
        authorizations.append(_authorization(row, STEPS_MAX - steps))
        steps += authorizations[-1].steps
    return AuthState(
        _text(reply, "identity"),
        _text(reply, "identity_url"),
        min(ttl_s, TTL_S_MAX),
        tuple(authorizations),
    )


def _authorization(row: Mapping[str, object], steps_max: int) -> Authorization:
    permissions = frozenset(_strings(row, "permissions"))
    unknown = sorted(permissions - {PUBLISH, SUBSCRIBE})
    if unknown:
        raise BadAuthorization(
            f"unknown permission {unknown[0][:64]!r}; the permissions are {PUBLISH} and {SUBSCRIBE}"
        )
    topic = row.get("topic", "")
    if not isinstance(topic, str):
        raise BadAuthorization("topic is not a string")
    patterns = []
    for kind, text in (
        ("topic", topic),
        *(("channel", pattern) for pattern in _strings(row, "channels")),
    ):
        patterns.append(_pattern(kind, text))
        steps_max -= patterns[-1].steps
        if steps_max < 0:
            raise BadAuthorization(
                f"all patterns together compile to more than {STEPS_MAX} instructions of RE2"
            )
    return Authorization(patterns[0], tuple(patterns[1:]), permissions)


def _pattern(kind: str, text: str) -> Pattern:
    try:
        return _compiled(text)
    except BadPattern as error:
        raise BadAuthorization(
            f"the {kind} pattern {text[:64]!r} cannot be used: {error}"
        ) from None


def _list(row: object, name: str) -> list[object]:
    if not isinstance(row, dict):
        raise BadAuthorization("an authorization is not an object")
    value = row.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadAuthorization(f"{name} is not a list")
    return value


def _strings(row: Mapping[str, object], name: str) -> list[str]:
    values = _list(row, name)
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) < len(values):
        raise BadAuthorization(f"{name} is not a list of strings")
    return texts


def _text(row: Mapping[str, object], name: str) -> str:
    value = row.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > TEXT_CHARS_MAX:
        raise BadAuthorization(f"{name} must be a string of at most {TEXT_CHARS_MAX} characters")
    return value
