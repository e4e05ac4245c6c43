"""The command to revoke keys: it cancels the messages of a topic that have one of them.

First the delayed messages with these keys are cancelled, in several orders, so that the topic does
other work between them. A message that comes due meanwhile is in the log then. After that, each
channel gets the end of the log, and keeps the keys durably for the messages below it
(`actors/channel/endings.py`). The request is answered when all channels have committed that. If it
fails on the way, some channels have the keys and others do not. The request may be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from ....transport.errors import E_NOT_FOUND, NotFound, ZsqError
from ....transport.wire import protocol as p
from ....transport.wire.admin_requests import AdminRequest, RevokeRequest
from ...statistics.statistics import log_head
from ..topics.topic_group import TopicGroup
from .requests import GroupHandler, Requests, named, starting


class _Revocation:
    def __init__(self, requests: Requests, request: RevokeRequest, group: TopicGroup) -> None:
        self._requests = requests
        self._request = request
        self._group = group
        self._delayed = 0
        self._left = 0
        self._error: ZsqError | None = None
        if not group.channels:
            # Messages that wait for the first channel have nobody who could remember the keys.
            text = f"{named(request)} has no channel, which would keep the keys; create it first"
            self._settle(NotFound(E_NOT_FOUND, text))
            return
        group.want("", self._begin)

    def _begin(self, error: ZsqError | None) -> None:
        if error is not None:
            self._settle(error)
        else:
            self._cancel_delayed(())

    def _cancel_delayed(self, after: tuple[int, ...]) -> None:
        topic = self._group.topic
        if topic is None:
            self._settle(starting(self._request))
            return
        order = partial(p.CancelDelayed, keys=(), revoke_keys=self._request.keys, after=after)
        self._requests.orders.send(topic, order, self._cancelled)

    def _cancelled(self, done: p.Done | None, error: ZsqError | None) -> None:
        if done is None:
            self._settle(error)
            return
        self._delayed += int(done.data["cancelled"])
        after = tuple(done.data["after"])
        if after:
            self._cancel_delayed(after)
            return
        topic = self._group.topic
        if topic is None:
            self._settle(starting(self._request))
            return
        self._requests.gatherings.gather([topic], lambda complete, details: self._tell_channels())

    def _tell_channels(self) -> None:
        channels = list(self._group.channels)
        end = log_head(self._group)  # behind a pause of the topic, too
        self._left = len(channels)
        if not channels:
            self._settle(None)
        for channel in channels:
            self._group.want(channel, partial(self._tell, channel, end))

    def _tell(self, channel: str, end: int, error: ZsqError | None) -> None:
        child = self._group.child(channel)
        if channel not in self._group.channels:  # it was deleted meanwhile
            self._told(None, None)
        elif error is not None or child is None:
            self._told(None, error or starting(self._request))
        else:
            order = partial(p.Revoke, keys=self._request.keys, end=end)
            self._requests.orders.send(child, order, self._told)

    def _told(self, done: p.Done | None, error: ZsqError | None) -> None:
        self._left -= 1
        self._error = self._error or error
        if not self._left:
            self._settle(self._error)

    def _settle(self, error: ZsqError | None) -> None:
        self._requests.settle(self._request.request, error, {"delayed": self._delayed})


def _revoke(requests: Requests, request: RevokeRequest, group: TopicGroup) -> None:
    _Revocation(requests, request, group)


HANDLERS: Final[Mapping[type[AdminRequest[Any]], GroupHandler]] = {RevokeRequest: _revoke}
