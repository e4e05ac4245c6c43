"""`scripts/torture --drain`: drain, balance and forget brokers of a cluster, and kill brokers and
commands at any step. Clients publish all the time.

Each turn makes the parts move in one of these ways, with kills at random moments:

| way | what is killed |
|---|---|
| drain | the command, the broker that drains, or another one |
| balance | the command, or any broker |
| auto | any broker |
| forget | a broker for ever, with its disk, and the command. Then a new broker joins at its address |

All topics have --sync bucket, so nothing may be lost even when a disk is lost. At the end, the log
of all parts must have each acknowledged message exactly once, and each key in order.
"""

from __future__ import annotations

import random
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from support.broker import Broker, wait_for
from support.cluster import Cluster, running
from support.cluster_traffic import Traffic, check_log

import zsq
from zsq.storage.bucket.bucket_url import parse_bucket_url
from zsq.storage.bucket.object_store import open_bucket
from zsq.storage.cluster.directory import Directory
from zsq.storage.cluster.directory_log import DirectoryLog
from zsq.transport.errors import ZsqError

PARTS = 8
BROKERS = 3
TURN_S = 180.0
PAUSE_S = 0.3
WAYS = ("drain", "drain", "balance", "auto", "forget")


class DrainTorture:
    """A run until `moves` parts have changed their brokers."""

    def __init__(self, folder: Path, moves: int, seed: int, ways: tuple[str, ...] = WAYS) -> None:
        self.folder, self.moves, self.ways = folder, moves, ways
        self.chance = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()
        self.moved = 0
        self.acknowledged = 0

    def run(self) -> None:
        """Raises `AssertionError` if something was lost, stored twice, or does not end."""
        with running(self.folder, "--sync", "bucket", count=BROKERS) as cluster:
            with zsq.Admin(cluster.url) as admin:
                admin.create_topic("t", parts=PARTS, sync="bucket")
            with Traffic(cluster, "t") as traffic:
                while self.moved < self.moves:
                    way = self.chance.choice(self.ways)
                    getattr(self, f"_{way}")(cluster)
                    self.done[way] += 1
                    self.moved = moves_of(directory_of(cluster))
                    traffic.goes_on()
                    assert not traffic.failures, traffic.failures
                    print(
                        f"{way}: {self.moved} moves, {sum(self.kills.values())} kills, "
                        f"{len(traffic.acknowledged):,} messages",
                        flush=True,
                    )
            self.acknowledged = len(traffic.acknowledged)
            check_log(cluster, "t", traffic.acknowledged)

    # Ways

    def _drain(self, cluster: Cluster) -> None:
        number = self.chance.choice(live(cluster))
        drain = ("broker", "drain", str(number), "--concurrency", str(self.chance.randrange(1, 4)))
        self._with_kills(cluster, drain)
        self._order(cluster, *drain)  # it may have been killed before it ordered anything
        assert not directory_of(cluster).has_parts(number)
        self._order(cluster, "broker", "drain", str(number), "--undo")

    def _balance(self, cluster: Cluster) -> None:
        balance = ("cluster", "balance", "--yes", "--concurrency", "2")
        self._with_kills(cluster, balance)
        self._order(cluster, *balance)
        wait_for(lambda: is_balanced(cluster), TURN_S, "the balance")

    def _auto(self, cluster: Cluster) -> None:
        self._order(cluster, "cluster", "auto", "on", "--concurrency", "2")
        self._with_kills(cluster, None)
        wait_for(lambda: is_balanced(cluster), TURN_S, "the balance")
        self._order(cluster, "cluster", "auto", "off")

    def _forget(self, cluster: Cluster) -> None:
        number = self.chance.choice(live(cluster))
        uuid = directory_of(cluster).brokers[number].uuid
        lost = next(one for one in cluster.brokers if uuid_of(one) == uuid)
        lost.signal_all(signal.SIGKILL)
        self.kills["broker, for ever"] += 1
        cluster.brokers.remove(lost)
        lost.close()
        shutil.rmtree(lost.data_dir)
        forget = ("broker", "forget", str(number), "--yes")
        self._with_kills(cluster, forget)
        self._order(cluster, *forget)
        new = cluster.add()
        new.port = lost.port  # clients know only the addresses of their URL
        cluster.brokers.append(new.start())
        wait_for(lambda: len(live(cluster)) == BROKERS, TURN_S, "a new broker in the directory")

    # Kills

    def _with_kills(self, cluster: Cluster, command: tuple[str, ...] | None) -> None:
        """Run a command, and kill it and brokers at random moments."""
        process = None if command is None else self._begin(cluster, command)
        for _ in range(self.chance.randrange(1, 3)):
            pause(self.chance.random() * 6)
            if process is not None and self.chance.random() < 0.5:
                process.kill()
                self.kills["command"] += 1
            if self.chance.random() < 0.8:
                broker = self.chance.choice(cluster.brokers)
                broker.signal_all(signal.SIGKILL)
                self.kills["broker"] += 1
                broker.start()
        if process is not None:
            process.kill()
            process.wait()

    def _begin(self, cluster: Cluster, command: tuple[str, ...]) -> subprocess.Popen[bytes]:
        arguments = [sys.executable, "-m", "zsq", "--url", cluster.url, *command]
        with (self.folder / "commands.log").open("ab") as log:
            return subprocess.Popen(arguments, stdout=log, stderr=log)

    def _order(self, cluster: Cluster, *command: str) -> None:
        """Run a command until it succeeds: a broker may be on its way up."""

        def is_done() -> bool:
            return self._begin(cluster, command).wait(TURN_S) == 0

        wait_for(is_done, TURN_S, f"zsq {' '.join(command)}")


def pause(seconds: float) -> None:
    select.select([], [], [], seconds)


def uuid_of(broker: Broker) -> str:
    with zsq.Admin(broker.tcp, timeout=60) as admin:
        return str(admin.stats()["uuid"])


def directory_of(cluster: Cluster) -> Directory:
    log = DirectoryLog(open_bucket(parse_bucket_url(cluster.place), call_s=10.0))
    log.read_on()
    return log.directory


def live(cluster: Cluster) -> list[int]:
    return [broker.number for broker in directory_of(cluster).brokers if not broker.gone]


def is_balanced(cluster: Cluster) -> bool:
    pause(PAUSE_S)
    directory = directory_of(cluster)
    topic = directory.topics["t"]
    counts = Counter(topic.parts)
    spread = [counts[number] for number in live(cluster)]
    moves = any(hold.to >= 0 or hold.origin >= 0 for hold in topic.holds.values())
    return not moves and max(spread) - min(spread) <= 1


def moves_of(directory: Directory) -> int:
    """Return how often parts were given or reclaimed."""
    return sum(hold.number for hold in directory.topics["t"].holds.values())


def main(folder: Path, moves: int, seed: int) -> int:
    """Run, print a summary, and return the exit code."""
    torture = DrainTorture(folder, moves, seed)
    began = time.monotonic()
    try:
        torture.run()
    except (AssertionError, ZsqError, subprocess.TimeoutExpired) as error:
        print(f"VIOLATION: {error}\nseed {seed}, data and logs stay in {folder}", flush=True)
        return 1
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(torture.done.items()))
    kills = ", ".join(f"{kind} {count}" for kind, count in sorted(torture.kills.items()))
    print(
        f"moves {torture.moved} in the turns {kinds}\nkills: {kills}\n"
        f"acknowledged {torture.acknowledged:,} messages, lost 0, stored twice 0\n"
        f"{time.monotonic() - began:.0f} s, seed {seed}",
        flush=True,
    )
    return 0
