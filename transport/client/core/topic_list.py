"""Topic list: the names of the broker's topics, asked for again and again by a consumer with a
pattern.

The supervisor answers both requests from its memory. Its list of topics has only the parts that are
at this broker, so the topics with parts come from the cluster's directory. Both answers contain
only what the key of the client may view.

Rejected: that the broker tells its clients of new topics. That would be a subscription more in the
protocol, in each door, and in the supervisor, to save one small request every few seconds.

Nothing here waits.
"""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Callable
from typing import Any, Final

from ...block.block import Block
from ...errors import E_BAD_COMMAND, E_UNSUPPORTED, UsageError, ZsqError, from_wire
from ...names import base_of
from ...units import NS_PER_S
from ...wire.address import Target
from ...wire.addresses import Rotation
from ...wire.admin_codec import manage_of
from ...wire.admin_requests import AdminRequest, ClusterRequest, ListTopicsRequest
from ...wire.codec import encode
from ...wire.protocol import Done, Failed, Wire
from ..link.engine import Engine
from ..link.link import Link
from ..link.reaction import Reaction
from ..link.timeouts import FAR_NS

log = logging.getLogger("zsq")

LISTED_NS: Final = 5 * NS_PER_S  # how often the broker is asked for its topics
SILENT_NS: Final = 15 * NS_PER_S  # after this silence, the link is opened again
SOON_NS: Final = NS_PER_S // 4  # when to ask again after a topic was deleted


class TopicList:
    """The list of topics, and the peer of the link to the supervisor.

    `heard` is called with the names of all topics, each time. `refused` is called if the broker
    refuses the link.
    """

    def __init__(
        self,
        host: Engine,
        rotation: Rotation,
        passing: frozenset[str],
        heard: Callable[[list[str]], object],
        refused: Callable[[ZsqError], object],
    ) -> None:
        self._host = host
        self._heard = heard
        self._refused = refused
        self.is_known = False  # True when the list was heard once
        self._is_in_cluster = True  # False if the broker has answered that it is in no cluster
        self._number = 0
        self._names: set[str] = set()
        self._asked: type[AdminRequest[Any]] | None = None  # the request that has no answer yet
        self._asked_ns = 0  # when it was sent
        self._next_ns = 0  # when to ask again
        self.link = Link(host, rotation, Target("supervisor"), self, again=passing)
        self.link.needed = lambda: not self.is_known
        self.link.expects = lambda: self._asked is not None
        host.add(self.link)

    def start(self, now_ns: int) -> None:
        self.link.start(now_ns)

    def ask_soon(self, now_ns: int) -> None:
        self._next_ns = min(self._next_ns, now_ns + SOON_NS)
        self._host.sooner(self._next_ns)

    def on_time(self, now_ns: int) -> int:
        """Ask again if that is due. Return when to look again."""
        if not self.link.up:
            return FAR_NS  # it asks when it is up
        if self._asked is not None and now_ns - self._asked_ns >= SILENT_NS:
            self.link.restart(now_ns, "no answer to the request for the topics")
            return FAR_NS
        if self._asked is None and now_ns >= self._next_ns:
            self._begin(now_ns)
        return self._next_ns if self._asked is None else self._asked_ns + SILENT_NS

    def _begin(self, now_ns: int) -> None:
        self._names = set()
        self._ask(ListTopicsRequest, now_ns)

    def _ask(self, kind: type[AdminRequest[Any]], now_ns: int) -> None:
        self._number += 1
        self._asked, self._asked_ns = kind, now_ns
        self.link.send([b"", encode(manage_of(kind(request=self._number)))], now_ns)
        self._host.sooner(0)  # the send may have consumed the event of a reply

    def _pause(self, now_ns: int) -> None:
        self._asked, self._next_ns = None, now_ns + LISTED_NS
        self._host.sooner(self._next_ns)

    def _end(self, now_ns: int) -> None:
        self._pause(now_ns)
        self.is_known = True
        self._heard(sorted(self._names))

    # The link's peer

    def greeting(self) -> Wire | None:
        return None

    def on_up(self, now_ns: int) -> None:
        self._is_in_cluster = True
        self._begin(now_ns)

    def on_word(self, message: Wire, blocks: list[Block], now_ns: int) -> Reaction:
        if not isinstance(message, Done | Failed):
            raise UsageError(E_BAD_COMMAND, f"{type(message).__name__} is no list of topics")
        if message.request != self._number or self._asked is None:
            return Reaction.NOTHING
        if isinstance(message, Failed):
            self._on_failed(message, now_ns)
        elif self._asked is ClusterRequest:
            self._names.update(row["topic"] for row in _checked(message, list | tuple, dict))
            self._end(now_ns)
        else:
            self._names.update(map(base_of, _checked(message, dict, str)))
            if self._is_in_cluster:
                self._ask(ClusterRequest, now_ns)
            else:
                self._end(now_ns)
        return Reaction.NOTHING

    def _on_failed(self, message: Failed, now_ns: int) -> None:
        if self._asked is ClusterRequest and message.code == E_UNSUPPORTED:
            self._is_in_cluster = False
            self._end(now_ns)
            return
        self._pause(now_ns)
        error = from_wire(message.code, message.text)
        if self.is_known:
            log.warning("the topics could not be listed; the last list is used: %s", error)
        else:
            self._refused(error)

    def on_received(self, now_ns: int) -> None:
        """Do nothing: the replies are processed one by one."""

    def on_lost(self) -> None:
        self._asked = None

    def on_refused(self, error: ZsqError) -> None:
        self._asked = None
        self._refused(error)


def _checked(message: Done, rows: Any, row: type) -> Any:
    """Return the topics in an answer. Raises `UsageError` if it does not have this form."""
    topics: Any = message.data.get("topics")
    names = topics if row is str or not isinstance(topics, rows) else map(_name_in, topics)
    if not isinstance(topics, rows) or not all(isinstance(name, str) for name in names):
        raise UsageError(E_BAD_COMMAND, f"{reprlib.repr(message)[:200]} is no list of topics")
    return topics


def _name_in(row: Any) -> Any:
    return row.get("topic") if isinstance(row, dict) else None
