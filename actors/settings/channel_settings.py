"""Channels' settings: how they are chosen and changed, and where dead letters go. Pure.

The settings are declared in `transport/settings.py`. A setting without a value follows the default.
Settings with a value are durable in the channel's row and apply to all its consumers. If competing
consumers had different settings, one would finish messages that another one wants. A fixed setting
is chosen when the channel is made and never changes: messages that the old rule skipped or
delivered cannot be taken back.

`start` is not a setting: it says once where a new channel begins.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypedDict, cast

from ...transport import settings as table
from ...transport.block import block_format
from ...transport.errors import E_BAD_ARGUMENT, UsageError
from ...transport.names import base_of, check_name, is_ephemeral
from ...transport.retries import DELAY_S_MAX
from ...transport.settings import CHANNEL, ChannelSettings, SettingValue, check
from ...transport.wire.protocol import DELAY_MS_MAX

STARTS: Final = ("earliest", "latest")
START: Final = "start"
NAMES: Final = tuple(row.name for row in CHANNEL)
FIXED: Final = tuple(row.name for row in CHANNEL if row.fixed)

assert table.TAG_BYTES_MAX == block_format.TAG_BYTES_MAX
assert DELAY_S_MAX == DELAY_MS_MAX / 1000


class StartTime(TypedDict):
    """A channel starts at the first message of this time or later, in nanoseconds since 1970."""

    time_ns: int


Start = StartTime | str | int | None
"""The place where a channel starts: "earliest", "latest", an offset or a time."""


def resolve(own: Mapping[str, object]) -> ChannelSettings:
    """Return the settings with defaults.

    Raises `UsageError` (E_BAD_ARGUMENT) for unknown names and invalid values.
    """
    unknown = own.keys() - {*NAMES}
    check(
        not unknown,
        (
            f"a channel has no setting {', '.join(sorted(map(str, unknown)))}; known: "
            f"{', '.join(NAMES)}"
        ),
    )
    return ChannelSettings(**cast("dict[str, Any]", own))  # checks each value


def made(
    asked: Mapping[str, object], topic: str = "", channel: str = ""
) -> tuple[dict[str, SettingValue], Start]:
    """Return a new channel's settings and where it starts, both checked."""
    own: dict[str, Any] = {
        str(name): value for name, value in asked.items() if value is not None and name != START
    }
    start = asked.get(START)
    if isinstance(start, dict):
        good = {*start} == {"time_ns"} and type(start["time_ns"]) is int
    else:
        good = start is None or start in STARTS or (type(start) is int and start >= 0)
    with _naming(topic, channel):
        _checked(own, topic, channel)
        what = f"start must be {', '.join(STARTS)}, an offset or a time, not {repr(start)[:40]}"
        check(good, what)
    return own, cast("Start", start)


def changed(
    own: Mapping[str, object], changes: Mapping[str, object], topic: str = "", channel: str = ""
) -> dict[str, SettingValue]:
    """Return a channel's settings after these changes; None resets one to its default.

    Raises `UsageError` (E_BAD_ARGUMENT) if a change is not possible.
    """
    after: dict[str, Any] = {
        str(name): value for name, value in {**own, **changes}.items() if value is not None
    }
    now = resolve(own)
    with _naming(topic, channel):
        then = _checked(after, topic, channel)
        for name in FIXED:
            what = (
                f"{name} cannot be changed after a channel is created and stays "
                f"{getattr(now, name)!r}: create another channel"
            )
            check(getattr(now, name) == getattr(then, name), what)
    return after


def check_same(
    own: Mapping[str, object], asked: Mapping[str, object], topic: str, channel: str
) -> None:
    """Raise `UsageError` (E_BAD_ARGUMENT) if the channel has other fixed settings.

    Otherwise a client that subscribes to an existing channel could receive other messages than it
    expects.
    """
    wanted = {name: asked[name] for name in FIXED if asked.get(name) is not None}
    now = resolve(own)
    then = resolve({**own, **wanted})
    for name in wanted:
        what = (
            f"channel {channel!r} of topic {topic!r} has {name} {getattr(now, name)!r}, not "
            f"{getattr(then, name)!r}; use another channel"
        )
        check(getattr(now, name) == getattr(then, name), what)


DEAD_LETTERS: Final = "dead letters"
"""The user that the audit log names when a topic for dead letters is created.

A channel's setting names that topic, so no rule about first use (`--auto-create`) forbids it.
"""


def default_dead_letter_topic(topic: str, channel: str) -> str:
    """Return the dead-letter topic of a channel that names none.

    Channels of other topics may have the same dead-letter topic (`dead_letter_topics.py`). All
    parts of a topic at one broker share it.
    """
    return f"{base_of(topic)}.{channel}.dead".replace("#ephemeral", "")


def dead_letter_topic(topic: str, channel: str, settings: ChannelSettings) -> str:
    """Return the topic to which dead letters of this channel go.

    Raises `UsageError` (E_BAD_ARGUMENT) if they cannot go there: the name is too long, or the
    topic is in memory and loses its messages when the broker restarts, while the channel is
    durable.
    """
    name = settings.dead_letter_topic or default_dead_letter_topic(topic, channel)
    check(
        base_of(name) != base_of(topic),
        (
            f"the dead letters of topic {topic!r} cannot go to itself: name another topic as "
            f"dead_letter_topic of channel {channel!r}"
        ),
    )
    lost = is_ephemeral(name) and not is_ephemeral(topic) and not is_ephemeral(channel)
    check(
        not lost,
        (
            f"dead_letter_topic {name!r} is in memory and loses its messages when the broker "
            "restarts: name a topic on disk"
        ),
    )
    try:
        return check_name(name)
    except UsageError as error:
        raise UsageError(
            E_BAD_ARGUMENT, f"{error.text}; set dead_letter_topic of channel {channel!r}"
        ) from None


@contextlib.contextmanager
def _naming(topic: str, channel: str) -> Iterator[None]:
    """Let errors about the settings of this channel begin with its names, if they are given."""
    try:
        yield
    except UsageError as error:
        where = f"channel {channel!r} of topic {topic!r}: " if topic and channel else ""
        raise UsageError(error.code, where + error.text) from None


def _checked(own: dict[str, object], topic: str, channel: str) -> ChannelSettings:
    """Check the settings, and write tags in their normal form.

    Raises `UsageError` for settings that a channel with these names cannot have. Empty names are
    not checked.
    """
    settings = resolve(own)
    if "tags" in own:
        own["tags"] = settings.tags
    if topic and channel and (settings.dead_letter_topic or settings.max_attempts):
        dead_letter_topic(topic, channel, settings)
    return settings
