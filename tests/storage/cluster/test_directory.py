"""Tests of the directory of a cluster: entries, the view after them, and which entries are void."""

from __future__ import annotations

import json
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from zsq.storage import documents
from zsq.storage.cluster.directory import (
    ADDRESSES_MAX,
    BROKERS_MAX,
    NOBODY,
    Auto,
    AutoEntry,
    Broker,
    BrokerEntry,
    CloseEntry,
    Directory,
    DrainEntry,
    Entry,
    ForgetEntry,
    GiveEntry,
    Hold,
    MoveEntry,
    OpenEntry,
    PartedTopic,
    PartEntry,
    ReadyEntry,
    ReclaimEntry,
    RemoveEntry,
    RemovePartEntry,
    TakenEntry,
    TopicEntry,
    Unusable,
    decode_entry,
    encode_entry,
    entry_number,
    entry_object,
    why_unfit,
)
from zsq.storage.errors import Damaged, ForeignDirectory
from zsq.transport.names import PARTS_MAX

A, B, C = ("tcp://a:4153",), ("tcp://b:4153", "tcp://b2:4153"), ("tcp://c:4153",)


def hex_of(number: int) -> str:
    return f"{number:032x}"


def broker(number: int, addresses: tuple[str, ...] = A, id: int = 0) -> BrokerEntry:
    return BrokerEntry(hex_of(id or 1_000 + number), hex_of(number), addresses)


def topic(
    uuid: int, name: str = "clicks", brokers: tuple[int, ...] = (0, 1), **settings: Any
) -> TopicEntry:
    return TopicEntry(hex_of(2_000 + uuid), name, hex_of(uuid), brokers, settings)


def part(uuid: int, broker: int, id: int) -> PartEntry:
    return PartEntry(hex_of(id), hex_of(uuid), broker)


def remove(uuid: int, id: int = 3_000) -> RemoveEntry:
    return RemoveEntry(hex_of(id), hex_of(uuid))


def close(uuid: int, part: int, id: int) -> CloseEntry:
    return CloseEntry(hex_of(id), hex_of(uuid), part)


def reopen(uuid: int, part: int, id: int) -> OpenEntry:
    return OpenEntry(hex_of(id), hex_of(uuid), part)


def move(part: int, hold: int, broker: int, id: int, uuid: int = 5) -> MoveEntry:
    return MoveEntry(hex_of(id), hex_of(uuid), part, hold, broker)


def ready(part: int, hold: int, broker: int, id: int) -> ReadyEntry:
    return ReadyEntry(hex_of(id), hex_of(5), part, hold, broker)


def give(part: int, hold: int, broker: int, id: int) -> GiveEntry:
    return GiveEntry(hex_of(id), hex_of(5), part, hold, broker, hex_of(77), 9)


def taken(part: int, hold: int, id: int) -> TakenEntry:
    return TakenEntry(hex_of(id), hex_of(5), part, hold)


def remove_part(part: int, hold: int, end: int, id: int, uuid: int = 5) -> RemovePartEntry:
    return RemovePartEntry(hex_of(id), hex_of(uuid), part, hold, end)


def drain(broker: int, id: int, *, is_draining: bool = True) -> DrainEntry:
    return DrainEntry(hex_of(id), broker, is_draining, 2)


def forget(broker: int, id: int, tick: int = 9) -> ForgetEntry:
    return ForgetEntry(hex_of(id), broker, tick)


def reclaim(part: int, hold: int, broker: int, source: int, id: int) -> ReclaimEntry:
    return ReclaimEntry(hex_of(id), hex_of(5), part, hold, broker, hex_of(77), 9, source)


TWO_BROKERS = (broker(1), broker(2, B))


def replay(*entries: Entry) -> tuple[Directory, list[bool]]:
    directory = Directory()
    counts = [directory.apply(n, encode_entry(entry)) for n, entry in enumerate(entries)]
    return directory, counts


def line(**row: Any) -> bytes:
    return documents.encode_line("directory", 1, row)


def test_names_of_objects_are_numbers() -> None:
    assert entry_object(7) == "directory/00000000000000000007"
    assert entry_number(entry_object(7)) == 7
    for name in ("directory/7", "other/00000000000000000007", "directory/0000000000000000000x"):
        assert entry_number(name) == -1


