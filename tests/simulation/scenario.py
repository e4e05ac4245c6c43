"""What a seed stands for: which topics, channels, clients and faults. Small, so that many seeds can be tried."""

from __future__ import annotations

import random
from dataclasses import dataclass

from .workload import ChannelPlan, ProducerPlan


@dataclass(frozen=True, slots=True)
class Scenario:
    """`faults`: kinds that the nemesis may use (`nemesis.py`), `strikes`: how often."""

    producers: list[ProducerPlan]
    channels: list[ChannelPlan]
    tcp: bool
    chunk_bytes: int
    faults: tuple[str, ...]
    strikes: int


def draw(seed: int) -> Scenario:
    dice = random.Random(f"{seed}/scenario")
    channels = [ChannelPlan("t", "c", 1)]
    producers = [ProducerPlan("t", dice.randrange(5, 25))]
    return Scenario(producers, channels, False, 64 * 1024, (), 0)
