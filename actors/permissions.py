"""What each thing that a client asks needs to be permitted, as one table for all gateways. Pure.

Whatever is not in the tables needs `admin` of all: an action that somebody adds later is closed until somebody opens it here. Who may
change a topic may not read its messages by that.

To publish makes the topic on first use, to subscribe the topic and the channel: as it is without an access file. Their settings are
another matter: a channel's dead letters go into a topic, so who sets one there must be permitted to publish to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ..transport import protocol as p
from ..transport.errors import E_FORBIDDEN, Refused
from .access import User

DEAD_LETTER_TOPIC: Final = "dead_letter_topic"
_LOOKS: Final = frozenset({"chunks", "delayed count"})
_READS: Final = frozenset({"peek", "delayed list"})  # these show bodies, or which messages there are
_CHANGES: Final = frozenset({"create", "delete", "pause", "unpause", "empty", "configure", "close", "open", "seek", "delayed cancel"})
_LISTS: Final = frozenset({"list", "overview"})  # names and numbers of the topics that may be viewed


def forbidden(user: User, what: str, needs: str) -> Refused:
    return Refused(E_FORBIDDEN, f"{user.name or 'this client'} may not {what}: that needs {needs} in the broker's access file")


def check_publish(user: User, topic: str) -> None:
    """`Refused` E_FORBIDDEN where it is not permitted; so all below."""
    if not user.may_publish(topic):
        raise forbidden(user, f"publish to topic {topic!r}", "publish")


def check_subscribe(user: User, topic: str, channel: str, settings: Mapping[str, Any] | None = None) -> None:
    """`settings`: of the channel, should it be made."""
    if not user.may_subscribe(topic, channel):
        raise forbidden(user, f"consume channel {channel!r} of topic {topic!r}", "subscribe")
    _check_settings(user, settings)


def check_read(user: User, topic: str) -> None:
    """By offset: Reader, `zsq tail`, Spark."""
    if not user.may_subscribe(topic):
        raise forbidden(user, f"read topic {topic!r} by offset", "subscribe to the whole topic")


def check_stats(user: User, topic: str) -> None:
    """Of all topics everybody gets the rows of those that may be viewed (`seen.py`)."""
    if topic:
        _check_view(user, topic)
    elif not user.may_something:
        raise forbidden(user, "see statistics", "view")


def check_manage(user: User, action: str, topic: str, channel: str, options: Mapping[str, Any]) -> None:
    if action in _LISTS:
        check_stats(user, "")
        return
    exact = f"delayed {options.get('do')}" if action == "delayed" else action
    what = f"{exact} topic {topic!r}"
    if exact in _LOOKS:
        _check_view(user, topic)
    elif exact in _READS:
        if not user.may_subscribe(topic, channel):
            raise forbidden(user, what, "subscribe")
    elif exact in _CHANGES:
        if not user.may_admin(topic):
            raise forbidden(user, what, "admin")
    elif not user.is_broker_admin:
        raise forbidden(user, exact[:40], 'admin = ["*"]')
    if channel and action in ("create", "configure"):
        _check_settings(user, options)


def check_open(user: User, kind: str, topic: str, channel: str, settings: Mapping[str, Any]) -> None:
    """A link, by its kind (`protocol_client.Open`). One to the supervisor is for who may do anything at all: its words are looked at."""
    check: Callable[[], None] | None = {
        "supervisor": lambda: check_stats(user, ""),
        "topic": lambda: check_publish(user, topic),
        "stage": lambda: check_publish(user, topic),
        "reader": lambda: check_read(user, topic),
        "channel": lambda: check_subscribe(user, topic, channel, settings),
    }.get(kind)
    if check is None:
        raise forbidden(user, f"open a link of kind {kind!r}", "more than there is")
    check()


def check_word(user: User, word: p.Wire) -> None:
    """What comes on a link to the supervisor."""
    if isinstance(word, p.Manage):
        check_manage(user, word.action, word.topic, word.channel, word.options)
    elif isinstance(word, p.Stats):
        check_stats(user, word.topic)
    elif isinstance(word, p.Lookup):
        check_manage(user, "create" if word.create else "chunks", word.topic, word.channel, word.settings)
    elif not isinstance(word, p.Beat | p.Bye):
        raise forbidden(user, f"say {type(word).__name__}", "more than there is")


def _check_view(user: User, topic: str) -> None:
    if not user.may_view(topic):
        raise forbidden(user, f"look at topic {topic!r}", "view")


def _check_settings(user: User, settings: Mapping[str, Any] | None) -> None:
    dead = (settings or {}).get(DEAD_LETTER_TOPIC)
    if dead and not (isinstance(dead, str) and (user.may_publish(dead) or user.may_admin(dead))):
        raise forbidden(user, f"have dead letters sent to topic {dead!r:.70}", "publish to it")
