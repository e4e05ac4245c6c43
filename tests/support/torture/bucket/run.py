"""The run of the bucket torture: a broker with a bucket behind a fault proxy, and its clients. Each
cycle kills processes, or loses the disk, and then checks all promises (see `history.py`).
"""

from __future__ import annotations

import random
import select
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from support.broker import wait_for
from support.fault_proxy import REFUSE, SILENT
from support.torture.bucket import store as stores
from support.torture.bucket.checks import RECOVERY_S, BucketChecks
from support.torture.bucket.homes import LAG_S, Home, Restores
from support.torture.bucket.load import DELAY_S_MAX, Load

# The number of cycles of each kind among twenty.
SHARES: Final = {"process": 8, "everything": 4, "disk": 5, "two": 3}
# The number of kills of each process among the kills of a process.
PROCESSES: Final = {
    "topic": 5, "archive": 5, "channel": 2, "gateway": 1, "scan_worker": 1, "scan_loop": 1, "alarm_teller": 1, "storm": 2,
    "supervisor": 2, "forkserver": 1,
}  # fmt: skip
ENDS_BROKER: Final = ("supervisor", "forkserver")
AWAY_SHARE: Final = 0.15  # the share of cycles in which the store is away for some time


def plan(cycles: int, seed: int, kinds: Sequence[str]) -> list[str]:
    """Return the kind of each cycle. Each kind occurs by its share among twenty cycles."""
    chance = random.Random(seed)
    found: list[str] = []
    while len(found) < cycles:
        bag = [kind for kind in kinds for _ in range(SHARES[kind])]
        chance.shuffle(bag)
        found += bag
    return found[:cycles]


