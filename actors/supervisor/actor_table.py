"""The table of actor classes: maps each kind of process to the dotted name of its class.

The names are strings, so neither the supervisor nor the runtime imports the classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..runtime.services import services

TOPICS: Final = {
    "topic": "zsq.actors.topic.topic:TopicActor",
    "channel": "zsq.actors.channel.channel:ChannelActor",
}


def actor_classes() -> Mapping[str, str]:
    """Return the class of each kind: those of topics and channels, and of all services."""
    return TOPICS | {kind: service.actor for kind, service in services().items()}


def preloaded() -> list[str]:
    """Return the classes that are loaded before any process starts."""
    rows = [service.actor for service in services().values() if service.is_preloaded]
    return [*TOPICS.values(), *rows]
