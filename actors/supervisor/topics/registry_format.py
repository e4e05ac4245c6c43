"""The bytes of the registry, and the checks of its content. No I/O.

    {"version": 1, "checksum": "0011aabb", "uuid": "...", "node": 0, "next_number": 3,
     "topics": {"clicks": {"number": 1, "uuid": "...", "sync": "always", "base_offset": 0,
                           "state": "live", "retention": {}, "closed": "",
                           "dead_letters_of": {"uuid": "...", "channel": "..."},
                     "schedules": {"nightly": {...}}},
                "views#3": {..., "part_of": "..."}},
     "ended": {"old": 1234},
     "imports": {"DIGEST": {"state": "done", ...}},
     "bucket": "...",
     "parted": {"topics": [{"topic": "views", "uuid": "...", "brokers": [0, 0], ...}],
                "removed": ["..."]}}

`bucket` is the identity of the archive that the broker used last, if there is one. The first `uuid`
is that of the data directory. Only dead-letter topics have `dead_letters_of`, and only parts have
`part_of`. Topics with schedules have `schedules` (`actors/settings/schedule_settings.py`). The key
of an import is the digest of what was taken over. Its `state` is `begun` or
`done`. `parted` has the topics with parts that this broker has alone, as the directory of a cluster
would have them (`storage/cluster/directory.py`), and the uuids of those that were deleted, while
rows of their parts are left.

The checksum is CRC-32C, in 8 hex digits, of all other keys as JSON with sorted keys and without
spaces (ASCII). It covers the content of the file and not its layout. It is computed in the same way
in every version, so an unknown version can be distinguished from a damaged version number. A file
without a checksum is accepted once, because a person can edit the file that way.

A newer ZSQ may write other keys and values. So a file whose checksum is right is never called
damaged: a version, a key or a value that this ZSQ does not know is refused by name, and no repair
touches the file. Every version writes a checksum, so in a file without one it is a mistake.

Rejected: a checksum after the JSON text, as in a topic's identity file. JSON tools could not read
such a file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple, Required, TypedDict, cast

from ....storage import documents
from ....storage.cluster.directory import (
    BrokerEntry,
    Directory,
    TopicEntry,
    entry_of_row,
    row_of_entry,
)
from ....storage.errors import ForeignDirectory, newer
from ....storage.foreign import is_uuid
from ....transport.checksum import crc32c
from ....transport.errors import UsageError
from ....transport.names import check_name
from ....transport.settings import SYNC_MODES
from ...settings import closing

VERSION: Final = 1
CHECKSUM: Final = "checksum"
# GIVEN: a part that this broker has released. Its files stay until another broker has them.
# TAKING: a part that this broker takes over. Its files are not here yet, or not completely.
GIVEN: Final = "given"
TAKING: Final = "taking"
STATES: Final = ("new", "live", "deleting", GIVEN, TAKING)
AWAY: Final = (GIVEN, TAKING)  # states of topics that must not be started
NODE_MAX: Final = 1023
OFFSET_MAX: Final = 2**54 - 1
NUMBER_MAX: Final = 2**53  # every JSON tool reads integers up to this exactly
_KEYS: Final = frozenset({"version", "uuid", "node", "next_number", "topics", "ended"})
_OPTIONAL: Final = frozenset({"imports", "bucket", "parted", CHECKSUM})
_ROW_KEYS: Final = frozenset({"number", "uuid", "sync", "base_offset", "state"})
# Keys of a row that are left out while they are empty.
_SPARSE: Final = frozenset({"dead_letters_of", "part_of", "hold", "schedules"})


class RegistryDamaged(ForeignDirectory):
    """The file exists, but its content is not what was written.

    A file of another version raises only `ForeignDirectory`: a repair would drop what it has.
    """


@dataclass(slots=True)
class TopicRow:
    """A topic's row.

    `number` 0 means that the topic is in memory. Such a row is never written to the file.
    """

    number: int
    uuid: str
    sync: str
    base_offset: int
    state: str = "new"
    retention: Mapping[str, object] = field(default_factory=dict)
    """The settings as they were given.

    They are validated where they take effect. Invalid ones remove no message.
    """
    closed: str = closing.OPEN
    dead_letters_of: dict[str, str] = field(default_factory=dict)
    """The owner of a dead-letter topic with the default name.

    It contains the `uuid` of the owner's topic and the `channel`. It is {} for any other topic.
    """
    part_of: str = ""
    """The uuid of the topic that has this part, as the directory of the cluster names it.

    It is "" for a topic that is no part, or if it is not known (after a repair of the registry).
    """

    hold: int = 0
    """The number of times that the part was given to another broker before this one had it."""

    schedules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The schedules by name, as they were written.

    They are validated where they take effect. One that cannot be read stops only itself.
    """

    @property
    def owner_uuid(self) -> str:
        """The uuid of the topic that users know. Its parts share dead-letter topics."""
        return self.part_of or self.uuid

    @property
    def in_memory(self) -> bool:
        return self.number == 0


