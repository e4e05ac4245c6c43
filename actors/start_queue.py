"""Which of a topic's channels is started next. Pure.

A few start at a time, the next as each is up: a thousand forked in one turn of the supervisor's loop would hold up everybody who asks it
for something, and each other. Those for whom somebody waits come first.
"""

from __future__ import annotations


class StartQueue:
    """`starting`: those that are on their way up now, at most `at_once`."""

    def __init__(self, at_once: int) -> None:
        self.starting: set[str] = set()
        self._at_once = at_once
        self._first: dict[str, None] = {}  # as an ordered set
        self._others: dict[str, None] = {}

    def add(self, channel: str, *, first: bool = False) -> None:
        """It waits for its start. Once more with `first`: somebody waits for it now."""
        if first:
            self._others.pop(channel, None)
            self._first[channel] = None
        elif channel not in self._first:
            self._others[channel] = None

    def ready(self) -> bool:
        """One waits, and there is room for it."""
        return len(self.starting) < self._at_once and bool(self._first or self._others)

    def take(self) -> str:
        """The next one, which is starting from here on; only when ready."""
        waiting = self._first or self._others
        channel = next(iter(waiting))
        del waiting[channel]
        self.starting.add(channel)
        return channel

    def done(self, channel: str) -> None:
        """It is up, has failed, or is not wanted any more."""
        self.starting.discard(channel)
        self._first.pop(channel, None)
        self._others.pop(channel, None)

    def clear(self) -> None:
        self.starting.clear()
        self._first.clear()
        self._others.clear()
