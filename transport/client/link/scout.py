"""Scout: looks for the primary at the other addresses while the present one gives no answer.

A machine that hangs, or that is cut off from its network, closes no connection. A primary that is
cut off from the bucket goes on answering heartbeats, but confirms nothing. Its standby takes over
after the patience, which may be 2 s. A client must notice this before its own time-outs end, which
are longer: a silent broker may be only slow, and a client that leaves it loses its leases.

So the link stays. When something has had no answer for `SILENT_NS`, the scout asks the other
addresses for the same topic, one after the other, about every `PAUSE_NS`. A standby refuses. The
links move only if a topic with the same uuid answers: the addresses may be those of several brokers
of a cluster, which are all primaries. So the scout watches no links to supervisors, which have no
such identity.

A client may also wait for nothing: a consumer whose channel is empty, or that gets messages of a
primary that was replaced and does not know. Such a client asks another address now and then, about
every `IDLE_NS`. It moves only if the same topic is there in a later *epoch*, which each takeover
begins. A broker without a bucket has no epoch, and its clients do not ask.

(Heartbeats that are shorter were rejected. They would not help against a primary that is cut off
from the bucket, and each stall of a network would end all leases.) If the old primary does not know
yet that it has lost, both answer. A client that knows both epochs never goes back to the earlier
one. Otherwise it may go back and forth, but the old primary has no lease, and so it confirms no
publish and no finish.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ...wire.address import Address, Target
from ...wire.addresses import Addresses, Rotation
from .link import SCOUT_LOOK_NS, Link, Peer
from .reaction import Reaction
from .timeouts import FAR_NS, MS

if TYPE_CHECKING:
    from ...block.block import Block
    from ...errors import ZsqError
    from ...wire.protocol import Wire

SOON_NS: Final = 50 * MS  # how often the scout looks for its own answer
SILENT_NS: Final = 1_000 * MS
PAUSE_NS: Final = 500 * MS
# After so many tries, the pause is longer, so that many clients do not keep a standby busy.
TRIES_SOON: Final = 40
PAUSE_LATER_NS: Final = 5_000 * MS
TRY_NS: Final = 1_000 * MS  # the time for one try
IDLE_NS: Final = 30_000 * MS  # how often a client asks that waits for no answer


def _epoch_of(link: Link) -> int:
    """Return the epoch of the broker to which this link leads, or 0 if it is not known."""
    epoch = link.opened.get("epoch", 0)
    return epoch if isinstance(epoch, int) else 0


def _is_waiting(link: Link) -> bool:
    return len(link.rotation.each) > 1 and bool(link.opened.get("uuid")) and link.waits


def _soon(pause_ns: int) -> int:
    return int(pause_ns * random.uniform(0.5, 1.0))


class Scout:
    """The scout of one client, and the peer of its own link, which leads where the silent one does.

    `make` makes a link with a rotation, a target and its peer.
    """

    def __init__(self, make: Callable[[Rotation, Target, Peer], Link]) -> None:
        self._make = make
        self._link: Link | None = None
        self._address: Address | None = None  # where the link leads
        self._uuid = ""  # the topic that must be there
        self._epoch = 0  # the epoch of its broker must not be earlier than this one
        self._tries = 0
        self._began_ns = 0  # when the present try began
        self._again_ns = 0  # when the next try may begin
        self._is_there = False  # True if the primary has answered the present try
        self._idle_ns = 0  # when a client that waits for no answer asks again
        self._is_idle = False  # True if the present try is that of such a client
        # Since when no answer has come to each link that waits for one.
        self._since_ns: dict[Link, int] = {}

    def on_time(self, now_ns: int, links: Sequence[Link]) -> int:
        """Look at the links, and ask other addresses if one is silent. Return the next time."""
        waiting = [link for link in links if _is_waiting(link)]
        self._since_ns = {link: self._silent_since(link, now_ns) for link in waiting}
        silent = [link for link in waiting if now_ns - self._since_ns[link] >= SILENT_NS]
        if not silent:
            if not self._is_idle:
                self.stop()
            self._tries = 0
            return min(now_ns + SCOUT_LOOK_NS if waiting else FAR_NS, self._on_idle(now_ns, links))
        if self._is_idle:
            self.stop()
        if self._link is None and now_ns >= self._again_ns:
            self._try(now_ns, silent[0])
        return self._go_on(now_ns, links)

    def _on_idle(self, now_ns: int, links: Sequence[Link]) -> int:
        """Ask another address now and then, although no answer is late. Return the next time."""
        idle = [
            link for link in links if link.up and len(link.rotation.each) > 1 and _epoch_of(link)
        ]
        if not idle:
            self.stop()
            self._idle_ns = 0
            return FAR_NS
        if not self._is_idle and now_ns >= self._idle_ns:
            is_first, self._idle_ns = not self._idle_ns, now_ns + _soon(IDLE_NS)
            if not is_first:
                self._try(now_ns, idle[0])
                self._epoch, self._is_idle = self._epoch + 1, True
        if not self._is_idle:
            return self._idle_ns
        next_ns = self._go_on(now_ns, links)
        return next_ns if self._is_idle else self._idle_ns

    def _go_on(self, now_ns: int, links: Sequence[Link]) -> int:
        """Continue the present try. Return the next time."""
        if self._is_there:
            self._move(now_ns, links)
        elif self._link is not None:
            self._link.on_time(now_ns)
            # One that is up, and did not find the topic, ends after its time too.
            if self._link.down or now_ns - self._began_ns >= TRY_NS:
                self.stop()
        return now_ns + (SCOUT_LOOK_NS if self._link is None else SOON_NS)

    def stop(self) -> None:
        """Close the link."""
        if self._link is not None:
            self._link.stop()
        self._link = self._address = None
        self._is_there = self._is_idle = False

    def _silent_since(self, link: Link, now_ns: int) -> int:
        since_ns = self._since_ns.get(link, 0)
        return since_ns if since_ns and link.word_ns <= since_ns else now_ns

    def _try(self, now_ns: int, silent: Link) -> None:
        others = silent.rotation.others
        self._address = others[self._tries % len(others)]
        self._tries += 1
        pause_ns = PAUSE_NS if self._tries < TRIES_SOON else PAUSE_LATER_NS
        self._again_ns = now_ns + _soon(pause_ns)
        self._began_ns = now_ns
        alone = Rotation(Addresses((self._address,)), moves=True)
        self._uuid, self._epoch = silent.opened["uuid"], _epoch_of(silent)
        self._link = self._make(alone, replace(silent.target, create=False), self)
        self._link.stays = True  # a broker that does not have the part must not send it on
        self._link.start(now_ns)

    def _move(self, now_ns: int, links: Iterable[Link]) -> None:
        """Let the links that have this address go to it, because the primary is there."""
        address = self._address
        self.stop()
        for link in links:
            if address is not None and address in link.rotation.each and link.given != address:
                link.rotation.go_to(address)
                self._since_ns.pop(link, None)
                link.restart(now_ns, f"the primary is now at {address.url}", at_once=True)

    # The peer of its link

    def greeting(self) -> Wire | None:
        return None

    def on_up(self, now_ns: int) -> None:
        if self._link is None or self._link.opened.get("uuid") != self._uuid:
            return
        epoch = _epoch_of(self._link)
        # Without an epoch, only a silent link goes there.
        self._is_there = epoch >= self._epoch if epoch else not self._is_idle

    def on_word(self, message: Wire, blocks: list[Block], now_ns: int) -> Reaction:
        return Reaction.NOTHING

    def on_received(self, now_ns: int) -> None:
        """Do nothing: the answer to the request to open the topic is all that counts."""

    def on_lost(self) -> None:
        self._is_there = False

    def on_refused(self, error: ZsqError) -> None:
        """Do nothing: the link is down then."""
