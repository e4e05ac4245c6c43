"""Creation of topics: checks of limits and settings, then the row and the processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....storage.retention import changed
from ....transport.errors import E_LIMIT, Refused
from ....transport.names import is_ephemeral
from ...settings import options
from ..topics.broker_state import BrokerState
from ..topics.topic_group import TopicGroup, retention_in_memory
from . import sync_modes
from .topic_settings import checked


def create_topic(
    broker: BrokerState,
    topic: str,
    sync: str = "",
    retention: Mapping[str, Any] | None = None,
    part_of: str = "",
    hold: int = 0,
    start: int = 0,
) -> TopicGroup:
    """Create a topic that does not exist, and start it. Raises `ZsqError`.

    A part that another broker had before, in a lower `hold`, has no offset below `start`, because
    that broker may have given them out.
    """
    check_room(broker, topic)
    if is_ephemeral(topic):
        own = changed({}, retention or {})
        sync_modes.check_in_memory(topic, sync or "never")
        retention_in_memory(own, broker.registry.memory.max_bytes())
    else:
        sync, own = checked(topic, sync, retention or {}, broker.options)
    row = broker.registry.add(topic, sync, own, part_of, hold, start)
    return broker.add_group(topic, row)


def check_room(broker: BrokerState, topic: str) -> None:
    """Raise `Refused` (E_LIMIT) if there is no room for one more topic."""
    if len(broker.groups) >= options.TOPICS_MAX:
        raise Refused(
            E_LIMIT,
            (
                f"this broker has {options.TOPICS_MAX} topics, which is the limit; delete "
                "topics that are not used"
            ),
        )
    broker.processes.check_room(2, f"topic {topic!r} with a channel")
