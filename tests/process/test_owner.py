"""Test that only a topic's process ever has that topic's files open or mapped, whatever the other
processes do in the meantime.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from support.broker import Broker, kill, wait_for

import zsq
from zsq.transport.block.block import pack


def held(pid: int, folder: Path) -> set[str]:
    """Return the paths below `folder` that the process has open or mapped."""
    found: set[str] = set()
    with contextlib.suppress(OSError):  # the process may have ended in the meantime
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            found.add(line.split(maxsplit=5)[-1])
    return {path for path in found if path.startswith(f"{folder}/")}


def processes() -> Iterator[tuple[int, str]]:
    """Yield all processes of this machine that may be inspected, with their titles."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                yield int(name), title_of(int(name))


def title_of(pid: int) -> str:
    return (
        Path(f"/proc/{pid}/cmdline")
        .read_bytes()
        .replace(b"\0", b" ")
        .decode(errors="replace")
        .strip()
    )


class Watch:
    """A thread that inspects every process again and again. It records which process held files of
    which topic's folder.
    """

    def __init__(self, topics: Path) -> None:
        self.holders: dict[tuple[str, str], set[str]] = {}  # (title, folder) -> paths
        self.rounds = 0
        self._topics = topics
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            for pid, title in processes():
                paths = held(pid, self._topics)
                # A process that is being started had no title a moment ago.
                with contextlib.suppress(OSError):
                    title = title or title_of(pid) if paths else title
                for path in paths:
                    # A topic's folder is created as "NNN.tmp" and then renamed. The inspection may
                    # happen between the two.
                    folder = (
                        path.removeprefix(f"{self._topics}/").split("/")[0].removesuffix(".tmp")
                    )
                    self.holders.setdefault((title or str(pid), folder), set()).add(path)
            self.rounds += 1

    def close(self) -> None:
        self._stop.set()
        self._thread.join(10)


def test_only_storage_ever_has_a_topics_files(own_broker: Broker) -> None:
    watch = Watch(own_broker.data_dir / "topics")
    try:
        use(own_broker, "clicks")
        use(own_broker, "orders")
        kill(next(actor["pid"] for actor in own_broker.actors() if actor["name"] == "topic clicks"))
        use(own_broker, "clicks")
        rounds = watch.rounds
        wait_for(lambda: watch.rounds > rounds + 3, what="a few more looks")
    finally:
        watch.close()
    holders = {title.removeprefix("zsq: ") for title, _ in watch.holders}
    assert holders == {"topic clicks", "topic orders"}
    folders = {
        title: {folder for other, folder in watch.holders if other == title}
        for title, _ in watch.holders
    }
    assert all(len(found) == 1 for found in folders.values()), folders
    seen = {Path(path).name.split(".")[-1] for paths in watch.holders.values() for path in paths}
    assert {"lock", "chunk", "mdb"} <= seen  # otherwise the inspection itself would not work


def use(broker: Broker, topic: str) -> None:
    """Do everything that makes other processes need data from files: a backlog, redeliveries,
    seeks, reads by offset, staging, and statistics.
    """
    bodies = [b"%01000d" % number for number in range(1000)]
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.tcp) as producer:
        admin.create_channel(topic, "c")
        for _ in range(8):
            producer.publish_many(topic, bodies)
        with zsq.Consumer(topic, "c", url=broker.ipc, ready=500) as consumer:
            for _ in range(4):
                batch = consumer.receive_batch(10)
                assert batch is not None
                batch.requeue(delay=0.05)
                batch = consumer.receive_batch(10)
                assert batch is not None
                batch.finish()
            consumer.flush()
        admin.seek(topic, "c", 0)
        with zsq.Reader(topic, url=broker.tcp) as reader:
            assert reader.read(10).blocks
            assert reader.offset_at(0) == 0
        app = os.urandom(4).hex()
        with (
            zsq.StageWriter(topic, app, 1, url=broker.tcp) as writer,
            zsq.StageCommitter(topic, url=broker.tcp) as committer,
        ):
            writer.push(pack(bodies))
            committer.commit(app, 1, [writer.seal()])
        admin.empty(topic, "c")
        admin.stats()
