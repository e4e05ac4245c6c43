"""The clients of a simulated broker: producers and consumers that use the real client library, each
in a separate process.

The seed chooses what each client does. If a client was killed, the `Crew` starts a new one in its
place.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import zsq
from zsq.transport import errors

from . import attributes, scenario
from .attributes import Attributes
from .bounded import Bounded
from .ledger import ChannelLedger, Ledger
from .mortal import Mortal
from .operator import Operator
from .staging import Checkpoint, StagePlan, Stager
from .world import MS, Process, S, World

if TYPE_CHECKING:
    from .attributes import AttributesPlan
    from .scenario import Scenario

HEARTBEAT_MS: Final = 1_000
TIMEOUT_S: Final = 20.0
KEYS: Final = (b"a", b"b", b"c", b"d", b"e")
TAGS: Final = ("red", "blue")
# The longest time that an answer takes to reach the channel when there are no faults.
ON_ITS_WAY: Final = 50 * MS


@dataclass(frozen=True, slots=True)
class ChannelPlan:
    """One channel, and the behaviour of its consumers: the shares of deliveries that they requeue,
    reject, and so on.
    """

    topic: str
    name: str
    consumers: int
    settings: dict[str, Any] = field(default_factory=dict)
    requeue: float = 0.1
    reject: float = 0.0
    late: float = 0.03
    touch: float = 0.05
    plain: float = 0.5
    message_timeout: float = 2.0


@dataclass(frozen=True, slots=True)
class ProducerPlan:
    topic: str
    blocks: int
    delayed: float = 0.0
    linger: bool = False
    pause_ms: int = 30
    # Blocks sent without waiting for their answers; 0: the producer waits for each answer.
    ahead: int = 0


class Crew:
    """All clients of a run."""

    def __init__(self, world: World, ledger: Ledger, url: str) -> None:
        self.world = world
        self.ledger = ledger
        self.url = url
        self.rng = world.dice("crew")
        self.processes: list[Process] = []
        self.publishing = 0
        self.draining = False  # True if consumers must finish everything that they get
        self.closing = False
        self.errors: dict[str, int] = {}
        self.mortal: Mortal | None = None
        self.bounded: Bounded | None = None
        self.attributes: Attributes | None = None

    def begin(self, scenario: Scenario) -> None:
        for plan in scenario.channels:
            settings = plan.settings
            tags = frozenset(settings["tags"].split("||")) if settings.get("tags") else None
            row = ChannelLedger(
                plan.name,
                plan.topic,
                bool(settings.get("ordered")),
                tags,
                settings.get("max_attempts", 0),
            )
            row.made_ns = self.world.now_ns
            self.ledger.channels[f"{plan.topic}/{plan.name}"] = row
        for number, producer in enumerate(scenario.producers):
            self.publishing += 1
            self._start(f"producer-{number}", partial(self._produce, producer), number)
        for number, stager in enumerate(scenario.stagers):
            self.publishing += 1
            self._start(f"stager-{number}", partial(self._stage, stager, Checkpoint()), number)
        if scenario.commands:
            self.publishing += 1
            self._start("operator", partial(self._command, scenario.commands, scenario.moves), 0)
        for number in range(bool(scenario.seeks)):
            self.publishing += 1
            self._start("mover", partial(self._move, scenario.seeks), number)
        if scenario.bounded is not None:
            self.bounded = self.world.broker.bounded = bounded = Bounded(self, scenario.bounded)
            self.publishing += 1
            self._start("bounded-producer", bounded.produce, 0)
            self._start("bounded-consumer", bounded.consume, 0)
        if scenario.attributes is not None:
            self._begin_attributes(scenario.attributes)
        if scenario.mortal is not None:
            self.mortal = mortal = Mortal(self, scenario.mortal)
            self.publishing += 2
            self._start("mortal-producer", mortal.produce, 0)
            self._start("mortal-operator", mortal.delete, 0)
            self._start("mortal-consumer", mortal.consume, 0)
        for channel in scenario.channels:
            for number in range(channel.consumers):
                self._start(
                    f"{channel.topic}/{channel.name}-{number}",
                    partial(self._consume, channel),
                    number,
                )

    def _begin_attributes(self, plan: AttributesPlan) -> None:
        self.attributes = self.world.broker.attributes = topic = Attributes(self, plan)
        self.publishing += 3
        for number in range(2):
            self._start(f"attributes-producer-{number}", topic.produce, number)
            for channel in attributes.CHANNELS:
                name = f"attributes-{channel}-{number}"
                self._start(name, partial(topic.consume, channel), number)
        self._start("attributes-operator", topic.revoke, 0)

    def _start(
        self, name: str, work: Callable[[str, random.Random], None], number: int, life: int = 1
    ) -> None:
        process = Process(self.world, f"{name}.{life}")
        self.processes.append(process)
        process.on_death.append(lambda dead: self._died(dead, name, work, number, life))
        dice = self.world.dice(process.name)
        process.run(
            lambda: work(process.name, dice),
            delay_ns=self.rng.randrange(50 * MS) + (life > 1) * 200 * MS,
        )

    def _died(
        self,
        process: Process,
        name: str,
        work: Callable[[str, random.Random], None],
        number: int,
        life: int,
    ) -> None:
        for socket in list(process.sockets):
            socket.end(linger=False, killed=True)
        self.processes.remove(process)
        if not process.tasks[0].done:
            self._start(name, work, number, life + 1)

    def noted(self, who: str, error: Exception) -> None:
        code = getattr(error, "code", "")
        self.errors[f"{type(error).__name__} {code}".strip()] = (
            self.errors.get(f"{type(error).__name__} {code}".strip(), 0) + 1
        )
        self.world.note(f"{who}: {type(error).__name__} {code}")
        self.world.comment(str(error))

    # Producers

    def _produce(self, plan: ProducerPlan, name: str, dice: random.Random) -> None:
        producer = zsq.Producer(
            self.url,
            timeout=TIMEOUT_S,
            heartbeat_ms=HEARTBEAT_MS,
            when_full="wait",
            linger_ms=5.0 if plan.linger else 0.0,
        )
        out: deque[tuple[list[int], Any]] = deque()
        for _ in range(plan.blocks):
            if self.draining:
                break
            self._publish(producer, plan, name, dice, out)
            while len(out) > plan.ahead:
                self._acknowledge(name, *out.popleft())
            if plan.pause_ms:
                self.world.pause(MS, plan.pause_ms * MS)
        for numbers, receipt in out:
            self._acknowledge(name, numbers, receipt)
        try:
            producer.close(TIMEOUT_S)
        except errors.ZsqError as error:
            self.noted(name, error)
        self.publishing -= 1

    def _publish(
        self,
        producer: Any,
        plan: ProducerPlan,
        name: str,
        dice: random.Random,
        out: deque[tuple[list[int], Any]],
    ) -> None:
        ledger = self.ledger
        count = dice.choice((1, 1, 2, 5, 20))
        keys = [dice.choice(KEYS) if dice.random() < 0.8 else None for _ in range(count)]
        tags = [dice.choice((*TAGS, None)) for _ in range(count)]
        numbers = ledger.publish(plan.topic, count, keys, tags)
        delay = dice.choice((0.05, 0.3, 1.5)) if dice.random() < plan.delayed else None
        if delay is not None:
            ledger.delayed(
                numbers,
                self.world.now_ns + self.world.wall_offset_ns + int(delay * S)
                if self.steady
                else 0,
            )
        self.world.note(f"{name} publishes {numbers[0]}+{count} delay {delay}")
        try:
            out.append(
                (
                    numbers,
                    producer.publish_many(
                        plan.topic,
                        ledger.bodies(numbers),
                        keys=keys,
                        tags=tags,
                        headers=[{"zsq-priority": number % 4} for number in numbers]
                        if scenario.URGENT
                        else None,
                        delay=delay,
                        wait=False,
                    ),
                )
            )
        except errors.ZsqError as error:
            self.noted(name, error)

    def _acknowledge(self, name: str, numbers: list[int], receipt: Any) -> None:
        try:
            receipt.wait()
        # Whatever the error says, the message may be stored now or later, at most once.
        except errors.ZsqError as error:
            self.noted(name, error)
        else:
            self.ledger.acknowledged(numbers, receipt.offset)

    def _stage(
        self, plan: StagePlan, checkpoint: Checkpoint, name: str, dice: random.Random
    ) -> None:
        Stager(self, plan, checkpoint, name, dice).run()

    def _command(self, calls: int, moves: bool, name: str, dice: random.Random) -> None:
        Operator(self, calls, moves, name, dice).run()

    def _move(self, calls: int, name: str, dice: random.Random) -> None:
        Operator(self, calls, False, name, dice).move()

    steady = True
    """True while the wall clock has not jumped, so that the test can compute due times."""

    # Consumers

    def _consume(self, plan: ChannelPlan, name: str, dice: random.Random) -> None:
        while not self.closing:
            consumer = zsq.Consumer(
                plan.topic, plan.name, url=self.url, ready=dice.choice((1, 5, 50, 500)), message_timeout=plan.message_timeout,
                timeout=TIMEOUT_S, heartbeat_ms=HEARTBEAT_MS, label=name, **plan.settings,
            )  # fmt: skip
            work = Work(self, plan, name, dice, consumer)
            try:
                work.run(rounds=dice.randrange(10, 200))
            except errors.ZsqError as error:
                self.noted(name, error)
                self.world.pause(10 * MS, 200 * MS)
            work.forget()
            try:
                consumer.close(TIMEOUT_S)
            except errors.ZsqError as error:
                self.noted(name, error)


class Work:
    """The work of a consumer during one subscription."""

    def __init__(
        self, crew: Crew, plan: ChannelPlan, name: str, dice: random.Random, consumer: Any
    ) -> None:
        self.crew, self.plan, self.name, self.dice, self.consumer = crew, plan, name, dice, consumer
        self.channel = f"{plan.topic}/{plan.name}"
        # (numbers, token) of messages that were finished without waiting for the confirmation.
        self.told: list[tuple[list[int], int]] = []
        self.mine: set[int] = set()
        self.until_ns = 0

    def run(self, rounds: int) -> None:
        crew, world = self.crew, self.crew.world
        while not crew.closing and (crew.draining or rounds > 0):
            rounds -= 1
            batch = self.consumer.receive_batch(timeout=0.5)
            if batch is None:
                self._flush()
                continue
            if not batch.delivery.live:
                # Its link was lost: another consumer may have its messages now.
                continue
            # A touch would change both.
            self.until_ns = batch.delivery.received_ns + batch.delivery.timeout_ms * MS
            numbers = crew.ledger.leased(self.channel, self.name, batch, world.now_ns)
            self.mine.update(numbers)
            world.pause(20_000, 5 * MS)
            for part, chosen in self._parts(batch, numbers):
                self._answer(part, chosen, batch.delivery.token)
            if self.dice.random() < 0.3:
                self._flush()
        self._flush()

    def forget(self) -> None:
        self.crew.ledger.released(self.channel, self.mine)

    def _parts(self, batch: Any, numbers: list[int]) -> Iterator[tuple[Any, list[int]]]:
        """Yield the whole batch, or its messages one by one."""
        if self.crew.draining or self.dice.random() < 0.6 or len(numbers) > 10:
            yield batch, numbers
        else:
            for message, number in zip(batch.messages(), numbers, strict=True):
                yield message, [number]

    def _answer(self, part: Any, numbers: list[int], token: int) -> None:
        """Answer a batch or a message: both have the same methods."""
        plan, dice, ledger, world = self.plan, self.dice, self.crew.ledger, self.crew.world
        if dice.random() < plan.touch:
            part.touch()
            # After a touch, only the channel knows the deadline of the lease.
            ledger.released(self.channel, numbers)
        if not self.crew.draining:
            chance = dice.random()
            if chance < plan.late:
                world.note(f"{self.name} is late with {numbers}")
                world.pause(
                    int(plan.message_timeout * 1.3 * S), int(plan.message_timeout * 1.5 * S)
                )
            elif chance < plan.late + plan.requeue:
                self._requeue(part, numbers)
                return
            elif chance < plan.late + plan.requeue + plan.reject:
                world.note(f"{self.name} rejects {numbers}")
                ledger.rejecting(self.channel, numbers)
                ledger.released(self.channel, numbers)
                part.reject("by the simulation")
                return
        ledger.finishing(self.channel, numbers)
        if dice.random() < plan.plain:
            part.finish()
            self.told.append((numbers, token))
            return
        try:
            part.finish(sync=True)
        except errors.LeaseLost as error:
            self.crew.noted(self.name, error)
            ledger.released(self.channel, numbers)
        else:
            world.note(f"{self.name} finished {numbers}")
            ledger.confirmed(self.channel, numbers, token)

    def _requeue(self, part: Any, numbers: list[int]) -> None:
        delay = self.dice.choice((0.0, 0.0, 0.1, 0.7))
        world = self.crew.world
        delivery = (part if hasattr(part, "delivery") else part._batch).delivery
        # True if the lease cannot end before the requeue arrives. A touch does not count: it may
        # have come too late, and the consumer learns that only later.
        lasts = world.now_ns + ON_ITS_WAY < self.until_ns
        counts = delivery.live and lasts and self.crew.steady
        self.crew.ledger.requeued(
            self.channel, numbers, world.now_ns + int(delay * S) if counts else 0
        )
        world.note(f"{self.name} requeues {numbers} by {delay}")
        part.requeue(delay)

    def _flush(self) -> None:
        told, self.told = self.told, []
        ledger = self.crew.ledger
        try:
            self.consumer.flush()
        except errors.LeaseLost as error:
            self.crew.noted(self.name, error)
            for numbers, _ in told:
                ledger.released(self.channel, numbers)
        else:
            for numbers, token in told:
                ledger.confirmed(self.channel, numbers, token)
