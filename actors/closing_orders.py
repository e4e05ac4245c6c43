"""Manage close and open: durable in the registry, then told to the topic's processes; answered when all that are up have taken it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ..transport import protocol as p
from ..transport.errors import E_BAD_ARGUMENT, E_CLOSED, E_CLOSING, E_TOPIC_FAILED, Refused, UsageError, ZsqError
from .closing import TO_CONSUMERS, after, to_consumers, to_publishers
from .port import Envelope
from .process_table import Child
from .topic_group import TopicGroup

if TYPE_CHECKING:
    from .management import Management

# These leave nobody who thinks otherwise: what is not up starts with what the row says.
_HARMLESS = (E_CLOSING, E_TOPIC_FAILED)


def check_subscribed(group: TopicGroup, channel: str) -> None:
    """`Refused` E_CLOSED for who looks for a channel of a topic that is closed to consumers."""
    if channel and to_consumers(group.row.closed):
        raise Refused(E_CLOSED, TO_CONSUMERS)


def carry_out(management: Management, envelope: Envelope, word: p.Manage, group: TopicGroup) -> None:
    if word.channel:
        raise UsageError(E_BAD_ARGUMENT, "a topic is closed, not one of its channels: pause that, or delete it")
    state = after(group.row.closed, word.action, word.options)
    management.supervisor.registry.close(group.name, state)
    _Closing(management, envelope, word.request, group).tell(state)


class _Closing:
    """One order on its way to all processes of the topic."""

    def __init__(self, management: Management, envelope: Envelope, request: int, group: TopicGroup) -> None:
        self.management = management
        self.envelope = envelope
        self.request = request
        self.group = group
        self._waits = 0
        self._error: ZsqError | None = None

    def tell(self, state: str) -> None:
        self._state = state
        self._waits = 1 + len(self.group.channels)
        for channel in ("", *self.group.channels):  # those on their way up were started with the state before
            self.group.want(channel, partial(self._up, channel))

    def _up(self, channel: str, error: ZsqError | None) -> None:
        group = self.group
        order = {"publishers": to_publishers(self._state), "consumers": to_consumers(self._state)}
        children: list[Child | None] = [group.channels.get(channel)] if channel else [group.storage, group.topic]
        if error is None:
            self._waits += len(children)
            for child in children:
                if child is None:
                    self._answered(None, None)
                else:
                    self.management.order(child, "closed", order, self._answered)
        self._answered(None, error)

    def _answered(self, data: dict[str, Any] | None, error: ZsqError | None) -> None:
        self._waits -= 1
        if error is not None and error.code not in _HARMLESS:
            self._error = self._error or error
        if self._waits == 0:
            self.management.relay(self.envelope, self.request, {"closed": self._state}, self._error)
