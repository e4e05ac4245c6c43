"""Options of the source and the sink, checked and typed: one class for each. Pure.

Names are those of Spark's Kafka connector wherever they mean the same. Spark passes all names in
lower case. Each name that is given is one of these:

- an option of this side, the source or the sink: it is used.
- an option of the other side, of the Kafka connector, or of a login, or a name that resembles an
  option of this side: it is refused with what to write instead. Otherwise a misspelt
  `startingOffset` would silently read from another place.
- an option that Spark adds itself, such as `path` and `checkpointLocation`: it is ignored.
- any other: it has no effect, and a warning names it. It is not refused, because a later version
  of Spark may add it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...storage.bucket.bucket_url import SCHEMES, parse_bucket_url
from ...transport.errors import E_BAD_ARGUMENT, UsageError
from ...transport.names import base_of, check_name, part_of
from ...transport.wire.protocol_client import TRANSACTION_APP_BYTES_MAX, check_stage_topic
from .pattern import check_pattern, matching
from .schema import COLUMNS, HEADERS, SOURCE_COLUMNS
from .trigger_delay import DELAY_MAX_S

if TYPE_CHECKING:
    from ...transport.wire.credentials import Credentials, KeyFile

__all__ = [
    "EARLIEST",
    "EVERY",
    "LATEST",
    "SINK_NAMES",
    "SOURCE_NAMES",
    "Point",
    "SinkOptions",
    "SourceOptions",
    "sink_options",
    "source_options",
]

TIMEOUT_S: Final = 120.0
# Where archived messages are read: in the bucket if possible, only there, or through the broker.
AUTO, ALWAYS, NEVER = "auto", "always", "never"
INT64_MAX: Final = (1 << 63) - 1

SOURCE_NAMES: Final = (
    "url", "topic", "subscribe", "subscribePattern", "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp",
    "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger",
    "maxTriggerDelay", "minPartitions",
    "failOnDataLoss", "channel", "includeHeaders", "columns", "timeout", "keyFile", "transport", "bucket",
    "filterPushdown",
)  # fmt: skip
SINK_NAMES: Final = ("url", "topic", "txnAppId", "txnVersion", "timeout", "keyFile", "transport")
_NAMES: Final = {name.lower(): name for name in (*SOURCE_NAMES, *SINK_NAMES)}
# Options that Spark itself, or a user who follows its guides, adds to any format.
_FOREIGN: Final = frozenset(
    {"checkpointlocation", "path", "paths", "queryname", "mergeschema", "timezone"}
)
# The first letters of options by which other connectors log in, or encrypt.
_LOGIN: Final = ("auth", "password", "sasl", "ssl", "tls", "token", "user")
_KAFKA: Final = {
    "assign": "name the parts with option 'subscribe', such as clicks#0,clicks#3",
    "maxrecordsperpartition": "use option 'minPartitions'",
    "startingoffsetsbytimestampstrategy": (
        "leave it out: if no message is that new, reading starts at the end"
    ),
    "groupidprefix": "use option 'channel' if a channel should follow the query",
    "kafka.group.id": "use option 'channel' if a channel should follow the query",
    "kafka.bootstrap.servers": (
        "use option 'url', such as tcp://HOST:4153, or tcp://A:4153,tcp://B:4153 with a standby"
    ),
}


class Point(NamedTuple):
    """A place in a topic: `kind` is "earliest", "latest", "offset" or "time".

    `value` is the offset, or the time in milliseconds since 1970.
    """

    kind: str
    value: int = 0


EARLIEST: Final = Point("earliest")
LATEST: Final = Point("latest")
_TO_WRITE: Final = ", and name the topic to write to with option 'topic', or in a column 'topic'"
_INSTEAD: Final = {"subscribe": _TO_WRITE, "subscribePattern": _TO_WRITE}
EVERY: Final = ""  # instead of a topic's name: the point is for each topic that a pattern matches
_NAMING: Final = ("topic", "subscribe", "subscribePattern")


@dataclass(frozen=True, slots=True, kw_only=True)
class _BrokerOptions:
    """The options by which clients reach the broker.

    `key_file` is the option's value. `credentials` is the content of the file. The driver reads it
    and pickles it for the executors, which do not have the file. No error text shows the
    credentials. `transport` is None if the environment of each process decides. `unknown` are the
    names of options that have no effect.
    """

    url: str
    timeout_s: float
    key_file: str = ""
    transport: str | None = None
    credentials: Credentials | None = field(default=None, repr=False)
    unknown: tuple[str, ...] = ()

    @property
    def keys(self) -> KeyFile:
        """The credentials for clients. An executor's environment variable is not used."""
        return self.credentials or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(_BrokerOptions):
    """Options of the source.

    Either `topics` or `pattern` is set. `starting` and `ending` have a point for each topic, or for
    each part of it (`clicks#3`), or one for EVERY topic that the pattern matches. For the numbers,
    0 means not set. `bucket` says whether archived messages are read from the bucket itself.
    """

    topics: tuple[str, ...]
    columns: tuple[str, ...]
    starting: Mapping[str, Point]
    ending: Mapping[str, Point]
    offsets_max: int
    max_bytes: int
    offsets_min: int
    delay_s: float
    partitions_min: int
    fail_on_data_loss: bool
    channel: str
    bucket: str = AUTO
    pattern: str = ""
    filter_pushdown: bool = False

    def reads(self, name: str) -> bool:
        """Return True if the query reads this topic, or the topic of this part."""
        if self.pattern:
            return bool(matching(self.pattern, [base_of(name)]))
        return name in self.topics or base_of(name) in self.topics

    @property
    def from_bucket(self) -> bool:
        """True if `url` is the URL of a bucket, so that no broker is used."""
        return _is_bucket(self.url)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions(_BrokerOptions):
    """Options of the sink: `topic` is "" if a column names it.

    `app` is "" and `version` -1 if the user named no transaction.
    """

    topic: str
    app: str
    version: int


