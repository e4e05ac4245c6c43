"""Settings of channels and topics: one row for each setting, from which its texts are derived.

A new setting needs a row here, its type for callers (further down), and the code that obeys it. The
rows produce the checks and their error texts, the options of `zsq channel`, `zsq sub`, `zsq topic`
and `zsq serve`, the output of these commands, the console's forms, and the tables in
docs/channel-reference.md and docs/retention.md.

This module is in `transport`, because clients use settings too. It imports only small modules,
because `zsq --help` needs the rows. No I/O.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, field, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal, TypedDict, TypeVar

from .errors import E_BAD_ARGUMENT, UsageError
from .names import check_name
from .records import Record, record
from .retries import ATTEMPTS_MAX, DELAY_S_MAX, JITTER_MAX, delays_of, retry_delay_s

MIB: Final = 1024 * 1024
NONE: Final = -1  # this value means no bound
NUMBER_MAX: Final = 1 << 62  # this number fits into a protocol message
ABOVE_ZERO: Final = 5e-324  # the smallest float
TAG_SEPARATOR: Final = "||"
TAGS_MAX: Final = 64  # the most tags of one channel
# The limit is that of a block. It is repeated here, because an import of that module takes too
# long.
TAG_BYTES_MAX: Final = 256
PRIORITIES_MIN: Final = 2
PRIORITIES_MAX: Final = 10
RATE_MIN: Final = 1 / 86_400  # one message a day
RATE_MAX: Final = 1_000_000
IN_ORDER: Final = "none"
FAIR_BY: Final = {
    IN_ORDER: "none: in the order of arrival",
    "key": "keys",
    "tag": "tags",
}
WEIGHTS_MAX: Final = 1_000  # the most weights of one channel
WEIGHT_MAX: Final = 1_000
# The default, and the least: a handler that touches its message has this long at least.
HOLD_S_MIN: Final = 900.0
KEEP_BYTES: Final = 1024 * MIB
MAX_BYTES_MIN: Final = 8 * MIB  # one block of the largest size always fits into an empty topic
MAX_S_MIN: Final = 1
DEDUPE_WINDOW_S: Final = 600.0
DEDUPE_WINDOW_S_MAX: Final = 7 * 86_400
POLICIES: Final = ("reject", "drop-oldest")
ARCHIVE: Final = {
    "on": "copy full log files to the bucket",
    "off": "keep the topic on the disk only",
}
BY_BROKER: Final = "default"
OWN_PROCESS: Final = {
    BY_BROKER: "as the broker's --own-process",
    "always": "always",
    "never": "never: it shares some with other topics",
}
# The sync mode decides when a publish is answered. It may be changed later with
# `zsq topic set --sync`. `actors/supervisor/commands/sync_modes.py` says which changes are refused.
SYNC_MODES: Final = {
    "always": "answered when it is on disk: nothing that was answered is lost, whatever happens",
    "bucket": "answered when it is on disk and in the bucket: it outlives the disk too (--bucket)",
    "interval": "answered when it is written, synced every 100 ms: a power cut may cost that much",
    "never": "the kernel decides when: a power cut may cost more",
}

_NUMBER: Final = "a number from {low} to {high}"
_BOUND: Final = "a number from 0 to 2**62, or -1 for no bound"
_AGE: Final = "a number of seconds above 0, or -1 for never"
_DELAY: Final = "a number of seconds from 0 to {high:.10g}"
_TIME: Final = "a number of seconds, or -1 for no bound"
_RATE: Final = f"a number of messages a second from 1/86400 to {RATE_MAX}, or 0 for no limit"
_KEEP: Final = "{} retained after all channels have finished them{}; none: unlimited."


SettingValue = str | int | float | bool | None
"""The checked value of a setting. None means the default."""


class Kind(StrEnum):
    """The kind of a setting's value. It decides how the value is written and shown."""

    FLAG = "flag"
    TEXT = "text"
    TOPIC = "topic"
    CHOICE = "choice"
    COUNT = "count"
    SECONDS = "seconds"
    BYTES = "bytes"
    RATE = "rate"


_TYPES: Final = {
    Kind.FLAG: (bool,),
    Kind.COUNT: (int,),
    Kind.BYTES: (int,),
    Kind.SECONDS: (int, float),
    Kind.RATE: (int, float),
}


