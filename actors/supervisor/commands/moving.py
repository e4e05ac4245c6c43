"""Commands about a channel's position: seek and empty move it, skip finishes chosen messages, and
peek only shows messages.

All of them need the topic's current start and end. The topic's storage turns a time into an offset.
The client cannot do this, because its clock may differ, and retention may remove the message
meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from ....transport.errors import E_BAD_ARGUMENT, UsageError, ZsqError
from ....transport.wire import protocol as p
from ....transport.wire.admin_requests import (
    AdminRequest,
    EmptyRequest,
    PeekRequest,
    PreviewSkipRequest,
    SeekRequest,
    SkipRequest,
)
from ...runtime.process_table import Child
from ...settings import options
from ...statistics.statistics import reach
from ..topics.topic_group import TopicGroup
from .requests import AnswerT, GroupHandler, Requests, named, starting

CLOCKS_DIFFER_S: Final = 60.0  # a time this far ahead of the broker's clock still counts as now


def check_time(request: SeekRequest) -> None:
    """Raise `UsageError` (E_BAD_ARGUMENT) for a time in the future, unless it means the end."""
    ahead_s = ((request.time_ns or 0) - time.time_ns()) / 1e9
    if ahead_s > CLOCKS_DIFFER_S and not request.clamp:
        text = (
            f"that time is {ahead_s:,.0f} s ahead of the broker's clock, so {named(request)} "
            "would skip all waiting messages"
        )
        raise UsageError(
            E_BAD_ARGUMENT,
            f"{text}. To skip them, seek to latest or use clamp (zsq seek --clamp)",
        )


def check_limit(request: PeekRequest) -> None:
    if not 1 <= request.limit <= options.PEEK_MAX:
        text = f"peek shows 1 to {options.PEEK_MAX} messages of each kind, not {request.limit}"
        raise UsageError(E_BAD_ARGUMENT, text)


def _with_channel(
    requests: Requests,
    request: AdminRequest[Any],
    group: TopicGroup,
    then: Callable[[Child], None],
) -> None:
    """Call `then` with the channel's process, when the ends of the topic are known again."""
    ends = [group.topic] if group.topic is not None and group.topic.state == "up" else []
    requests.gatherings.gather(
        ends, lambda complete, details: requests.when_up(request, group, then)
    )


def _seek(requests: Requests, request: SeekRequest, group: TopicGroup) -> None:
    check_time(request)
    answer = partial(requests.settle, request.request)

    def moved(position: p.Position | None, error: ZsqError | None) -> None:
        answer(error, {"offset": position.offset} if position is not None else None)

    def move(offset: int) -> None:
        channel = group.child(request.channel)
        if channel is None:
            answer(starting(request))
            return
        seek = partial(
            p.Seek,
            offset=offset,
            **reach(group),
            clamp=request.clamp,
            forward=request.forward,
        )
        requests.orders.send(channel, seek, moved)

    def found(position: p.Position | None, error: ZsqError | None) -> None:
        if position is None:
            answer(error)
        else:
            move(position.offset)

    def ready(channel: Child) -> None:
        if request.time_ns is None:
            move(request.offset or 0)
        elif group.topic is None:
            answer(starting(request))
        else:
            order = partial(p.FindOffset, time_ns=request.time_ns)
            requests.orders.send(group.topic, order, found)

    _with_channel(requests, request, group, ready)


def _skip(requests: Requests, request: SkipRequest, group: TopicGroup) -> None:
    def skip(channel: Child) -> None:
        order = partial(
            p.SkipMessages,
            offsets=request.offsets,
            head=reach(group)["head"],
            preview=isinstance(request, PreviewSkipRequest),
        )
        requests.orders.send(channel, order, partial(requests.relay, request.request))

    _with_channel(requests, request, group, skip)


def _peek(requests: Requests, request: PeekRequest, group: TopicGroup) -> None:
    check_limit(request)

    def peek(channel: Child) -> None:
        order = partial(p.Peek, limit=request.limit, **reach(group))
        requests.orders.send(channel, order, partial(requests.relay, request.request))

    _with_channel(requests, request, group, peek)


def _empty(requests: Requests, request: EmptyRequest, group: TopicGroup) -> None:
    if not request.channel:
        _EmptyTopic(requests, request, group)
        return

    def empty(error: ZsqError | None) -> None:
        channel = group.child(request.channel)
        if error is not None or channel is None:
            requests.fail(request.request, error or starting(request))
            return
        order = partial(p.EmptyChannel, head=reach(group)["head"])
        requests.orders.send(channel, order, partial(requests.relay, request.request))

    _with_channel(
        requests,
        request,
        group,
        lambda channel: cancel_delayed(requests, request, group, 1, empty),
    )


