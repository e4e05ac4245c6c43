"""Dead-letter sender: publishes a channel's dead letters to another topic.

It uses the client library's engine. The engine never waits (`transport/client/link/engine.py`), so it
needs no thread: the actor's loop calls its `turn`, and also listens to the engine's set of
descriptors. Rejected: a thread with a blocking Producer. It would have to be stopped while it waits
for a topic that is down, and an actor that ends does not wait.

Everything is created at the first publish and closed after a while without one. For a channel
without dead letters, this costs only one check in each turn.
"""

from __future__ import annotations

import logging
import os.path
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...transport.block.block import Block
from ...transport.client.core.producer_engine import ProducerEngine
from ...transport.client.core.producer_session import PendingBlock
from ...transport.wire.address import Address
from ..settings import options
from ..settings.channel_settings import DEAD_LETTERS
from .dead_letters import DeadLetters, LetterState
from .supply import Supply

if TYPE_CHECKING:
    from ..runtime.actor import Actor


_ROUNDS_MAX = 8  # rounds of due work in one turn


class DeadLetterPublisher:
    """Publishes blocks to other topics from within an actor.

    `endpoint` is any endpoint of the actor. The supervisor listens in the same directory. `listen`
    and `ignore` add and remove a file descriptor that wakes the actor. `by` identifies the
    publisher to the supervisor when the publisher looks up a topic.
    """

    def __init__(
        self,
        endpoint: str,
        idle_s: float,
        listen: Callable[[Any, Callable[[], None]], None],
        ignore: Callable[[Any], None],
        by: Mapping[str, str] | None = None,
    ) -> None:
        self._address = Address(os.path.dirname(endpoint), True, by=by or {})
        self._idle_ns = int(idle_s * 1e9)
        self._listen = listen
        self._ignore = ignore
        self._engine: ProducerEngine | None = None
        self._used_ns = 0

    def publish(self, topic: str, blocks: Sequence[Block]) -> list[PendingBlock]:
        """Hand over blocks for a topic and return at once.

        Raises `UsageError` for an invalid name.
        """
        if self._engine is None:
            self._engine = ProducerEngine(self._address, 0, 1, 1, None)
            # Each turn of the loop polls it.
            self._listen(self._engine.events.fileno(), lambda: None)
        now = self._used_ns = time.monotonic_ns()
        lane = self._engine.lane(topic)
        pending_blocks = [PendingBlock(block) for block in blocks]
        for pending in pending_blocks:
            lane.push(pending, now)
        return pending_blocks

    def turn(self) -> None:
        """Receive what has arrived and do what is due. Called in each turn of the loop."""
        engine = self._engine
        if engine is None:
            return
        for _ in range(_ROUNDS_MAX):
            engine.turn(engine.events.poll(0))
            if engine.due_ns > time.monotonic_ns():
                break
        engine.failed.clear()  # the pending blocks carry the errors
        if engine.unanswered:
            self._used_ns = time.monotonic_ns()
        elif time.monotonic_ns() - self._used_ns > self._idle_ns:
            self.stop()

    @property
    def open(self) -> bool:
        return self._engine is not None

    def trouble(self) -> str:
        return "" if self._engine is None else self._engine.trouble()

    def stop(self) -> None:
        """Close the links. Blocks without a reply are given up."""
        engine, self._engine = self._engine, None
        if engine is not None:
            self._ignore(engine.events.fileno())
            engine.stop(linger_ms=200)
            engine.events.close()


log = logging.getLogger("zsq")


class DeadLetterSender:
    """Sends a channel's dead letters while there are some. `endpoint` is the channel's endpoint."""

    def __init__(
        self, actor: Actor[Any], topic: str, uuid: str, channel: str, endpoint: str
    ) -> None:
        self._actor = actor
        by = {"via": DEAD_LETTERS, "dead_topic": topic, "dead_uuid": uuid, "dead_channel": channel}
        self._publisher = DeadLetterPublisher(
            endpoint, options.DEAD_IDLE_S, actor.listen_raw, actor.ignore_raw, by
        )
        self._letters = DeadLetters(topic, uuid, channel, self._publisher.publish)
        self._ticks = False
        self._said = ""

    def turn(self, supply: Supply, more: bool) -> None:
        """Do one turn of the loop. If `more` is False, send nothing, only wait for replies."""
        if not (supply.dying or self._ticks):
            return
        self._actor.stir()
        self._publisher.turn()
        self._letters.turn(supply, time.monotonic_ns(), time.time_ns(), more)
        if self._letters.trouble != self._said:
            self._said = self._letters.trouble
            if self._said:
                log.warning(
                    "%s cannot send its dead letters and tries again: %s",
                    self._actor.title,
                    self._said,
                )
        self._tick(bool(supply.dying) or self._publisher.open)

    def _tick(self, wanted: bool) -> None:
        """Start or stop a timer that makes the loop take a turn now and then.

        The timer runs while there is work, because links must send heartbeats and pauses must end.
        """
        if wanted and not self._ticks:
            self._actor.every(options.DEAD_TICK_MS, self._wake)
        elif self._ticks and not wanted:
            self._actor.cease(self._wake)
        self._ticks = wanted

    def _wake(self) -> None:
        """Do nothing. The timer only wakes the loop, and each round of the loop ends with
        `turn`.
        """

    def configured(self) -> None:
        self._letters.try_now()

    @property
    def sending(self) -> bool:
        return self._letters.state is LetterState.SENDING

    def alarm(self, supply: Supply) -> str:
        """Return why dead letters wait, for the health report, or "" if none wait."""
        return (
            self._letters.alarm(supply, time.monotonic_ns(), self._publisher.trouble())
            if supply.dying
            else ""
        )

    def end(self) -> None:
        self._publisher.stop()