@record
class Setting(Record):
    """The row of one setting.

    - `allowed`, `least`: Parts of error texts that say what a value must be. `least` is for a
      number below `low`, and `allowed` for all other values.
    - `no_bound`: The number that means "no bound", if there is one.
    - `fixed`: True if the setting is chosen when the channel is created.
    - `option`: The option on the command line, with the name of its value.
    - `shared`: True if `zsq sub` also has this option of a channel, or `zsq serve` this option of a
      topic.
    - `line`, `shows`, `shows_none`: The line of `zsq ... show` that contains the setting, and the
      format of its value.
    - `label`, `hint`, `none_label`: Texts of the console. The docs use `none_label` too.
    """

    kind: Kind
    option: str
    help: str
    label: str
    allowed: str
    line: str
    shows: str
    shows_none: str = ""
    none_label: str = ""
    hint: str = ""
    low: float = 0
    high: float = NUMBER_MAX
    least: str = ""
    no_bound: int | None = None
    fixed: bool = False
    shared: bool = False
    choices: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    default: Any = None

    @property
    def flag(self) -> str:
        return self.option.split()[0]

    @property
    def parameter(self) -> str:
        """The option's name in the code, the environment, and the option file of `zsq serve`."""
        return self.flag.removeprefix("--").replace("-", "_")

    def check(self, value: object) -> None:
        """Raise `UsageError` (E_BAD_ARGUMENT) if the setting cannot have this value."""
        good, too_low = type(value) in _TYPES.get(self.kind, (str,)), False
        if isinstance(value, int | float):
            good, too_low = (
                good and (value == self.no_bound or self.low <= value <= self.high),
                good and 0 <= value < self.low,
            )
        elif self.choices:
            good = value in (*self.choices,)
        if good or (value is None and self.default is None):
            return
        allowed = (self.least if too_low and self.least else self.allowed).format(
            low=self.low, high=self.high
        )
        raise UsageError(E_BAD_ARGUMENT, f"{self.name} must be {allowed}, not {_short(value)}")


_T = TypeVar("_T")


def _row(default: _T, kind: Kind, option: str, **columns: Any) -> _T:
    """Declare a field of a settings class together with its row."""
    declared: _T = field(default=default, metadata={"row": Setting(kind, option, **columns)})
    return declared


def _check_values(rows: Iterable[Setting], settings: object) -> None:
    for row in rows:
        row.check(getattr(settings, row.name))


