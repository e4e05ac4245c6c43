"""A consumer's engine: its session and link, and the words that go out. Nothing here waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from .address import ADVICE, Address, Target
from .block import Block
from .codec import encode
from .engine import FAR_NS, Engine
from .errors import E_LIMIT, E_TIMEOUT, BrokerUnreachable, ZsqError
from .link import AGAIN, Link
from .names import check_name
from .protocol import Wire
from .session import Reaction
from .session_consumer import ConsumerSession, ConsumerState

TELL_NS: Final = 20_000_000  # plain finishes are told at the latest after this
WORDS_MAX: Final = 5_000  # sent at a time, before the socket is drained


class ConsumerEngine(Engine):
    """One consumer of one channel; the peer of its link."""

    def __init__(
        self, address: Address, topic: str, channel: str, session: ConsumerSession, heartbeat_ms: int | None, settings: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.address = address
        self.session = session
        self.heartbeat_ms = heartbeat_ms or address.heartbeat_ms
        self.target = Target("channel", check_name(topic), check_name(channel, "channel"), settings=settings)
        self.link = Link(self, address, self.target, self, self.heartbeat_ms)
        self.error: ZsqError | None = None  # the broker refused the subscription
        self.down_ns = time.monotonic_ns()  # since when there is no link
        self.closing = False
        self.on_void: Callable[[], object] = lambda: None  # all leases are void: forget what nobody began to handle
        self.add(self.link)

    def start(self) -> None:
        """Not while a refusal is to be told first: else each call would raise what the attempt of the one before has met."""
        if self.error is None:
            self.link.start(time.monotonic_ns())

    # Out

    def tell(self, now_ns: int) -> None:
        """Send the answers that were gathered."""
        session, link = self.session, self.link
        if not link.up:
            if session.dirty:
                session.collect()  # leases are void by now: it counts them
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

    # In: the link's peer

    def greeting(self) -> Wire:
        return self.session.begin(self.heartbeat_ms)

    def on_word(self, word: Wire, blocks: list[Block], now_ns: int) -> Reaction:
        return self.session.on_word(word, blocks, now_ns)

    def on_up(self, now_ns: int) -> None:
        self.link.heartbeat_ms = self.session.heartbeat_ms
        self.link.passing = AGAIN | {E_LIMIT}  # it has a place: if one is missing later, its own lost link still holds it
        self.error = None

    def on_received(self, now_ns: int) -> None:
        """Nothing follows from words by itself: a person answers."""

    def on_lost(self) -> None:
        self.down_ns = time.monotonic_ns()
        self.session.lost()
        self.on_void()

    def on_refused(self, error: ZsqError) -> None:
        self.error = error

    # For who waits

    @property
    def open(self) -> bool:
        return self.session.state is ConsumerState.OPEN

    def unreachable(self, timeout_ns: int) -> int:
        """When to give up waiting for a link: `FAR_NS` while there is one. A lost one holds its place for two heartbeats."""
        if self._full() is not None:
            timeout_ns = max(timeout_ns, 3 * self.link.heartbeat_ms * 1_000_000)
        return FAR_NS if self.link.up else self.down_ns + timeout_ns

    def _full(self) -> ZsqError | None:
        refusal = self.link.refusal
        return refusal if refusal is not None and refusal.code == E_LIMIT else None

    def news(self, was_up: bool) -> bool:
        """Something to look at for who waits for a delivery."""
        return bool(self.session.arrived) or self.error is not None or self.link.up != was_up

    def raise_refused(self) -> None:
        """What the broker refused, told once; the next call tries again."""
        error, self.error = self.error, None
        if error is not None:
            raise error

    def give_up_at(self, now_ns: int, timeout: float) -> None:
        """Raise if there was no link for the whole time-out; the next call waits as long again."""
        if now_ns >= self.unreachable(int(timeout * 1e9)):
            self.down_ns = now_ns
            full = self._full()
            if full is not None:
                raise full
            raise self.too_late(timeout, "no link to")

    def too_late(self, timeout: float, what: str) -> BrokerUnreachable:
        why = self.link.trouble or self.link.state.value
        text = f"{what} {self.target} at {self.address.url} within {timeout:g} s ({why}). {ADVICE}"
        return BrokerUnreachable(E_TIMEOUT, text)
