"""Sampler of the console: requests the broker's overview and updates the board and its history.

It requests the overview once a second while pages watch, and otherwise every 10 seconds. A changed
row costs 40 microseconds, both in the supervisor and here. So if more than `ROWS_A_S` rows change
in a second, the requests become less frequent. This limits the cost to about 1.6% of a core.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from .....transport.client.asyncio.aio import Admin
from .....transport.errors import E_CLOSING, E_TIMEOUT, Refused, ZsqError
from .....transport.wire.answers import OverviewAlarms
from .board import Board
from .history import History

log = logging.getLogger("zsq")

# Seconds to wait after an action, because the supervisor updates rows five times a second.
HURRIED_S: Final = 0.25
WATCHED_S: Final = 1.0
WATCHED_S_MAX: Final = 5.0
ROWS_A_S: Final = 400
UNWATCHED_S: Final = 10.0
# After the last page closes, requests stay frequent for this time, because a user who changes pages
# soon opens another page.
LINGERS_S: Final = 30.0
LOST_S: Final = 15.0  # after this time without a reply, the values are unknown
PATIENCE_S: Final = 10.0


class Sampler:
    """The sampler of a console. `run` is started as a task and ends after `close`."""

    def __init__(self, broker: Admin) -> None:
        self._broker = broker
        self.board = Board()
        self.history = History()
        self.alarms: OverviewAlarms = {"now": (), "recent": (), "receivers": ()}
        self.alarms_tick = 0
        self._watchers = 0
        self._watched_each_s = WATCHED_S
        self._watched_s = -LINGERS_S
        self._sampled_s = -LOST_S
        self._stirred_s = -LOST_S
        self._error: ZsqError | None = None
        self._hurry = False  # True while a request waits for the next overview
        self._wake = asyncio.Event()
        self._round = asyncio.Event()  # set at the end of a round, and then replaced by a new one
        self.closing = False

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Count a watcher while the context is open."""
        self._watchers += 1
        self._wake.set()
        try:
            yield
        finally:
            self._watchers -= 1
            self._watched_s = time.monotonic()

    async def fresh(self, topic: str = "") -> Board:
        """Return the board, not older than one and a half ticks.

        If it does not have `topic`, a new overview is requested, because the topic may be new.
        Raises `ZsqError` if the broker does not answer in time.
        """
        begun_s = self._watched_s = time.monotonic()
        deadline_s = begun_s + PATIENCE_S
        while self._sampled_s < max(begun_s - self._old_s(topic), self._stirred_s + HURRIED_S):
            before = self._round
            self._hasten()
            if not await self._wait(before, deadline_s - time.monotonic()):
                raise ZsqError(E_TIMEOUT, f"the broker sent no overview within {PATIENCE_S:g} s")
            if self.closing:
                raise Refused(E_CLOSING, "the broker is stopping")
            if self._error is not None:
                raise self._error
        return self.board

    def _old_s(self, topic: str) -> float:
        return 0.0 if topic and topic not in self.board.topics else self._watched_each_s * 1.5

    def stir(self) -> None:
        """Request a new overview soon, so that pages show the effect of an action."""
        self._stirred_s = time.monotonic()
        asyncio.get_running_loop().call_later(HURRIED_S, self._hasten)

    def _hasten(self) -> None:
        self._hurry = True
        self._wake.set()

    async def after(self, tick: int, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for a tick after `tick`. Return True if it came."""
        deadline_s = time.monotonic() + timeout_s
        while self.board.tick <= tick and not self.closing:
            if not await self._wait(self._round, deadline_s - time.monotonic()):
                return False
        return self.board.tick > tick

    @staticmethod
    async def _wait(event: asyncio.Event, timeout_s: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), max(0.0, timeout_s))
        return event.is_set()

    def second(self) -> int:
        """Return the current second of the history's clock."""
        return int(time.monotonic())

    async def run(self) -> None:
        while not self.closing:
            begun_s, self._hurry = time.monotonic(), False
            self._wake.clear()
            try:
                await self._sample()
            except ZsqError as error:
                self._error = error
                if begun_s - self._sampled_s > LOST_S:
                    self.history.lost(self.second())
            except Exception as error:  # log any error and continue, so that the pages stay alive
                log.exception("the console cannot read the overview of the broker")
                self._error = ZsqError(
                    E_TIMEOUT, f"the console cannot read the overview of the broker: {error!r}"
                )
            done, self._round = self._round, asyncio.Event()
            done.set()
            await self._rest(begun_s)

    async def _rest(self, begun_s: float) -> None:
        """Wait until the next overview is due. A new watcher shortens the wait."""
        while not self.closing:
            watched = self._watchers > 0 or time.monotonic() - self._watched_s < LINGERS_S
            rest_s = (
                begun_s
                + (HURRIED_S if self._hurry else self._watched_each_s if watched else UNWATCHED_S)
                - time.monotonic()
            )
            if rest_s <= 0:
                return
            self._wake.clear()
            await self._wait(self._wake, rest_s)

    async def _sample(self) -> None:
        board = self.board
        try:
            overview = await self._broker.overview(since=board.version)
        except ZsqError:
            board.version = 0
            raise
        now_s = time.monotonic()
        before = board.broker
        changed = board.take(overview, int(time.time() * 1000), int(now_s * 1000))
        self.history.note(changed, int(now_s))
        self._watched_each_s = min(
            max(WATCHED_S, sum(row.changed == board.tick for _, _, row in changed) / ROWS_A_S),
            WATCHED_S_MAX,
        )
        if overview["whole"]:
            self.history.keep_only(board.topics)
        if any(board.broker[name] != before.get(name) for name in ("alarms", "alarmed_ns")):
            self.alarms = (await self._broker.overview(since=board.version, alarms=True)).get(
                "alarms", self.alarms
            )
            self.alarms_tick = board.tick
        self._sampled_s, self._error = now_s, None

    def close(self) -> None:
        self.closing = True
        self._wake.set()
        self._round.set()
