"""The nemesis: breaks things at random times."""

from __future__ import annotations

from typing import Any

from .world import World


class Nemesis:
    def __init__(self, world: World, broker: Any, crew: Any, scenario: Any) -> None:
        self.world = world
        self.over = False
        self.done: dict[str, int] = {}

    def begin(self) -> None:
        self.over = True

    def heal(self) -> None:
        pass
