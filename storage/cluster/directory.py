"""Directory of a cluster: which brokers belong to it, and which broker has which part of a topic.
Pure.

The directory is a sequence of entries, numbered from 0 without gaps. An entry is never changed or
removed. Everybody who reads the same entries gets the same view.

| entry | meaning |
|---|---|
| broker | a broker, its addresses and its bucket; it gets the next free number, or keeps its own |
| topic | a topic with all its parts: the number of the broker of part 0, of part 1, and so on |
| part | one more part of a topic; its number is the number of parts so far |
| close | a part takes no more messages, at any broker |
| open | a part that was closed takes messages again |
| move | another broker shall have a part; the broker that has it now withdraws this |
| ready | that other broker lives, and is ready to take the part |
| give | the broker that had a part has released it, and another one has it now |
| taken | that other one has all of the part in its own bucket |
| remove part | a closed part is deleted; its number is not used again |
| remove | a topic and all its parts are deleted, perhaps only if all parts are closed |
| drain | a broker gives all its parts to others, or stops doing so |
| auto | whether brokers move parts by themselves, and how fast |
| forget | a broker is gone for good: its log of ticks has ended, and it gets no part any more |
| reclaim | a part of such a broker begins its next hold at another broker |

An entry may be *void*: nobody obeys it. `Directory.objection` says which entries are void. This
depends only on the entries before it. So whoever adds an entry reads it again to learn whether it
counts: somebody else may have been faster. Each entry has a random id. An entry whose id an earlier
entry has is void, so a writer that lost an answer may add its entry again.

The *hold* of a part is the number of times that it was given. A `move` names the hold that it is
about, and a `give` the next one. So the first `give` of a hold counts, and later ones are void.
Only the broker that has a part gives it, after its own bucket has that it did. So the directory
grants nothing that the log of that broker does not grant (tests/models/parts_model.py).

A broker that was forgotten cannot give its parts. A tick that ends its log stands for the release
(`storage/bucket/shipping/log_end.py`), so a `forget` is added only when this tick exists, and a
`reclaim` takes the place of the `give`. The `forget` of a broker without parts needs no such tick.
It counts only while no part is at the broker. A `drain` and a `forget` count only while another
broker is left that takes parts.

A `remove part` counts only while the part is closed, does not move, and another part is open. So
the order of the entries decides between a removal and an `open`, a `move`, or the removal of
another part. None of them needs a lock.

The rules of void entries are part of the format. A change of them needs a new version. A reader
stops at an entry of an unknown version or kind, because it cannot know what the entry changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Self

from ...transport.errors import (
    E_BAD_ARGUMENT,
    E_BAD_NAME,
    E_CLOSING,
    E_EXISTS,
    E_LIMIT,
    E_NOT_EMPTY,
    E_NOT_FOUND,
    UsageError,
)
from ...transport.names import PARTS_MAX, check_name, part_name, part_of
from .. import documents
from ..errors import NewerVersion
from ..foreign import is_uuid

VERSION: Final = 1
KIND: Final = "directory"
FOLDER: Final = "directory"
NOBODY: Final = -1
BROKERS_MAX: Final = 1_000
ADDRESSES_MAX: Final = 16  # of one broker
ADDRESS_CHARS_MAX: Final = 300
URL_CHARS_MAX: Final = 1_000


class BrokerEntry(NamedTuple):
    """A broker. `uuid` is that of its data directory, so a standby that takes over keeps it.

    `bucket` is the URL of its prefix, from which another broker takes a part that is given to it.
    """

    id: str
    uuid: str
    addresses: tuple[str, ...]
    bucket: str = ""


class TopicEntry(NamedTuple):
    """A new topic. `brokers`: the number of the broker of each part. `settings`: those of all
    parts, {"sync", "retention"} or less.

    A topic that one broker had alone before (`actors/supervisor/cluster/local_directory.py`) may
    have closed parts, and parts that were removed: `removed` has their numbers, and where their
    logs ended. Their broker is NOBODY.
    """

    id: str
    topic: str
    uuid: str
    brokers: tuple[int, ...]
    settings: Mapping[str, Any]
    closed: tuple[int, ...] = ()
    removed: tuple[tuple[int, int], ...] = ()


class PartEntry(NamedTuple):
    """One more part of the topic with this uuid."""

    id: str
    uuid: str
    broker: int


class CloseEntry(NamedTuple):
    """A part takes no more messages. `part` is its number in the topic with this uuid."""

    id: str
    uuid: str
    part: int


class OpenEntry(NamedTuple):
    """A part that was closed takes messages again."""

    id: str
    uuid: str
    part: int


class MoveEntry(NamedTuple):
    """The broker with the number `broker` shall have a part after this hold."""

    id: str
    uuid: str
    part: int
    hold: int
    broker: int


class ReadyEntry(NamedTuple):
    """The broker with the number `broker` shall have the part after this hold, and is ready."""

    id: str
    uuid: str
    part: int
    hold: int
    broker: int


class GiveEntry(NamedTuple):
    """A part begins the hold with this number at this broker.

    The broker of the hold before has released it. `log` is the uuid of the part's log, and `tick`
    the number of a tick of that broker that exists since.
    """

    id: str
    uuid: str
    part: int
    hold: int
    broker: int
    log: str
    tick: int


class TakenEntry(NamedTuple):
    """The broker of this hold has all of the part in its bucket."""

    id: str
    uuid: str
    part: int
    hold: int


class RemovePartEntry(NamedTuple):
    """A part is deleted. Its log ended before the offset `end`. `hold`: its hold at this time."""

    id: str
    uuid: str
    part: int
    hold: int
    end: int


class RemoveEntry(NamedTuple):
    """The topic with this uuid is deleted. `is_drained`: only if no part takes messages, because
    somebody has found that all of them are finished.
    """

    id: str
    uuid: str
    is_drained: bool = False


class DrainEntry(NamedTuple):
    """The broker with the number `broker` moves its parts to others, `concurrency` at a time, or
    does not so any more.
    """

    id: str
    broker: int
    is_draining: bool
    concurrency: int


class AutoEntry(NamedTuple):
    """The setting of the cluster that brokers balance their parts by themselves, or not. 0 means
    no limit, and never.

    `concurrency` parts move at a time, and a broker moves `rate` bytes in a second. A broker that
    does not announce itself for `gone_after_s` seconds is forgotten.
    """

    id: str
    is_on: bool
    rate: int
    concurrency: int
    gone_after_s: int


class ForgetEntry(NamedTuple):
    """The broker with the number `broker` is gone for good. `tick` ended its log, and is NOBODY
    for a broker without parts, whose log goes on.
    """

    id: str
    broker: int
    tick: int


class ReclaimEntry(NamedTuple):
    """A part of a broker that was forgotten begins the hold with this number at another broker.

    `log`: the uuid of its log. `tick`: the number of a tick in the bucket of the broker `source`,
    which has the part. `source` is NOBODY if no bucket has anything of it.
    """

    id: str
    uuid: str
    part: int
    hold: int
    broker: int
    log: str
    tick: int
    source: int


class Unusable(NamedTuple):
    """An intact entry without the fields of its kind. It is void."""

    why: str


Entry = (
    BrokerEntry | TopicEntry | PartEntry | CloseEntry | OpenEntry | MoveEntry | ReadyEntry
    | GiveEntry | TakenEntry | RemovePartEntry | RemoveEntry | DrainEntry | AutoEntry | ForgetEntry
    | ReclaimEntry
)  # fmt: skip
_Move = MoveEntry | ReadyEntry | GiveEntry | TakenEntry
_NAMES: Final[Mapping[type[Entry], str]] = {
    BrokerEntry: "broker",
    TopicEntry: "topic",
    PartEntry: "part",
    CloseEntry: "close",
    OpenEntry: "open",
    MoveEntry: "move",
    ReadyEntry: "ready",
    GiveEntry: "give",
    TakenEntry: "taken",
    RemovePartEntry: "remove part",
    RemoveEntry: "remove",
    DrainEntry: "drain",
    AutoEntry: "auto",
    ForgetEntry: "forget",
    ReclaimEntry: "reclaim",
}
_KINDS: Final[Mapping[str, type[Entry]]] = {name: kind for kind, name in _NAMES.items()}


def entry_object(number: int) -> str:
    """Return the name of the object of an entry."""
    return f"{FOLDER}/{number:020d}"


def entry_number(name: str) -> int:
    """Return the number in the name of an entry's object, or -1 for another name."""
    folder, _, digits = name.rpartition("/")
    is_number = len(digits) == 20 and digits.isascii() and digits.isdecimal()
    return int(digits) if folder == FOLDER and is_number else -1