@pytest.mark.parametrize(
    "entry",
    [
        broker(1, B),
        broker(1)._replace(bucket="s3://b/one"),
        move(1, 0, 0, 4),
        ready(1, 0, 0, 4),
        give(1, 1, 0, 4),
        taken(1, 1, 4),
        remove_part(1, 2, 17, 4),
        drain(1, 5),
        AutoEntry(hex_of(6), True, 1, 2, 3),
        forget(1, 7),
        forget(1, 8, NOBODY),
        reclaim(1, 2, 0, NOBODY, 9),
        topic(5, sync="bucket", retention={"keep_time_s": 60.0}),
        topic(5, brokers=(1,) * PARTS_MAX),
        part(5, 1, 4),
        close(5, 1, 4),
        reopen(5, 1, 4),
        remove(5),
    ],
)
def test_an_entry_is_read_as_it_was_written(entry: Entry) -> None:
    assert decode_entry(encode_entry(entry)) == entry


def test_an_entry_is_one_line_of_json_for_people() -> None:
    text, crc, rest = encode_entry(broker(1)).split(b"\n")
    assert json.loads(text) == {
        "zsq": "directory",
        "version": 1,
        "kind": "broker",
        "id": hex_of(1_001),
        "uuid": hex_of(1),
        "addresses": list(A),
        "bucket": "",
    }
    assert (crc, rest) == (b"%08x" % crc32c(text), b"")


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"kind": "remove", "id": hex_of(1)}, "uuid is missing"),
        ({"kind": "remove", "id": 5, "uuid": hex_of(1)}, "id must be 32 hex digits, not 5"),
        ({"kind": "remove", "id": hex_of(1), "uuid": "x"}, "uuid must be 32 hex digits, not 'x'"),
        ({"kind": "part", "id": hex_of(1), "uuid": hex_of(1), "broker": True}, "a number"),
        ({"kind": "broker", "id": hex_of(1), "uuid": hex_of(1), "addresses": []}, "1 to 16"),
        ({"kind": "broker", "id": hex_of(1), "uuid": hex_of(1), "addresses": "tcp"}, "1 to 16"),
        ({"kind": "broker", "id": hex_of(1), "uuid": hex_of(1), "addresses": [""]}, "1 to 16"),
        (
            {
                "kind": "broker",
                "id": hex_of(1),
                "uuid": hex_of(1),
                "addresses": ["tcp://a:1"] * (ADDRESSES_MAX + 1),
            },
            "1 to 16",
        ),
        (
            {
                "kind": "broker",
                "id": hex_of(1),
                "uuid": hex_of(1),
                "addresses": ["tcp://a:1"],
                "bucket": "s" * 1_001,
            },
            "a URL of at most 1000 characters",
        ),
        (
            {
                "kind": "taken",
                "id": hex_of(1),
                "uuid": hex_of(1),
                "part": 0,
                "hold": -1,
            },
            "hold must be a number from 0 on, not -1",
        ),
        (
            {
                "kind": "topic",
                "id": hex_of(1),
                "uuid": hex_of(1),
                "topic": 3,
                "brokers": [],
                "settings": {},
            },
            "topic must be a text, not 3",
        ),
        (
            {
                "kind": "topic",
                "id": hex_of(1),
                "uuid": hex_of(1),
                "topic": "t",
                "brokers": [1.5],
                "settings": {},
            },
            "a list of numbers",
        ),
        (
            {
                "kind": "topic",
                "id": hex_of(1),
                "uuid": hex_of(1),
                "topic": "t",
                "brokers": [1],
                "settings": [],
            },
            "an object",
        ),
    ],
)
def test_an_intact_entry_of_a_wrong_form_is_void(row: dict[str, Any], why: str) -> None:
    found = decode_entry(line(**row))
    assert isinstance(found, Unusable)
    assert why in found.why
    directory = Directory()
    assert not directory.apply(0, line(**row))
    assert directory.next == 1


def test_more_fields_are_ignored() -> None:
    row = {"kind": "open", "id": hex_of(1), "uuid": hex_of(2), "part": 3, "by": "ann"}
    assert decode_entry(line(**row)) == OpenEntry(hex_of(1), hex_of(2), 3)


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"", Damaged),
        (encode_entry(broker(1))[:-2] + b"x\n", Damaged),
        (documents.encode_line("manifest", 1, {}), Damaged),
        (documents.encode_line("directory", 2, {"kind": "broker"}), ForeignDirectory),
        (line(kind="assign"), ForeignDirectory),
        (line(kind=["broker"]), ForeignDirectory),
        (line(), ForeignDirectory),
    ],
)
def test_reading_stops_at_an_entry_that_is_not_understood(
    raw: bytes, error: type[Exception]
) -> None:
    directory, _ = replay(*TWO_BROKERS)
    with pytest.raises(error):
        directory.apply(2, raw)
    assert directory.next == 2
    assert directory.apply(2, encode_entry(topic(5)))  # a newer zsq, or a store that is well again


