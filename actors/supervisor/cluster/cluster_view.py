"""View of the cluster that this broker belongs to: how it answers requests about topics with parts,
and which parts it opens and deletes. Pure.

The view is what this broker has read of the directory (`storage/cluster/directory.py`), which may
lag behind. So there are rules for what is not in it:

* Nothing is deleted because it is missing in the view. A part is deleted only if the directory says
  that it or its topic was removed. A part of a topic that the directory does not know stays and
  works.
* A part that the view does not know is refused only after the directory was read once more. Another
  broker may have sent the client.
* A topic without parts is created only after the directory was read once more. Otherwise its
  messages would be hidden by a topic with parts of the same name.
* Until the directory was read, only topics and parts that exist at this broker are known. All other
  requests wait for it, and are refused if it cannot be read.

`local` has the topics of this broker. Their rows say of which topic they are a part.

A part moves by these steps, each of which is repeated until its result is known:

| broker | the directory says | row of the part here | step | result |
|---|---|---|---|---|
| target | it is elsewhere, and shall be here | none | Prepare | a `ready` in the directory |
| source | it is here, and another broker shall have it and is ready | live | Release | given |
| source | it is here | given | Give, when the bucket has this row | a `give` in the directory |
| source | the same, but the move was withdrawn | given | Give to itself | a `give` in the directory |
| source | it is here with the next hold | given | Resume | live |
| target | it is here, and another broker has its files | none, or taking | Take | live |
| target | the same | live | Confirm, when the bucket has all | a `taken` there |
| source | it is elsewhere, and nobody needs the files | given | Delete | none |

A part of a broker that was forgotten is given by nobody. Each other broker adopts a share of them:

| broker | the directory says | row of the part here | step | result |
|---|---|---|---|---|
| adopter | it is at a broker that was forgotten | none | Reclaim | a `reclaim` in the directory |
| adopter | it is here, and that broker's bucket has it | none | Take, as above, behind a gap | live |
| adopter | it is here, and no bucket has anything of it | none | Open, behind a gap | live |
| adopter | it is here, and that broker's bucket lacked it | given | Resume, behind a gap | live |

A broker without a cluster has a view of its own local directory, which is always read
(`local_directory.py`). When it belongs to a cluster, `joining` has the topics of that directory,
which are put into the directory of the cluster by the step Join. Until then, requests about such a
topic wait for it, and its parts are served by their own names.

A part is opened empty only in its first hold. So a broker that lost its row does not begin the part
again. A broker that deletes a `given` part has read the `taken`, and whoever continues its log
reads the directory after that. So the row need not be kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from ....storage.cluster.directory import (
    FIRST_HOLD,
    NOBODY,
    CloseEntry,
    Directory,
    GiveEntry,
    Hold,
    MoveEntry,
    OpenEntry,
    PartedTopic,
    PartEntry,
    ReadyEntry,
    RemoveEntry,
    RemovePartEntry,
    TakenEntry,
    TopicEntry,
    why_unfit,
)
from ....storage.errors import Damaged, ForeignDirectory
from ....transport.checksum import crc32c
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
    from_wire,
)
from ....transport.names import PARTS_MAX, is_ephemeral, part_name, part_of
from ....transport.wire import protocol as p
from ....transport.wire.admin_requests import (
    AddPartsRequest,
    AdminRequest,
    CloseRequest,
    CreateChannelRequest,
    CreateTopicRequest,
    DeleteRequest,
    MovePartRequest,
    OpenRequest,
    RemovePartRequest,
)
from ...settings import closing
from ..topics.registry_format import AWAY, GIVEN, TAKING, TopicRow
from .cluster_loads import adopted_by, cluster_loads

_AGAIN: Final = "try again in a moment"
_TROUBLES_MAX: Final = 5  # parts that are named in a report


class Go(Enum):
    """The next step of a request that is not answered with a `Spread` or an error."""

    HERE = "carry it out, as for any topic of this broker"
    READ = "read the directory first, then ask again"


class Open(NamedTuple):
    """A part that is missing here. `topic` is the topic as the directory has it. `hold` is the
    first one unless a broker that was forgotten had the part before.
    """

    name: str
    topic: PartedTopic
    hold: Hold = FIRST_HOLD


class Adopt(NamedTuple):
    """A part whose row does not say of which topic it is a part, and in which hold: the registry
    was repaired.
    """

    name: str
    uuid: str
    hold: int


class Delete(NamedTuple):
    """A part that was removed, alone or with its topic, or one that another broker has by now."""

    name: str


class Prepare(NamedTuple):
    """A part that this broker shall have. Its archive is copied ahead from the bucket at `url`,
    which is that of the broker that has the part. Then the `ready` says that this broker lives,
    and can read that bucket.
    """

    name: str
    url: str
    entry: ReadyEntry


class Release(NamedTuple):
    """A part that another broker shall have. Its topic is stopped when the bucket has all of it."""

    name: str


class Give(NamedTuple):
    """A part that was released. `entry` is complete but for the number of the tick."""

    name: str
    entry: GiveEntry


class Resume(NamedTuple):
    """A part that was released, and stays here with the next hold, or with a later one: behind a
    gap if the brokers that had it since were forgotten before their buckets had it.
    """

    name: str
    hold: Hold


class Take(NamedTuple):
    """A part that was given to this broker. The bucket of the broker before is at `url`."""

    name: str
    topic: PartedTopic
    hold: Hold
    url: str


class Confirm(NamedTuple):
    """A part that was taken from another broker, which still has its files."""

    name: str
    entry: TakenEntry


class Reclaim(NamedTuple):
    """A part of a broker that was forgotten, whose bucket is at `url`. `hold` is its hold there."""

    name: str
    url: str
    topic: PartedTopic
    part: int
    hold: Hold


class Join(NamedTuple):
    """A topic with parts that this broker had alone, for the directory of the cluster."""

    name: str
    entry: TopicEntry


Step = Join | Open | Adopt | Delete | Prepare | Release | Give | Resume | Take | Confirm | Reclaim


class ClusterView:
    """The view of the broker with this uuid. `local` is not copied, so it may change.

    `joining`: the topics of the local directory that are not in that of the cluster yet.
    """

    def __init__(
        self, uuid: str, local: Mapping[str, TopicRow], joining: Iterable[TopicEntry] = ()
    ) -> None:
        self.directory = Directory()
        self.is_read = False
        """True after the whole directory was read once."""
        self.unread = ""
        """Why the directory cannot be read at the moment, or ""."""
        self.failures: dict[str, str] = {}
        """The parts with a step that failed. The text follows the name of the part."""
        self.leaving: set[str] = set()
        """The parts that are being released."""
        self.conflicts: dict[str, str] = {}
        """The topics of this broker that contradict the directory, each with a sentence."""
        self.stuck: tuple[tuple[str, str], ...] = ()
        """The parts that should leave this broker, and that no broker takes. The reasons follow."""
        self.adopts_all = False
        """True if the brokers that should adopt the parts of a forgotten one do not do so."""
        self._uuid = uuid
        self._local = local
        self.joining = {entry.topic: entry for entry in joining}
        self._stuck = ""

    @property
    def me(self) -> int | None:
        """The number of this broker. It has none before its entry was read."""
        broker = self.directory.broker(self._uuid)
        return None if broker is None else broker.number

    @property
    def trouble(self) -> str:
        """The trouble of the cluster as a text, or ""."""
        troubles = [f"{kind_of(name)} {name} {why}" for name, why in self.failures.items()]
        troubles += self.conflicts.values()
        troubles += [f"part {name} cannot leave this broker: {why}" for name, why in self.stuck]
        more = (
            [f"and {len(troubles) - _TROUBLES_MAX} more"] if len(troubles) > _TROUBLES_MAX else []
        )
        return "; ".join(
            filter(None, [self._stuck or self.unread, *troubles[:_TROUBLES_MAX], *more])
        )

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

    def manage(self, message: AdminRequest[Any], is_fresh: bool) -> Go | p.Spread:
        """Return what to do with an order about a topic that may have parts elsewhere.

        Orders that change the directory are not for this method.
        """
        topic = message.topic
        if isinstance(message, CreateTopicRequest):
            if part_of(topic) is not None:
                raise UsageError(
                    E_BAD_NAME,
                    f"{topic!r} is the name of a part, and parts are created with their topic; "
                    "use another name, or add a part to the topic",
                )
            if topic in self.directory.topics:
                raise UsageError(E_EXISTS, f"topic {topic!r} exists already, and has parts")
        part = part_of(topic)
        if isinstance(message, DeleteRequest) and not message.channel and part is not None:
            parted = self.directory.topics.get(part[0])
            if parted is not None and part[1] in parted.places:
                raise UsageError(
                    E_UNSUPPORTED,
                    f"part {topic!r} is not deleted but removed (zsq topic remove-part {topic}), "
                    f"or topic {part[0]!r} is deleted with all its parts",
                )
        creates = isinstance(message, CreateTopicRequest | CreateChannelRequest)
        return self._find(topic, creates, is_fresh)

    def _find(self, topic: str, creates: bool, is_fresh: bool) -> Go | p.Spread:
        if (part := part_of(topic)) is not None:
            return self._find_part(topic, *part, is_fresh)
        parted = self.directory.topics.get(topic)
        if parted is not None:
            return self._spread(parted)
        if topic in self.joining:
            raise self._joins(topic)
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
            is_away = row is not None and row.state in AWAY
            if row is not None and not is_away and row.part_of not in self.directory.removed:
                return Go.HERE
            if not is_fresh:
                return Go.READ
            if is_away:
                raise Refused(E_CLOSING, f"part {name!r} is being moved; {_AGAIN}")
            if not self.is_read:
                raise self._unknown(f"where part {name!r} is")
            known = f"has no part {number}" if parted is not None else "has no parts"
            raise NotFound(E_NOT_FOUND, f"topic {topic!r} {known}")
        if number in parted.ends:
            return self._spread(parted)  # it has the other parts, so that clients can use them
        if parted.parts[number] != self.me:
            if is_fresh or row is not None or parted.hold(number).to != self.me:
                return self._spread(parted)
            return Go.READ  # it may have been given to this broker just now
        is_other = row is None or row.part_of not in ("", parted.uuid)
        if row is None or is_other or name in self.leaving or row.state in ("deleting", *AWAY):
            why = self.failures.get(name) or self.conflicts.get(name)
            moves = name in self.leaving or (row is not None and row.state in AWAY)
            text = f"part {name!r} is being {'moved' if moves else 'opened'}"
            raise Refused(E_CLOSING, f"{text}{f': {why}' if why else ''}; {_AGAIN}")
        return Go.HERE

    def _joins(self, topic: str) -> Refused:
        why = self.failures.get(topic) or self.unread
        text = f"topic {topic!r} is being put into the directory of the cluster"
        return Refused(E_CLOSING, f"{text}{f': {why}' if why else ''}; {_AGAIN}")

    def _unknown(self, what: str) -> Refused:
        why = self._stuck or self.unread
        text = (
            f"this broker has not read the directory of its cluster yet, so it does not know {what}"
        )
        return Refused(E_CLOSING, f"{text}{f' ({why})' if why else ''}; {_AGAIN}")

    def _spread(self, parted: PartedTopic) -> p.Spread:
        """Return where the parts are. The number of the request is 0."""
        brokers = self.directory.brokers
        used = sorted({*parted.places.values()})
        return p.Spread(
            0,
            parted.topic,
            parted.uuid,
            tuple(parted.places.items()),
            tuple((number, brokers[number].addresses) for number in used),
            tuple(sorted(parted.closed)),
            tuple(sorted(parted.ends)),
        )

    def end_of(self, topic: str) -> int | None:
        """Return where the log of a part ended that was removed, or None for another topic."""
        name, number = part_of(topic) or (topic, -1)
        parted = self.directory.topics.get(name)
        return None if parted is None else parted.ends.get(number)

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
        self, message: CreateTopicRequest, id: str, uuid: str, settings: Mapping[str, Any]
    ) -> TopicEntry:
        """Return the entry of a new topic with parts, or raise the error of the request."""
        topic = message.topic
        self._check_read()
        if (why := why_unfit(topic)) is not None:
            raise UsageError(E_BAD_NAME, why)
        if topic in self.directory.topics or topic in self._local or topic in self.joining:
            raise UsageError(E_EXISTS, f"topic {topic!r} exists already")
        count = _check_count(message.parts or 0, "parts")
        brokers = self._brokers(message.brokers)
        start = 0 if message.brokers else crc32c(topic.encode())
        places = tuple(brokers[(start + part) % len(brokers)] for part in range(count))
        return TopicEntry(id, topic, uuid, places, settings)

    def _brokers(self, numbers: Sequence[int]) -> Sequence[int]:
        """Return the numbers of the brokers that were asked for, or of all that take parts."""
        brokers = self.directory.brokers
        known = range(len(brokers))
        if not numbers:
            if not known:
                raise Refused(E_CLOSING, f"no broker has joined this cluster yet; {_AGAIN}")
            return [broker.number for broker in brokers if broker.takes_parts]
        if not all(number in known for number in numbers):
            raise UsageError(
                E_BAD_ARGUMENT,
                f"brokers must be numbers from 0 to {len(known) - 1}, as this cluster has "
                f"{len(known)} brokers, not {repr(numbers)[:80]}",
            )
        for number in numbers:
            if not brokers[number].takes_parts:
                why = "was forgotten" if brokers[number].gone else "is being drained"
                text = f"broker {number} {why}, so it takes no parts: name another one"
                raise UsageError(E_BAD_ARGUMENT, text)
        return numbers

    def more_parts(self, message: AddPartsRequest, ids: Iterable[str]) -> list[PartEntry]:
        """Return the entries of new parts: at the brokers that have the fewest parts of the topic,
        of all or of those that were asked for.

        Raises the error of the request. `ids` has at least `PARTS_MAX` ids for the entries.
        """
        parted = self._parted(message.topic)
        count = _check_count(message.count, "count")
        if len(parted.parts) + count > PARTS_MAX:
            raise Refused(
                E_LIMIT,
                f"topic {parted.topic!r} has had {len(parted.parts)} parts, and a topic has at "
                f"most {PARTS_MAX}, with those that were removed; add at most "
                f"{PARTS_MAX - len(parted.parts)}",
            )
        numbers = self._brokers(message.brokers)
        of_each = {number: parted.parts.count(number) for number in numbers}
        entries = []
        for id, _ in zip(ids, range(count), strict=False):
            broker = min(numbers, key=lambda number: (of_each[number], number))
            of_each[broker] += 1
            entries.append(PartEntry(id, parted.uuid, broker))
        return entries

    def move(self, message: MovePartRequest, id: str) -> MoveEntry:
        """Return the entry that moves a part to another broker, or back. Raises the error of the
        request.
        """
        part = part_of(message.topic)
        if part is None:
            raise UsageError(E_BAD_ARGUMENT, "only a part can be moved: name one, such as clicks#3")
        parted, number = self._parted(part[0]), part[1]
        if why := parted.why_missing(number):
            raise NotFound(E_NOT_FOUND, why)
        broker = message.broker
        if broker != parted.parts[number]:  # a move may be withdrawn at each broker
            self._brokers([broker])
        hold = parted.hold(number)
        return MoveEntry(id, parted.uuid, number, hold.number, broker)

    def check_broker(self, number: int) -> None:
        """Raise `UsageError` unless the cluster has a broker with this number."""
        self._check_read()
        count = len(self.directory.brokers)
        if not 0 <= number < count:
            text = f"this cluster has the brokers 0 to {count - 1}, not {number}"
            raise UsageError(E_BAD_ARGUMENT, text)

    def part_removal(
        self, message: RemovePartRequest, ids: Iterator[str], end: int = 0
    ) -> list[CloseEntry | RemovePartEntry]:
        """Return the entries that remove a part whose log ends at `end`. Raises the error of the
        request.

        An open part is removed only with `force`, which closes it first.
        """
        part = part_of(message.topic)
        if part is None:
            text = "only a part can be removed: name one, such as clicks#3"
            raise UsageError(E_BAD_ARGUMENT, text)
        parted, number = self._parted(part[0]), part[1]
        hold = parted.hold(number).number
        removal = RemovePartEntry(next(ids), parted.uuid, number, hold, end)
        objection = self.directory.objection(removal)
        is_open = number in parted.places and number not in parted.closed
        if objection is not None and not (message.force and objection.code == E_NOT_EMPTY):
            raise from_wire(objection.code, objection.text)
        return [*([CloseEntry(next(ids), parted.uuid, number)] if is_open else []), removal]

    def is_removed(self, entry: RemovePartEntry) -> bool:
        """Return True if the part of this entry does not exist any more."""
        parted = self.directory.topic_of(entry.uuid)
        return parted is None or entry.part in parted.ends

    def removal(self, message: DeleteRequest, id: str) -> RemoveEntry:
        """Return the entry that deletes a topic with its parts, or raise its error."""
        parted = self._parted(message.topic)
        return RemoveEntry(id, parted.uuid, is_drained=not message.force)

    def change(self, message: CloseRequest | OpenRequest, id: str) -> CloseEntry | OpenEntry | None:
        """Return the entry that tells producers of this `close` or `open` of a part of this broker.

        It is None if they know already, or need not know. Raises the error of the request.
        """
        part, row = part_of(message.topic), self._local.get(message.topic)
        if part is not None and part[0] in self.joining:
            # The directory would not learn of it, and producers would fail with each key of a part
            # that it has as open.
            if (conflict := self.conflicts.get(part[0])) is not None:
                raise Refused(E_CLOSING, conflict)
            raise self._joins(part[0])
        parted = self.directory.topics.get(part[0]) if part is not None else None
        if part is None or row is None or parted is None or row.part_of != parted.uuid:
            return None
        state = closing.after(row.closed, message)
        if (is_closed := closing.to_publishers(state)) == (part[1] in parted.closed):
            return None
        return (CloseEntry if is_closed else OpenEntry)(id, parted.uuid, part[1])

    def _parted(self, topic: str) -> PartedTopic:
        self._check_read()
        parted = self.directory.topics.get(topic)
        if parted is not None:
            return parted
        if topic in self._local:
            text = f"topic {topic!r} has no parts; create another topic with parts"
            raise UsageError(E_BAD_ARGUMENT, text)
        raise NotFound(E_NOT_FOUND, f"topic {topic!r} does not exist")

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
        steps: list[Step] = [
            Join(name, entry._replace(brokers=tuple(me if at >= 0 else at for at in entry.brokers)))
            for name, entry in self.joining.items()
            if name not in self.directory.topics and name not in self._local
        ]
        steps += [
            Delete(name)
            for name, row in self._local.items()
            if row.part_of in removed and row.state != "deleting"
        ]
        for parted in self.directory.topics.values():
            for number, broker in enumerate(parted.parts):
                name = part_name(parted.topic, number)
                row = self._local.get(name)
                if row is not None and (row.part_of or parted.uuid) != parted.uuid:
                    continue  # a conflict, or a part of a topic that was removed
                if broker != NOBODY and self.directory.brokers[broker].gone:
                    continue
                if broker == NOBODY:
                    # A row of an unknown topic may be older than the removal. So it stays.
                    if row is not None and row.part_of and row.state != "deleting":
                        steps.append(Delete(name))
                elif broker == me:
                    steps += self._of_own(name, number, parted, row)
                elif row is None and parted.hold(number).to == me:
                    hold = parted.hold(number)
                    if not hold.is_ready:
                        entry = ReadyEntry("", parted.uuid, number, hold.number, me)
                        url = self.directory.brokers[broker].bucket
                        steps.append(Prepare(name, url, entry))
                elif row is not None and _is_past(row, parted.hold(number), me):
                    steps.append(Delete(name))
        return steps + self._orphans(me)

    @property
    def has_orphans(self) -> bool:
        """True while a part is at a broker that was forgotten."""
        gone = {broker.number for broker in self.directory.brokers if broker.gone}
        return bool(gone) and any(
            not gone.isdisjoint(parted.parts) for parted in self.directory.topics.values()
        )

    def _orphans(self, me: int) -> list[Step]:
        if not self.has_orphans:
            return []
        brokers = self.directory.brokers
        adopters = adopted_by(*cluster_loads(self.directory))
        steps: list[Step] = []
        for parted in self.directory.topics.values():
            for number, at in parted.places.items():
                name = part_name(parted.topic, number)
                if not brokers[at].gone or name not in adopters:
                    continue
                if adopters[name] == me or self.adopts_all:
                    hold = parted.hold(number)
                    steps.append(Reclaim(name, brokers[at].bucket, parted, number, hold))
        return steps

    def _of_own(
        self, name: str, number: int, parted: PartedTopic, row: TopicRow | None
    ) -> list[Step]:
        """Return the next step of a part that this broker has by the directory, if there is one."""
        hold = parted.hold(number)
        if hold.origin != NOBODY and (row is None or row.state == TAKING):
            url = self.directory.brokers[hold.origin].bucket
            return [Take(name, parted, hold, url)]
        if row is None:
            return [Open(name, parted, hold)] if hold.is_empty else []
        if not row.part_of:
            return [Adopt(name, parted.uuid, hold.number)]
        if row.state == GIVEN and row.hold < hold.number:
            return [Resume(name, hold)] if hold.origin == NOBODY else [Delete(name)]
        if row.hold != hold.number or row.state == "deleting":
            return []
        if row.state == GIVEN:
            to = parted.parts[number] if hold.to == NOBODY else hold.to
            give = GiveEntry("", parted.uuid, number, hold.number + 1, to, row.uuid, 0)
            return [Give(name, give)]
        if hold.origin != NOBODY:
            return [Confirm(name, TakenEntry("", parted.uuid, number, hold.number))]
        return [Release(name)] if hold.to != NOBODY and hold.is_ready else []

    def comes(self, name: str) -> bool:
        """Return True if this broker has this part by the directory, or shall have it."""
        topic, number = part_of(name) or (name, 0)
        parted = self.directory.topics.get(topic)
        if parted is None or number >= len(parted.parts):
            return False
        return self.me in (parted.parts[number], parted.hold(number).to)

    @property
    def is_moving(self) -> bool:
        """True while a part is to come here or to leave, so that news of it should be read soon."""
        me = self.me
        if self.has_orphans:
            return True
        return me is not None and any(
            me in (hold.to, hold.origin) or (hold.origin != NOBODY and parted.parts[number] == me)
            for parted in self.directory.topics.values()
            for number, hold in parted.holds.items()
        )

    def _conflicts(self) -> dict[str, str]:
        conflicts = {}
        topics, removed = self.directory.topics, self.directory.removed
        for name, entry in self.joining.items():
            if name in topics and topics[name].uuid != entry.uuid:
                conflicts[name] = (
                    f"topic {name} has parts at this broker since before it joined the cluster, "
                    "which has another topic of that name: clients get that one. To use the one of "
                    "this broker, start it without --cluster, or delete the other one"
                )
        for name, row in self._local.items():
            if name in topics:
                conflicts[name] = (
                    f"topic {name} exists both at this broker alone and with parts in the cluster: "
                    "clients get the one with parts"
                )
            elif row.part_of and row.part_of not in removed:
                base, number = part_of(name) or ("", 0)
                parted = topics.get(base)
                if parted is None or number >= len(parted.parts):
                    continue
                hold = parted.hold(number)
                if base in self.joining:
                    continue  # this is said of the topic
                if row.part_of != parted.uuid:
                    conflicts[name] = (
                        f"part {name} belongs to another topic than the one that this cluster has "
                        "under that name: is --cluster the right URL?"
                    )
                elif row.state not in AWAY and row.hold < hold.number:
                    conflicts[name] = (
                        f"part {name} was given to another broker, and this copy of it is older: "
                        "was this broker restored from an old backup?"
                    )
        for name, number in self._lost():
            conflicts[name] = (
                f"part {name} should be here since hold {number}, and is not: restore it"
            )
        return conflicts

    def _lost(self) -> Iterator[tuple[str, int]]:
        """Yield the parts that were moved here and are missing, with their holds."""
        me = self.me
        for parted in self.directory.topics.values() if self.is_read else ():
            for number, hold in parted.holds.items():
                name = part_name(parted.topic, number)
                is_here = parted.parts[number] == me and hold.origin == NOBODY
                if is_here and not hold.is_empty and name not in self._local:
                    yield name, hold.number

    def describe(self, *, is_shared: bool = True) -> dict[str, Any]:
        """Return the answer to `ClusterRequest`. `is_shared`: see `ClusterAnswer`."""
        me = self.me
        return {
            "brokers": [
                {**broker._asdict(), "me": broker.number == me} for broker in self.directory.brokers
            ],
            "topics": [
                {
                    "topic": parted.topic,
                    "uuid": parted.uuid,
                    "parts": parted.parts,
                    "closed": tuple(sorted(parted.closed)),
                    "moves": {
                        number: hold.to if hold.origin == NOBODY else parted.parts[number]
                        for number, hold in parted.holds.items()
                        if (hold.to, hold.origin) != (NOBODY, NOBODY)
                    },
                    "origins": {
                        number: hold.origin
                        for number, hold in parted.holds.items()
                        if hold.origin != NOBODY
                    },
                }
                for _, parted in sorted(self.directory.topics.items())
            ],
            "directory": self.directory.next,
            "is_shared": is_shared,
            "trouble": self.trouble,
            "auto": self.directory.auto._asdict(),
        }


def kind_of(name: str) -> str:
    return "topic" if part_of(name) is None else "part"


def _is_past(row: TopicRow, hold: Hold, me: int) -> bool:
    """Return True if the files of a part are not needed here, because another broker has them."""
    return row.state in AWAY and row.hold < hold.number and hold.origin != me


def _check_count(count: int, name: str) -> int:
    if 1 <= count <= PARTS_MAX:
        return count
    raise UsageError(E_BAD_ARGUMENT, f"{name} must be 1 to {PARTS_MAX}, not {count}")
