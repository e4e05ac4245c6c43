"""Tests of what writes and reads all parts of a topic: the outbox, and the export to Parquet."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import Cluster, running

import zsq
from zsq.outbox import Outbox
from zsq.transport.wire.spread import KeyParts

PARTS = 4
KEYS = [f"key-{number % 11}" for number in range(60)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def test_an_outbox_fills_the_parts_and_an_export_has_all_of_them(
    cluster: Cluster, tmp_path: Path
) -> None:
    with zsq.Admin(cluster.url) as admin:
        admin.create_topic("orders", parts=PARTS)
    outbox = Outbox()
    with contextlib.closing(sqlite3.connect(tmp_path / "app.db")) as db:
        outbox.create(db)
        with db:
            for number, key in enumerate(KEYS):
                outbox.put(db, "orders", b"%d" % number, key=key)
        assert outbox.drain(db, url=cluster.url, count=25) == len(KEYS)
    found: dict[str, list[int]] = {}
    for part in range(PARTS):
        with zsq.Reader("orders", part=part, url=cluster.url) as reader:
            for offset in range(reader.bounds()[1]):
                message = reader.message(offset)
                assert message.key is not None
                assert KeyParts(PARTS).of(message.key) == part
                found.setdefault(message.key.decode(), []).append(int(message.body))
    expected: dict[str, list[int]] = {}
    for number, key in enumerate(KEYS):
        expected.setdefault(key, []).append(number)
    assert found == expected  # all of them once, and those of a key in order

    pytest.importorskip("pyarrow")
    from pyarrow import dataset

    from zsq.apps.export import ExportPlan, export

    report = export(ExportPlan(cluster.url, "orders", tmp_path / "archive"))
    assert (report.messages, len(report.ends)) == (len(KEYS), PARTS)
    rows = dataset.dataset(tmp_path / "archive", partitioning="hive").to_table()
    assert sorted(map(int, rows["value"].to_pylist())) == list(range(len(KEYS)))
    assert export(ExportPlan(cluster.url, "orders", tmp_path / "archive")).files == []