def test_entries_are_applied_once_and_without_gaps() -> None:
    directory, _ = replay(*TWO_BROKERS)
    assert not directory.apply(0, encode_entry(broker(9)))
    assert len(directory.brokers) == 2
    with pytest.raises(ValueError, match="entry 3 of the directory comes before entry 2"):
        directory.apply(3, encode_entry(broker(9)))


def test_a_broker_keeps_its_number_and_gets_new_addresses() -> None:
    directory, counts = replay(broker(1), broker(2, B), broker(1, C, id=9))
    assert counts == [True] * 3
    assert directory.brokers == (Broker(0, hex_of(1), C), Broker(1, hex_of(2), B))
    assert directory.broker(hex_of(2)) == Broker(1, hex_of(2), B)
    assert directory.broker(hex_of(3)) is None


def test_a_topic_gets_parts_is_removed_and_may_come_again() -> None:
    entries: list[Entry] = [*TWO_BROKERS, topic(5, sync="bucket"), part(5, 0, 41), part(5, 0, 42)]
    directory, counts = replay(*entries)
    assert counts == [True] * 5
    expected = PartedTopic("clicks", hex_of(5), (0, 1, 0, 0), {"sync": "bucket"})
    assert directory.topics == {"clicks": expected}
    assert directory.topic_of(hex_of(5)) == expected
    directory, counts = replay(*entries, remove(5), topic(6, brokers=(1,)))
    assert counts == [True] * 7
    assert directory.topics == {"clicks": PartedTopic("clicks", hex_of(6), (1,), {})}
    assert directory.removed == {hex_of(5)}
    assert directory.topic_of(hex_of(5)) is None


def test_parts_are_closed_and_opened_again() -> None:
    entries: list[Entry] = [*TWO_BROKERS, topic(5), close(5, 0, 41), close(5, 1, 42)]
    directory, counts = replay(*entries, close(5, 1, 43), reopen(5, 0, 44), part(5, 0, 45))
    assert counts == [True] * 8
    assert directory.topics["clicks"].closed == {1}
    assert directory.topics["clicks"].parts == (0, 1, 0)


def test_a_topic_that_was_drained_is_deleted_only_while_all_parts_are_closed() -> None:
    gone = RemoveEntry(hex_of(50), hex_of(5), is_drained=True)
    entries: list[Entry] = [*TWO_BROKERS, topic(5, brokers=(0, 1, 0)), close(5, 0, 41)]
    entries += [close(5, 1, 42), remove_part(1, 0, 9, 43)]
    _, counts = replay(*entries, gone)
    assert counts[-1] is False
    directory, counts = replay(*entries, close(5, 2, 44), gone)
    assert counts[-1] is True
    assert not directory.topics
    _, counts = replay(*entries, close(5, 2, 44), reopen(5, 0, 45), gone)
    assert counts[-1] is False


def test_a_topic_of_one_broker_comes_with_its_closed_and_removed_parts() -> None:
    entries: list[Entry] = [*TWO_BROKERS, topic(5), part(5, 0, 40), close(5, 0, 41)]
    before, _ = replay(*entries, close(5, 1, 42), remove_part(1, 0, 17, 43))
    entry = before.topics["clicks"].as_entry(hex_of(44))
    assert decode_entry(encode_entry(entry)) == entry
    after, counts = replay(*TWO_BROKERS, entry)
    assert counts[-1]
    assert after.topics == before.topics
    local = Directory()
    assert [local.add(one) for one in (*TWO_BROKERS, entry)] == [None] * 3
    assert local.topics == before.topics
    assert local.add(entry) is not None


