"""Index of ids: remembers each id of a topic for the topic's window, in memory and in files.

The log is the place where an id is committed, because a message has its id in its headers. The
index is a cache of that. It has files of its own, because retention may remove the messages before
the window ends, and because a start must not read the log of a whole window.

The ids are in *segments*. Each has a file (`id_format.py`) and a table in memory (`id_table.py`).
The newest segment grows, and begins small. A full one is followed by one of four times the size.
When the newest id of a segment is older than the window, the whole segment is removed. So an id
costs 32 bytes on disk for its entry, up to 32 for the head of its batch, and 16 for the stored
table; and 16 to 32 bytes of memory.

Entries wait in memory (`pending`) until their messages are synced, and are written about once a
second. After a crash, `storage/directory/open_ids.py` reads the messages of that second from the
log again. So no file ever has an id of a message that a power cut can remove. If it had, the next
publish with that id would be called a duplicate of nothing, and would be lost.

One thread uses the index. Only `Flush.run` runs in another one.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import Final, NamedTuple

from ...transport.checksum import crc32c
from ..errors import Damaged, NewerVersion
from ..files import Files
from .id_format import (
    ENTRY,
    ENTRY_BYTES,
    FOLDER_NAME,
    NO_OFFSET,
    TABLE_HEAD_BYTES,
    Batch,
    TableHead,
    decode_batches,
    decode_file_head,
    decode_table_head,
    encode_batch_head,
    encode_file_head,
    encode_table_head,
    file_name,
    parse_name,
    table_name,
)
from .id_table import BITS_MAX, BITS_MIN, PLACES_MAX, IdTable, numbers_of

IDS_MAX: Final = 10_000_000  # the most ids of a topic; the oldest are forgotten early beyond it
FILE_BYTES_MAX: Final = PLACES_MAX * ENTRY_BYTES


class Segment:
    """Some ids that were added one after the other."""

    def __init__(self, number: int, bits: int) -> None:
        self.number = number
        self.table = IdTable(bits)
        self.fd = -1
        self.written = 0  # entries of the file, with heads; 0 while there is no file
        self.pending = bytearray()
        self.marks: deque[tuple[int, int]] = deque()  # (end, place after it) of pending batches
        self.places = 1  # entries with heads, written or not; the file's head is the first
        self.first_offset = NO_OFFSET
        self.end = 0
        self.written_end = 0
        self.newest_ns = 0
        self.is_full = False
        self.is_stored = False  # its table is on the disk

    def has_room(self, count: int) -> bool:
        return (
            self.table.count + count <= self.table.capacity and self.places + 1 + count < PLACES_MAX
        )

    def add(self, digests: Sequence[bytes], offsets: Sequence[int], time_ns: int, end: int) -> None:
        end = max(end, self.end)
        entries = b"".join(map(ENTRY.pack, digests, offsets, repeat(time_ns)))
        self.pending += encode_batch_head(entries, end)
        self.pending += entries
        self._took(digests, offsets, time_ns, end)
        self.marks.append((end, self.places))

    def load(self, batch: Batch) -> None:
        """Add a batch that the file has."""
        assert batch.place == self.places + 1
        if batch.entries:
            digests, offsets, times = zip(*batch.entries, strict=True)
            self._took(digests, offsets, max(times), batch.end)
        else:
            self.places += 1
        self.written = self.places
        self.written_end = batch.end

    def _took(
        self, digests: Sequence[bytes], offsets: Sequence[int], time_ns: int, end: int
    ) -> None:
        self.table.add(numbers_of(digests), self.places + 1)
        self.places += 1 + len(digests)
        if self.first_offset < 0:
            self.first_offset = next((offset for offset in offsets if offset >= 0), NO_OFFSET)
        self.end = max(self.end, end)
        self.newest_ns = max(self.newest_ns, time_ns)


class Write(NamedTuple):
    """The bytes to write to the file of a segment, and the place and the end after them."""

    segment: Segment
    data: bytes
    places: int
    end: int


class Flush:
    """One round of writing: entries, tables of full segments, and the removal of old files."""

    def __init__(self, files: Files, folder: str, uuid: bytes) -> None:
        self.files = files
        self.folder = folder
        self.uuid = uuid
        self.writes: list[Write] = []
        self.tables: list[Segment] = []
        self.removed: list[Segment] = []

    def run(self) -> None:
        """Write all of it, and sync it. This may run in any thread. Raises `OSError`."""
        files, folder = self.files, self.folder
        for segment in self.removed:
            if segment.fd >= 0:
                files.close(segment.fd)
                segment.fd = -1
            remove_files(files, folder, segment.number)
        for write in self.writes:
            self._write(write)
        for segment in self.tables:
            self._store_table(segment)
        if self.writes or self.tables:
            files.sync_folder(folder)

    def _write(self, write: Write) -> None:
        files, segment = self.files, write.segment
        if segment.fd < 0:
            if not files.exists(self.folder):
                files.make_folder(self.folder)
                files.sync_folder(self.folder.rpartition("/")[0])
            path = f"{self.folder}/{file_name(segment.number)}"
            # An attempt that failed on a full disk may have made it.
            fd = files.open_append(path) if files.exists(path) else files.open_new(path)
            segment.fd = fd
        data, position = write.data, segment.written * ENTRY_BYTES
        if not position:
            data = encode_file_head(segment.table.bits, self.uuid, segment.number) + data
        files.writev(segment.fd, [data], position)
        files.sync(segment.fd)

    def _store_table(self, segment: Segment) -> None:
        data = segment.table.numbers.tobytes()
        head = TableHead(
            segment.table.bits, segment.table.count, segment.first_offset, segment.end,
            segment.newest_ns, segment.places, crc32c(data),
        )  # fmt: skip
        path = f"{self.folder}/{table_name(segment.number)}"
        if self.files.exists(path):
            self.files.remove(path)
        self.files.write_file(path, encode_table_head(head) + data)


def remove_files(files: Files, folder: str, number: int) -> None:
    for name in (table_name(number), file_name(number)):
        if files.exists(f"{folder}/{name}"):
            files.remove(f"{folder}/{name}")


class IdIndex:
    """The ids of one topic. `directory` is the topic's."""

    def __init__(self, files: Files, directory: str, uuid: bytes, ids_max: int = IDS_MAX) -> None:
        self._files = files
        self._folder = f"{directory}/{FOLDER_NAME}"
        self._uuid = uuid
        self._ids_max = ids_max
        self._segments: list[Segment] = []  # the oldest first
        self._removed: list[Segment] = []
        self._next_number = 1
        self.forgotten_early = 0  # ids that were forgotten within the window, for want of room
        self.early_until_ns = 0  # until then, the window is shorter than it should be

    def __len__(self) -> int:
        return sum(segment.table.count for segment in self._segments)

    @property
    def range(self) -> tuple[int, int]:
        """The offsets that may have ids: the first one, and the end."""
        firsts = [one.first_offset for one in self._segments if one.first_offset >= 0]
        return min(firsts, default=0), max((one.end for one in self._segments), default=0)

    @property
    def written_end(self) -> int:
        """The files have all ids of the messages below this offset, as far as the index has."""
        return max((segment.written_end for segment in self._segments), default=0)

    @property
    def memory_bytes(self) -> int:
        return sum(
            len(segment.table.numbers) * 8 + len(segment.pending) for segment in self._segments
        )

    # Ids

    def known(self, digests: Sequence[bytes], since_ns: int) -> dict[int, int]:
        """Return index -> offset of those ids that were added after `since_ns`.

        The offset is NO_OFFSET for a delayed message.
        """
        found: dict[int, int] = {}
        if not digests:
            return found
        numbers = numbers_of(digests)
        for segment in reversed(self._segments):
            if segment.newest_ns <= since_ns:
                continue
            for index in segment.table.candidates(numbers):
                if index not in found:
                    offset = self._find(segment, digests[index], since_ns)
                    if offset is not None:
                        found[index] = offset
        return found

    def _find(self, segment: Segment, digest: bytes, since_ns: int) -> int | None:
        for place in reversed(segment.table.places(digest)):
            other, offset, time_ns = ENTRY.unpack(self._entry(segment, place))
            if other == digest and time_ns > since_ns:
                return int(offset)
        return None

    def _entry(self, segment: Segment, place: int) -> bytes:
        if place >= max(segment.written, 1):
            at = (place - max(segment.written, 1)) * ENTRY_BYTES
            return bytes(segment.pending[at : at + ENTRY_BYTES])
        try:
            data = self._files.pread(segment.fd, ENTRY_BYTES, place * ENTRY_BYTES)
        except OSError:
            data = b""  # an id that cannot be read costs a duplicate, and not the topic
        return data if len(data) == ENTRY_BYTES else bytes(ENTRY_BYTES)

    def add(self, digests: Sequence[bytes], offsets: Sequence[int], time_ns: int, end: int) -> None:
        """Add the ids of one append, after which the log has this end.

        For delayed messages, it is 0. They must be on the disk already.
        """
        segment = self._segments[-1] if self._segments else None
        if segment is None or segment.is_full or not segment.has_room(len(digests)):
            segment = self._begin(segment, len(digests))
        segment.add(digests, offsets, time_ns, end)
        while len(self) > self._ids_max and len(self._segments) > 1:
            oldest = self._segments[0]
            self.forgotten_early += oldest.table.count
            self.early_until_ns = max(self.early_until_ns, oldest.newest_ns)
            self._remove(oldest)

    def _begin(self, before: Segment | None, count: int) -> Segment:
        bits = BITS_MIN
        if before is not None:
            before.is_full = True
            bits = min(before.table.bits + 2, BITS_MAX)
        while 1 << (bits - 1) < count:
            bits += 1
        segment = Segment(self._next_number, bits)
        self._next_number += 1
        self._segments.append(segment)
        return segment

    def expire(self, since_ns: int) -> None:
        """Forget the segments without an id that was added after `since_ns`."""
        while self._segments and self._segments[0].newest_ns <= since_ns:
            self._remove(self._segments[0])

    def _remove(self, segment: Segment) -> None:
        self._segments.remove(segment)
        self._removed.append(segment)

    # Files

    def take(self, synced_end: int) -> Flush | None:
        """Return what can be written now, or None. `done` follows when it was run."""
        flush = Flush(self._files, self._folder, self._uuid)
        flush.removed = self._removed
        for segment in self._segments:
            places = end = 0
            for mark in segment.marks:
                if mark[0] > synced_end:
                    break
                end, places = mark
            if places:
                stop = (places - max(segment.written, 1)) * ENTRY_BYTES
                data = bytes(memoryview(segment.pending)[:stop])
                flush.writes.append(Write(segment, data, places, end))
            elif segment.is_full and not segment.marks and not segment.is_stored:
                flush.tables.append(segment)
        return flush if flush.removed or flush.writes or flush.tables else None

    def done(self, flush: Flush) -> None:
        """Note that this was written."""
        self._removed = [one for one in self._removed if one not in flush.removed]
        for segment, data, places, end in flush.writes:
            del segment.pending[: len(data)]
            segment.written, segment.written_end = places, end
            while segment.marks and segment.marks[0][1] <= places:
                segment.marks.popleft()
        for segment in flush.tables:
            segment.is_stored = True

    def load(self, log_end: int) -> list[str]:
        """Read the files. Return what is wrong with them, as sentences.

        Raises `NewerVersion`, and then changes nothing. Batches beyond the log's end are cut off:
        their messages were lost in a power cut, which the sync modes `interval` and `never` allow.
        """
        files, folder = self._files, self._folder
        if not files.exists(folder):
            return []
        numbers = sorted(n for n in map(parse_name, files.list(folder)) if n is not None)
        problems: list[str] = []
        for number in numbers:
            path = f"{folder}/{file_name(number)}"
            if self._segments and number != self._next_number:
                problems.append(f"{path}: the file before it is missing")
            self._next_number = number + 1
            if self._segments:
                self._segments[-1].is_full = True
            try:
                segment = self._load(number, log_end)
            except NewerVersion as error:
                raise error.at(path) from error
            except (Damaged, OSError) as error:
                problems.append(f"{path}: {error}")
                with contextlib.suppress(OSError):
                    remove_files(files, folder, number)
                continue
            if segment.is_stored is False and number != numbers[-1]:
                segment.is_full = True
            self._segments.append(segment)
            if segment.is_cut:
                problems += [f"{path}: {segment.is_cut}"] if number != numbers[-1] else []
        return problems

    def _load(self, number: int, log_end: int) -> LoadedSegment:
        files, path = self._files, f"{self._folder}/{file_name(number)}"
        fd = files.open_append(path)
        try:
            bits = decode_file_head(files.pread(fd, ENTRY_BYTES, 0), self._uuid, number)
            size = files.size(fd)
            table = self._stored_table(number, size)
            segment = LoadedSegment(number, bits)
            if table is not None and table[0].end <= log_end:
                segment.restore(*table)
            else:
                data = files.pread(fd, min(size, FILE_BYTES_MAX) - ENTRY_BYTES, ENTRY_BYTES)
                segment.written = 1
                for batch in decode_batches(data):
                    if batch.end > log_end:
                        break
                    segment.load(batch)
                if segment.places * ENTRY_BYTES != size:
                    segment.is_cut = "its end is damaged, or was not written"
                    files.truncate(fd, segment.places * ENTRY_BYTES)
                    files.sync(fd)
                    stored = f"{self._folder}/{table_name(number)}"
                    if files.exists(stored):
                        files.remove(stored)
        except BaseException:
            files.close(fd)
            raise
        segment.fd = fd
        return segment

    def _stored_table(self, number: int, size: int) -> tuple[TableHead, bytes] | None:
        path = f"{self._folder}/{table_name(number)}"
        if not self._files.exists(path):
            return None
        data = self._files.read_file(path, TABLE_HEAD_BYTES + (8 << BITS_MAX))
        try:
            head = decode_table_head(data[:TABLE_HEAD_BYTES])
        except Damaged:
            return None
        body = data[TABLE_HEAD_BYTES:]
        good = head.places * ENTRY_BYTES == size and len(body) == 8 << head.bits
        return (head, body) if good and crc32c(body) == head.crc else None

    def close(self) -> None:
        for segment in (*self._segments, *self._removed):
            if segment.fd >= 0:
                self._files.close(segment.fd)
                segment.fd = -1


class LoadedSegment(Segment):
    """A segment that a file had at the start. `is_cut` says why its end was cut off."""

    is_cut = ""

    def restore(self, head: TableHead, data: bytes) -> None:
        """Take the stored table of a full file."""
        self.table = IdTable.of(head.bits, data, head.ids)
        self.places = self.written = head.places
        self.first_offset, self.end, self.newest_ns = head.first_offset, head.end, head.newest_ns
        self.written_end = head.end
        self.is_full = self.is_stored = True