def wrong(text: str) -> UsageError:
    return UsageError(E_BAD_ARGUMENT, text)


def source_options(
    options: Mapping[str, str], url: str, *, streaming: bool | None
) -> SourceOptions:
    """Return the options of `spark.readStream` or `spark.read`.

    `streaming` is None if it is not known yet which of them Spark will use. `url` is the broker's
    address if no option gives one. Raises `UsageError` (E_BAD_ARGUMENT), which says what to write
    instead.
    """
    values = _given(options, SOURCE_NAMES, "writing")
    topics, pattern = _topics(values)
    starting = _points(values, "starting", topics, pattern)
    ending = _points(values, "ending", topics, pattern)
    every = topics or (EVERY,)
    if streaming:
        _refuse(
            values,
            ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
            "a streaming query has no end; use spark.read",
        )
        _refuse(
            values,
            ("filterPushdown",),
            "Spark passes the filters of streaming queries to no source; use startingTimestamp",
        )
    elif streaming is not None:
        _refuse(
            values,
            ("channel",),
            "a channel follows the commits of a streaming query; use spark.readStream",
        )
        _refuse(
            values,
            (
                "maxOffsetsPerTrigger",
                "maxBytesPerTrigger",
                "minOffsetsPerTrigger",
                "maxTriggerDelay",
            ),
            "it is for the micro-batches of a streaming query; use spark.readStream",
        )
        if LATEST in (starting or {}).values():
            raise wrong(
                "startingOffsets 'latest' leaves nothing to read in a batch query: use "
                "'earliest', an offset, or startingTimestamp"
            )
        if EARLIEST in (ending or {}).values():
            raise wrong(
                "endingOffsets 'earliest' leaves nothing to read: use 'latest', an offset, or "
                "endingTimestamp"
            )
    place = values.get("url") or url
    offsets_max = _whole(values, "maxOffsetsPerTrigger")
    offsets_min = _whole(values, "minOffsetsPerTrigger")
    if 0 < offsets_max < offsets_min:
        raise wrong(
            f"option 'minOffsetsPerTrigger' is {offsets_min}; it must be at most "
            f"maxOffsetsPerTrigger, which is {offsets_max}"
        )
    if "maxTriggerDelay" in values and not offsets_min:
        raise wrong("option 'maxTriggerDelay' has no effect without minOffsetsPerTrigger")
    return SourceOptions(
        url=place,
        bucket=_bucket(values, place, streaming=streaming),
        topics=topics,
        columns=_columns(values),
        pattern=pattern,
        starting=_or(starting, dict.fromkeys(every, LATEST if streaming else EARLIEST)),
        ending=_or(ending, dict.fromkeys(every, LATEST)),
        offsets_max=offsets_max,
        max_bytes=_whole(values, "maxBytesPerTrigger", sizes=True),
        offsets_min=offsets_min,
        delay_s=_delay(values),
        partitions_min=_whole(values, "minPartitions"),
        fail_on_data_loss=_flag(values, "failOnDataLoss", True),
        channel=check_name(values["channel"], "channel") if "channel" in values else "",
        timeout_s=_timeout(values),
        key_file=values.get("keyFile", ""),
        transport=_transport(values),
        filter_pushdown=_flag(values, "filterPushdown", False),
        unknown=_unknown(options),
    )