def encode_entry(entry: Entry) -> bytes:
    """Return the content of the entry's object."""
    return documents.encode_line(KIND, VERSION, row_of_entry(entry))


def decode_entry(raw: bytes) -> Entry | Unusable:
    """Return the entry. Raises `Damaged`, or `ForeignDirectory` for another version or kind."""
    return entry_of_row(documents.decode_line(raw, KIND, VERSION))


def row_of_entry(entry: Entry) -> dict[str, Any]:
    """Return the entry as an object of JSON."""
    return {"kind": _NAMES[type(entry)], **entry._asdict()}


def entry_of_row(row: Mapping[str, Any]) -> Entry | Unusable:
    """Return the entry from an object of JSON. Raises `ForeignDirectory` for an unknown kind."""
    name = row.get("kind")
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise NewerVersion(
            f"the directory has an entry of the unknown kind {str(name)[:80]!r}; use a newer zsq"
        )
    fields = kind._fields
    for field in fields:
        if field not in row:
            return Unusable(f"{field} is missing")
        if why := _CHECKS[field](row[field]):
            return Unusable(f"{field} must be {why}, not {repr(row[field])[:80]}")
    values = {field: row[field] for field in fields}
    for field in ("addresses", "brokers", "closed"):
        if field in values:
            values[field] = tuple(values[field])
    if "removed" in values:
        values["removed"] = tuple(map(tuple, values["removed"]))
    return kind(**values)


