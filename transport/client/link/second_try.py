"""Second try: connects a second time where a link is silent, to learn whether the link is dead.

A firewall that forgets a connection, and a network that is back after a while, leave a connection
on which nothing arrives. (TCP sends again after pauses that double, so after a loss of 30 s it may
be silent for another 30 s.) The link alone cannot tell this from a broker that hangs for a moment,
and a link that is left loses its leases. So a link to a single address is left only in the last row
of this table. What makes it so is not the second connection, but the answer of the target itself,
because a gateway may answer for a topic that hangs.

| the link | the second try | what follows |
|---|---|---|
| something arrives, or 4 KiB of a large frame move | is closed | the link stays |
| silent: a heartbeat has had no answer for `SILENT_NS` | begins, about every `TRY_NS` | it stays |
| silent | no answer: the network is away, or the broker hangs | the link stays |
| silent | the gateway answers, the target does not: it hangs | the link stays |
| silent, and then for `GRACE_NS` more | the target has answered a heartbeat | the link starts again |

A link over ipc needs none of this. One that leaves its address when it is silent is watched by
ZeroMQ (`PING_MS`). Where the system does not say how many bytes move, which only Linux does, a slow
link looks like a dead one. So these links end after two heartbeats, as all links do.

A client has one second try at a time. Its silent links take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ...wire.address import Target
from ...wire.addresses import Addresses, Rotation
from .link import Link, Peer
from .reaction import Reaction
from .timeouts import FAR_NS, MS
from .watch import SILENT_NS

if TYPE_CHECKING:
    from ...block.block import Block
    from ...errors import ZsqError
    from ...wire.protocol import Wire

TRY_NS: Final = 4_000 * MS  # the time for one try: TCP asks at 0, 1 and 3 s
GRACE_NS: Final = 1_000 * MS  # so long after the target's answer, the link may still answer
LOOK_NS: Final = 50 * MS  # how often a try is looked at


class SecondTry:
    """The second try of one client, and the peer of its own link.

    `make` makes a link with a rotation, a target and its peer.
    """

    def __init__(self, make: Callable[[Rotation, Target, Peer], Link]) -> None:
        self._make = make
        self._link: Link | None = None
        self._of: Link | None = None  # the link whose target is asked
        self._began_ns = 0
        self._beat_ns = 0  # when the target was asked, else 0
        self._tries = 0
        # When the targets of silent links have answered.
        self._answered: dict[Link, int] = {}

    def on_time(self, now_ns: int, links: Sequence[Link]) -> int:
        """Look at the links, and leave those that are dead. Return the next time."""
        since = {link: link.silent_since(now_ns) for link in links}
        silent = [link for link in links if 0 < since[link] <= now_ns - SILENT_NS]
        if self._of is not None and self._of not in silent:
            self.stop()
        self._go_on(now_ns)
        # What the target has answered counts only while the link is silent, and was so before.
        answered = {
            link: at_ns for link, at_ns in self._answered.items() if 0 < since.get(link, 0) < at_ns
        }
        dead = [link for link, at_ns in answered.items() if now_ns - at_ns >= GRACE_NS]
        self._answered = {link: answered[link] for link in answered if link not in dead}
        for link in dead:
            link.restart(now_ns, "it was silent, and a second one was answered", at_once=True)
        left = [link for link in silent if link not in answered]
        if left and self._link is None:
            self._begin(now_ns, left[self._tries % len(left)])
        return now_ns + LOOK_NS if left or self._answered else FAR_NS

    def _begin(self, now_ns: int, silent: Link) -> None:
        self._tries += 1
        alone = Rotation(Addresses((silent.given,)), moves=True)
        self._of = silent
        self._link = self._make(alone, replace(silent.target, create=False), self)
        self._link.stays = True  # a broker that does not have the part must not send it on
        self._began_ns, self._beat_ns = now_ns, 0
        self._link.start(now_ns)

    def _go_on(self, now_ns: int) -> None:
        """Continue the present try, and note the answer of its target."""
        link, of = self._link, self._of
        if link is None or of is None:
            return
        if not link.down:
            link.on_time(now_ns)
        # A target that does not know this client answers with Bye.
        if self._beat_ns and link.heard_ns > self._beat_ns:
            self._answered[of] = link.heard_ns
            self.stop()
        elif link.down or now_ns - self._began_ns >= TRY_NS:
            self.stop()

    def stop(self) -> None:
        """Close the link."""
        if self._link is not None:
            self._link.stop()
        self._link = self._of = None

    # The peer of its link

    def greeting(self) -> Wire | None:
        return None

    def on_up(self, now_ns: int) -> None:
        """Ask the target, if it is the same one."""
        link, of = self._link, self._of
        if link is None or of is None or link.opened.get("uuid") != of.opened.get("uuid"):
            return
        self._beat_ns = now_ns
        link.beat(now_ns)

    def on_word(self, message: Wire, blocks: list[Block], now_ns: int) -> Reaction:
        return Reaction.NOTHING

    def on_received(self, now_ns: int) -> None:
        """Do nothing: that something has arrived is all that counts."""

    def on_lost(self) -> None:
        """Do nothing: the link is down then."""

    def on_refused(self, error: ZsqError) -> None:
        """Do nothing: the link is down then."""