@record
class ChannelSettings(Record):
    """The settings of a channel. They are durable and apply to all its consumers."""

    tags: str = _row(
        "", Kind.TEXT, "--tags TAGS", fixed=True, shared=True, allowed="a text like 'a||b'",
        help="Take only messages with one of these tags: a, or 'a||b'. Fixed when the channel is created.",
        line="takes", shows="tags {}", shows_none="all tags", label="Tags", none_label="all",
        hint="such as eu||us; fixed when the channel is created, like ordered",
    )  # fmt: skip
    ordered: bool = _row(
        False, Kind.FLAG, "--ordered", fixed=True, shared=True, allowed="true or false",
        help="Deliver the messages of each key in order, one at a time. Fixed when the channel is created.",
        line="order", shows="of each key one message at a time", shows_none="none", label="Ordered", none_label="no",
        hint="messages of one key go one after the other",
    )  # fmt: skip
    priorities: int = _row(
        0, Kind.COUNT, "--priorities N", fixed=True, shared=True, allowed="a number from {low} to {high}, or 0 for none",
        low=PRIORITIES_MIN, high=PRIORITIES_MAX, no_bound=0,
        help="Deliver urgent messages first, by their header zsq-priority: 0 to N-1, the highest first. N is 2 to 10. "
        "Fixed when the channel is created.",
        line="priorities", shows="{} levels", shows_none="none", label="Priorities", none_label="none",
        hint="2 to 10 levels, by the header zsq-priority; fixed when the channel is created",
    )  # fmt: skip
    max_attempts: int = _row(
        0, Kind.COUNT, "--max-attempts N", shared=True, allowed=_NUMBER, high=ATTEMPTS_MAX, no_bound=0,
        help="Number of attempts before a message goes to the dead letters; none: deliver until it is finished.",
        line="attempts", shows="at most {}", shows_none="until it is finished",
        label="Attempts at most", none_label="no limit", hint="then to the dead letters; 0: no limit",
    )  # fmt: skip
    dead_letter_topic: str = _row(
        "", Kind.TOPIC, "--dead-letter-topic TOPIC", shared=True, allowed="a topic's name",
        help="Topic for dead letters. Default, or '': TOPIC.CHANNEL.dead.",
        line="attempts", shows="then to topic {}",
        label="Dead-letter topic", none_label="TOPIC.CHANNEL.dead", hint="empty: TOPIC.CHANNEL.dead",
    )  # fmt: skip
    backoff_s: float = _row(
        1.0, Kind.SECONDS, "--backoff TIME", allowed=_DELAY, high=DELAY_S_MAX,
        help="Delay before the second attempt (1s).", line="backoff", shows="{}", label="Backoff, first", hint="such as 1s",
    )  # fmt: skip
    backoff_max_s: float = _row(
        120.0, Kind.SECONDS, "--backoff-max TIME", allowed=_DELAY, high=DELAY_S_MAX, help="Upper limit of the backoff delay (2m).",
        line="backoff", shows="up to {}", label="Backoff, at most", hint="such as 2m, at most 366 days",
    )  # fmt: skip
    backoff_curve: str = _row(
        "exponential", Kind.TEXT, "--backoff-curve CURVE", allowed="a text like 'exponential' or '5s,1m,10m,1h'",
        help="How the delay grows with each attempt: exponential (doubles), linear, constant, or the delays, such as "
        "5s,1m,10m,1h.",
        line="backoff", shows="{}", label="Backoff, curve", hint="exponential, linear, constant, or 5s,1m,10m,1h",
    )  # fmt: skip
    backoff_jitter: int = _row(
        0, Kind.COUNT, "--backoff-jitter PERCENT", allowed="a percentage", high=JITTER_MAX, no_bound=0,
        help="Shorten each delay by a random share of up to so many percent; none: not at all.",
        line="backoff", shows="jitter {}%", shows_none="no jitter", label="Backoff, jitter in %", none_label="none",
        hint="0 to 100; 0: none",
    )  # fmt: skip
    max_age_s: float = _row(
        NONE, Kind.SECONDS, "--max-age TIME", shared=True, allowed=_AGE, low=ABOVE_ZERO, no_bound=NONE,
        help="Skip messages older than this, such as 15m or 7d, and count them; none: never skip.",
        line="takes", shows="max age {}", label="Age at most", none_label="no limit", hint="older messages are skipped; none: never",
    )  # fmt: skip
    dead_letter_expired: bool = _row(
        False, Kind.FLAG, "--dead-letter-expired", allowed="true or false",
        help="Move messages that expire to the dead letters, with the reason expired.",
        line="takes", shows="expired ones go to the dead letters", label="Expired to the dead letters", none_label="no",
        hint="otherwise they are skipped and counted",
    )  # fmt: skip
    max_consumers: int = _row(
        0, Kind.COUNT, "--max-consumers N", allowed=_NUMBER, no_bound=0, help=(
            "Largest number of consumers at a time; none: unlimited."
        ),
        line="consumers", shows="at most {}", shows_none="any number", label="Consumers at most", none_label="no limit", hint="0: no limit",
    )  # fmt: skip
    max_hold_s: float = _row(
        HOLD_S_MIN, Kind.SECONDS, "--max-hold TIME", allowed="a number of seconds from {low:g}, or -1 for no limit",
        low=HOLD_S_MIN, no_bound=NONE,
        help="Longest time that a consumer can hold a message by touching it, at least 15m (15m); none: unlimited.",
        line="holding", shows="at most {}", shows_none="as long as it is touched", label="Held at most", none_label="no limit",
        hint="at least 15m; none: as long as the consumer touches it",
    )  # fmt: skip
    max_rate: float = _row(
        0.0, Kind.RATE, "--max-rate RATE", allowed=_RATE, low=RATE_MIN, high=RATE_MAX, no_bound=0,
        help="Largest number of messages in a time to all consumers together, such as 100/s, 30/m or 5/h; none: unlimited.",
        line="rate", shows="at most {}", shows_none="no limit", label="Rate at most", none_label="no limit",
        hint="such as 100/s or 30/m; none: no limit",
    )  # fmt: skip
    max_rate_burst: int = _row(
        0, Kind.COUNT, "--max-rate-burst N", allowed=_NUMBER, high=RATE_MAX, no_bound=0,
        help="Number of messages that may go at once after a quiet time. Default: what --max-rate allows in 0.1 s, at least 1.",
        line="rate", shows="burst {}", label="Rate, burst", none_label="0.1 s of the rate", hint="empty: 0.1 s of the rate, at least 1",
    )  # fmt: skip
    max_rate_per_key: float = _row(
        0.0, Kind.RATE, "--max-rate-per-key RATE", allowed=_RATE, low=RATE_MIN, high=RATE_MAX, no_bound=0,
        help="The same for each key, or each tag, as --fair-by says; none: unlimited.",
        line="rate", shows="of each key {}", label="Rate of each key at most", none_label="no limit", hint="needs fairness; none: no limit",
    )  # fmt: skip
    fair_by: str = _row(
        IN_ORDER, Kind.CHOICE, "--fair-by", allowed=" or ".join(FAIR_BY), choices=FAIR_BY,
        help="Deliver the messages of different keys, or tags, in turn, so that many of one do not delay those of others.",
        line="fairness", shows="{}", label="Fair between",
    )  # fmt: skip
    fair_weights: str = _row(
        "", Kind.TEXT, "--fair-weights WEIGHTS", allowed="a text like 'gold=5,free=1'",
        help="Messages of a key, or tag, in one round of --fair-by, such as gold=5,silver=2. The others have 1.",
        line="fairness", shows="weights {}", label="Fair weights", none_label="1 each", hint="such as gold=5,silver=2; the others have 1",
    )  # fmt: skip
    max_in_flight_per_key: int = _row(
        0, Kind.COUNT, "--max-in-flight-per-key N", allowed=_NUMBER, no_bound=0,
        help="Largest number of messages of each key, or tag, as --fair-by says, that consumers have at a time; none: unlimited.",
        line="fairness", shows="of each key at most {} at a time", label="In flight of each key at most", none_label="no limit",
        hint="needs fairness; 0: no limit",
    )  # fmt: skip
    alarm_depth: int | None = _row(
        None, Kind.COUNT, "--alarm-depth N", allowed=_NUMBER, low=NONE, no_bound=NONE,
        help="Raise an alarm when more messages than this wait; none: never. Default: the option of zsq serve.",
        line="alarm", shows="depth {}", label="Alarm above a depth of", none_label="never", hint="empty: as the broker says; none: never",
    )  # fmt: skip
    alarm_age_s: float | None = _row(
        None, Kind.SECONDS, "--alarm-age TIME", allowed=_AGE, low=ABOVE_ZERO, no_bound=NONE,
        help="Raise an alarm when the oldest waiting message is older than this; none: never. Default: the option of zsq serve.",
        line="alarm", shows="age {}", label="Alarm above an age of", none_label="never", hint="such as 15m; none: never",
    )  # fmt: skip
    alarm_dead_letters: int | None = _row(
        None, Kind.COUNT, "--alarm-dead-letters N", allowed=_NUMBER, low=NONE, no_bound=NONE,
        help="Raise an alarm when more dead letters than this were not sent back; none: never. Default: the option of zsq serve.",
        line="alarm", shows="dead letters {}", label="Alarm above dead letters", none_label="never",
        hint="empty: as the broker says; none: never",
    )  # fmt: skip

    def __post_init__(self) -> None:
        _check_values(CHANNEL, self)
        # Equal tags get the same form, so that settings can be compared.
        object.__setattr__(self, "tags", TAG_SEPARATOR.join(split_tags(self.tags)))
        check(
            self.backoff_s <= self.backoff_max_s,
            f"backoff_s ({self.backoff_s}) is above backoff_max_s ({self.backoff_max_s})",
        )
        check(
            not (self.ordered and self.priorities),
            "a channel is ordered or has priorities, not both: an urgent message would overtake "
            "earlier ones of its key",
        )
        delays_of(self.backoff_curve)
        if self.dead_letter_topic:
            check_name(self.dead_letter_topic)
        weights = split_weights(self.fair_weights)
        normal = ",".join(f"{name}={weight}" for name, weight in sorted(weights.items()))
        object.__setattr__(self, "fair_weights", normal)
        self._check_fairness()

    def _check_fairness(self) -> None:
        if self.is_fair:
            check(
                not (self.ordered or self.priorities),
                "a channel that is ordered or has priorities cannot have fair_by: these decide "
                "themselves which message is next. An ordered channel has one message of each key "
                "in flight",
            )
            return
        for name in ("max_rate_per_key", "max_in_flight_per_key", "fair_weights"):
            check(
                not getattr(self, name),
                f"{name} needs fair_by (--fair-by), which says whether it is for keys or tags",
            )

    @property
    def is_fair(self) -> bool:
        """True if the channel delivers the messages of its keys or tags in turn."""
        return self.fair_by != IN_ORDER

    def backoff_ns(self, attempts: int, draw: Callable[[], float]) -> int:
        """Return the delay after so many attempts. `draw` returns random numbers below 1."""
        curve, jitter = self.backoff_curve, self.backoff_jitter
        return int(
            retry_delay_s(curve, self.backoff_s, self.backoff_max_s, jitter, attempts, draw) * 1e9
        )

    @property
    def backoff_longest_ns(self) -> int:
        """Return the longest delay that `backoff_ns` may return."""
        return int(max(delays_of(self.backoff_curve), default=self.backoff_max_s) * 1e9)

    def as_dict(self) -> dict[str, SettingValue]:
        return asdict(self)


