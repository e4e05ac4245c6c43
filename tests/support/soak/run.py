"""The soak: a real broker under a mixed load for minutes or hours, with kills at intervals. A
ledger records what happened to every message. A message without an explanation is a violation: the
broker has broken a promise.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from support.broker import Broker
from support.soak import flat
from support.soak.audit import Audit
from support.soak.clients import PACE_S, Group, Publishing
from support.soak.ledger import Ledger
from support.soak.operator import Operator, until_done
from support.torture.kills import Killer
from support.torture.processes import Process, await_end, holders_of, of_sessions

import zsq

# After the first third of the run, no process of the steady topic is killed, so that a leak has
# time to show.
STEADY, ROUGH = (
    "steady",
    "rough",
)
PLAIN: Final = ((STEADY, "keep"), (ROUGH, "plain"))
ORDERED: Final = (STEADY, "strict")
DYING: Final = (ROUGH, "dying")
MOVED: Final = ((STEADY, "wander"), (ROUGH, "moved"))
ATTEMPTS_MAX: Final = 3
SERVE: Final = (
    "--chunk-bytes",
    str(128 << 10),
    "--keep-bytes",
    str(768 << 10),
    "--alarm-command",
    "true",
    "--alarm-depth",
    "1000000000",
)
START_S: Final = 120.0
DRAIN_S: Final = 240.0
AUDIT_S: Final = 2.0
SAMPLES: Final = 240  # samples in the whole run, but at least 2 s apart
CHECKPOINT_S: Final = 300.0
KILL_S: Final = 20.0  # average seconds between two kills
OPERATOR_S: Final = 3.0  # average seconds between two actions of the operator
ANY: Final = (
    "topic",
    "channel",
    "scan_worker",
    "alarm_teller",
    "storm",
    "stop_short",
    "stop_long",
    "gateway",
    "scan_loop",
)
GENERATION: Final = ("everything", "supervisor", "forkserver", "terminate", "start_storm")
SPARED: Final = ("supervisor", "forkserver", "scan_loop", "gateway")
WARM_SHARE: Final = 0.05
ZERO: Final = ("damaged_blocks", "lost_messages", "delayed_lost", "dropped_count")
# Each of these must have happened. Otherwise the soak has tested less than it says.
COVERED: Final = (
    "redeliveries", "finishes confirmed", "dead letters", "cancelled", "seeks", "seeks under load", "channels made", "channels deleted",
    "topics deleted", "kills", "removed",
)  # fmt: skip


class Violation(Exception):
    """A promise was broken. The text says which one and where."""


class SoakKiller(Killer):
    """A killer that can leave out the processes whose growth is measured."""

    sparing = False

    def victim(self, kind: str) -> Process | None:
        if self.sparing and kind in SPARED:
            return None
        found = [
            process for process in self.living() if process.kind == kind and self._granted(process)
        ]
        found = [process for process in found if not self.sparing or process.topic != STEADY]
        return (
            self.random.choice(sorted(found, key=lambda process: process.title)) if found else None
        )


class Soak:
    """One run of `minutes` in `folder`."""

    def __init__(self, folder: Path, minutes: float, seed: int) -> None:
        self.seconds, self.seed = minutes * 60, seed
        self.kill_s = min(KILL_S, self.seconds / 12)
        self.random = random.Random(seed)
        self.ledger = ledger = Ledger(time.time_ns)
        self.broker = Broker(folder / "data", *SERVE)
        self.killer = SoakKiller(self.broker, None, seed)
        urls = (self.broker.ipc, self.broker.tcp)
        self.topics = {name: ledger.add_topic(name) for name in (STEADY, ROUGH)}
        self.groups: dict[tuple[str, str], Group] = {}
        for number, (topic, name) in enumerate((*PLAIN, ORDERED, DYING, *MOVED)):
            channel = ledger.add_channel(self.topics[topic], name, (0, 0), len(urls))
            dying, ordered = (topic, name) == DYING, (topic, name) == ORDERED
            self.groups[topic, name] = Group(
                ledger, channel, urls, seed + 10 * number, dying=dying, ordered=ordered
            )
        self.audit = Audit(
            ledger, self.broker.ipc, list(self.topics.values()), [self.groups[DYING].channel]
        )
        topics = list(self.topics.values())
        self.producers = [
            Publishing(ledger, f"producer {n}", url, topics, seed + 100 + n, PACE_S)
            for n, url in enumerate(urls)
        ]
        self.operator = Operator(
            self.audit,
            urls,
            self.producers,
            [self.groups[one] for one in MOVED],
            seed + 200,
            min(OPERATOR_S, self.seconds / 60),
        )
        self.samples: list[flat.Sample] = []
        self.kills: Counter[str] = Counter()
        self.explained: Counter[str] = Counter()
        self.checkpoints = 0
        self.clean_s = 0.0  # time of the last checkpoint at which every message was explained
        self.began = 0.0
        self.read_ns = 0  # time when the log was last read to its end while all channels were empty

    @property
    def at_s(self) -> float:
        return time.monotonic() - self.began

    def say(self, text: str) -> None:
        print(f"{self.at_s:8.1f} s  {text}", flush=True)

    def run(self) -> None:
        """Run to the end. Raise `Violation` at the first message that has no explanation, or if
        something grew.
        """
        try:
            self._begin()
            self._load()
            self._end()
        finally:
            for worker in (
                *self.producers,
                self.operator,
                *(member for group in self.groups.values() for member in group.members),
            ):
                worker.ending.set()
            self.killer.end_all()

    def _begin(self) -> None:
        self.broker.start(START_S)
        self.killer.note_generation()
        with zsq.Admin(self.broker.ipc) as admin:
            for name in self.topics:
                admin.create_topic(name)
            for topic, name in self.groups:
                settings: dict[str, Any] = (
                    {"max_attempts": ATTEMPTS_MAX} if (topic, name) == DYING else {}
                )
                admin.create_channel(
                    topic, name, start="earliest", ordered=(topic, name) == ORDERED, **settings
                )
        self.began = time.monotonic()
        for group in self.groups.values():
            group.start()
        for worker in (*self.producers, self.operator):
            worker.start()

    def _load(self) -> None:
        checkpoint_s = min(CHECKPOINT_S, self.seconds / 2)
        every = {
            "sample": max(2.0, self.seconds / SAMPLES),
            "audit": AUDIT_S,
            "kill": self.kill_s,
            "checkpoint": checkpoint_s,
        }
        due = {name: self.at_s + seconds for name, seconds in every.items()}
        while self.at_s < self.seconds:
            self._complain()
            for name in [name for name, at in due.items() if at <= self.at_s]:
                getattr(self, f"_{name}")()
                due[name] = self.at_s + every[name] * (
                    self.random.uniform(0.3, 1.7) if name == "kill" else 1
                )
            threading.Event().wait(0.05)

    def _complain(self) -> None:
        if self.ledger.complaints:
            raise Violation("; ".join(self.ledger.complaints[:5]))
        assert self.broker.process is not None
        if self.broker.process.poll() is not None:
            raise Violation(
                f"the broker ended by itself with code {self.broker.process.returncode}"
            )

    def _sample(self) -> None:
        self.samples.append(flat.look(self.at_s, self.killer.living(), self.broker.data_dir))

    def _audit(self) -> None:
        self.audit.all()

    def _kill(self) -> None:
        self.killer.sparing = self.at_s > self.seconds / 3
        kind = self.random.choice(
            ANY if self.killer.sparing or self.random.random() < 0.6 else GENERATION
        )
        done = self.killer.carry_out(kind)
        if done is None:
            return
        if done.ends_generation:
            self.killer.start_again()
        self.kills[kind] += 1
        self.ledger.counts["kills"] += 1
        self.say(
            f"kill: {kind} ({done.text}); {self.ledger.messages:,} messages, "
            f"{self.ledger.counts['deliveries']:,} deliveries"
        )

    # Checkpoints

    def _checkpoint(self, last: bool = False) -> None:
        """Pause the producers and the operator. When all channels are empty, every message must be
        explained. After the `last` checkpoint they stay paused.
        """
        for worker in (*self.producers, self.operator):
            worker.idle.clear()
            worker.pause.set()
        self._drain()
        self.explained = self.ledger.unexplained(self.read_ns)
        self._healthy()
        self._complain()
        self.checkpoints += 1
        self.clean_s = self.at_s
        self.say(
            "checkpoint: "
            + ", ".join(f"{name} {count:,}" for name, count in self.explained.items())
        )
        for worker in () if last else (*self.producers, self.operator):
            worker.pause.clear()

    def _drain(self) -> None:
        deadline = time.monotonic() + DRAIN_S
        while not self._drained():
            if time.monotonic() > deadline:
                missing = self.ledger.missing()
                text = (
                    f"{self._depths()}; acknowledged and nowhere: {len(missing)}, first "
                    f"{missing[:5]}"
                )
                raise Violation(f"not drained after {DRAIN_S:g} s: {text}")
            self._complain()
            threading.Event().wait(0.25)

    def _stats(self) -> list[dict[str, Any]]:
        with zsq.Admin(self.broker.ipc) as admin:
            found: list[dict[str, Any]] = until_done(admin.stats)["topics"]
        return found

    def _depths(self) -> list[tuple[str, str, int, int, int, int]]:
        return [
            (
                topic["topic_name"],
                row["channel_name"],
                row["depth"],
                row["in_flight_count"],
                row["deferred_count"],
                row["dying_count"],
            )
            for topic in self._stats()
            for row in topic["channels"]
        ]

    def _drained(self) -> bool:
        if not all(worker.idle.is_set() for worker in (*self.producers, self.operator)):
            return False
        groups = [*self.groups.values(), *self.operator.groups]
        if any(sum(row[2:]) for row in self._depths()) or not all(group.idle for group in groups):
            return False
        self.read_ns = self.ledger.now_ns()
        self.audit.all()
        return not self.ledger.missing(self.read_ns) and not any(
            sum(row[2:]) for row in self._depths()
        )

    def _healthy(self) -> None:
        for topic in self._stats():
            for message in ZERO:
                if topic[message]:
                    self.ledger.complain(f"{topic['topic_name']}: {message} is {topic[message]}")
            for row in topic["channels"]:
                if gone := row["dropped_count"] + row["lost_count"]:
                    self.ledger.complain(
                        f"{topic['topic_name']}/{row['channel_name']}: {gone} were dropped or lost"
                    )

    # The end

    def _end(self) -> None:
        self._kill_everything()
        self._checkpoint(last=True)
        with zsq.Admin(self.broker.ipc) as admin:
            for producer in self.producers:
                producer.ending.set()
            for producer in self.producers:
                producer.join(60)
            self.operator.close(admin)
            for topic in self.topics.values():
                self.operator.cancel_all(admin, topic)
        self._drain()  # wait for messages that became due after the checkpoint
        for group in self.groups.values():
            group.stop()
        self.audit.all()
        self.explained = self.ledger.unexplained()
        self._complain()
        self.clean_s = self.at_s
        if (code := self.broker.stop()) != 0:
            raise Violation(f"the broker's last end had code {code}")
        await_end(of_sessions(self.killer.sessions), 10)
        if left := of_sessions(self.killer.sessions) + holders_of(self.broker.data_dir):
            raise Violation(f"processes outlived their broker: {left}")
        if b"Traceback" in (said := self.broker.log.read_bytes()):
            raise Violation(
                "the broker's log has a traceback: "
                f"{said[said.index(b'Traceback') :][:2000].decode()}"
            )
        self.ledger.counts["removed"] = sum(topic.removed for topic in self.topics.values())

    def check_coverage_and_growth(self) -> None:
        """Raise `Violation` if some event never happened, or if the use of a resource grew. A run
        of some seconds says nothing of either.
        """
        if uncovered := [name for name in COVERED if not self.ledger.counts[name]]:
            raise Violation(
                f"this never happened, so the soak says nothing of it: {', '.join(uncovered)}"
            )
        if grown := flat.growths(self.samples, self.seconds * WARM_SHARE, self.seconds):
            raise Violation("; ".join(grown))

    def _kill_everything(self) -> None:
        done = self.killer.carry_out("everything")
        assert done is not None
        self.killer.start_again()
        self.kills["everything"] += 1
        self.say("kill: everything, once more at the end")

    def summary(self) -> str:
        counts = ", ".join(
            f"{name} {count:,}" for name, count in sorted(self.ledger.counts.items())
        )
        outcome = "\n".join(f"  {name}: {count:,}" for name, count in self.explained.items())
        kills = ", ".join(f"{kind} {count}" for kind, count in sorted(self.kills.items()))
        looks = len(self.samples)
        return (
            f"soak of {self.seconds / 60:g} minutes: explained to the last message at "
            f"{self.checkpoints} checkpoints,"
            f" the last one after {self.clean_s / 60:.1f} minutes\n{outcome}\n{counts}\nkills: "
            f"{kills}\n{flat.table(self.samples)}"
            f"flat over {looks} looks: descriptors, threads and memory of each process and of "
            f"all, files and bytes\nseed {self.seed}"
        )
