"""Names of topics and channels for the queues and exchanges of Kombu. Pure.

A queue is a topic for each priority level, and one channel, `CHANNEL`, that all workers share. An
exchange that sends to queues in memory is a topic in memory.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

from ..naming import CHANNEL, NAME_CHARS_MAX, legal

IN_MEMORY: Final = "#ephemeral"
# A dead-letter topic is named TOPIC.CHANNEL.dead, and a level adds `.priority-9` to its queue.
QUEUE_CHARS_MAX: Final = NAME_CHARS_MAX - len(f".priority-9.{CHANNEL}.dead")
MEMORY_CHARS_MAX: Final = NAME_CHARS_MAX - len(IN_MEMORY)


def queue_topic(prefix: str, queue: str, level: int) -> str:
    """Return the topic of one priority level of a queue. Level 0 has the name of the queue."""
    name = legal(f"{prefix}{queue}", QUEUE_CHARS_MAX)
    return f"{name}.priority-{level}" if level else name


def exchange_topic(prefix: str, exchange: str) -> str:
    """Return the topic in memory of an exchange. The default exchange has the name ''."""
    return legal(f"{prefix}{exchange or 'default-exchange'}", MEMORY_CHARS_MAX) + IN_MEMORY


def binding_channel(queue: str, routing_key: str) -> str:
    """Return the channel of an exchange's topic for a queue that is bound with this key."""
    name = queue if routing_key in {"", queue} else f"{queue}\0{routing_key}"
    return legal(name, MEMORY_CHARS_MAX) + IN_MEMORY


def level_of(priority: object, steps: tuple[int, ...]) -> int:
    """Return the highest of these steps that is not above `priority`, which is 0 to 9."""
    try:
        number = int(priority)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        number = 0
    return max((step for step in steps if step <= number), default=steps[0])


def tag_of(routing_key: str) -> str:
    """Return the tag of messages with this routing key. It may have characters that no tag has."""
    return quote(routing_key, safe="#:/@+,=")


def key_of(tag: str) -> str:
    """Return the routing key of a message with this tag."""
    return unquote(tag)
