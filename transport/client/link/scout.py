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
(Heartbeats that are shorter were rejected. They would not help against a primary that is cut off
from the bucket, and each stall of a network would end all leases.) If the old primary does not know
yet that it has lost, both answer. The client may then go back and forth, but the old primary has no
lease, and so it confirms no publish and no finish.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from ...wire.address import Address, Target
from ...wire.addresses import Addresses, Rotation
from .reaction import Reaction

if TYPE_CHECKING:
    from ...block.block import Block
    from ...errors import ZsqError
    from ...wire.protocol import Wire

MS: Final = 1_000_000
LOOK_NS: Final = 250 * MS  # how often links are looked at while they wait for an answer
SOON_NS: Final = 50 * MS  # how often the scout looks for its own answer
SILENT_NS: Final = 1_000 * MS
PAUSE_NS: Final = 500 * MS
# After so many tries, the pause is longer, so that many clients do not keep a standby busy.
TRIES_SOON: Final = 40
PAUSE_LATER_NS: Final = 5_000 * MS
TRY_NS: Final = 1_000 * MS  # the time for one try
FAR_NS: Final = 1 << 62


class Watched(Protocol):
    """A link of the client."""

    rotation: Rotation
    given: Address
    target: Target
    opened: dict[str, Any]
    silent_ns: int
    word_ns: int

    @property
    def waits(self) -> bool: ...

    def restart(self, now_ns: int, why: str, *, at_once: bool = False) -> None: ...


class OwnLink(Protocol):
    """The link of the scout."""

    opened: dict[str, Any]
    stays: bool

    @property
    def down(self) -> bool: ...

    def start(self, now_ns: int) -> None: ...
    def stop(self, linger_ms: int = 0) -> None: ...
    def on_time(self, now_ns: int) -> int: ...


class Scout:
    """The scout of one client, and the peer of its own link, which leads where the silent one does.

    `make` makes a link with a rotation, a target and its peer.
    """

    def __init__(self, make: Callable[[Rotation, Target, Any], OwnLink]) -> None:
        self._make = make
        self._link: OwnLink | None = None
        self._asked: Address | None = None  # where the link leads
        self._uuid = ""  # the topic that must be there
        self._tries = 0
        self._began_ns = 0  # when the present try began
        self._again_ns = 0  # when the next try may begin
        self._found = False

    def on_time(self, now_ns: int, links: Sequence[Watched]) -> int:
        """Look at the links, and ask other addresses if one is silent. Return the next time."""
        waiting = [link for link in links if self._is_waiting(link, now_ns)]
        silent = [link for link in waiting if now_ns - link.silent_ns >= SILENT_NS]
        if not silent:
            self.stop()
            self._tries = 0
            return now_ns + LOOK_NS if waiting else FAR_NS
        if self._found:
            self._move(now_ns, links)
            return now_ns + LOOK_NS
        if self._link is None and now_ns >= self._again_ns:
            self._try(now_ns, silent[0])
        if self._link is not None:
            self._link.on_time(now_ns)
            # One that is up, and did not find the topic, ends after its time too.
            if self._link.down or now_ns - self._began_ns >= TRY_NS:
                self.stop()
        return now_ns + (LOOK_NS if self._link is None else SOON_NS)

    def stop(self) -> None:
        """Close the link."""
        if self._link is not None:
            self._link.stop()
        self._link = self._asked = None
        self._found = False

    def _is_waiting(self, link: Watched, now_ns: int) -> bool:
        if len(link.rotation.each) < 2 or not link.opened.get("uuid") or not link.waits:
            link.silent_ns = 0
            return False
        if not link.silent_ns or link.word_ns > link.silent_ns:
            link.silent_ns = now_ns
        return True

    def _try(self, now_ns: int, silent: Watched) -> None:
        others = silent.rotation.others
        self._asked = others[self._tries % len(others)]
        self._tries += 1
        pause_ns = PAUSE_NS if self._tries < TRIES_SOON else PAUSE_LATER_NS
        self._again_ns = now_ns + int(pause_ns * random.uniform(0.5, 1.0))
        self._began_ns = now_ns
        alone = Rotation(Addresses((self._asked,)), moves=True)
        self._uuid = silent.opened["uuid"]
        self._link = self._make(alone, replace(silent.target, create=False), self)
        self._link.stays = True  # a broker that does not have the part must not send it on
        self._link.start(now_ns)

    def _move(self, now_ns: int, links: Iterable[Watched]) -> None:
        """Let the links that have this address go to it, because the primary is there."""
        asked = self._asked
        self.stop()
        for link in links:
            if asked is not None and asked in link.rotation.each and link.given != asked:
                link.rotation.go_to(asked)
                link.silent_ns = 0
                link.restart(now_ns, f"the primary is now at {asked.url}", at_once=True)

    # The peer of its link

    def greeting(self) -> Wire | None:
        return None

    def on_up(self, now_ns: int) -> None:
        self._found = self._link is not None and self._link.opened.get("uuid") == self._uuid

    def on_word(self, message: Wire, blocks: list[Block], now_ns: int) -> Reaction:
        return Reaction.NOTHING

    def on_received(self, now_ns: int) -> None:
        """Do nothing: the answer to the request to open the topic is all that counts."""

    def on_lost(self) -> None:
        self._found = False

    def on_refused(self, error: ZsqError) -> None:
        """Do nothing: the link is down then."""