def sink_options(options: Mapping[str, str], url: str, *, streaming: bool) -> SinkOptions:
    """Return the options of `df.write` or `df.writeStream`.

    Raises `UsageError` (E_BAD_ARGUMENT), which says what to write instead.
    """
    values = _given(options, SINK_NAMES, "reading")
    app, version = values.get("txnAppId", ""), _whole(values, "txnVersion", least=0, missing=-1)
    if ("txnAppId" in values) != ("txnVersion" in values):
        raise wrong(
            "txnAppId and txnVersion belong together: give both, such as .option('txnAppId', "
            "NAME).option('txnVersion', batch_id)"
        )
    if "txnAppId" in values and streaming:
        raise wrong(
            "txnAppId and txnVersion are for df.write within foreachBatch; writeStream takes "
            "the query's id and the batch's number"
        )
    if "txnAppId" in values and not 0 < len(app.encode()) <= TRANSACTION_APP_BYTES_MAX:
        raise wrong(
            f"txnAppId {app[:40]!r} is {len(app.encode())} bytes; it must be 1 to "
            f"{TRANSACTION_APP_BYTES_MAX} bytes"
        )
    topic = check_stage_topic(values["topic"]) if "topic" in values else ""
    place = values.get("url") or url
    if _is_bucket(place):
        raise wrong(
            f"{place} is a bucket, and messages are written through a broker: name the "
            "broker with option 'url'"
        )
    return SinkOptions(
        url=place,
        topic=topic,
        app=app,
        version=version,
        timeout_s=_timeout(values),
        key_file=values.get("keyFile", ""),
        transport=_transport(values),
        unknown=_unknown(options),
    )


def _transport(values: Mapping[str, str]) -> str | None:
    transport = values.get("transport", "").lower()
    if transport not in {"", "auto", "tcp"}:
        raise wrong(f"option 'transport' is {values['transport']!r}; it takes 'auto' or 'tcp'")
    return transport or None


def _is_bucket(url: str) -> bool:
    return url.partition("://")[0] in SCHEMES


def _refuse_brokers(url: str) -> None:
    """Refuse a bucket in a list of brokers."""
    if any(part.strip().startswith(("tcp://", "ipc://")) for part in url.split(",")):
        raise wrong(
            f"option 'url' is {url!r}, which names a bucket and a broker: give either a bucket, or "
            "the addresses of brokers"
        )


def _bucket(values: Mapping[str, str], url: str, *, streaming: bool | None) -> str:
    """Return whether archived messages are read from the bucket: auto, always, or never."""
    mode = values.get("bucket", "").lower()
    if mode not in {"", AUTO, ALWAYS, NEVER}:
        raise wrong(
            f"option 'bucket' is {values['bucket']!r}; it takes 'auto', 'always' or 'never'"
        )
    if _is_bucket(url):
        _refuse_brokers(url)
        parse_bucket_url(url)
        if mode == NEVER:
            raise wrong(
                f"option 'bucket' is {mode!r}, and option 'url' names a bucket, so that there is "
                "no broker to read through: leave out option 'bucket'"
            )
        mode = ALWAYS
    if streaming and mode == ALWAYS:
        raise wrong(
            "a streaming query needs a broker, because the bucket has only full log files: name "
            "the broker with option 'url' and leave out option 'bucket', or use spark.read"
        )
    return mode or AUTO