# A record of an import from nsqd. The record of a begun import has `numbers`, the numbers of its
# topics. The record of a finished import has the other keys.
ImportRecord = TypedDict(
    "ImportRecord",
    {
        "state": Required[str],
        "numbers": list[int],
        "from": str,
        "time_ns": int,
        "topics": dict[str, int],
        "lost_count": int,
    },
    total=False,
)


class LocalParts(NamedTuple):
    """The topics with parts that this broker has alone, and the uuids of those that were deleted
    while rows of their parts are left.
    """

    topics: tuple[TopicEntry, ...] = ()
    removed: tuple[str, ...] = ()


NO_PARTS: Final = LocalParts()


@dataclass(slots=True)
class Content:
    """The content of the file. `checked` is True if it had a checksum that matched."""

    uuid: str
    node: int
    next_number: int = 1
    topics: dict[str, TopicRow] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    imports: dict[str, ImportRecord] = field(default_factory=dict)
    checked: bool = True
    bucket: str = ""
    parted: LocalParts = NO_PARTS


def encode(content: Content) -> bytes:
    data: dict[str, object] = {
        "version": VERSION,
        "uuid": content.uuid,
        "node": content.node,
        "next_number": content.next_number,
        "topics": {name: _as_dict(row) for name, row in content.topics.items()},
        "ended": content.ended,
        "imports": content.imports,
    }
    if content.bucket:
        data["bucket"] = content.bucket
    if content.parted != NO_PARTS:
        topics = [row_of_entry(entry) for entry in content.parted.topics]
        data["parted"] = {"topics": topics, "removed": content.parted.removed}
    # The checksum is not the last key, because a person may remove its line. If it were the last
    # key, the line before it would then end with a comma, which is invalid JSON.
    head = {"version": VERSION, CHECKSUM: checksum(data)}
    return json.dumps(head | data, indent=1).encode()


def _as_dict(row: TopicRow) -> dict[str, object]:
    """Return the row as a dict, without the keys of `_SPARSE` that are empty."""
    row_keys = (row_field.name for row_field in fields(row))
    return {key: value for key in row_keys if (value := getattr(row, key)) or key not in _SPARSE}


def checksum(data: Mapping[str, object]) -> str:
    """Return the checksum of all keys but the checksum itself."""
    rest = {key: value for key, value in data.items() if key != CHECKSUM}
    return f"{crc32c(json.dumps(rest, sort_keys=True, separators=(',', ':')).encode()):08x}"