class ChannelOptions(TypedDict, total=False):
    """Settings of a channel.

    None resets a setting to its default. [channel-reference.md](channel-reference.md#settings) has
    all settings.
    """

    tags: str | None
    ordered: bool | None
    priorities: int | None
    max_attempts: int | None
    dead_letter_topic: str | None
    backoff_s: float | None
    backoff_max_s: float | None
    backoff_curve: str | None
    backoff_jitter: int | None
    max_age_s: float | None
    dead_letter_expired: bool | None
    max_consumers: int | None
    max_hold_s: float | None
    max_rate: float | None
    max_rate_burst: int | None
    max_rate_per_key: float | None
    fair_by: Literal["none", "key", "tag"] | None
    fair_weights: str | None
    max_in_flight_per_key: int | None
    alarm_depth: int | None
    alarm_age_s: float | None
    alarm_dead_letters: int | None


class NewChannelOptions(ChannelOptions, total=False):
    """The settings of a new channel, and `start`: the place where it begins.

    `start`: "earliest", "latest", an offset, or a time (datetime, or seconds since 1970 as float).
    By default the first channel of a topic gets all waiting messages, and a later one gets the
    messages that are published after its creation.
    """

    start: str | int | float | datetime | None


class StartTime(TypedDict):
    """The first message that was stored at this time (ns since 1970) or later."""

    time_ns: int