def _given(options: Mapping[str, str], names: Sequence[str], other: str) -> dict[str, str]:
    """Return the options of one side under their proper names.

    `names` are the options of this side, and `other` is what those of the other side are for.
    Refuse what belongs to the other side or to other connectors, and what is misspelt.
    """
    proper = {name.lower(): name for name in names}
    values = {}
    for name, value in options.items():
        lower = name.lower()
        if lower in proper:
            values[proper[lower]] = str(value).strip()
        elif lower in _NAMES:
            raise wrong(
                f"option {_NAMES[lower]!r} is for {other} and has no effect here: leave it out"
                + _INSTEAD.get(_NAMES[lower], "")
            )
        elif lower.startswith("kafka.") or lower in _KAFKA:
            raise wrong(
                f"option {name!r} belongs to the Kafka connector and is not an option of zsq: "
                + _KAFKA.get(lower, "name the broker with option 'url'")
            )
        elif close := _close(lower, proper):
            raise wrong(f"unknown option {name!r}; did you mean {proper[close[0]]!r}?")
        elif lower.startswith(_LOGIN):
            raise wrong(
                f"option {name!r} is not an option of zsq: name the file with the client's keys "
                "by option 'keyFile', for a broker that encrypts"
            )
    return values


def _close(lower: str, proper: Mapping[str, str]) -> list[str]:
    if lower in _FOREIGN:
        return []
    return difflib.get_close_matches(lower, proper, n=1, cutoff=0.8)