def _hex(value: object) -> str:
    good = is_uuid(value)
    return "" if good else "32 hex digits"


def _bool(value: object) -> str:
    return "" if isinstance(value, bool) else "true or false"


def _text(value: object) -> str:
    return "" if isinstance(value, str) else "a text"


def _number(value: object) -> str:
    return "" if type(value) is int else "a number"


def _numbers(value: object) -> str:
    good = isinstance(value, list) and all(type(number) is int for number in value)
    return "" if good else "a list of numbers"


def _ends(value: object) -> str:
    good = isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and not any(map(_count, pair)) for pair in value
    )
    return "" if good else "a list of pairs: a number, and an offset"


def _addresses(value: object) -> str:
    good = isinstance(value, list) and 0 < len(value) <= ADDRESSES_MAX
    good = good and all(
        isinstance(address, str) and 0 < len(address) <= ADDRESS_CHARS_MAX
        for address in value  # type: ignore[attr-defined]
    )
    return "" if good else f"a list of 1 to {ADDRESSES_MAX} addresses"


def _count(value: object) -> str:
    return "" if type(value) is int and value >= 0 else "a number from 0 on"


def _place(value: object) -> str:
    return "" if type(value) is int and value >= NOBODY else "a number from -1 on"


def _url(value: object) -> str:
    good = isinstance(value, str) and len(value) <= URL_CHARS_MAX
    return "" if good else f"a URL of at most {URL_CHARS_MAX} characters"


def _settings(value: object) -> str:
    return "" if isinstance(value, dict) else "an object"


_CHECKS: Final = {
    "id": _hex,
    "uuid": _hex,
    "topic": _text,
    "broker": _number,
    "part": _number,
    "brokers": _numbers,
    "closed": _numbers,
    "removed": _ends,
    "addresses": _addresses,
    "bucket": _url,
    "hold": _count,
    "end": _count,
    "is_drained": _bool,
    "log": _hex,
    "tick": _place,
    "source": _place,
    "settings": _settings,
    "is_draining": _bool,
    "is_on": _bool,
    "concurrency": _count,
    "rate": _count,
    "gone_after_s": _count,
}


class Broker(NamedTuple):
    """A broker of the cluster. Numbers count from 0 in the order of the first entries.

    `draining`: how many parts it gives away at a time, 0 if it keeps them. `gone`: it was
    forgotten.
    """

    number: int
    uuid: str
    addresses: tuple[str, ...]
    bucket: str = ""
    draining: int = 0
    gone: bool = False

    @property
    def takes_parts(self) -> bool:
        return not self.draining and not self.gone


class Auto(NamedTuple):
    """The setting `auto` of the cluster, see `AutoEntry`."""

    is_on: bool = False
    rate: int = 0
    concurrency: int = 1
    gone_after_s: int = 0


