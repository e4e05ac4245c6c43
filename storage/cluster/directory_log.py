"""Directory log: reads the entries of a cluster's directory from a bucket, and adds to them.

    CLUSTER/directory/NUMBER    an entry; created if its name is free, never changed or removed

NUMBER has 20 digits and counts from 0 without gaps. The URL of the cluster is the prefix.

Whoever adds an entry reads all entries that exist, and creates the object with the next number.

| answer | next |
|---|---|
| created | done |
| it exists | read on: it is another entry, or this one, whose first answer was lost |
| none | read on, then the same again |

The next number is the first one that is missing. So an entry can exist only under a number that its
writer has tried, and the writer leaves a number only when another entry has it. A request that
arrives late finds its number taken, or is the entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from ..bucket.bucket import (
    Bucket,
    BucketAway,
    BucketError,
    BucketRefuses,
    ObjectExists,
    ObjectMissing,
)
from ..errors import Damaged, ForeignDirectory
from .directory import (
    FOLDER,
    Directory,
    Entry,
    Objection,
    encode_entry,
    entry_number,
    entry_object,
)

AWAY_MAX: Final = 3  # tries of a create that the store does not answer
TAKEN_MAX: Final = 100  # numbers that others take first
# A first reader of many entries reads so many at a time, and keeps so many in memory.
READERS: Final = 8
BATCH: Final = 256


class VoidEntry(BucketError):
    """The entry was not added, because it would be void."""

    def __init__(self, objection: Objection) -> None:
        super().__init__(objection.text)
        self.code = objection.code


class NewEntries(NamedTuple):
    """Entries as they are in the bucket, the first one with the number `first`."""

    first: int
    entries: tuple[bytes, ...]


class DirectoryLog:
    """Reads and adds entries. Calls block, and one thread at a time uses it.

    `directory` is the view after all entries that were read. It stays as it is when a call fails,
    and the next call goes on there.
    """

    def __init__(self, bucket: Bucket) -> None:
        self.directory = Directory()
        self._bucket = bucket
        self._is_listed = False
        self._taken = 0  # the number of the first entry of `_new`
        self._new: list[bytes] = []

    def take(self) -> NewEntries:
        """Return the entries that were read or added since the last call."""
        news = NewEntries(self._taken, tuple(self._new))
        self._taken += len(self._new)
        self._new.clear()
        return news

    def read_on(self) -> None:
        """Read all entries that exist, from the first unknown one on.

        Raises `BucketRefuses` if an entry is damaged or was written by a newer version, or another
        `BucketError`. The entries before it were read then.
        """
        if not self._is_listed:
            for raw in self._read_many():
                self._apply(raw)
            self._is_listed = True
        while (entry := self._read(self.directory.next)) is not None:
            self._apply(entry)

    def append(self, entry: Entry) -> int:
        """Add the entry unless it is there already. Return its number.

        Raises `VoidEntry` if it would be void, or otherwise as `read_on`. After `BucketAway`, the
        entry may be there, or may appear later. The same call with the same entry is safe then.
        """
        raw = encode_entry(entry)
        away = taken = 0
        while True:
            self.read_on()
            if (number := self.directory.number_of(entry.id)) is not None:
                return number
            if (objection := self.directory.objection(entry)) is not None:
                raise VoidEntry(objection)
            number = self.directory.next
            try:
                self._bucket.create(entry_object(number), raw)
            except ObjectExists:
                taken += 1
                if taken == TAKEN_MAX:
                    raise BucketError(
                        f"{self._bucket.url}: the next entry of the directory was taken "
                        f"{TAKEN_MAX} times"
                    ) from None
            except BucketAway:
                away += 1
                if away == AWAY_MAX:
                    raise
            else:
                self._apply(raw)
                return number

    def _read(self, number: int) -> bytes | None:
        try:
            return self._bucket.read(entry_object(number))
        except ObjectMissing:
            return None

    def _read_many(self) -> Iterator[bytes]:
        """Yield the entries that a list of names shows, in order. The list may be incomplete."""
        names = self._bucket.names(f"{FOLDER}/")
        end = max(map(entry_number, names), default=-1) + 1
        with ThreadPoolExecutor(READERS, "directory") as readers:
            while (first := self.directory.next) < end:
                for raw in readers.map(self._read, range(first, min(first + BATCH, end))):
                    if raw is None:
                        return
                    yield raw

    def _apply(self, raw: bytes) -> None:
        number = self.directory.next
        try:
            self.directory.apply(number, raw)
        except (Damaged, ForeignDirectory) as error:
            name = f"{self._bucket.url}/{entry_object(number)}"
            raise BucketRefuses(f"{name}: {error}; entries after it are not read") from error
        self._new.append(raw)
