"""Relayed commands: pause, disconnect, chunks, delayed messages, backups.

The client gets the actor's answer unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from ....storage.delayed.delayed_format import DelayedKey, parse_key
from ....transport.errors import E_BAD_ARGUMENT, UsageError
from ....transport.wire import protocol as p
from ....transport.wire.admin_requests import (
    AdminRequest,
    BackUpLogRequest,
    BackUpStateRequest,
    CancelDelayedRequest,
    ChunksRequest,
    CountDelayedRequest,
    DisconnectRequest,
    EndBackupRequest,
    ListDelayedRequest,
    PauseRequest,
    UnpauseRequest,
)
from ...settings import options
from ..topics.topic_group import TopicGroup
from .requests import GroupHandler, Requests

Make = Callable[[int], p.Order[p.Done]]


def _cancel(request: CancelDelayedRequest) -> Make:
    keys, keys_max = request.keys, options.DELAYED_CANCEL_MAX
    if request.all:
        return partial(p.CancelDelayed, keys=(), all=True)
    if not 1 <= len(keys) <= keys_max:
        text = f"cancel needs option `keys` (1 to {keys_max} keys) or option `all`"
        raise UsageError(E_BAD_ARGUMENT, f"{text}, not {len(keys)} keys")
    return partial(p.CancelDelayed, keys=tuple(map(_as_key, keys)))


def _list_delayed(request: ListDelayedRequest) -> Make:
    after, limit = request.after, request.limit
    if not 1 <= limit <= options.DELAYED_LIST_MAX:
        text = f"limit must be 1 to {options.DELAYED_LIST_MAX} messages, not {limit}"
        raise UsageError(E_BAD_ARGUMENT, text)
    return partial(p.ListDelayed, after=_as_key(after) if after else (), limit=limit)


def _disconnect(request: DisconnectRequest) -> Make:
    if not request.consumer:
        raise UsageError(E_BAD_ARGUMENT, "disconnect needs the name of a consumer")
    return partial(p.Disconnect, consumer=request.consumer)


def _as_key(text: str) -> DelayedKey:
    key = parse_key(text)
    if key is None:
        raise UsageError(
            E_BAD_ARGUMENT,
            (
                f"{text!r} is not the key of a delayed message: a key is 32 hex digits, see `zsq "
                "delayed list`"
            ),
        )
    return key


def _back_up_state(request: BackUpStateRequest) -> Make:
    if not request.id:
        raise UsageError(E_BAD_ARGUMENT, "option `id` of backup state must not be empty")
    return partial(p.BackUpState, id=request.id)


_ORDERS: Final[Mapping[type[AdminRequest[Any]], Callable[[Any], Make]]] = {
    PauseRequest: lambda request: partial(p.SetPaused, is_paused=True),
    UnpauseRequest: lambda request: partial(p.SetPaused, is_paused=False),
    DisconnectRequest: _disconnect,
    ChunksRequest: lambda request: p.ListChunks,
    ListDelayedRequest: _list_delayed,
    CountDelayedRequest: lambda request: p.CountDelayed,
    CancelDelayedRequest: _cancel,
    BackUpStateRequest: _back_up_state,
    BackUpLogRequest: lambda request: partial(p.BackUpLog, id=request.id),
    EndBackupRequest: lambda request: partial(p.EndBackup, id=request.id),
}


def order_for(request: Any) -> Make:
    """Return the order for a request. Raises `UsageError` if an option is out of its range."""
    return _ORDERS[type(request)](request)


def _pass_on(requests: Requests, request: AdminRequest[Any], group: TopicGroup) -> None:
    """Send the order when its actor is up, and relay the answer to the client."""
    make = order_for(request)
    relay = partial(requests.relay, request.request)
    requests.when_up(request, group, lambda child: requests.orders.send(child, make, relay))


HANDLERS: Final[Mapping[type[AdminRequest[Any]], GroupHandler]] = dict.fromkeys(_ORDERS, _pass_on)
