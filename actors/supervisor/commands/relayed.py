"""Relayed commands: pause, chunks, delayed messages, backups.

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

PAUSES: Final = ("pause", "unpause")  # on a topic or a channel
OF_STORAGE: Final = ("chunks", "delayed", "backup")  # on a topic only
Make = Callable[[int], p.Order[p.Done]]


def order_for(message: p.Manage) -> Make:
    """Return the order for an action. Raises `UsageError` if its options are invalid."""
    if message.action in PAUSES:
        return partial(p.SetPaused, is_paused=message.action == "pause")
    if message.channel:
        raise UsageError(E_BAD_COMMAND, f"channel {message.topic}/{message.channel} cannot {message.action}")
    if message.action == "chunks":
        return p.ListChunks
    return _of_delayed(message.options) if message.action == "delayed" else _of_backup(message.options)


def _of_delayed(asked: Mapping[str, Any]) -> Make:
    do = asked.get("do")
    if do == "count":
        return p.CountDelayed
    if do == "list":
        after, limit = asked.get("after", ""), asked.get("limit", options.DELAYED_LIST_MAX)
        if type(limit) is not int or not 1 <= limit <= options.DELAYED_LIST_MAX:
            raise UsageError(E_BAD_ARGUMENT, f"at most {options.DELAYED_LIST_MAX} messages are listed at a time, and at least 1")
        return partial(p.ListDelayed, after=_as_key(after) if after else (), limit=limit)
    if do != "cancel":
        raise UsageError(E_BAD_ARGUMENT, f"delayed messages can be listed, counted and cancelled, not {do!r}")
    if asked.get("all") is True:
        return partial(p.CancelDelayed, keys=())
    keys = asked.get("keys", ())
    if not (type(keys) is tuple and 1 <= len(keys) <= options.DELAYED_CANCEL_MAX):
        raise UsageError(E_BAD_ARGUMENT, f"name 1 to {options.DELAYED_CANCEL_MAX} keys, or all")
    return partial(p.CancelDelayed, keys=tuple(_as_key(text) for text in keys))


def _as_key(text: object) -> DelayedKey:
    found = parse_key(text) if isinstance(text, str) else None
    if found is None:
        raise UsageError(E_BAD_ARGUMENT, f"{text!r} is no key of a delayed message: it has 32 hex digits, as `zsq delayed list` shows it")
    return found


def _of_backup(asked: Mapping[str, Any]) -> Make:
    do, name = asked.get("do"), str(asked.get("id", ""))
    if do == "state" and name:
        return partial(p.BackUpState, id=name)
    if do not in ("log", "end"):
        raise UsageError(E_BAD_ARGUMENT, f"a backup takes state and log, and ends; not {do!r}")
    return partial(p.BackUpLog if do == "log" else p.EndBackup, id=name)
