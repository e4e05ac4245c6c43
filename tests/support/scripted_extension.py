"""A storage's extension whose answers a test sets."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from zsq.actors.storage.extension_point import StorageExtension
from zsq.storage.log.log import Log
from zsq.transport.errors import Refused


def plain(log: Log | None = None) -> StorageExtension:
    """Return the extension of a storage without one. `log` is the storage's log."""
    return StorageExtension(cast("Any", SimpleNamespace(store=SimpleNamespace(log=log))))


class ScriptedExtension(StorageExtension):
    """What is on the disk is confirmed, unless a test says that it waits."""

    def __init__(self, log: Log | None = None) -> None:
        super().__init__(cast("Any", SimpleNamespace(store=SimpleNamespace(log=log))))
        self.is_late = False
        self.is_full = False  # publishes must wait
        self.may_move_delayed = True
        self.holds = False  # nothing is confirmed
        self.confirmed: int | None = None  # the end of what is confirmed, if not all that is synced
        self.reserved = 1_000
        self.promised: Callable[[], int] = lambda: 0
        self.refused: Refused | None = None
        self.ended = False
        self._waiting: list[Callable[[], object]] = []

    @property
    def confirms_late(self) -> bool:
        return self.is_late

    def admits(self, messages: Callable[[], int]) -> bool:
        return not self.is_full

    def may_move(self, messages: int) -> bool:
        return self.may_move_delayed

    def count_reserved(self, messages: Callable[[], int]) -> None:
        self.promised = messages

    def reserve(self, messages: int, then: Callable[[], object]) -> bool:
        return self.promised() + messages <= self.reserved

    def confirmed_end(self) -> int:
        return super().confirmed_end() if self.confirmed is None else self.confirmed

    def when_confirmable(self, action: Callable[[], object]) -> None:
        self.when_safe(action)

    def when_safe(self, action: Callable[[], object]) -> None:
        if self.holds:
            self._waiting.append(action)
        else:
            action()

    def release(self) -> None:
        """Confirm everything that waits."""
        self.holds = False
        waiting, self._waiting = self._waiting, []
        for action in waiting:
            action()

    def appends_must_wait(self) -> bool:
        return self.holds

    def repeats_must_wait(self) -> bool:
        return self.holds

    def check_repeats(self) -> None:
        if self.refused is not None:
            raise self.refused

    @property
    def is_over(self) -> bool:
        return self.ended
