"""Deletion and closing of topics and channels.

A deletion is refused while messages are unfinished, unless it is forced. Offsets are never used
again.

An `#ephemeral` channel is deleted when it reports that its last consumer has left, or when its
process died. An `#ephemeral` topic is deleted with its last channel. A client that asks for such a
channel or topic during its deletion gets a new one.

The deletion of a topic seals it first. A sealed topic takes no messages, so the end that its actors
report is final, and no message that was acknowledged after the check of the backlog is lost.
Messages that were written before the seal may still wait for their sync, and are acknowledged after
it. So the check counts all messages up to the reported end. The process of a channel ends before
its rows are deleted.

The commands `close` and `open` are first written to the registry durably, and then sent to the
topic's processes. The client gets its answer when all processes that are up have taken the change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from ....transport.errors import (
    E_CLOSED,
    E_CLOSING,
    E_NOT_EMPTY,
    E_TIMEOUT,
    E_TOPIC_FAILED,
    Refused,
    ZsqError,
)
from ....transport.names import base_of, is_ephemeral
from ....transport.wire import protocol as p
from ....transport.wire.admin_requests import (
    AdminRequest,
    CheckDrainedRequest,
    CloseRequest,
    DeleteRequest,
    OpenRequest,
    RemovePartRequest,
)
from ...runtime.port import Envelope
from ...runtime.process_table import Child
from ...settings.closing import TO_CONSUMERS, after, to_consumers, to_publishers
from ...settings.starts import channel_of
from ...statistics.broker_view import GroupState, storage_pulse
from ...statistics.gathering import Details
from ...statistics.statistics import behind_pause, unfinished
from ..topics.topic_group import Then, TopicGroup
from .requests import GroupHandler, Requests, named

log = logging.getLogger("zsq")

# Added to the last known end if the storage cannot report its end. A gap in the offsets is
# harmless; a repeated offset is not.
UNKNOWN_END_MARGIN: Final = 1 << 32
CHANNELS_NAMED: Final = 5  # the most channels that a refusal names


def delete(requests: Requests, message: DeleteRequest, group: TopicGroup) -> None:
    """Delete a topic or a channel, and answer when the deletion is complete or refused."""
    gone = group.state in (GroupState.STOPPING, GroupState.ENDED)
    if gone or (group.is_sealing and not message.channel):
        requests.fail(
            message.request, Refused(E_CLOSING, f"topic {group.name!r} is being deleted already")
        )
    elif message.channel:
        _Deletion(requests, message, group).delete_channel()
    else:
        _Deletion(requests, message, group).delete_topic()


def delete_part(requests: Requests, group: TopicGroup, answer: Then) -> None:
    """Delete a part, because its topic was deleted, and then call `answer`."""
    message = DeleteRequest(group.name, force=True)

    def awake(error: ZsqError | None) -> None:  # a topic that does not start is deleted too
        _Deletion(requests, message, group, answer).delete_topic()

    if group.is_dormant:
        group.rouse(awake)
    else:
        awake(None)


def drain_part(
    requests: Requests,
    message: RemovePartRequest | CheckDrainedRequest,
    group: TopicGroup,
    then: Callable[[int, Callable[[], None]], None],
) -> None:
    """Seal a part that shall be removed or deleted, and call `then`.

    It gets the end of the part's log, and a function that unseals the part again. The client is
    refused if messages are left in the part, unless the request has `force`.
    """
    if group.is_sealing or group.state in (GroupState.STOPPING, GroupState.ENDED):
        raise Refused(E_CLOSING, f"part {group.name!r} is being removed already")
    is_forced = isinstance(message, RemovePartRequest) and message.force
    order = DeleteRequest(group.name, force=is_forced, request=message.request)
    deletion = _Deletion(requests, order, group, removal=then)

    def awake(error: ZsqError | None) -> None:
        with requests.answering(message.request):
            deletion.delete_topic()

    if group.is_dormant:
        group.rouse(awake)
    else:
        awake(None)


def check_drained(requests: Requests, message: CheckDrainedRequest, group: TopicGroup) -> None:
    """Answer where the log of a closed topic ends, if nothing is left in it.

    A topic with parts is deleted after all parts have answered this. It may be opened again in
    between, which makes the deletion void.
    """
    if not to_publishers(group.row.closed):
        text = f"topic {group.name!r} is open to publishers"
        close = f"zsq topic close {base_of(group.name)}"  # all parts must be closed
        raise Refused(E_NOT_EMPTY, f"{text}: close it first ({close})")

    def drained(end: int, unseal: Callable[[], None]) -> None:
        unseal()
        requests.done(message.request, {"end": end})

    drain_part(requests, message, group, drained)


class _Deletion:
    """A deletion in progress. `answer` is called at its end; otherwise the client is answered.

    `removal`: what to do with the sealed topic instead of its deletion.
    """

    def __init__(
        self,
        requests: Requests,
        message: DeleteRequest,
        group: TopicGroup,
        answer: Then | None = None,
        removal: Callable[[int, Callable[[], None]], None] | None = None,
    ) -> None:
        self.requests = requests
        self.message = message
        self.group = group
        self.forced = message.force
        self._then = answer
        self._removal = removal
        self._topic: Child | None = None

    def _fail(self, error: ZsqError) -> None:
        if self._then is not None:
            self._then(error)
        else:
            self.requests.fail(self.message.request, error)

    @property
    def _answer(self) -> Then:
        return self._then or partial(self.requests.settle, self.message.request)

    def _refusal(self, complete: bool, end: int = 0) -> ZsqError | None:
        """Return why the deletion is refused, or None.

        `end` is the end of a sealed topic.
        """
        subject = named(self.message)
        if not complete:  # E_CLOSING and not E_TIMEOUT: the broker answers, and nothing was done
            text = (
                f"not all processes of {subject} reported their unfinished messages in time; try "
                "again, or delete with force"
            )
            return Refused(E_CLOSING, text)
        left = unfinished(self.group, self.message.channel, end)
        if left is None:
            text = (
                f"a process of {subject} is not running, so its unfinished messages are not known; "
                "try again, or delete with force"
            )
            return Refused(E_CLOSING, text)
        stages = storage_pulse(self.group).get("stages", 0) if self._removal is not None else 0
        if not left and stages:
            count = f"{stages} stage{'s' * (stages > 1)}"
            text = f"{subject} has {count} of Spark jobs that are not committed"
            return Refused(
                E_NOT_EMPTY,
                f"{text}; wait until they are dropped, or use --force (force=True) and lose them",
            )
        if not left:
            return None
        behind = behind_pause(self.group)
        drain = (
            f"unpause the topic ({behind} of them lie behind its pause), drain it"
            if behind
            else "drain it"
        )
        text = (
            f"{subject} has {left} messages that are not finished{self._by_channel(end)}; {drain}, "
            f"or use --force (force=True) and lose them"
        )
        return Refused(E_NOT_EMPTY, text)

    def _by_channel(self, end: int) -> str:
        """Return what each channel of a topic has not finished, as a text in brackets."""
        channels = [] if self.message.channel else sorted(self.group.channels)
        counts = {f"channel {name}": unfinished(self.group, name, end) for name in channels}
        counts["delayed"] = storage_pulse(self.group).get("delayed_count", 0) if channels else 0
        left = [f"{name}: {count}" for name, count in counts.items() if count]
        more = [f"{len(left) - CHANNELS_NAMED} more"] if len(left) > CHANNELS_NAMED else []
        return f" ({', '.join([*left[:CHANNELS_NAMED], *more])})" if left else ""

    # Topics

    def delete_topic(self) -> None:
        topic = self.group.topic
        if self.group.state is GroupState.UP and topic is not None:
            # A second deletion must not unseal the topic while this one decides.
            self.group.is_sealing = True
            self._topic = topic
            self.requests.orders.send(topic, partial(p.SetSealed, is_sealed=True), self._sealed)
        elif self.forced:
            stats = topic.stats if topic is not None else {}
            self._remove_topic(
                max(int(stats.get("head", 0)), self.group.row.base_offset) + UNKNOWN_END_MARGIN
            )
        else:
            text = (
                f"topic {self.group.name!r} is not running, so its unfinished messages are not "
                "known; try again, or delete with force"
            )
            self._fail(Refused(E_CLOSING, text))

    def _sealed(self, position: p.Position | None, error: ZsqError | None) -> None:
        if position is None:
            # The order may still take effect, although its answer did not come in time.
            self._unseal()
            self._fail(
                error
                or Refused(
                    E_CLOSING,
                    (
                        f"topic {self.group.name!r} did not report the offset at which its log "
                        "ends; try again"
                    ),
                )
            )
            return
        end = position.offset
        if self.forced:
            self._remove_topic(end)
            return

        def decide(complete: bool, details: Details) -> None:
            refusal = self._refusal(complete and self.group.topic is self._topic, end)
            if refusal is None:
                self._remove_topic(end)
                return
            self._unseal()
            self._fail(refusal)

        try:
            self.requests.gatherings.gather(self.requests.scope(self.group), decide)
        except Refused as refused:
            self._unseal()
            self._fail(refused)

    def _unseal(self) -> None:
        self.group.is_sealing = False
        if self._topic is not None and self.group.topic is self._topic:
            self.requests.orders.send(
                self._topic, partial(p.SetSealed, is_sealed=False), lambda position, error: None
            )

    def _remove_topic(self, end: int) -> None:
        if self._removal is not None:
            with self.requests.answering(self.message.request):
                self._removal(end, self._unseal)
            return
        self.group.is_sealing = False
        remove_topic(self.requests, self.group, end, self._answer)

    # Channels

    def delete_channel(self) -> None:
        if self.forced:
            self._remove_channel()
            return

        def decide(complete: bool, details: Details) -> None:
            refusal = self._refusal(complete)
            if refusal is not None:
                self._fail(refusal)
            else:
                self._remove_channel()

        group = self.group
        children: list[Child | None] = [group.topic, group.child(self.message.channel)]
        self.requests.gatherings.gather(
            [child for child in children if child is not None and child.state == "up"], decide
        )

    def _remove_channel(self) -> None:
        if (
            self.group.topic is None
            or self.group.state is not GroupState.UP
            or self.message.channel not in self.group.channels
        ):
            text = (
                f"topic {self.group.name!r} is being started again, or channel "
                f"{self.message.channel!r} is being deleted already"
            )
            self._fail(Refused(E_CLOSING, f"{text}; try again in a moment"))
            return

        remove_channel(
            self.requests,
            self.group,
            self.message.channel,
            self._answer,
        )


def _unseal(requests: Requests, group: TopicGroup) -> None:
    if group.topic is not None:
        requests.orders.send(
            group.topic, partial(p.SetSealed, is_sealed=False), lambda position, error: None
        )


def remove_channel(
    requests: Requests, group: TopicGroup, name: str, answer: Then, *, lost: bool = False
) -> None:
    """End the process of a channel, then delete its rows. The topic must be up.

    If a step takes too long, `answer` gets the error, and the deletion goes on. It is given up only
    if the topic's process ends. The topic's next process then has the channel again, or not.

    `lost` means that the process died. Its consumers may come back.
    """
    topic, child = group.topic, group.child(name)
    assert topic is not None
    answers = [answer]
    # From now on requests for the channel wait or fail: a second process must not use the old row.
    group.begin_deletion(name, lost=lost)
    # The topic's storage must know of the deletion before any client can see that the channel is
    # gone. Messages that come from now on do not belong to the channel.
    if is_ephemeral(name):
        requests.orders.send(topic, partial(p.LeaveChannel, channel=name), lambda done, error: None)
    if child is not None:
        requests.broker.processes.stop_child(child)

    def tell(error: ZsqError | None) -> None:
        if answers:
            answers.pop()(error)

    def drop(ended: bool) -> None:
        if not ended:
            text = (
                f"the process of channel {name!r} of topic {group.name!r} has not ended yet; the "
                "channel is deleted when it has"
            )
            tell(ZsqError(E_TIMEOUT, text))
            requests.later.append(partial(requests.after_end, child, drop))
            return
        requests.orders.send(topic, partial(p.DropChannel, channel=name), gone)

    def gone(done: p.Done | None, error: ZsqError | None) -> None:
        # A channel that is forgotten here, although its rows exist, would come back with the
        # topic's next process, with all messages since then as its backlog.
        if done is None and group.topic is topic and group.state is GroupState.UP:
            tell(error)
            requests.later.append(partial(drop, True))
            return
        group.end_deletion(name)
        tell(error)
        if not lost:
            end_if_over(requests, group)

    requests.after_end(child, drop)


def over(requests: Requests, envelope: Envelope, message: p.Over) -> None:
    """Delete an ephemeral channel that reports that its last consumer has left.

    The channel repeats the report, so the report may be ignored while the topic is not up.
    """
    child = requests.broker.processes.children.get(message.key)
    group = child.owner if child is not None else None
    if (
        child is None
        or child.envelope != envelope
        or child.state != "up"
        or group is None
        or group.state is not GroupState.UP
    ):
        return
    name = channel_of(child.spec.start)
    if is_ephemeral(name) and group.child(name) is child:
        log.debug("channel %s/%s has no consumer any more: deleted", group.name, name)
        remove_channel(requests, group, name, lambda error: None)


def end_if_over(requests: Requests, group: TopicGroup) -> None:
    """Delete an ephemeral topic, with its messages, if its last channel is gone."""
    if (
        not is_ephemeral(group.name)
        or group.channels
        or group.deleting
        or group.state is not GroupState.UP
    ):
        return
    log.debug("topic %s has no channel any more: deleted", group.name)
    remove_topic(requests, group, 0, lambda error: None)


def remove_topic(requests: Requests, group: TopicGroup, end: int, answer: Then) -> None:
    """Delete a topic.

    The registry records the deletion durably first. If it is interrupted, the next start completes
    it.

    A later topic of that name begins at offset `end`.
    """
    registry = requests.broker.registry
    if group.state in (GroupState.STOPPING, GroupState.ENDED):
        answer(Refused(E_CLOSING, f"topic {group.name!r} is being deleted already"))
        return
    try:
        registry.set_state(group.name, "deleting", max(end, registry.ended.get(group.name, 0)))
    except Refused as error:
        requests.sealed.append(group)
        open_again(requests)
        answer(error)
        return

    def stopped() -> None:
        registry.remove(group.name)
        requests.broker.forget_archive(group.row.uuid)
        requests.broker.remove_group(group.name)
        answer(None)

    requests.count_refused()  # it is called now, because the topic's count ends with the topic
    group.stop(stopped)


def open_again(requests: Requests) -> None:
    """Unseal the topics whose deletion was refused, so that they take publishes again.

    While the next start might still carry out the deletion (see `Registry.settle`), they stay
    sealed. Messages that are acknowledged meanwhile would be lost with the topic.
    """
    if requests.sealed and not requests.broker.registry.in_doubt:
        groups, requests.sealed = requests.sealed, []
        for group in groups:
            _unseal(requests, group)


# After these errors no process has a wrong state: a process that is not up starts with the state in
# the row.
_HARMLESS = (E_CLOSING, E_TOPIC_FAILED)


def check_subscribed(group: TopicGroup, channel: str) -> None:
    """Raise `Refused` (E_CLOSED) for a channel of a topic that is closed to consumers."""
    if channel and to_consumers(group.row.closed):
        raise Refused(E_CLOSED, TO_CONSUMERS)


def close_or_open(
    requests: Requests, message: CloseRequest | OpenRequest, group: TopicGroup
) -> None:
    state = after(group.row.closed, message)
    requests.broker.registry.close(group.name, state)
    _Closing(requests, message.request, group).tell(state)


class _Closing:
    """A close or open of a topic that is being sent to all its processes."""

    def __init__(self, requests: Requests, request: int, group: TopicGroup) -> None:
        self.requests = requests
        self.request = request
        self.group = group
        self._waits = 0
        self._error: ZsqError | None = None

    def tell(self, state: str) -> None:
        self._state = state
        self._waits = 1 + len(self.group.channels)
        for channel in ("", *self.group.channels):  # processes that are starting have the old state
            self.group.want(channel, partial(self._up, channel))

    def _up(self, channel: str, error: ZsqError | None) -> None:
        group = self.group
        order = partial(
            p.SetClosed,
            to_publishers=to_publishers(self._state),
            to_consumers=to_consumers(self._state),
        )
        child = group.child(channel)
        if error is None and child is not None:
            self.requests.orders.send(child, order, self._answered)
        else:
            self._answered(None, error)

    def _answered(self, done: p.Done | None, error: ZsqError | None) -> None:
        self._waits -= 1
        if error is not None and error.code not in _HARMLESS:
            self._error = self._error or error
        if self._waits == 0:
            self.requests.settle(self.request, self._error, {"closed": self._state})


HANDLERS: Final[Mapping[type[AdminRequest[Any]], GroupHandler]] = {
    DeleteRequest: delete,
    CheckDrainedRequest: check_drained,
    CloseRequest: close_or_open,
    OpenRequest: close_or_open,
}
