"""Tests of `zsq forward` to files: nothing is lost, and the files can be read after a kill."""

from __future__ import annotations

import gzip
import json
import resource
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest
from support import zsq_command
from support.broker import Broker, wait_for
from support.forwarding import forward, forwarding, stored, wait_a_while
from support.topic_names import topic_name_of

import zsq

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return topic_name_of(request.node.name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "out"


def publish(url: str, topic: str, first: int, stop: int) -> None:
    with zsq.Producer(url) as producer:
        producer.publish_many(topic, [b"%d" % i for i in range(first, stop)])


def left(admin: zsq.Admin, topic: str) -> int:
    """Return how many messages the channel has not finished."""
    row = admin.stats(topic)["topics"][0]["channels"][0]
    return int(row["depth"] + row["in_flight_count"] + row["deferred_count"])


def content(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.name.endswith(".gz") else path.read_bytes()


def lines(folder: Path) -> list[bytes]:
    return [line for path in complete(folder) for line in content(path).splitlines()]


def complete(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.suffix != ".part")


def test_bodies_and_objects_are_written(shared: Broker, topic: str, folder: Path) -> None:
    with zsq.Producer(shared.ipc) as producer:
        producer.publish(topic, b"one", key=b"k", tag="eu", headers={"a": 1})
        producer.publish(topic, b"\xff")
    said = forward(f"{topic}/f", f"file:{folder}", shared.ipc, "--start", "earliest")
    assert "2 messages forwarded, 1 files complete" in said
    assert lines(folder) == [b"one", b"\xff"]
    assert complete(folder)[0].name.startswith(f"{topic}.20")
    assert complete(folder)[0].suffix == ".log"
    other = folder / "json"
    forward(
        f"{topic}/j", f"file://{other}", shared.ipc, "--start", "earliest", "--format", "json",
    )  # fmt: skip
    first, second = map(json.loads, lines(other))
    assert (first["body"], first["key"], first["tag"], first["offset"]) == ("one", "k", "eu", 0)
    assert first["headers"] == {"a": 1}
    assert second["body_base64"] == "/w=="
    assert int(second["id"], 16) % 1000 == 1


def test_files_are_rolled_by_size_and_by_time(shared: Broker, topic: str, folder: Path) -> None:
    publish(shared.ipc, topic, 0, 20_000)
    forward(f"{topic}/f", f"file:{folder}", shared.ipc, "--roll-bytes", "20k", "--gzip")
    paths = complete(folder)
    assert len(paths) > 1
    assert sorted(map(int, lines(folder))) == list(range(20_000))
    log = folder.parent / "log"
    publish(shared.ipc, topic, 0, 1)
    by_time = folder.parent / "by-time"
    with forwarding(
        f"{topic}/f", f"file:{by_time}", shared.ipc, "--roll-every", "0.5s", log=log
    ) as process:
        wait_for(lambda: len(complete(by_time)) == 1)
        publish(shared.ipc, topic, 1, 2)
        wait_for(lambda: len(complete(by_time)) == 2)
        process.terminate()
        assert process.wait(30) == 0
    assert sorted(lines(by_time)) == [b"0", b"1"]
    assert not list(by_time.glob("*.part"))


@pytest.mark.parametrize("more", [(), ("--gzip", "--format", "json")], ids=["plain", "gzip"])
def test_a_killed_run_loses_nothing(
    shared: Broker, topic: str, folder: Path, more: tuple[str, ...]
) -> None:
    count, ended = 0, threading.Event()

    def feed() -> None:
        nonlocal count
        while not ended.is_set():
            publish(shared.ipc, topic, count, count + 100)
            count += 100
            ended.wait(0.01)

    with zsq.Admin(shared.ipc) as admin:
        admin.create_topic(topic)
        admin.create_channel(topic, "f")
    feeder = threading.Thread(target=feed)
    feeder.start()
    to = (f"{topic}/f", f"file:{folder}", shared.ipc, "--roll-bytes", "5k", *more)
    try:
        for run in range(8):
            size = sum(path.stat().st_size for path in folder.glob("*"))
            with forwarding(*to, log=folder.parent / "log") as process:
                wait_for(
                    lambda: sum(path.stat().st_size for path in folder.glob("*")) > size + 2000  # noqa: B023
                )
                wait_a_while(process, 0.04 * run)  # the moment of the kill
    finally:
        ended.set()
        feeder.join()
    forward(*to[:3], *to[3:])
    assert not list(folder.glob("*.part"))
    found = Counter(int(json.loads(line)["body"]) if more else int(line) for line in lines(folder))
    assert sorted(found) == list(range(count)), "each message is there"
    # Only what a killed run had not finished comes twice.
    assert sum(found.values()) - count <= 8 * 6000


def test_several_processes_share_the_work(shared: Broker, topic: str, folder: Path) -> None:
    publish(shared.ipc, topic, 0, 100)
    with zsq.Admin(shared.ipc) as admin:
        admin.create_channel(topic, "f")
    line = (f"{topic}/f", f"file:{folder}", shared.ipc)
    log = folder.parent / "log"
    with forwarding(*line, log=log) as first, forwarding(*line, log=log) as second:
        for step in range(1, 30):
            publish(shared.ipc, topic, 100 * step, 100 * step + 100)
        with zsq.Admin(shared.ipc) as admin:
            wait_for(lambda: left(admin, topic) == 0)
        for process in (first, second):
            process.terminate()
            assert process.wait(30) == 0
    assert sorted(map(int, lines(folder))) == list(range(3000))
    assert not list(folder.glob("*.part"))


def test_a_disk_that_refuses_costs_no_attempt(shared: Broker, topic: str, folder: Path) -> None:
    """A limit of the file's size stands for a full disk, until it is raised."""
    publish(shared.ipc, topic, 0, 10)
    log = folder.parent / "log"
    line = (f"{topic}/f", f"file:{folder}", shared.ipc, "--max-attempts", "1")
    with forwarding(*line, log=log) as process:
        wait_for(lambda: any(path.stat().st_size for path in folder.glob("*.part")))
        limit = resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1000, -1))
        publish(shared.ipc, topic, 10, 500)
        wait_for(lambda: b"waiting: " in log.read_bytes())
        process.terminate()
        assert process.wait(30) == 0, "a stop while the disk refuses"
    log = folder.parent / "log2"
    with forwarding(*line, log=log) as process:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1000, -1))
        wait_for(lambda: b"waiting: " in log.read_bytes())
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, limit)
        wait_for(lambda: b"going on" in log.read_bytes())
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert sorted(map(int, lines(folder))) == list(range(500))
    with zsq.Admin(shared.ipc) as admin:
        assert f"{topic}.f.dead" not in admin.topics()


