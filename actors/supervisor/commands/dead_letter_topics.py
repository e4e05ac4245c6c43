"""Dead-letter topics in the supervisor: their owners, and the routes for redrive.

The default name `TOPIC.CHANNEL.dead` is not unique: channel `orders.x` of topic `eu` and channel
`x` of topic `eu.orders` have the same default name. Therefore the first channel that sends its dead
letters to a topic by default becomes the owner. The topic's registry row records the owner's
channel and the uuid of its topic. Another channel with the same default name is refused when it is
configured and when it sends. The record loses its effect when the owner is deleted. A channel whose
`dead_letter_topic` is set may send to any topic, because the user who set it was permitted to
publish there.

Parts of a topic at one broker share the default dead-letter topic. So the owner is the topic, not
one of its parts.

Each route of a redrive is checked here. The headers of a dead letter prove nothing, because all
clients that may publish to the dead-letter topic can write them. Dead letters return by their
headers only if the named topic has the named uuid and the named channel confirms that its dead
letters go there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ....transport.errors import (
    E_BAD_ARGUMENT,
    E_CLOSING,
    E_FORBIDDEN,
    E_IN_USE,
    E_NOT_FOUND,
    NotFound,
    Refused,
    UsageError,
    ZsqError,
)
from ....transport.names import check_name
from ....transport.wire import protocol as p
from ....transport.wire.admin_requests import RedriveRequest
from ...settings.channel_settings import default_dead_letter_topic
from ...statistics.broker_view import REPORTED
from ..topics.broker_state import BrokerState
from ..topics.topic_group import TopicGroup
from .requests import Requests

_UUID_CHARS: Final = 32
_CHOOSE: Final = "choose another target with --to and --channel"
_UNPROVED: Final = "their origin cannot be verified; choose the target with --to"


def check_default(
    broker: BrokerState, topic: str, channel: str, settings: Mapping[str, Any]
) -> None:
    """Raise `Refused` (E_IN_USE) if the settings lead to a default topic of another owner."""
    group = broker.groups.get(topic)
    child = group.child(channel) if group is not None and channel else None
    if child is not None:
        settings = {**child.data.get("settings", {}), **child.stats.get("settings", {}), **settings}
    if not channel or settings.get("dead_letter_topic") or not settings.get("max_attempts"):
        return
    uuid = group.row.owner_uuid if group is not None else ""
    _check_owner(broker, default_dead_letter_topic(topic, channel), topic, uuid, channel)


def claim(broker: BrokerState, message: p.Lookup) -> None:
    """Make a channel the owner of its dead-letter topic when the channel looks up that topic.

    Raises `Refused` (E_IN_USE) if another channel owns the topic.
    """
    topic, uuid, channel = (
        str(message.by.get(name, "")) for name in ("dead_topic", "dead_uuid", "dead_channel")
    )
    if not topic or message.topic != default_dead_letter_topic(topic, channel):
        return
    uuid = _owner_uuid(broker, topic, uuid)
    _check_owner(broker, message.topic, topic, uuid, channel)
    broker.registry.own(message.topic, {"uuid": uuid, "channel": channel})


def _owner_uuid(broker: BrokerState, topic: str, uuid: str) -> str:
    """Return the uuid that owns the dead letters of the topic with this name and uuid."""
    group = broker.groups.get(topic)
    return group.row.owner_uuid if group is not None and group.row.uuid == uuid else uuid


def _check_owner(broker: BrokerState, dead_topic: str, topic: str, uuid: str, channel: str) -> None:
    dead = broker.registry.topics.get(dead_topic)
    owner = dead.dead_letters_of if dead is not None else {}
    if not owner or (owner["uuid"] == uuid and owner["channel"] == channel):
        return
    for name, group in broker.groups.items():
        if group.row.owner_uuid == owner["uuid"] and (
            group.state not in REPORTED or owner["channel"] in group.channels
        ):
            text = (
                f"topic {dead_topic!r} already takes the dead letters of channel "
                f"{owner['channel']!r} of topic {name!r}"
            )
            raise Refused(
                E_IN_USE,
                (
                    f"{text}: set dead_letter_topic of channel {channel!r} of topic {topic!r} to "
                    "another topic"
                ),
            )


def redrive(requests: Requests, request: RedriveRequest) -> None:
    """Answer whether dead letters of `request.topic` may take this route.

    The client itself reads and publishes these messages.
    """
    broker = requests.broker
    origin_topic, uuid, origin_channel = request.origin
    if len(uuid) != _UUID_CHARS:
        text = "option `origin` of redrive must be the topic, its uuid, and the channel"
        raise UsageError(E_BAD_ARGUMENT, text)
    check_name(origin_topic)
    check_name(origin_channel, "channel")
    check_name(request.to)
    if request.to_channel:
        check_name(request.to_channel, "channel")
    dead = broker.groups.get(request.topic)
    if dead is None:
        raise NotFound(E_NOT_FOUND, f"topic {request.topic!r} does not exist")
    target = broker.groups.get(request.to)
    if target is None:
        raise NotFound(E_NOT_FOUND, f"topic {request.to!r} does not exist; {_CHOOSE}")

    def answer(error: ZsqError | None) -> None:
        requests.settle(request.request, error)

    def ready(error: ZsqError | None) -> None:
        if error is None and request.to_channel and request.to_channel not in target.channels:
            text = (
                f"channel {request.to_channel!r} of topic {request.to!r} does not exist; {_CHOOSE}"
            )
            error = NotFound(E_NOT_FOUND, text)
        if error is not None:
            answer(error)
        else:
            _check_origin(requests, request, dead, answer)

    target.want("", ready)


def _check_origin(
    requests: Requests,
    request: RedriveRequest,
    dead: TopicGroup,
    answer: Callable[[ZsqError | None], None],
) -> None:
    """Check in the registry or with the channel that its dead letters go to this topic."""
    origin_topic, uuid, origin_channel = request.origin
    if request.chosen or dead.row.dead_letters_of == {
        "uuid": _owner_uuid(requests.broker, origin_topic, uuid),
        "channel": origin_channel,
    }:
        answer(None)  # the user named the target, so the headers do not matter
        return
    source = requests.broker.groups.get(origin_topic)
    if source is None or source.row.uuid != uuid:
        gone = (
            f"topic {origin_topic!r}, the origin that these dead letters name, was deleted or "
            "created again"
        )
        answer(Refused(E_FORBIDDEN, f"{gone}: {_UNPROVED}"))
        return

    def named(go: p.DeadLettersGo | None, error: ZsqError | None) -> None:
        if go is not None and go.topic != request.topic:
            text = (
                f"dead letters of channel {origin_channel!r} of topic {origin_topic!r} go "
                f"to {go.topic!r}, not to {request.topic!r}"
            )
            error = Refused(E_FORBIDDEN, f"{text}: {_UNPROVED}")
        answer(error)

    def ask(error: ZsqError | None) -> None:
        channel = source.child(origin_channel)
        if error is not None or channel is None:
            answer(
                error
                or Refused(
                    E_CLOSING,
                    (f"channel {origin_channel!r} is being started again; try again in a moment"),
                )
            )
        else:
            requests.orders.send(channel, p.WhereDeadLettersGo, named)

    def ready(error: ZsqError | None) -> None:
        if error is None and origin_channel not in source.channels:
            text = f"channel {origin_channel!r} of topic {origin_topic!r} does not exist; {_CHOOSE}"
            error = NotFound(E_NOT_FOUND, text)
        if error is not None:
            answer(error)
        else:
            source.want(origin_channel, ask)

    source.want("", ready)