def cancel_delayed(
    requests: Requests, message: EmptyRequest, group: TopicGroup, channels: int,
    then: Callable[[ZsqError | None], None],
) -> None:  # fmt: skip
    """Cancel the delayed messages that wait now, if the topic has this number of channels: the one
    that is emptied, or none. If there are others, they get these messages when they are due.

    This takes several orders, so that the topic does other work between them. Messages that are
    delayed meanwhile may stay.
    """
    if len(group.channels) != channels:
        then(None)
        return
    left = 0

    def send(make: Callable[[int], p.Order[p.Done]], done: Callable[[p.Done], None]) -> None:
        def answered(done_order: p.Done | None, error: ZsqError | None) -> None:
            if done_order is None:
                then(error)
            else:
                done(done_order)

        if group.topic is None:
            then(starting(message))
        else:
            requests.orders.send(group.topic, make, answered)

    def counted(answer: p.Done) -> None:
        nonlocal left
        left = _count(answer, "messages")
        go_on()

    def cancelled(answer: p.Done) -> None:
        nonlocal left
        number = _count(answer, "cancelled")
        left -= number
        if number and answer.data.get("more"):
            go_on()
        else:
            then(None)

    def go_on() -> None:
        if left > 0:
            send(partial(p.CancelDelayed, keys=(), all=True), cancelled)
        else:
            then(None)

    send(p.CountDelayed, counted)


class _EmptyTopic:
    """The emptying of a topic: it clears the messages behind its pause or before its first channel.

    Without a channel, the delayed messages are cancelled first. Each channel agrees durably to skip
    the messages behind the pause. Then the pause moves to the end of these messages, so that the
    topic has no messages left. If this is interrupted, some channels were not emptied and the
    client gets an error. Another request continues from there.
    """

    def __init__(self, requests: Requests, message: EmptyRequest, group: TopicGroup) -> None:
        self._requests = requests
        self._message, self._group = message, group
        self._told: set[str] = set()  # channels that got the order
        self._left = 0
        self._moved = False
        self._error: ZsqError | None = None
        self._start = self._end = 0
        self._group.want("", self._cancel_delayed)

    def _cancel_delayed(self, error: ZsqError | None) -> None:
        if error is not None:
            self._answer(error)
        else:
            cancel_delayed(self._requests, self._message, self._group, 0, self._empty)

    def _empty(self, error: ZsqError | None) -> None:
        if error is not None:
            self._answer(error)
        else:
            self._order_topic(p.EmptyTopic, self._begun)

    def _order_topic(
        self, make: Callable[[int], p.Order[AnswerT]], then: Callable[[AnswerT | None, ZsqError | None], None]
    ) -> None:  # fmt: skip
        def ready(error: ZsqError | None) -> None:
            topic = self._group.topic
            if error is not None or topic is None:
                self._answer(error or starting(self._message))
            else:
                self._requests.orders.send(topic, make, then)

        self._group.want("", ready)

    def _begun(self, waiting: p.BehindPause | None, error: ZsqError | None) -> None:
        if waiting is None:
            self._answer(error)
            return
        self._start, self._end = waiting.start, waiting.end
        self._tell_channels()

    def _tell_channels(self) -> None:
        """Order the channels to skip, and move the pause when all have agreed.

        Channels that were created before the pause moved get their order afterwards.
        """
        channels = self._group.channels.keys() - self._told
        if self._start >= self._end or (self._moved and not channels):
            self._answer(None)
            return
        if not channels:
            self._move_pause()
            return
        self._told |= channels
        self._left = len(channels)
        for channel in channels:
            self._group.want(channel, partial(self._order_channel, channel))

    def _order_channel(self, channel: str, error: ZsqError | None) -> None:
        child = self._group.child(channel)
        if channel not in self._group.channels:  # it was deleted meanwhile
            self._agreed(None, None)
        elif error is not None or child is None:
            self._agreed(None, error or starting(self._message))
        else:
            self._requests.orders.send(
                child, partial(p.Skip, start=self._start, end=self._end), self._agreed
            )

    def _agreed(self, done: p.Done | None, error: ZsqError | None) -> None:
        self._left -= 1
        self._error = self._error or error
        if self._left:
            return
        if self._error is not None:
            self._answer(self._error)
        else:
            self._move_pause()

    def _move_pause(self) -> None:
        self._moved = True
        self._order_topic(partial(p.MovePause, end=self._end), self._pause_moved)

    def _pause_moved(self, done: p.Done | None, error: ZsqError | None) -> None:
        if error is not None:
            self._answer(error)
        else:
            self._tell_channels()

    def _answer(self, error: ZsqError | None) -> None:
        self._requests.settle(self._message.request, error)


def _count(answer: p.Done, name: str) -> int:
    """Return a number of a topic's answer, or 0 if the answer has none."""
    number = answer.data.get(name)
    return number if isinstance(number, int) else 0


HANDLERS: Final[Mapping[type[AdminRequest[Any]], GroupHandler]] = {
    SeekRequest: _seek,
    SkipRequest: _skip,
    PreviewSkipRequest: _skip,
    PeekRequest: _peek,
    EmptyRequest: _empty,
}
