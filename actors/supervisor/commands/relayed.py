"""Relayed commands: pause, disconnect, chunks, delayed messages, backups.

The client gets the actor's answer unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from ....storage.delayed.delayed_format import DelayedKey, parse_key
from ....transport.errors import E_BAD_ARGUMENT, E_BAD_COMMAND, UsageError
from ....transport.wire import protocol as p
from ...settings import options

PAUSES: Final = ("pause", "unpause")  # actions on a topic or a channel
DISCONNECT: Final = "disconnect"  # an action on a channel only
OF_TOPICS: Final = ("chunks", "delayed", "backup")  # actions on a topic only
Make = Callable[[int], p.Order[p.Done]]


def order_for(message: p.Manage) -> Make:
    """Return the order for an action. Raises `UsageError` if its options are invalid."""
    if message.action in PAUSES:
        return partial(p.SetPaused, is_paused=message.action == "pause")
    if message.action == DISCONNECT:
        return _disconnect(message)
    if message.channel:
        raise UsageError(
            E_BAD_COMMAND,
            (
                f"{message.action} works only on a topic, not on channel {message.channel!r} of "
                f"topic {message.topic!r}"
            ),
        )
    if message.action == "chunks":
        return p.ListChunks
    return (
        _of_delayed(message.options) if message.action == "delayed" else _of_backup(message.options)
    )


def _disconnect(message: p.Manage) -> Make:
    consumer = message.options.get("consumer")
    if not message.channel or not isinstance(consumer, str) or not consumer:
        raise UsageError(
            E_BAD_ARGUMENT, "disconnect needs a channel and option `consumer`, the consumer's name"
        )
    return partial(p.Disconnect, consumer=consumer)


def _of_delayed(asked: Mapping[str, Any]) -> Make:
    do = asked.get("do")
    if do == "count":
        return p.CountDelayed
    if do == "list":
        after, limit = asked.get("after", ""), asked.get("limit", options.DELAYED_LIST_MAX)
        if type(limit) is not int or not 1 <= limit <= options.DELAYED_LIST_MAX:
            raise UsageError(
                E_BAD_ARGUMENT,
                f"limit must be 1 to {options.DELAYED_LIST_MAX} messages, not {repr(limit)[:40]}",
            )
        return partial(p.ListDelayed, after=_as_key(after) if after else (), limit=limit)
    if do != "cancel":
        raise UsageError(
            E_BAD_ARGUMENT,
            f"option `do` of delayed must be list, count or cancel, not {repr(do)[:40]}",
        )
    if asked.get("all") is True:
        return partial(p.CancelDelayed, keys=(), all=True)
    keys = asked.get("keys", ())
    if not (type(keys) is tuple and 1 <= len(keys) <= options.DELAYED_CANCEL_MAX):
        given = f"{len(keys)} keys" if type(keys) is tuple else repr(keys)[:40]
        raise UsageError(
            E_BAD_ARGUMENT,
            (
                f"cancel needs option `keys` (1 to {options.DELAYED_CANCEL_MAX} keys) or option "
                f"`all`, not {given}"
            ),
        )
    return partial(p.CancelDelayed, keys=tuple(_as_key(text) for text in keys))


def _as_key(text: object) -> DelayedKey:
    found = parse_key(text) if isinstance(text, str) else None
    if found is None:
        raise UsageError(
            E_BAD_ARGUMENT,
            (
                f"{text!r} is not the key of a delayed message: a key is 32 hex digits, see `zsq "
                "delayed list`"
            ),
        )
    return found


def _of_backup(asked: Mapping[str, Any]) -> Make:
    do, name = asked.get("do"), str(asked.get("id", ""))
    if do == "state" and name:
        return partial(p.BackUpState, id=name)
    if do not in ("log", "end"):
        raise UsageError(
            E_BAD_ARGUMENT,
            (
                "option `do` of backup must be state (with option `id`), log or end, not "
                f"{repr(do)[:40]}"
            ),
        )
    return partial(p.BackUpLog if do == "log" else p.EndBackup, id=name)
