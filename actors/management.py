"""What clients ask of the supervisor: Lookup, Manage, Stats. Answers that need others are kept in a bounded table until they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..storage.retention import changed, resolve
from ..transport import protocol as p
from ..transport.errors import (
    E_BAD_ARGUMENT,
    E_BAD_COMMAND,
    E_CLOSING,
    E_INTERNAL,
    E_LIMIT,
    E_NOT_FOUND,
    E_TIMEOUT,
    NotFound,
    Refused,
    UsageError,
    ZsqError,
)
from ..transport.names import check_name, is_ephemeral
from . import closing, closing_orders, deletion, moving, options
from .audit_desk import AuditDesk, count_of
from .channel_settings import made
from .ephemeral_topic import retention_in_memory
from .gathering import Details, Gatherings
from .group_states import GroupState
from .overview import Overview
from .port import Envelope, Mail
from .process_table import Child
from .statistics import broker_statistics
from .topic_group import TopicGroup

if TYPE_CHECKING:
    from .supervisor import Supervisor

_NS_PER_S = 1_000_000_000
_ANSWER_S = 20.0  # below a client's own patience, so that it hears what happened
_OF_STORAGE = ("configure", "chunks", "delayed", "backup")  # actions that the topic's storage carries out

Callback = Callable[[dict[str, Any] | None, ZsqError | None], None]


class _Order(NamedTuple):
    """`envelope`: of whom it was sent to; nobody else's word answers it."""

    callback: Callback
    deadline_ns: int
    key: int
    envelope: Envelope


