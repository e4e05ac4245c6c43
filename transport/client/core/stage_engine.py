"""Stage engine: a link for progress messages, and beside it the PUSH socket for the blocks.

Nothing here waits. The link and the PUSH socket are always replaced together. Blocks in the pipe of
an old PUSH socket are dropped with it. A block that had already left the pipe may be pushed a
second time, and storage ignores a block that it already has. The engine neither reads the PUSH
socket nor waits for it. The credit keeps the number of blocks in its pipe below its high-water
mark. If the socket still accepts no block, a timer tries again.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Final

import zmq

from ...block.block import Block
from ...errors import (
    E_BAD_COMMAND,
    E_TIMEOUT,
    BrokerUnreachable,
    NotFound,
    Refused,
    UsageError,
    ZsqError,
    advice,
)
from ...wire import sockets
from ...wire.address import Address, Target, tcp_endpoint
from ...wire.addresses import Addresses, Rotation
from ...wire.codec import encode
from ...wire.protocol import Abort, Push, Wire
from ..link.engine import Engine, Steps
from ..link.link import AGAIN, BYE_LINGER_MS, Link
from ..link.link_table import LinkState
from ..link.reaction import Reaction
from ..link.timeouts import format_timeout
from .stage_session import PASSING, StageSession

MS: Final = 1_000_000
LOOK_NS: Final = 20 * MS  # how long messages may stay unread while blocks are pushed
RETRY_NS: Final = 10 * MS
LOCAL_ROUTE: Final = b"-"


class StageEngine(Engine):
    """The engine of one stage, and the peer of its link."""

    def __init__(
        self,
        address: Address | Addresses,
        target: Target,
        session: StageSession,
        heartbeat_ms: int | None = None,
    ) -> None:
        super().__init__()
        self.rotation = Rotation(address)
        self.session = session
        # The last time when the number of arrived or durable blocks reached a new maximum.
        self.progress_ns = 0
        beat_ms = heartbeat_ms or self.rotation.present.heartbeat_ms
        self.link = Link(self, self.rotation, target, self, beat_ms, AGAIN | PASSING)
        self.link.expects = lambda: session.window.out_bytes > 0 and not session.ended
        self.add(self.link)
        self._push: sockets.Socket | None = None
        self._push_endpoint = ""
        self._head: list[Any] = []  # the frames before each block
        self._looked_ns = 0
        self._stalled = ""

    # Blocks

    def go(self, now_ns: int) -> None:
        """Push the added blocks, and read messages if it is time.

        While less than half of the credit is used, messages are read only every 20 ms (`LOOK_NS`).
        This saves calls.
        """
        session = self.session
        if session.ended:
            return
        if not self.link.up:
            self.link.start(now_ns)
            return
        self.turns += 1  # this shows the keeper thread that the engine was turned
        sealing = self.pump(now_ns)
        if (
            sealing
            or session.window.out_bytes * 2 > session.credit_bytes
            or now_ns - self._looked_ns > LOOK_NS
        ):
            self._looked_ns = now_ns
            self.link.take_in(now_ns)
            self._end()

    def pump(self, now_ns: int) -> bool:
        """Push the blocks that the credit allows, and request the seal that is due.

        Return True if a seal was requested.
        """
        push, session = self._push, self.session
        if push is None:
            return False
        while (entry := session.take(now_ns)) is not None:
            if not sockets.send_frames(push, [*self._head, entry.header, entry.payload]):
                session.untake()
                self.sooner(now_ns + RETRY_NS)
                break
        seal = session.take_seal()
        if seal is not None:
            self.link.send([b"", encode(seal)], now_ns)
            self.sooner(0)  # the send may have consumed the events for received messages
        self.sooner(session.due_ns())
        return seal is not None

    def abandon(self, now_ns: int) -> None:
        """Tell storage that this stage will not be committed, if there is a link.

        Without a link, storage drops it later.
        """
        if self.link.up:
            self.link.send([b"", encode(Abort(0, "", 0, (self.session.stage,)))], now_ns)

    def conclude(self, timeout: float) -> Steps[None]:
        if not self.session.ended:
            self.abandon(time.monotonic_ns())
        yield from ()

    def timers(self, now_ns: int) -> None:
        super().timers(now_ns)
        session = self.session
        if self.link.up and not session.ended:
            out_bytes = session.window.out_bytes
            if session.on_time(now_ns) is Reaction.RENEW:
                self._stalled = (
                    f"none of the {out_bytes} bytes that were pushed to {self._push_endpoint} "
                    "arrived; check that the port is open"
                )
                self.link.restart(now_ns, self._stalled, at_once=True)
            else:
                self.pump(now_ns)
        self._end()

    def turn(self, ready: list[tuple[int, int]]) -> None:
        super().turn(ready)
        self._end()

    def _end(self) -> None:
        """Close the sockets when the stage is sealed, committed or failed."""
        session = self.session
        if session.ended and self.link.state is not LinkState.IDLE:
            if session.error is not None:
                self.abandon(time.monotonic_ns())
            self.link.stop(BYE_LINGER_MS)
            self._close_push()

    def stop(self, linger_ms: int = 0) -> None:
        super().stop(linger_ms)
        self._close_push()

    def _close_push(self) -> None:
        if self._push is not None:
            self._push.close(linger=0)
            self._push = None

    # The link's peer

    def greeting(self) -> Wire | None:
        return self.session.begin()

    def on_up(self, now_ns: int) -> None:
        if self.session.ended:
            return
        opened = self.link.opened
        if self.link.address.direct:
            endpoint, route = self.link.beside(str(opened.get("push"))), LOCAL_ROUTE
            is_good = bool(endpoint)
        else:
            port, route = opened.get("push_port"), opened.get("route", b"")
            is_good = type(port) is int and 0 < port < 65536 and type(route) is bytes
            endpoint = f"port {port}"
            if isinstance(port, int):
                endpoint = tcp_endpoint(self.link.places.host, port)
        if not is_good:
            named = endpoint or str(opened.get("push"))
            raise UsageError(E_BAD_COMMAND, f"the broker names {named[:200]!r} for pushes")
        try:
            self._push = sockets.make_push(endpoint, self.link.given.credentials)
        except zmq.ZMQError as error:
            raise UsageError(E_BAD_COMMAND, f"cannot push to {endpoint}: {error}") from None
        # If the topic is deleted from now on, it is not created again.
        self.link.target = replace(self.link.target, create=False)
        self._push_endpoint = endpoint
        self._head = [route, b"", encode(Push(self.session.stage))]
        self.pump(now_ns)
        self.sooner(0)

    def on_word(self, message: Wire, blocks: list[Block], now_ns: int) -> Reaction:
        session = self.session
        before = session.progress
        reaction = session.on_word(message, now_ns)
        if session.progress != before:
            self.progress_ns = now_ns
            self._stalled = ""
        return reaction

    def on_received(self, now_ns: int) -> None:
        self.pump(now_ns)

    def on_lost(self) -> None:
        self._close_push()
        self.session.lost()

    def on_refused(self, error: ZsqError) -> None:
        if isinstance(error, NotFound) and self._push_endpoint:
            topic = self.link.target.topic
            error = NotFound(
                error.code,
                f"topic {topic} was deleted while rows were being written to it: {error.text}",
            )
        self.session.fail(error)

    def too_late(self, timeout: float | None) -> ZsqError:
        """Return the error for a time-out without progress."""
        session, link = self.session, self.link
        refusal = session.refusal or link.refusal
        where, limit = f"{link.target} at {self.rotation.url}", format_timeout(timeout)
        away = self.rotation.refusal()
        window = session.window
        have = (
            f"{window.received.blocks} of {window.total.blocks} blocks have arrived, "
            f"{window.durable.blocks} are durable"
        )
        if refusal is not None and refusal.code in PASSING:
            return Refused(
                refusal.code,
                f"{where} accepted no more blocks for {limit}: {refusal.text} ({have})",
            )
        if away is not None:
            text = f"{where}: no progress for {limit}: {away.text} ({have})"
            return Refused(away.code, text)
        why = self._stalled or link.why() or ("no answer" if link.up else link.state.value)
        return BrokerUnreachable(
            E_TIMEOUT,
            f"{where}: no progress for {limit} ({why}); {have}. {advice()}",
        )
