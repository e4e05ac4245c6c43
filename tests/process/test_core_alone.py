"""Tests of the core without an extension: a broker whose package lacks the extension's rooms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.alone import EXTENSIONS, package_without, rooms_of_all, run_core
from support.broker import Broker

import zsq

Start = Callable[..., Broker]


@pytest.fixture
def start_without(tmp_path: Path) -> Iterator[Start]:
    brokers: list[Broker] = []

    def start(rooms: tuple[str, ...], *options: str, doors: bool) -> Broker:
        broker = Broker(tmp_path / "data", *options, nsq=doors, http=doors)
        package = package_without(rooms, tmp_path / "package")
        broker.environment["PYTHONPATH"] = str(package)
        brokers.append(broker)
        return broker.start()

    yield start
    for broker in brokers:
        broker.close()


def test_the_core_works_without_any_extension(start_without: Start) -> None:
    broker = start_without(tuple(rooms_of_all()), doors=False)
    run_core(broker)
    with zsq.Admin(broker.ipc) as admin:
        assert "shipping" not in admin.stats("t")["topics"][0]
    assert {actor["kind"] for actor in broker.actors()} == {
        "supervisor", "forkserver", "host", "gateway", "scan_loop", "scan_worker", "topic", "channel",
    }  # fmt: skip
    assert broker.stop() == 0


@pytest.mark.long
@pytest.mark.parametrize("missing", EXTENSIONS)
def test_all_other_extensions_work_without_one(
    missing: str, start_without: Start, tmp_path: Path
) -> None:
    others = [extension for name, extension in EXTENSIONS.items() if name != missing]
    options = [option for extension in others for option in extension.options]
    if missing != "bucket":
        (tmp_path / "bucket").mkdir()
        options += ["--bucket", f"file://{tmp_path / 'bucket'}"]
    broker = start_without(tuple(EXTENSIONS[missing].rooms), *options, doors=True)
    for extension in others:
        extension.test(broker)
    assert broker.stop() == 0