class NewChannelSettings(ChannelOptions, total=False):
    """NewChannelOptions in the form in which they are sent."""

    start: str | int | StartTime | None


@record
class Retention(Record):
    """A topic's retention policy. -1 means no bound.

    Limits in bytes apply to the sizes of log files. Limits in seconds apply to the ages of
    messages. A chunk is one log file.
    """

    keep_bytes: int = _row(
        KEEP_BYTES, Kind.BYTES, "--keep-bytes SIZE", shared=True, allowed=_BOUND, no_bound=NONE,
        help=_KEEP.format("Bytes", ", such as 500MB or 10GiB; 1GiB if neither a time nor a number of log files is set"),
        line="finished", shows="kept up to: bytes {}",
        label="Finished: bytes kept", none_label="no bound", hint="such as 10GiB; what is above it may go",
    )  # fmt: skip
    keep_time_s: float = _row(
        NONE, Kind.SECONDS, "--keep-time TIME", shared=True, allowed=_TIME, no_bound=NONE,
        help=_KEEP.format("Time that messages are", ", such as 12h or 7d, counted from the newest message of a log file"),
        line="finished", shows="time {}",
        label="Finished: time kept", none_label="no bound", hint="such as 7d",
    )  # fmt: skip
    keep_chunks: int = _row(
        NONE, Kind.COUNT, "--keep-chunks COUNT", shared=True, allowed=_BOUND, no_bound=NONE,
        help=_KEEP.format("Log files", ""), line="finished", shows="chunks {}",
        label="Finished: chunks kept", none_label="no bound", hint="a number",
    )  # fmt: skip
    max_bytes: int = _row(
        NONE, Kind.BYTES, "--max-bytes SIZE", allowed=_BOUND, no_bound=NONE, low=MAX_BYTES_MIN,
        least=f"at least {{low}} ({MAX_BYTES_MIN // MIB} MiB, the largest block), or -1 for no bound",
        help="Limit for the bytes of unfinished messages, at least 8MiB.", line="unfinished", shows="at most: bytes {}",
        label="Unfinished: bytes at most", none_label="never removed", hint="such as 50GiB",
    )  # fmt: skip
    max_age_s: float = _row(
        NONE, Kind.SECONDS, "--max-age TIME", allowed=_TIME, no_bound=NONE, low=MAX_S_MIN, least="at least {low} s, or -1 for no bound",
        help="With drop-oldest: drop unfinished messages that are older than this.", line="unfinished", shows="age {}",
        label="Unfinished: age at most", none_label="never removed", hint="such as 30d",
    )  # fmt: skip
    when_full: str = _row(
        "reject", Kind.CHOICE, "--when-full", allowed=" or ".join(POLICIES),
        choices=dict(zip(POLICIES, ("refuse publishes", "drop the oldest messages, unfinished or not"), strict=True)),
        help=(
            "What happens above --max-bytes: publishes are refused (reject, the default) or the oldest messages are "
            "dropped (drop-oldest)."
        ), line="unfinished", shows="when full {}",
        label="When that is reached",
    )  # fmt: skip

    archive: str = _row(
        "on", Kind.CHOICE, "--archive", allowed=" or ".join(ARCHIVE), choices=ARCHIVE,
        help=(
            "With zsq serve --bucket: copy full log files to the bucket (on, the default), or keep the topic only on the "
            "disk (off). Then --keep-* also removes what the bucket has."
        ), line="archive", shows="{}", label="Archive in the bucket",
    )  # fmt: skip
    bucket_keep_bytes: int = _row(
        NONE, Kind.BYTES, "--bucket-keep-bytes SIZE", shared=True, allowed=_BOUND, no_bound=NONE,
        help="With a bucket: bytes retained there after all channels have finished them; none: unlimited.",
        line="archive", shows="kept up to: bytes {}",
        label="Bucket: bytes kept", none_label="no bound", hint="such as 5TiB; what is above it may go",
    )  # fmt: skip
    bucket_keep_time_s: float = _row(
        NONE, Kind.SECONDS, "--bucket-keep-time TIME", shared=True, allowed=_TIME, no_bound=NONE,
        help=(
            "With a bucket: time that messages are retained there after all channels have finished them, counted from the newest "
            "message of a log file; none: unlimited."
        ),
        line="archive", shows="time {}", label="Bucket: time kept", none_label="no bound", hint="such as 365d",
    )  # fmt: skip
    dedupe_window_s: float = _row(
        DEDUPE_WINDOW_S, Kind.SECONDS, "--dedupe-window TIME", allowed="a number of seconds from {low} to {high} (7 days)",
        high=DEDUPE_WINDOW_S_MAX, help=(
            "Time for which a message with the same dedupe_id is not stored again, 0 to 7d (10m); 0: ids have no effect."
        ),
        line="ids", shows="{}", label="Same id stored once for", hint="such as 10m, 7d at most; 0: never",
    )  # fmt: skip
    expires_s: float = _row(
        NONE, Kind.SECONDS, "--expires TIME", allowed=_AGE, low=ABOVE_ZERO, no_bound=NONE,
        help="Lifetime of messages that have none of their own, such as 15m or 7d, counted from when they were stored; none: "
        "they do not expire.",
        line="lifetime", shows="{}", label="Messages live for", none_label="no limit", hint="such as 7d",
    )  # fmt: skip
    own_process: str = _row(
        BY_BROKER, Kind.CHOICE, "--own-process", allowed=" or ".join(OWN_PROCESS), choices=OWN_PROCESS,
        help=(
            "Whether the topic and its channels have processes of their own: always, never, or as zsq serve --own-process says "
            "(default)."
        ), line="processes", shows="{}", label="Own processes",
    )  # fmt: skip

    def __post_init__(self) -> None:
        _check_values(TOPIC, self)
        text = (
            "max_age_s (--max-age) works only with when_full drop-oldest (--when-full drop-oldest)"
        )
        check(
            self.max_age_s == NONE or self.drops,
            f"{text}; set that, or remove max_age_s with -1 (--max-age none)",
        )

    @property
    def drops(self) -> bool:
        return self.when_full == "drop-oldest"

    @property
    def rejects_above(self) -> int:
        """The unfinished bytes above which publishes are refused, or -1 for no limit."""
        return NONE if self.drops else self.max_bytes

    def as_dict(self) -> dict[str, SettingValue]:
        return asdict(self)


