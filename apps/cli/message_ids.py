"""Message ids that a user gives: whether this broker has the message, and in which part it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def topic_of_id(topic: str, text: str, stats: Mapping[str, Any]) -> str:
    """Return the topic, or the part of it, that has the message with this id.

    `stats` are those of the topic. Raises `NotFound` if the id is of another broker or part.
    """
    from ...transport.client.core.message import parse_id, part_in_id
    from ...transport.errors import E_NOT_FOUND, NotFound
    from ...transport.names import part_name, part_of

    if any(part_of(row["topic_name"]) for row in stats["topics"]):
        part, named = part_in_id(text), part_of(topic)
        if named is not None and named[1] != part:
            raise NotFound(E_NOT_FOUND, f"id {text} is in part {part_name(named[0], part)}")
        return part_name(topic, part) if named is None else topic
    node, own_node = parse_id(text)[0], int(stats["node"])
    if own_node != node:
        raise NotFound(
            E_NOT_FOUND,
            f"id {text} belongs to node {node}, but this broker is node {own_node}; ask node "
            f"{node} (--url)",
        )
    return topic