def _unknown(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names that are neither options of ZSQ nor added by Spark, and have no effect."""
    return tuple(sorted(name for name in options if name.lower() not in _FOREIGN | _NAMES.keys()))


def _refuse(values: Mapping[str, str], names: Sequence[str], why: str) -> None:
    for name in names:
        if name in values:
            raise wrong(f"option {name!r} is not allowed here: {why}")


def _topics(values: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    """Return the topics by name and "", or no names and the pattern."""
    naming = [name for name in _NAMING if name in values]
    if len(naming) > 1:
        both = " and ".join(map(repr, naming[:2]))
        raise wrong(f"options {both} both say which topics are read: give only one of them")
    if naming == ["subscribePattern"]:
        return (), check_pattern(values["subscribePattern"])
    text = values[naming[0]] if naming else ""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise wrong(
            "no topic is given: use .option('topic', NAME), .option('subscribe', 'NAME,NAME') for "
            "several, or .option('subscribePattern', EXPRESSION). In SQL, use CREATE TEMPORARY "
            "VIEW, or SELECT ... FROM TABLE WITH (topic 'NAME'), because Spark passes no options "
            "of CREATE TABLE ... USING zsq"
        )
    return tuple(sorted({check_name(name) for name in names})), ""


def _columns(values: Mapping[str, str]) -> tuple[str, ...]:
    with_headers = _flag(values, "includeHeaders", False)
    if "columns" not in values:
        return (*SOURCE_COLUMNS, HEADERS) if with_headers else SOURCE_COLUMNS
    proper = {name.lower(): name for name in COLUMNS}
    names = [name.strip() for name in values["columns"].split(",") if name.strip()]
    unknown = [name for name in names if name.lower() not in proper]
    if unknown or not names or len({name.lower() for name in names}) != len(names):
        problem = (
            f"unknown column {unknown[0]!r}" if unknown else "it names no column, or one twice"
        )
        raise wrong(
            f"option 'columns' is {values['columns']!r}: {problem}; the columns are "
            f"{', '.join(COLUMNS)}"
        )
    return tuple(proper[name.lower()] for name in names)


def _or(points: dict[str, Point] | None, missing: dict[str, Point]) -> dict[str, Point]:
    # JSON may name no topic, if a pattern matches none yet.
    return missing if points is None else points


def _points(
    values: Mapping[str, str], side: str, topics: tuple[str, ...], pattern: str
) -> dict[str, Point] | None:
    """Return the point of `side` for each topic, or None if no option sets it.

    If several options set it, the one that the Kafka connector prefers is used.
    """
    stamp, stamps, offsets = f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"
    every = topics or (EVERY,)
    if stamp in values:
        return dict.fromkeys(every, Point("time", _whole(values, stamp, least=0)))
    if stamps in values:
        return {
            topic: Point("time", value)
            for topic, value in _by_topic(values, stamps, topics, pattern, least=0).items()
        }
    if offsets not in values:
        return None
    words = {"earliest": EARLIEST, "latest": LATEST}
    if values[offsets].lower() in words:
        return dict.fromkeys(every, words[values[offsets].lower()])
    signs = {-2: EARLIEST, -1: LATEST}
    numbers = _by_topic(values, offsets, topics, pattern, least=-2)
    return {topic: signs.get(value, Point("offset", value)) for topic, value in numbers.items()}


def _by_topic(
    values: Mapping[str, str], name: str, topics: tuple[str, ...], pattern: str, *, least: int
) -> dict[str, int]:
    """Return a number for each topic: {"topic": number} or Kafka's {"topic": {"0": number}}.

    Kafka's form with several partitions gives a number for each part of the topic. With a pattern,
    the topics must match it. Whether they are all that match is known when the query starts.
    """
    usual = '"earliest", "latest" or ' if name.endswith("Offsets") else ""
    form = (
        f"option {name!r} is {values[name][:80]!r}; it takes {usual}JSON such as "
        f'{{"{topics[0] if topics else "TOPIC"}": 17}}'
    )
    try:
        read = json.loads(values[name])
    except ValueError as error:
        raise wrong(f"{form} ({error})") from None
    if type(read) is not dict:
        raise wrong(form)
    if pattern:
        others = sorted(read.keys() - set(matching(pattern, read)))
        if others:
            raise wrong(
                f"option {name!r} names {others[0][:80]!r}, which subscribePattern "
                f"{pattern[:80]!r} does not match"
            )
    elif sorted(read) != sorted(topics):
        text = (
            f"it names {', '.join(sorted(read)) or 'none'}, and the query reads {', '.join(topics)}"
        )
        raise wrong(f"option {name!r} must name each topic: {text}")
    numbers = {}
    for topic, value in read.items():
        each: dict[str, Any] = {topic: value}
        if type(value) is dict:
            each = {topic if list(value) == ["0"] else f"{topic}#{n}": value[n] for n in value}
            if not each or any(part_of(log) is None for log in each if log != topic):
                raise wrong(
                    f"{form}; the partitions of topic {topic} are numbers such as "
                    f'"0", not {", ".join(map(repr, value)) or "none"}'
                )
        for log, number in each.items():
            if type(number) is not int or not least <= number <= INT64_MAX:
                raise wrong(
                    f"{form}; the value of topic {log} is {number!r}, but must be a whole number "
                    f"of at least {least}"
                )
            numbers[log] = number
    return numbers


_SIZES: Final = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kb": 1 << 10,
    "m": 1 << 20,
    "mb": 1 << 20,
    "g": 1 << 30,
    "gb": 1 << 30,
}


def _whole(
    values: Mapping[str, str], name: str, *, least: int = 1, missing: int = 0, sizes: bool = False
) -> int:
    """Return a whole number of at least `least`. With `sizes`, also accept Spark's form (64m)."""
    if name not in values:
        return missing
    text = values[name].lower()
    digits = text.rstrip("bkmg") if sizes else text
    unit = _SIZES.get(text[len(digits) :], 0)
    if (
        not (digits.isascii() and digits.isdecimal() and unit)
        or not least <= int(digits) * unit <= INT64_MAX
    ):
        form = f"a whole number of at least {least}{', such as 1048576 or 1m' if sizes else ''}"
        raise wrong(f"option {name!r} is {values[name]!r}; it takes {form}")
    return int(digits) * unit


def _flag(values: Mapping[str, str], name: str, missing: bool) -> bool:
    text = values.get(name, str(missing)).lower()
    if text not in {"true", "false"}:
        raise wrong(f"option {name!r} is {values[name]!r}; it takes 'true' or 'false'")
    return text == "true"


_UNITS_S: Final = {
    "ms": 0.001,
    "s": 1.0,
    "": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3_600.0,
    "d": 86_400.0,
}


def _delay(values: Mapping[str, str]) -> float:
    """Return the seconds of maxTriggerDelay, in Spark's form: 90s, 15m, 2h."""
    text = values.get("maxTriggerDelay", f"{DELAY_MAX_S:g}s").lower()
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz").rstrip()
    unit = _UNITS_S.get(text[len(digits) :].strip())
    if unit is None or not (digits.isascii() and digits.isdecimal()) or len(digits) > 9:
        raise wrong(
            f"option 'maxTriggerDelay' is {values['maxTriggerDelay']!r}; it takes a time such as "
            "90s, 15m or 2h"
        )
    return int(digits) * unit


def _timeout(values: Mapping[str, str]) -> float:
    text = values.get("timeout", "")
    try:
        seconds = float(text.lower().removesuffix("s")) if text else TIMEOUT_S
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 86_400:
        raise wrong(
            f"option 'timeout' is {text!r}; it takes seconds, more than 0 and at most 86400 "
            "(one day)"
        )
    return seconds