class TopicOptions(TypedDict, total=False):
    """The settings of a topic. -1 means no limit, None the broker's default.

    `keep_*` limits the messages that every channel has finished, and `max_*` unfinished ones. With
    `when_full` "reject", the default, publishes beyond `max_bytes` are refused (E_TOPIC_FULL). With
    "drop-oldest", the oldest log files beyond `max_bytes` or `max_age_s` are removed. With a bucket
    and `archive` "on", `keep_*` limits what is on the disk, and `bucket_keep_*` the finished
    messages in the bucket. See docs/retention.md. Messages without a lifetime of their own get
    `expires_s`, see docs/lifetimes.md. For `dedupe_window_s`, see docs/dedupe.md.
    """

    keep_bytes: int | None
    keep_time_s: float | None
    keep_chunks: int | None
    max_bytes: int | None
    max_age_s: float | None
    when_full: Literal["reject", "drop-oldest"] | None
    archive: Literal["on", "off"] | None
    bucket_keep_bytes: int | None
    bucket_keep_time_s: float | None
    dedupe_window_s: float | None
    expires_s: float | None
    own_process: Literal["default", "always", "never"] | None


def split_tags(tags: str) -> tuple[str, ...]:
    """Return the tags in a setting like `a||b`, sorted and without duplicates.

    "" and "*" (EQueue's notation) mean all tags: ().
    """
    if tags.strip() in ("", "*"):
        return ()
    names = tuple(sorted({tag.strip() for tag in tags.split(TAG_SEPARATOR)}))
    check(all(names), f"tags must be names with {TAG_SEPARATOR} between them, not {_short(tags)}")
    check(len(names) <= TAGS_MAX, f"a channel can have at most {TAGS_MAX} tags, not {len(names)}")
    size = max(len(tag.encode()) for tag in names)
    check(
        size <= TAG_BYTES_MAX, f"a tag of {size} bytes is over the limit of {TAG_BYTES_MAX} bytes"
    )
    return names


