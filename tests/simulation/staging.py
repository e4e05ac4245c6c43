"""A client that writes transactions as Spark does. The rows of each version are pushed to stages,
which are sealed and then committed together, once.

The plan and the commits are kept in a `Checkpoint` when the client dies, as with Spark. The next
life writes the same rows of the first version that is not known to be committed, in new stages. Two
lives may write one version at the same time, and only one of them counts.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import zsq
from zsq.transport import errors
from zsq.transport.block.block import pack

from .world import MS

if TYPE_CHECKING:
    from .workload import Crew

APP: Final = "app"


@dataclass(frozen=True, slots=True)
class StagePlan:
    topic: str
    versions: int
    partitions: int
    app: str = APP


@dataclass
class Checkpoint:
    """By version: the numbers of the version's rows, for each partition."""

    rows: dict[int, list[list[int]]] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)


class Stager:
    """One life of the writer."""

    def __init__(
        self, crew: Crew, plan: StagePlan, checkpoint: Checkpoint, name: str, dice: random.Random
    ) -> None:
        self.crew, self.plan, self.checkpoint, self.name, self.dice = (
            crew,
            plan,
            checkpoint,
            name,
            dice,
        )

    def run(self) -> None:
        world = self.crew.world
        for version in range(1, self.plan.versions + 1):
            while version not in self.checkpoint.committed:
                try:
                    self._transaction(version)
                except errors.ZsqError as error:
                    self.crew.noted(self.name, error)
                    world.pause(20 * MS, 300 * MS)
            world.pause(MS, 100 * MS)
        self.crew.publishing -= 1

    def _rows(self, version: int) -> list[list[int]]:
        ledger = self.crew.ledger
        if version not in self.checkpoint.rows:
            counts = [self.dice.choice((0, 1, 3, 12)) for _ in range(self.plan.partitions)]
            counts[0] = counts[0] or 2
            total = sum(counts)
            numbers = list(ledger.publish(self.plan.topic, total, [None] * total, [None] * total))
            self.checkpoint.rows[version] = [
                [numbers.pop(0) for _ in range(count)] for count in counts
            ]
        return self.checkpoint.rows[version]

    def _transaction(self, version: int) -> None:
        plan, ledger, world = self.plan, self.crew.ledger, self.crew.world
        rows = self._rows(version)
        world.note(f"{self.name} writes version {version}: {rows}")
        parts = [self._stage(version, partition, numbers) for partition, numbers in enumerate(rows)]
        with zsq.StageCommitter(plan.topic, url=self.crew.url, timeout=20) as committer:
            answer = committer.commit(plan.app, version, parts)
        world.note(f"{self.name} committed version {version}: {sorted(answer.items())}")
        flat = [number for numbers in rows for number in numbers]
        if not answer["repeated"] and answer["messages"] != len(flat):
            ledger.broken(
                f"version {version} of {len(flat)} rows was committed with {answer['messages']}"
            )
        if answer["repeated"]:
            places = range(answer["first_offset"], answer["first_offset"] + len(flat))
            ledger.told_places.update(zip(flat, places, strict=True))
        ledger.acknowledged(
            flat, None if answer["repeated"] else answer["first_offset"], durable=True
        )
        self.checkpoint.committed.add(version)

    def _stage(self, version: int, partition: int, numbers: list[int]) -> Any:
        plan, world = self.plan, self.crew.world
        with zsq.StageWriter(
            plan.topic,
            plan.app,
            version,
            url=self.crew.url,
            partition=partition,
            timeout=20,
            heartbeat_ms=1_000,
        ) as writer:
            at = 0
            while at < len(numbers):
                count = self.dice.randrange(1, 5)
                writer.push(pack(self.crew.ledger.bodies(numbers[at : at + count])))
                at += count
                world.pause(10_000, 10 * MS)
            return writer.seal()
