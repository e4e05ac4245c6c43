"""View of the cluster that this broker belongs to: how it answers requests about topics with parts,
and which parts it opens and deletes. Pure.

The view is what this broker has read of the directory (`storage/cluster/directory.py`), which may
lag behind. So there are rules for what is not in it:

* Nothing is deleted because it is missing in the view. A part is deleted only if the directory says
  that its topic was removed. A part of a topic that the directory does not know stays and works.
* A part that the view does not know is refused only after the directory was read once more. Another
  broker may have sent the client.
* A topic without parts is created only after the directory was read once more. Otherwise its
  messages would be hidden by a topic with parts of the same name.
* Until the directory was read, only topics and parts that exist at this broker are known. All other
  requests wait for it, and are refused if it cannot be read.

`local` has the topics of this broker. Their rows say of which topic they are a part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from ....storage.cluster.directory import (
    CloseEntry,
    Directory,
    OpenEntry,
    PartedTopic,
    PartEntry,
    RemoveEntry,
    TopicEntry,
    why_unfit,
)
from ....storage.errors import Damaged, ForeignDirectory
from ....transport.errors import (
    E_BAD_ARGUMENT,
    E_BAD_NAME,
    E_CLOSING,
    E_EXISTS,
    E_LIMIT,
    E_NOT_EMPTY,
    E_NOT_FOUND,
    E_PARTS,
    E_UNSUPPORTED,
    NotFound,
    Refused,
    UsageError,
)
from ....transport.names import PARTS_MAX, is_ephemeral, part_name, part_of
from ....transport.wire import protocol as p
from ...settings import closing
from ..topics.registry_format import TopicRow

_AGAIN: Final = "try again in a moment"
_TROUBLES_MAX: Final = 5  # parts that are named in a report


class Go(Enum):
    """The next step of a request that is not answered with a `Spread` or an error."""

    HERE = "carry it out, as for any topic of this broker"
    READ = "read the directory first, then ask again"


class Open(NamedTuple):
    """A part that is missing here. `topic` is the topic as the directory has it."""

    name: str
    topic: PartedTopic


class Adopt(NamedTuple):
    """A part whose row does not say of which topic it is a part."""

    name: str
    uuid: str


class Delete(NamedTuple):
    """A part of a topic that was removed."""

    name: str


Step = Open | Adopt | Delete


class ClusterView:
    """The view of the broker with this uuid. `local` is not copied, so it may change."""

    def __init__(self, uuid: str, local: Mapping[str, TopicRow]) -> None:
        self.directory = Directory()
        self.is_read = False
        """True after the whole directory was read once."""
        self.unread = ""
        """Why the directory cannot be read at the moment, or ""."""
        self.failures: dict[str, str] = {}
        """The parts with a step that failed. The text follows the name of the part."""
        self.conflicts: dict[str, str] = {}
        """The topics of this broker that contradict the directory, each with a sentence."""
        self._uuid = uuid
        self._local = local
        self._stuck = ""

    @property
    def me(self) -> int | None:
        """The number of this broker. It has none before its entry was read."""
        found = self.directory.broker(self._uuid)
        return None if found is None else found.number

    @property
    def trouble(self) -> str:
        """The trouble of the cluster as a text, or ""."""
        found = [f"part {name} {why}" for name, why in self.failures.items()]
        found += self.conflicts.values()
        more = [f"and {len(found) - _TROUBLES_MAX} more"] if len(found) > _TROUBLES_MAX else []
        return "; ".join(filter(None, [self._stuck or self.unread, *found[:_TROUBLES_MAX], *more]))

    def take(self, first: int, entries: Iterable[bytes], is_all: bool) -> None:
        """Apply entries of the directory. The first one has the number `first`."""
        if self._stuck:
            return
        for number, entry in enumerate(entries, first):
            try:
                self.directory.apply(number, entry)
            except (Damaged, ForeignDirectory, ValueError) as error:
                self._stuck = f"entry {number} of the cluster's directory cannot be used: {error}"
                return
        self.is_read = self.is_read or is_all

    # Requests

    def lookup(self, message: p.Lookup, is_fresh: bool) -> Go | p.Spread:
        """Return what to do with a Lookup, or raise its error.

        `is_fresh`: the directory was read since the request came.
        """
        return self._find(message.topic, message.create, is_fresh)

    def stats(self, message: p.Stats, is_fresh: bool) -> Go | p.Spread:
        """Return what to do with a request for statistics."""
        return self._find(message.topic, False, is_fresh) if message.topic else Go.HERE

    def manage(self, message: p.Manage, is_fresh: bool) -> Go | p.Spread:
        """Return what to do with an order about a topic that may have parts elsewhere.

        Orders that change the directory are not for this method.
        """
        topic = message.topic
        if message.action == "create" and not message.channel:
            if part_of(topic) is not None:
                raise UsageError(
                    E_BAD_NAME,
                    f"{topic!r} is the name of a part, and parts are created with their topic; "
                    "use another name, or add a part to the topic",
                )
            if topic in self.directory.topics:
                raise UsageError(E_EXISTS, f"topic {topic!r} exists already, and has parts")
        found = part_of(topic)
        if message.action == "delete" and not message.channel and found is not None:
            parted = self.directory.topics.get(found[0])
            if parted is not None and found[1] < len(parted.parts):
                raise UsageError(
                    E_UNSUPPORTED,
                    f"part {topic!r} cannot be deleted alone; delete topic {found[0]!r} with all "
                    "its parts",
                )
        return self._find(topic, message.action == "create", is_fresh)

    def _find(self, topic: str, creates: bool, is_fresh: bool) -> Go | p.Spread:
        if (found := part_of(topic)) is not None:
            return self._find_part(topic, *found, is_fresh)
        parted = self.directory.topics.get(topic)
        if parted is not None:
            return self._spread(parted)
        if topic in self._local or is_ephemeral(topic):
            return Go.HERE
        if not self.is_read:
            if not is_fresh:
                return Go.READ
            raise self._unknown(f"whether topic {topic!r} has parts")
        return Go.READ if creates and not is_fresh else Go.HERE

    def _find_part(self, name: str, topic: str, number: int, is_fresh: bool) -> Go | p.Spread:
        row, parted = self._local.get(name), self.directory.topics.get(topic)
        if parted is None or number >= len(parted.parts):
            if row is not None and row.part_of not in self.directory.removed:
                return Go.HERE
            if not is_fresh:
                return Go.READ
            if not self.is_read:
                raise self._unknown(f"where part {name!r} is")
            known = f"has no part {number}" if parted is not None else "has no parts"
            raise NotFound(E_NOT_FOUND, f"topic {topic!r} {known} in this cluster")
        if parted.parts[number] != self.me:
            return self._spread(parted)
        if row is None or row.part_of not in ("", parted.uuid) or row.state == "deleting":
            why = self.failures.get(name) or self.conflicts.get(name)
            text = f"part {name!r} is being opened{f': {why}' if why else ''}; {_AGAIN}"
            raise Refused(E_CLOSING, text)
        return Go.HERE

    def _unknown(self, what: str) -> Refused:
        why = self._stuck or self.unread
        text = (
            f"this broker has not read the directory of its cluster yet, so it does not know {what}"
        )
        return Refused(E_CLOSING, f"{text}{f' ({why})' if why else ''}; {_AGAIN}")

    def _spread(self, parted: PartedTopic) -> p.Spread:
        """Return where the parts are. The number of the request is 0."""
        brokers = self.directory.brokers
        used = sorted({*parted.parts})
        return p.Spread(
            0,
            parted.topic,
            parted.uuid,
            tuple(enumerate(parted.parts)),
            tuple((number, brokers[number].addresses) for number in used),
            tuple(sorted(parted.closed)),
        )

    def refusal(self, topic: str) -> UsageError:
        """Return the error for a sender that cannot follow a `Spread`."""
        here = [name for name in self._local if (found := part_of(name)) and found[0] == topic]
        text = f"topic {topic!r} has parts at several brokers"
        which = f"name a part of this broker, such as {min(here)!r}" if here else "name a part"
        return UsageError(E_PARTS, f"{text}: use a client of ZSQ, or {which}")

    # Changes of the directory

    def is_parted(self, topic: str) -> bool:
        return topic in self.directory.topics

    def new_topic(
        self, message: p.Manage, id: str, uuid: str, settings: Mapping[str, Any]
    ) -> TopicEntry:
        """Return the entry of a new topic with parts, or raise the error of the request."""
        topic, given = message.topic, message.options
        self._check_read()
        if (why := why_unfit(topic)) is not None:
            raise UsageError(E_BAD_NAME, why)
        if topic in self.directory.topics or topic in self._local:
            raise UsageError(E_EXISTS, f"topic {topic!r} exists already")
        count = _count(given.get("parts"), "parts")
        brokers = self._brokers(given.get("brokers"))
        start = 0 if given.get("brokers") else crc32c(topic.encode())
        places = tuple(brokers[(start + part) % len(brokers)] for part in range(count))
        return TopicEntry(id, topic, uuid, places, settings)

    def _brokers(self, asked: object) -> Sequence[int]:
        """Return the numbers of the brokers that were asked for, or of all."""
        known = range(len(self.directory.brokers))
        if not asked:
            if not known:
                raise Refused(E_CLOSING, f"no broker has joined this cluster yet; {_AGAIN}")
            return known
        if not isinstance(asked, list | tuple) or not all(
            type(one) is int and one in known for one in asked
        ):
            raise UsageError(
                E_BAD_ARGUMENT,
                f"brokers must be numbers from 0 to {len(known) - 1}, as this cluster has "
                f"{len(known)} brokers, not {repr(asked)[:80]}",
            )
        return asked

    def more_parts(self, message: p.Manage, ids: Iterable[str]) -> list[PartEntry]:
        """Return the entries of new parts: at the brokers that have the fewest parts of the topic,
        of all or of those that were asked for.

        Raises the error of the request. `ids` has at least `PARTS_MAX` ids for the entries.
        """
        parted = self._parted(message.topic)
        count = _count(message.options.get("count"), "count")
        if len(parted.parts) + count > PARTS_MAX:
            raise Refused(
                E_LIMIT,
                f"topic {parted.topic!r} has {len(parted.parts)} parts, and a topic has at most "
                f"{PARTS_MAX}; add at most {PARTS_MAX - len(parted.parts)}",
            )
        numbers = self._brokers(message.options.get("brokers"))
        of_each = {number: parted.parts.count(number) for number in numbers}
        found = []
        for id, _ in zip(ids, range(count), strict=False):
            broker = min(numbers, key=lambda number: (of_each[number], number))
            of_each[broker] += 1
            found.append(PartEntry(id, parted.uuid, broker))
        return found

    def removal(self, message: p.Manage, id: str) -> RemoveEntry:
        """Return the entry that deletes a topic with its parts, or raise its error."""
        parted = self._parted(message.topic)
        if not message.options.get("force"):
            raise Refused(
                E_NOT_EMPTY,
                f"topic {parted.topic!r} has parts at several brokers, and this broker does not "
                "know whether they have messages that are not finished; delete it with force",
            )
        return RemoveEntry(id, parted.uuid)

    def change(self, message: p.Manage, id: str) -> CloseEntry | OpenEntry | None:
        """Return the entry that tells producers of this `close` or `open` of a part of this broker.

        It is None if they know already, or need not know. Raises the error of the request.
        """
        found, row = part_of(message.topic), self._local.get(message.topic)
        parted = self.directory.topics.get(found[0]) if found is not None else None
        if found is None or row is None or parted is None or row.part_of != parted.uuid:
            return None
        state = closing.after(row.closed, message.action, message.options)
        if (is_closed := closing.to_publishers(state)) == (found[1] in parted.closed):
            return None
        return (CloseEntry if is_closed else OpenEntry)(id, parted.uuid, found[1])

    def _parted(self, topic: str) -> PartedTopic:
        self._check_read()
        parted = self.directory.topics.get(topic)
        if parted is not None:
            return parted
        if topic in self._local:
            text = f"topic {topic!r} has no parts; create another topic with parts"
            raise UsageError(E_BAD_ARGUMENT, text)
        raise NotFound(E_NOT_FOUND, f"topic {topic!r} does not exist in this cluster")

    def _check_read(self) -> None:
        if not self.is_read or self._stuck:
            raise self._unknown("which topics exist")

    # Parts of this broker

    def plan(self) -> list[Step]:
        """Return the steps after which this broker has its parts, and note conflicts.

        A part that must be deleted and opened again is opened by a later plan.
        """
        self.conflicts = self._conflicts()
        me = self.me
        if not self.is_read or me is None:
            return []
        removed = self.directory.removed
        found: list[Step] = [
            Delete(name)
            for name, row in self._local.items()
            if row.part_of in removed and row.state != "deleting"
        ]
        for parted in self.directory.topics.values():
            for number, broker in enumerate(parted.parts):
                if broker == me:
                    name = part_name(parted.topic, number)
                    row = self._local.get(name)
                    if row is None:
                        found.append(Open(name, parted))
                    elif not row.part_of:
                        found.append(Adopt(name, parted.uuid))
        return found

    def _conflicts(self) -> dict[str, str]:
        found = {}
        topics, removed = self.directory.topics, self.directory.removed
        for name, row in self._local.items():
            if name in topics:
                found[name] = (
                    f"topic {name} exists both at this broker alone and with parts in the cluster: "
                    "clients get the one with parts"
                )
            elif row.part_of and row.part_of not in removed:
                base, number = part_of(name) or ("", 0)
                parted = topics.get(base)
                if parted is not None and number < len(parted.parts) and row.part_of != parted.uuid:
                    found[name] = (
                        f"part {name} belongs to another topic than the one that this cluster has "
                        "under that name: is --cluster the right URL?"
                    )
        return found

    def describe(self) -> dict[str, Any]:
        """Return the data of the reply to Manage `cluster`."""
        me = self.me
        return {
            "brokers": [
                {**broker._asdict(), "me": broker.number == me} for broker in self.directory.brokers
            ],
            "topics": [
                {
                    "topic": one.topic,
                    "uuid": one.uuid,
                    "parts": one.parts,
                    "closed": tuple(sorted(one.closed)),
                }
                for _, one in sorted(self.directory.topics.items())
            ],
            "directory": self.directory.next,
            "trouble": self.trouble,
        }


def _count(given: object, what: str) -> int:
    if type(given) is int and 1 <= given <= PARTS_MAX:
        return given
    raise UsageError(E_BAD_ARGUMENT, f"{what} must be 1 to {PARTS_MAX}, not {repr(given)[:40]}")
