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
    NotFound,
    Refused,
    UsageError,
    ZsqError,
)
from ....transport.names import channel_missing, check_name, is_ephemeral, meant, part_of
from ....transport.settings import ChannelOptions, RetentionSettings
from ....transport.wire import protocol as p
from ...runtime.port import Mail
from ...runtime.process_table import Child
from ...security.audit import count_of
from ...security.policy import CHANNEL_ONLY
from ...settings import closing
from ...settings.channel_settings import DEAD_LETTERS, made
from ...statistics.broker_view import BrokerView, GroupState
from ...statistics.gathering import Details
from ...statistics.overview import Overview
from ...statistics.statistics import SharedStatistics
from ..topics.topic_group import TopicGroup
from . import dead_letter_topics, deletion, moving, relayed, sync_modes
from .creation import create_topic
from .parts import Parts
from .requests import Requests, failing, refused, starting
from .schedules import ACTION as SCHEDULE
from .topic_settings import retention_of

log = logging.getLogger("zsq")

LOOKUPDS: Final = "lookupds"
Answered = Callable[[p.Done | None, ZsqError | None], None]
ALARM: Final = "alarm"
HISTORY: Final = "history"
# These actions need no process of the topic that they name, so it may sleep on.
_ABOUT_ALL: Final = (
    "list", "audit", "overview", "handover", "ended", ALARM, HISTORY, SCHEDULE,
)  # fmt: skip
_NO_ANSWERS: Final[Mapping[str, Callable[[p.Manage], dict[str, object]]]] = {}


