"""Tests of staging and transactions on real processes: messages that were committed are stored once
and in order, and others are not stored.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.broker import Broker, kill, wait_for
from support.stages import TOPIC, bodies_of, staged_files, stored, topic_row, write
from support.topic_names import topic_name_of

import zsq
from zsq.transport.block.block import pack
from zsq.transport.client.blocking.stage_writer import StageCommitter, StageWriter
from zsq.transport.errors import E_SEQUENCE

# A task that pushes and then hangs until it is killed.
KILLED = """
import sys
from zsq.transport.block.block import pack
from zsq.transport.client.blocking.stage_writer import StageWriter
writer = StageWriter(sys.argv[2], "app", 1, url=sys.argv[1], heartbeat_ms=1_000)
writer.push(pack([b"never sealed"]))
print("pushed", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return topic_name_of(request.node.name)


def test_parts_become_messages_at_once_in_their_order(shared: Broker, url: str, topic: str) -> None:
    with zsq.Producer(url) as producer, StageCommitter(topic, url=url) as committer:
        producer.publish(topic, b"before")
        parts = [write(url, bodies_of(name, 250), topic=topic) for name in ("a", "b", "c")]
        assert stored(url, topic) == [b"before"]
        row = topic_row(shared, topic)
        assert (row["stages"], row["staged_bytes"]) == (3, sum(part[3] for part in parts))
        done = committer.commit("app", 1, [parts[1], parts[0]])
        assert (done["first_offset"], done["messages"], done["repeated"]) == (1, 500, False)
        producer.publish(topic, b"after")
        expected = [b"before", *bodies_of("b", 250), *bodies_of("a", 250), b"after"]
        assert stored(url, topic) == expected
        again = committer.commit("app", 1, parts)
        assert (again["first_offset"], again["messages"], again["repeated"]) == (1, 500, True)
        assert stored(url, topic) == expected
        assert committer.commit("app", 0, [])["repeated"], "an earlier version"
    row = topic_row(shared, topic)
    assert (row["stages"], row["transactions"], row["head"], row["message_count"]) == (
        0,
        1,
        502,
        502,
    )
    assert row["message_bytes"] > parts[0][3] + parts[1][3]


def test_a_commit_that_follows_another_version_is_refused(url: str, topic: str) -> None:
    with StageCommitter(topic, url=url) as committer:
        with pytest.raises(zsq.Refused, match=E_SEQUENCE):
            committer.commit("app", 5, [], after=4)
        assert not committer.commit("app", 5, [], after=-1)["repeated"]
        with pytest.raises(zsq.Refused, match="is 5, not 4"):
            committer.commit("app", 9, [], after=4)
        assert committer.commit("app", 5, [], after=4)["repeated"], "it is committed already"
        assert not committer.commit("app", 9, [], after=5)["repeated"]
        assert not committer.commit("app", 10, [])["repeated"]
        assert committer.version_of("app") == 10


def test_a_commit_can_be_checked_before(url: str, topic: str) -> None:
    """A transaction of several topics asks all of them, before it commits in the first one."""
    with StageCommitter(topic, url=url) as committer:
        part = write(url, bodies_of("a", 10), topic=topic)
        committer.check("app", 1, [part])
        committer.check("app", 1, [part])
        assert stored(url, topic) == []
        with pytest.raises(zsq.UsageError, match="but the commit says"):
            committer.check("app", 1, [(*part[:4], 0)])
        with pytest.raises(zsq.NotFound, match="does not exist"):
            committer.check("app", 1, [part, (bytes(16), *part[1:])])
        assert committer.commit("app", 1, [part])["messages"] == 10
        committer.check("app", 1, [part])
        assert stored(url, topic) == bodies_of("a", 10)


def test_the_files_of_a_stage_go(broker: Broker) -> None:
    with StageCommitter(TOPIC, url=broker.ipc) as committer:
        kept, dropped = (
            write(broker.ipc, bodies_of("kept", 10)),
            write(broker.ipc, bodies_of("dropped", 10)),
        )
        assert {name.split("-")[0] for name in staged_files(broker)} == {
            kept[0].hex(),
            dropped[0].hex(),
        }
        committer.commit("app", 1, [kept])
        wait_for(lambda: not staged_files(broker), 30, "an empty staging folder")
        other = write(broker.ipc, bodies_of("other", 10), version=2)
        assert staged_files(broker)
        answer = {"dropped": 1, "committed": False, "version": 1}
        assert committer.abort("app", 2) == answer
        wait_for(lambda: not staged_files(broker), 30, "an empty staging folder after the abort")
        with pytest.raises(zsq.NotFound, match=other[0].hex()):
            committer.commit("app", 2, [other])
        assert committer.abort("app", 1)["committed"] is True
    assert stored(broker.ipc) == bodies_of("kept", 10)


def test_an_empty_commit_is_remembered(own_broker: Broker) -> None:
    with (
        zsq.Producer(own_broker.ipc) as producer,
        StageCommitter(TOPIC, url=own_broker.ipc) as committer,
    ):
        producer.publish(TOPIC, b"1")
        assert committer.commit("query", 7, [])["messages"] == 0
    assert own_broker.stop() == 0
    own_broker.start()
    with StageCommitter(TOPIC, url=own_broker.ipc) as committer:
        assert committer.commit("query", 7, [])["repeated"] is True
        assert committer.commit("query", 8, [])["repeated"] is False
    assert stored(own_broker.ipc) == [b"1"]


def test_a_writer_of_a_committed_transaction_is_told(url: str, topic: str) -> None:
    with StageWriter(topic, "app", 1, url=url) as slow, StageCommitter(topic, url=url) as committer:
        slow.push(pack([b"zombie"]))
        part = write(url, [b"real"], topic=topic)
        committer.commit("app", 1, [part])
        assert slow.seal() is None
        assert slow.committed
        with StageWriter(topic, "app", 1, url=url) as later:
            later.push(pack([b"later"]))
            assert later.committed
            assert later.seal() is None
    assert stored(url, topic) == [b"real"]


def test_a_commit_of_what_is_not_sealed_or_not_so_changes_nothing(url: str, topic: str) -> None:
    with StageCommitter(topic, url=url) as committer:
        part = write(url, [b"one", b"two"], topic=topic)
        for wrong in ((part[0], 1, 2, part[3], part[4] ^ 1), (part[0], 1, 3, part[3], part[4])):
            with pytest.raises(zsq.UsageError, match=part[0].hex()):
                committer.commit("app", 1, [wrong])
        with pytest.raises(zsq.UsageError, match="another transaction"):
            committer.commit("other", 1, [part])
        with pytest.raises(zsq.NotFound):
            committer.commit("app", 1, [part, (b"?" * 16, 1, 1, 1, 1)])
        assert committer.commit("app", 1, [part])["messages"] == 2
    assert stored(url, topic) == [b"one", b"two"]


class Publisher(threading.Thread):
    """A publisher that continues until it is stopped, and waits for each answer."""

    def __init__(self, url: str, topic: str, size: int = 20) -> None:
        super().__init__(daemon=True)
        self.url, self.topic, self.size = url, topic, size
        self.acknowledged: list[bytes] = []
        self.failure: BaseException | None = None
        self.ending = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            with zsq.Producer(self.url) as producer:
                while not self.ending.is_set():
                    bodies = bodies_of(f"live{len(self.acknowledged)}", 5, self.size)
                    producer.publish_many(self.topic, bodies)
                    self.acknowledged += bodies
        except BaseException as error:
            self.failure = error

    def end(self) -> list[bytes]:
        self.ending.set()
        self.join(60)
        assert self.failure is None
        return self.acknowledged


def test_channels_get_commits_and_publishes_in_order_and_once(url: str, topic: str) -> None:
    """The channels are attached at the head while others publish. The topic never holds the blocks
    that storage commits.
    """
    with zsq.Admin(url) as admin:
        for channel in ("c", "d"):
            admin.create_channel(topic, channel)
    with (
        zsq.Consumer(topic, "c", url=url, ready=1_000) as consumer,
        zsq.Consumer(topic, "d", url=url, ready=1) as slow,
    ):
        got: list[bytes] = []
        offsets: list[int] = []

        def take(count: int) -> None:
            while len(got) < count:
                message = consumer.receive(20)
                assert message is not None, f"{len(got)} of {count} messages came"
                got.append(message.body)
                offsets.append(message.offset)
                message.finish()

        first = slow.receive(0.1)
        assert first is None
        publisher = Publisher(url, topic)
        committed: list[bytes] = []
        with StageCommitter(topic, url=url) as committer:
            for version in range(10):
                names = [f"v{version}p{n}" for n in range(2)]
                parts = [
                    write(url, bodies_of(name, 30), version=version, topic=topic, per_block=7)
                    for name in names
                ]
                committer.commit("app", version, parts)
                for name in names:
                    committed += bodies_of(name, 30)
                take(len(committed))
        total = [*publisher.end(), *committed]
        take(len(total))
        assert offsets == list(range(len(total)))
        assert sorted(got) == sorted(total)
        assert [body for body in got if body.startswith(b"v")] == committed
        assert got == stored(url, topic)
        for offset in range(20):
            message = slow.receive(20)
            assert message is not None
            assert (message.offset, message.body) == (offset, got[offset])
            message.finish()


def test_a_paused_topic_hides_a_commit(url: str, topic: str) -> None:
    with (
        zsq.Admin(url) as admin,
        zsq.Consumer(topic, "c", url=url) as consumer,
        StageCommitter(topic, url=url) as committer,
    ):
        admin.create_channel(topic, "c")
        admin.pause(topic)
        committer.commit("app", 1, [write(url, [b"hidden"], topic=topic)])
        assert consumer.receive(0.3) is None
        admin.unpause(topic)
        message = consumer.receive(20)
        assert message is not None
        assert message.body == b"hidden"


@pytest.mark.parametrize("sync", ["interval", "never"])
def test_publishes_and_commits_are_delivered_in_order_in_other_sync_modes(
    broker: Broker, sync: str
) -> None:
    with (
        zsq.Admin(broker.ipc) as admin,
        zsq.Producer(broker.ipc) as producer,
        StageCommitter(TOPIC, url=broker.ipc) as committer,
    ):
        admin.create_topic(TOPIC, sync=sync)
        admin.create_channel(TOPIC, "c")
        with zsq.Consumer(TOPIC, "c", url=broker.ipc) as consumer:
            for version in range(5):
                producer.publish(TOPIC, b"live%d" % version)
                committer.commit(
                    "app", version, [write(broker.ipc, [b"staged%d" % version], version=version)]
                )
                for body in (b"live%d" % version, b"staged%d" % version):
                    message = consumer.receive(10)
                    assert message is not None
                    assert message.body == body
                    message.finish(sync=True)


def test_a_big_commit_stops_no_publisher(own_broker: Broker) -> None:
    """The commit has 64 MiB in large parts and some small parts. No publish may fail, and all
    messages must be stored at the right offsets.
    """
    large = [bodies_of(f"large{n}", 16_384, 1_024) for n in range(4)]
    small = [bodies_of(f"small{n}", 50) for n in range(3)]
    parts = [write(own_broker.ipc, bodies, per_block=200) for bodies in (*small, *large)]
    publisher = Publisher(own_broker.ipc, TOPIC, 1_000)
    wait_for(
        lambda: len(publisher.acknowledged) > 100 or publisher.failure,
        20,
        "the publisher's first blocks",
    )
    with StageCommitter(TOPIC, url=own_broker.ipc) as committer:
        done = committer.commit("app", 1, parts)
    before = len(publisher.acknowledged)
    wait_for(
        lambda: len(publisher.acknowledged) > before + 100 or publisher.failure,
        20,
        "the publisher's next blocks",
    )
    live = publisher.end()
    first = done["first_offset"]
    group = [body for bodies in (*small, *large) for body in bodies]
    assert done["messages"] == len(group)
    expected = [*live[:first], *group, *live[first:]]
    assert stored(own_broker.ipc) == expected
    assert own_broker.stop() == 0
    own_broker.start()
    assert stored(own_broker.ipc) == expected
    assert not staged_files(own_broker)


def test_orphans_go_after_their_time(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", "--stage-timeout", "2") as broker:
        sealed = write(broker.ipc, bodies_of("sealed", 10))
        with (
            StageWriter(TOPIC, "at work", 1, url=broker.ipc, heartbeat_ms=1_000) as writer,
            StageCommitter(TOPIC, url=broker.ipc) as committer,
        ):
            writer.push(pack([b"open"]))
            victim = subprocess.Popen(
                [sys.executable, "-c", KILLED, broker.ipc, TOPIC],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            try:
                assert victim.stdout is not None
                assert victim.stdout.readline() == b"pushed\n"
            finally:
                kill(victim.pid)
                victim.communicate()
            wait_for(
                lambda: topic_row(broker)["stages"] == 1, 20, "the end of those that nobody uses"
            )
            wait_for(lambda: len(staged_files(broker)) == 1, 30, "the end of their files")
            with pytest.raises(zsq.NotFound):
                committer.commit("app", 1, [sealed])
            part = writer.seal()
            committer.commit("at work", 1, [part])
        assert stored(broker.ipc) == [b"open"]


def test_a_stage_of_a_deleted_topic_cannot_be_committed(own_broker: Broker) -> None:
    part = write(own_broker.ipc, bodies_of("a", 100))
    with (
        zsq.Admin(own_broker.ipc) as admin,
        StageCommitter(TOPIC, url=own_broker.ipc, create=False) as committer,
    ):
        admin.delete_topic(TOPIC)
        assert not staged_files(own_broker)
        with pytest.raises(zsq.ZsqError):
            committer.commit("app", 1, [part])
        admin.create_topic(TOPIC)
        with pytest.raises(zsq.NotFound):
            committer.commit("app", 1, [part])
    assert stored(own_broker.ipc) == []


def test_a_writer_packs_messages_with_their_attributes(url: str, topic: str) -> None:
    with zsq.StageWriter(topic, "app", 1, url=url) as writer:
        writer.write([b"a", b"b"], keys=[b"k", None], tag="t", headers={"n": 7})
        writer.write([b"c"] * 12_000)
        part = writer.seal()
    with zsq.StageCommitter(topic, url=url) as committer:
        assert part is not None
        assert committer.commit("app", 1, [part])["messages"] == 12_002
    with zsq.Reader(topic, url=url) as reader:
        first, second = reader.message(0), reader.message(1)
    assert (first.body, first.key, first.tag, first.headers) == (b"a", b"k", "t", {"n": 7})
    assert (second.body, second.key, second.tag) == (b"b", None, "t")
