"""What is set for a channel: whom it serves what, and how often. Pure.

A setting that was not made follows the default; what was made lies in the channel's row, durable, and holds for all its consumers:
competing consumers with settings of their own would finish for each other what the other wants. `tags` and `ordered` are chosen when the
channel is made and stay: what was skipped or handed out by the old rule cannot be taken back.

`start` is no setting: it says once where a new channel begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from ..transport.block_format import TAG_BYTES_MAX
from ..transport.errors import E_BAD_ARGUMENT, UsageError
from ..transport.names import check_name, is_ephemeral
from ..transport.protocol import REQUEUE_DELAY_MS_MAX

NONE: Final = -1
NUMBER_MAX: Final = 1 << 62
TAGS_MAX: Final = 64  # of one channel
TAG_SEPARATOR: Final = "||"
ATTEMPTS_MAX: Final = 65_535  # NSQ's wire has 16 bits for it
BACKOFF_S_MAX: Final = REQUEUE_DELAY_MS_MAX / 1000
FIXED: Final = ("tags", "ordered")  # chosen when the channel is made
STARTS: Final = ("earliest", "latest")
START: Final = "start"


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    """`tags`: `a||b`, "" for all. `ordered`: messages of one key go one after the other. `max_attempts`: deliveries until a message goes
    to the dead letters, 0: no limit; `dead_letter_topic`: where that is, "": TOPIC.CHANNEL.dead. `backoff_s`: the broker's delay after the
    first attempt, doubled by each further one up to `backoff_max_s`. `max_age_s`: older messages are skipped and counted, -1: never.
    `max_consumers`: at a time, 0: no limit. `alarm_depth`, `alarm_age_s`: from where on the backlog is an alarm, -1: never,
    None: as the broker was started."""

    tags: str = ""
    ordered: bool = False
    max_attempts: int = 0
    dead_letter_topic: str = ""
    backoff_s: float = 1.0
    backoff_max_s: float = 120.0
    max_age_s: float = NONE
    max_consumers: int = 0
    alarm_depth: int | None = None
    alarm_age_s: float | None = None

    def __post_init__(self) -> None:
        _check(type(self.tags) is str and type(self.ordered) is bool, "tags is a text like 'a||b', ordered is true or false")
        object.__setattr__(self, "tags", TAG_SEPARATOR.join(split_tags(self.tags)))  # one spelling: what is compared must be equal
        _whole("max_attempts", self.max_attempts, 0, ATTEMPTS_MAX)
        _whole("max_consumers", self.max_consumers, 0, NUMBER_MAX)
        if self.alarm_depth is not None:
            _whole("alarm_depth", self.alarm_depth, NONE, NUMBER_MAX)
        for name in ("max_age_s", "alarm_age_s"):
            value = getattr(self, name)
            good = type(value) in (int, float) and (0 < value <= NUMBER_MAX or value == NONE)  # NaN is in no range
            good = good or (value is None and name == "alarm_age_s")
            _check(good, f"{name} is a number of seconds above 0, or -1 for never, not {_short(value)}")
        for name in ("backoff_s", "backoff_max_s"):
            value = getattr(self, name)
            good = type(value) in (int, float) and 0 <= value <= BACKOFF_S_MAX
            _check(good, f"{name} is a number of seconds, 0 to {BACKOFF_S_MAX:g}, not {_short(value)}")
        _check(self.backoff_s <= self.backoff_max_s, f"backoff_s ({self.backoff_s}) is above backoff_max_s ({self.backoff_max_s})")
        _check(type(self.dead_letter_topic) is str, f"dead_letter_topic is a topic's name, not {_short(self.dead_letter_topic)}")
        if self.dead_letter_topic:
            check_name(self.dead_letter_topic)

    def backoff_ns(self, attempts: int) -> int:
        """How long the broker waits after so many deliveries."""
        return int(min(self.backoff_max_s, self.backoff_s * 2.0 ** min(max(attempts - 1, 0), 60)) * 1e9)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


NAMES: Final = tuple(one.name for one in fields(ChannelSettings))


def split_tags(tags: str) -> tuple[str, ...]:
    """The tags of a subscription `a||b`, sorted, each once; "" and "*" (EQueue's word for it) are all tags: ()."""
    if tags.strip() in ("", "*"):
        return ()
    found = tuple(sorted({tag.strip() for tag in tags.split(TAG_SEPARATOR)}))
    _check(all(found), f"tags are names with {TAG_SEPARATOR} between them, not {_short(tags)}")
    _check(len(found) <= TAGS_MAX, f"a channel takes at most {TAGS_MAX} tags, not {len(found)}")
    _check(all(len(tag.encode()) <= TAG_BYTES_MAX for tag in found), f"a tag has at most {TAG_BYTES_MAX} bytes")
    return found


def resolve(own: Mapping[str, Any]) -> ChannelSettings:
    """The settings as they hold. `UsageError` E_BAD_ARGUMENT for what makes no sense."""
    unknown = own.keys() - {*NAMES}
    _check(not unknown, f"a channel has no setting {', '.join(sorted(map(str, unknown)))}; known: {', '.join(NAMES)}")
    return ChannelSettings(**own)


def made(asked: Mapping[str, Any], topic: str = "", channel: str = "") -> tuple[dict[str, Any], Any]:
    """(a new channel's own settings, where it starts: None, "earliest", "latest", an offset, or {"time_ns": since 1970}), checked."""
    own = {str(name): value for name, value in asked.items() if value is not None and name != START}
    _goes_with(topic, channel, _spelled(own))
    start = asked.get(START)
    if isinstance(start, dict):
        good = {*start} == {"time_ns"} and type(start["time_ns"]) is int
    else:
        good = start is None or start in STARTS or (type(start) is int and start >= 0)
    _check(good, f"a channel starts at {', '.join(STARTS)}, an offset or a time, not {_short(start)}")
    return own, start


def changed(own: Mapping[str, Any], changes: Mapping[str, Any], topic: str = "", channel: str = "") -> dict[str, Any]:
    """A channel's own settings after these changes; None takes one back to its default. `UsageError` where that cannot be."""
    after = {str(name): value for name, value in {**own, **changes}.items() if value is not None}
    now = resolve(own)
    then = _spelled(after)
    _goes_with(topic, channel, then)
    for name in FIXED:
        what = f"{name} is chosen when a channel is made, and stays {getattr(now, name)!r}: make another channel"
        _check(getattr(now, name) == getattr(then, name), what)
    return after


def check_same(own: Mapping[str, Any], asked: Mapping[str, Any], channel: str) -> None:
    """Who subscribes to a channel that is there must not take it for another one. `UsageError` E_BAD_ARGUMENT."""
    wanted = {name: asked[name] for name in FIXED if asked.get(name) is not None}
    now = resolve(own)
    then = resolve({**own, **wanted})
    for name in wanted:
        what = f"channel {channel!r} has {name} {getattr(now, name)!r}, not {getattr(then, name)!r}; use another channel"
        _check(getattr(now, name) == getattr(then, name), what)


def dead_letter_topic(topic: str, channel: str, settings: ChannelSettings) -> str:
    """Where dead letters of this channel go. `UsageError` where they cannot go there: the name is too long, or it is of a topic in
    memory, which the next restart of the broker empties, while the channel is durable."""
    name = settings.dead_letter_topic or f"{topic}.{channel}.dead".replace("#ephemeral", "")
    _check(
        name != topic,
        f"the dead letters of topic {topic!r} cannot go to itself: name another topic as dead_letter_topic of channel {channel!r}",
    )
    lost = is_ephemeral(name) and not is_ephemeral(topic) and not is_ephemeral(channel)
    _check(not lost, f"dead_letter_topic {name!r} is in memory, and loses what is in it when the broker restarts: name a topic on disk")
    try:
        return check_name(name)
    except UsageError as error:
        raise UsageError(E_BAD_ARGUMENT, f"{error.text}; set dead_letter_topic of channel {channel!r}") from None


def _goes_with(topic: str, channel: str, settings: ChannelSettings) -> None:
    """`UsageError` for settings that a channel of these names cannot have; "" where they are not known."""
    if topic and channel and (settings.dead_letter_topic or settings.max_attempts):
        dead_letter_topic(topic, channel, settings)


def _spelled(own: dict[str, Any]) -> ChannelSettings:
    found = resolve(own)
    if "tags" in own:
        own["tags"] = found.tags
    return found


def _whole(name: str, value: object, low: int, high: int) -> None:
    good = type(value) is int and low <= value <= high
    _check(good, f"{name} is a number of {low} to {high}, not {_short(value)}")


def _short(value: object) -> str:
    return repr(value)[:40]


def _check(good: bool, text: str) -> None:
    if not good:
        raise UsageError(E_BAD_ARGUMENT, text)
