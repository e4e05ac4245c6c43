"""Extension point of a topic's storage: what it asks and tells an extension.

`StorageExtension` is the storage without one: what is synced is confirmed, all messages are on this
disk, and nobody else is told of them. A room of `actors/` fills the point with a file
`extension.py`, which names a subclass in `STORAGE` as MODULE:CLASS. At most one room does. So the
storage knows the questions, and no extension.

| group | methods |
|---|---|
| May a publish be accepted? | `admits`, `may_move`, `check`, `reserve`, `count_reserved`, `check_primary` |
| When is what is stored confirmed? | `confirmed_end`, `readers_end`, `when_confirmable`, `when_safe`, `..._must_wait`, `is_over` |
| What happens on the disk | `synced`, `policy_changed`, `sync_changed`, `turn`, `tick`, `gone`, `stop`, `end` |
| Which files may leave the disk? | `archives`, `leavable`, `leave`, `keeps_remote`, `archived` |
| Reports | `refusal`, `alarms`, `is_busy`, `is_settled`, `statistics` |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

from ...storage.directory.store import Store
from ...storage.log.log_reader import OpenArchive
from ...transport.settings import Retention
from ..runtime.actor import Actor
from ..runtime.extensions import filled
from ..settings.starts import StorageStart
from .commits import StateCommits


class Archived(NamedTuple):
    """Another place that has messages of the topic, and the offset up to which it has all."""

    url: str
    end: int


class ExtendedStorage(Protocol):
    """The part of a topic's storage that an extension uses."""

    host: Actor[Any]
    given: StorageStart
    title: str
    store: Store
    state: StateCommits

    def confirm_appends(self) -> None:
        """Confirm the appends that the extension allows to be confirmed now."""

    def fetched(self) -> None:
        """Try the reads again that wait for bytes or for an end that was not known."""

    def resume_delayed(self) -> None:
        """Move delayed messages that are due, if they were held."""

    def roll(self) -> None:
        """Seal the newest log file, if the disk allows it."""

    def read_state(self, job: Callable[[Any], Any], then: Callable[[Any], None]) -> None:
        """Run a job with the state store in the thread that owns it, in order with commits."""

    def read_delayed(self, job: Callable[[Any], Any], then: Callable[[Any], None]) -> None:
        """Run a job with the store of delayed messages as above, with None if there is none."""


class StorageExtension:
    """The answers without an extension. `storage` is the storage of one topic."""

    def __init__(self, storage: ExtendedStorage) -> None:
        self.storage = storage
        self._log = storage.store.log

    @classmethod
    def open_remote(cls, start: StorageStart) -> OpenArchive | None:
        """Return what opens the reader of chunks that are not on this disk (`StoreOptions`)."""
        return None

    # May a publish be accepted?

    @property
    def confirms_late(self) -> bool:
        """True if a publish is confirmed long after it is on the disk. More of them are then under
        way at once.
        """
        return False

    def admits(self, messages: Callable[[], int]) -> bool:
        """Return False while publishes of so many messages must wait."""
        return True

    def may_move(self, messages: int) -> bool:
        """Return False while so many delayed messages must not move to the log."""
        return True

    def check(self) -> None:
        """Raise `Refused` if publishes are refused now."""

    def reserve(self, messages: int, then: Callable[[], object]) -> bool:
        """Return True if a transaction may give out so many offsets. Otherwise `then` is called
        when it may. Raises `Refused` if publishes are refused.
        """
        return True

    def count_reserved(self, messages: Callable[[], int]) -> None:
        """Take the function that returns how many reserved offsets transactions will use."""

    def check_primary(self) -> None:
        """Raise `Refused` if this broker may not answer readers and writers any more."""

    # When is what is stored confirmed?

    def confirmed_end(self) -> int:
        """Return the end of the synced messages that may be confirmed, and that channels see."""
        return self._log.synced_end

    def readers_end(self) -> int:
        """Return the end of what readers see.

        Raises `NotHere` while this is not known. They wait then.
        """
        return self.confirmed_end()

    def when_confirmable(self, action: Callable[[], object]) -> None:
        """Call `action` when a publish that is on the disk now may be confirmed."""
        action()

    def when_safe(self, action: Callable[[], object]) -> None:
        """Call `action` when all that is synced and committed now would survive the loss of this
        machine, as far as the extension promises it.
        """
        action()

    def appends_must_wait(self) -> bool:
        """Return True while no append may be confirmed."""
        return False

    def finishes_must_wait(self) -> bool:
        """Return True while no finish may be confirmed."""
        return False

    def repeats_must_wait(self) -> bool:
        """Return True while a repeated block must not be confirmed, although it is stored."""
        return False

    def check_repeats(self) -> None:
        """Raise `Refused` if producers have waited too long for `repeats_must_wait`."""

    @property
    def is_over(self) -> bool:
        """True if this topic confirms nothing any more, because another broker has it."""
        return False

    # What happens on the disk

    def synced(self) -> None:
        """Note that more of the log is synced."""

    def policy_changed(self, policy: Retention) -> None:
        """Note the topic's new policy of retention."""

    def sync_changed(self, sync: str) -> None:
        """Note the topic's new sync mode."""

    def turn(self) -> None:
        """Act on what has arrived. It is called at the end of each turn of the loop."""

    def tick(self) -> None:
        """Act on time. It is called about once a second."""

    def gone(self, who: str) -> None:
        """Note that another actor has died."""

    def stop(self) -> bool:
        """Return True if the topic may end. It is called on each turn of a stop when all is on the
        disk.
        """
        return True

    def end(self) -> None:
        """Remove temporary files."""

    # Which files may leave the disk?

    @property
    def archives(self) -> bool:
        """True if the files of sealed chunks go to another place."""
        return False

    def leavable(self, bases: Sequence[int], covered: int) -> int:
        """Return how many of the first of these chunks may leave the disk, or have left it.

        A rebuilt state replays the log from `covered` on.
        """
        return 0

    def leave(self, bases: Sequence[int]) -> None:
        """Note that the files of these chunks are removed."""

    @property
    def keeps_remote(self) -> bool:
        """True if messages that are not on this disk must not expire, because this broker cannot
        remove them where they are.
        """
        return bool(self._log.reader.remote)

    def archived(self) -> Archived | None:
        """Return the other place that has messages of this topic, for readers that know it."""
        return None

    # Reports

    def refusal(self) -> str:
        """Return why publishes are refused, or ""."""
        return ""

    def alarms(self) -> list[str]:
        """Return the alarms that last as long as their causes."""
        return []

    @property
    def is_busy(self) -> bool:
        """True while something is left to do, so that the topic must not sleep."""
        return False

    @property
    def is_settled(self) -> bool:
        """True if the topic has stopped with nothing left to do."""
        return False

    def statistics(self) -> Mapping[str, Any]:
        """Return the values of the extension's statistics (`ExtensionStatistics`)."""
        return {}


@cache
def extension_class() -> type[StorageExtension]:
    """Return the class that fills the extension point."""
    classes: tuple[type[StorageExtension], ...] = filled("STORAGE")
    assert len(classes) <= 1, f"two extensions want the storage of topics: {classes}"
    return classes[0] if classes else StorageExtension
