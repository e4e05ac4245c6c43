"""Test of the core without an extension: a broker whose package lacks the extension's rooms."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from support.broker import Broker, wait_for

import zsq

ROOT: Final = Path(__file__).resolve().parents[2]
PARTS: Final = ("__init__.py", "__main__.py", "py.typed", "actors", "apps", "storage", "transport")
ROOMS: Final = {
    "bucket": ("actors/bucket", "storage/bucket"),
    "HTTP, schedules, Spark, task queues": (
        "actors/gateways/http", "actors/schedules", "apps/integrations", "apps/spark",
    ),
}  # fmt: skip


def package_without(rooms: tuple[str, ...], folder: Path) -> Path:
    """Make a copy of the package that lacks these rooms. Return the folder for PYTHONPATH."""
    for name in PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / "zsq" / name)
        else:
            (folder / "zsq").mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / "zsq" / name)
    for room in rooms:
        shutil.rmtree(folder / "zsq" / room)
    return folder


@pytest.fixture
def broker_without(tmp_path: Path) -> Iterator[Callable[[str], Broker]]:
    made: list[Broker] = []

    def make(extension: str) -> Broker:
        broker = Broker(tmp_path / "data")
        package = package_without(ROOMS[extension], tmp_path / "package")
        broker.environment["PYTHONPATH"] = str(package)
        made.append(broker)
        return broker.start()

    yield make
    for broker in made:
        broker.close()


@pytest.mark.parametrize("extension", ROOMS)
def test_the_core_works_without_an_extension(
    extension: str, broker_without: Callable[[str], Broker]
) -> None:
    broker = broker_without(extension)
    with zsq.Admin(broker.ipc) as admin:
        admin.create_channel("t", "c")
    with zsq.Producer(broker.ipc) as producer:
        producer.publish_many("t", [b"%d" % number for number in range(100)])
        producer.publish("t", b"later", delay=0.5)
    with zsq.Consumer("t", "c", url=broker.ipc) as consumer:
        for number in range(40):
            message = consumer.receive(20)
            assert message is not None
            assert message.body == b"%d" % number
            message.finish()
        consumer.flush()
    pids = [actor["pid"] for actor in broker.actors()]
    assert broker.process is not None
    broker.process.kill()
    broker.process.wait(20)
    broker.wait_gone(pids)
    broker.start()
    with zsq.Admin(broker.ipc) as admin, zsq.Consumer("t", "c", url=broker.ipc) as consumer:
        bodies = {message.body for _, message in zip(range(61), consumer, strict=False)}
        assert bodies == {*(b"%d" % number for number in range(40, 100)), b"later"}
        assert admin.seek("t", "c", 99) == {"offset": 99}
        again = [message.body for _, message in zip(range(2), consumer, strict=False)]
        assert again == [b"99", b"later"]
        wait_for(lambda: admin.stats("t")["topics"][0]["head"] == 101, 20)
        assert ("shipping" in admin.stats("t")["topics"][0]) is (extension != "bucket")
    assert broker.stop() == 0