class BucketTorture(BucketChecks):
    """One run in `folder`, with a cycle of each of these kinds. Each cycle prints a line."""

    def __init__(self, folder: Path, kinds: Sequence[str], seed: int) -> None:
        super().__init__(folder, seed)
        self._kinds = kinds
        self._server_folder = folder / "server"
        self.kills: Counter[str] = Counter()
        self.restored: Counter[str] = Counter()
        self._lifetime = 0

    # Cycles

    def run(self) -> None:
        """Run all cycles. Raise `BrokenPromise` at the first broken promise."""
        with stores.running(self._server_folder, self.seed) as self.store:
            self.restores = Restores(self.store, self.folder, self.random, self.restored)
            try:
                self._begin()
                self._run_cycles(self._kinds)
                self._end()
            finally:
                self.faults.update(self.store.proxy.counts())
                self._close()

    def _home(self, port: int = 0) -> Home:
        """Return a new home, whose data directory does not exist yet."""
        self._lifetime += 1
        home = Home(self.folder, self._lifetime, port, self.random.randrange(1 << 32))
        self._homes.append(home)
        return home

    def _load(self, home: Home) -> Load:
        load = Load(self.history, home.url, home.lifetime, self.random.randrange(1 << 32))
        self._loads.append(load)
        load.start_producers()
        return load

    def _begin(self) -> None:
        self.home = self._home()
        self.home.start()
        self._create_topics()
        self.load = self._load(self.home)
        self.load.start_consumers()
        self._recovered(time.monotonic())
        # The channels are in the bucket when a second has passed.
        self._pause(4 * LAG_S, 4 * LAG_S)

    def _cycle(self, cycle: int, kind: str) -> None:
        self._pause(0.0, 0.8)
        at, acknowledged = time.monotonic(), self.history.counts["acknowledged"]
        away = self._take_away()
        carry_out = {
            "process": self._process,
            "everything": self._everything,
            "disk": self._disk,
            "two": self._two,
        }
        text = carry_out[kind]()
        took = self._recovered(time.monotonic())
        self.read()
        self._complain()
        self.recoveries.append(took)
        self.cycles_done[kind] += 1
        counts = self.history.counts
        print(
            f"{cycle:5} {kind:10} at {at - self.began_s:7.2f} s, took "
            f"{time.monotonic() - at:5.2f} s: {text}{away}, served after {took:.1f} s; "
            f"acknowledged {counts['acknowledged'] - acknowledged:5,}, in all "
            f"{counts['acknowledged']:,}, "
            f"checked {counts['checked']:,}, lost within the bound "
            f"{counts['lost within the bound']:,}, finished {counts['finished']:,}",
            flush=True,
        )

    def _take_away(self) -> str:
        """Take the store away for some time, in some cycles, until just before the kill."""
        if self.random.random() >= AWAY_SHARE:
            return ""
        how, seconds = self.random.choice((REFUSE, SILENT)), self.random.uniform(0.2, 1.5)
        self.store.proxy.away(how)
        try:
            self._pause(seconds, seconds)
        finally:
            self.store.proxy.back()
        return f", store away ({how}) for {seconds:.1f} s before"

    # The kinds of cycles

    def _process(self) -> str:
        """Kill one process. The broker goes on by itself, or it is started again."""
        kinds = list(PROCESSES)
        (kind,) = self.random.choices(kinds, list(PROCESSES.values()))
        done = self.home.killer.carry_out(kind)
        if done is None:  # none of this kind lives, or the broker would not restart it again
            return self._everything()
        self.kills[kind] += 1
        if kind in ENDS_BROKER:
            self.home.killer.start_again()
        return f"killed {done.text}"

    def _everything(self) -> str:
        text = f"killed all {self.home.kill_everything()} processes"
        self.kills["everything"] += 1
        return text + self._start(self.home)

    def _start(self, home: Home) -> str:
        """Start the broker. In some cases, kill it once more during its start and takeover."""
        killed = 0
        while killed < 2 and self.random.random() < 0.3:
            home.launch()
            self._pause(0.2, 2.0)
            home.kill_everything()
            killed += 1
        self.kills["everything during the start"] += killed
        home.start()
        return f", {killed} times more during the start" if killed else ""

    def _disk(self) -> str:
        """Kill all processes, delete the data directory, and restore it elsewhere."""
        text = ""
        if self.random.random() < 0.4:
            # A broker that just started again must keep the bound too.
            done = self.home.killer.carry_out(self.random.choice(("topic", "archive")))
            if done is not None:
                self.kills[done.text.split()[0]] += 1
                text = f"killed {done.text}, "
                self._pause(0.0, 2.5)
        old, lost_s = self.home, time.monotonic()
        number = old.kill_everything()
        turns = self.load.turns
        wait_for(lambda: self.load.turns > turns + 1, 30, "the end of all answers")
        shutil.rmtree(old.folder)
        self.kills["everything, disk lost"] += 1
        self.home = self._home(old.broker.port)
        restored = self.restores.restore(self.home.folder, killed=self.random.random() < 0.35)
        self._lose(old.lifetime, lost_s)
        self.load.lifetime = self.home.lifetime
        return f"{text}killed all {number} and lost the disk, {restored}" + self._start(self.home)

    def _two(self) -> str:
        """Restore the broker while the old one pauses, let that go on, and see which one wins.

        The old one pauses because its producers do, or because all its processes are stopped.
        """
        old, old_load, lost_s = self.home, self.load, time.monotonic()
        old_load.stop_consumers()
        if is_stopped := self.random.random() < 0.5:
            old.stop()
            go_on, text = old.go_on, "two brokers, the old one stopped"
        else:
            self._settle()
            go_on, text = old_load.pausing.clear, "two brokers, the old one without load"
        home = self._home()
        text = f"{text}, {self.restores.restore(home.folder, killed=False)}"
        home.launch()
        if self.random.random() < 0.3:  # the old broker may go on before the takeover
            self._pause(0.0, 2.5)
            go_on()
        home.broker.wait_ready(RECOVERY_S)
        load, since = self._load(home), time.monotonic()
        wait_for(
            lambda: is_replaced(home, load) or not load.silent(since) or self.history.complaints,
            RECOVERY_S,
            "an answer of the restored broker",
        )
        go_on()
        if is_replaced(home, load):
            self._end_load(load)
            home.lose()
            old_load.start_consumers()
            self.kills["restored broker, refused"] += 1
            return f"{text}: the log went on meanwhile, and the old one keeps it"
        self._lose(old.lifetime, lost_s)
        load.start_consumers()
        wait_for(
            lambda: is_replaced(old, old_load) or self.history.complaints,
            RECOVERY_S,
            "the fence of the old broker",
        )
        self._pause(0.0, 1.0)
        self.home, self.load = home, load
        old.lose()
        self._end_load(old_load)
        self.kills[f"old broker, {'stopped and ' if is_stopped else ''}fenced"] += 1
        return f"{text}: the restored one took over, the old one is fenced"

    def _settle(self) -> None:
        """Pause the producers until all is answered and, in most cases, in the bucket."""
        self.load.pausing.set()
        wait_for(lambda: self.load.is_idle or self.history.complaints, RECOVERY_S, "all answers")
        deadline = time.monotonic() + DELAY_S_MAX + 2.0
        while time.monotonic() < deadline and not self._is_shipped():
            select.select([], [], [], 0.05)

    def _is_shipped(self) -> bool:
        return not any(row["ship_lag_s"] or row["delayed_count"] for row in self._stats())


def is_replaced(home: Home, load: Load) -> bool:
    """Return True if a broker knows that another one has taken over. It stops then."""
    return bool(load.counts["fenced"]) or b"is not primary any more" in home.broker.log.read_bytes()