def test_a_part_that_was_removed_never_comes_back() -> None:
    entries: list[Entry] = [*TWO_BROKERS, topic(5), close(5, 1, 41), remove_part(1, 0, 17, 42)]
    void: list[Entry] = [
        reopen(5, 1, 43), close(5, 1, 44), move(1, 0, 0, 45), give(1, 1, 0, 46),
        remove_part(1, 0, 18, 47),
    ]  # fmt: skip
    directory, counts = replay(*entries, *void, part(5, 1, 48))
    assert counts == [True] * 5 + [False] * 5 + [True]
    found = directory.topics["clicks"]
    assert (found.parts, found.closed, found.ends) == ((0, -1, 1), frozenset(), {1: 17})
    assert found.places == {0: 0, 2: 1}
    assert found.why_missing(1) == "part clicks#1 was removed"
    assert (found.why_missing(2), found.why_missing(3)) == ("", "topic clicks has no part 3")


@pytest.mark.parametrize(
    ("before", "code", "why"),
    [
        ([], "E_NOT_EMPTY", "is open to publishers"),
        ([close(5, 1, 41), reopen(5, 1, 42)], "E_NOT_EMPTY", "is open to publishers"),
        ([close(5, 1, 41), close(5, 0, 42)], "E_BAD_ARGUMENT", "no other part that is open"),
        ([close(5, 0, 41)], "E_BAD_ARGUMENT", "no other part that is open"),
        ([close(5, 1, 41), move(1, 0, 0, 42)], "E_CLOSING", "is being moved"),
        (
            [close(5, 1, 41), move(1, 0, 0, 42), ready(1, 0, 0, 43), give(1, 1, 0, 44)],
            "E_CLOSING", "is being moved",
        ),
    ],
)  # fmt: skip
def test_a_part_is_removed_only_while_it_is_closed_and_stays_where_it_is(
    before: list[Entry], code: str, why: str
) -> None:
    directory, counts = replay(*TWO_BROKERS, topic(5), *before)
    assert all(counts)
    objection = directory.objection(remove_part(1, 0, 17, 99))
    assert objection is not None
    assert (objection.code, why in objection.text) == (code, True)


def test_a_part_moves_to_another_broker_and_back() -> None:
    """Each `give` begins a new hold. Entries of an earlier hold are void."""
    entries: list[Entry] = [*TWO_BROKERS, topic(5), move(0, 0, 1, 41)]
    steps: list[tuple[Entry, bool, tuple[int, ...], Hold]] = [
        (give(0, 2, 1, 42), False, (0, 1), Hold(0, 1)),
        (ready(0, 0, 1, 43), True, (0, 1), Hold(0, 1, True)),
        (give(0, 1, 1, 44), True, (1, 1), Hold(1, -1, False, 0, hex_of(77), 9)),
        (give(0, 1, 0, 45), False, (1, 1), Hold(1, -1, False, 0, hex_of(77), 9)),
        (move(0, 1, 0, 46), False, (1, 1), Hold(1, -1, False, 0, hex_of(77), 9)),
        (taken(0, 0, 47), False, (1, 1), Hold(1, -1, False, 0, hex_of(77), 9)),
        (taken(0, 1, 48), True, (1, 1), Hold(1, -1, False, -1, hex_of(77), 9)),
        (taken(0, 1, 49), False, (1, 1), Hold(1, -1, False, -1, hex_of(77), 9)),
        (move(0, 1, 0, 50), True, (1, 1), Hold(1, 0, False, -1, hex_of(77), 9)),
        (move(0, 1, 1, 51), True, (1, 1), Hold(1, -1, False, -1, hex_of(77), 9)),
        (ready(0, 1, 0, 52), False, (1, 1), Hold(1, -1, False, -1, hex_of(77), 9)),
        (move(0, 0, 0, 53), False, (1, 1), Hold(1, -1, False, -1, hex_of(77), 9)),
        (give(0, 2, 1, 54), True, (1, 1), Hold(2, -1, False, -1, hex_of(77), 9)),
        (give(0, 3, 0, 55), True, (0, 1), Hold(3, -1, False, 1, hex_of(77), 9)),
    ]
    for entry, counts, parts, hold in steps:
        entries.append(entry)
        directory, counted = replay(*entries)
        found = directory.topics["clicks"]
        assert (counted[-1], found.parts, found.hold(0)) == (counts, parts, hold), entry
        assert found.hold(1) == Hold()


THREE_BROKERS = (*TWO_BROKERS, broker(3, C))


