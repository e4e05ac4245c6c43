"""Tests of the view of a cluster: what is answered to each request, and which parts are opened and
deleted. Broker 0 is the one whose view it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from zsq.actors.supervisor.cluster.cluster_view import (
    Adopt,
    ClusterView,
    Delete,
    Go,
    Open,
    Reclaim,
    Resume,
    Step,
    Take,
)
from zsq.actors.supervisor.topics.registry_format import GIVEN, TopicRow
from zsq.storage import documents
from zsq.storage.cluster.directory import (
    BrokerEntry,
    CloseEntry,
    DrainEntry,
    Entry,
    ForgetEntry,
    GiveEntry,
    MoveEntry,
    OpenEntry,
    PartedTopic,
    PartEntry,
    ReclaimEntry,
    RemoveEntry,
    RemovePartEntry,
    TopicEntry,
    encode_entry,
)
from zsq.transport.errors import (
    E_BAD_ARGUMENT,
    E_BAD_NAME,
    E_CLOSING,
    E_EXISTS,
    E_LIMIT,
    E_NOT_FOUND,
    E_PARTS,
    E_UNSUPPORTED,
    NotFound,
    Refused,
    UsageError,
    ZsqError,
)
from zsq.transport.names import PARTS_MAX
from zsq.transport.wire import protocol as p
from zsq.transport.wire.admin_codec import request_of
from zsq.transport.wire.admin_requests import (
    AddPartsRequest,
    CreateTopicRequest,
    MovePartRequest,
    RemovePartRequest,
)

ME, OTHER, THIRD = "a" * 32, "b" * 32, "c" * 32
CLICKS, VIEWS, GONE, STRANGE = "1" * 32, "2" * 32, "3" * 32, "4" * 32


def parsed(message: p.Manage) -> Any:
    return request_of(message)


def ids(start: int = 100) -> list[str]:
    return [f"{number:032x}" for number in range(start, start + PARTS_MAX)]


BROKERS: tuple[Entry, ...] = (
    BrokerEntry(f"{1:032x}", ME, ("tcp://a:1",), "s3://b/a"),
    BrokerEntry(f"{2:032x}", OTHER, ("tcp://b:1", "tcp://b:2"), "s3://b/b"),
    BrokerEntry(f"{3:032x}", THIRD, ("tcp://c:1",), "s3://b/c"),
)
TOPICS: tuple[Entry, ...] = (
    TopicEntry(f"{4:032x}", "clicks", CLICKS, (0, 1, 1), {"sync": "always"}),
    TopicEntry(f"{5:032x}", "views", VIEWS, (1,), {}),
    TopicEntry(f"{6:032x}", "gone", GONE, (0, 0), {}),
    RemoveEntry(f"{7:032x}", GONE),
)


def row(part_of: str = "", state: str = "live") -> TopicRow:
    return TopicRow(1, "f" * 32, "always", 0, state, part_of=part_of)


LOCAL: Mapping[str, TopicRow] = {
    "clicks#0": row(CLICKS),
    "plain": row(),
    "gone#0": row(GONE),
    "strange#0": row(STRANGE),
}


def view(
    *entries: Entry, local: Mapping[str, TopicRow] = LOCAL, is_all: bool = True
) -> ClusterView:
    made = ClusterView(ME, local)
    made.take(0, [encode_entry(one) for one in entries], is_all)
    return made


def full(local: Mapping[str, TopicRow] = LOCAL) -> ClusterView:
    return view(*BROKERS, *TOPICS, local=local)


SPREAD = p.Spread(
    0,
    "clicks",
    CLICKS,
    ((0, 0), (1, 1), (2, 1)),
    ((0, ("tcp://a:1",)), (1, ("tcp://b:1", "tcp://b:2"))),
)
OF_VIEWS = p.Spread(0, "views", VIEWS, ((0, 1),), ((1, ("tcp://b:1", "tcp://b:2")),))
Expected = Go | p.Spread | str


def answer(check: Any, message: p.Wire, is_fresh: bool) -> Expected:
    """Return the answer, or the code of the error."""
    try:
        found: Expected = check(message, is_fresh)
    except ZsqError as error:
        return error.code
    return found


@pytest.mark.parametrize(
    ("topic", "creates", "first", "then"),
    [
        ("clicks", False, SPREAD, SPREAD),
        ("clicks", True, SPREAD, SPREAD),
        ("views", True, OF_VIEWS, OF_VIEWS),
        ("clicks#0", True, Go.HERE, Go.HERE),
        ("clicks#1", True, SPREAD, SPREAD),
        ("views#0", False, OF_VIEWS, OF_VIEWS),
        ("clicks#3", True, Go.READ, E_NOT_FOUND),
        ("views#255", False, Go.READ, E_NOT_FOUND),
        ("unknown#0", True, Go.READ, E_NOT_FOUND),
        ("plain", False, Go.HERE, Go.HERE),
        ("plain", True, Go.HERE, Go.HERE),
        ("plain#0", True, Go.READ, E_NOT_FOUND),
        ("new", True, Go.READ, Go.HERE),
        ("new", False, Go.HERE, Go.HERE),
        ("new#ephemeral", True, Go.HERE, Go.HERE),
        ("gone", True, Go.READ, Go.HERE),
        ("gone#0", True, Go.READ, E_NOT_FOUND),
        ("strange", True, Go.READ, Go.HERE),
        ("strange#0", True, Go.HERE, Go.HERE),
        ("strange#1", True, Go.READ, E_NOT_FOUND),
    ],
)
def test_lookups(topic: str, creates: bool, first: Expected, then: Expected) -> None:
    """`then` is the answer after the directory was read once more, without news."""
    known = full()
    lookup = p.Lookup(1, topic, "c", creates, {}, {})
    assert answer(known.lookup, lookup, False) == first
    assert answer(known.lookup, lookup, True) == then
    if not creates:
        assert answer(known.stats, p.Stats(1, topic, ""), True) == then


@pytest.mark.parametrize("entries", [(), (*BROKERS, *TOPICS)])
def test_before_the_whole_directory_was_read_only_what_is_here_is_known(
    entries: tuple[Entry, ...],
) -> None:
    known = view(*entries, is_all=False)
    for topic, expected in (
        ("clicks#0", Go.HERE),
        ("strange#0", Go.HERE),
        ("plain", Go.HERE),
        ("new#ephemeral", Go.HERE),
        ("unknown", E_CLOSING),
        ("unknown#0", E_CLOSING),
    ):
        for creates in (False, True):
            lookup = p.Lookup(1, topic, "c", creates, {}, {})
            assert answer(known.lookup, lookup, True) == expected, topic
    assert known.plan() == []
    known.unread = "the bucket is away"
    with pytest.raises(ZsqError, match="the bucket is away"):
        known.lookup(p.Lookup(1, "unknown", "", True, {}, {}), True)
    for topic in ("unknown", "unknown#0"):
        assert known.lookup(p.Lookup(1, topic, "", True, {}, {}), False) is Go.READ
    assert known.trouble == "the bucket is away"


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (row(CLICKS), Go.HERE),
        (row(CLICKS, "new"), Go.HERE),
        (row(), Go.HERE),  # the registry was repaired
        (None, E_CLOSING),
        (row(CLICKS, "deleting"), E_CLOSING),
        (row(GONE), E_CLOSING),
        (row(STRANGE), E_CLOSING),
    ],
)
def test_a_part_that_lies_here_is_served_only_if_it_is_of_this_topic(
    own: TopicRow | None, expected: Expected
) -> None:
    known = full({} if own is None else {"clicks#0": own})
    assert answer(known.lookup, p.Lookup(1, "clicks#0", "", True, {}, {}), True) == expected


@pytest.mark.parametrize(
    ("action", "topic", "channel", "expected"),
    [
        ("create", "clicks", "", E_EXISTS),
        ("create", "clicks", "c", SPREAD),
        ("create", "clicks#0", "", E_BAD_NAME),
        ("create", "new#0", "", E_BAD_NAME),
        ("create", "clicks#0", "c", Go.HERE),
        ("create", "clicks#1", "c", SPREAD),
        ("create", "new", "", Go.READ),
        ("create", "plain", "", Go.HERE),
        ("create", "plain", "c", Go.HERE),
        ("delete", "clicks", "c", SPREAD),
        ("delete", "clicks#0", "", E_UNSUPPORTED),
        ("delete", "clicks#1", "", E_UNSUPPORTED),
        ("delete", "clicks#3", "", Go.READ),
        ("delete", "strange#0", "", Go.HERE),  # no other way to get rid of it
        ("delete", "plain", "", Go.HERE),
        ("pause", "clicks", "", SPREAD),
        ("pause", "clicks#0", "", Go.HERE),
        ("pause", "clicks#2", "", SPREAD),
        ("configure", "plain", "", Go.HERE),
        ("pause", "new", "", Go.HERE),
    ],
)
def test_orders(action: str, topic: str, channel: str, expected: Expected) -> None:
    assert (
        answer(full().manage, parsed(p.Manage(1, action, topic, channel, {}, {})), False)
        == expected
    )


def test_statistics_of_everything_are_those_of_this_broker() -> None:
    assert full().stats(p.Stats(1, "", ""), False) is Go.HERE


def test_a_sender_that_cannot_follow_learns_which_parts_are_here() -> None:
    error = full().refusal("clicks")
    assert (error.code, error.text.endswith("such as 'clicks#0'")) == (E_PARTS, True)
    assert full().refusal("views").text.endswith("or name a part")


def as_wire(options: dict[str, Any]) -> dict[str, Any]:
    """Return options as msgpack unpacks them."""
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
    }


def create(topic: str, **given: Any) -> Any:
    return parsed(p.Manage(1, "create", topic, "", as_wire(given), {}))


def places(topic: str, **given: Any) -> tuple[int, ...]:
    return full().new_topic(create(topic, **given), ids()[0], STRANGE, {}).brokers


def test_the_parts_of_a_new_topic_go_round_the_brokers() -> None:
    found = places("new", parts=7)
    assert sorted(found.count(number) for number in range(3)) == [2, 2, 3]
    assert found[:3] == found[3:6]
    assert {places(f"topic{number}", parts=1) for number in range(20)} == {(0,), (1,), (2,)}
    assert places("new", parts=7) == found
    assert places("new", parts=3, brokers=(2, 1)) == (2, 1, 2)
    assert places("new", parts=2, brokers=[1]) == (1, 1)
    assert len(places("new", parts=PARTS_MAX, brokers=())) == PARTS_MAX


@pytest.mark.parametrize(
    ("topic", "given", "code"),
    [
        ("clicks", {"parts": 2}, E_EXISTS),
        ("plain", {"parts": 2}, E_EXISTS),
        ("new#ephemeral", {"parts": 2}, E_BAD_NAME),
        ("new#1", {"parts": 2}, E_BAD_NAME),
        ("n" * 63, {"parts": 2}, E_BAD_NAME),
        ("a/b", {"parts": 2}, E_BAD_NAME),
        *(
            ("new", {"parts": parts}, E_BAD_ARGUMENT)
            for parts in (0, -1, PARTS_MAX + 1, "2", 2.0, True, None)
        ),
        *(
            ("new", {"parts": 2, "brokers": brokers}, E_BAD_ARGUMENT)
            for brokers in ([3], [-1], ["0"], [True], 1, "0", {0: 0})
        ),
    ],
)
def test_a_topic_with_parts_that_cannot_be_is_refused(
    topic: str, given: dict[str, Any], code: str
) -> None:
    with pytest.raises(ZsqError, match=code):
        places(topic, **given)


def test_the_directory_is_not_changed_before_it_was_read() -> None:
    for known in (view(*BROKERS, is_all=False), view()):
        with pytest.raises(ZsqError, match=E_CLOSING):
            known.new_topic(create("new", parts=1), ids()[0], STRANGE, {})
    unread = view(*BROKERS, *TOPICS, is_all=False)
    with pytest.raises(ZsqError, match=E_CLOSING):
        unread.more_parts(parsed(p.Manage(1, "add_parts", "clicks", "", {"count": 1}, {})), ids())
    with pytest.raises(ZsqError, match=E_CLOSING):
        unread.removal(parsed(p.Manage(1, "delete", "clicks", "", {"force": True}, {})), ids()[0])


def more(topic: str, count: Any, **given: Any) -> list[PartEntry]:
    message = parsed(p.Manage(1, "add_parts", topic, "", as_wire({"count": count, **given}), {}))
    return full().more_parts(message, ids())


def test_new_parts_go_to_the_brokers_with_the_fewest_parts_of_the_topic() -> None:
    found = more("clicks", 4)
    assert [one.broker for one in found] == [2, 0, 2, 0]
    assert {one.uuid for one in found} == {CLICKS}
    assert len({one.id for one in found}) == 4
    assert len(more("clicks", PARTS_MAX - 3)) == PARTS_MAX - 3


def test_new_parts_go_to_the_brokers_that_were_asked_for() -> None:
    assert [one.broker for one in more("clicks", 3, brokers=[1])] == [1, 1, 1]
    assert [one.broker for one in more("clicks", 3, brokers=[2, 1])] == [2, 2, 1]
    for unknown in ([3], [-1], ["0"], 0.5):
        with pytest.raises(ZsqError, match=E_BAD_ARGUMENT):
            more("clicks", 1, brokers=unknown)


@pytest.mark.parametrize(
    ("topic", "count", "code"),
    [
        ("clicks", PARTS_MAX - 2, E_LIMIT),
        ("clicks", 0, E_BAD_ARGUMENT),
        ("clicks", "1", E_BAD_ARGUMENT),
        ("plain", 1, E_BAD_ARGUMENT),
        ("new", 1, E_NOT_FOUND),
        ("gone", 1, E_NOT_FOUND),
        ("clicks#0", 1, E_BAD_ARGUMENT),
    ],
)
def test_parts_that_cannot_be_added_are_refused(topic: str, count: Any, code: str) -> None:
    with pytest.raises(ZsqError, match=code):
        more(topic, count)


def test_a_topic_with_parts_is_deleted_drained_or_with_force() -> None:
    known = full()
    assert known.is_parted("clicks")
    drained = {"drained": True}
    entry = known.removal(parsed(p.Manage(1, "delete", "clicks", "", drained, {})), ids()[0])
    assert entry == RemoveEntry(ids()[0], CLICKS, is_drained=True)
    entry = known.removal(
        parsed(p.Manage(1, "delete", "clicks", "", {"force": True}, {})), ids()[0]
    )
    assert entry == RemoveEntry(ids()[0], CLICKS)
    assert not known.is_parted("plain")


@pytest.mark.parametrize(
    ("action", "to", "before", "told", "entry"),
    [
        ("close", "publishers", "", False, CloseEntry),
        ("close", "consumers", "", False, CloseEntry),
        ("close", "publishers", "", True, None),
        ("close", "consumers", "publishers", True, None),
        ("open", "publishers", "publishers", True, OpenEntry),
        ("open", "consumers", "consumers", True, None),
        ("open", "publishers", "", False, None),
    ],
)
def test_producers_are_told_when_a_part_is_closed_and_opened(
    action: str, to: str, before: str, told: bool, entry: type[CloseEntry | OpenEntry] | None
) -> None:
    own = row(CLICKS)
    own.closed = before
    known = full({"clicks#0": own})
    if told:
        known.take(known.directory.next, [encode_entry(CloseEntry(ids()[9], CLICKS, 0))], True)
    found = known.change(parsed(p.Manage(1, action, "clicks#0", "", {"to": to}, {})), ids()[0])
    assert found == (None if entry is None else entry(ids()[0], CLICKS, 0))


def test_the_places_of_parts_say_which_are_closed() -> None:
    known = full()
    closes = [encode_entry(CloseEntry(ids()[number], CLICKS, number)) for number in (2, 0)]
    known.take(known.directory.next, closes, True)
    spread = known.lookup(p.Lookup(1, "clicks", "", False, {}, {}), False)
    assert isinstance(spread, p.Spread)
    assert spread.closed == (0, 2)
    assert known.describe()["topics"][0]["closed"] == (0, 2)


@pytest.mark.parametrize("topic", ["plain", "strange#0", "unknown", "clicks#1"])
def test_topics_that_are_no_parts_of_this_broker_are_closed_as_usual(topic: str) -> None:
    message = parsed(p.Manage(1, "close", topic, "", {"to": "publishers"}, {}))
    assert full().change(message, ids()[0]) is None


PARTED = PartedTopic("clicks", CLICKS, (0, 1, 1), {"sync": "always"})


@pytest.mark.parametrize(
    ("local", "steps"),
    [
        ({}, [Open("clicks#0", PARTED)]),
        ({"clicks#0": row(CLICKS)}, []),
        ({"clicks#0": row(CLICKS, "deleting")}, []),
        ({"clicks#0": row()}, [Adopt("clicks#0", CLICKS, 0)]),
        # The part is opened when the files of the other one are gone.
        ({"clicks#0": row(GONE)}, [Delete("clicks#0")]),
        ({"clicks#0": row(GONE, "deleting")}, []),
        # Nothing is deleted that is only missing in the directory.
        ({"clicks#0": row(STRANGE)}, []),
        ({"clicks#0": row(CLICKS), "strange#0": row(STRANGE), "plain": row()}, []),
        ({"clicks#0": row(CLICKS), "clicks#7": row(CLICKS), "clicks#1": row(CLICKS)}, []),
        (
            {"clicks#0": row(CLICKS), "gone#0": row(GONE), "gone#1": row(GONE)},
            [Delete("gone#0"), Delete("gone#1")],
        ),
    ],
)
def test_the_parts_of_this_broker_are_opened_and_deleted(
    local: Mapping[str, TopicRow], steps: list[Step]
) -> None:
    assert full(local).plan() == steps


def removal(part: int) -> list[Entry]:
    """Return the entries that close and remove a part of topic clicks."""
    return [
        CloseEntry(f"{20 + part:032x}", CLICKS, part),
        RemovePartEntry(f"{30 + part:032x}", CLICKS, part, 0, 17),
    ]


@pytest.mark.parametrize(
    ("local", "steps"),
    [
        ({}, []),
        ({"clicks#0": row(CLICKS)}, [Delete("clicks#0")]),
        ({"clicks#0": row(CLICKS, "given")}, [Delete("clicks#0")]),
        ({"clicks#0": row(CLICKS, "deleting")}, []),
        ({"clicks#0": row()}, []),
        ({"clicks#0": row(STRANGE)}, []),
    ],
)
def test_a_part_that_was_removed_is_deleted_and_not_opened_again(
    local: Mapping[str, TopicRow], steps: list[Step]
) -> None:
    known = view(*BROKERS, *TOPICS, *removal(0), local=local)
    assert known.plan() == steps


def test_clients_of_a_part_that_was_removed_get_the_other_parts() -> None:
    known = view(*BROKERS, *TOPICS, *removal(0))
    expected = replace(SPREAD, parts=SPREAD.parts[1:], brokers=SPREAD.brokers[1:], removed=(0,))
    for topic in ("clicks", "clicks#0"):
        found = answer(known.lookup, p.Lookup(1, topic, "", True, {}, {}), False)
        assert found == expected
    assert (known.end_of("clicks#0"), known.end_of("clicks#1"), known.end_of("plain")) == (
        17, None, None,
    )  # fmt: skip
    (topic, _) = known.describe()["topics"]
    assert (topic["parts"], topic["closed"]) == ((-1, 1, 1), ())


def test_a_part_is_removed_closed_or_with_force() -> None:
    known = full()

    def entries(topic: str, *, force: bool) -> list[str]:
        request = RemovePartRequest(topic, force=force)
        return [type(one).__name__ for one in known.part_removal(request, iter(ids()), 5)]

    with pytest.raises(Refused, match="E_NOT_EMPTY part clicks#0 is open to publishers: close it"):
        entries("clicks#0", force=False)
    assert entries("clicks#0", force=True) == ["CloseEntry", "RemovePartEntry"]
    with pytest.raises(UsageError, match="no other part that is open"):
        entries("views#0", force=True)
    with pytest.raises(UsageError, match="only a part can be removed"):
        entries("clicks", force=True)
    with pytest.raises(NotFound, match="topic clicks has no part 3"):
        entries("clicks#3", force=True)
    known.take(len(BROKERS) + len(TOPICS), [encode_entry(one) for one in removal(0)[:1]], True)
    assert entries("clicks#0", force=False) == ["RemovePartEntry"]


def new_parts(known: ClusterView, *brokers: int) -> tuple[int, ...]:
    request = CreateTopicRequest("new", parts=3, brokers=brokers)
    return known.new_topic(request, "8" * 32, "9" * 32, {}).brokers


def test_a_draining_or_forgotten_broker_gets_no_part() -> None:
    known = view(
        *BROKERS, DrainEntry(f"{50:032x}", 2, True, 1), *TOPICS[:1],
        ForgetEntry(f"{51:032x}", 1, 9),
    )  # fmt: skip
    assert set(new_parts(known)) == {0}
    more = known.more_parts(AddPartsRequest("clicks", count=2), ids())
    assert [entry.broker for entry in more] == [0, 0]
    for number, why in ((1, "broker 1 was forgotten"), (2, "broker 2 is being drained")):
        with pytest.raises(UsageError, match=why):
            new_parts(known, number)
        with pytest.raises(UsageError, match=why):
            known.move(MovePartRequest("clicks#0", broker=number), ids()[0])
    drained = view(*BROKERS, *TOPICS[:1], DrainEntry(f"{50:032x}", 0, True, 1))
    withdrawn = drained.move(MovePartRequest("clicks#0", broker=0), ids()[0])
    assert withdrawn.broker == 0, "a move from a draining broker can be withdrawn"


def test_parts_of_a_forgotten_broker_are_adopted_and_taken() -> None:
    known = view(*BROKERS, *TOPICS[:1], local={"clicks#0": row(CLICKS)})
    assert known.plan() == []
    add = iter(range(60, 90))

    def take(*entries: Entry) -> list[Step]:
        known.take(known.directory.next, [encode_entry(one) for one in entries], True)
        return known.plan()

    # The third broker has none, so it adopts the first of them, and this one the other.
    assert known.has_orphans is False
    (step,) = take(ForgetEntry(f"{next(add):032x}", 1, 9))
    assert known.has_orphans
    assert isinstance(step, Reclaim)
    assert (step.name, step.url, step.hold.number) == ("clicks#2", "s3://b/b", 0)
    known.adopts_all = True
    assert [step.name for step in known.plan()] == ["clicks#1", "clicks#2"]
    log = "e" * 32
    (step,) = take(
        ReclaimEntry(f"{next(add):032x}", CLICKS, 1, 1, 2, log, 9, 1),
        ReclaimEntry(f"{next(add):032x}", CLICKS, 2, 1, 0, log, 9, 1),
    )
    assert isinstance(step, Take)
    assert (step.url, step.hold.reserves, step.hold.log) == ("s3://b/b", 1, log)
    assert not known.has_orphans


def test_a_part_that_no_bucket_had_is_opened_in_its_next_hold() -> None:
    known = view(
        *BROKERS, *TOPICS[:1], ForgetEntry(f"{50:032x}", 1, 9),
        ReclaimEntry(f"{51:032x}", CLICKS, 1, 1, 0, "0" * 32, 0, -1),
        ReclaimEntry(f"{52:032x}", CLICKS, 2, 1, 2, "0" * 32, 0, -1),
        local={"clicks#0": row(CLICKS)},
    )  # fmt: skip
    (step,) = known.plan()
    assert isinstance(step, Open)
    assert (step.name, step.hold.number, step.hold.reserves) == ("clicks#1", 1, 1)
    assert known.conflicts == {}, "it is not lost"


def test_a_broker_goes_on_with_a_part_that_it_had_released_to_one_that_is_gone() -> None:
    released = row(CLICKS, GIVEN)
    known = view(
        *BROKERS, *TOPICS[:1], MoveEntry(f"{50:032x}", CLICKS, 0, 0, 1),
        GiveEntry(f"{51:032x}", CLICKS, 0, 1, 1, "f" * 32, 7), ForgetEntry(f"{52:032x}", 1, 9),
        local={"clicks#0": released},
    )  # fmt: skip
    known.adopts_all = True
    reclaim = next(step for step in known.plan() if step.name == "clicks#0")
    assert isinstance(reclaim, Reclaim)
    assert (reclaim.hold.number, reclaim.hold.origin) == (1, 0)
    entry = ReclaimEntry(f"{53:032x}", CLICKS, 0, 2, 0, "f" * 32, 7, 0)
    known.take(known.directory.next, [encode_entry(entry)], True)
    step = next(step for step in known.plan() if step.name == "clicks#0")
    assert isinstance(step, Resume)
    assert (step.hold.number, step.hold.reserves) == (2, 1), "behind a gap"


def test_a_broker_that_is_not_in_the_directory_has_no_parts() -> None:
    known = view(*BROKERS[1:], *TOPICS[1:2], local={})
    assert known.me is None
    assert known.plan() == []
    assert answer(known.lookup, p.Lookup(1, "views", "", True, {}, {}), False) != Go.HERE


def test_a_topic_that_contradicts_the_directory_is_reported() -> None:
    known = full({"clicks": row(), "clicks#0": row(STRANGE), "views#0": row(GONE)})
    known.plan()
    assert known.conflicts.keys() == {"clicks", "clicks#0"}
    assert "with parts in the cluster" in known.trouble
    assert "is --cluster the right URL?" in known.trouble
    with pytest.raises(ZsqError, match="is being opened: part clicks#0 belongs to another topic"):
        known.lookup(p.Lookup(1, "clicks#0", "", True, {}, {}), True)
    assert answer(known.lookup, p.Lookup(1, "clicks", "", True, {}, {}), True) == SPREAD


def test_a_part_that_cannot_be_opened_is_reported() -> None:
    known = full({})
    known.failures["clicks#0"] = "cannot be opened: no space"
    assert known.trouble == "part clicks#0 cannot be opened: no space"
    with pytest.raises(ZsqError, match="no space; try again in a moment"):
        known.lookup(p.Lookup(1, "clicks#0", "", True, {}, {}), True)
    known.failures |= {f"clicks#{number}": "cannot be opened" for number in range(1, 9)}
    assert known.trouble.count("cannot be opened") == 5
    assert known.trouble.endswith("; and 4 more")


@pytest.mark.parametrize(
    "entry",
    [
        documents.encode_line("directory", 2, {"kind": "broker"}),
        documents.encode_line("directory", 1, {"kind": "later"}),
        b"damaged",
    ],
)
def test_the_view_stays_as_it_is_from_an_entry_on_that_cannot_be_used(entry: bytes) -> None:
    known = full()
    number = known.directory.next
    known.take(number, [entry, encode_entry(RemoveEntry(ids()[0], CLICKS))], True)
    known.take(number + 1, [encode_entry(RemoveEntry(ids()[0], CLICKS))], True)
    assert known.directory.next == number
    assert f"entry {number} of the cluster's directory cannot be used" in known.trouble
    assert answer(known.lookup, p.Lookup(1, "clicks", "", True, {}, {}), True) == SPREAD
    assert known.plan() == [Delete("gone#0")]
    with pytest.raises(ZsqError, match=f"{E_CLOSING}.*cannot be used"):
        known.new_topic(create("new", parts=1), ids()[0], STRANGE, {})


def test_entries_that_were_read_before_are_ignored() -> None:
    known = full()
    known.take(0, [encode_entry(one) for one in (*BROKERS, *TOPICS)], True)
    assert known.directory.next == len(BROKERS) + len(TOPICS)
    assert known.trouble == ""


def test_the_cluster_is_described() -> None:
    known = full()
    moving = (
        PartEntry(ids()[0], VIEWS, 0),
        PartEntry(ids()[1], VIEWS, 0),
    )
    known.take(known.directory.next, [encode_entry(one) for one in moving], True)
    known.take(known.directory.next, [encode_entry(MoveEntry(ids()[2], VIEWS, 2, 0, 1))], True)
    assert known.describe() == {
        "brokers": [
            {
                "number": number,
                "uuid": uuid,
                "addresses": addresses,
                "bucket": f"s3://b/{name}",
                "draining": 0,
                "gone": False,
                "me": name == "a",
            }
            for number, (uuid, addresses, name) in enumerate(
                (
                    (ME, ("tcp://a:1",), "a"),
                    (OTHER, ("tcp://b:1", "tcp://b:2"), "b"),
                    (THIRD, ("tcp://c:1",), "c"),
                )
            )
        ],
        "topics": [
            {
                "topic": "clicks",
                "uuid": CLICKS,
                "parts": (0, 1, 1),
                "closed": (),
                "moves": {},
                "origins": {},
            },
            {
                "topic": "views",
                "uuid": VIEWS,
                "parts": (1, 0, 0),
                "closed": (),
                "moves": {2: 1},
                "origins": {},
            },
        ],
        "directory": 10,
        "is_shared": True,
        "trouble": "",
        "auto": {"is_on": False, "rate": 0, "concurrency": 1, "gone_after_s": 0},
    }
