"""The run of the standby torture: two machines with one bucket, and clients that know both. In each
cycle something happens to the primary, in most kinds the standby takes over, and then the former
primary is its standby.

A *lifetime* in the history is here the time from one takeover to the next. A takeover may lose what
was acknowledged within the bound before it, as the loss of a disk may. These are further rules:

1. What a former primary has acknowledged, was sent before the takeover.
2. What a takeover loses is in the rescue files of the former primary, if its disk is not lost.
3. No offset that a rescue file has for certain is an offset of the new primary.
4. Publishes, transactions and reads are linearizable (`linear.py`), except publishes that a
   takeover loses, and what the former primary reads after the takeover. Those are counted.
"""

from __future__ import annotations

import contextlib
import math
import random
import shutil
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from support.broker import wait_for
from support.fault_proxy import REFUSE, SILENT, FaultProxyProcess
from support.torture.bucket import store as stores
from support.torture.bucket.checks import RECOVERY_S, TOPICS, BrokenPromise, BucketChecks
from support.torture.bucket.history import CLOCK_S, Sent, number_of
from support.torture.bucket.homes import START_S, Home
from support.torture.bucket.load import Load
from support.torture.processes import send
from support.torture.standby.asking import Looking, Reading
from support.torture.standby.linear import (
    NEVER,
    Look,
    Publish,
    Read,
    violations,
    wrong_versions,
)
from support.torture.standby.machines import PATIENCE_S, Machine, Watch, spread, until
from support.torture.standby.transacting import Transacting

import zsq

# The number of cycles of each kind among twenty.
SHARES: Final = {"kill": 4, "stop": 4, "partial": 3, "cut": 4, "handover": 3, "disk": 2}
SAFE: Final = 0
FAULTS: Final = 0.25  # the share of the faults of `store.plan`
KNOWN_S: Final = 90.0
TAKEOVER_S: Final = 120.0
LONG_S: Final = 30.0
LONG_SHARE: Final = 0.15
AT_ONCE_SHARE: Final = 0.2  # of the kills: the primary is started again before the patience is over
NO_TAKEOVER_S: Final = 3 * PATIENCE_S
HANDOVER_S: Final = 90.0
# What was read so long before a fault is in the bucket: the bound is 0.5 s. The pause before each
# fault is longer. Otherwise each cycle would read the log from its begin.
SHIPPED_S: Final = 2.5
PAUSE_S: Final = 3.0
WINDOW_S: Final = 60.0  # a check of the order looks at what was sent since then


_Answered = TypeVar("_Answered", Read, Look)


def plan(cycles: int, seed: int, kinds: Sequence[str]) -> list[str]:
    """Return the kind of each cycle. Each kind occurs by its share among twenty cycles."""
    chance = random.Random(seed)
    found: list[str] = []
    while len(found) < cycles:
        bag = [kind for kind in kinds for _ in range(SHARES[kind])]
        chance.shuffle(bag)
        found += bag
    return found[:cycles]