class Commands:
    """The handlers of clients' requests. `view` contains the data that statistics show.

    `hand_over` makes the broker hand over to a standby, `schedule` answers orders about schedules,
    and `answers` return the answers to orders about alarms and to requests for the history.
    `set_lookupds` gives the NSQ gateway its nsqlookupds.
    """

    def __init__(
        self,
        requests: Requests,
        view: BrokerView,
        hand_over: Callable[[], None] = lambda: None,
        schedule: Callable[[p.Manage], None] = lambda message: None,
        set_lookupds: Callable[[tuple[str, ...], Answered], None] = lambda addresses, then: None,
        answers: Mapping[str, Callable[[p.Manage], dict[str, object]]] = _NO_ANSWERS,
    ) -> None:
        self._set_lookupds = set_lookupds
        self._hand_over = hand_over
        self._schedule = schedule
        self._answers = answers
        self._requests = requests
        self._broker = requests.broker
        self._view = view
        self._overview = Overview(view)
        self._shared = SharedStatistics(view)
        self._parts = Parts(requests)

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
                self._parts.manage(message, partial(self._awake, self._manage))
            elif isinstance(message, p.Stats):
                self._parts.stats(message, self._stats)
            elif isinstance(message, (p.DirectoryEntries, p.DirectoryTrouble)):
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

    def _awake(self, carry_out: Callable[[Any], None], message: p.Lookup | p.Manage) -> None:
        """Carry out a request, after the topic that it names is awake.

        A lookup needs only the topic. Commands may need all channels: a deletion, for example, asks
        each of them for its unfinished messages.
        """
        group = self._broker.groups.get(message.topic)
        if group is None or not group.is_dormant:
            carry_out(message)
        elif isinstance(message, p.Lookup):
            group.want("", lambda error: self._again(carry_out, message, error))
        elif message.action in _ABOUT_ALL:
            carry_out(message)
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
        what = channel_missing(group.name, channel)
        return self._missing(what + why, channel, group.channels)

    def _missing(self, what: str, name: str, names: Iterable[str]) -> NotFound:
        """Return the error for a name that does not exist, with the name that may be meant.

        With an access file, it suggests none, because the client may not know of that name.
        """
        is_open = not self._broker.options.security.access_file
        return NotFound(E_NOT_FOUND, what + (meant(name, names) if is_open else ""))

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
        there = self._broker.groups.get(message.topic)
        if message.create and message.is_back and there is None:
            self._check_not_deleted(message.topic)
        if message.create and (there is None or message.channel not in there.channels):
            dead_letter_topics.check_default(
                self._broker, message.topic, message.channel, message.settings
            )
        if there is not None and (
            message.channel in there.channels or there.state is not GroupState.UP
        ):
            made(message.settings)  # check them; a channel that may exist has settings already
        else:
            made(message.settings, message.topic, message.channel)
        message = self._by_rule(message, there)
        group = self._group(
            message.topic, message.create and message.by.get("create") != CHANNEL_ONLY
        )
        dead_letter_topics.claim(self._broker, message)
        if there is None:
            self._requests.audits.first_use(message, "")
            door = message.by.get("via", "ipc")
            log.info("topic %s is new: a client created it by using it (%s)", message.topic, door)
        is_new = message.create and message.channel != "" and message.channel not in group.channels
        # The channels of a topic that was not up are known only when it is up.
        is_known = there is None or group.state is GroupState.UP
        deletion.check_subscribed(group, message.channel)
        if message.channel:
            self._channel(group, message.channel, message.create)

        def then(error: ZsqError | None) -> None:
            if error is not None:
                self._requests.fail(message.request, error)
            elif message.channel and group.channels.get(message.channel) is None:
                self._requests.fail(message.request, self._missing_channel(group, message.channel))
            elif (other := group.differs(message.channel, message.settings)) is not None:
                self._requests.fail(message.request, other)
            else:
                if is_new and (is_known or message.channel not in group.stored):
                    self._requests.audits.first_use(message, message.channel)
                found = group.endpoints(message.channel, with_settings=bool(message.settings))
                if self._broker.epoch:
                    found["epoch"] = self._broker.epoch
                self._requests.done(message.request, found)

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
        if self._broker.options.cluster or topic in self._broker.registry.ended:
            raise NotFound(
                E_NOT_FOUND,
                (
                    f"topic {topic!r} was deleted while this client used it, so the client does "
                    f"not create it again: create it (zsq topic create {topic}), or make a new "
                    "client"
                ),
            )

    def _by_rule(self, message: p.Lookup, there: TopicGroup | None) -> p.Lookup:
        """Return the request as `--auto-create` permits it.

        Raises `NotFound` if it would create a topic or a channel that only a command may create.
        """
        rule = self._broker.options.auto_create
        if not message.create or rule == "always" or message.by.get("via") == DEAD_LETTERS:
            return message
        how = f", and this broker runs with --auto-create {rule}: check the name, or create it"
        if there is None and (rule == "never" or message.channel):
            raise self._missing_topic(message.topic, f"{how} (zsq topic create {message.topic})")
        if there is None or rule == "publishers":
            return message
        if (
            message.channel
            and message.channel not in there.channels
            and there.state is GroupState.UP
        ):
            raise self._missing_channel(
                there,
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

    # Manage

    def _manage(self, message: p.Manage) -> None:
        if message.action == "create":
            self._create(message)
            return
        if message.action == "list":  # this is cheap enough for one request a second
            names = {name: tuple(group.channels) for name, group in self._broker.groups.items()}
            self._requests.done(message.request, {"topics": names})
            return
        if message.action == "ended":
            self._requests.done(
                message.request, {"ended": self._broker.registry.ended.get(message.topic)}
            )
            return
        if message.action == "audit":
            entries = self._requests.audit_log.newest(count_of(message.options), message.topic)
            self._requests.done(message.request, {"entries": tuple(entries)})
            return
        if message.action == "handover":
            self._hand_over()
            self._requests.done(message.request, {})
            return
        if message.action == LOOKUPDS:
            addresses = message.options.get("addresses")
            if type(addresses) is not tuple or not all(type(one) is str for one in addresses):
                text = f"option `addresses` must be a list of texts, not {addresses!r:.40}"
                raise UsageError(E_BAD_ARGUMENT, text)
            self._set_lookupds(addresses, partial(self._requests.relay, message.request))
            return
        if message.action == "overview":
            self._requests.done(message.request, {**self._overview.answer(message.options)})
            return
        if message.action in self._answers:
            self._requests.done(message.request, self._answers[message.action](message))
            return
        if message.action == SCHEDULE:
            self._schedule(message)
            return
        if message.action == dead_letter_topics.ACTION:
            dead_letter_topics.redrive(self._requests, message)
            return
        if message.action not in (
            "delete",
            "configure",
            *closing.ACTIONS,
            *moving.ACTIONS,
            *relayed.PAUSES,
            relayed.DISCONNECT,
            *relayed.OF_TOPICS,
        ):
            raise UsageError(
                E_BAD_COMMAND,
                f"unknown action {message.action!r}; use the same version of ZSQ on both sides",
            )
        if message.action in moving.ACTIONS:
            moving.check(message)
        group = self._group(message.topic, create=False)
        if message.channel and message.channel not in group.channels:
            # The channels are known only when the topic is up. Until then the channel may exist.
            if group.state is not GroupState.UP:
                group.want("", lambda error: self._again(self._manage, message, error))
                return
            if message.channel in group.deleting:
                raise Refused(
                    E_CLOSING,
                    f"channel {message.channel!r} is being deleted; try again in a moment",
                )
            raise self._missing_channel(group, message.channel)
        if message.action == "delete":
            deletion.delete(self._requests, message, group)
            return
        if message.action in closing.ACTIONS:
            deletion.carry_out(self._requests, message, group)
            return
        if message.action in moving.ACTIONS and message.channel:
            moving.carry_out(self._requests, message, group)
            return
        if message.action == "empty":
            moving.empty_topic(self._requests, message, group)
            return
        if message.action == "configure":
            changes = {str(key): value for key, value in message.options.items()}
            (self._configure_channel if message.channel else self._configure_topic)(
                message, group, changes
            )
            return
        self._pass_on(message, group, relayed.order_for(message))

    def _pass_on(self, message: p.Manage, group: TopicGroup, make: relayed.Make) -> None:
        """Send an order when its actor is up, and relay the answer to the client."""

        def order(child: Child) -> None:
            self._requests.orders.send(child, make, partial(self._requests.relay, message.request))

        self._when_up(message, group, order)

    def _when_up(self, message: p.Manage, group: TopicGroup, then: Callable[[Child], None]) -> None:
        def ready(error: ZsqError | None) -> None:
            child = group.channels.get(message.channel) if message.channel else group.topic
            if error is not None or child is None:
                self._requests.fail(message.request, error or starting(message))
            else:
                then(child)

        group.want(message.channel, ready)

    def _configure_topic(
        self, message: p.Manage, group: TopicGroup, changes: Mapping[str, Any]
    ) -> None:
        """Save the settings in the registry, then send them to the topic.

        If the topic's process ends before it has them, the topic's next process starts with them.
        """
        own = changed(
            group.row.retention, {name: value for name, value in changes.items() if name != "sync"}
        )
        found = group.resolved(own)
        sync = str(changes.get("sync", group.row.sync))
        sync_modes.check_change(group.name, group.row.sync, sync, self._broker.options)
        sync_modes.check_archive(group.name, sync, found)
        self._broker.registry.configure(group.name, own, sync)
        request, orders = message.request, self._requests.orders
        retention = partial(p.SetRetention, retention=cast("RetentionSettings", found.as_dict()))

        def configured(done: p.Done | None, error: ZsqError | None) -> None:
            data = None if done is None else {**done.data, "sync": sync}
            self._requests.settle(request, error, data)

        def order(child: Child) -> None:
            def then(done: p.Done | None, error: ZsqError | None) -> None:
                if error is not None:
                    self._requests.settle(request, error, None)
                else:
                    orders.send(child, retention, configured)

            if "sync" in changes:
                orders.send(child, partial(p.SetSync, sync=sync), then)
            else:
                orders.send(child, retention, configured)

        self._when_up(message, group, order)

    def _configure_channel(
        self, message: p.Manage, group: TopicGroup, changes: Mapping[str, Any]
    ) -> None:
        dead_letter_topics.check_default(self._broker, message.topic, message.channel, changes)

        def order(child: Child) -> None:
            def then(answer: p.ChannelConfigured | None, error: ZsqError | None) -> None:
                if answer is not None:
                    child.data["settings"] = answer.settings  # Lookup returns them
                self._requests.settle(
                    message.request,
                    error,
                    {"settings": answer.settings} if answer is not None else None,
                )

            make = partial(p.ConfigureChannel, changes=cast("ChannelOptions", changes))
            self._requests.orders.send(child, make, then)

        self._when_up(message, group, order)

    def _create(self, message: p.Manage) -> None:
        existed = message.topic in self._broker.groups
        settings: Mapping[str, Any] = {}
        if message.channel:
            check_name(message.channel, "channel")
            made(settings := message.options, message.topic, message.channel)
            dead_letter_topics.check_default(self._broker, message.topic, message.channel, settings)
        own = {} if message.channel else message.options
        group = self._group(
            message.topic, create=True, sync=str(own.get("sync", "")), retention=retention_of(own)
        )
        if message.channel:
            existed = message.channel in group.channels
            self._channel(group, message.channel, create=True)

        def then(error: ZsqError | None) -> None:
            self._requests.settle(
                message.request,
                error or group.differs(message.channel, settings),
                {"existed": existed},
            )

        group.want(message.channel, then, settings)

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
        asked = [child for child in singles if group is None or child.spec.kind == "nsq_gateway"]
        children += [child for child in asked if child.state == "up"]

        def then(complete: bool, details: Details) -> None:
            found = self._shared.statistics(message.topic, message.channel, details)
            self._requests.done(message.request, {**found})

        self._broker.processes.changes += len(children)
        self._requests.gatherings.gather(children, then, detailed=True)
