"""Consumer engine: a consumer's session, its link, and the messages that it sends.

Nothing here waits.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ...block.block import Block
from ...errors import (
    E_LEASE,
    E_LIMIT,
    E_TIMEOUT,
    BrokerUnreachable,
    LeaseLost,
    ZsqError,
    advice,
    from_wire,
)
from ...names import check_name
from ...settings import CHANNEL
from ...wire.address import Address, Target
from ...wire.addresses import Addresses, Rotation
from ...wire.codec import encode
from ...wire.protocol import Wire
from .consumer_session import Confirm, ConsumerSession, ConsumerState, LeasedBlock
from .link import AGAIN, FAR_NS, Engine, Link, Steps, check_timeout, so_long, until_ns
from .producer_session import Reaction

log = logging.getLogger("zsq")

TELL_NS: Final = 20_000_000  # how long plain finishes may wait before they are sent
# While delivered messages still wait for the user, finishes are sent only when their number reaches
# 1/4 of the ready count. This causes fewer wake-ups.
TELL_SHARE: Final = 4
CLOSED: Final = (
    "the consumer of this message is closed; the message was returned to the channel and is "
    "delivered again"
)
WORDS_MAX: Final = 5_000  # the most protocol messages that are sent before the socket is drained


class ConsumerEngine(Engine):
    """The engine of one consumer of one channel, and the peer of its link."""

    def __init__(
        self,
        address: Address | Addresses,
        topic: str,
        channel: str,
        session: ConsumerSession,
        heartbeat_ms: int | None,
        settings: Mapping[str, object],
    ) -> None:
        super().__init__()
        self.rotation = Rotation(address)
        self.session = session
        self._wanted_heartbeat_ms = heartbeat_ms  # None: the default of each address
        self.target = Target(
            "channel", check_name(topic), check_name(channel, "channel"), settings=settings
        )
        self.link = Link(self, self.rotation, self.target, self)
        self.link.heartbeat_ms = self._heartbeat_ms()
        self.error: ZsqError | None = None  # the broker's refusal of the subscription
        self.down_ns = time.monotonic_ns()  # when the last link was lost
        self.closing = False
        self._compared = False
        # A function that is called when all leases are void. It drops the messages that no handler
        # has begun.
        self.on_void: Callable[[], object] = lambda: None
        self.add(self.link)

    def start(self) -> None:
        """Start the link, unless a refusal must be raised first.

        The refusal comes first. Otherwise each call would start an attempt, and the next call would
        raise its refusal.
        """
        if self.error is None:
            self.link.start(time.monotonic_ns())

    # Outgoing messages

    def tell(self, now_ns: int) -> None:
        """Send the answers that were gathered."""
        session, link = self.session, self.link
        if not link.up:
            if session.dirty:
                session.collect()  # the leases are void now, so this counts the finishes as stale
            return
        words = session.collect()
        while words and link.up:
            for _ in range(min(len(words), WORDS_MAX)):
                link.send([b"", encode(words.popleft())], now_ns)
            link.receive(now_ns)
            words = session.collect()

    def timers(self, now_ns: int) -> None:
        super().timers(now_ns)
        if self.session.dirty or self.session.words:
            self.tell(now_ns)

    # Incoming messages: the link's peer

    def greeting(self) -> Wire:
        return self.session.begin(self._heartbeat_ms())

    def _heartbeat_ms(self) -> int:
        return self._wanted_heartbeat_ms or self.link.given.heartbeat_ms

    def on_word(self, message: Wire, blocks: list[Block], now_ns: int) -> Reaction:
        return self.session.on_word(message, blocks, now_ns)

    def on_up(self, now_ns: int) -> None:
        self.link.heartbeat_ms = self.session.heartbeat_ms
        self.session.node = self.link.opened.get("node", 0)
        self._compare(self.link.opened.get("settings"))
        # The channel has a place for this consumer. If the next link is refused with E_LIMIT, the
        # lost link of this consumer still holds the place.
        self.link.passing = AGAIN | {E_LIMIT}
        self.error = None

    def _compare(self, settings: object) -> None:
        """Warn, once, about settings that have no effect because the channel existed before."""
        if self._compared or not isinstance(settings, dict):
            return
        self._compared = True
        asked = [
            (row.name, self.target.settings.get(row.name))
            for row in CHANNEL
            if row.name in settings and not row.fixed
        ]
        differ = [
            f"{name} {settings[name]!r}, not {value!r}"
            for name, value in asked
            if value is not None and settings[name] != value
        ]
        if differ:
            text = (
                "channel %s/%s already existed and has %s; the settings of this consumer do "
                "not change it (use `zsq channel set`)"
            )
            log.warning(text, self.target.topic, self.target.channel, ", ".join(differ))

    def on_received(self, now_ns: int) -> None:
        """Do nothing, because the user decides when to answer."""

    def on_lost(self) -> None:
        self.down_ns = time.monotonic_ns()
        self.session.lost()
        self.on_void()

    def on_refused(self, error: ZsqError) -> None:
        self.error = error

    # For waiting callers

    @property
    def open(self) -> bool:
        return self.session.state is ConsumerState.OPEN

    def unreachable(self, timeout: float | None) -> int:
        """Return when to give up waiting for a link.

        Return `FAR_NS` while there is a link, or if `timeout` is None. If the channel has no place
        for another consumer, wait at least three heartbeats, even if the time-out is shorter. The
        place of a consumer whose link was lost becomes free only after two heartbeats.
        """
        seconds = check_timeout(timeout)
        if self._full() is not None:
            seconds = max(seconds or 0.0, 3 * self.link.heartbeat_ms / 1_000)
        return FAR_NS if self.link.up or seconds is None else self.down_ns + int(seconds * 1e9)

    def _full(self) -> ZsqError | None:
        refusal = self.link.refusal
        return refusal if refusal is not None and refusal.code == E_LIMIT else None

    def news(self, was_up: bool) -> bool:
        """Return True if a caller that waits for a delivery must check again."""
        return bool(self.session.arrived) or self.error is not None or self.link.up != was_up

    def raise_refused(self) -> None:
        """Raise the broker's refusal, once. The next call tries again."""
        error, self.error = self.error, None
        if error is not None:
            raise error

    def give_up_at(self, now_ns: int, timeout: float | None) -> None:
        """Raise if there was no link for the whole time-out. The time-out then begins again."""
        if now_ns >= self.unreachable(timeout):
            self.down_ns = now_ns
            full = self._full()
            if full is not None:
                raise full
            raise self.too_late(timeout, "no link to")

    def too_late(self, timeout: float | None, what: str) -> ZsqError:
        late = f"{what} {self.target} at {self.rotation.url} within {so_long(timeout)}"
        refusal = self.rotation.refusal()
        if refusal is not None:
            return from_wire(refusal.code, f"{late}: {refusal.text}")
        why = self.link.why() or self.link.state.value
        return BrokerUnreachable(E_TIMEOUT, f"{late} ({why}). {advice()}")

    # Steps of calls; see `Steps`. `closing`: True if the consumer takes no more messages

    def subscribe(self, timeout: float | None, closing: Callable[[], bool]) -> Steps[None]:
        self.error = None
        self.start()
        ready = yield (lambda: self.open or self.error is not None or closing(), until_ns(timeout))
        self.raise_refused()
        if not ready:
            self.down_ns = time.monotonic_ns()
            raise self.too_late(timeout, "could not subscribe to")

    def take(
        self,
        deadline_ns: int,
        timeout: float | None,
        closing: Callable[[], bool],
        shared: Callable[[], bool],
    ) -> Steps[LeasedBlock | None]:
        """Return the next delivery.

        Return None at the deadline, when the consumer closes, or when `shared()` is true. This
        means that another caller took a delivery, and some of its messages still wait.
        """
        session = self.session
        self.start()
        if not session.arrived or session.untold >= session.ready // TELL_SHARE:
            self.tell(time.monotonic_ns())
        while not (closing() or shared()):
            if session.arrived:
                return session.arrived.popleft()
            self.raise_refused()
            up = self.link.up
            limit_ns = min(deadline_ns, self.unreachable(timeout))
            yield (lambda up=up: self.news(up) or closing() or shared(), limit_ns)  # type: ignore[misc]
            now = time.monotonic_ns()
            if session.arrived or closing() or shared() or now < limit_ns:
                continue
            if now >= deadline_ns:
                return None
            self.give_up_at(now, timeout)
        return None

    def finish_sync(
        self, delivery: LeasedBlock, indexes: Sequence[int], timeout: float
    ) -> Steps[None]:
        yield from self._confirmed(self.session.finish_sync(delivery, indexes), timeout)

    def flush(self, timeout: float) -> Steps[None]:
        """Wait until all plain finishes are committed.

        Raises `LeaseLost` if some were lost or late since the last flush.
        """
        session = self.session
        with contextlib.suppress(LeaseLost):  # the session counts lost leases; see below
            yield from self._confirmed(session.barrier(), timeout)
        if missed := session.take_missed():
            raise LeaseLost(
                E_LEASE,
                (
                    f"{missed} finishes were not confirmed or arrived too late; those messages may "
                    "be delivered again"
                ),
            )

    def _confirmed(self, confirm: Confirm, timeout: float) -> Steps[None]:
        self.tell(time.monotonic_ns())
        if not (yield (lambda: confirm.done, until_ns(timeout))):
            raise self.too_late(timeout, "no confirmation from")
        if confirm.error is not None:
            raise confirm.error

    def requeue(
        self, delivery: LeasedBlock, indexes: Sequence[int], delay_ms: int, error: str
    ) -> None:
        self.session.requeue(delivery, indexes, delay_ms, error)
        self.tell(time.monotonic_ns())

    def touch(self, delivery: LeasedBlock) -> None:
        delivery.received_ns = time.monotonic_ns()
        self.session.touch(delivery)
        self.tell(time.monotonic_ns())

    def leave(self, idle: Callable[[], bool], deadline_ns: int) -> Steps[None]:
        """Take no more messages, wait until the handlers are `idle`, and confirm the finishes."""
        session = self.session
        try:
            session.leave()
            self.tell(time.monotonic_ns())
            yield (idle, deadline_ns)
            session.over = CLOSED
            confirm = session.barrier()
            self.tell(time.monotonic_ns())
            yield (lambda: confirm.done, deadline_ns)
            # This includes finishes that were lost since the last flush. Nothing else reports them.
            if missed := session.take_missed() + session.unconfirmed:
                text = (
                    "%s: consumer closed, but %d finishes were not confirmed or arrived too "
                    "late; those messages may be delivered again"
                )
                log.warning(text, f"{self.target.topic}/{self.target.channel}", missed)
        finally:
            session.over = CLOSED
