"""Tests of `zsq rescue`: what was set aside is listed, shown, published once, and discarded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.zsq_command import run_text

import zsq
from local_setup.broker import LocalBroker, temporary_broker
from zsq.storage.bucket.shipping.rescue_file import BlockFacts, RescueHead, RescueWriter
from zsq.storage.files import Files
from zsq.transport.block.block import pack, with_place

pytestmark = pytest.mark.slow

Run = Callable[..., subprocess.CompletedProcess[str]]
SECOND = 1_000_000_000
NOW = 1_790_000_000 * SECOND
KILLED = (
    "import os, signal, sys\n"
    "from {module} import {name}\n"
    "def die(*arguments, **more):\n"
    "    os.kill(os.getpid(), signal.SIGKILL)\n"
    "{name}.{method} = die\n"
    "from zsq.apps.cli.app import run\n"
    "run(['rescue', sys.argv[1], '--publish'])\n"
)


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with temporary_broker("--no-listen", prefix="zsq-test-") as one:
        yield one


@pytest.fixture
def run(broker: LocalBroker) -> Run:
    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return run_text("rescue", *arguments, ZSQ_URL=broker.url, COLUMNS="80")

    return run


class Aside:
    """A rescue file of one topic in a data directory. Each `add` is a block."""

    def __init__(self, data_dir: Path, topic: str, takeover: int = 7) -> None:
        self.data_dir, self.topic = data_dir, topic
        folder = data_dir / "rescue" / f"{takeover:020d}"
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{topic}.jsonl"
        # Each file has another uuid, because the tests share a broker.
        uuid = os.urandom(16).hex()
        head = RescueHead("b" * 32, topic, uuid, "c" * 32, takeover, 3, "second", NOW, 100)
        self.writer = RescueWriter(Files(), str(self.path), head)
        self.offset = 100

    def add(self, *bodies: bytes, producer: int = 0, sequence: int = 0, due_ns: int = 0,
            why: str = "") -> Aside:  # fmt: skip
        block = with_place(pack(bodies, keys=tuple(bodies)), self.offset, NOW)
        self.writer.add(block, BlockFacts(len(bodies), producer, sequence, due_ns, why))
        self.offset += 0 if due_ns else len(bodies)
        return self

    def done(self) -> Path:
        self.writer.finish()
        return self.data_dir


def stored(broker: LocalBroker, topic: str) -> list[bytes]:
    found: list[bytes] = []
    with zsq.Reader(topic, url=broker.url) as reader:
        while len(found) < (head := reader.bounds()[1]):
            blocks = reader.read(len(found), 1 << 20).blocks
            assert blocks, head
            found += [bytes(body or b"") for block in blocks for body in block.body.values()]
    return found


def delayed(broker: LocalBroker, topic: str) -> list[bytes]:
    with zsq.Admin(broker.url) as admin:
        return [one["body"] for one in admin.delayed_list(topic, after="", count=100)]


def published(aside: Aside) -> Path:
    return aside.path.with_name(aside.path.name + ".published")


def test_the_list_names_topics_offsets_and_the_takeover(tmp_path: Path, run: Run) -> None:
    Aside(tmp_path, "clicks").add(b"1", b"2").add(b"late", due_ns=NOW, why="perhaps").done()
    kept = tmp_path / "rescue" / f"{7:020d}" / "topics" / "local"
    (kept / "directory").mkdir(parents=True)
    (kept / "note.json").write_text(json.dumps({"why": "it is large"}))
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "100 to 101" in done.stdout
    assert "host second took over on 2026-09-" in done.stdout
    assert "(epoch 3, number 7 of the log)" in done.stdout
    assert f"topic local: the directory is kept in {kept}: it is large" in done.stdout
    table = done.stdout.partition("host second")[0].splitlines()
    assert len(table) == 4
    assert max(map(len, table)) <= 80
    rows = [json.loads(line) for line in run(tmp_path, "--json").stdout.splitlines()]
    assert [row["topic"] for row in rows] == ["clicks", "local"]
    assert (rows[0]["messages"], rows[0]["uncertain"], rows[0]["epoch"]) == (3, 1, 3)
    assert rows[1] == {
        "path": str(kept), "topic": "local", "state": "kept", "why": "it is large",
    }  # fmt: skip


def test_a_directory_without_rescue_files_has_nothing(tmp_path: Path, run: Run) -> None:
    done = run(tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}: nothing is set aside\n")


def test_messages_are_shown_in_the_forms_of_tail(tmp_path: Path, run: Run) -> None:
    aside = Aside(tmp_path, "clicks").add(b"text", b"\xff").add(b"late", due_ns=NOW, why="perhaps")
    aside.done()
    other = Aside(tmp_path, "other").add(b"other")
    other.done()
    assert run(aside.path, "--show", "--json").returncode == 0
    assert run(tmp_path, "--show", "--topic", "other").stdout == "other\n"
    rows = [json.loads(line) for line in run(aside.path, "--show", "--json").stdout.splitlines()]
    assert [row.get("offset") for row in rows] == [100, 101, None]
    assert rows[0]["body"] == rows[0]["key"] == "text"
    assert rows[1]["body_base64"] == "/w=="
    assert (rows[2]["due_ns"], rows[2]["certain"]) == (NOW, False)


def test_messages_are_published_once(tmp_path: Path, run: Run, broker: LocalBroker) -> None:
    late = time.time_ns() + 3600 * SECOND
    aside = Aside(tmp_path, "once").add(b"1", b"2").add(b"3").add(b"late", due_ns=late)
    aside.add(b"doubt", why="perhaps").done()
    for said in ("published 3 messages to once, and 1 with", "published before"):
        done = run(tmp_path, "--publish")
        assert done.returncode == 0, done.stderr
        assert said in done.stdout
        assert "1 are uncertain and are left" in done.stdout
        assert stored(broker, "once") == [b"1", b"2", b"3"]
        assert delayed(broker, "once") == [b"late"]
        assert published(aside).exists()
        assert not aside.path.exists()
    for _ in range(2):
        done = run(published(aside), "--publish", "--uncertain")
        assert done.returncode == 0, done.stderr
        assert stored(broker, "once") == [b"1", b"2", b"3", b"doubt"]


@pytest.mark.parametrize(
    ("module", "name", "method"),
    [
        ("zsq.apps.rescue", "StageWriter", "seal"),
        ("zsq.apps.rescue", "StageCommitter", "commit"),
        ("zsq.apps.rescue", "StageCommitter", "close"),
        ("zsq.apps.rescue", "_FixedSession", "on_delayed"),
        ("zsq.storage.files", "Files", "rename"),
    ],
)
def test_a_kill_and_a_second_run_publish_once(
    tmp_path: Path, run: Run, broker: LocalBroker, module: str, name: str, method: str
) -> None:
    topic = f"killed-{name}-{method}".lower()
    late = time.time_ns() + 3600 * SECOND
    aside = Aside(tmp_path, topic).add(b"1", b"2").add(b"late", due_ns=late)
    aside.add(b"later", due_ns=late + SECOND).done()
    program = KILLED.format(module=module, name=name, method=method)
    command = [sys.executable, "-c", program, str(tmp_path)]
    subprocess.run(command, env=os.environ | {"ZSQ_URL": broker.url}, timeout=60, check=False)
    assert aside.path.exists()
    done = run(tmp_path, "--publish")
    assert done.returncode == 0, done.stderr
    assert stored(broker, topic) == [b"1", b"2"]
    assert delayed(broker, topic) == [b"late", b"later"]
    assert published(aside).exists()


def test_what_a_producer_has_sent_again_is_left_out(
    tmp_path: Path, run: Run, broker: LocalBroker
) -> None:
    with zsq.Producer(broker.url) as producer:
        producer.publish("again", b"sent again")
        producer_id = producer._drive().engine.lane("again").session.producer_id
    aside = Aside(tmp_path, "again").add(b"sent again", producer=producer_id, sequence=0)
    aside.add(b"lost", producer=producer_id, sequence=1).add(b"other", producer=5).done()
    done = run(tmp_path, "--publish", "--json")
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert (row["messages"], row["known"], row["topic"]) == (2, 1, "again")
    assert stored(broker, "again") == [b"sent again", b"lost", b"other"]


def test_another_topic_may_get_the_messages(tmp_path: Path, run: Run, broker: LocalBroker) -> None:
    aside = Aside(tmp_path, "gone").add(b"1", producer=5)
    aside.done()
    done = run(tmp_path, "--publish", "--to", "elsewhere")
    assert done.returncode == 0, done.stderr
    assert stored(broker, "elsewhere") == [b"1"]
    with zsq.Admin(broker.url) as admin:
        assert "gone" not in admin.topics()
    # A run that was begun ends at the same topic.
    published(aside).rename(aside.path)
    done = run(tmp_path, "--publish", "--to", "third")
    assert done.returncode == 2
    assert "was begun to be published to topic elsewhere" in done.stderr
    assert run(tmp_path, "--publish").returncode == 0
    assert stored(broker, "elsewhere") == [b"1"]


def test_a_damaged_file_is_not_published(tmp_path: Path, run: Run) -> None:
    aside = Aside(tmp_path, "damaged").add(b"1", b"2")
    aside.done()
    whole = aside.path.read_bytes()
    aside.path.write_bytes(whole.replace(b'"body": "1"', b'"body": "7"'))
    for option in ("--publish", "--show"):
        done = run(tmp_path, option)
        assert (done.returncode, done.stdout) == (1, "")
        assert "E_CHECKSUM" in done.stderr
        assert "its checksum is wrong" in done.stderr
    aside.path.write_bytes(whole[: len(whole) // 2])
    done = run(tmp_path)
    assert done.returncode == 1
    assert "damage: " in done.stdout
    assert run(aside.path).returncode == 1
    aside.path.write_text("something else\n")
    done = run(aside.path)
    assert done.returncode == 1
    assert "is not a rescue file" in done.stderr


def test_a_newer_version_is_named(tmp_path: Path, run: Run) -> None:
    from zsq.storage import documents

    path = tmp_path / "t.jsonl"
    path.write_bytes(documents.encode_line("rescue", 2, {}))
    done = run(path)
    assert done.returncode == 1
    assert "format version 2, and this zsq reads only version 1; use a newer zsq" in done.stderr


def test_files_are_discarded_after_a_question(tmp_path: Path, run: Run) -> None:
    aside = Aside(tmp_path, "clicks").add(b"1")
    aside.done()
    done = run(tmp_path, "--discard")
    assert done.returncode == 2
    assert "with 1 messages that were not published" in done.stderr
    assert aside.path.exists()
    assert run(tmp_path, "--discard", "--topic", "other").returncode == 0
    assert run(tmp_path, "--discard", "--yes").returncode == 0
    assert not aside.path.exists()


@pytest.mark.parametrize(
    "options", [["--show", "--publish"], ["--to", "t"], ["--uncertain", "--show"]]
)
def test_wrong_options_are_refused(tmp_path: Path, run: Run, options: list[str]) -> None:
    assert run(tmp_path, *options).returncode == 2
