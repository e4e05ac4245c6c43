"""Tests of a disk that fails: it is full and then has space again, or a sync returns an error. No
acknowledged message is lost, and the broker recovers without help.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.broker import Broker, wait_for

import zsq
from zsq.transport.errors import E_DISK_FULL, Refused, ZsqError

MIB = 1 << 20
BODY = os.urandom(1000)
SABOTAGE = Path(__file__).parents[1] / "support" / "sabotage"


class SmallDiskBroker(Broker):
    """A broker on a file system of 64 MiB that no other process can see."""

    def start(self, timeout_s: float = 30.0) -> Broker:
        self.data_dir.mkdir(exist_ok=True)
        serve = (
            f"exec {sys.executable} -m zsq serve --data-dir {self.data_dir} --listen "
            f"127.0.0.1:{self.port} {' '.join(self.extra)}"
        )
        script = f"mount -t tmpfs -o size=64m,mode=700 none {self.data_dir} && {serve}"
        with self.log.open("ab") as log:
            command = ["unshare", "--map-root-user", "--mount", "sh", "-c", script]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        wait_for(
            lambda: b" ready: " in self.log.read_bytes() or self._exited(),
            timeout_s,
            "the broker's ready line",
        )
        assert not self._exited(), self.log.read_text()[-2000:]
        return self

    @property
    def ipc(self) -> str:
        return self.tcp  # its sockets are where no other process can see them

    @property
    def inside(self) -> Path:
        assert self.process is not None
        return Path(f"/proc/{self.process.pid}/root{self.data_dir}")


def has_namespaces() -> bool:
    return (
        shutil.which("unshare") is not None
        and not subprocess.run(
            [
                "unshare",
                "--map-root-user",
                "--mount",
                "sh",
                "-c",
                "mount -t tmpfs -o size=1m none /mnt",
            ],
            capture_output=True,
            check=False,
        ).returncode
    )


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallDiskBroker]:
    if not has_namespaces():
        pytest.skip("a file system of one's own needs unshare(1) and user namespaces")
    one = SmallDiskBroker(tmp_path / "data", http=True)
    try:
        one.start()
        yield one
    finally:
        one.close()


def depth(broker: Broker, topic: str) -> int:
    with zsq.Admin(broker.tcp) as admin:
        return int(admin.stats(topic)["topics"][0]["channels"][0]["depth"])


def test_a_full_disk_refuses_publishes_and_serves_consumers(small: SmallDiskBroker) -> None:
    with zsq.Admin(small.tcp) as admin:
        admin.create_channel("t", "c")
        pids = sorted(actor["pid"] for actor in small.actors())
    ballast = small.inside / "ballast"
    stored = 0
    with zsq.Producer(small.tcp, timeout=20) as producer:
        producer.publish_many("t", [BODY] * 1000)
        stored += 1000
        fill(ballast)
        more = publish_until_refused(producer)
        assert more > 0
        stored += more
        assert depth(small, "t") == stored
        consume(small, 1500)  # finishes are committed although the disk is full
        assert depth(small, "t") == stored - 1500
        with pytest.raises(Refused, match=E_DISK_FULL):
            producer.publish_many("t", [BODY] * 1000)
        ballast.unlink()
        wait_for(lambda: accepted(producer), 20, "publishing by itself once there is space")
    assert depth(small, "t") == stored - 1500 + 1
    consume(small, stored - 1500 + 1)
    assert depth(small, "t") == 0
    assert sorted(actor["pid"] for actor in small.actors()) == pids, "nobody died of it"


def test_delayed_messages_wait_for_space_and_say_so(small: SmallDiskBroker) -> None:
    ballast = small.inside / "ballast"
    with zsq.Admin(small.tcp) as admin, zsq.Producer(small.tcp, timeout=20) as producer:
        admin.create_channel("t", "c")
        pids = sorted(actor["pid"] for actor in small.actors())
        for _ in range(3):
            producer.publish_many("t", [BODY] * 1000, delay=3)
        fill(ballast, 3 * MIB)
        # The free space is checked ten times a second.
        stored = 3000 + publish_until_refused(producer, count=100, delay=3)
        wait_for(
            lambda: "wait for space" in str(admin.stats("t")["topics"][0]["health"]),
            20,
            "the alarm",
        )
        assert admin.delayed_count("t")["messages"] > 0
        ballast.unlink()
        consume(small, stored)
        wait_for(
            lambda: admin.stats("t")["topics"][0]["health"] == "OK", 10, "the end of the alarm"
        )
        assert admin.delayed_count("t")["messages"] == 0
        assert sorted(actor["pid"] for actor in small.actors()) == pids, "nobody died of it"


def fill(ballast: Path, left_bytes: int = 6 * MIB) -> None:
    """Fill the file system except for some MiB, of which 3.2 are the reserve."""
    space = os.statvfs(ballast.parent)
    with ballast.open("wb") as file:
        left = space.f_bavail * space.f_frsize - left_bytes
        while left > 0:
            left -= file.write(bytes(min(left, MIB)))


def publish_until_refused(producer: zsq.Producer, count: int = 1000, delay: float = 0) -> int:
    """Return how many messages were accepted before the broker refused one because of a
    full disk.
    """
    stored = 0
    refused = None
    while refused is None and stored < 100_000:
        try:
            producer.publish_many("t", [BODY] * count, delay=delay)
            stored += count
        except Refused as error:
            refused = error
    assert refused is not None, "100 MB went onto a disk of 64"
    assert refused.code == E_DISK_FULL
    assert "reserve" in refused.text or "space" in refused.text
    return stored


def accepted(producer: zsq.Producer) -> bool:
    with contextlib.suppress(ZsqError):
        producer.publish("t", BODY)
        return True
    return False


def consume(broker: Broker, count: int) -> None:
    """Receive and finish exactly `count` messages, with confirmation."""
    with zsq.Consumer("t", "c", url=broker.tcp, ready=100) as consumer:
        while count:
            message = consumer.receive(10)
            assert message is not None
            message.finish()
            count -= 1
        consumer.flush()


@pytest.fixture
def sabotaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Broker, Path]]:
    flag = tmp_path / "fail"
    monkeypatch.setenv("PYTHONPATH", str(SABOTAGE))
    monkeypatch.setenv("ZSQ_SABOTAGE", str(flag))
    with Broker(tmp_path / "data") as broker:
        yield broker, flag


def test_after_a_failed_sync_the_log_is_read_anew_and_health_is_good_again(
    sabotaged: tuple[Broker, Path],
) -> None:
    broker, flag = sabotaged
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc, timeout=30) as producer:
        admin.create_channel("t", "c")
        producer.publish_many("t", [b"%d" % n for n in range(100)])
        [before] = [actor["pid"] for actor in broker.actors() if actor["name"] == "topic t"]
        flag.write_text(str(before))  # the next process can read the log and sync it
        receipt = producer.publish_many("t", [b"%d" % n for n in range(100, 200)], wait=False)
        broker.wait_gone([before])
        assert not receipt.done, "nothing is acknowledged that no sync vouches for"
        flag.unlink()
        wait_for(
            lambda: "sync" in str(admin.stats("t")["topics"][0]["health"]) or receipt.done,
            30,
            "bad health, or good again",
        )
        wait_for(lambda: admin.stats("t")["topics"][0]["health"] == "OK", 30, "good health again")
        receipt.wait(30)
        producer.publish("t", b"200")
        with zsq.Consumer("t", "c", url=broker.ipc) as consumer:
            seen: list[int] = []
            while len(seen) < 201:
                message = consumer.receive(10)
                assert message is not None
                seen.append(int(message.body))
                message.finish()
    assert seen == list(range(201)), (
        "each once, in order: the resent ones were known by their sequence"
    )


def test_a_failed_storage_ends_at_once_each_time(sabotaged: tuple[Broker, Path]) -> None:
    """The process must not be aborted by ZeroMQ, and it must not hang, although its threads still
    wait on their sockets.
    """
    broker, flag = sabotaged
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc, timeout=30) as producer:
        admin.create_topic("t")

        def is_stored(body: bytes) -> bool:
            """Return False while the topic waits before its next start (E_TOPIC_FAILED)."""
            with contextlib.suppress(zsq.Refused):
                producer.publish("t", body)
                return True
            return False

        for number in range(6):
            wait_for(lambda number=number: is_stored(b"%d" % number), 60, "the topic is up")  # type: ignore[misc]
            [pid] = [actor["pid"] for actor in broker.actors() if actor["name"] == "topic t"]
            flag.touch()
            receipt = producer.publish_many("t", [b"again"], wait=False)
            broker.wait_gone([pid])
            flag.unlink()
            with contextlib.suppress(zsq.Refused):  # the next start may still have been sabotaged
                receipt.wait(30)
    said = broker.log.read_bytes()
    assert b"Assertion failed" not in said
    assert said.count(b"sabotaged") >= 6


def ping(port: int) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def metrics(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if line and line[0] != "#")
    }


def test_a_full_disk_is_seen_in_health_metrics_alarms_and_log(small: SmallDiskBroker) -> None:
    port = small.http
    with zsq.Admin(small.tcp) as admin, zsq.Producer(small.tcp, timeout=20) as producer:
        admin.create_channel("t", "c")
        producer.publish("t", BODY)
        assert ping(port) == (200, "OK")
        before = metrics(port)
        assert before["zsq_healthy"] == 1
        assert before["zsq_disk_full"] == 0
        assert before["zsq_disk_free_bytes"] > 50 * MIB
        ballast = small.inside / "ballast"
        fill(ballast, 4 * MIB)
        with pytest.raises(Refused, match=E_DISK_FULL) as refused:
            producer.publish_many("t", [BODY] * 4000)
        assert str(small.data_dir) in refused.value.text, "the error names the directory"
        assert "MiB free" in refused.value.text
        assert "zsq keeps a reserve of" in refused.value.text
        assert "Free space on this file system" in refused.value.text
        wait_for(lambda: "the disk is full" in ping(port)[1], 30, "bad health")
        code, said = ping(port)
        assert code == 500
        assert said.count("Free space on this file system") == 1
        assert said.startswith("NOK - the disk is full: publishes to topic t are refused: ")
        [topic] = admin.stats()["topics"]
        assert (topic["health"], topic["full"]) == (
            "publishes are refused: the disk is full",
            "disk",
        )
        found = metrics(port)
        assert found["zsq_healthy"] == 0
        assert found["zsq_disk_full"] == 1
        assert found["zsq_disk_free_bytes"] < 5 * MIB
        assert found["zsq_disk_reserve_bytes"] == 64 * MIB // 20
        assert found['zsq_topic_healthy{topic="t"}'] == 0
        assert found['zsq_topic_disk_refused_publishes_total{topic="t"}'] >= 1
        stats = admin.stats()
        assert stats["disk"]["full"] in stats["health"]
        assert stats["disk"]["refused_count"] >= 1
        assert [row["kind"] for row in stats["alarms"]] == ["free_bytes"]
        assert admin.overview()["broker"]["disk_full"]
        assert small.log.read_text().count("the disk is full") == 1, (
            "once at its begin, and then once a minute"
        )
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/pub?topic=t", BODY * 1000, timeout=10)
        ballast.unlink()
        wait_for(lambda: ping(port)[0] == 200, 20, "good health again, without a publish over HTTP")
        assert metrics(port)["zsq_disk_full"] == 0
        wait_for(
            lambda: "the disk has space again" in small.log.read_text(),
            30,
            "the line about the end",
        )
        recent = admin.stats()["recent_alarms"]
        assert [event["event"] for event in recent] == ["raised", "cleared"]


def test_publishes_to_a_topic_that_was_deleted_to_make_room_stay_counted(
    small: SmallDiskBroker,
) -> None:
    with zsq.Admin(small.tcp) as admin, zsq.Producer(small.tcp, timeout=20) as producer:
        publish_until_refused(producer)
        for _ in range(29):
            with pytest.raises(Refused, match=E_DISK_FULL):
                producer.publish_many("t", [BODY] * 1000)
        wait_for(
            lambda: admin.stats()["disk"]["full"] and admin.stats()["disk"]["refused_count"] == 30,
            20,
            "a count of 30",
        )
        admin.delete_topic("t", force=True)
        wait_for(
            lambda: "the disk has space again" in small.log.read_text(),
            20,
            "the line about the end",
        )
        assert "; 30 publishes were refused in that time" in small.log.read_text()
        assert admin.stats()["disk"]["refused_count"] == 30


@contextlib.contextmanager
def own_disk(folder: Path) -> Iterator[Path]:
    """Mount a file system of 64 MiB whose last byte any user may take."""
    image, place = folder / "image", folder / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(64 * MIB)
    make = subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=False)
    mount = ["mount", "-o", "loop", str(image), str(place)]
    if make.returncode or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system in a file needs root and loop devices")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def fill_to_the_last_byte(path: Path) -> None:
    def is_full() -> bool:
        for size in (MIB, 512):
            with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
        os.sync()  # what was removed may be free only now
        return os.statvfs(path).f_bavail == 0

    wait_for(is_full, what="a disk without a free byte")


@pytest.mark.parametrize("ends", ["stop", "kill"])
def test_a_broker_starts_and_is_drained_without_a_free_byte(tmp_path: Path, ends: str) -> None:
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("needs mkfs.ext4")
    with own_disk(tmp_path) as disk:
        broker = Broker(disk / "data")
        broker.log = tmp_path / "log"
        try:
            broker.start()
            with zsq.Admin(broker.tcp) as admin, zsq.Producer(broker.tcp) as producer:
                admin.create_channel("t", "c")
                producer.publish_many("t", [BODY] * 50)
            wait_for(lambda: (disk / "data" / "reserve").exists(), what="the reserve")
            if ends == "stop":
                assert broker.stop() == 0
            else:
                pids = [actor["pid"] for actor in broker.actors()]
                broker.signal_all(signal.SIGKILL)
                broker.wait_gone(pids)
            fill_to_the_last_byte(disk / "ballast")
            broker.start()
            consume(broker, 50)
            with zsq.Producer(broker.tcp) as producer, pytest.raises(Refused) as refused:
                producer.publish("t", BODY)
            assert refused.value.code == E_DISK_FULL
            (disk / "ballast").unlink()
            with zsq.Producer(broker.tcp) as producer:
                wait_for(lambda: accepted(producer), 30, "a publish after there is room")
        finally:
            broker.close()
