"""Data directory of a stopped nsqd: locked as nsqd locks it, read and never written."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from ...storage.errors import Damaged, ForeignDirectory
from ...storage.files import Files
from ...storage.nsq.disk_queue_format import (
    BAD_SUFFIX,
    META_BYTES_MAX,
    NSQ_HEAD_BYTES,
    NSQD_NAME,
    Meta,
    NsqdChannel,
    NsqdTopic,
    NsqMessage,
    data_name,
    decode_meta,
    decode_nsqd,
    meta_name,
    parse_data_name,
    parse_meta_name,
    queue_name,
)
from ...storage.nsq.disk_queue_recovery import QueueFiles, doubt_about
from ...transport.errors import UsageError
from ...transport.names import check_name, is_ephemeral
from .salvage import RECORD_BYTES_MAX, FileView, LostBytes, read_messages

NSQD_BYTES_MAX: Final = 64 * 1024 * 1024
LOSSES_MAX: Final = 10_000  # the most losses that are reported one by one
RENAMED: Final = {".": "dot", "..": "dot-dot"}
_SAMPLE_BYTES: Final = 64 * 1024


@dataclass(slots=True)
class SourceReport:
    """Notes and losses of an import.

    `lost` has at most LOSSES_MAX entries. `left_out` counts the losses that an option allowed.
    """

    notes: list[str] = field(default_factory=list)
    lost: list[LostBytes] = field(default_factory=list)
    lost_count: int = 0
    lost_bytes: int = 0
    left_out: int = 0

    def lose(self, loss: LostBytes, *, left_out: bool = False) -> None:
        self.lost_count += 1
        self.left_out += left_out
        self.lost_bytes += loss.bytes
        if len(self.lost) < LOSSES_MAX:
            self.lost.append(loss)


class NsqdSource:
    """The data directory of a stopped nsqd, locked until `close`.

    Raises `Locked` if nsqd runs there, and `ForeignDirectory` if the directory is not nsqd's.
    """

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self.folder = folder.rstrip("/") or "/"
        path = f"{self.folder}/{NSQD_NAME}"
        if not files.exists(path):
            raise ForeignDirectory(
                f"{self.folder} has no {NSQD_NAME}: it is not the data path of an nsqd (1.0 or "
                "later)"
            )
        self._lock = files.lock_folder(self.folder)
        try:
            self._numbers: dict[str, list[int]] = {}
            self._begins: dict[str, tuple[int, int, list[str]]] = {}
            self._metas: set[str] = set()
            self._bad: list[str] = []
            self._renamed: dict[str, str] = {}  # from a queue's name in ZSQ to its name in nsqd
            for name in files.list(self.folder):
                data, meta = parse_data_name(name), parse_meta_name(name)
                if data is not None:
                    self._numbers.setdefault(data[0], []).append(data[1])
                elif meta is not None:
                    self._metas.add(meta)
                elif (
                    name.endswith(BAD_SUFFIX)
                    and parse_data_name(name.removesuffix(BAD_SUFFIX)) is not None
                ):
                    self._bad.append(name)
            for numbers in self._numbers.values():
                numbers.sort()
            self.listed = decode_nsqd(files.read_file(path, NSQD_BYTES_MAX))
        except BaseException:
            files.close(self._lock)
            raise

    def close(self) -> None:
        self._files.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def topics(self, report: SourceReport) -> list[NsqdTopic]:
        """Return the topics of nsqd.dat, then topics that only have files.

        Ephemeral topics are left out, because nsqd keeps none of their messages on disk.
        """
        topics: dict[str, dict[str, bool]] = {}
        paused: dict[str, bool] = {}
        for topic in self.listed.topics:
            if is_ephemeral(topic.name):
                report.notes.append(
                    f"topic {topic.name} is ephemeral: nsqd keeps no messages of it on disk; "
                    "left out"
                )
                continue
            name = self._own_name(
                topic.name, [row.name for row in self.listed.topics], f"topic {topic.name}", report
            )
            paused[check_name(name)] = topic.paused
            topics[name] = {}
            self._rename(queue_name(name), queue_name(topic.name))
            for channel in topic.channels:
                if is_ephemeral(channel.name):
                    report.notes.append(
                        f"channel {topic.name}/{channel.name} is ephemeral: nsqd keeps no "
                        "messages of it on disk; left out"
                    )
                    continue
                others = [row.name for row in topic.channels]
                member = self._own_name(
                    channel.name, others, f"channel {topic.name}/{channel.name}", report
                )
                topics[name][check_name(member, "channel")] = channel.paused
                self._rename(queue_name(name, member), queue_name(topic.name, channel.name))
        taken = set(self._renamed.values())
        for queue in sorted(self._numbers):
            name, _, member = queue.partition(":")
            if queue in taken or (name in topics and (not member or member in topics[name])):
                continue
            if not self.bytes(queue):
                continue
            try:
                check_name(name)
                if member:
                    check_name(member, "channel")
            except UsageError as error:
                report.notes.append(
                    f"{NSQD_NAME} does not list {queue}, which is no valid name in nsqd; left "
                    f"out ({error.text})"
                )
                continue
            report.notes.append(f"{NSQD_NAME} does not list {queue}, but it has files; imported")
            paused.setdefault(name, False)
            channels = topics.setdefault(name, {})
            if member:
                channels[member] = False
        report.notes += [
            f"{self.folder}/{name} was set aside by nsqd as unreadable; not imported"
            for name in self._bad
        ]
        return [
            NsqdTopic(
                name,
                paused[name],
                tuple(NsqdChannel(channel, stopped) for channel, stopped in channels.items()),
            )
            for name, channels in topics.items()
        ]

    def _own_name(
        self, name: str, others: Sequence[str], caption: str, report: SourceReport
    ) -> str:
        """Return the topic's or channel's name in ZSQ.

        nsqd permits two names that mean a folder (`.` and `..`). ZSQ does not permit them, so they
        are replaced by unused names.
        """
        new_name = RENAMED.get(name, name)
        while new_name != name and new_name in others:
            new_name += "-"
        if new_name != name:
            report.notes.append(
                f"{caption} is renamed to {new_name}, because ZSQ does not allow the name {name}"
            )
        return new_name

    def _rename(self, old_name: str, new_name: str) -> None:
        if old_name != new_name:
            self._renamed[old_name] = new_name

    def _meta(self, queue: str) -> Meta | None:
        if queue not in self._metas:
            return None
        try:
            return decode_meta(
                self._files.read_file(f"{self.folder}/{meta_name(queue)}", META_BYTES_MAX)
            )
        except Damaged:
            return None

    def _begin(self, queue: str, report: SourceReport | None = None) -> tuple[int, int]:
        """Return the file and position at which reading begins.

        If the files agree with the metadata, the metadata decides. Otherwise reading begins at the
        first file. The metadata has no checksum: if one flipped bit made it hide messages, they
        would be lost forever. Messages that come twice do less harm.
        """
        if queue not in self._begins:
            self._begins[queue] = self._found_begin(queue)
        number, position, notes = self._begins[queue]
        if report is not None:
            report.notes += notes
        return number, position

    def _found_begin(self, queue: str) -> tuple[int, int, list[str]]:
        numbers = self._numbers.get(queue, [])
        if not numbers:
            return 0, 0, []
        meta = self._meta(queue)
        if meta is None:
            return (
                numbers[0],
                0,
                [f"{queue}: its metadata is missing or cannot be read; all its files are imported"],
            )
        place = QueueFiles(self._files, self.folder, queue, NSQ_HEAD_BYTES, RECORD_BYTES_MAX)
        doubt = doubt_about(place, meta, numbers, sys.maxsize)
        if (
            not doubt
            and meta.read_file in numbers
            and meta.read_position
            and not self._fits(queue, meta.read_file, meta.read_position)
        ):
            doubt = (
                f"gives position {meta.read_position} of file {meta.read_file} as the next to "
                "read, but no message begins there"
            )
        if doubt:
            text = (
                f"{queue}: its metadata {doubt}; all its files are imported, and some messages "
                "may be imported twice"
            )
            return numbers[0], 0, [text]
        if meta.read_file < numbers[0]:
            if (meta.read_file, meta.read_position) == (meta.write_file, meta.write_position):
                return numbers[0], 0, []
            text = (
                f"{queue}: file {meta.read_file}, the next to read, is missing; the import "
                f"begins with file {numbers[0]}"
            )
            return numbers[0], 0, [text]
        notes = []
        if numbers[0] < meta.read_file:
            old = [number for number in numbers if number < meta.read_file]
            notes.append(
                f"{queue}: files {old[0]} to {old[-1]} are left out, because nsqd has read them"
            )
        return meta.read_file, meta.read_position, notes

    def _fits(self, queue: str, number: int, position: int) -> bool:
        view = FileView(self._files, self._path(queue, number))
        try:
            return view.leads_on(position)
        finally:
            view.close()

    def _path(self, queue: str, number: int) -> str:
        return f"{self.folder}/{data_name(queue, number)}"

    def _size(self, queue: str, number: int) -> int:
        fd = self._files.open_read(self._path(queue, number))
        try:
            return self._files.size(fd)
        finally:
            self._files.close(fd)

    def bytes(self, queue: str) -> int:
        """Return the number of bytes to read from a queue."""
        queue = self._renamed.get(queue, queue)
        number, position = self._begin(queue)
        total = sum(
            self._size(queue, file_number)
            for file_number in self._numbers.get(queue, ())
            if file_number >= number
        )
        return max(0, total - position)

    def messages(self, queue: str, report: SourceReport) -> Iterator[tuple[str, int, NsqMessage]]:
        """Yield (file, position, message), oldest first, and hold only one message in memory."""
        queue = self._renamed.get(queue, queue)
        number, position = self._begin(queue, report)
        numbers = self._numbers.get(queue, [])
        meta = self._meta(queue)
        if meta is not None and numbers:
            known = meta.write_position if meta.write_file == numbers[-1] else 0
            if numbers[-1] > meta.write_file or self._size(queue, numbers[-1]) > known:
                text = f"{queue}: its metadata is older than its data"
                report.notes.append(
                    f"{text}; all messages in its files are imported, and some may be imported "
                    "twice"
                )
        for file_number in numbers:
            if file_number >= number:
                path = self._path(queue, file_number)
                for at, message in read_messages(
                    self._files, path, position if file_number == number else 0, report.lose
                ):
                    yield path, at, message

    def digest(self) -> str:
        """Return a digest that identifies this source.

        It covers names, sizes, metadata, and the start and end of each data file. It does not cover
        the whole files, because one may have a terabyte.
        """
        sha256 = hashlib.sha256(self._files.read_file(f"{self.folder}/{NSQD_NAME}", NSQD_BYTES_MAX))
        for queue in sorted(self._metas | set(self._numbers)):
            sha256.update(f"\0{queue}\0{self._meta(queue)}".encode())
            for number in self._numbers.get(queue, ()):
                view = FileView(self._files, self._path(queue, number))
                try:
                    sha256.update(f"\0{number}\0{view.size}\0".encode())
                    sha256.update(view.get(0, _SAMPLE_BYTES))
                    sha256.update(view.get(max(0, view.size - _SAMPLE_BYTES), _SAMPLE_BYTES))
                finally:
                    view.close()
        return sha256.hexdigest()