class Management:
    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self._request = 0
        self._orders: dict[int, _Order] = {}
        self.gatherings = Gatherings(supervisor)
        self.overview = Overview(supervisor)
        self.audits = AuditDesk(supervisor.audit)
        self.sealed: list[TopicGroup] = []  # deletions that were refused: to be opened again

    def on_mail(self, mail: Mail) -> None:
        word = mail.word
        request = getattr(word, "request", 0)
        try:
            if isinstance(word, (p.Done, p.Failed)):
                self._on_answer(mail.envelope, word)
            elif isinstance(word, p.Lookup):
                self._lookup(mail.envelope, word)
            elif isinstance(word, p.Manage):
                self.audits.ordered(mail.envelope, word)
                self._manage(mail.envelope, word)
            elif isinstance(word, p.Stats):
                self._stats(mail.envelope, word)
            elif isinstance(word, p.Over):
                deletion.over(self, mail.envelope, word)
            elif isinstance(word, p.Beat):
                self.supervisor.port.send(mail.envelope, p.Beat())
            elif not isinstance(word, p.Bye):
                raise UsageError(E_BAD_COMMAND, f"the supervisor does not know {type(word).__name__}")
        except ZsqError as error:
            self.fail(mail.envelope, request, error)
        except OSError as error:
            self.fail(mail.envelope, request, _refused(error))

    def done(self, envelope: Envelope, request: int, data: dict[str, Any]) -> None:
        self.audits.answered(envelope, request)
        self.supervisor.port.send(envelope, p.Done(request, data))

    def fail(self, envelope: Envelope, request: int, error: ZsqError) -> None:
        self.audits.answered(envelope, request, f"{error.code} {error.text}")
        self.supervisor.port.send(envelope, p.Failed(request, error.code, error.text))

    # Finding

    def _group(self, topic: str, create: bool, sync: str = "", retention: Mapping[str, Any] | None = None) -> TopicGroup:
        """The topic's group, made if asked for."""
        check_name(topic)
        group = self.supervisor.groups.get(topic)
        if group is not None:
            return group
        if not create:
            raise NotFound(E_NOT_FOUND, f"topic {topic!r} does not exist")
        if len(self.supervisor.groups) >= options.TOPICS_MAX:
            raise Refused(E_LIMIT, f"a node has at most {options.TOPICS_MAX} topics")
        if not self.supervisor.can_start(3):
            raise Refused(E_LIMIT, f"this node runs {options.PROCESSES_MAX} processes at most: no room for another topic")
        sync = sync or self.supervisor.options.sync
        if sync not in options.SYNC_MODES:
            raise UsageError(E_BAD_ARGUMENT, f"sync is one of {', '.join(options.SYNC_MODES)}, not {sync!r}")
        own = changed({}, retention or {})
        if is_ephemeral(topic):
            retention_in_memory(own, self.supervisor.registry.memory.bytes_max())
        else:
            resolve(self.supervisor.options.retention, own)
        return self.supervisor.add_group(topic, self.supervisor.registry.add(topic, sync, own))

    def _channel(self, group: TopicGroup, channel: str, create: bool) -> None:
        check_name(channel, "channel")
        if channel not in group.channels:
            if group.state is not GroupState.UP and not create:
                return  # its channels are not known yet: those who want it wait
            if not create:
                raise NotFound(E_NOT_FOUND, f"channel {channel!r} of topic {group.name!r} does not exist")

    def _lookup(self, envelope: Envelope, word: p.Lookup) -> None:
        there = self.supervisor.groups.get(word.topic)
        if there is not None and (word.channel in there.channels or there.state is not GroupState.UP):
            made(word.settings)  # what is there, or may be, has settings of its own
        else:
            made(word.settings, word.topic, word.channel)
        group = self._group(word.topic, word.create)
        if there is None:
            self.audits.first_use(word, "")
        is_new = word.create and word.channel != "" and word.channel not in group.channels
        # Which channels a topic has that was not up is known only when it is.
        is_known = there is None or group.state is GroupState.UP
        closing_orders.check_subscribed(group, word.channel)
        if word.channel:
            self._channel(group, word.channel, word.create)

        def then(error: ZsqError | None) -> None:
            if error is not None:
                self.fail(envelope, word.request, error)
            elif word.channel and group.channels.get(word.channel) is None:
                self.fail(envelope, word.request, NotFound(E_NOT_FOUND, f"channel {word.channel!r} does not exist"))
            elif (other := group.differs(word.channel, word.settings)) is not None:
                self.fail(envelope, word.request, other)
            else:
                if is_new and (is_known or word.channel not in group.stored):
                    self.audits.first_use(word, word.channel)
                self.done(envelope, word.request, group.endpoints(word.channel))

        if word.channel and word.channel not in group.channels and not word.create:
            group.want("", lambda error: self._again(self._lookup, envelope, word, error))
        else:
            group.want(word.channel, then, word.settings)

    def _again(self, carry_out: Callable[[Envelope, Any], None], envelope: Envelope, word: Any, error: ZsqError | None) -> None:
        """The topic is up by now, or is not to be had."""
        try:
            if error is not None:
                raise error
            carry_out(envelope, word)
        except ZsqError as failure:
            self.fail(envelope, word.request, failure)
        except OSError as failure:
            self.fail(envelope, word.request, _refused(failure))

    # Managing

    def _manage(self, envelope: Envelope, word: p.Manage) -> None:
        if word.action == "create":
            self._create(envelope, word)
            return
        if word.action == "list":  # from what is at hand: cheap enough to be asked once a second
            names = {name: tuple(group.channels) for name, group in self.supervisor.groups.items()}
            self.done(envelope, word.request, {"topics": names})
            return
        if word.action == "audit":
            self.done(envelope, word.request, {"entries": tuple(self.supervisor.audit.newest(count_of(word.options), word.topic))})
            return
        if word.action == "overview":
            self.done(envelope, word.request, self.overview.answer(word.options))
            return
        if word.action not in ("delete", "pause", "unpause", *closing.ACTIONS, *moving.ACTIONS, *_OF_STORAGE):
            raise UsageError(E_BAD_COMMAND, f"there is no action {word.action!r}")
        if word.action in moving.ACTIONS:
            moving.check(word)
        group = self._group(word.topic, create=False)
        if word.channel and word.channel not in group.channels:
            if group.state is not GroupState.UP:  # which channels it has is known when it is: who deletes one must not hear that it is gone
                group.want("", lambda error: self._again(self._manage, envelope, word, error))
                return
            raise NotFound(E_NOT_FOUND, f"channel {word.channel!r} of topic {word.topic!r} does not exist")
        if word.action == "delete":
            deletion.delete(self, envelope, word, group)
            return
        if word.action in closing.ACTIONS:
            closing_orders.carry_out(self, envelope, word, group)
            return
        if word.action in moving.ACTIONS and word.channel:
            moving.carry_out(self, envelope, word, group)
            return
        order_options = {str(key): value for key, value in word.options.items()}
        if word.action == "configure" and not word.channel:
            order_options = self._configure(group, order_options)

        of_storage = word.action in _OF_STORAGE and not word.channel

        def ready(error: ZsqError | None) -> None:
            child = group.channels.get(word.channel) if word.channel else group.topic
            if of_storage:
                child = group.storage
            if error is not None or child is None:
                self.fail(envelope, word.request, error or Refused(E_CLOSING, "it is being started again; try in a moment"))
                return
            self.order(child, word.action, order_options, lambda data, failure: self.relay(envelope, word.request, data, failure))

        group.want(word.channel, ready)

    def _configure(self, group: TopicGroup, changes: dict[str, Any]) -> dict[str, Any]:
        """Durable in the registry; what holds now, for the storage to take up. If it dies before that, its successor starts with it."""
        own = changed(group.row.retention, changes)
        found = group.resolved(own)
        self.supervisor.registry.configure(group.name, own)
        return found.as_dict()

    def relay(self, envelope: Envelope, request: int, data: dict[str, Any] | None, error: ZsqError | None) -> None:
        if error is not None:
            self.fail(envelope, request, error)
        else:
            self.done(envelope, request, data or {})

    def _create(self, envelope: Envelope, word: p.Manage) -> None:
        existed = word.topic in self.supervisor.groups
        settings: Mapping[str, Any] = {}
        if word.channel:
            check_name(word.channel, "channel")
            made(settings := word.options, word.topic, word.channel)
        own = {} if word.channel else word.options
        group = self._group(word.topic, create=True, sync=str(own.get("sync", "")), retention=_retention(own))
        if word.channel:
            existed = word.channel in group.channels
            self._channel(group, word.channel, create=True)

        def then(error: ZsqError | None) -> None:
            self.relay(envelope, word.request, {"existed": existed}, error or group.differs(word.channel, settings))

        group.want(word.channel, then, settings)

    # Ephemeral channels and topics

    def remove_channel(self, group: TopicGroup, channel: str) -> None:
        """Its process died."""
        deletion.remove_channel(self, group, channel, lambda data, error: None, lost=True)

    def end_if_over(self, group: TopicGroup) -> None:
        deletion.end_if_over(self, group)

    # Orders to actors

    def order(self, child: Child, action: str, order_options: dict[str, Any], callback: Callback) -> None:
        if len(self._orders) >= options.WAITERS_MAX:
            callback(None, Refused(E_LIMIT, "too many orders are on their way already"))
            return
        self._request += 1
        deadline_ns = time.monotonic_ns() + int(_ANSWER_S * _NS_PER_S)
        self._orders[self._request] = _Order(callback, deadline_ns, child.spec.key, child.envelope)
        if not self.supervisor.port.send(child.envelope, p.Order(self._request, action, order_options)):
            del self._orders[self._request]
            callback(None, Refused(E_CLOSING, f"{child.spec.title} is being started again; try in a moment"))

    def awaits(self, envelope: Envelope, request: int) -> bool:
        """Whether an order of that number was sent to just this one, and is not answered yet."""
        order = self._orders.get(request)
        return order is not None and order.envelope == envelope

    def _on_answer(self, envelope: Envelope, word: p.Done | p.Failed) -> None:
        if not self.awaits(envelope, word.request):
            return
        order = self._orders.pop(word.request)
        if isinstance(word, p.Done):
            order.callback(word.data, None)
        else:
            order.callback(None, ZsqError(word.code, word.text))

    def after_end(self, child: Child | None, then: Callable[[bool], None]) -> None:
        """Go on when the process has ended; with `False` if it does not."""
        self.gatherings.after_end(child, then, _ANSWER_S)

    # Statistics

    def scope(self, group: TopicGroup | None) -> list[Child]:
        groups = [group] if group is not None else list(self.supervisor.groups.values())
        return [child for one in groups for child in one.children() if child.state == "up"]

    def _stats(self, envelope: Envelope, word: p.Stats) -> None:
        group = self._group(word.topic, create=False) if word.topic else None
        if word.channel and group is not None and word.channel not in group.channels:
            raise NotFound(E_NOT_FOUND, f"channel {word.channel!r} of topic {word.topic!r} does not exist")
        children = self.scope(group)
        singles = self.supervisor.singles
        asked = singles.children.values() if group is None else singles.of_kind("nsq_gateway")  # it knows its clients best
        children += [child for child in asked if child.state == "up"]

        def then(complete: bool, details: Details) -> None:
            self.done(envelope, word.request, broker_statistics(self.supervisor, word.topic, word.channel, details))

        self.supervisor.changes += len(children)
        self.gatherings.gather(children, then, detailed=True)

    # Time

    def tick(self, now_ns: int) -> None:
        """Give up on what takes too long; go on where a process ended."""
        self.gatherings.tick(now_ns)
        for request, order in list(self._orders.items()):
            if order.key not in self.supervisor.table.children:
                del self._orders[request]
                order.callback(None, Refused(E_CLOSING, "it was started again meanwhile; the order may or may not be in effect"))
            elif now_ns > order.deadline_ns:
                del self._orders[request]
                order.callback(None, ZsqError(E_TIMEOUT, f"no answer within {_ANSWER_S:g} s; the order may still take effect"))

    def stop(self) -> None:
        """Answer everyone who waits."""
        orders, self._orders = self._orders, {}
        for order in orders.values():
            order.callback(None, Refused(E_CLOSING, "the broker is stopping"))
        self.gatherings.stop()


def _retention(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    found = settings.get("retention") or {}
    if not isinstance(found, dict):
        raise UsageError(E_BAD_ARGUMENT, "retention is a map of settings")
    return {str(key): value for key, value in found.items()}


def _refused(error: OSError) -> Refused:
    return Refused(E_INTERNAL, f"the system refuses: {error.strerror or error}")
