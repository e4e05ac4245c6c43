"""Which orders go into the audit log, and with which end: written when they are answered, whoever answers.

Who gave the order is told by the gateway (Manage.by), which knows; over ipc it is a process of the broker's own user. What only looks is
left out by name: an action that is new here is logged until somebody says that it only looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..transport import protocol as p
from ..transport.errors import E_BAD_ARGUMENT, UsageError
from .audit import REMEMBERED, AuditLog
from .port import Envelope

LOOKING: Final = frozenset({"list", "chunks", "peek", "overview", "audit"})
# Of an action with parts those that only look, or that follow on one that is logged.
PARTS: Final = frozenset({("delayed", "list"), ("delayed", "count"), ("backup", "log"), ("backup", "end")})
FIRST_USE: Final = "first use"  # an action beside those of Manage
COUNT: Final = 100  # entries of an answer where nobody says how many
OPEN_MAX: Final = 10_000  # orders that are not answered; of more the oldest are logged as they are


def count_of(options: Mapping[str, Any]) -> int:
    """How many entries Manage `audit` asks for. `UsageError` E_BAD_ARGUMENT."""
    count = options.get("count", COUNT)
    if type(count) is not int or not 1 <= count <= REMEMBERED:
        raise UsageError(E_BAD_ARGUMENT, f"count is 1 to {REMEMBERED}, not {repr(count)[:40]}")
    return count


def looks_only(word: p.Manage) -> bool:
    part = word.options.get("do")  # anything at all
    return word.action in LOOKING or (isinstance(part, str) and (word.action, part) in PARTS)


class AuditDesk:
    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit
        self._open: dict[tuple[Envelope, int], p.Manage] = {}

    def ordered(self, envelope: Envelope, word: p.Manage) -> None:
        if looks_only(word):
            return
        if len(self._open) >= OPEN_MAX:
            self._note(self._open.pop(next(iter(self._open))), "not known")
        self._open[envelope, word.request] = word

    def answered(self, envelope: Envelope, request: int, error: str = "") -> None:
        """Of any word: those that are no orders are not known here."""
        word = self._open.pop((envelope, request), None)
        if word is not None:
            self._note(word, error or "done")

    def first_use(self, word: p.Lookup, channel: str) -> None:
        """A topic (`channel` "") or a channel came to be because somebody wanted to publish to it or to consume it."""
        self._note(p.Manage(word.request, FIRST_USE, word.topic, channel, word.settings if channel else {}, word.by), "done")

    def close(self) -> None:
        for word in self._open.values():
            self._note(word, "not known: the broker ended before it was answered")
        self._open.clear()

    def _note(self, word: p.Manage, result: str) -> None:
        by = word.by
        self._audit.note(
            word.action,
            topic=word.topic,
            channel=word.channel,
            options=word.options,
            user=by.get("user", ""),
            **{"from": by.get("from", "")},
            via=by.get("via", "") or "ipc",
            result=result,
        )