class Hold(NamedTuple):
    """The current hold of a part.

    `to` is the broker that shall have the part next, and `is_ready` is True if it said that it is
    ready. `origin` is the broker that had it before and keeps its files, until this broker has
    them. Both are NOBODY if there is none. `log` and `tick` are those of the `give`.
    `reserves`: how many brokers were forgotten since the log that this hold begins with. Each of
    them may have given out offsets that no bucket has. If no bucket had the part, `log` is "", and
    the part begins anew.
    """

    number: int = 0
    to: int = NOBODY
    is_ready: bool = False
    origin: int = NOBODY
    log: str = ""
    tick: int = 0
    reserves: int = 0

    @property
    def is_empty(self) -> bool:
        """True if the part has no messages from a hold before."""
        return not self.number or (self.reserves > 0 and not self.log)


FIRST_HOLD: Final = Hold()


class PartedTopic(NamedTuple):
    """A topic with parts. `parts` has the number of the broker of each part, and NOBODY for each
    part that was removed.

    `closed`: the numbers of the parts that take no more messages. `holds`: the parts with another
    hold than FIRST_HOLD. `ends`: the parts that were removed, and where their logs ended.
    """

    topic: str
    uuid: str
    parts: tuple[int, ...]
    settings: Mapping[str, Any]
    closed: frozenset[int] = frozenset()
    holds: Mapping[int, Hold] = {}
    ends: Mapping[int, int] = {}

    def hold(self, part: int) -> Hold:
        return self.holds.get(part, FIRST_HOLD)

    @property
    def places(self) -> Mapping[int, int]:
        """The parts that were not removed, and the numbers of their brokers."""
        return {part: at for part, at in enumerate(self.parts) if at != NOBODY}

    def why_missing(self, part: int) -> str:
        """Return why there is no part with this number, or "" if there is one."""
        if part in self.ends:
            return f"part {part_name(self.topic, part)} was removed"
        is_known = 0 <= part < len(self.parts)
        return "" if is_known else f"topic {self.topic} has no part {part}"

    def as_entry(self, id: str) -> TopicEntry:
        """Return the entry that creates this topic as it is. No part may have moved."""
        removed = tuple(sorted(self.ends.items()))
        return TopicEntry(
            id, self.topic, self.uuid, self.parts, self.settings, tuple(sorted(self.closed)),
            removed,
        )  # fmt: skip

    def with_hold(self, part: int, hold: Hold) -> Self:
        return self._replace(holds={**self.holds, part: hold})


class Objection(NamedTuple):
    """The reason why an entry is void, with a code of `transport/errors.py`."""

    code: str
    text: str


