"""Tests of the outbox: each committed row is in its topic once, in order, whatever is repeated."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from support.databases import Database, Postgres, begun, rows
from support.topic import Topic

import zsq
from zsq.apps.integrations.database import outbox as outboxes
from zsq.outbox import Outbox
from zsq.transport.errors import BrokerUnreachable
from zsq.transport.wire.protocol import Spread
from zsq.transport.wire.spread import HasParts, KeyParts


@pytest.fixture
def outbox(db: Any) -> Outbox:
    found = Outbox()
    found.create(db)
    found.create(db)  # it exists
    return found


def put(outbox: Outbox, db: Any, topic: Topic, *bodies: bytes, **more: Any) -> None:
    with begun(db):
        for body in bodies:
            outbox.put(db, topic.name, body, **more)


def waiting(outbox: Outbox, db: Any) -> int:
    with begun(db):
        return outbox.waiting(db)


def test_committed_messages_are_published_in_order_and_removed(
    outbox: Outbox, db: Any, topic: Topic
) -> None:
    put(outbox, db, topic, *[b"%d" % number for number in range(25)])
    with contextlib.suppress(ZeroDivisionError), begun(db):
        outbox.put(db, topic.name, b"rolled back")
        raise ZeroDivisionError
    assert waiting(outbox, db) == 25
    assert outbox.drain(db, url=topic.url, count=10, batches=1) == 10
    assert outbox.drain(db, url=topic.url, count=10) == 15
    assert outbox.drain(db, url=topic.url) == 0
    assert waiting(outbox, db) == 0
    assert topic.bodies() == [b"%d" % number for number in range(25)]


def test_a_table_that_was_never_made_is_named_with_what_to_do(db: Any, topic: Topic) -> None:
    outbox = Outbox(table="never_made")
    for call in (
        lambda: outbox.drain(db, url=topic.url),
        lambda: waiting(outbox, db),
        lambda: put(outbox, db, topic, b"x"),
    ):
        with pytest.raises(zsq.UsageError, match=r"never_made.*call create\(db\) once"):
            call()
    outbox.create(db)
    assert outbox.drain(db, url=topic.url) == 0


def test_a_delayed_message_stays_in_the_table_until_it_is_due(
    outbox: Outbox, db: Any, topic: Topic
) -> None:
    before_ns = time.time_ns()
    put(outbox, db, topic, b"tomorrow", delay=timedelta(days=1))
    put(outbox, db, topic, b"in an hour", delay=3600)
    put(outbox, db, topic, b"now")
    put(outbox, db, topic, b"now too", delay=0)
    assert outbox.drain(db, url=topic.url) == 2
    assert waiting(outbox, db) == 2
    with begun(db):
        found = [row[0] for row in rows(db, "select due_ns from zsq_outbox order by id")]
        ended_ns = time.time_ns()
        db.cursor().execute("update zsq_outbox set due_ns = 1")
    for due_ns, delay_s in zip(found, (86_400, 3_600), strict=True):
        assert before_ns <= due_ns - delay_s * 1_000_000_000 <= ended_ns
    put(outbox, db, topic, b"after them")
    assert outbox.drain(db, url=topic.url, count=2, batches=1) == 2
    assert outbox.drain(db, url=topic.url) == 1
    assert topic.bodies() == [b"now", b"now too", b"tomorrow", b"in an hour", b"after them"]


def test_a_message_keeps_its_key_tag_and_headers(outbox: Outbox, db: Any, topic: Topic) -> None:
    put(outbox, db, topic, b"plain")
    put(outbox, db, topic, b"\0\xff", key=b"\xff", tag="täg", headers={"a": "ü", "n": 7, "x": None})
    outbox.drain(db, url=topic.url)
    with zsq.Reader(topic.name, url=topic.url) as reader:
        plain, full = reader.message(0), reader.message(1)
    assert (plain.body, plain.key, plain.tag, plain.headers) == (b"plain", None, None, {})
    assert (full.body, full.key, full.tag) == (b"\0\xff", b"\xff", "täg")
    assert full.headers == {"a": "ü", "n": 7, "x": None}


def test_rows_of_plain_sql_are_published(outbox: Outbox, db: Any, topic: Topic) -> None:
    """A trigger, or a program in another language, needs only an insert."""
    with begun(db):
        db.cursor().execute(
            "insert into zsq_outbox (topic, body, headers) values "
            f"('{topic.name}', 'from SQL', '{{\"by\": \"trigger\"}}')"
        )
    assert outbox.drain(db, url=topic.url) == 1
    with zsq.Reader(topic.name, url=topic.url) as reader:
        found = reader.message(0)
    assert (found.body, found.headers) == (b"from SQL", {"by": "trigger"})


def test_headers_that_are_not_json_are_named_with_their_row(
    outbox: Outbox, db: Any, topic: Topic
) -> None:
    with begun(db):
        db.cursor().execute(
            f"insert into zsq_outbox (topic, body, headers) values ('{topic.name}', 'x', '[1]')"
        )
    with pytest.raises(zsq.UsageError, match=r"row 1 of the outbox .* headers are not a JSON"):
        outbox.drain(db, url=topic.url)
    with begun(db):
        db.cursor().execute("update zsq_outbox set headers = null")
    assert outbox.drain(db, url=topic.url) == 1


@pytest.mark.parametrize(
    ("name", "body", "key", "why"),
    [
        ("", "x" * 2_000_000, "", "message of 2000000 bytes is over the limit of 1048576"),
        ("", "x", "k" * 300, "key of 300 bytes is over the limit of 256 bytes"),
        ("no topic", "x", "", "topic name 'no topic' is not legal"),
        ("memory#ephemeral", "x", "", "exists only in memory"),
    ],
)
def test_a_row_of_plain_sql_that_cannot_be_published_is_named(
    outbox: Outbox, db: Any, topic: Topic, name: str, body: str, key: str, why: str
) -> None:
    """The row stops the outbox, so the user must find it."""
    marks = ", ".join(["%s" if hasattr(db, "info") else "?"] * 3)
    insert = f"insert into zsq_outbox (topic, body, message_key) values ({marks})"
    bad = (name or topic.name, body.encode(), key.encode() or None)
    with begun(db):
        db.cursor().execute(insert, bad)
    if not name:
        put(outbox, db, topic, b"good")
    with pytest.raises(zsq.UsageError, match=f"row 1 of the outbox .* {why}.* delete it"):
        outbox.drain(db, url=topic.url)
    with begun(db):
        db.cursor().execute("delete from zsq_outbox where id = 1")
    assert outbox.drain(db, url=topic.url) == (0 if name else 1)


def test_a_number_in_sqlite_is_published_as_text(topic: Topic, database: Database) -> None:
    """SQLite keeps the type that was inserted. `bytes(17)` would be 17 zero bytes."""
    if database.kind != "sqlite":
        pytest.skip("the types of PostgreSQL's columns are fixed")
    with contextlib.closing(sqlite3.connect(database.address)) as db:
        outbox = Outbox()
        outbox.create(db)
        with db:
            db.execute(
                "insert into zsq_outbox (topic, body, message_key) values (?, 17, 4)", (topic.name,)
            )
        assert outbox.drain(db, url=topic.url) == 1
    with zsq.Reader(topic.name, url=topic.url) as reader:
        found = reader.message(0)
    assert (found.body, found.key) == (b"17", b"4")


def test_a_closed_connection_is_named(outbox: Outbox, database: Database, db: Any) -> None:
    other = database.connect()
    other.close()
    expected = sqlite3.ProgrammingError if database.kind == "sqlite" else zsq.UsageError
    with pytest.raises(expected, match="closed"):
        outbox.drain(other)


def test_topics_are_drained_in_turn_and_each_keeps_its_order(
    outbox: Outbox, db: Any, topic: Topic
) -> None:
    other = Topic(topic.broker, f"{topic.name[-50:].strip('-')}-2")
    for number in range(6):
        put(outbox, db, (topic, other)[number % 2], b"%d" % number)
    assert outbox.drain(db, url=topic.url) == 6
    assert topic.bodies() == [b"0", b"2", b"4"]
    assert other.bodies() == [b"1", b"3", b"5"]


def test_large_batches_are_cut_by_their_bytes(
    outbox: Outbox, db: Any, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outboxes, "BATCH_BYTES", 1000)
    put(outbox, db, topic, *[bytes(400)] * 5, bytes(2000))
    assert [outbox.drain(db, url=topic.url, batches=1) for _ in range(5)] == [2, 2, 1, 1, 0]


def failing(patch: pytest.MonkeyPatch, owner: Any, name: str, *, after: bool) -> None:
    """Let a method fail once, before or after it has done its work."""
    real = getattr(owner, name)
    calls: list[int] = []

    def once(*arguments: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) == 1 and not after:
            raise BrokerUnreachable("E_TIMEOUT", "no answer")
        found = real(*arguments, **more)
        if len(calls) == 1:
            raise BrokerUnreachable("E_TIMEOUT", "no answer")
        return found

    patch.setattr(owner, name, once)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (zsq.StageWriter, "push"),
        (zsq.StageWriter, "seal"),
        (zsq.StageCommitter, "commit"),
        (Outbox, "_publish"),
        (Outbox, "_new_batch"),
    ],
)
def test_a_drain_that_fails_anywhere_is_repeated_without_loss_or_doubles(
    outbox: Outbox,
    db: Any,
    topic: Topic,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    after: bool,
) -> None:
    put(outbox, db, topic, b"a", b"b")
    with monkeypatch.context() as patch:
        failing(patch, owner, name, after=after)
        with pytest.raises(BrokerUnreachable):
            outbox.drain(db, url=topic.url)
    put(outbox, db, topic, b"c")
    outbox.drain(db, url=topic.url)
    assert topic.bodies() == [b"a", b"b", b"c"]
    assert waiting(outbox, db) == 0


def test_a_row_that_is_committed_late_is_not_left_out(
    topic: Topic, outbox: Outbox, db: Any, database: Database
) -> None:
    """In PostgreSQL, an id may be given long before the commit of its row."""
    if database.kind == "sqlite":
        return  # one transaction writes at a time
    with contextlib.closing(database.connect()) as late:
        with late.transaction():
            outbox.put(late, topic.name, b"late")
            put(outbox, db, topic, b"early")
            assert outbox.drain(db, url=topic.url) == 1
        assert outbox.drain(db, url=topic.url) == 1
    assert topic.bodies() == [b"early", b"late"]


def test_several_processes_may_drain_at_once(
    outbox: Outbox, db: Any, database: Database, topic: Topic
) -> None:
    put(outbox, db, topic, *[b"%d" % number for number in range(60)])
    errors: list[BaseException] = []

    def drain() -> None:
        try:
            with contextlib.closing(database.connect()) as own:
                outbox.drain(own, url=topic.url, count=4)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=drain) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(100)
    assert errors == []
    assert topic.bodies() == [b"%d" % number for number in range(60)]
    assert waiting(outbox, db) == 0


def test_after_a_restore_of_the_database_renew_begins_a_new_series(
    outbox: Outbox, db: Any, topic: Topic
) -> None:
    put(outbox, db, topic, b"a")
    outbox.drain(db, url=topic.url)
    put(outbox, db, topic, b"b")
    with begun(db):  # the number that the backup had
        db.cursor().execute("update zsq_outbox_state set batch = 0")
    outbox.renew(db)
    outbox.drain(db, url=topic.url)
    assert topic.bodies() == [b"a", b"b"]


def test_run_drains_until_it_is_stopped(outbox: Outbox, db: Any, topic: Topic) -> None:
    put(outbox, db, topic, b"a")
    pauses: list[float] = []

    def stopped(pause_s: float) -> bool:
        pauses.append(pause_s)
        put(outbox, db, topic, b"later")
        return len(pauses) == 2

    outbox.run(db, stopped, pause_s=0.25, url=topic.url)
    assert pauses == [0.25, 0.25]
    assert topic.bodies() == [b"a", b"later"]


def test_a_part_is_chosen_once_and_kept_in_the_row(
    outbox: Outbox, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two parts are added between the crash and the next attempt. The messages do not move."""
    spread = Spread(1, "clicks", "u", ((0, 1), (1, 1)), ())
    committed: list[tuple[str, int, list[bytes]]] = []

    class Parts:
        def __init__(self, topic: str, **more: Any) -> None:
            raise HasParts(spread)

    def commit(self: Any, log: str, app: str, number: int, rows: Any) -> None:
        committed.append((log, number, [bytes(row[4]) for row in rows]))
        if len(committed) == 1:
            raise BrokerUnreachable("E_TIMEOUT", "no answer")

    monkeypatch.setattr(outboxes, "Reader", Parts)
    monkeypatch.setattr(outboxes._DrainClients, "commit", commit)
    keys = [f"key-{number}" for number in range(8)]
    with begun(db):
        for key in keys:
            outbox.put(db, "clicks", key.encode(), key=key)
        outbox.put(db, "clicks", b"no key")
    with pytest.raises(BrokerUnreachable):
        outbox.drain(db)
    spread = Spread(1, "clicks", "u", ((0, 1), (1, 1), (2, 1), (3, 1)), ())
    assert outbox.drain(db) == 9
    parts = KeyParts(2)
    found = {body: log for log, _, bodies in committed[1:] for body in bodies}
    assert found.pop(b"no key") in ("clicks#0", "clicks#1")
    assert found == {key.encode(): f"clicks#{parts.of(key.encode())}" for key in keys}


