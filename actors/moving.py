"""Where a channel is: seek and empty, which move it, and peek, which only looks. All need the topic's ends as they are now.

A time is turned into an offset by the storage: the client's clock decides nothing, and what it asks for may be removed meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..transport import protocol as p
from ..transport.errors import E_BAD_ARGUMENT, E_CLOSING, Refused, UsageError, ZsqError
from . import options
from .port import Envelope
from .process_table import Child
from .statistics import reach
from .topic_group import TopicGroup

if TYPE_CHECKING:
    from .management import Management

ACTIONS: Final = ("empty", "seek", "peek")  # of a channel


def check(word: p.Manage) -> None:
    """`UsageError` E_BAD_ARGUMENT for what makes no sense."""
    asked = word.options
    if word.action != "empty" and not word.channel:
        raise UsageError(E_BAD_ARGUMENT, f"{word.action} is about a channel: name it")
    if word.action == "seek":
        given = [asked[name] for name in ("offset", "time_ns") if name in asked]
        if len(given) != 1 or type(given[0]) is not int:
            raise UsageError(E_BAD_ARGUMENT, "seek moves a channel to an offset, or to a time_ns: give one of them, as a number")
    if word.action == "peek":
        limit = asked.get("limit")
        if type(limit) is not int or not 1 <= limit <= options.PEEK_MAX:
            raise UsageError(E_BAD_ARGUMENT, f"peek shows 1 to {options.PEEK_MAX} messages of each kind, not {limit!r:.40}")


def carry_out(management: Management, envelope: Envelope, word: p.Manage, group: TopicGroup) -> None:
    """One of `ACTIONS`, on a channel; the answer goes to `envelope`."""
    asked: dict[str, Any] = {str(key): value for key, value in word.options.items()}

    def relay(data: dict[str, Any] | None, error: ZsqError | None) -> None:
        management.relay(envelope, word.request, data, error)

    def then() -> None:
        channel = group.channels.get(word.channel)
        if channel is None:
            relay(None, _starting())
        else:
            management.order(channel, word.action, asked | reach(group), relay)

    def found(data: dict[str, Any] | None, error: ZsqError | None) -> None:
        if data is None:
            relay(None, error)
        else:
            asked["offset"] = data["offset"]
            then()

    def ready(error: ZsqError | None) -> None:
        if error is not None:
            relay(None, error)
        elif word.action != "seek" or "offset" in asked:
            then()
        elif group.storage is None:
            relay(None, _starting())
        else:
            management.order(group.storage, "offset_at", {"time_ns": asked.pop("time_ns")}, found)

    ends: list[Child] = [child for child in (group.storage, group.topic) if child is not None and child.state == "up"]
    management.gatherings.gather(ends, lambda complete, details: group.want(word.channel, ready))


def _starting() -> Refused:
    return Refused(E_CLOSING, "it is being started again; try in a moment")
