"""Recovery of a disk queue: compares its files with its metadata when it is opened.

If metadata and data agree, nothing changes. Otherwise recovery trusts the data, not the metadata.
They may differ after a crash, because NSQ syncs only after a few thousand messages. Recovery keeps
messages that NSQ would lose:

* The write file is longer than the metadata say, or later files exist. Their complete records are
  kept, and writing continues in a new file, as in NSQ.
* The last file ends in the middle of a record, or in zeros. This is an unfinished write, and is cut
  off.
* The metadata are missing or unreadable. Reading begins at the first file. NSQ would begin at file
  0 and overwrite it.
* The metadata are impossible (the read position is after the write position, or after the end of a
  file), or the depth is not the number of messages from the read position on. The metadata have no
  checksum, and one flipped bit could hide messages that were never read. So reading begins at the
  first existing file, and messages that were read there are delivered again. The count needs a read
  of all data. So it is done only for queues of up to CHECK_BYTES_MAX, but always before a file is
  removed.
* The write file is shorter than the metadata say. The missing data are lost, and a note reports it.
  NSQ would continue to write after the old end, with zeros between.
* The read file does not exist. It was read to its end and removed before the metadata were written.
  Reading continues with the next file.
* Files exist before the read file, and the depth is correct. They were read, but a power cut undid
  their removal. They are removed.

Then the depth is counted. No file is removed that may contain an unread message.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ...transport.errors import E_BAD_ARGUMENT, E_TOO_BIG, UsageError
from ..errors import Damaged
from ..files import Files
from .disk_queue_format import (
    LENGTH_BYTES,
    META_BYTES_MAX,
    Meta,
    data_name,
    decode_length,
    decode_meta,
    encode_meta,
    meta_name,
    parse_data_name,
)

WALK_BYTES: Final = 1024 * 1024
# To read this number of bytes takes about a second. In larger queues, plausible metadata are
# trusted.
CHECK_BYTES_MAX: Final = 64 * 1024 * 1024


@dataclass(slots=True)
class QueueReport:
    """The findings of the recovery of a queue.

    `notes` are sentences. There are none if nothing was wrong.
    """

    clean: bool = True
    salvaged_bytes: int = 0
    cut_bytes: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class QueueFiles:
    """The folder and name of a queue, and the possible sizes of its records."""

    files: Files
    folder: str
    name: str
    size_min: int
    size_max: int

    def data_path(self, number: int) -> str:
        return f"{self.folder}/{data_name(self.name, number)}"

    @property
    def meta_path(self) -> str:
        return f"{self.folder}/{meta_name(self.name)}"

    def check_size(self, message: bytes) -> None:
        if len(message) > self.size_max:
            raise UsageError(
                E_TOO_BIG,
                (
                    f"message is {len(message)} bytes; this queue's limit is {self.size_max} "
                    "(max_msg_size)"
                ),
            )
        if len(message) < self.size_min:
            raise UsageError(
                E_BAD_ARGUMENT,
                (
                    f"message is {len(message)} bytes; this queue's minimum is {self.size_min} "
                    "(min_msg_size)"
                ),
            )

    def numbers(self) -> list[int]:
        """Return the numbers of the existing data files, ascending."""
        names = (parse_data_name(name) for name in self.files.list(self.folder))
        return sorted(
            parsed[1] for parsed in names if parsed is not None and parsed[0] == self.name
        )

    def following(self, meta: Meta) -> int:
        """Return the next existing file after the read file.

        Many numbers may be missing between them if the metadata or a name is damaged.
        """
        if meta.read_file >= meta.write_file:
            return meta.read_file + 1
        return min(
            (number for number in self.numbers() if meta.read_file < number < meta.write_file),
            default=meta.write_file,
        )

    def size(self, number: int) -> int:
        """Return the size of a data file, or -1 if it does not exist."""
        path = self.data_path(number)
        if not self.files.exists(path):
            return -1
        fd = self.files.open_read(path)
        try:
            return self.files.size(fd)
        finally:
            self.files.close(fd)


def write_meta(place: QueueFiles, meta: Meta) -> None:
    """Write the metadata completely or not at all. They are synced when this returns."""
    place.files.replace_file(place.meta_path, encode_meta(meta))


def recover(place: QueueFiles) -> tuple[Meta, QueueReport]:
    """Return the read and write positions to use, and a report.

    Changed metadata are synced when this returns. Raises `OSError`.
    """
    report = QueueReport()
    numbers = place.numbers()
    meta = _read_meta(place, report)
    if meta is None and not numbers:
        return Meta(), report
    if meta is None:
        report.notes.append(f"{place.meta_path} is missing; reading begins at file {numbers[0]}")
        meta = Meta(0, numbers[0], 0, numbers[0], 0)
        report.clean = False
    elif doubt := doubt_about(place, meta, numbers, CHECK_BYTES_MAX):
        meta = meta._replace(read_file=min(numbers, default=meta.write_file), read_position=0)
        report.notes.append(
            f"{place.meta_path} {doubt}; reading begins at file {meta.read_file}, and some "
            "messages may be read twice"
        )
        report.clean = False
    for number in [number for number in numbers if number < meta.read_file]:
        place.files.remove(place.data_path(number))
        numbers.remove(number)
        report.notes.append(f"{place.data_path(number)} was read before and is removed")
    reading = _reading_from(meta, numbers)
    writing = _writing_to(place, meta, numbers, report)
    recovered = Meta(meta.depth, *reading, *writing)
    if reading[0] not in numbers:  # there is nothing to read
        reading = writing
    drifted = (recovered.depth <= 0) != (reading >= writing)
    if report.clean and recovered == meta and not drifted:
        return meta, report
    if recovered[1:] != meta[1:]:
        report.clean = False
    if reading > writing:
        recovered = recovered._replace(read_file=writing[0], read_position=writing[1])
    # Their bytes may be in the page cache but not on disk.
    for number in [number for number in numbers if number >= meta.write_file]:
        fd = place.files.open_append(place.data_path(number))
        try:
            place.files.sync(fd)
        finally:
            place.files.close(fd)
    recovered = recovered._replace(depth=count_records(place, recovered))
    if recovered != meta:
        report.notes.append(
            f"{place.name}: the files hold {recovered.depth} messages, but the metadata counted "
            f"{meta.depth}"
        )
        write_meta(place, recovered)
    return recovered, report


def _read_meta(place: QueueFiles, report: QueueReport) -> Meta | None:
    files = place.files
    if not files.exists(place.meta_path):
        return None
    data = files.read_file(place.meta_path, META_BYTES_MAX)
    try:
        return decode_meta(data)
    except Damaged as error:
        report.notes.append(f"{place.meta_path}: {error}")
        return None


def doubt_about(place: QueueFiles, meta: Meta, numbers: list[int], check_bytes_max: int) -> str:
    """Return why reading cannot continue at the metadata's position, or an empty text.

    A depth below zero is a known error of NSQ, and with incomplete files the depth is different. In
    these cases the depth shows neither that the read position is wrong nor that it is right. If
    the position is trusted, all files before it count as read and are removed. So it is trusted
    only if there are no such files.
    """
    if (meta.read_file, meta.read_position) > (meta.write_file, meta.write_position):
        return "puts the read position after the write position"
    if meta.read_position > (size := place.size(meta.read_file)) >= 0:
        return (
            f"puts the read position at {meta.read_position} of file {meta.read_file}, which "
            f"ends at {size}"
        )
    if not any(number < meta.read_file for number in numbers):
        sizes = [place.size(number) for number in numbers if number <= meta.write_file]
        gaps = (
            sum(number < meta.write_file for number in numbers) < meta.write_file - meta.read_file
        )
        missing = gaps or max(0, place.size(meta.write_file)) < meta.write_position
        if meta.depth < 0 or missing or sum(sizes) - meta.read_position > check_bytes_max:
            return ""
    count = count_records(place, meta)
    return (
        ""
        if count == meta.depth
        else f"counts {meta.depth} messages, but there are {count} from its read position on"
    )


def _reading_from(meta: Meta, numbers: list[int]) -> tuple[int, int]:
    """Return the read position, or the start of the next file if the read file is missing."""
    later = [number for number in numbers if number > meta.read_file]
    if meta.read_file in numbers or not later:
        return meta.read_file, meta.read_position
    return min(later), 0


def _writing_to(
    place: QueueFiles, meta: Meta, numbers: list[int], report: QueueReport
) -> tuple[int, int]:
    """Return the write file and position.

    These are the position in the metadata if the data end there. Otherwise writing begins in a new
    file after all others.
    """
    last = max((*numbers, meta.write_file))
    size = max(place.size(last), 0)
    if report.clean and last == meta.write_file and size == meta.write_position:
        return last, size
    report.clean = False
    known = 0 if last > meta.write_file else meta.write_position
    if size < known:
        report.notes.append(
            f"{place.data_path(last)} has {size} bytes, but had {known}: the rest is lost"
        )
        return last + 1, 0
    if not size:
        return last, 0
    end = _cut_tail(place, last, known, size, report)
    report.salvaged_bytes += max(0, end - known)
    return last + 1, 0


def _cut_tail(place: QueueFiles, number: int, known: int, size: int, report: QueueReport) -> int:
    """Cut off an unfinished write, and return the end of the file.

    Other damaged bytes stay, and the file is renamed to `.bad` when they are read. This walks from
    the beginning of the file and not from `known`. If `known` is wrong, complete messages could
    look like an unfinished write.
    """
    end = 0
    for record in walk_records(place, number, 0):
        end = record[1]
    rest = size - end
    if not rest:
        return size
    if end < known:
        report.notes.append(
            f"{place.data_path(number)}: no message can be read at position {end}, {rest} bytes "
            "before its end"
        )
        return size
    files = place.files
    fd = files.open_append(place.data_path(number))
    try:
        head = files.pread(fd, LENGTH_BYTES, end)
        torn = rest < LENGTH_BYTES or (
            place.size_min <= decode_length(head) <= place.size_max
            and end + LENGTH_BYTES + decode_length(head) > size
        )
        if not torn and not _is_zeros(files, fd, end, size):
            report.notes.append(
                f"{place.data_path(number)}: no message can be read at position {end}, {rest} "
                "bytes before its end"
            )
            return size
        files.truncate(fd, end)  # `recover` syncs this before the metadata
    finally:
        files.close(fd)
    report.cut_bytes += rest
    report.notes.append(
        f"{place.data_path(number)}: {rest} bytes of an unfinished write were cut off at "
        f"position {end}"
    )
    return end


def _is_zeros(files: Files, fd: int, begin: int, end: int) -> bool:
    return not any(
        files.pread(fd, WALK_BYTES, at).strip(b"\0") for at in range(begin, end, WALK_BYTES)
    )


def walk_records(place: QueueFiles, number: int, position: int) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of each record's payload from `position` on.

    Stops at an impossible length, or at a position that the disk cannot read.
    """
    files = place.files
    fd = files.open_read(place.data_path(number))
    try:
        size = files.size(fd)
        window, window_at = memoryview(b""), position
        while position + LENGTH_BYTES <= size:
            if position + LENGTH_BYTES > window_at + len(window):
                window, window_at = memoryview(files.pread(fd, WALK_BYTES, position)), position
            length = decode_length(window, position - window_at)
            begin = position + LENGTH_BYTES
            if not place.size_min <= length <= place.size_max or begin + length > size:
                return
            position = begin + length
            yield begin, position
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    finally:
        files.close(fd)


def count_records(place: QueueFiles, meta: Meta) -> int:
    """Return how many records can be read between the read and the write position."""
    total = 0
    for number in place.numbers():
        if meta.read_file <= number <= meta.write_file:
            begin = meta.read_position if number == meta.read_file else 0
            end = meta.write_position if number == meta.write_file else -1
            total += sum(
                1 for record in walk_records(place, number, begin) if end < 0 or record[1] <= end
            )
    return total
