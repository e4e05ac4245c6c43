"""The client requests that the supervisor handles: Lookup, Manage, Stats.

`parts.py` sees them first, because a topic may have parts at other brokers.
Requests that need other actors wait in a bounded table for the answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

from ....storage.retention import changed
from ....transport.errors import (
    E_BAD_ARGUMENT,
    E_BAD_COMMAND,
    E_CLOSING,
    E_NOT_FOUND,
    E_TOPIC_FAILED,
    E_UNSUPPORTED,
    NotFound,
    Refused,
    UsageError,
    ZsqError,
)
from ....transport.names import (
    channel_missing,
    check_name,
    is_ephemeral,
    meant,
    part_name,
    part_of,
)
from ....transport.settings import ChannelOptions, TopicOptions
from ....transport.wire import protocol as p
from ....transport.wire.admin_codec import request_of
from ....transport.wire.admin_requests import (
    ROW_OF,
    AdminRequest,
    AuditRequest,
    ConfigureChannelRequest,
    ConfigureTopicRequest,
    CreateChannelRequest,
    CreateTopicRequest,
    EndedRequest,
    ListTopicsRequest,
    OverviewRequest,
    RedriveRequest,
)
from ....transport.wire.answers import AuditEntries, AuditEntry, Ended, TopicNames
from ...runtime.port import Mail
from ...runtime.process_table import Child
from ...security.audit import REMEMBERED
from ...security.policy import CHANNEL_ONLY
from ...settings.channel_settings import DEAD_LETTERS, made
from ...statistics.broker_view import BrokerView, GroupState
from ...statistics.gathering import Details
from ...statistics.overview import Overview
from ...statistics.statistics import SharedStatistics
from ..topics.topic_group import TopicGroup
from . import dead_letter_topics, deletion, moving, relayed, revoking, sync_modes
from .creation import create_topic
from .parts import Parts
from .requests import GroupHandler, Handler, Handlers, Requests, answered_by, failing, refused

log = logging.getLogger("zsq")

_NO_HANDLERS: Final[Handlers] = {}


class Commands:
    """The handlers of clients' requests. `view` contains the data that statistics show.

    The handler of an administrative request is found by its type. `handlers` are those of other
    objects. They need no process of the topic that a request names, so the topic may sleep on.
    """

    def __init__(
        self,
        requests: Requests,
        view: BrokerView,
        handlers: Handlers = _NO_HANDLERS,
    ) -> None:
        self._requests = requests
        self._broker = requests.broker
        self._view = view
        self._shared = SharedStatistics(view)
        self._parts = Parts(requests)
        self._handlers: dict[type[AdminRequest[Any]], Handler] = {
            **handlers,
            ListTopicsRequest: answered_by(requests, self._topics),
            OverviewRequest: answered_by(requests, Overview(view).answer),
            AuditRequest: answered_by(requests, self._audit),
            EndedRequest: answered_by(requests, self._ended),
            CreateTopicRequest: self._waking(self._create_topic),
            CreateChannelRequest: self._waking(self._create_channel),
            RedriveRequest: self._waking(partial(dead_letter_topics.redrive, requests)),
        }
        of_groups: Mapping[type[AdminRequest[Any]], GroupHandler] = {
            ConfigureTopicRequest: self._configure_topic,
            ConfigureChannelRequest: self._configure_channel,
            **deletion.HANDLERS,
            **moving.HANDLERS,
            **relayed.HANDLERS,
            **revoking.HANDLERS,
        }
        for kind, handler in of_groups.items():
            self._handlers[kind] = self._waking(partial(self._on_group, handler))

    def noted(self, key: int, stats: Mapping[str, Any]) -> None:
        """Note a pulse of the topic with this key."""
        self._parts.noted(key, stats)

    def on_mail(self, mail: Mail) -> None:
        message = mail.message
        request = 0
        if isinstance(message, (p.Lookup, p.Manage, p.Stats)):
            request = self._requests.numbered(mail.envelope, message.request)
            message = replace(message, request=request)
        try:
            if isinstance(message, (p.Done, p.OrderAnswer, p.Failed)):
                self._requests.orders.on_answer(mail.envelope, message)
            elif isinstance(message, p.Lookup):
                self._check_running()
                self._parts.lookup(message, partial(self._awake, self._lookup))
            elif isinstance(message, p.Manage):
                self._requests.audits.ordered(request, message)
                self._check_running()
                self._parts.manage(request_of(message), self._manage)
            elif isinstance(message, p.Stats):
                self._parts.stats(message, self._stats)
            elif isinstance(message, (p.DirectoryEntries, p.DirectoryTrouble, p.BrokersSeen)):
                self._parts.heard(mail.envelope, message)
            elif isinstance(message, p.Over):
                deletion.over(self._requests, mail.envelope, message)
            elif isinstance(message, p.Beat):
                self._requests.send(mail.envelope, p.Beat())
            elif not isinstance(message, p.Bye):
                raise UsageError(
                    E_BAD_COMMAND,
                    (
                        f"the supervisor does not accept {type(message).__name__}; use the same "
                        "version of ZSQ on both sides"
                    ),
                )
        except ZsqError as error:
            self._requests.fail(request, error, mail.envelope)
        except OSError as error:
            self._requests.fail(request, refused(error), mail.envelope)

    def tick(self, now_ns: int) -> None:
        self._shared.forget()
        self._requests.tick(now_ns)
        self._parts.tick(now_ns)

    def trouble(self) -> str:
        """Return what is wrong with the cluster, or ""."""
        return self._parts.trouble()

    def _check_running(self) -> None:
        """Raise `Refused` (E_CLOSING) while the broker stops.

        A topic that is created now would keep the broker from ending, and a topic that has ended
        never answers a request.
        """
        if self._broker.stopping:
            raise Refused(E_CLOSING, "the broker is stopping; try again when it runs again")

    def _awake(
        self, carry_out: Callable[[Any], None], message: p.Lookup | AdminRequest[Any]
    ) -> None:
        """Carry out a request, after the topic that it names is awake.

        A lookup needs only the topic. Commands may need all channels: a deletion, for example, asks
        each of them for its unfinished messages.
        """
        group = self._broker.groups.get(message.topic)
        if group is None or not group.is_dormant:
            carry_out(message)
        elif isinstance(message, p.Lookup):
            group.want("", lambda error: self._again(carry_out, message, error))
        else:
            group.rouse(lambda error: self._again(carry_out, message, error))

    # Lookup

    def _group(
        self, topic: str, create: bool, sync: str = "", retention: Mapping[str, Any] | None = None
    ) -> TopicGroup:
        """Return the topic's group. If it does not exist and `create` is True, it is created.

        Parts are not created here (`parts.py`).
        """
        check_name(topic)
        group = self._broker.groups.get(topic)
        if group is not None:
            return group
        if not create or part_of(topic) is not None:
            raise self._missing_topic(topic)
        return create_topic(self._broker, topic, sync, retention)

    def _missing_topic(self, topic: str, why: str = "") -> NotFound:
        return self._missing(f"topic {topic!r} does not exist{why}", topic, self._broker.groups)

    def _missing_channel(self, group: TopicGroup, channel: str, why: str = "") -> NotFound:
        text = channel_missing(group.name, channel)
        return self._missing(text + why, channel, group.channels)

    def _missing(self, text: str, name: str, names: Iterable[str]) -> NotFound:
        """Return the error for a name that does not exist, with the name that may be meant.

        With an access file, it suggests none, because the client may not know of that name.
        """
        is_open = not self._broker.options.security.access_file
        return NotFound(E_NOT_FOUND, text + (meant(name, names) if is_open else ""))

    def _channel(self, group: TopicGroup, channel: str, create: bool) -> None:
        check_name(channel, "channel")
        if channel not in group.channels:
            if group.state is not GroupState.UP and not create:
                return  # the channels are not known yet, so the request waits
            if not create:
                raise self._missing_channel(group, channel)
            if group.state is GroupState.UP:  # otherwise the channel may exist
                self._broker.processes.check_room(1, f"channel {channel!r} of topic {group.name!r}")

    def _lookup(self, message: p.Lookup) -> None:
        known = self._broker.groups.get(message.topic)
        if message.create and message.is_back and known is None:
            self._check_not_deleted(message.topic)
        if message.create and (known is None or message.channel not in known.channels):
            dead_letter_topics.check_default(
                self._broker, message.topic, message.channel, message.settings
            )
        if known is not None and (
            message.channel in known.channels or known.state is not GroupState.UP
        ):
            made(message.settings)  # check them; a channel that may exist has settings already
        else:
            made(message.settings, message.topic, message.channel)
        message = self._by_rule(message, known)
        group = self._group(
            message.topic, message.create and message.by.get("create") != CHANNEL_ONLY
        )
        dead_letter_topics.claim(self._broker, message)
        if known is None:
            self._requests.audits.first_use(message, "")
            door = message.by.get("via", "ipc")
            log.info("topic %s is new: a client created it by using it (%s)", message.topic, door)
        is_new = message.create and message.channel != "" and message.channel not in group.channels
        # The channels of a topic that was not up are known only when it is up.
        is_known = known is None or group.state is GroupState.UP
        deletion.check_subscribed(group, message.channel)
        if message.channel:
            self._channel(group, message.channel, message.create)

        def then(error: ZsqError | None) -> None:
            if error is not None:
                self._requests.fail(message.request, error)
            elif message.channel and group.child(message.channel) is None:
                self._requests.fail(message.request, self._missing_channel(group, message.channel))
            elif (other := group.differs(message.channel, message.settings)) is not None:
                self._requests.fail(message.request, other)
            else:
                if is_new and (is_known or message.channel not in group.stored_channels):
                    self._requests.audits.first_use(message, message.channel)
                endpoints = group.endpoints(message.channel, with_settings=bool(message.settings))
                if self._broker.epoch:
                    endpoints["epoch"] = self._broker.epoch
                self._requests.done(message.request, endpoints)

        if message.channel and message.channel not in group.channels and not message.create:
            group.want("", lambda error: self._again(self._lookup, message, error))
        else:
            group.want(message.channel, then, message.settings)

    def _check_not_deleted(self, topic: str) -> None:
        """Raise `NotFound` if the topic was deleted.

        In a cluster, its parts may have been at other brokers, so only its absence is known here.
        """
        if is_ephemeral(topic):
            return  # it is deleted with its last channel, and is to come back
        names = {topic, part_name(topic, 0)}  # each topic with parts had a part 0
        if self._broker.options.cluster or not names.isdisjoint(self._broker.registry.ended):
            raise NotFound(
                E_NOT_FOUND,
                (
                    f"topic {topic!r} was deleted while this client used it, so the client does "
                    f"not create it again: create it (zsq topic create {topic}), or make a new "
                    "client"
                ),
            )

    def _by_rule(self, message: p.Lookup, known: TopicGroup | None) -> p.Lookup:
        """Return the request as `--auto-create` permits it.

        Raises `NotFound` if it would create a topic or a channel that only a command may create.
        """
        rule = self._broker.options.auto_create
        if not message.create or rule == "always" or message.by.get("via") == DEAD_LETTERS:
            return message
        how = f", and this broker runs with --auto-create {rule}: check the name, or create it"
        if known is None and (rule == "never" or message.channel):
            raise self._missing_topic(message.topic, f"{how} (zsq topic create {message.topic})")
        if known is None or rule == "publishers":
            return message
        if (
            message.channel
            and message.channel not in known.channels
            and known.state is GroupState.UP
        ):
            raise self._missing_channel(
                known,
                message.channel,
                f"{how} (zsq channel create {message.topic} {message.channel})",
            )
        return replace(message, create=False)

    def _again(
        self, carry_out: Callable[[Any], None], message: Any, error: ZsqError | None
    ) -> None:
        """Carry out a request again after its topic came up, or answer with the error."""
        with failing(self._requests.fail, message.request):
            if error is not None:
                raise error
            carry_out(message)

    # Administrative requests

    def _manage(self, message: AdminRequest[Any]) -> None:
        handler = self._handlers.get(type(message))
        if handler is None:
            text = f"this broker does not carry out {ROW_OF[type(message)].name!r}"
            raise UsageError(E_UNSUPPORTED, text)
        handler(message)

    def _waking(self, handler: Handler) -> Handler:
        """Return a handler that carries out a request when the topic that it names is awake."""
        return partial(self._awake, handler)

    def _on_group(self, handler: GroupHandler, message: AdminRequest[Any]) -> None:
        """Carry out a request about a topic or a channel that exists."""
        group = self._group(message.topic, create=False)
        if not message.channel or message.channel in group.channels:
            handler(self._requests, message, group)
        elif group.state is not GroupState.UP:
            # The channels are known only when the topic is up. Until then the channel may exist.
            again = partial(self._on_group, handler)
            group.want("", lambda error: self._again(again, message, error))
        elif message.channel in group.deleting:
            text = f"channel {message.channel!r} is being deleted; try again in a moment"
            raise Refused(E_CLOSING, text)
        else:
            raise self._missing_channel(group, message.channel)

    def _topics(self, message: ListTopicsRequest) -> TopicNames:
        # This is cheap enough for one request a second.
        return {
            "topics": {name: tuple(group.channels) for name, group in self._broker.groups.items()}
        }

    def _ended(self, message: EndedRequest) -> Ended:
        return {"ended": self._broker.registry.ended.get(message.topic)}

    def _audit(self, message: AuditRequest) -> AuditEntries:
        if not 1 <= message.count <= REMEMBERED:
            text = f"count must be 1 to {REMEMBERED}, not {message.count}"
            raise UsageError(E_BAD_ARGUMENT, text)
        log = self._requests.audit_log
        entries = cast("list[AuditEntry]", log.newest(message.count, message.topic))
        return {"entries": tuple(entries)}

    def _configure_topic(
        self, requests: Requests, message: ConfigureTopicRequest, group: TopicGroup
    ) -> None:
        """Save the settings in the registry, then send them to the topic.

        If the topic's process ends before it has them, the topic's next process starts with them.
        """
        settings = changed(group.row.retention, message.settings)
        found = group.resolved(settings)
        sync = group.row.sync if message.sync is None else message.sync
        sync_modes.check_change(group.name, group.row.sync, sync, self._broker.options)
        sync_modes.check_archive(group.name, sync, found)
        self._broker.registry.configure(group.name, settings, sync)
        request, orders = message.request, requests.orders
        retention = partial(p.SetRetention, retention=cast("TopicOptions", found.as_dict()))

        def configured(done: p.Done | None, error: ZsqError | None) -> None:
            data = None if done is None else {**done.data, "sync": sync}
            requests.settle(request, error, data)

        def order(child: Child) -> None:
            def then(done: p.Done | None, error: ZsqError | None) -> None:
                if error is not None:
                    requests.settle(request, error, None)
                else:
                    orders.send(child, retention, configured)

            if message.sync is not None:
                orders.send(child, partial(p.SetSync, sync=sync), then)
            else:
                orders.send(child, retention, configured)

        requests.when_up(message, group, order)

    def _configure_channel(
        self, requests: Requests, message: ConfigureChannelRequest, group: TopicGroup
    ) -> None:
        changes = message.settings
        dead_letter_topics.check_default(self._broker, message.topic, message.channel, changes)

        def order(child: Child) -> None:
            def then(answer: p.ChannelConfigured | None, error: ZsqError | None) -> None:
                if answer is not None:
                    child.data["settings"] = answer.settings  # Lookup returns them
                requests.settle(
                    message.request,
                    error,
                    {"settings": answer.settings} if answer is not None else None,
                )

            make = partial(p.ConfigureChannel, changes=cast("ChannelOptions", changes))
            requests.orders.send(child, make, then)

        requests.when_up(message, group, order)

    def _create_topic(self, message: CreateTopicRequest) -> None:
        existed = message.topic in self._broker.groups
        group = self._group(
            message.topic, create=True, sync=message.sync, retention=message.settings
        )
        settle = partial(self._requests.settle, message.request)
        group.want("", lambda error: settle(error, {"existed": existed}))

    def _create_channel(self, message: CreateChannelRequest) -> None:
        topic, channel, settings = message.topic, message.channel, message.settings
        check_name(channel, "channel")
        made(settings, topic, channel)
        dead_letter_topics.check_default(self._broker, topic, channel, settings)
        group = self._group(topic, create=True)
        existed = channel in group.channels
        self._channel(group, channel, create=True)

        def then(error: ZsqError | None) -> None:
            self._requests.settle(
                message.request, error or group.differs(channel, settings), {"existed": existed}
            )

        group.want(channel, then, settings)

    # Stats

    def _stats(self, message: p.Stats) -> None:
        group = self._group(message.topic, create=False) if message.topic else None
        if group is None or group.settled() or group.has_reported():
            self._tell_stats(message, group)
        else:
            # Its channels and figures are not known yet. A start that fails is in the answer.
            group.rouse(lambda error: self._again(self._stats_of, message, None))

    def _stats_of(self, message: p.Stats) -> None:
        self._tell_stats(message, self._group(message.topic, create=False))

    def _tell_stats(self, message: p.Stats, group: TopicGroup | None) -> None:
        if message.channel and group is not None and message.channel not in group.channels:
            if group.state is not GroupState.UP and not group.has_reported():
                raise Refused(
                    E_TOPIC_FAILED, f"topic {message.topic!r} {group.state.value}: {group.failure}"
                )
            raise self._missing_channel(group, message.channel)
        children = self._requests.scope(group)
        singles = self._view.singles.values()
        # NSQ gateways know most about their clients, so they are asked even for a single topic.
        services = [child for child in singles if group is None or child.spec.kind == "nsq_gateway"]
        children += [child for child in services if child.state == "up"]

        def then(complete: bool, details: Details) -> None:
            statistics = self._shared.statistics(message.topic, message.channel, details)
            self._requests.done(message.request, {**statistics})

        self._broker.processes.changes += len(children)
        self._requests.gatherings.gather(children, then, detailed=True)
