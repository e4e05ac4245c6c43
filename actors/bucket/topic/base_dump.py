"""Base dump: all rows of a topic's stores, from the wish for them until a piece has them.

The log of ticks needs all rows of a topic once, the base, and the changes after them. The threads
that own the stores dump them. If they are many, they go to files, and the archive actor uploads
them as one object, which a piece names. Changes that are committed meanwhile wait in the queue.

| state | event | next |
|---|---|---|
| NONE | all rows are needed | WANTED |
| WANTED | the next tick, and no pause | DUMPING |
| DUMPING | both stores are dumped | DUMPED |
| DUMPING | a file cannot be written | WANTED |
| DUMPED | the rows in files are in one file | JOINED |
| DUMPED | a file cannot be written | WANTED |
| JOINED | the upload begins | UPLOADING |
| UPLOADING | uploaded | UPLOADED |
| UPLOADING | the archive actor died | JOINED |
| UPLOADED | the archive actor died | WANTED |
| DUMPED, UPLOADED | a piece has the rows | NONE |
| DUMPING | changes were dropped | STALE |
| STALE | both stores are dumped | WANTED |
| STALE | a file cannot be written | WANTED |
| NONE, DUMPED, JOINED, UPLOADING, UPLOADED | changes were dropped | WANTED |

All other events change nothing. The next archive actor does not know an object that no piece names
yet, and may remove it. So the rows are dumped again then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any, Final

from ....storage.delayed.delayed import DelayedStore
from ....storage.errors import StorageError, StoreFailed
from ....storage.row_changes import (
    DELAYED,
    DELAYED_BEGIN,
    DELAYED_NONE,
    STATE,
    STATE_BEGIN,
    encode_frames,
)
from ....storage.state.state import StateStore
from ....transport.wire import protocol as p
from ...storage.extension_point import ExtendedStorage
from .archive_link import Answer, ArchiveLink
from .change_queue import ChangeQueue, Entry
from .row_dumps import RowDumps

PAUSE_S: Final = 1.0  # after a file could not be written


class BaseState(Enum):
    NONE = "the pieces have all rows"
    WANTED = "all rows are needed"
    DUMPING = "the threads of the stores dump"
    STALE = "they dump, but changes after the dump were lost"
    DUMPED = "both dumps are complete, in memory or in files"
    JOINED = "the rows are in one file"
    UPLOADING = "the archive actor uploads it"
    UPLOADED = "its object exists"


class BaseEvent(Enum):
    NEEDED = "all rows are needed"
    BEGUN = "the next tick, and no pause"
    DUMPED = "both stores are dumped"
    FAILED = "a file cannot be written"
    JOINED = "the rows in files are in one file"
    SENT = "the upload begins"
    UPLOADED = "uploaded"
    GONE = "the archive actor died"
    TAKEN = "a piece has the rows"
    DROPPED = "changes were dropped"


_S, _E = BaseState, BaseEvent
BASE_TABLE: Final[Mapping[tuple[BaseState, BaseEvent], BaseState]] = {
    (_S.NONE, _E.NEEDED): _S.WANTED,
    (_S.WANTED, _E.BEGUN): _S.DUMPING,
    (_S.DUMPING, _E.DUMPED): _S.DUMPED,
    (_S.DUMPING, _E.FAILED): _S.WANTED,
    (_S.DUMPED, _E.JOINED): _S.JOINED,
    (_S.DUMPED, _E.FAILED): _S.WANTED,
    (_S.JOINED, _E.SENT): _S.UPLOADING,
    (_S.UPLOADING, _E.UPLOADED): _S.UPLOADED,
    (_S.UPLOADING, _E.GONE): _S.JOINED,
    (_S.UPLOADED, _E.GONE): _S.WANTED,
    (_S.DUMPED, _E.TAKEN): _S.NONE,
    (_S.UPLOADED, _E.TAKEN): _S.NONE,
    (_S.DUMPING, _E.DROPPED): _S.STALE,
    (_S.STALE, _E.DUMPED): _S.WANTED,
    (_S.STALE, _E.FAILED): _S.WANTED,
    (_S.NONE, _E.DROPPED): _S.WANTED,
    (_S.DUMPED, _E.DROPPED): _S.WANTED,
    (_S.JOINED, _E.DROPPED): _S.WANTED,
    (_S.UPLOADING, _E.DROPPED): _S.WANTED,
    (_S.UPLOADED, _E.DROPPED): _S.WANTED,
}
_COMPLETE: Final = frozenset({_S.DUMPED, _S.JOINED, _S.UPLOADING, _S.UPLOADED})


class BaseDump:
    """All rows of one topic. `on_ready` is called when a piece or an upload may begin.

    `on_failure` is called with the reason if the rows cannot be written to a file. `on_refusal` is
    called with the reason if they cannot be uploaded.
    """

    def __init__(
        self,
        storage: ExtendedStorage,
        dumps: RowDumps,
        queue: ChangeQueue,
        link: ArchiveLink,
        uuid: str,
        on_ready: Callable[[], object],
        on_failure: Callable[[str], object],
        on_refusal: Callable[[str], object],
    ) -> None:
        self._storage = storage
        self._dumps = dumps
        self._queue = queue
        self._link = link
        self._uuid = uuid
        self._on_ready = on_ready
        self._on_failure = on_failure
        self._on_refusal = on_refusal
        self.state = BaseState.WANTED
        self._entries: dict[int, Entry] = {}  # the dumps, by their stores
        self._object = ""  # in UPLOADED
        self._retry_ns = 0  # in WANTED
        self._is_uploading = False  # an upload is not answered, which may be one of dropped rows
        dumps.remove()

    def _happen(self, event: BaseEvent) -> None:
        self.state = BASE_TABLE.get((self.state, event), self.state)
        if self.state in (BaseState.NONE, BaseState.WANTED):
            self._entries, self._object = {}, ""

    @property
    def is_none(self) -> bool:
        """True if the pieces have all rows, so that changes may follow."""
        return self.state is BaseState.NONE

    @property
    def is_wanted(self) -> bool:
        return self.state is BaseState.WANTED

    @property
    def is_complete(self) -> bool:
        """True if all rows are dumped."""
        return self.state in _COMPLETE

    @property
    def is_begun(self) -> bool:
        return self.state not in (BaseState.NONE, BaseState.WANTED)

    @property
    def needs_upload(self) -> bool:
        """True if the rows are dumped, and must be in the bucket before a piece can name them."""
        return self.is_complete and not self.is_ready

    @property
    def is_ready(self) -> bool:
        """True if the next piece can have all rows."""
        if self.state is BaseState.DUMPED:
            return not any(entry.path for entry in self._entries.values())
        return self.state is BaseState.UPLOADED

    @property
    def oldest_ns(self) -> int:
        """Since when the first dump waits (monotonic), 0 for none."""
        return min((entry.time_ns for entry in self._entries.values()), default=0)

    def need(self) -> None:
        self._happen(BaseEvent.NEEDED)

    def drop(self) -> None:
        """Note that changes were lost that a dump so far does not have."""
        self._happen(BaseEvent.DROPPED)

    def gone(self) -> None:
        """Note that the archive actor died."""
        self._is_uploading = False
        self._happen(BaseEvent.GONE)

    def take(self) -> tuple[str, list[bytes]]:
        """Return the object with the rows, or "" and the frames with them, for a piece."""
        frames = [frame for kind in (STATE, DELAYED) for frame in self._entries[kind].frames]
        name = self._object
        self._happen(BaseEvent.TAKEN)
        return name, [] if name else frames

    # Dumping

    def begin(self) -> None:
        """Dump all rows, if they are needed and no pause lasts."""
        if self.is_wanted and time.monotonic_ns() >= self._retry_ns:
            self._happen(BaseEvent.BEGUN)
            job = partial(self._dump, STATE, STATE_BEGIN)
            self._storage.read_state(job, self._state_dumped)

    def takes(self, entry: Entry) -> bool:
        """Keep a dump that a thread noted. Return False if it is a change: a store was made."""
        if self.state not in (BaseState.DUMPING, BaseState.STALE, BaseState.DUMPED):
            return False
        self._entries[entry.kind] = entry
        return True

    def _dump(self, kind: int, begin: int, store: StateStore | DelayedStore | None) -> str:
        """Note all rows of a store, in its thread. Many rows go to a file.

        Return why that file cannot be written, or "".
        """
        if store is None:
            frames = tuple(encode_frames(DELAYED_NONE))
            # If the store is made at this moment, it must follow.
            self._queue.note(Entry(kind, frames, time.monotonic_ns(), begins=True), first=True)
            return ""
        try:
            frames, path = self._dumps.dump(kind, begin, store)
        except OSError as error:
            return f"the rows of the topic cannot be written to a file: {error}"
        store.on_changes = partial(self._queue.note_changes, kind)
        self._queue.note(Entry(kind, frames, time.monotonic_ns(), begins=True, path=path))
        return ""

    def _state_dumped(self, result: Any) -> None:
        if not self._fails(result):
            job = partial(self._dump, DELAYED, DELAYED_BEGIN)
            self._storage.read_delayed(job, self._delayed_dumped)

    def _delayed_dumped(self, result: Any) -> None:
        if not self._fails(result):
            self._queue.drain(self.takes)
            self._happen(BaseEvent.DUMPED)
            self._on_ready()

    def _fails(self, result: Any) -> bool:
        """Return True if a dump failed. Raise `StoreFailed` if its store cannot be read.

        The process ends then, and recovers.
        """
        if isinstance(result, (StorageError, OSError)):
            raise StoreFailed(f"the rows of a store cannot be read: {result}") from result
        if isinstance(result, Exception):
            raise result
        if result:
            self._fail(result)
        return bool(result)

    def _fail(self, why: str) -> None:
        """Dump all rows again after a pause."""
        self._queue.drain(self.takes)
        self._happen(BaseEvent.FAILED)
        self._retry_ns = time.monotonic_ns() + int(PAUSE_S * 1e9)
        self._on_failure(why)

    # The upload

    def upload(self, stream: int) -> None:
        """Upload the rows that are in files, when the upload before is answered."""
        if self._is_uploading or not self.needs_upload:
            return
        if self.state is BaseState.DUMPED:
            try:
                self._dumps.join(self._entries)
            except OSError as error:
                self._fail(f"the rows of the topic cannot be written to a file: {error}")
                return
            self._happen(BaseEvent.JOINED)
        self._is_uploading = True
        self._happen(BaseEvent.SENT)
        self._link.ask(
            partial(p.ShipBase, uuid=self._uuid, stream=stream, path=self._dumps.joined_path),
            self._uploaded,
        )

    def _uploaded(self, answer: Answer) -> None:
        self._is_uploading = False
        if self.state is not BaseState.UPLOADING:
            self._on_ready()  # the rows of that upload were dropped, and others may wait
        elif isinstance(answer, p.Failed):
            self._on_refusal(answer.text)
        else:
            self._happen(BaseEvent.UPLOADED)
            self._object = answer.data["base"]
            self._dumps.remove_joined()
            self._on_ready()