def decode(raw: bytes, path: str) -> Content:
    """Decode the file.

    Raises `RegistryDamaged`, which names the first wrong key, or `ForeignDirectory` if another
    version of ZSQ wrote it.
    """
    try:
        loaded = documents.loads(raw, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise RegistryDamaged(
            f"{path} cannot be read: {'it is empty' if not raw else f'not JSON ({error})'}"
        ) from None
    try:
        data = _object(loaded, "it")
        if CHECKSUM in data:
            wanted = checksum(data)
            _need(
                data[CHECKSUM] == wanted, CHECKSUM, f"{wanted!r} for this content", data[CHECKSUM]
            )
        version = data.get("version")
        if type(version) is int and version > VERSION:
            raise newer("the registry", version, VERSION, path)
    except _WrongError as error:
        raise RegistryDamaged(f"{path} is damaged: {error}") from None
    try:
        return _content(data)
    except _WrongError as error:
        if CHECKSUM in data:
            raise ForeignDirectory(
                f"{path} is whole, but this zsq cannot read it: {error}; another version of zsq "
                "wrote it, so use that one"
            ) from None
        raise RegistryDamaged(f"{path} is damaged: {error}") from None


class _WrongError(Exception):
    pass


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _need(good: bool, key: str, wanted: str, value: object) -> None:
    if not good:
        raise _WrongError(f"{key} must be {wanted}, not {repr(value)[:80]}")


def _whole(value: object, key: str, low: int, high: int) -> int:
    _need(type(value) is int and low <= value <= high, key, f"a number from {low} to {high}", value)
    return cast("int", value)


def _uuid(value: object, key: str) -> str:
    _need(is_uuid(value), key, "32 hex digits", value)
    return cast("str", value)


def _one_of(value: object, key: str, known: Iterable[str], show: Callable[[str], str] = str) -> str:
    _need(
        isinstance(value, str) and value in known,
        key,
        f"one of {', '.join(map(show, known))}",
        value,
    )
    return cast("str", value)


def _object(value: object, key: str) -> dict[str, object]:
    _need(isinstance(value, dict), key, "an object", value)
    return cast("dict[str, object]", value)


def _keys(
    data: dict[str, object], key: str, needed: frozenset[str], optional: frozenset[str]
) -> None:
    for name in sorted(needed - data.keys()):
        raise _WrongError(f"{key}{name} is missing")
    for name in sorted(data.keys() - needed - optional):
        raise _WrongError(f"{key}{name[:80]} is not a known key")


def _name(value: str, key: str) -> str:
    try:
        return check_name(value)
    except UsageError as error:
        raise _WrongError(f"{key}: {error.text}") from None


def _content(data: dict[str, object]) -> Content:
    _keys(data, "", _KEYS, _OPTIONAL)
    _whole(data["version"], "version", VERSION, VERSION)
    content = Content(
        _uuid(data["uuid"], "uuid"),
        _whole(data["node"], "node", 0, NODE_MAX),
        checked=CHECKSUM in data,
        bucket=_uuid(data["bucket"], "bucket") if "bucket" in data else "",
    )
    content.next_number = _whole(data["next_number"], "next_number", 1, NUMBER_MAX)
    numbers: dict[int, str] = {}
    uuids: dict[str, str] = {}
    for name, row in _object(data["topics"], "topics").items():
        found = content.topics[_name(name, "topics")] = _row(
            _object(row, f"topics.{name}"), f"topics.{name}."
        )
        _need(
            found.number < content.next_number,
            f"topics.{name}.number",
            f"less than next_number ({content.next_number})",
            found.number,
        )
        other = numbers.setdefault(found.number, name)
        _need(
            other == name,
            f"topics.{name}.number",
            f"different from that of topic {other}",
            found.number,
        )
        other = uuids.setdefault(found.uuid, name)
        _need(
            other == name,
            f"topics.{name}.uuid",
            f"different from that of topic {other}",
            found.uuid,
        )
    for name, offset in _object(data["ended"], "ended").items():
        content.ended[_name(name, "ended")] = _whole(offset, f"ended.{name}", 0, OFFSET_MAX)
    for digest, record in _object(data.get("imports", {}), "imports").items():
        content.imports[digest] = _import(
            _object(record, f"imports.{digest}"), f"imports.{digest}."
        )
    content.parted = _parted(_object(data.get("parted", {}), "parted"))
    return content


def _parted(data: dict[str, object]) -> LocalParts:
    _keys(data, "parted.", frozenset(), frozenset({"topics", "removed"}))
    topics, removed = data.get("topics", []), data.get("removed", [])
    if not isinstance(topics, list) or not isinstance(removed, list):
        raise _WrongError("parted: topics and removed must be lists")
    entries: list[TopicEntry] = []
    directory = Directory()
    directory.add(BrokerEntry("", "", ()))
    for row in topics:
        entry = entry_of_row(_object(row, "parted.topics"))
        text = "parted.topics: not a topic with parts of one broker"
        if not isinstance(entry, TopicEntry):
            raise _WrongError(f"{text}: {row!r:.80}")
        if (objection := directory.objection(entry)) is not None:
            raise _WrongError(f"{text}: {objection.text}")
        directory.add(entry)
        entries.append(entry)
    return LocalParts(tuple(entries), tuple(_uuid(uuid, "parted.removed") for uuid in removed))


def _row(row: dict[str, object], key: str) -> TopicRow:
    _keys(row, key, _ROW_KEYS, frozenset({"retention", "closed"}) | _SPARSE)
    closed = _one_of(row.get("closed", closing.OPEN), f"{key}closed", closing.STATES, repr)
    sync = _one_of(row["sync"], f"{key}sync", SYNC_MODES)
    state = _one_of(row["state"], f"{key}state", STATES)
    return TopicRow(
        _whole(row["number"], f"{key}number", 1, NUMBER_MAX),
        _uuid(row["uuid"], f"{key}uuid"),
        sync,
        _whole(row["base_offset"], f"{key}base_offset", 0, OFFSET_MAX),
        state,
        _object(row.get("retention", {}), f"{key}retention"),
        closed,
        _owner(
            _object(row.get("dead_letters_of", {}), f"{key}dead_letters_of"),
            f"{key}dead_letters_of.",
        ),
        _uuid(row["part_of"], f"{key}part_of") if "part_of" in row else "",
        _whole(row.get("hold", 0), f"{key}hold", 0, NUMBER_MAX),
        _schedules(_object(row.get("schedules", {}), f"{key}schedules"), f"{key}schedules"),
    )


def _schedules(schedules: dict[str, object], key: str) -> dict[str, Mapping[str, Any]]:
    return {name: _object(row, f"{key}.{name[:80]}") for name, row in schedules.items()}


def decode_row(row: object, key: str) -> TopicRow:
    """Decode the row of one topic, of the registry of another broker. Raises `RegistryDamaged`."""
    try:
        return _row(_object(row, key), f"{key}.")
    except _WrongError as error:
        raise RegistryDamaged(str(error)) from None


def _owner(owner: dict[str, object], key: str) -> dict[str, str]:
    if not owner:
        return {}
    _keys(owner, key, frozenset({"uuid", "channel"}), frozenset())
    channel = owner["channel"]
    if not isinstance(channel, str):
        raise _WrongError(f"{key}channel must be a name, not {repr(channel)[:80]}")
    return {"uuid": _uuid(owner["uuid"], f"{key}uuid"), "channel": _name(channel, f"{key}channel")}


def _import(record: dict[str, object], key: str) -> ImportRecord:
    state, numbers = record.get("state"), record.get("numbers")
    _need(state in ("begun", "done"), f"{key}state", "begun or done", state)
    if state == "begun":
        if not isinstance(numbers, list):
            raise _WrongError(f"{key}numbers must be a list, not {repr(numbers)[:80]}")
        for number in numbers:
            _whole(number, f"{key}numbers", 1, NUMBER_MAX)
    return cast("ImportRecord", record)
