"""Tests of reads that fail: reads of channels wait and are tried again, and other clients get an
error. The newest messages are found without a read.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, cast

import pytest
from support.routed import Routed
from support.scripted_extension import plain
from support.stage_bench import Thread

from tests.actors.storage.test_retention_log import IDENTITY, OPTIONS, Limited, filled
from zsq.actors.runtime.port import Port
from zsq.actors.storage import reads as reads_module
from zsq.actors.storage.reads import Reads
from zsq.actors.storage.retention import LogUpkeep
from zsq.storage.directory.store import Store, open_store
from zsq.storage.log.damage import Hole
from zsq.transport.errors import E_INTERNAL, Refused
from zsq.transport.wire import protocol as p


class Wire(Routed):
    """A port that records the answers."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[Any, list[Any]]] = []

    def send(self, envelope: Any, message: Any, blocks: Any = ()) -> bool:
        self.sent.append((message, list(blocks)))
        return True


class Bench:
    def __init__(self, folder: Path, code: int) -> None:
        self.files = Limited()
        filled(folder, self.files, 30).close()
        self.files.code = code
        self.store: Store = open_store(self.files, f"{folder}/clicks", OPTIONS, IDENTITY)
        self.upkeep = LogUpkeep(self.store, "topic clicks", Thread())
        self.harness = Reads(
            self.store.log, lambda: self.store.log.end, self.upkeep.alarm, plain(self.store.log)
        )
        self.wire = Wire()  # the port to channels
        self.wire.route(p.Fetch, self.harness.fetch_for_channel)
        self.outside = Wire()
        self.harness.route(cast("Port", self.outside))

    def fetch(self, offset: int, request: int = 1) -> None:
        self.wire.hear(p.Fetch(request, offset, 1 << 20), (b"channel",))


@pytest.mark.parametrize(
    "code", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ESTALE, errno.ENOENT]
)
def test_a_channels_failed_read_is_tried_again_and_loses_nothing(tmp_path: Path, code: int) -> None:
    bench = Bench(tmp_path, code)
    bench.fetch(3)
    bench.fetch(9, 2)
    assert [message.request for message, _ in bench.wire.sent] == [2], "others are served"
    assert "cannot be opened" in bench.upkeep.statistics([bench.harness.unreadable])["alarms"][-1]
    for _ in range(3):
        bench.harness.tick()
    assert len(bench.wire.sent) == 1
    assert bench.store.log.append([], 2_000), "and publishers"
    bench.files.code = 0
    bench.harness.tick()
    message, blocks = bench.wire.sent[-1]
    assert (message.request, blocks[0].first_offset) == (1, 3)
    assert not bench.store.log.holes
    assert not any(
        "reads of channels wait" in alarm
        for alarm in bench.upkeep.statistics([bench.harness.unreadable])["alarms"]
    )
    bench.store.close()


def test_a_clients_failed_read_is_refused_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, errno.EACCES)
    with pytest.raises(Refused, match="nothing is known to be lost") as refused:
        bench.outside.hear(p.Fetch(1, 3, 1 << 20))
    assert refused.value.code == E_INTERNAL
    bench.files.code = 0
    bench.outside.hear(p.Fetch(1, 3, 1 << 20))
    assert bench.outside.sent[-1][1][0].first_offset == 3
    bench.store.close()


def test_the_number_of_waiting_reads_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads_module, "WAITING_MAX", 3)
    bench = Bench(tmp_path, errno.EACCES)
    for request in range(6):
        bench.fetch(3, request)
    bench.files.code = 0
    bench.harness.tick()
    assert [message.request for message, _ in bench.wire.sent] == [3, 4, 5]
    bench.store.close()


@pytest.mark.parametrize(
    ("holes", "count", "expected"),
    [
        ([], 3, 27),
        ([], 100, 0),
        ([Hole(27, 3)], 3, 24),
        ([Hole(28, 1)], 3, 26),
        ([Hole(20, 5), Hole(28, 2)], 4, 19),
        ([Hole(20, 5), Hole(28, 2)], 3, 25),
        ([Hole(0, 30)], 3, 0),
    ],
)
def test_the_newest_are_counted_without_lost_ones_and_without_reading(
    tmp_path: Path, holes: list[Hole], count: int, expected: int
) -> None:
    store = filled(tmp_path, blocks=30)
    for hole in holes:
        store.log.reader.damage.add(hole)
    store.log.reader._files = cast("Any", None)
    assert store.log.reader.newest(count, 30) == expected
    store.close()
