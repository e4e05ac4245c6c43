"""Actor on an event loop (uvloop): for gateways with thousands of plain sockets.

The actors of a topic use a plain poller, which is the fastest for a few ZeroMQ sockets. A gateway
for NSQ or HTTP has a connection for each client, and libraries that need asyncio. Both use the code
of `Actor` for the start, pulses, orders, and the end.

ZeroMQ's descriptor is edge-triggered: any use of the socket consumes the event, even a send. So
after each action that may have sent, the supervisor's port is checked again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from typing import Any, Final

import uvloop
import zmq

from .actor import Actor, OrderReply, StartT
from .port import Port

log = logging.getLogger("zsq")

FINISH_S: Final = 5.0  # limit of `on_finish`; less than the supervisor waits for an actor's end
_TIMER_S_MAX: Final = 1.0


class AsyncActor(Actor[StartT]):
    """An actor on an event loop.

    Subclasses define `on_begin` and `on_finish` instead of `on_start` and `on_stop`; the other
    hooks are those of `Actor`.
    """

    loop: asyncio.AbstractEventLoop

    # Hooks for subclasses

    async def on_begin(self) -> dict[str, Any]:
        """Open files and sockets in the loop. Errors are reported as those of `on_start`."""
        return {}

    async def on_finish(self) -> None:
        """Answer waiting clients and close. It is cancelled after FINISH_S."""

    # The life of the actor

    def on_start(self) -> dict[str, Any]:
        self.loop = uvloop.new_event_loop()
        asyncio.set_event_loop(self.loop)
        return self.loop.run_until_complete(self.on_begin())

    def _loop(self) -> None:
        self.loop.run_until_complete(self._live())

    async def _live(self) -> None:
        self._over = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        # The supervisor is dead: nothing may be answered any more.
        self.loop.add_reader(self._lifeline, os._exit, 0)
        for port in self._ports:
            self.loop.add_reader(port.socket.FD, self._take_in)
        self._take_in()
        await self._over.wait()
        try:
            await asyncio.wait_for(self.on_finish(), FINISH_S)
        except TimeoutError:
            log.warning(
                "%s ends with unanswered requests: they took longer than %g s", self.title, FINISH_S
            )
        self._pulse_if_stirred()

    def _take_in(self) -> None:
        for port in self._ports:
            self._empty(port)
        if self._stirred:
            self.hasten_pulse()
        self._run_timers()
        # Timers send pulses, and a send may consume the event of a port.
        for port in self._ports:
            self._empty(port)
        self._wait_for_timers()
        if self.stopping:
            self._over.set()

    def _empty(self, port: Port) -> None:
        while not port.socket.closed and port.socket.poll(0, zmq.POLLIN):
            self._drain(port)

    def _wait_for_timers(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = min(timer[0] for timer in self._timers)
        pause = min(_TIMER_S_MAX, max(0.0, (due - time.monotonic_ns()) / 1e9))
        self._timer = self.loop.call_later(pause, self._take_in)

    def stir(self, *, blocks: bool = False) -> None:
        super().stir(blocks=blocks)
        self.hasten_pulse()

    def answer_order(self, answer: OrderReply) -> None:
        super().answer_order(answer)
        self.loop.call_soon(self._take_in)  # process messages that came during the send

    def _close(self) -> None:
        loop = getattr(self, "loop", None)
        if loop is not None:
            with contextlib.suppress(Exception):
                loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
        super()._close()