class StandbyTorture(BucketChecks):
    """One run in `folder`, with a cycle of each of these kinds. Each cycle prints a line."""

    behind_s = SHIPPED_S

    def __init__(self, folder: Path, kinds: Sequence[str], seed: int) -> None:
        super().__init__(folder, seed)
        self._kinds = kinds
        self._server_folder = folder / "server"
        self._lifetime = 1
        self._took_over_s: dict[int, float] = {}  # lifetime -> when it began
        self._handled = 1  # the newest lifetime whose takeover the reads know
        self._disks_lost: set[int] = set()
        self._faults_s: dict[int, float] = {}  # lifetime -> when something happened to it
        self._unexplained: list[Sent] = []
        self._rescued: set[int] = set()
        self._explained = 0
        self.takeovers: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.durable_s: defaultdict[str, list[float]] = defaultdict(list)
        self.machines: list[Machine] = []
        self._readings: list[Reading] = []
        self._transactions: list[Transacting] = []
        self._looking: list[Looking] = []

    # The run

    def run(self) -> None:
        """Run all cycles. Raise `BrokenPromise` at the first broken promise."""
        with contextlib.ExitStack() as stack:
            self.store = stack.enter_context(stores.running(self._server_folder, self.seed))
            faults = stores.fewer(stores.plan(self.seed), FAULTS)
            self.store.proxy.set_faults(faults)
            other = FaultProxyProcess(
                self.store.direct["AWS_ENDPOINT_URL"], replace(faults, seed=self.seed + 1)
            )
            proxies = (self.store.proxy, stack.enter_context(other))
            self.machines = [
                Machine(self.folder, number, proxy, self.store)
                for number, proxy in enumerate(proxies, 1)
            ]
            self._homes = [machine.home for machine in self.machines]
            self._primary = self.machines[0]
            self._places = {1: self._primary.url}  # lifetime -> the address of its primary
            self._watch = Watch(self.machines, self._taken_over)
            try:
                self._begin()
                self._run_cycles(self._kinds)
                self._end()
            finally:
                for proxy in proxies:
                    with contextlib.suppress(Exception):
                        self.faults.update(proxy.counts())
                for asking in self._asking:
                    asking.end()
                self._watch.end()
                self._close()

    @property
    def url(self) -> str:
        return ",".join(machine.url for machine in self.machines)

    def _serving(self) -> Iterable[Home]:
        return [machine.home for machine in self.machines if machine.is_up]

    @property
    def _asking(self) -> list[Reading | Looking]:
        return [*self._readings, *self._looking]

    @property
    def takeovers_outside(self) -> int:
        """The number of takeovers that no cycle wanted."""
        return self._lifetime - 1 - sum(self.takeovers.values())

    def _standby(self) -> Machine:
        return next(machine for machine in self.machines if machine is not self._primary)

    def _begin(self) -> None:
        """Start both. The primary starts twice, because it looks for standbys at its start."""
        one, two = self.machines
        self.home = one.home
        self._watch.start()
        one.launch("serve")
        self._await_state(one, "primary")
        self._create_topics()
        wait_for(self._is_shipped, RECOVERY_S, "the topics are in the bucket")
        one.is_up = False
        assert one.home.broker.stop() == 0
        two.launch("standby")
        self._await_state(two, "following")
        one.launch("serve")
        self._await_state(one, "primary")
        self.load = self._load(self.url)
        self.load.start_consumers()
        self._readings = [Reading(name, self.url) for name, _ in TOPICS]
        self._looking = [Looking(name, self.url) for name, _ in TOPICS]
        for asking in self._asking:
            asking.start()
        for topic in range(len(TOPICS)):
            self._transactions.append(Transacting(self.load, topic, self.url, self.seed))
            self.load.start(self._transactions[-1])
        self._recovered(time.monotonic())

    def _load(self, url: str) -> Load:
        load = Load(self.history, url, self._lifetime, self.random.randrange(1 << 32))
        self._loads.append(load)
        load.start_producers()
        return load

    def _taken_over(self, machine: Machine) -> None:
        """Note that this machine takes over now. The watch calls it."""
        with self.history.lock:
            self.history.lose_disk(self._lifetime)
            self._lifetime += 1
            self._took_over_s[self._lifetime] = time.monotonic()
            self._places[self._lifetime] = machine.url
            self.load.lifetimes[machine.url] = self._lifetime
            self._primary, self.home = machine, machine.home

    # Waiting

    def _await_state(self, machine: Machine, state: str) -> None:
        if not until(lambda: self._is_broken() or machine.state == state, START_S):
            raise BrokenPromise(f"{machine.home.folder} is {machine.state}, and not {state}")
        self._complain()

    def _is_broken(self) -> bool:
        try:
            self._complain()
        except BrokenPromise:
            return True
        return False

    def _await_takeover(self, before: int) -> None:
        if not until(lambda: self._is_broken() or self._lifetime > before, TAKEOVER_S):
            raise BrokenPromise(f"no standby has taken over within {TAKEOVER_S:g} s")
        self._complain()

    def _await_roles(self) -> None:
        """Wait until the primary knows its standby, and says so in its ticks."""

        def are_known() -> bool:
            if self._is_broken():
                return True
            if self._primary.state != "primary" or self._standby().state != "following":
                return False
            with (
                contextlib.suppress(zsq.ZsqError),
                zsq.Admin(self._primary.url, timeout=5) as admin,
            ):
                return int(admin.stats()["bucket"]["standbys"]) >= 1
            return False

        began_s = time.monotonic()
        if not until(are_known, KNOWN_S):
            states = [f"{one.home.folder.name}: {one.state}" for one in self.machines]
            raise BrokenPromise(f"the roles are not clear after {KNOWN_S:g} s: {states}")
        self._complain()
        self.counts["waited for roles ms"] += int((time.monotonic() - began_s) * 1000)
        self._pause(PAUSE_S, PAUSE_S)

    def _is_shipped(self) -> bool:
        with contextlib.suppress(zsq.ZsqError):
            return not any(row["ship_lag_s"] for row in self._stats())
        return False

    # Cycles

    def _cycle(self, cycle: int, kind: str) -> None:
        self._await_roles()
        self._account(is_final=True)
        self._pause(0.0, 0.8)
        before, old, at = self._lifetime, self._primary, time.monotonic()
        acknowledged = self.history.counts["acknowledged"]
        self._faults_s[before] = at
        carry_out = {
            "kill": self._kill,
            "stop": self._stop,
            "partial": self._partial,
            "cut": self._cut,
            "handover": self._handover,
            "disk": self._disk,
        }
        text = carry_out[kind](old, before)
        self._recovered(time.monotonic())
        self._await_state(self._standby(), "following")
        self.read()
        self._account(is_final=False)
        durable_s = self._durable_s(before)
        if durable_s is not None:
            self.durable_s[kind].append(durable_s)
        self.takeovers[kind] += self._lifetime - before
        self.cycles_done[kind] += 1
        counts = self.history.counts
        first = "no takeover" if durable_s is None else f"first durable publish {durable_s:5.2f} s"
        print(
            f"{cycle:5} {kind:9} at {at - self.began_s:7.2f} s, took {time.monotonic() - at:5.2f} "
            f"s: {first} ({text}); acknowledged {counts['acknowledged'] - acknowledged:5,}, in all "
            f"{counts['acknowledged']:,}, lost within the bound "
            f"{counts['lost within the bound']:,}, rescued {self.counts['rescued']:,}",
            flush=True,
        )

    def _durable_s(self, before: int) -> float | None:
        """Return how long after the fault the first publish after the takeover was in the bucket.
        Return None without a takeover.
        """
        first_s = self.history.topics[SAFE].first_s.get(before + 1)
        return None if first_s is None else first_s - self._faults_s[before]

    def _kill(self, old: Machine, before: int) -> str:
        old.kill()
        if self.random.random() < AT_ONCE_SHARE:
            self._pause(0.0, PATIENCE_S)
            old.launch("standby")
            text = "killed, and started again at once"
            until(lambda: old.state in ("primary", "following"), START_S)
            self._complain()
            return text
        self._await_takeover(before)
        self._pause(0.0, PATIENCE_S)
        old.launch("standby")
        return "killed"

    def _disk(self, old: Machine, before: int) -> str:
        old.kill()
        self._disks_lost.add(before)
        shutil.rmtree(old.home.folder)
        self._await_takeover(before)
        old.launch("standby")
        return "killed, and its disk lost"

    def _stop(self, old: Machine, before: int) -> str:
        """Stop all processes of the primary for some time. Clients that know only this one go on
        to publish there.
        """
        seconds = LONG_S if self.random.random() < LONG_SHARE else spread(self.random, 2.0, 4.0)
        pinned = self._pin(old)
        self._faults_s[before] = stopped_s = time.monotonic()
        old.home.broker.signal_all(signal.SIGSTOP)
        try:
            self._await_takeover(before)
            late = self._pin(old, before, waits=False)
            left_s = seconds - (time.monotonic() - stopped_s)
            self._pause(max(0.0, left_s), max(0.0, left_s))
        finally:
            old.home.broker.signal_all(signal.SIGCONT)
        text = f"stopped for {time.monotonic() - stopped_s:.1f} s"
        self._await_state(old, "following")
        self._unpin(pinned, late)
        return text

    def _cut(self, old: Machine, before: int) -> str:
        """Cut the primary's path to the bucket. Its clients still reach it."""
        how = self.random.choice((REFUSE, SILENT))
        pinned = self._pin(old)
        self._faults_s[before] = cut_s = time.monotonic()
        old.proxy.away(how)
        try:
            self._await_takeover(before)
            late = self._pin(old, before, waits=False)
            seconds = spread(self.random, 0.0, 4.0)
            self._pause(seconds, seconds)
        finally:
            old.proxy.back()
        text = f"cut ({how}) for {time.monotonic() - cut_s:.1f} s"
        self._await_state(old, "following")
        self._unpin(pinned, late)
        return text

    def _partial(self, old: Machine, before: int) -> str:
        """Stop one process of the primary for some time. A standby takes over if it is the one
        that ships.
        """
        kind = self.random.choice(("archive", "archive", "topic"))
        found = [process for process in old.home.killer.living() if process.kind == kind]
        if not found:
            return f"no {kind} process"
        process = self.random.choice(sorted(found, key=lambda one: one.title))
        pinned = self._pin(old)
        self._faults_s[before] = time.monotonic()
        send(process, signal.SIGSTOP)
        try:
            until(lambda: self._lifetime > before or self._is_broken(), NO_TAKEOVER_S)
            self._pause(0.0, PATIENCE_S)
        finally:
            send(process, signal.SIGCONT)
        self._complain()
        if self._lifetime > before:
            self._await_state(old, "following")
        self._unpin(pinned)
        return f"stopped {process.title.removeprefix('zsq: ')}"

    def _handover(self, old: Machine, before: int) -> str:
        log = self.folder / "handover.log"
        command = stores.Command(log, self.store.direct, "--url", self.url, "handover")
        if not command.wait(HANDOVER_S):
            command.kill()
            raise BrokenPromise(f"zsq handover did not end within {HANDOVER_S:g} s")
        if command.code != 0:
            self.counts["handovers that failed"] += 1
            return f"handover failed: {command.output().strip()}"
        self._await_takeover(before)
        self._await_state(old, "following")
        return "handed over"

    def _pin(self, old: Machine, lifetime: int = 0, *, waits: bool = True) -> Load:
        """Start producers that know only this broker."""
        load = self._load(old.url)
        load.lifetime = lifetime or self._lifetime
        if waits:
            until(lambda: not load.silent(0.0) or self._is_broken(), RECOVERY_S)
            self._complain()
        return load

    def _unpin(self, *loads: Load) -> None:
        for load in loads:
            self._end_load(load)

    # Checks

    def read(self) -> None:
        """Read what is new in all topics. After a takeover, read again what was before it."""
        while self._handled < self._lifetime:
            took_s = self._took_over_s[self._handled + 1]
            self._lose(self._handled, min(took_s, self._faults_s.get(self._handled, took_s)))
            self._handled += 1
        super().read()
        for topic in self.history.topics:
            # What survived a takeover must survive each later one too.
            for sent in topic.checked:
                sent.lifetime = max(sent.lifetime, self._handled)

    def _account(self, *, is_final: bool) -> None:
        """Check the rules of this file. `is_final`: all rescue files are written."""
        for machine in self.machines:
            self.counts["rescued"] += machine.rescued(self._saw_rescued)
        self._check_late()
        self._check_losses(is_final=is_final)
        if not is_final:
            self._check_order()
        self._complain()

    def _saw_rescued(self, name: str, offset: int, body: bytes, is_certain: bool) -> None:
        of = next(topic for topic in self.history.topics if topic.name == name)
        number = number_of(body)
        self._rescued.add(number)
        at = of.stored.get(number, -1)
        if is_certain and offset >= 0 and at == offset:
            self.history.complain(
                f"{name}: message {number} was set aside as lost, and the log has it at {offset}"
            )

    def _check_late(self) -> None:
        for topic in self.history.topics:
            for lifetime, newest_s in list(topic.newest_s.items()):
                taken_s = self._took_over_s.get(lifetime + 1, math.inf)
                if newest_s > taken_s:
                    self.history.complain(
                        f"{topic.name}: the former primary acknowledged a message that was sent "
                        f"{newest_s - taken_s:.3f} s after the takeover {lifetime + 1}"
                    )

    def _check_losses(self, *, is_final: bool) -> None:
        losses = self.history.losses
        for of, sent in losses[self._explained :]:
            taken_s = self._took_over_s.get(sent.lifetime + 1, math.inf)
            if sent.acked_s > taken_s:
                self.counts["lost, with an answer that came late"] += sent.count
                if sent.sent_s > self._faults_s.get(sent.lifetime, math.inf) + CLOCK_S:
                    self.history.complain(
                        f"{of.name}: {sent} was acknowledged {sent.acked_s - taken_s:.3f} s after "
                        "the takeover, and the new primary does not have it"
                    )
            if sent.lifetime not in self._disks_lost:
                self._unexplained.append(sent)
        self._explained = len(losses)
        self._unexplained = [
            sent for sent in self._unexplained if not self._rescued >= set(sent.numbers)
        ]
        if is_final and self._unexplained:
            self.history.complain(
                f"{len(self._unexplained)} lost publishes are in no rescue file, such as "
                f"{self._unexplained[0]}"
            )
            self._unexplained = []

    def _check_order(self) -> None:
        since_s = time.monotonic() - WINDOW_S
        lost = {number for _, sent in self.history.losses for number in sent.numbers}
        for topic, reading in enumerate(self._readings):
            of = self.history.topics[topic]
            publishes = [
                Publish(
                    sent.producer, sent.number, sent.count, sent.sent_s, sent.acked_s or NEVER,
                    sent.offset,
                )
                for load in self._loads
                for sent in load.sent(topic)
                if sent.sent_s > since_s and not sent.is_delayed
            ]  # fmt: skip
            reads = self._without_stale(reading.take())
            # A message that was read before a takeover, and was not acknowledged, may be lost. Then
            # its producer sends it again, and it has another offset.
            rows = {row for read in reads for row in read.rows}
            lost |= {number for offset, number in rows if of.stored.get(number) != offset}
            for text in violations(publishes, reads, lost):
                self.history.complain(f"{of.name}: {text}")
            self.counts["reads checked"] += len(reads)
            self.counts["publishes checked"] += len(publishes)
            looks = self._without_stale(self._looking[topic].take())
            for text in wrong_versions(tuple(self._transactions[topic].commits), looks):
                self.history.complain(f"{of.name}: {text}")
            self.counts["questions for a version"] += len(looks)

    def _without_stale(self, reads: list[_Answered]) -> list[_Answered]:
        """Count what a former primary answered after the takeover. Return the others."""
        spans = [
            (begun_s, self._took_over_s.get(lifetime + 1, math.inf), self._places[lifetime])
            for lifetime, begun_s in [(1, -math.inf), *self._took_over_s.items()]
        ]
        found = [
            read
            for read in reads
            if any(
                place == read.place and begun_s <= read.ended_s <= ended_s
                for begun_s, ended_s, place in spans
            )
        ]
        self.counts["reads answered by a former primary"] += len(reads) - len(found)
        return found

    def _end(self) -> None:
        """Check everything, read the whole log again, and stop both brokers."""
        standby = self._standby()
        self._await_state(standby, "following")
        for machine in self.machines:
            machine.proxy.heal()
        for asking in self._asking:
            asking.end()
        standby.is_up = False
        if (code := standby.home.broker.stop()) != 0:
            raise BrokenPromise(f"the standby's last end had code {code}")
        super()._end()
        for machine in self.machines:
            machine.is_up = False
        self._account(is_final=True)
