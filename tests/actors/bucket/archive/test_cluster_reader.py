"""Tests of the reader of the cluster's directory: what the supervisor hears, the broker's own
entry, and orders. The thread runs its jobs when the test says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

import pytest
from support.ship_bucket import FakeBucket, FakeThread

from zsq.actors.bucket.archive import cluster_reader
from zsq.actors.bucket.archive.cluster_reader import (
    EARLIER_MAX,
    ORDERS_MAX,
    ClusterReader,
    check_store,
    merged,
)
from zsq.storage import documents
from zsq.storage.bucket.bucket import BucketAway, BucketUnfit
from zsq.storage.bucket.bucket_url import parse_bucket_url
from zsq.storage.cluster.directory import (
    ADDRESSES_MAX,
    Broker,
    BrokerEntry,
    Directory,
    RemoveEntry,
    TopicEntry,
    encode_entry,
    entry_object,
)
from zsq.storage.cluster.directory_log import DirectoryLog
from zsq.transport.errors import E_BAD_ARGUMENT, E_BUCKET, E_LIMIT, E_NOT_FOUND, Refused, UsageError
from zsq.transport.wire import protocol as p

ONE, TWO = "1" * 32, "2" * 32
A, B = "tcp://a:4153", "tcp://b:4153"
OWN = "s3://bucket/one"


class Reader:
    """A reader with its bucket, its thread, and the messages that the supervisor got."""

    def __init__(
        self,
        bucket: FakeBucket | None = None,
        addresses: tuple[str, ...] = (A,),
        check: Callable[[], object] = lambda: None,
    ) -> None:
        self.bucket = bucket or FakeBucket()
        self.thread = FakeThread("cluster")
        self.heard: list[p.Wire] = []
        self.reader = ClusterReader(
            self.bucket, ONE, addresses, OWN, cast("Any", self.thread), self.heard.append, check
        )

    def work(self) -> list[p.Wire]:
        """Run all jobs. Return the messages of their results."""
        while self.thread.run():
            pass
        while self.thread.deliver():
            pass
        heard, self.heard[:] = list(self.heard), []
        return heard

    def begin(self) -> list[p.Wire]:
        self.reader.allow(True)
        return self.work()

    def look(self) -> list[p.Wire]:
        self.reader.look()
        return self.work()

    def brokers(self) -> tuple[Broker, ...]:
        return view(self.bucket).brokers


def view(bucket: FakeBucket) -> Directory:
    log = DirectoryLog(bucket)
    log.read_on()
    return log.directory


def put(bucket: FakeBucket, *entries: BrokerEntry | TopicEntry) -> None:
    log = DirectoryLog(bucket)
    for entry in entries:
        log.append(entry)


def broker(uuid: str, *addresses: str, id: str = "") -> BrokerEntry:
    return BrokerEntry(id or uuid, uuid, addresses, OWN)


def topic(number: int) -> TopicEntry:
    return TopicEntry(f"{number:032x}", f"t{number}", f"{number:032x}", (0,), {})


def test_it_begins_when_the_broker_may_write_to_its_bucket() -> None:
    one = Reader()
    one.reader.look()
    one.reader.allow(False)
    assert (one.work(), one.bucket.objects) == ([], {})
    one.reader.allow(True)
    assert one.thread.pending == 1
    one.reader.allow(True)
    assert one.thread.pending == 1


def test_the_first_read_announces_the_broker() -> None:
    one = Reader()
    (heard,) = one.begin()
    assert one.brokers() == (Broker(0, ONE, (A,), OWN),)
    assert heard == p.DirectoryEntries(0, (one.bucket.objects[entry_object(0)],), True)
    assert one.look() == []
    assert len(one.bucket.objects) == 1


def test_new_entries_are_sent_once_and_in_order() -> None:
    one = Reader()
    put(one.bucket, broker(TWO, B))
    (heard,) = one.begin()
    assert isinstance(heard, p.DirectoryEntries)
    assert (heard.first, len(heard.entries), heard.is_all) == (0, 2, True)
    put(one.bucket, topic(1), topic(2))
    assert one.look() == [
        p.DirectoryEntries(2, (encode_entry(topic(1)), encode_entry(topic(2))), True)
    ]
    assert one.look() == []


def test_many_entries_are_sent_in_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_reader, "MESSAGE_ENTRIES", 3)
    one = Reader()
    put(one.bucket, broker(ONE, A), *map(topic, range(6)))
    heard = one.begin()
    found = [
        (m.first, len(m.entries), m.is_all) for m in heard if isinstance(m, p.DirectoryEntries)
    ]
    assert found == [(0, 3, False), (3, 3, False), (6, 1, True)]


def test_a_message_has_a_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(encode_entry(topic(1)))
    monkeypatch.setattr(cluster_reader, "MESSAGE_BYTES", 2 * size)
    one = Reader()
    put(one.bucket, broker(ONE, A), *map(topic, range(3)))
    heard = [m for m in one.begin() if isinstance(m, p.DirectoryEntries)]
    assert [raw for m in heard for raw in m.entries] == [*one.bucket.objects.values()]
    assert all(sum(map(len, m.entries)) <= 2 * size for m in heard)
    assert [m.is_all for m in heard] == [False] * (len(heard) - 1) + [True]


def test_an_answer_that_is_awaited_is_not_asked_for_again() -> None:
    one = Reader()
    one.reader.allow(True)
    one.reader.look()
    assert one.thread.pending == 1


# The broker's own entry


@pytest.mark.parametrize(
    ("own", "known", "expected"),
    [
        ((A,), (), (A,)),
        ((A,), (A, B), (A, B)),
        ((B,), (A,), (B, A)),
        ((A, B), (B,), (A, B)),
        (("n",), ("1", "2", "3", "4", "5"), ("n", "1", "2", "3", "4")),
    ],
)
def test_earlier_addresses_follow_those_of_the_process(
    own: tuple[str, ...], known: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert merged(own, known) == expected
    assert merged(own, expected) == expected
    assert EARLIER_MAX * 2 <= ADDRESSES_MAX


def test_an_entry_that_is_right_is_not_added_again() -> None:
    one = Reader()
    put(one.bucket, broker(ONE, A, B))
    one.begin()
    assert len(one.bucket.objects) == 1


def test_another_bucket_of_the_broker_is_announced() -> None:
    """Other brokers read in it the parts that this one gives to them."""
    one = Reader()
    put(one.bucket, broker(ONE, A)._replace(bucket="s3://bucket/before"))
    one.begin()
    assert one.brokers() == (Broker(0, ONE, (A,), OWN),)
    one.look()
    assert len(one.bucket.objects) == 2


def test_a_takeover_puts_the_new_address_before_the_old_one() -> None:
    one = Reader(addresses=(B,))
    put(one.bucket, broker(ONE, A))
    one.begin()
    assert one.brokers() == (Broker(0, ONE, (B, A), OWN),)


def test_two_processes_of_one_broker_do_not_add_entries_for_ever() -> None:
    bucket = FakeBucket()
    old, new = Reader(bucket, (A,)), Reader(bucket, (B,))
    old.begin()
    new.begin()
    for _ in range(4):
        old.look()
        new.look()
    assert len(bucket.objects) == 2
    assert view(bucket).brokers == (Broker(0, ONE, (B, A), OWN),)


def test_an_address_that_a_late_entry_of_an_old_process_lacks_is_added_again() -> None:
    one = Reader(addresses=(B,))
    one.begin()
    put(one.bucket, broker(ONE, A))  # an older process had not read the entry before
    one.look()
    assert one.brokers() == (Broker(0, ONE, (B, A), OWN),)
    put(one.bucket, broker(ONE, A, id=TWO))
    one.look()
    assert one.brokers() == (Broker(0, ONE, (B, A), OWN),)
    assert len(one.bucket.objects) == 5


def test_a_lost_answer_adds_no_second_entry() -> None:
    one = Reader()
    one.bucket.fate = lambda name: "late"
    heard = one.begin()
    assert [type(m) for m in heard] == [p.DirectoryTrouble]
    one.bucket.arrive()
    one.bucket.fate = lambda name: "ok"
    heard = one.look()
    assert heard == [
        p.DirectoryTrouble(""),
        p.DirectoryEntries(0, tuple(one.bucket.objects.values()), True),
    ]
    assert len(one.bucket.objects) == 1


def test_an_address_of_this_machine_alone_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "zsq"):
        Reader(addresses=("tcp://127.0.0.1:4153",)).begin()
    assert "other machines cannot reach this broker" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "zsq"):
        Reader(addresses=("tcp://127.0.0.1:4153", A)).begin()
    assert "other machines" not in caplog.text


# Trouble


def test_trouble_is_told_once_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    one = Reader()
    one.begin()
    one.bucket.is_away = True
    assert one.look() == [p.DirectoryTrouble("the bucket does not answer")]
    assert one.look() == []
    assert one.reader.trouble == "the bucket does not answer"
    one.bucket.is_away = False
    assert one.look() == [p.DirectoryTrouble("")]
    assert one.look() == []
    assert caplog.text.count("cannot be read: the bucket does not answer") == 1


def test_the_view_is_whole_only_after_a_read_without_an_error() -> None:
    one = Reader()
    put(one.bucket, broker(ONE, A))
    one.bucket.create(entry_object(1), documents.encode_line("directory", 2, {}))
    trouble, entries = one.begin()
    assert isinstance(trouble, p.DirectoryTrouble)
    assert "use a newer zsq" in trouble.text
    assert isinstance(entries, p.DirectoryEntries)
    assert (entries.first, len(entries.entries), entries.is_all) == (0, 1, False)
    assert one.look() == []
    del one.bucket.objects[entry_object(1)]
    assert one.look() == [p.DirectoryTrouble(""), p.DirectoryEntries(1, (), True)]


def test_a_store_that_is_not_fit_is_not_used_and_is_checked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_reader, "PAUSE_S", 0.0)
    errors = [BucketUnfit("two writers win"), BucketAway("no answer")]

    def check() -> None:
        if errors:
            raise errors.pop(0)

    one = Reader(check=check)
    assert one.begin() == [p.DirectoryTrouble("two writers win")]
    assert one.look() == [p.DirectoryTrouble("no answer")]
    assert one.bucket.objects == {}
    assert [type(m) for m in one.look()] == [p.DirectoryTrouble, p.DirectoryEntries]


def test_a_check_that_failed_is_not_repeated_at_once() -> None:
    asked = []

    def check() -> None:
        asked.append(1)
        raise BucketUnfit("two writers win")

    one = Reader(check=check)
    one.begin()
    one.look()
    assert len(asked) == 1


def test_the_store_of_the_own_bucket_is_not_probed_again() -> None:
    bucket = FakeBucket()
    check_store(bucket, parse_bucket_url("s3://fake/other"))
    assert bucket.tried == []
    check_store(bucket, parse_bucket_url("s3://another/other"))
    assert len(bucket.tried) > 10
    assert bucket.objects == {}
    bucket.is_away = True
    with pytest.raises(BucketAway):
        check_store(bucket, parse_bucket_url("s3://fake/other"))


# Orders


def test_an_entry_is_sent_before_the_answer_to_its_order() -> None:
    one = Reader()
    one.begin()
    one.reader.append(p.AppendEntry(7, encode_entry(topic(1))))
    assert one.work() == [
        p.DirectoryEntries(1, (encode_entry(topic(1)),), True),
        p.Done(7, {"number": 1}),
    ]
    one.reader.append(p.AppendEntry(8, encode_entry(topic(1))))  # repeated
    assert one.work() == [p.Done(8, {"number": 1})]


def test_a_void_entry_is_refused_with_its_reason() -> None:
    one = Reader()
    one.begin()
    put(one.bucket, topic(1))
    one.reader.append(p.AppendEntry(7, encode_entry(RemoveEntry(TWO, TWO))))
    entries, failed = one.work()
    assert entries == p.DirectoryEntries(1, (encode_entry(topic(1)),), True)
    assert isinstance(failed, p.Failed)
    assert (failed.request, failed.code) == (7, E_NOT_FOUND)
    assert one.reader.trouble == ""


def test_an_order_that_the_store_does_not_answer_fails() -> None:
    one = Reader()
    one.begin()
    one.bucket.is_away = True
    one.reader.append(p.AppendEntry(7, encode_entry(topic(1))))
    one.reader.read(p.ReadDirectory(8))
    text = "the bucket does not answer"
    assert one.work() == [
        p.DirectoryTrouble(text), p.Failed(7, E_BUCKET, text), p.Failed(8, E_BUCKET, text),
    ]  # fmt: skip


def test_the_directory_is_read_on_order() -> None:
    one = Reader()
    one.begin()
    put(one.bucket, topic(1))
    one.reader.read(p.ReadDirectory(7))
    assert one.work() == [
        p.DirectoryEntries(1, (encode_entry(topic(1)),), True), p.Done(7, {}),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        documents.encode_line("directory", 9, {"kind": "topic"}),
        documents.encode_line("directory", 1, {"kind": "topic"}),
    ],
)
def test_an_order_with_an_entry_that_nobody_could_read_is_refused(raw: bytes) -> None:
    one = Reader()
    one.begin()
    with pytest.raises(UsageError) as refusal:
        one.reader.append(p.AppendEntry(7, raw))
    assert refusal.value.code == E_BAD_ARGUMENT


def test_orders_are_refused_before_the_broker_may_write_and_when_there_are_too_many() -> None:
    one = Reader()
    with pytest.raises(Refused) as refusal:
        one.reader.read(p.ReadDirectory(1))
    assert refusal.value.code == E_BUCKET
    one.begin()
    for request in range(ORDERS_MAX):
        one.reader.read(p.ReadDirectory(request))
    with pytest.raises(Refused) as refusal:
        one.reader.append(p.AppendEntry(1, encode_entry(topic(1))))
    assert refusal.value.code == E_LIMIT


def test_a_defect_in_the_thread_ends_the_process() -> None:
    def check() -> None:
        raise ZeroDivisionError

    one = Reader(check=check)
    one.reader.allow(True)
    one.thread.run()
    with pytest.raises(ZeroDivisionError):
        one.thread.deliver()
