"""Tests of the append to Iceberg: every message is in the table once, whatever is repeated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from support.topic import Topic

import zsq
from zsq.apps import iceberg
from zsq.apps.iceberg import append, schema

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Any]:
    place = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/tables"}
    made = SqlCatalog("test", **place)
    made.create_namespace("db")
    yield made
    made.close()


@pytest.fixture
def table(catalog: Any) -> Any:
    return catalog.create_table("db.clicks", schema=schema())


def put(topic: Topic, first: int, stop: int) -> None:
    topic.put(*[b"%d" % number for number in range(first, stop)], tag="x", headers={"a": "b"})


def values(catalog: Any) -> list[int]:
    """Return all bodies, as another program reads them."""
    found = catalog.load_table("db.clicks").scan().to_arrow()
    return sorted(int(value) for value in found["value"].to_pylist())


def test_a_repeated_run_appends_only_what_is_new(topic: Topic, catalog: Any, table: Any) -> None:
    put(topic, 0, 1500)
    assert append(table, topic.name, url=topic.url).rows == 1500
    again = append(catalog.load_table("db.clicks"), topic.name, url=topic.url)
    assert (again.rows, again.commits, again.ends) == (0, 0, {topic.name: 1500})
    put(topic, 1500, 1600)
    assert append(table, topic.name, url=topic.url).rows == 100
    assert values(catalog) == list(range(1600))
    row = catalog.load_table("db.clicks").scan(limit=1).to_arrow().to_pylist()[0]
    assert (row["tag"], row["headers"]) == ("x", [{"key": "a", "value": b"b"}])
    found = catalog.load_table("db.clicks")
    said = found.current_snapshot().summary
    assert (said["zsq.topic"], said["zsq.start"], said["zsq.end"]) == (topic.name, "1500", "1600")
    assert "commit.retry.num-retries" not in found.properties


def test_a_large_topic_is_appended_in_several_commits(
    topic: Topic, catalog: Any, table: Any
) -> None:
    for start in range(0, 6000, 2000):
        put(topic, start, start + 2000)
    report = append(table, topic.name, url=topic.url, max_bytes=1)
    assert (report.rows, report.commits >= 3) == (6000, True)
    assert values(catalog) == list(range(6000))


@pytest.mark.parametrize("after", [False, True])
def test_a_run_that_dies_at_its_commit_is_repeated_without_loss_or_doubles(
    topic: Topic, catalog: Any, table: Any, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    put(topic, 0, 10)
    real = type(table)._do_commit

    def dying(*given: Any, **more: Any) -> None:
        if after:
            real(*given, **more)
        raise ConnectionError("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(type(table), "_do_commit", dying)
        with pytest.raises(ConnectionError):
            append(table, topic.name, url=topic.url)
    append(catalog.load_table("db.clicks"), topic.name, url=topic.url)
    assert values(catalog) == list(range(10))


def test_two_runs_at_once_append_nothing_twice(
    topic: Topic, catalog: Any, table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run commits while the first one is about to."""
    put(topic, 0, 10)
    real = iceberg._commit
    calls: list[int] = []

    def overtaken(*given: Any) -> bool:
        calls.append(1)
        if len(calls) == 1:
            other = catalog.load_table("db.clicks")
            assert append(other, topic.name, url=topic.url).rows == 10
            put(topic, 10, 12)
        return real(*given)

    monkeypatch.setattr(iceberg, "_commit", overtaken)
    assert append(table, topic.name, url=topic.url).rows == 0
    assert values(catalog) == list(range(10))
    assert append(table, topic.name, url=topic.url).rows == 2
    assert values(catalog) == list(range(12))


def test_a_commit_of_another_writer_is_no_reason_to_stop(
    topic: Topic, catalog: Any, table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(topic, 0, 10)
    real = type(table)._do_commit
    calls: list[int] = []

    def failing(*given: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) <= 2:
            raise CommitFailedException("another writer")
        return real(*given, **more)

    monkeypatch.setattr(type(table), "_do_commit", failing)
    assert append(table, topic.name, url=topic.url).rows == 10
    assert values(catalog) == list(range(10))
    calls.clear()
    put(topic, 10, 11)
    monkeypatch.setattr(iceberg, "ATTEMPTS", 2)
    with pytest.raises(zsq.Refused, match="2 commits failed"):
        append(table, topic.name, url=topic.url)


def test_a_topic_that_was_created_again_needs_another_table(topic: Topic, table: Any) -> None:
    put(topic, 0, 3)
    append(table, topic.name, url=topic.url)
    topic.delete()
    put(topic, 0, 3)
    with pytest.raises(zsq.DataLoss, match="use another table"):
        append(table, topic.name, url=topic.url)


def test_a_table_without_the_offset_takes_other_columns(topic: Topic, catalog: Any) -> None:
    table = catalog.create_table("db.clicks", schema=schema(["timestamp", "value"]))
    put(topic, 0, 5)
    append(table, topic.name, url=topic.url)
    assert values(catalog) == list(range(5))
