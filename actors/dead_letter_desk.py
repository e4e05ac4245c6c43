"""The channel's desk for dead letters: turns what sends them while there are some, and costs one look a turn while there are none."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from . import options
from .dead_letters import DeadLetters, LetterState
from .publisher import Publisher
from .supply import Supply

if TYPE_CHECKING:
    from .actor import Actor

log = logging.getLogger("zsq")


class DeadLetterDesk:
    """`endpoint`: the channel's own."""

    def __init__(self, actor: Actor, topic: str, uuid: str, channel: str, endpoint: str) -> None:
        self._actor = actor
        self._publisher = Publisher(endpoint, options.DEAD_IDLE_S, actor.listen_raw, actor.ignore_raw)
        self._letters = DeadLetters(topic, uuid, channel, self._publisher.publish)
        self._ticks = False
        self._said = ""

    def turn(self, supply: Supply, more: bool) -> None:
        """Each turn of the loop. Without `more`, at the end, what is on its way is still awaited."""
        if not (supply.dying or self._ticks):
            return
        self._actor.stir()
        self._publisher.turn()
        self._letters.turn(supply, time.monotonic_ns(), time.time_ns(), more)
        if self._letters.trouble != self._said:
            self._said = self._letters.trouble
            if self._said:
                log.warning("%s cannot hand over dead letters: %s", self._actor.title, self._said)
        self._tick(bool(supply.dying) or self._publisher.open)

    def _tick(self, wanted: bool) -> None:
        """Links have heartbeats, and pauses end: while there is something to do, the loop takes a turn now and then."""
        if wanted and not self._ticks:
            self._actor.every(options.DEAD_TICK_MS, self._wake)
        elif self._ticks and not wanted:
            self._actor.cease(self._wake)
        self._ticks = wanted

    def _wake(self) -> None:
        """Each round of the loop ends with a turn."""

    def configured(self) -> None:
        self._letters.try_now()

    @property
    def sending(self) -> bool:
        return self._letters.state is LetterState.SENDING

    def alarm(self, supply: Supply) -> str:
        """For health: why dead letters wait, "" where they do not."""
        return self._letters.alarm(supply, time.monotonic_ns(), self._publisher.trouble()) if supply.dying else ""

    def end(self) -> None:
        self._publisher.stop()