def test_a_broker_drains_until_it_is_undone_and_the_last_one_cannot() -> None:
    steps: list[tuple[Entry, bool, list[int]]] = [
        (drain(1, 40), True, [0, 2, 0]),
        (drain(0, 41), True, [2, 2, 0]),
        (drain(2, 42), False, [2, 2, 0]),
        (drain(0, 43, is_draining=False), True, [0, 2, 0]),
        (drain(2, 44), True, [0, 2, 2]),
        (broker(2, A, id=45), True, [0, 2, 2]),
        (drain(3, 46), False, [0, 2, 2]),
    ]
    entries: list[Entry] = [*THREE_BROKERS]
    for entry, counts, draining in steps:
        entries.append(entry)
        directory, counted = replay(*entries)
        assert (counted[-1], [one.draining for one in directory.brokers]) == (counts, draining)
    assert directory.brokers[1].addresses == A


def test_the_last_setting_of_auto_counts() -> None:
    directory, _ = replay(
        *TWO_BROKERS,
        AutoEntry(hex_of(40), True, 5, 2, 600),
        AutoEntry(hex_of(41), True, 6, 3, 0),
    )
    assert directory.auto == Auto(True, 6, 3, 0)


def test_a_broker_that_was_forgotten_gets_nothing_and_its_parts_begin_elsewhere() -> None:
    """Broker 1 has part 1. Part 0 shall move to it, and part 2 is being taken by it from broker
    2.
    """
    entries: list[Entry] = [
        *THREE_BROKERS, topic(5, brokers=(0, 1, 2)), move(0, 0, 1, 40), ready(0, 0, 1, 41),
        give(2, 1, 1, 42),
    ]  # fmt: skip
    steps: list[tuple[Entry, bool]] = [
        (reclaim(1, 1, 0, 1, 50), False),  # it is not forgotten
        (forget(1, 51, tick=NOBODY), False),  # it has parts, so its log must have ended
        (forget(1, 52), True),
        (forget(1, 53), False),
        (broker(2, C, id=54), False),
        (drain(1, 55), False),
        (move(0, 0, 1, 56), False),
        (give(0, 1, 1, 57), False),
        (part(5, 1, 58), False),
        (topic(6, "other", (1,)), False),
        (reclaim(1, 2, 0, 1, 60), False),  # another hold
        (reclaim(1, 1, 1, 1, 61), False),
        (reclaim(1, 1, 0, 2, 62), False),  # it was never there
        (reclaim(1, 1, 0, 1, 63), True),
        (reclaim(1, 1, 2, 1, 64), False),  # another broker was faster
        (reclaim(2, 2, 2, 2, 65), True),  # it still has the files
        (taken(1, 1, 66), True),
        (forget(0, 67), True),
        (forget(2, 68), False),  # nobody would be left
    ]
    for entry, counts in steps:
        before, _ = replay(*entries)
        entries.append(entry)
        directory, counted = replay(*entries)
        assert counted[-1] == counts, (entry, before.objection(entry))
    found = directory.topics["clicks"]
    assert found.parts == (0, 0, 2)
    assert found.hold(0) == Hold(), "the move is withdrawn"
    assert found.hold(1) == Hold(1, log=hex_of(77), tick=9, reserves=1)
    assert found.hold(2) == Hold(2, log=hex_of(77), tick=9, reserves=1)
    assert not any(hold.is_empty for hold in found.holds.values() if hold.number)
    assert [one.gone for one in directory.brokers] == [True, True, False]


def test_each_lost_broker_whose_bucket_lacked_a_part_adds_to_its_gap() -> None:
    """Brokers 1 and 2 may have given out offsets behind the end of what broker 0 has."""
    entries: list[Entry] = [
        *THREE_BROKERS, broker(4, A), topic(5, brokers=(0, 0)), move(0, 0, 1, 40),
        ready(0, 0, 1, 41), give(0, 1, 1, 42), forget(1, 43), reclaim(0, 2, 2, 0, 44),
        forget(2, 45),
    ]  # fmt: skip
    for source in (0, 2):  # what broker 2 had shipped may lack the first gap
        directory, counts = replay(*entries, reclaim(0, 3, 3, source, 46))
        assert counts[-1]
        assert directory.topics["clicks"].hold(0).reserves == 2
    unshipped: list[Entry] = [*THREE_BROKERS, topic(5, brokers=(1, 0)), forget(1, 40)]
    unshipped += [reclaim(0, 1, 2, NOBODY, 41), forget(2, 42), reclaim(0, 2, 0, NOBODY, 43)]
    directory, counts = replay(*unshipped)
    assert counts[-1]
    assert directory.topics["clicks"].hold(0).reserves == 2