def split_weights(text: str) -> dict[str, int]:
    """Return the weights in a setting like `gold=5,free=1`, by key or tag."""
    weights: dict[str, int] = {}
    for part in filter(str.strip, text.split(",")):
        name, equals, digits = part.strip().rpartition("=")
        name, digits = name.strip(), digits.strip()
        good = bool(equals and name) and digits.isascii() and digits.isdecimal()
        check(
            good and len(digits) <= 9 and 1 <= int(digits) <= WEIGHT_MAX,
            f"fair_weights must be like gold=5,free=1, with weights from 1 to {WEIGHT_MAX}, not "
            f"{_short(part)}",
        )
        check(name not in weights, f"fair_weights has {_short(name)} twice")
        weights[name] = int(digits)
    check(
        len(weights) <= WEIGHTS_MAX,
        f"fair_weights can have at most {WEIGHTS_MAX} names, not {len(weights)}",
    )
    return weights


def check_type(name: str, value: object, *, whole: bool = True) -> None:
    """Raise `UsageError` (E_BAD_ARGUMENT) unless an argument is a number.

    A text with digits is none, although a program may have it from its environment.
    """
    good = isinstance(value, numbers.Integral if whole else numbers.Real)
    kind = "a whole number" if whole else "a number"
    text = f"{name} must be {kind}, not {type(value).__name__} {value!r:.60}"
    check(good and not isinstance(value, bool), text)


def check(good: bool, text: str) -> None:
    """Raise `UsageError` (E_BAD_ARGUMENT) with this text unless `good`."""
    if not good:
        raise UsageError(E_BAD_ARGUMENT, text)


def _short(value: object) -> str:
    return repr(value)[:40]


def _rows(of: type[ChannelSettings | Retention]) -> tuple[Setting, ...]:
    return tuple(
        replace(each.metadata["row"], name=each.name, default=each.default) for each in fields(of)
    )


CHANNEL: Final = _rows(ChannelSettings)
TOPIC: Final = _rows(Retention)


def rows_in_effect(settings: Mapping[str, object]) -> tuple[Setting, ...]:
    """Return the rows of a channel's settings without those that its other settings replace.

    A list of delays replaces the first and the longest backoff.
    """
    replaced = ("backoff_s", "backoff_max_s") if delays_of(str(settings["backoff_curve"])) else ()
    return tuple(row for row in CHANNEL if row.name not in replaced)