class Directory:
    """The view of the cluster after the entries that were applied.

    `topics` and `removed` must not be changed by others. `removed` has the uuids of topics.
    """

    def __init__(self) -> None:
        self.next = 0  # the number of the next entry
        self.topics: dict[str, PartedTopic] = {}
        self.removed: set[str] = set()
        self.auto = Auto()
        self._brokers: list[Broker] = []
        self._number_of: dict[str, int] = {}  # of each broker, by its uuid
        self._names: dict[str, str] = {}  # of each topic that was not removed, by its uuid
        self._ids: dict[str, int] = {}  # the number of the first entry with this id

    @property
    def brokers(self) -> tuple[Broker, ...]:
        return tuple(self._brokers)

    def broker(self, uuid: str) -> Broker | None:
        """Return the broker with this uuid."""
        number = self._number_of.get(uuid)
        return None if number is None else self._brokers[number]

    def topic_of(self, uuid: str) -> PartedTopic | None:
        """Return the topic with this uuid, unless it was removed."""
        name = self._names.get(uuid)
        return None if name is None else self.topics[name]

    def number_of(self, id: str) -> int | None:
        """Return the number of the entry with this id, if there is one. It may be void."""
        return self._ids.get(id)

    def apply(self, number: int, raw: bytes) -> bool:
        """Apply the entry with this number. Return True if it counts.

        Return False if it is void, or was applied before. Raises `ValueError` if an entry before it
        is missing, and otherwise as `decode_entry`. The view is unchanged then.
        """
        if number < self.next:
            return False
        if number > self.next:
            raise ValueError(f"entry {number} of the directory comes before entry {self.next}")
        entry = decode_entry(raw)
        self.next += 1
        if isinstance(entry, Unusable):
            return False
        counts = self.objection(entry) is None
        self._ids.setdefault(entry.id, number)
        if counts:
            self._obey(entry)
        return counts

    def add(self, entry: Entry) -> Objection | None:
        """Apply an entry that was not written, as the next one, unless it would be void.

        Return why it would be.
        """
        objection = self.objection(entry)
        if objection is None:
            self._ids[entry.id] = self.next
            self.next += 1
            self._obey(entry)
        return objection

    def _obey(self, entry: Entry) -> None:
        match entry:
            case BrokerEntry(uuid=uuid, addresses=addresses, bucket=bucket):
                number = self._number_of.setdefault(uuid, len(self._brokers))
                known = self._brokers[number : number + 1] or [Broker(number, uuid, ())]
                changed = known[0]._replace(addresses=addresses, bucket=bucket)
                self._brokers[number : number + 1] = [changed]
            case TopicEntry():
                parted = PartedTopic(
                    entry.topic, entry.uuid, entry.brokers, entry.settings,
                    closed=frozenset(entry.closed), ends=dict(entry.removed),
                )  # fmt: skip
                self.topics[entry.topic] = parted
                self._names[entry.uuid] = entry.topic
            case PartEntry():
                name = self._names[entry.uuid]
                topic = self.topics[name]
                self.topics[name] = topic._replace(parts=(*topic.parts, entry.broker))
            case CloseEntry():
                name = self._names[entry.uuid]
                topic = self.topics[name]
                self.topics[name] = topic._replace(closed=topic.closed | {entry.part})
            case OpenEntry():
                name = self._names[entry.uuid]
                topic = self.topics[name]
                self.topics[name] = topic._replace(closed=topic.closed - {entry.part})
            case MoveEntry() | ReadyEntry() | GiveEntry() | TakenEntry():
                name = self._names[entry.uuid]
                self.topics[name] = _moved(self.topics[name], entry)
            case RemovePartEntry():
                name = self._names[entry.uuid]
                self.topics[name] = _without(self.topics[name], entry)
            case RemoveEntry():
                del self.topics[self._names.pop(entry.uuid)]
                self.removed.add(entry.uuid)
            case DrainEntry(broker=number):
                draining = max(1, entry.concurrency) if entry.is_draining else 0
                self._brokers[number] = self._brokers[number]._replace(draining=draining)
            case AutoEntry():
                self.auto = Auto(entry.is_on, entry.rate, entry.concurrency, entry.gone_after_s)
            case ForgetEntry(broker=number):
                self._brokers[number] = self._brokers[number]._replace(draining=0, gone=True)
                for name, topic in self.topics.items():
                    self.topics[name] = _without_moves_to(topic, number)
            case ReclaimEntry():
                name = self._names[entry.uuid]
                self.topics[name] = _reclaimed(self.topics[name], entry)

    def objection(self, entry: Entry) -> Objection | None:
        """Return why this entry would be void as the next one, or None if it would count."""
        if entry.id in self._ids:
            return Objection(E_EXISTS, f"entry {self._ids[entry.id]} has the same id")
        match entry:
            case BrokerEntry():
                if (known := self.broker(entry.uuid)) is not None and known.gone:
                    return _forgotten(known.number)
                if known is None and len(self._brokers) >= BROKERS_MAX:
                    return Objection(E_LIMIT, f"the cluster has {BROKERS_MAX} brokers, the limit")
                return None
            case TopicEntry():
                return self._of_topic(entry)
            case PartEntry():
                return self._of_part(entry)
            case CloseEntry() | OpenEntry():
                return self._of_change(entry)
            case MoveEntry() | ReadyEntry() | GiveEntry() | TakenEntry():
                return self._of_move(entry)
            case RemovePartEntry():
                return self._of_removal(entry)
            case RemoveEntry():
                return self._of_topic_removal(entry)
            case DrainEntry() | ForgetEntry():
                return self._of_leaving(entry)
            case AutoEntry():
                return None
            case ReclaimEntry():
                return self._of_reclaim(entry)

    def _of_topic(self, entry: TopicEntry) -> Objection | None:
        if entry.topic in self.topics:
            return Objection(E_EXISTS, f"topic {entry.topic} exists")
        if entry.uuid in self._names or entry.uuid in self.removed:
            return Objection(E_EXISTS, f"a topic with the uuid {entry.uuid} exists or was removed")
        if (why := why_unfit(entry.topic)) is not None:
            return Objection(E_BAD_NAME, why)
        if not 0 < len(entry.brokers) <= PARTS_MAX:
            text = f"a topic has 1 to {PARTS_MAX} parts, not {len(entry.brokers)}"
            return Objection(E_BAD_ARGUMENT, text)
        places = dict(enumerate(entry.brokers))
        good = all(places.pop(part, 0) == NOBODY for part, _ in entry.removed)
        if not (good and places and places.keys() >= {*entry.closed}):
            text = f"the closed and removed parts of topic {entry.topic} are not among its parts"
            return Objection(E_BAD_ARGUMENT, text)
        for broker in places.values():
            if (objection := self._of_broker(broker)) is not None:
                return objection
        return None

    def _of_part(self, entry: PartEntry) -> Objection | None:
        if (objection := self._of_unknown(entry.uuid)) is not None:
            return objection
        topic = self.topics[self._names[entry.uuid]]
        if len(topic.parts) >= PARTS_MAX:
            return Objection(E_LIMIT, f"topic {topic.topic} has {PARTS_MAX} parts, the limit")
        return self._of_broker(entry.broker)

    def _of_move(self, entry: _Move) -> Objection | None:
        if (objection := self._of_change(entry)) is not None:
            return objection
        topic = self.topics[self._names[entry.uuid]]
        name, hold = part_name(topic.topic, entry.part), topic.hold(entry.part)
        wanted = hold.number + isinstance(entry, GiveEntry)
        if entry.hold != wanted:
            text = f"part {name} was moved meanwhile: the hold is {wanted}, not {entry.hold}"
            return Objection(E_EXISTS, text)
        if isinstance(entry, TakenEntry):
            is_done = hold.origin == NOBODY
            return Objection(E_EXISTS, f"part {name} is not being taken over") if is_done else None
        if isinstance(entry, ReadyEntry) and hold.to != entry.broker:
            return Objection(E_EXISTS, f"part {name} shall not move to broker {entry.broker}")
        if hold.origin != NOBODY:
            at = topic.parts[entry.part]
            return Objection(E_EXISTS, f"part {name} is still being taken over by broker {at}")
        return self._of_broker(entry.broker)

    def _of_leaving(self, entry: DrainEntry | ForgetEntry) -> Objection | None:
        if (objection := self._of_broker(entry.broker)) is not None:
            return objection
        is_undo = isinstance(entry, DrainEntry) and not entry.is_draining
        if not is_undo and not any(
            broker.takes_parts for broker in self._brokers if broker.number != entry.broker
        ):
            text = f"no broker but {entry.broker} takes parts: add one, or end another drain"
            return Objection(E_BAD_ARGUMENT, text)
        if isinstance(entry, ForgetEntry) and entry.tick == NOBODY and self.has_parts(entry.broker):
            return Objection(E_NOT_EMPTY, f"broker {entry.broker} has parts")
        return None

    def has_parts(self, number: int) -> bool:
        """Return True if a broker has a part, or the files of one that another broker takes."""
        return any(
            number in topic.parts or any(hold.origin == number for hold in topic.holds.values())
            for topic in self.topics.values()
        )

    def _of_reclaim(self, entry: ReclaimEntry) -> Objection | None:
        if (objection := self._of_change(entry)) is not None:
            return objection
        topic = self.topics[self._names[entry.uuid]]
        name, hold = part_name(topic.topic, entry.part), topic.hold(entry.part)
        at = topic.parts[entry.part]
        if not self._brokers[at].gone or entry.hold != hold.number + 1:
            return Objection(E_EXISTS, f"part {name} is at broker {at}, with hold {hold.number}")
        if entry.source not in (at, hold.origin):
            return Objection(E_BAD_ARGUMENT, f"part {name} was never at broker {entry.source}")
        return self._of_broker(entry.broker)

    def _of_topic_removal(self, entry: RemoveEntry) -> Objection | None:
        if (objection := self._of_unknown(entry.uuid)) is not None or not entry.is_drained:
            return objection
        topic = self.topics[self._names[entry.uuid]]
        if not (open_ := sorted(topic.places.keys() - topic.closed)):
            return None
        text = f"part {part_name(topic.topic, open_[0])} is open to publishers"
        return Objection(E_NOT_EMPTY, f"{text}: close the topic first (zsq topic close)")

    def _of_removal(self, entry: RemovePartEntry) -> Objection | None:
        if (objection := self._of_change(entry)) is not None:
            return objection
        topic = self.topics[self._names[entry.uuid]]
        name, hold = part_name(topic.topic, entry.part), topic.hold(entry.part)
        if (hold.number, hold.to, hold.origin) != (entry.hold, NOBODY, NOBODY):
            text = f"part {name} is being moved, or was moved meanwhile"
            return Objection(E_CLOSING, f"{text}: withdraw the move, or wait for its end")
        if not topic.places.keys() - topic.closed - {entry.part}:
            text = f"topic {topic.topic} has no other part that is open to publishers"
            return Objection(E_BAD_ARGUMENT, f"{text}: open or add one, or delete the topic")
        if entry.part not in topic.closed:
            text = f"part {name} is open to publishers: close it first (zsq topic close {name})"
            return Objection(E_NOT_EMPTY, text)
        return None

    def _of_change(
        self, entry: CloseEntry | OpenEntry | RemovePartEntry | ReclaimEntry | _Move
    ) -> Objection | None:
        if (objection := self._of_unknown(entry.uuid)) is not None:
            return objection
        topic = self.topics[self._names[entry.uuid]]
        why = topic.why_missing(entry.part)
        return Objection(E_NOT_FOUND, why) if why else None

    def _of_unknown(self, uuid: str) -> Objection | None:
        if uuid in self._names:
            return None
        fate = "was removed" if uuid in self.removed else "does not exist"
        return Objection(E_NOT_FOUND, f"the topic with the uuid {uuid} {fate}")

    def _of_broker(self, number: int) -> Objection | None:
        if not 0 <= number < len(self._brokers):
            return Objection(E_NOT_FOUND, f"the cluster has no broker {number}")
        return _forgotten(number) if self._brokers[number].gone else None