def test_a_part_that_no_bucket_has_begins_anew() -> None:
    entries = (*THREE_BROKERS, topic(5, brokers=(1, 0)), forget(1, 40))
    directory, counts = replay(*entries, reclaim(0, 1, 2, NOBODY, 41))
    assert counts[-1]
    hold = directory.topics["clicks"].hold(0)
    assert (hold.number, hold.origin, hold.is_empty) == (1, NOBODY, True)


@pytest.mark.parametrize(
    ("entry", "code", "why"),
    [
        (move(2, 0, 1, 99), "E_NOT_FOUND", "no part 2"),
        (move(0, 1, 1, 99), "E_EXISTS", "the hold is 0, not 1"),
        (move(0, 0, 2, 99), "E_NOT_FOUND", "no broker 2"),
        (move(0, 0, 1, 99, uuid=7), "E_NOT_FOUND", "was removed"),
        (ready(0, 0, 1, 99), "E_EXISTS", "shall not move to broker 1"),
        (give(0, 0, 1, 99), "E_EXISTS", "the hold is 1, not 0"),
        (give(0, 1, 9, 99), "E_NOT_FOUND", "no broker 9"),
        (taken(0, 0, 99), "E_EXISTS", "not being taken over"),
        (close(8, 0, 99), "E_NOT_FOUND", "does not exist"),
        (close(5, 2, 99), "E_NOT_FOUND", "topic clicks has no part 2"),
        (reopen(5, -1, 99), "E_NOT_FOUND", "topic clicks has no part -1"),
        (topic(6), "E_EXISTS", "topic clicks exists"),
        (topic(5, "other"), "E_EXISTS", "same id"),
        (topic(5, "other")._replace(id=hex_of(99)), "E_EXISTS", "exists or was removed"),
        (topic(7, "other")._replace(id=hex_of(99)), "E_EXISTS", "exists or was removed"),
        (topic(8, "other", (0, 2)), "E_NOT_FOUND", "the cluster has no broker 2"),
        (topic(8, "other", (-1,)), "E_NOT_FOUND", "the cluster has no broker -1"),
        (topic(8, "other", ()), "E_BAD_ARGUMENT", "1 to 256 parts, not 0"),
        (topic(8, "other", (0,) * 257), "E_BAD_ARGUMENT", "1 to 256 parts, not 257"),
        (topic(8, "other#3"), "E_BAD_NAME", "not legal"),
        (topic(8, "other#ephemeral"), "E_BAD_NAME", "not legal"),
        (topic(8, ".."), "E_BAD_NAME", "not legal"),
        (topic(8, "a" * 61), "E_BAD_NAME", "room for the largest number"),
        (part(7, 0, 99), "E_NOT_FOUND", "was removed"),
        (part(8, 0, 99), "E_NOT_FOUND", "does not exist"),
        (part(5, 2, 99), "E_NOT_FOUND", "no broker 2"),
        (part(9, 1, 99), "E_LIMIT", "256 parts, the limit"),
        (remove(7, 99), "E_NOT_FOUND", "was removed"),
        (remove(8, 99), "E_NOT_FOUND", "does not exist"),
        (broker(3, id=1_001), "E_EXISTS", "entry 0 has the same id"),
        (RemoveEntry(hex_of(99), hex_of(5), True), "E_NOT_EMPTY", "clicks#0 is open to publishers"),
        (topic(8, "other", (0, -1)), "E_NOT_FOUND", "the cluster has no broker -1"),
        (topic(8, "other")._replace(closed=(2,)), "E_BAD_ARGUMENT", "not among its parts"),
        (topic(8, "other")._replace(removed=((1, 5),)), "E_BAD_ARGUMENT", "not among its parts"),
        (topic(8, "other", (0, -1))._replace(removed=((2, 5),)), "E_BAD_ARGUMENT", "not among its"),
        (topic(8, "other", (-1,))._replace(removed=((0, 5),)), "E_BAD_ARGUMENT", "not among its"),
    ],
)
def test_a_void_entry_changes_nothing(entry: Entry, code: str, why: str) -> None:
    entries: list[Entry] = [*TWO_BROKERS, topic(5), topic(7, "gone"), remove(7)]
    full = topic(9, "full", (0,) * PARTS_MAX)
    before, counts = replay(*entries, full)
    assert all(counts)
    objection = before.objection(entry)
    assert objection is not None
    assert objection.code == code
    assert why in objection.text
    after, counts = replay(*entries, full, entry)
    assert counts == [True] * 6 + [False]
    assert view(after)[1:] == view(before)[1:]
    assert after.next == 7


