"""What people ask about delayed messages: list, count, cancel; for storage's desk of them.

The count is known; a list is read at any time. Cancelling waits for a move that is on its way, as what it moves is in two places
then; what has moved, or was cancelled before, is answered False.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ..storage.delayed_format import DelayedKey, parse_key
from ..storage.errors import DiskFull
from ..transport.errors import E_BAD_ARGUMENT, E_DISK_FULL, Refused, UsageError
from ..transport.protocol import Order
from . import options

if TYPE_CHECKING:
    from .delayed_desk import DelayedDesk


def carry_out(desk: DelayedDesk, word: Order) -> dict[str, Any] | None:
    """list {after, limit}, count, cancel {keys or all}; the answer's data, or None where it comes later."""
    do = word.options.get("do")
    if do == "count":
        return desk.summary._asdict()
    if do == "list":
        return _list(desk, word)
    if do == "cancel":
        return _cancel(desk, word)
    raise UsageError(E_BAD_ARGUMENT, f"delayed messages can be listed, counted and cancelled, not {do!r}")


def _list(desk: DelayedDesk, word: Order) -> dict[str, Any] | None:
    after, limit = word.options.get("after", ""), word.options.get("limit", options.DELAYED_LIST_MAX)
    if type(limit) is not int or not 1 <= limit <= options.DELAYED_LIST_MAX:
        raise UsageError(E_BAD_ARGUMENT, f"at most {options.DELAYED_LIST_MAX} messages are listed at a time, and at least 1")
    key = _as_key(after) if after else None
    if desk.store.delayed is None:
        return {"messages": ()}
    desk.submit(partial(_listed, desk, word.request), lambda: desk.use().listed(key, limit, options.DELAYED_LIST_BODY_BYTES))
    return None


def _listed(desk: DelayedDesk, request: int, found: Any) -> None:
    desk.check(found)
    messages = tuple(
        {"key": one.key.text(), "due_ns": one.key.due_ns, "size": one.size, "body": one.body,
         "message_key": one.message_key, "tag": one.message_tag}
        for one in found
    )  # fmt: skip
    desk.answer(request, {"messages": messages})


def _cancel(desk: DelayedDesk, word: Order) -> dict[str, Any] | None:
    everything = word.options.get("all") is True
    given = word.options.get("keys", ())
    if not everything and not (type(given) is tuple and 1 <= len(given) <= options.DELAYED_CANCEL_MAX):
        raise UsageError(E_BAD_ARGUMENT, f"name 1 to {options.DELAYED_CANCEL_MAX} keys, or all")
    keys = [] if everything else [_as_key(text) for text in given]
    if desk.store.delayed is None:
        return {"cancelled": 0, "more": False} if everything else {"cancelled": tuple(False for _ in keys)}

    def work() -> int | list[bool]:
        if not everything:
            return desk.use().cancel(keys)
        return desk.use().cancel_some(options.DELAYED_CANCEL_ROWS, options.DELAYED_CANCEL_BYTES)

    desk.when_idle(partial(desk.submit, partial(_cancelled, desk, word.request), work))
    return None


def _cancelled(desk: DelayedDesk, request: int, value: Any) -> None:
    if isinstance(value, DiskFull):
        desk.answer(request, Refused(E_DISK_FULL, f"nothing is cancelled, there is no space to note it: {value}"))
        return
    desk.check(value)
    desk.freed = True
    desk.look()
    if isinstance(value, int):
        desk.answer(request, {"cancelled": value, "more": desk.summary.messages > 0})
    else:
        desk.answer(request, {"cancelled": tuple(value)})


def _as_key(text: Any) -> DelayedKey:
    found = parse_key(text) if isinstance(text, str) else None
    if found is None:
        raise UsageError(E_BAD_ARGUMENT, f"{text!r} is no key of a delayed message: it has 32 hex digits, as `zsq delayed list` shows it")
    return found
