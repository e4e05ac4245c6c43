"""Tests of `zsq fsck` on the directory of a real broker: it is refused while the broker runs, finds
nothing after a stop or a kill, and finds and repairs damage.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.broker import Broker, kill, wait_for
from support.zsq_command import run

import zsq

COUNT = 30


def fsck(*arguments: str | Path, code: int = 0) -> str:
    ended = run("fsck", *arguments, timeout_s=120)
    assert ended.returncode == code, (
        ended.returncode,
        ended.stdout.decode(),
        ended.stderr.decode(),
    )
    return (ended.stdout + ended.stderr).decode()


def told(data_dir: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    return dict(json.loads(fsck(data_dir, *arguments, "--json", code=code)))


@pytest.fixture
def stopped(tmp_path: Path, own_broker: Broker) -> Broker:
    """Return a stopped broker that has a topic of several chunks and a channel with some finished
    messages.
    """
    own_broker.stop()
    own_broker.extra += ("--chunk-bytes", "65536")
    own_broker.start()
    with (
        zsq.Producer(own_broker.ipc) as producer,
        zsq.Consumer("t", "c", url=own_broker.ipc, ready=20) as consumer,
    ):
        for number in range(COUNT):
            producer.publish_many("t", [b"%d.%d " % (number, i) + b"x" * 900 for i in range(10)])
        message = consumer.receive(20)
        assert message is not None
        message.finish()
        producer.publish("other", b"1")
    assert own_broker.stop() == 0
    return own_broker


def test_refused_while_it_runs_and_where_there_is_nothing(
    own_broker: Broker, tmp_path: Path
) -> None:
    assert own_broker.process is not None
    assert f"pid {own_broker.process.pid}" in fsck(own_broker.data_dir, code=1)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "is not a ZSQ data directory" in fsck(empty, code=1)
    assert list(empty.iterdir()) == [], "nothing is made there"
    fsck(tmp_path / "missing", code=2)


def test_clean_after_a_stop_and_after_a_kill(stopped: Broker) -> None:
    found = told(stopped.data_dir)
    assert found["clean"]
    assert [(topic["name"], topic["messages"], topic["clean"]) for topic in found["topics"]] == [
        ("other", 1, True),
        ("t", COUNT * 10, True),
    ]
    assert "t: clean" in fsck(stopped.data_dir, "t")
    assert "does not exist" in fsck(stopped.data_dir, "nobody", code=1)
    stopped.start()
    with zsq.Producer(stopped.ipc) as producer:
        producer.publish("t", b"one more")
        assert stopped.process is not None
        stopped.actors()
        kill(stopped.process.pid)
        stopped.process.wait(20)
    stopped.wait_gone(sorted(stopped._known))
    assert told(stopped.data_dir)["clean"], "a kill damages nothing"


def test_a_damaged_block_is_found_repaired_and_the_rest_served(stopped: Broker) -> None:
    folder = stopped.data_dir / "topics" / "000001"
    first = folder / f"{0:020d}.chunk"
    data = bytearray(first.read_bytes())
    data[data.index(b"2.5 x")] ^= 1
    first.write_bytes(data)
    found = told(stopped.data_dir, "t", code=1)
    (topic,) = found["topics"]
    (finding,) = topic["findings"]
    assert (finding["first_offset"], finding["count"], finding["repairable"]) == (20, 10, True)
    assert "[offsets 20 to 29]" in fsck(stopped.data_dir, code=1)
    assert "its 10 messages are recorded as lost" in fsck(stopped.data_dir, "--repair")
    assert told(stopped.data_dir)["clean"]
    stopped.start()
    with zsq.Admin(stopped.ipc) as admin, zsq.Reader("t", url=stopped.ipc) as reader:
        assert reader.read(20).blocks[0].first_offset == 30
        (row,) = admin.stats("t")["topics"]
        assert (row["health"], row["lost_messages"]) == ("OK", 10)


def test_a_topic_that_is_gone_or_nobodys(stopped: Broker) -> None:
    (stopped.data_dir / "topics" / "000001").rename(stopped.data_dir / "topics" / "000009")
    found = told(stopped.data_dir, code=1)
    assert (
        "is not created again"
        in next(topic for topic in found["topics"] if topic["name"] == "t")["findings"][0]["text"]
    )
    assert "no topic of the registry" in found["findings"][0]["text"]
    assert not (stopped.data_dir / "topics" / "000001").exists()
    (stopped.data_dir / "registry.json").write_text("{")
    assert "cannot be read" in fsck(stopped.data_dir, code=1)
    assert (stopped.data_dir / "registry.json").read_text() == "{"


def test_a_missing_directory_is_refused_and_not_made_anew(stopped: Broker) -> None:
    """The directory may be on a disk that is not mounted, so an operator has to look at it. The
    other topics continue. When the directory is back, the next start opens the topic.
    """
    folder, away = stopped.data_dir / "topics" / "000001", stopped.data_dir.parent / "away"
    folder.rename(away)
    stopped.start()
    with zsq.Admin(stopped.ipc) as admin, zsq.Producer(stopped.ipc) as producer:
        producer.publish("other", b"2")
        wait_for(
            lambda: "not mounted" in admin.stats("t")["topics"][0]["health"],
            30,
            "the reason in the topic's health",
        )
        assert admin.stats("t")["topics"][0]["health"].endswith("start the broker again")
        assert not folder.exists()
    assert stopped.stop() == 0
    away.rename(folder)
    stopped.start()
    with zsq.Admin(stopped.ipc) as admin:
        (row,) = admin.stats("t")["topics"]
        assert (row["health"], row["head"]) == ("OK", COUNT * 10)


def test_a_damaged_registry_is_refused_by_its_key_and_made_again(stopped: Broker) -> None:
    path = stopped.data_dir / "registry.json"
    good = path.read_text()
    path.write_text(good.replace('"sync": "always"', '"sync": "alwayq"', 1))
    with pytest.raises(AssertionError, match=r"checksum .*--repair"):
        stopped.start()
    assert "checksum" in fsck(stopped.data_dir, code=1)
    assert told(stopped.data_dir, "--repair")["findings"][0]["repaired"].startswith("rebuilt from")
    assert path.read_text() == good
    stopped.start()
    with zsq.Reader("t", url=stopped.ipc) as reader:
        assert reader.read(0).head == COUNT * 10