def test_the_number_of_brokers_is_limited_and_known_ones_may_still_change() -> None:
    directory, counts = replay(*(broker(n, id=10_000 + n) for n in range(BROKERS_MAX + 1)))
    assert counts == [True] * BROKERS_MAX + [False]
    assert directory.objection(broker(0, C, id=9)) is None


def test_an_entry_is_known_by_its_id_also_if_it_is_void() -> None:
    directory, counts = replay(*TWO_BROKERS, remove(5, 77), topic(5), remove(5, 77))
    assert counts == [True, True, False, True, False]
    assert directory.number_of(hex_of(77)) == 2
    assert directory.number_of(hex_of(78)) is None


def test_the_longest_name_of_a_topic_has_room_for_the_largest_part() -> None:
    assert why_unfit("a" * 60) is None
    assert why_unfit("a" * 61) is not None


Whole = tuple[int, tuple[Broker, ...], dict[str, PartedTopic], frozenset[str]]


def view(directory: Directory) -> Whole:
    return (
        directory.next, directory.brokers, dict(directory.topics), frozenset(directory.removed),
    )  # fmt: skip


ids = st.integers(0, 30).map(hex_of)
few = st.integers(0, 4).map(hex_of)
entries = st.one_of(
    st.builds(BrokerEntry, ids, few, st.sampled_from([A, B, C])),
    st.builds(
        TopicEntry,
        ids,
        st.sampled_from(["a", "b", "c#1", "", "d" * 64]),
        few,
        st.lists(st.integers(-1, 4), max_size=4).map(tuple),
        st.just({}),
    ),
    st.builds(PartEntry, ids, few, st.integers(-1, 4)),
    st.builds(CloseEntry, ids, few, st.integers(-1, 4)),
    st.builds(OpenEntry, ids, few, st.integers(-1, 4)),
    st.builds(MoveEntry, ids, few, st.integers(-1, 3), st.integers(0, 3), st.integers(-1, 4)),
    st.builds(ReadyEntry, ids, few, st.integers(-1, 3), st.integers(0, 3), st.integers(-1, 4)),
    st.builds(
        GiveEntry, ids, few, st.integers(-1, 3), st.integers(0, 3), st.integers(-1, 4), few,
        st.integers(0, 9),
    ),
    st.builds(TakenEntry, ids, few, st.integers(-1, 3), st.integers(0, 3)),
    st.builds(RemovePartEntry, ids, few, st.integers(-1, 3), st.integers(0, 3), st.just(7)),
    st.builds(RemoveEntry, ids, few),
    st.builds(DrainEntry, ids, st.integers(-1, 4), st.booleans(), st.integers(0, 3)),
    st.builds(ForgetEntry, ids, st.integers(-1, 4), st.integers(-1, 3)),
    st.builds(
        ReclaimEntry, ids, few, st.integers(-1, 3), st.integers(0, 3), st.integers(-1, 4), few,
        st.integers(0, 9), st.integers(-1, 4),
    ),
)  # fmt: skip


@given(st.lists(entries, max_size=30))
def test_the_same_entries_give_the_same_view_and_numbers_never_change(
    entries: list[Entry],
) -> None:
    first, second = Directory(), Directory()
    for number, entry in enumerate(entries):
        raw = encode_entry(entry)
        before = view(first)
        fits = first.objection(entry) is None
        assert first.apply(number, raw) == fits
        assert not first.apply(number, raw)
        second.apply(number, raw)
        assert view(first) == view(second)
        known, _, removed = before[1:]
        assert [one[:2] for one in first.brokers[: len(known)]] == [one[:2] for one in known]
        assert removed <= first.removed
        for parted in before[2].values():
            after = first.topic_of(parted.uuid)
            if after is None:
                assert parted.uuid in first.removed
            else:
                assert after.topic == parted.topic
                assert after.parts[: len(parted.parts)] == parted.parts
        if not fits:
            assert view(first)[1:] == before[1:]
    assert {one.uuid for one in first.topics.values()}.isdisjoint(first.removed)
    assert all(n < len(one.parts) for one in first.topics.values() for n in one.closed)
    assert all(0 <= n < len(first.brokers) for one in first.topics.values() for n in one.parts)