def test_a_connection_in_a_transaction_is_refused(
    outbox: Outbox, db: Any, database: Database, topic: Topic
) -> None:
    """The batch would not be durable before it is published."""
    if database.kind == "postgres":
        db.autocommit = False
    db.cursor().execute("delete from zsq_outbox")
    with pytest.raises(zsq.UsageError, match="the connection is in a transaction"):
        outbox.drain(db, url=topic.url)


@pytest.mark.parametrize("isolation", [None, "DEFERRED"])
def test_sqlite_works_in_each_of_its_modes(
    topic: Topic, isolation: Any, database: Database
) -> None:
    if database.kind != "sqlite":
        return
    outbox = Outbox()
    with contextlib.closing(sqlite3.connect(database.address, isolation_level=isolation)) as db:
        outbox.create(db)
        outbox.put(db, topic.name, b"a")
        db.commit()
        assert outbox.drain(db, url=topic.url) == 1
        assert rows(db, "select count(*) from zsq_outbox") == [(0,)]


@pytest.mark.slow
def test_a_database_without_an_encoding_works(postgres: Postgres, topic: Topic) -> None:
    outbox = Outbox()
    with contextlib.closing(postgres.new_in_ascii().connect()) as db:
        outbox.create(db)
        put(outbox, db, topic, b"a", tag="x", headers={"a": "b"})
        assert outbox.drain(db, url=topic.url) == 1
    with zsq.Reader(topic.name, url=topic.url) as reader:
        assert (reader.message(0).tag, reader.message(0).headers) == ("x", {"a": "b"})


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda box, db: box.put(db, "bad name", b""), "E_BAD_NAME"),
        (lambda box, db: box.put(db, "t#ephemeral", b""), "only in memory"),
        (lambda box, db: box.put(db, "t", "text"), "a body must be bytes"),
        (lambda box, db: box.put(db, "t", bytes(2_000_000)), "over the limit of 1048576"),
        (lambda box, db: box.put(db, "t", b"", headers={"a": b"x"}), "headers as JSON"),
        (lambda box, db: box.put(db, "t", b"", delay=-1), "must be 0 to .* not -1"),
        (lambda box, db: box.drain(db, count=0), "count must be 1 to 10000"),
        (lambda box, db: Outbox("no table"), "letters, digits and _"),
    ],
)
def test_wrong_arguments_are_refused_at_once(
    outbox: Outbox, db: Any, wrong: Callable[[Outbox, Any], Any], text: str
) -> None:
    with pytest.raises(zsq.UsageError, match=text), begun(db):
        wrong(outbox, db)
    assert waiting(outbox, db) == 0
