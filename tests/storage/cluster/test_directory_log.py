"""Tests of the directory log: writers that race, answers that are lost, and requests that arrive
late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fault_proxy import FaultProxy, Faults
from support.s3_server import BUCKET, seaweedfs
from support.ship_bucket import FakeBucket

from zsq.storage import documents
from zsq.storage.bucket.bucket import (
    Bucket,
    BucketAway,
    BucketError,
    BucketRefuses,
    Bytes,
    ObjectExists,
)
from zsq.storage.bucket.bucket_url import parse_bucket_url
from zsq.storage.bucket.object_store import open_bucket
from zsq.storage.cluster import directory_log
from zsq.storage.cluster.directory import (
    BrokerEntry,
    Directory,
    PartEntry,
    TopicEntry,
    encode_entry,
    entry_object,
)
from zsq.storage.cluster.directory_log import AWAY_MAX, DirectoryLog, NewEntries, VoidEntry


def hex_of(number: int) -> str:
    return f"{number:032x}"


def broker(number: int) -> BrokerEntry:
    return BrokerEntry(hex_of(1_000 + number), hex_of(number), ("tcp://a:4153",))


def put(bucket: Bucket, *entries: BrokerEntry) -> None:
    """Add entries as another writer does."""
    other = DirectoryLog(bucket)
    for entry in entries:
        other.append(entry)


def uuids(log: DirectoryLog) -> list[int]:
    return [int(one.uuid, 16) for one in log.directory.brokers]


def test_an_empty_directory_has_no_entries() -> None:
    log = DirectoryLog(FakeBucket())
    log.read_on()
    assert log.take() == NewEntries(0, ())
    assert log.directory.next == 0


def test_entries_are_read_once_and_handed_over_once() -> None:
    bucket = FakeBucket()
    put(bucket, broker(1), broker(2))
    log = DirectoryLog(bucket)
    log.read_on()
    assert log.take() == NewEntries(0, (encode_entry(broker(1)), encode_entry(broker(2))))
    log.read_on()
    assert log.take() == NewEntries(2, ())
    put(bucket, broker(3))
    log.read_on()
    assert log.append(broker(4)) == 3
    assert log.take() == NewEntries(2, (encode_entry(broker(3)), encode_entry(broker(4))))
    assert uuids(log) == [1, 2, 3, 4]


def test_one_request_asks_whether_there_is_a_new_entry() -> None:
    asked: list[str] = []

    class Asked(FakeBucket):
        def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
            asked.append(name)
            return super().read(name, start, length)

    bucket = Asked()
    put(bucket, broker(1))
    log = DirectoryLog(bucket)
    log.read_on()
    asked.clear()
    log.read_on()
    assert asked == [entry_object(1)]


def test_many_entries_are_read_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_log, "BATCH", 7)
    bucket = FakeBucket()
    put(bucket, *map(broker, range(30)))
    log = DirectoryLog(bucket)
    log.read_on()
    assert uuids(log) == list(range(30))


def test_a_list_of_names_need_not_be_complete() -> None:
    class Lists(FakeBucket):
        shown: Sequence[str] = ()

        def names(self, below: str) -> Iterator[str]:
            return iter(self.shown)

    bucket = Lists()
    put(bucket, *map(broker, range(4)))
    for shown in ([], [entry_object(1)], [entry_object(9), "directory/other", "x"]):
        bucket.shown = shown
        log = DirectoryLog(bucket)
        log.read_on()
        assert uuids(log) == [0, 1, 2, 3]


def test_an_entry_that_others_add_first_gets_the_next_number() -> None:
    class Rival(FakeBucket):
        """A bucket in which somebody else is always faster, three times."""

        def create(self, name: str, data: Bytes) -> None:
            if rivals:
                super().create(name, encode_entry(rivals.pop(0)))
            super().create(name, data)

    bucket = Rival()
    rivals = [broker(7), broker(8), broker(9)]
    log = DirectoryLog(bucket)
    assert log.append(broker(1)) == 3
    assert uuids(log) == [7, 8, 9, 1]
    assert len(bucket.objects) == 4


def test_an_entry_that_became_void_in_a_race_is_not_added() -> None:
    class Rival(FakeBucket):
        def create(self, name: str, data: Bytes) -> None:
            if name == entry_object(1):
                super().create(name, encode_entry(first))
            super().create(name, data)

    first, second = (
        TopicEntry(hex_of(n), "clicks", hex_of(n), (0,), {"sync": "bucket"}) for n in (5, 6)
    )
    bucket = Rival()
    log = DirectoryLog(bucket)
    log.append(broker(1))
    with pytest.raises(VoidEntry, match="topic clicks exists") as raised:
        log.append(second)
    assert raised.value.code == "E_EXISTS"
    assert log.directory.topics["clicks"].uuid == hex_of(5)
    assert len(bucket.objects) == 2
    with pytest.raises(VoidEntry, match="no broker 4"):
        log.append(PartEntry(hex_of(9), hex_of(5), 4))


@pytest.mark.parametrize("fate", ["away", "lost"])
def test_a_lost_answer_is_found_in_the_bucket(fate: str) -> None:
    bucket = FakeBucket()
    fates = iter([fate])
    bucket.fate = lambda name: next(fates, "ok")
    log = DirectoryLog(bucket)
    assert log.append(broker(1)) == 0
    assert log.append(broker(2)) == 1
    assert list(bucket.objects) == [entry_object(0), entry_object(1)]
    assert log.take() == NewEntries(0, (encode_entry(broker(1)), encode_entry(broker(2))))


def test_a_writer_gives_up_when_the_store_does_not_answer_and_may_ask_again() -> None:
    bucket = FakeBucket()
    bucket.fate = lambda name: "late"
    log = DirectoryLog(bucket)
    with pytest.raises(BucketAway):
        log.append(broker(1))
    assert len(bucket.tried) == AWAY_MAX
    bucket.fate = lambda name: "ok"
    put(bucket, broker(2))
    assert log.append(broker(1)) == 1
    bucket.arrive()
    log.read_on()
    assert uuids(log) == [2, 1]


def test_a_late_request_that_takes_effect_is_recognized() -> None:
    bucket = FakeBucket()
    bucket.fate = lambda name: "late"
    log = DirectoryLog(bucket)
    with pytest.raises(BucketAway):
        log.append(broker(1))
    bucket.arrive()
    tried = len(bucket.tried)
    assert log.append(broker(1)) == 0
    assert DirectoryLog(bucket).append(broker(1)) == 0  # a process that started again
    assert len(bucket.tried) == tried


def test_a_store_that_does_not_answer_changes_nothing() -> None:
    bucket = FakeBucket()
    put(bucket, broker(1))
    log = DirectoryLog(bucket)
    bucket.is_away = True
    for call in (log.read_on, lambda: log.append(broker(2))):
        with pytest.raises(BucketAway):
            call()
    bucket.is_away = False
    log.read_on()
    assert uuids(log) == [1]


def test_a_store_that_says_taken_for_ever_is_given_up() -> None:
    class Contradicts(FakeBucket):
        def create(self, name: str, data: Bytes) -> None:
            raise ObjectExists(name)

    with pytest.raises(BucketError, match="taken 100 times"):
        DirectoryLog(Contradicts()).append(broker(1))


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (documents.encode_line("directory", 2, {"kind": "broker"}), "use a newer zsq"),
        (documents.encode_line("directory", 1, {"kind": "assign"}), "unknown kind 'assign'"),
        (b"half", "damaged"),
    ],
)
def test_reading_stops_before_an_entry_that_is_not_understood(raw: bytes, why: str) -> None:
    bucket = FakeBucket()
    put(bucket, broker(1))
    known, late = DirectoryLog(bucket), DirectoryLog(bucket)
    known.read_on()
    bucket.create(entry_object(1), raw)
    bucket.create(entry_object(2), encode_entry(broker(2)))
    for log in (known, late):
        for call in (log.read_on, lambda log=log: log.append(broker(3)), log.read_on):
            with pytest.raises(BucketRefuses, match=f"00001: .*{why}"):
                call()
        assert uuids(log) == [1]
        assert log.take() == NewEntries(0, (encode_entry(broker(1)),))
    assert len(bucket.objects) == 3
    bucket.objects[entry_object(1)] = encode_entry(broker(4))  # the store is well again
    known.read_on()
    assert uuids(known) == [1, 4, 2]


def test_writers_that_race_in_a_folder_add_each_entry_once(tmp_path: Path) -> None:
    def write(writer: int) -> list[int]:
        log = DirectoryLog(open_bucket(parse_bucket_url(f"file://{tmp_path}/cluster")))
        return [log.append(broker(writer * 100 + n)) for n in range(5)]

    (tmp_path / "cluster").mkdir()
    with ThreadPoolExecutor(6) as writers:
        numbers = [number for found in writers.map(write, range(6)) for number in found]
    assert sorted(numbers) == list(range(30))
    log = DirectoryLog(open_bucket(parse_bucket_url(f"file://{tmp_path}/cluster")))
    log.read_on()
    assert sorted(uuids(log)) == sorted(w * 100 + n for w in range(6) for n in range(5))


@pytest.mark.slow
def test_writers_that_race_through_faults_add_each_entry_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(writer: int) -> list[int]:
        log = DirectoryLog(open_bucket(parse_bucket_url(url), call_s=5.0))
        return [_until_done(log, broker(writer * 100 + n)) for n in range(8)]

    url = f"s3://{BUCKET}/cluster"
    plan = Faults(
        5, operations=("create", "read", "list"), error_500=0.05, error_409=0.1, error_after=0.1,
        lost_answer=0.1, conflict_409=0.1, conflict_412=0.1, doubled=0.3, late_s_max=1.0,
    )  # fmt: skip
    with seaweedfs(tmp_path) as server, FaultProxy(server["AWS_ENDPOINT_URL"], plan) as proxy:
        for name, value in proxy.environment(server).items():
            monkeypatch.setenv(name, value)
        with ThreadPoolExecutor(4) as writers:
            numbers = [number for found in writers.map(write, range(4)) for number in found]
        for name, value in server.items():  # the result is read without faults
            monkeypatch.setenv(name, value)
        log = DirectoryLog(open_bucket(parse_bucket_url(url)))
        log.read_on()
    assert sorted(numbers) == list(range(32))
    assert sorted(uuids(log)) == sorted(w * 100 + n for w in range(4) for n in range(8))


def _until_done(log: DirectoryLog, entry: BrokerEntry) -> int:
    for _ in range(50):
        try:
            return log.append(entry)
        except BucketAway:
            continue
    raise AssertionError("the store never answers")


calls = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(0, 5), st.lists(st.sampled_from(["ok", "away", "lost", "late"]))
    ),
    max_size=12,
)  # fmt: skip


@given(calls, st.lists(st.integers(0, 11), max_size=3))
def test_no_entry_is_added_twice_whatever_the_store_does(
    calls: list[tuple[int, int, list[str]]], arrivals: list[int]
) -> None:
    """Writers repeat their entries until they are there. Requests arrive late, in between."""
    bucket = FakeBucket()
    logs = [DirectoryLog(bucket) for _ in range(3)]
    added: dict[int, int] = {}
    for step, (writer, entry, fates) in enumerate(calls):
        left = iter(fates)
        bucket.fate = lambda name, left=left: next(left, "ok")  # type: ignore[misc]
        number = _try(lambda w=writer, e=entry: logs[w].append(broker(w * 10 + e)))  # type: ignore[misc]
        if number is not None:
            assert added.setdefault(writer * 10 + entry, number) == number
        if step in arrivals:
            bucket.arrive()
    bucket.arrive()
    end = DirectoryLog(bucket)
    end.read_on()
    assert end.directory.next == len(bucket.objects)
    found = uuids(end)
    assert len(found) == len(bucket.objects)
    for entry, number in added.items():
        assert found[number] == entry
    view = Directory()
    for number in range(len(bucket.objects)):
        assert view.apply(number, bucket.objects[entry_object(number)])


def _try(call: Callable[[], int]) -> int | None:
    try:
        return call()
    except BucketAway:
        return None