def _moved(topic: PartedTopic, entry: _Move) -> PartedTopic:
    part, hold = entry.part, topic.hold(entry.part)
    at = topic.parts[part]
    match entry:
        case MoveEntry(broker=broker):
            to = NOBODY if broker == at else broker
            return topic.with_hold(part, hold._replace(to=to, is_ready=False))
        case ReadyEntry():
            return topic.with_hold(part, hold._replace(is_ready=True))
        case GiveEntry(broker=broker, hold=number, log=log, tick=tick):
            origin = NOBODY if broker == at else at
            new_hold = Hold(number, origin=origin, log=log, tick=tick)
            changed = topic.with_hold(part, new_hold)
            return changed._replace(parts=(*topic.parts[:part], broker, *topic.parts[part + 1 :]))
        case TakenEntry():
            return topic.with_hold(part, hold._replace(origin=NOBODY))


def _forgotten(number: int) -> Objection:
    return Objection(E_NOT_FOUND, f"broker {number} was forgotten, so it belongs to no cluster")


def _without_moves_to(topic: PartedTopic, broker: int) -> PartedTopic:
    for part, hold in topic.holds.items():
        if hold.to == broker:
            topic = topic.with_hold(part, hold._replace(to=NOBODY, is_ready=False))
    return topic


def _reclaimed(topic: PartedTopic, entry: ReclaimEntry) -> PartedTopic:
    part, broker = entry.part, entry.broker
    # A broker that has released the part, and still has its files, simply goes on with them.
    origin = NOBODY if broker == entry.source else entry.source
    log = "" if entry.source == NOBODY else entry.log
    # What the forgotten broker had shipped may lack the gap that it began behind.
    reserves = topic.hold(part).reserves + 1
    hold = Hold(entry.hold, origin=origin, log=log, tick=max(0, entry.tick), reserves=reserves)
    changed = topic.with_hold(part, hold)
    return changed._replace(parts=(*topic.parts[:part], broker, *topic.parts[part + 1 :]))


def _without(topic: PartedTopic, entry: RemovePartEntry) -> PartedTopic:
    part = entry.part
    return topic._replace(
        parts=(*topic.parts[:part], NOBODY, *topic.parts[part + 1 :]),
        closed=topic.closed - {part},
        holds={number: hold for number, hold in topic.holds.items() if number != part},
        ends={**topic.ends, part: entry.end},
    )


def why_unfit(topic: str) -> str | None:
    """Return why a topic with parts cannot have this name, or None if it can."""
    try:
        check_name(topic)
    except UsageError as error:
        return error.text
    last = part_name(topic, PARTS_MAX - 1)
    if part_of(last) is None:
        return (
            f"topic name {topic!r} is not legal for a topic with parts: there must be room for the "
            f"largest number of a part, as in {last!r}, and no other # in it"
        )
    return None
