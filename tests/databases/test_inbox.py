"""Tests of the inbox: the work of each message is in the database once, whatever is repeated."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from support.databases import Database, begun, rows
from support.topic import Topic

import zsq
from zsq.apps.integrations.database import connections
from zsq.apps.integrations.database.connections import Dialect, dialect_of
from zsq.inbox import Inbox, Positions


class Received(NamedTuple):
    """A message, without a broker."""

    topic: str = "orders"
    part: int | None = None
    channel: str = "billing"
    offset: int = 7
    timestamp_ns: int = 1000


def taken(inbox: Inbox, db: Any, message: Received, **more: Any) -> bool:
    with begun(db):
        return inbox.take(db, message, **more)


@pytest.fixture
def inbox(db: Any) -> Inbox:
    found = Inbox()
    found.create(db)
    found.create(db)  # it exists
    return found


def test_a_message_is_taken_once(inbox: Inbox, db: Any) -> None:
    assert taken(inbox, db, Received())
    assert not taken(inbox, db, Received())


@pytest.mark.parametrize(
    "other",
    [
        Received(offset=8),
        Received(channel="mail"),
        Received(topic="clicks"),
        Received(part=0),
        Received(timestamp_ns=1001),
    ],
)
def test_other_messages_are_taken_too(inbox: Inbox, db: Any, other: Received) -> None:
    assert taken(inbox, db, Received())
    assert taken(inbox, db, other)
    assert not taken(inbox, db, other)


def test_a_transaction_that_is_rolled_back_did_not_take_it(inbox: Inbox, db: Any) -> None:
    with contextlib.suppress(ZeroDivisionError), begun(db):
        assert inbox.take(db, Received())
        raise ZeroDivisionError
    assert taken(inbox, db, Received())


def test_a_connection_that_commits_each_statement_is_refused(
    inbox: Inbox, database: Database, topic: Topic
) -> None:
    """The note would be committed before the work, and a failure in between would lose it."""
    with zsq.Producer(topic.url) as producer:
        producer.publish_many(topic.name, [b"0", b"1"])
    positions = Positions("billing")
    connected = contextlib.closing(database.alone())
    with connected as db, zsq.Reader(topic.name, url=topic.url) as reader:
        positions.create(db)
        with pytest.raises(zsq.UsageError, match="take needs a transaction"):
            inbox.take(db, Received())
        with pytest.raises(zsq.UsageError, match="read needs a transaction"):
            positions.read(db, reader)
        assert positions.position(db, topic.name) is None
        db.execute("begin")
        assert inbox.take(db, Received())
        assert [one.body for one in positions.read(db, reader)] == [b"0", b"1"]
        db.execute("commit")
        assert positions.position(db, topic.name) == 2


def test_an_id_of_the_user_also_finds_what_was_published_twice(inbox: Inbox, db: Any) -> None:
    assert taken(inbox, db, Received(offset=1), id="order-17")
    assert not taken(inbox, db, Received(offset=2), id="order-17")
    with pytest.raises(zsq.UsageError, match="text of 1 to 200 characters"):
        taken(inbox, db, Received(), id="x" * 201)


def test_another_worker_waits_for_the_transaction_that_takes_the_message(
    inbox: Inbox, db: Any, database: Database
) -> None:
    """The second worker gets the message after its lease has ended. It must not handle it while the
    first one may still commit.
    """
    results: list[bool] = []

    def second() -> None:
        with contextlib.closing(database.connect()) as other:
            results.append(taken(inbox, other, Received()))

    worker = threading.Thread(target=second)
    with begun(db):
        assert inbox.take(db, Received())
        worker.start()
        worker.join(0.2)
        assert worker.is_alive()
    worker.join(60)
    assert results == [False]


def test_clean_removes_only_old_ids(inbox: Inbox, db: Any) -> None:
    taken(inbox, db, Received())
    assert inbox.clean(db) == 0
    assert not taken(inbox, db, Received())
    assert inbox.clean(db, timedelta()) == 1
    assert taken(inbox, db, Received())


def test_a_driver_that_is_not_known_needs_no_dialect(
    inbox: Inbox, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_KINDS", {})
    assert taken(inbox, db, Received())
    assert not taken(inbox, db, Received())


def test_placeholders_are_those_of_the_driver() -> None:
    assert Dialect("other", "%s").sql("a = ? and b = ?") == "a = %s and b = %s"
    assert Dialect("other", ":").sql("a = ? and b = ?") == "a = :1 and b = :2"
    with pytest.raises(zsq.UsageError, match="not a connection of a DB-API driver"):
        dialect_of(object())
    with pytest.raises(zsq.UsageError, match="letters, digits and _"):
        Inbox("a; drop table b")


def test_a_message_that_is_delivered_again_is_handled_once(
    inbox: Inbox, db: Any, topic: Topic
) -> None:
    """The consumer dies after its commit and before the finish, so the broker delivers again."""
    with begun(db):
        db.cursor().execute("create table done (body varchar(20))")
    topic.put(b"one", b"two")
    seen = []
    for _ in range(2):
        with zsq.Consumer(topic.name, "work", url=topic.url, start="earliest") as consumer:
            for _ in range(2):
                message = consumer.receive(30)
                assert message is not None
                seen.append((message.body, message.attempts))
                with begun(db):
                    if inbox.take(db, message):
                        db.cursor().execute(f"insert into done values ('{message.body.decode()}')")
            # No message is finished: closing the consumer gives them back.
    assert sorted(seen) == [(b"one", 1), (b"one", 2), (b"two", 1), (b"two", 2)]
    assert sorted(rows(db, "select body from done")) == [("one",), ("two",)]


# Positions


@pytest.fixture
def positions(db: Any) -> Positions:
    found = Positions("billing")
    found.create(db)
    found.create(db)
    return found


@pytest.fixture
def reader(topic: Topic) -> Iterator[zsq.Reader]:
    topic.create()
    with zsq.Reader(topic.name, url=topic.url) as one:
        yield one


def bodies(positions: Positions, db: Any, reader: zsq.Reader, **more: Any) -> list[bytes]:
    with begun(db):
        return [message.body for message in positions.read(db, reader, **more)]


def test_the_position_moves_with_the_transaction(
    positions: Positions, db: Any, topic: Topic, reader: zsq.Reader
) -> None:
    assert bodies(positions, db, reader) == []
    topic.put(b"a", b"b", b"c")
    topic.put(b"d")
    assert bodies(positions, db, reader, count=2) == [b"a", b"b"]
    with contextlib.suppress(ZeroDivisionError), begun(db):
        assert [one.body for one in positions.read(db, reader)] == [b"c", b"d"]
        raise ZeroDivisionError
    assert bodies(positions, db, reader) == [b"c", b"d"]
    assert bodies(positions, db, reader) == []
    with begun(db):
        assert positions.position(db, topic.name) == 4
        assert Positions("other").position(db, topic.name) is None


def test_names_and_starts_of_readers_are_separate(
    positions: Positions, db: Any, topic: Topic, reader: zsq.Reader
) -> None:
    topic.put(b"a", b"b", b"c")
    assert bodies(Positions("late", start="latest"), db, reader) == []
    assert bodies(Positions("second", start=1), db, reader) == [b"b", b"c"]
    assert bodies(positions, db, reader) == [b"a", b"b", b"c"]
    topic.put(b"d")
    assert bodies(Positions("late", start="latest"), db, reader) == [b"d"]


def test_two_workers_of_one_name_do_not_read_the_same_messages(
    positions: Positions, db: Any, database: Database, topic: Topic, reader: zsq.Reader
) -> None:
    topic.put(*[b"%d" % number for number in range(100)])
    bodies(positions, db, reader, count=1)  # the row exists
    both: list[list[bytes]] = [[], []]

    def work(found: list[bytes]) -> None:
        with (
            contextlib.closing(database.connect()) as other,
            zsq.Reader(topic.name, url=topic.url) as own,
        ):
            while new := bodies(positions, other, own, count=3):
                found += new

    workers = [threading.Thread(target=work, args=(found,)) for found in both]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(100)
    assert sorted(map(int, both[0] + both[1])) == list(range(1, 100))


def test_messages_that_no_longer_exist_are_not_left_out_silently(
    positions: Positions, db: Any, topic: Topic, reader: zsq.Reader
) -> None:
    topic.put(b"a", b"b")
    assert bodies(positions, db, reader) == [b"a", b"b"]
    with begun(db):  # as after a restore of the broker from a backup
        db.cursor().execute("update zsq_positions set next_offset = 5")
    with pytest.raises(zsq.DataLoss, match="the topic now ends at offset 2"):
        bodies(positions, db, reader)
    assert bodies(positions, db, reader, skip_lost=True) == []
    topic.put(b"c")
    assert bodies(positions, db, reader) == [b"c"]


def test_a_topic_that_was_created_again_is_noticed(
    positions: Positions, db: Any, topic: Topic, reader: zsq.Reader
) -> None:
    topic.put(b"a")
    assert bodies(positions, db, reader) == [b"a"]
    topic.delete()
    topic.put(b"b")
    with zsq.Reader(topic.name, url=topic.url) as new:
        with pytest.raises(zsq.DataLoss, match="deleted and created again"):
            bodies(positions, db, new)
        assert bodies(positions, db, new, skip_lost=True) == [b"b"]
        assert bodies(positions, db, new) == []


@pytest.mark.parametrize(("name", "start"), [("", "earliest"), ("x", "first"), ("x", -1)])
def test_wrong_arguments_are_refused(name: str, start: Any) -> None:
    with pytest.raises(zsq.UsageError):
        Positions(name, start=start)
