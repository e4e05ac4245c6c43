"""The access file: users and their permissions, for the ZeroMQ, the NSQ and the HTTP gateway.

Only `Access.load` reads a file; everything else is pure.

    [users.etl]
    curve = ["..."]                    # ZeroMQ: the client's public key, 40 characters
    tokens = ["sha256:..."]            # HTTP and NSQ: only the hash of a token is kept
    publish = ["clicks", "orders.*"]
    subscribe = ["clicks", "orders.*/archive"]
    admin = ["orders.*"]
    view = ["*"]
    create = ["orders.*", "clicks/tmp.*"]   # first use; default: as publish and subscribe

    [anonymous]                        # clients without a key or token
    view = ["*"]

A pattern covers the whole name. `*` stands for any number of characters, including none, and is the
only wildcard. Regular expressions are not supported, because they often permit more than was meant:
in NSQ, `orders` also matches `old-orders`. If any part of the file is invalid, the whole file is
refused, because a part of the rules may permit more than all of them. Error texts name the places
of keys and tokens and never show their values. A value may be a secret that is in the file by
mistake.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self, TypeVar

from ...transport.names import PATTERN, NamePattern
from ...transport.wire.credentials import KEY_CHARS, is_key

ANONYMOUS: Final = "anonymous"  # the name of clients without a key or token, in audit logs
ACCESS_BYTES_MAX: Final = 4 * 1024 * 1024
USERS_MAX: Final = 10_000
ENTRIES_MAX: Final = 1_000  # the most entries of one list
PATTERN_CHARS_MAX: Final = 129  # the length of two names and a slash

_KEYS: Final = ("curve", "tokens")
_LISTS: Final = ("publish", "subscribe", "admin", "view", "create")
_USER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)
_TOKEN: Final = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


_Entry = TypeVar("_Entry")


class AccessError(Exception):
    """The access file cannot be used.

    The text says where and why, and what to do. It contains no secret.
    """


def token_hash(token: str) -> str:
    """Return the hash of a token as the file contains it."""
    return "sha256:" + hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


@dataclass(frozen=True, slots=True)
class SubscribeRule:
    """An entry of `subscribe`.

    Without a channel it permits all channels of the topics, and reading by offset.
    """

    topic: NamePattern
    channel: NamePattern | None = None

    def permits(self, topic: str, channel: str) -> bool:
        if not self.topic.matches(topic):
            return False
        return self.channel is None or (channel != "" and self.channel.matches(channel))


@dataclass(frozen=True, slots=True)
class User:
    """A user, or `anonymous`, with its permissions."""

    name: str
    publish: tuple[NamePattern, ...] = ()
    subscribe: tuple[SubscribeRule, ...] = ()
    admin: tuple[NamePattern, ...] = ()
    view: tuple[NamePattern, ...] = ()
    curve: tuple[str, ...] = ()
    tokens: tuple[str, ...] = field(default=(), repr=False)
    create: tuple[SubscribeRule, ...] | None = None
    """None means that first use may create what the user may publish or subscribe to."""

    def may_create(self, topic: str, channel: str = "") -> bool:
        """Return True if first use may create the topic or the channel.

        A user with `admin` of the topic always may.
        """
        if self.create is None or self.may_admin(topic):
            return True
        return any(
            one.permits(topic, channel)
            if channel
            else one.channel is None and one.topic.matches(topic)
            for one in self.create
        )

    def may_publish(self, topic: str) -> bool:
        return _any(self.publish, topic)

    def may_subscribe(self, topic: str, channel: str = "") -> bool:
        """Return True if the user may consume the channel. "" stands for reading by offset."""
        return any(one.permits(topic, channel) for one in self.subscribe)

    def may_admin(self, topic: str) -> bool:
        return _any(self.admin, topic)

    def may_view(self, topic: str) -> bool:
        """Return True if the user may see names and numbers, but no bodies.

        Any other permission on a topic includes this.
        """
        if _any(self.view, topic) or _any(self.admin, topic) or _any(self.publish, topic):
            return True
        return any(one.topic.matches(topic) for one in self.subscribe)

    @property
    def is_broker_admin(self) -> bool:
        """True if the user may change what belongs to no topic, such as configuration and
        processes.
        """
        return any(one.text == "*" for one in self.admin)

    @property
    def may_something(self) -> bool:
        return bool(self.publish or self.subscribe or self.admin or self.view)

    @property
    def sees_all(self) -> bool:
        """True if the user may see the statistics of the whole broker and all topics."""
        return self.is_broker_admin or any(one.text == "*" for one in self.view)


@dataclass(frozen=True, slots=True)
class Access:
    """All users of one access file."""

    users: dict[str, User]
    anonymous: User | None = None
    _by_token: dict[str, User] = field(default_factory=dict, repr=False)
    _by_curve: dict[str, User] = field(default_factory=dict, repr=False)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        try:
            with Path(path).open("rb") as file:
                found = file.read(ACCESS_BYTES_MAX + 1)
        except OSError as error:
            raise AccessError(
                f"the access file {path} cannot be read: {error.strerror or error}"
            ) from None
        if len(found) > ACCESS_BYTES_MAX:
            raise AccessError(
                f"the access file {path} is larger than the limit of {ACCESS_BYTES_MAX} bytes"
            )
        try:
            text = found.decode()
        except UnicodeDecodeError as error:
            raise AccessError(
                f"the access file {path} is not valid UTF-8 at byte {error.start}; save it as UTF-8"
            ) from None
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, source: str = "") -> Self:
        """Parse an access file. `source` is its name in errors."""
        source = source or "the access file"
        try:
            said = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise AccessError(
                f"{source} is not valid TOML: {error or 'it is nested too deeply'}"
            ) from None
        try:
            return cls._of(said)
        except _BadPlace as error:
            raise AccessError(f"{source}: {error}") from None

    @classmethod
    def _of(cls, said: dict[str, object]) -> Self:
        _only(said, ("users", ANONYMOUS), "at the top")
        tables = _table(said.get("users", {}), "users")
        if len(tables) > USERS_MAX:
            raise _BadPlace(f"users has {len(tables)} entries; the limit is {USERS_MAX}")
        users: dict[str, User] = {}
        by_token: dict[str, User] = {}
        by_curve: dict[str, User] = {}
        for name, table in tables.items():
            place = f"users.{_shown(name)}"
            if name == ANONYMOUS:
                raise _BadPlace(
                    f"{place}: this name is reserved; write the permissions of {ANONYMOUS!r} "
                    f"into the table [{ANONYMOUS}]"
                )
            if not _USER_NAME.fullmatch(name):
                text = (
                    "a user name must be 1 to 64 of the characters A-Z a-z 0-9 . _ @ - and "
                    "begin with a letter or digit"
                )
                raise _BadPlace(f"{place}: {text}")
            user = users[name] = _user(name, table, place, (*_KEYS, *_LISTS))
            _keep(by_curve, user.curve, user, f"{place}.curve")
            _keep(by_token, user.tokens, user, f"{place}.tokens")
        anonymous = (
            _user(ANONYMOUS, said[ANONYMOUS], ANONYMOUS, _LISTS) if ANONYMOUS in said else None
        )
        return cls(users, anonymous, by_token, by_curve)

    def by_token(self, token: str) -> User | None:
        """Return the user of a token.

        The search uses the hash, so its duration tells an attacker nothing about a token.
        """
        try:
            return self._by_token.get(token_hash(token))
        except UnicodeEncodeError:
            return None

    def by_name(self, name: str) -> User | None:
        return self.anonymous if name == ANONYMOUS else self.users.get(name)

    def by_curve(self, z85: str) -> User | None:
        return self._by_curve.get(z85)


class _BadPlace(Exception):
    """An invalid part of the file. The text names its place."""


def _any(patterns: tuple[NamePattern, ...], name: str) -> bool:
    return any(one.matches(name) for one in patterns)


def _shown(name: str) -> str:
    return name if _USER_NAME.fullmatch(name) else repr(name)[:70]


def _only(said: dict[str, object], known: tuple[str, ...], place: str) -> None:
    for name in said:
        if name not in known:
            raise _BadPlace(f"{place}: {_shown(name)} is unknown; use only {', '.join(known)}")


def _table(said: object, place: str) -> dict[str, object]:
    if not isinstance(said, dict):
        raise _BadPlace(f"{place} must be a table: write [{place}] and its settings below it")
    return said


def _user(name: str, table: object, place: str, known: tuple[str, ...]) -> User:
    said = _table(table, place)
    _only(said, known, place)

    def entries(which: str, read: Callable[[str, str], _Entry]) -> tuple[_Entry, ...]:
        found = said.get(which, [])
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise _BadPlace(f'{place}.{which} must be a list of strings: {which} = ["..."]')
        if len(found) > ENTRIES_MAX:
            raise _BadPlace(f"{place}.{which} has {len(found)} entries; the limit is {ENTRIES_MAX}")
        return tuple(
            read(one, f"{place}.{which}: entry {number}") for number, one in enumerate(found, 1)
        )

    return User(
        name,
        curve=entries("curve", _key),
        tokens=entries("tokens", _token),
        publish=entries("publish", _pattern),
        admin=entries("admin", _pattern),
        view=entries("view", _pattern),
        subscribe=entries("subscribe", _rule),
        create=entries("create", _rule) if "create" in said else None,
    )


def _key(text: str, place: str) -> str:
    if not is_key(text):
        what = (
            f"is not a public key: a key has {KEY_CHARS} characters and is in the .pub file "
            "that `zsq keys client` writes"
        )
        raise _BadPlace(f"{place} {what}")
    return text


def _token(text: str, place: str) -> str:
    if not _TOKEN.fullmatch(text):
        what = (
            "is not sha256: with 64 hexadecimal digits; `zsq keys token` prints a new token "
            "and its line for this file"
        )
        raise _BadPlace(f"{place} {what}")
    return text


def _pattern(text: str, place: str, what: str = "topic") -> NamePattern:
    if len(text) > PATTERN_CHARS_MAX or not PATTERN.fullmatch(text):
        shown = f"{place}, {repr(text)[:70]}, is not a {what} pattern"
        raise _BadPlace(
            f"{shown}; write a whole name of A-Z a-z 0-9 . _ - in which * stands for any "
            "characters (the only wildcard)"
        )
    return NamePattern(text)


def _rule(text: str, place: str) -> SubscribeRule:
    topic, slash, channel = text.partition("/")
    return SubscribeRule(
        _pattern(topic, place), _pattern(channel, place, "channel") if slash else None
    )


def _keep(known: dict[str, User], keys: tuple[str, ...], user: User, place: str) -> None:
    for number, key in enumerate(keys):
        other = known.setdefault(key, user)
        if other is not user:
            raise _BadPlace(
                f"{place}: entry {number + 1} is also in users.{other.name}; remove it from one "
                "of the two users"
            )
