"""What an auth server says of somebody: who it is, for how long that holds, what may be published and subscribed to. Pure.

As in nsqd: to publish, one authorization must have the permission `publish`, a topic pattern that is of the topic, and among its channel
patterns one that is of the empty name, such as `.*`; to subscribe, `subscribe` and patterns of both names.

What differs is the whole match. nsqd looks for a pattern anywhere in a name, so `orders` opens `old-orders-internal` too, and `.` in
`eu.orders` any character. Here a pattern is of a name or it is not; `.*orders.*` says the other thing. It never grants more than nsqd.

An answer with anything that is not understood is refused whole: half of what was meant may be more than what was meant.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from .patterns import BadPattern, Pattern, compiled

PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"
AUTHORIZATIONS_MAX: Final = 1000
PATTERNS_MAX: Final = 5000  # in all of them
TEXT_CHARS_MAX: Final = 1024  # of identity and identity_url
TTL_S_MAX: Final = 7 * 24 * 3600  # a longer one is cut to this

_REMEMBERED: Final = 1024  # answers for names


class BadAuthorization(ValueError):
    """An auth server's answer that is not one; the text says why, without what was asked."""


@dataclass(frozen=True, slots=True)
class Authorization:
    topic: Pattern
    channels: tuple[Pattern, ...]
    permissions: frozenset[str]

    def permits(self, permission: str, topic: str, channel: str) -> bool:
        return permission in self.permissions and self.topic.matches(topic) and any(one.matches(channel) for one in self.channels)


@dataclass(frozen=True, slots=True)
class AuthState:
    """`permission_count` is what the answer to AUTH says; 0 means that nothing at all is permitted."""

    identity: str
    identity_url: str
    ttl_s: int
    authorizations: tuple[Authorization, ...]
    _known: dict[tuple[str, str, str], bool] = field(default_factory=dict, compare=False, repr=False)

    @property
    def permission_count(self) -> int:
        return len(self.authorizations)

    def permits(self, permission: str, topic: str, channel: str = "") -> bool:
        """PUBLISH is asked without a channel, SUBSCRIBE with one."""
        if (permission == PUBLISH) == bool(channel):
            return False
        asked = (permission, topic, channel)
        found = self._known.get(asked)
        if found is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            found = self._known[asked] = any(one.permits(*asked) for one in self.authorizations)
        return found


def parse_state(body: bytes) -> AuthState:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        raise BadAuthorization("the answer is not JSON") from None
    if not isinstance(said, dict):
        raise BadAuthorization("the answer is not an object")
    ttl_s = said.get("ttl", 0)
    if type(ttl_s) is not int or ttl_s <= 0:
        raise BadAuthorization("ttl is not a whole number above 0")
    given = said.get("authorizations") or []
    if not isinstance(given, list) or len(given) > AUTHORIZATIONS_MAX:
        raise BadAuthorization(f"authorizations is not a list of at most {AUTHORIZATIONS_MAX}")
    if sum(len(_list(one, "channels")) + 1 for one in given) > PATTERNS_MAX:
        raise BadAuthorization(f"there are more than {PATTERNS_MAX} patterns")
    authorizations = tuple(_authorization(one) for one in given)
    return AuthState(_text(said, "identity"), _text(said, "identity_url"), min(ttl_s, TTL_S_MAX), authorizations)


def _authorization(said: dict[str, Any]) -> Authorization:
    permissions = frozenset(_strings(said, "permissions"))
    unknown = sorted(permissions - {PUBLISH, SUBSCRIBE})
    if unknown:
        raise BadAuthorization(f"unknown permission {unknown[0][:64]!r}")
    topic = said.get("topic", "")
    if not isinstance(topic, str):
        raise BadAuthorization("topic is not a text")
    return Authorization(_pattern("topic", topic), tuple(_pattern("channel", one) for one in _strings(said, "channels")), permissions)


def _pattern(what: str, text: str) -> Pattern:
    try:
        return compiled(text)
    except BadPattern as error:
        raise BadAuthorization(f"the {what} pattern {text[:64]!r} cannot be used: {error}") from None


def _list(said: Any, name: str) -> list[Any]:
    if not isinstance(said, dict):
        raise BadAuthorization("an authorization is not an object")
    found = said.get(name)
    if found is None:
        return []
    if not isinstance(found, list):
        raise BadAuthorization(f"{name} is not a list")
    return found


def _strings(said: dict[str, Any], name: str) -> list[str]:
    found = _list(said, name)
    if not all(isinstance(one, str) for one in found):
        raise BadAuthorization(f"{name} is not a list of texts")
    return found


def _text(said: dict[str, Any], name: str) -> str:
    found = said.get(name)
    if found is None:
        return ""
    if not isinstance(found, str) or len(found) > TEXT_CHARS_MAX:
        raise BadAuthorization(f"{name} is not a text of at most {TEXT_CHARS_MAX} characters")
    return found
