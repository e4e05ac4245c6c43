"""Tests of the whole way from nsqd's directory to a consumer, with the command line and a real
broker, and back.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from support.broker import Broker, wait_for
from support.nsqd import backlogs, expected, fixture, message, sha, write_nsqd
from support.zsq_command import run_text

import zsq
from zsq.storage.nsq.disk_queue_format import NsqdChannel, NsqdList, NsqdTopic


def cli(*arguments: str | Path, code: int = 0) -> tuple[str, str]:
    ended = run_text(*arguments)
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stdout, ended.stderr


def consumed(broker: Broker, topic: str, channel: str, count: int) -> list[tuple[str, int, str]]:
    """Return (sha, attempts, id) of `count` messages, and check that no further message comes."""
    found: list[tuple[str, int, str]] = []
    with zsq.Consumer(topic, channel, url=broker.ipc) as consumer:
        while batch := consumer.receive_batch(timeout=10.0 if len(found) < count else 0.3):
            for message in batch.messages():
                found.append((sha(message.body), message.attempts, str(message.headers["nsq_id"])))
            batch.finish(sync=True)
    assert len(found) == count
    return found


def test_every_body_of_a_cleanly_stopped_nsqd_reaches_a_consumer(tmp_path: Path) -> None:
    source = fixture("clean", tmp_path)
    out, err = cli("import-nsqd", source, "--data-dir", tmp_path / "data")
    assert "clicks: 1100 messages (archive 500, metrics.v2 600; 0 for all channels)" in out
    assert not err
    with Broker(tmp_path / "data") as broker:
        there = expected("clean")
        clicks = there["clicks"]["channels"]
        archive = consumed(broker, "clicks", "archive", 500)
        assert Counter(one[0] for one in archive) == Counter(clicks["archive"]["left"])
        assert {one[0] for one in archive if one[1] > 1} >= set(clicks["archive"]["requeued_once"])
        with zsq.Admin(broker.ipc) as admin:
            stats = {topic["topic_name"]: topic for topic in admin.stats()["topics"]}
            assert stats["frozen"]["paused"]
            assert [
                one["paused"]
                for one in stats["clicks"]["channels"]
                if one["channel_name"] == "metrics.v2"
            ] == [True]
            admin.unpause("clicks", "metrics.v2")
            admin.unpause("frozen")
        assert Counter(one[0] for one in consumed(broker, "clicks", "metrics.v2", 600)) == Counter(
            clicks["metrics.v2"]["left"]
        )
        assert [one[0] for one in consumed(broker, "frozen", "c", 30)] == there["frozen"]["waiting"]
        assert [one[0] for one in consumed(broker, "waiting", "first", 250)] == there["waiting"][
            "waiting"
        ]
        with zsq.Producer(broker.ipc) as producer:
            producer.publish("clicks", b"one more")
        assert cli("import-nsqd", source, "--data-dir", tmp_path / "data", code=1)[1].startswith(
            "zsq: E_CLOSING"
        ), "the broker runs"
    assert "was imported before" in cli("import-nsqd", source, "--data-dir", tmp_path / "data")[0]
    out, err = cli("export-nsqd", tmp_path / "out", "--data-dir", tmp_path / "data")
    assert "clicks:archive: 1 messages" in out
    assert "waiting:first: 0 messages" in out


def test_a_channel_of_a_paused_topic_gets_its_own_backlog_and_the_rest_later(
    tmp_path: Path,
) -> None:
    listed = NsqdList((NsqdTopic("t", True, (NsqdChannel("c"), NsqdChannel("d"))),))
    own = {"c": [message(1), message(2, 1)], "d": [message(number) for number in range(10, 15)]}
    common = [message(20), message(21)]
    source = write_nsqd(
        tmp_path / "nsqd", listed, {"t": [common], "t:c": [own["c"]], "t:d": [own["d"]]}
    )
    cli("import-nsqd", source, "--data-dir", tmp_path / "data")
    with Broker(tmp_path / "data") as broker:
        for channel, its in own.items():
            assert {one[0] for one in consumed(broker, "t", channel, len(its))} == {
                sha(one.body) for one in its
            }
        with zsq.Admin(broker.ipc) as admin:
            admin.unpause("t")
        for channel in own:
            assert [one[0] for one in consumed(broker, "t", channel, 2)] == [
                sha(one.body) for one in common
            ]


def test_a_killed_nsqd_loses_nothing_here(tmp_path: Path) -> None:
    source = fixture("killed", tmp_path)
    err = cli("import-nsqd", source, "--data-dir", tmp_path / "data")[1]
    assert "never-synced: its metadata is missing" in err
    with Broker(tmp_path / "data") as broker:
        for name, topic in expected("killed").items():
            assert [one[0] for one in consumed(broker, name, "c", len(topic["waiting"]))] == topic[
                "waiting"
            ]
        wait_for(lambda: broker.actors(), what="the broker")


def test_an_import_that_is_killed_is_run_again(tmp_path: Path) -> None:
    listed = NsqdList(tuple(NsqdTopic(name, False, (NsqdChannel("c"),)) for name in "abc"))
    queues = {
        f"{name}:c": [[message(number, size=500) for number in range(20_000)]] for name in "abc"
    }
    source = write_nsqd(tmp_path / "nsqd", listed, queues)
    line = [
        sys.executable,
        "-m",
        "zsq",
        "import-nsqd",
        str(source),
        "--data-dir",
        str(tmp_path / "data"),
    ]
    # Kill the import while it builds each of the topics.
    for step in ("000001", "000002", "000003"):
        running = subprocess.Popen(line, stdout=subprocess.DEVNULL)
        seen = tmp_path / "data/import.tmp" / f"{int(step) + 3 * (int(step) - 1):06d}"
        wait_for(
            lambda seen=seen, running=running: seen.exists() or running.poll() is not None,  # type: ignore[misc]
            what=str(seen),
        )
        assert running.poll() is None
        running.kill()
        running.wait()
        assert '"topics": {}' in (tmp_path / "data/registry.json").read_text()
    out = cli("import-nsqd", source, "--data-dir", tmp_path / "data")[0]
    assert out.splitlines() == [
        f"{name}: 20000 messages (c 20000; 0 for all channels)" for name in "abc"
    ]
    assert {
        name: len(one.channels["c"]) for name, one in backlogs(tmp_path / "data").items()
    } == dict.fromkeys("abc", 20_000)
    assert len(list((tmp_path / "data/topics").iterdir())) == 3


def test_a_broker_started_after_a_killed_import_takes_its_space_back(tmp_path: Path) -> None:
    source = write_nsqd(
        tmp_path / "nsqd",
        NsqdList(),
        {"a": [[message(number, size=500) for number in range(20_000)]]},
    )
    line = [
        sys.executable,
        "-m",
        "zsq",
        "import-nsqd",
        str(source),
        "--data-dir",
        str(tmp_path / "data"),
    ]
    running = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seen = tmp_path / "data/import.tmp/000001"
    wait_for(lambda: seen.exists() or running.poll() is not None, what=str(seen))
    assert running.poll() is None
    running.kill()
    running.wait()
    assert '"begun"' in (tmp_path / "data/registry.json").read_text()
    with Broker(tmp_path / "data"):
        assert not (tmp_path / "data/import.tmp").exists()
        assert '"begun"' not in (tmp_path / "data/registry.json").read_text()
    assert (
        cli("import-nsqd", source, "--data-dir", tmp_path / "data")[0]
        == "a: 20000 messages (no channel; 20000 for all channels)\n"
    )


def test_an_import_that_lost_something_is_no_success(tmp_path: Path) -> None:
    source = write_nsqd(
        tmp_path / "nsqd", NsqdList((NsqdTopic("t"),)), {"t": [[message(1), message(2)]]}
    )
    path = source / "t.diskqueue.000000.dat"
    path.write_bytes(path.read_bytes()[:-1])
    out, err = cli("import-nsqd", source, "--data-dir", tmp_path / "data", code=1)
    assert "t: 1 messages" in out
    assert "1 places could not be imported" in err
    assert "zsq topic delete" in err
    out, err = cli("import-nsqd", source, "--data-dir", tmp_path / "data")
    assert "nothing was done" in out
    assert "zsq topic delete" in err


def test_import_and_export_refuse_a_foreign_directory(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert (
        "nsqd.dat"
        in cli("import-nsqd", tmp_path / "empty", "--data-dir", tmp_path / "data", code=2)[1]
    )
    assert (
        "registry.json"
        in cli("export-nsqd", tmp_path / "out", "--data-dir", tmp_path / "empty", code=2)[1]
    )
