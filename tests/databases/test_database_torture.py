"""Torture of inbox and outbox: processes that are killed at random calls. At the end, both ends are
compared: every row of the database is in the topic once, or every message in the database.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import signal
from collections.abc import Callable
from typing import Any, Final

import pytest
from support import database_torture
from support.databases import Database, Postgres, begun, rows
from support.topic import Topic

import zsq
from zsq.inbox import Inbox, Positions
from zsq.outbox import Outbox

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

KILLS: Final = 6
MESSAGES: Final = 30
NEVER: Final = 1 << 40  # more calls than any worker does


# The workers are forked from a process that has imported everything.
multiprocessing.set_forkserver_preload(["support.database_torture"])


def lives(worker: Callable[..., None], *arguments: Any) -> bool:
    """Run a worker in its own process. Return False if it was killed."""
    process = multiprocessing.get_context("forkserver").Process(target=worker, args=arguments)
    process.start()
    try:
        process.join(100)
        assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
        return process.exitcode == 0
    finally:
        process.kill()
        process.join(20)


def torture(
    worker: Callable[..., None],
    database: Database,
    topic: Topic,
    count: int,
    calls_max: int,
    seed: int,
) -> None:
    """Start the worker again and again. It is killed at a random call, until the last time."""
    print(f"seed {seed}")
    choice = random.Random(seed)
    killed = 0
    for _ in range(KILLS):
        fatal, after = choice.randint(1, calls_max), choice.random() < 0.5
        killed += not lives(worker, database, topic.url, topic.name, count, fatal, after)
    assert killed >= KILLS // 2
    assert lives(worker, database, topic.url, topic.name, count, NEVER, False)


def test_every_row_is_in_the_topic_once(database: Database, db: Any, topic: Topic) -> None:
    outbox = Outbox()
    outbox.create(db)
    with begun(db):
        db.cursor().execute("create table work (id bigint)")
    torture(database_torture.write_and_drain, database, topic, 3, 60, random.randrange(1 << 32))
    written = [b"%d" % number for (number,) in rows(db, "select id from work order by id")]
    assert written
    assert topic.bodies() == written
    assert rows(db, "select count(*) from zsq_outbox") == [(0,)]


def test_every_message_of_a_channel_is_handled_once(postgres: Postgres, topic: Topic) -> None:
    """Each killed worker costs the time of a lease, so this runs with one database only."""
    database = postgres.new()
    with contextlib.closing(database.connect()) as db:
        Inbox().create(db)
        db.execute("create table done (id bigint)")
    with zsq.Admin(topic.url) as admin:
        admin.create_topic(topic.name)
        admin.create_channel(topic.name, "work")
    topic.put(*[b"%d" % number for number in range(MESSAGES)])
    torture(database_torture.consume, database, topic, 0, 40, random.randrange(1 << 32))
    with contextlib.closing(database.connect()) as db:
        found = sorted(number for (number,) in rows(db, "select id from done"))
    assert found == list(range(MESSAGES))


def test_every_message_is_handled_once_and_in_order_by_position(
    database: Database, db: Any, topic: Topic
) -> None:
    Positions("work").create(db)
    with begun(db):
        db.cursor().execute("create table done (id bigint)")
    topic.put(*[b"%d" % number for number in range(MESSAGES)])
    worker = database_torture.follow
    torture(worker, database, topic, MESSAGES, 15, random.randrange(1 << 32))
    assert [number for (number,) in rows(db, "select id from done")] == list(range(MESSAGES))


def test_a_worker_that_is_killed_says_so(database: Database) -> None:
    with contextlib.closing(database.connect()) as db:
        Outbox().create(db)
        with begun(db):
            db.cursor().execute("create table work (id bigint)")
    worker = database_torture.write_and_drain
    assert not lives(worker, database, "tcp://127.0.0.1:1", "t", 1, 1, False)