def test_a_path_that_is_no_directory_is_refused(shared: Broker, topic: str, tmp_path: Path) -> None:
    publish(shared.ipc, topic, 0, 1)
    (tmp_path / "x").write_text("")
    assert "is no directory" in forward(f"{topic}/f", f"file:{tmp_path}/x", shared.ipc, code=2)


def test_without_a_message_there_is_no_file(shared: Broker, topic: str, folder: Path) -> None:
    """An empty file of gzip was not readable (nsq#216)."""
    with zsq.Admin(shared.ipc) as admin:
        admin.create_topic(topic)
    forward(f"{topic}/f", f"file:{folder}", shared.ipc, "--gzip")
    assert list(folder.iterdir()) == []


def test_lines_of_json_can_be_published_again(shared: Broker, topic: str, folder: Path) -> None:
    with zsq.Producer(shared.ipc) as producer:
        producer.publish(topic, b"a\nb", key=b"k", headers={"a": 1})
    forward(f"{topic}/f", f"file:{folder}", shared.ipc, "--format", "json")
    [path] = complete(folder)
    line = ("pub", f"{topic}2", "--json-lines", "--file", path, "--url", shared.ipc)
    assert zsq_command.run(*line).returncode == 0
    [message] = stored(shared.ipc, f"{topic}2")
    assert (message.body, message.key, message.headers) == (b"a\nb", b"k", {"a": 1})
