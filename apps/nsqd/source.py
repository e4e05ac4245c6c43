"""A stopped nsqd's data directory: locked as nsqd locks it, read and never written."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Self

from ...storage.disk_queue_format import (
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
)
from ...storage.disk_queue_recovery import Place, doubt_about
from ...storage.errors import Damaged, ForeignDirectory
from ...storage.files import Files
from ...transport.errors import UsageError
from ...transport.names import check_name, is_ephemeral
from .salvage import RECORD_BYTES_MAX, FileView, Loss, read_messages

NSQD_BYTES_MAX: Final = 64 * 1024 * 1024
LOSSES_MAX: Final = 10_000  # named one by one; the rest is counted
_SAMPLE_BYTES: Final = 64 * 1024


@dataclass(slots=True)
class SourceReport:
    """What was found on the way. `lost` beyond LOSSES_MAX are only counted; `left_out` of them because it was asked for."""

    notes: list[str] = field(default_factory=list)
    lost: list[Loss] = field(default_factory=list)
    lost_count: int = 0
    lost_bytes: int = 0
    left_out: int = 0

    def lose(self, loss: Loss, *, left_out: bool = False) -> None:
        self.lost_count += 1
        self.left_out += left_out
        self.lost_bytes += loss.bytes
        if len(self.lost) < LOSSES_MAX:
            self.lost.append(loss)


class NsqdSource:
    """`Locked` while an nsqd runs there; `ForeignDirectory` where it is not nsqd's. Held until `close`."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self.folder = folder.rstrip("/") or "/"
        path = f"{self.folder}/{NSQD_NAME}"
        if not files.exists(path):
            raise ForeignDirectory(f"{self.folder} has no {NSQD_NAME}: it is not the data path of an nsqd (1.0 or later)")
        self._lock = files.lock_folder(self.folder)
        try:
            self._numbers: dict[str, list[int]] = {}
            self._begins: dict[str, tuple[int, int, list[str]]] = {}
            self._metas: set[str] = set()
            self._bad: list[str] = []
            for name in files.list(self.folder):
                data, meta = parse_data_name(name), parse_meta_name(name)
                if data is not None:
                    self._numbers.setdefault(data[0], []).append(data[1])
                elif meta is not None:
                    self._metas.add(meta)
                elif name.endswith(BAD_SUFFIX) and parse_data_name(name.removesuffix(BAD_SUFFIX)) is not None:
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
        """Those of nsqd.dat, then those of which only files are there. Ephemeral ones are left out: nsqd keeps nothing of them on disk."""
        found: dict[str, dict[str, bool]] = {}
        paused: dict[str, bool] = {}
        for topic in self.listed.topics:
            if is_ephemeral(topic.name):
                report.notes.append(f"topic {topic.name} is ephemeral: nsqd kept nothing of it; left out")
                continue
            paused[check_name(topic.name)] = topic.paused
            found[topic.name] = {}
            for channel in topic.channels:
                if is_ephemeral(channel.name):
                    report.notes.append(f"channel {topic.name}/{channel.name} is ephemeral: nsqd kept nothing of it; left out")
                else:
                    found[topic.name][check_name(channel.name, "channel")] = channel.paused
        for queue in sorted(self._numbers):
            name, _, member = queue.partition(":")
            if name in found and (not member or member in found[name]):
                continue
            if not self.bytes(queue):
                continue
            try:
                check_name(name)
                if member:
                    check_name(member, "channel")
            except UsageError as error:
                report.notes.append(f"{NSQD_NAME} does not name {queue}, and it is no queue of nsqd's; left out ({error.text})")
                continue
            report.notes.append(f"{NSQD_NAME} does not name {queue}, but there are files of it; taken over")
            paused.setdefault(name, False)
            channels = found.setdefault(name, {})
            if member:
                channels[member] = False
        report.notes += [f"{self.folder}/{name} was set aside by nsqd as unreadable; not taken over" for name in self._bad]
        return [
            NsqdTopic(name, paused[name], tuple(NsqdChannel(channel, stopped) for channel, stopped in channels.items()))
            for name, channels in found.items()
        ]

    def _meta(self, queue: str) -> Meta | None:
        if queue not in self._metas:
            return None
        try:
            return decode_meta(self._files.read_file(f"{self.folder}/{meta_name(queue)}", META_BYTES_MAX))
        except Damaged:
            return None

    def _begin(self, queue: str, report: SourceReport | None = None) -> tuple[int, int]:
        """Where reading begins: where the metadata says, if that is borne out by what lies there; else at the first file.

        It has no checksum, and what it would hide by one turned bit would be lost here for ever. What comes twice is only a nuisance.
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
            return numbers[0], 0, [f"{queue}: its metadata is missing or cannot be read; all its files are read from the first on"]
        place = Place(self._files, self.folder, queue, NSQ_HEAD_BYTES, RECORD_BYTES_MAX)
        doubt = doubt_about(place, meta, numbers, sys.maxsize)
        if not doubt and meta.read_file in numbers and meta.read_position and not self._fits(queue, meta.read_file, meta.read_position):
            doubt = f"says that reading is at {meta.read_position} of file {meta.read_file}, and no message begins there"
        if doubt:
            text = f"{queue}: its metadata {doubt}; all its files are read from the first on, some messages may come twice"
            return numbers[0], 0, [text]
        if meta.read_file < numbers[0]:
            if (meta.read_file, meta.read_position) == (meta.write_file, meta.write_position):
                return numbers[0], 0, []
            text = f"{queue}: file {meta.read_file}, where reading was, is not there; reading begins at file {numbers[0]}"
            return numbers[0], 0, [text]
        notes = []
        if numbers[0] < meta.read_file:
            old = [number for number in numbers if number < meta.read_file]
            notes.append(f"{queue}: files {old[0]} to {old[-1]} lie before where reading was: they were read, and are left out")
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
        """How much there is to read of a queue."""
        number, position = self._begin(queue)
        total = sum(self._size(queue, one) for one in self._numbers.get(queue, ()) if one >= number)
        return max(0, total - position)

    def messages(self, queue: str, report: SourceReport) -> Iterator[tuple[str, int, NsqMessage]]:
        """(file, position, message), oldest first; one at a time is held."""
        number, position = self._begin(queue, report)
        numbers = self._numbers.get(queue, [])
        meta = self._meta(queue)
        if meta is not None and numbers:
            known = meta.write_position if meta.write_file == numbers[-1] else 0
            if numbers[-1] > meta.write_file or self._size(queue, numbers[-1]) > known:
                report.notes.append(f"{queue}: its metadata is older than its data; everything in its files is taken, some may come twice")
        for one in numbers:
            if one >= number:
                path = self._path(queue, one)
                for at, message in read_messages(self._files, path, position if one == number else 0, report.lose):
                    yield path, at, message

    def digest(self) -> str:
        """What tells this source from another: names, sizes, metadata, and the ends of each data file (all of it may be a terabyte)."""
        found = hashlib.sha256(self._files.read_file(f"{self.folder}/{NSQD_NAME}", NSQD_BYTES_MAX))
        for queue in sorted(self._metas | set(self._numbers)):
            found.update(f"\0{queue}\0{self._meta(queue)}".encode())
            for number in self._numbers.get(queue, ()):
                view = FileView(self._files, self._path(queue, number))
                try:
                    found.update(f"\0{number}\0{view.size}\0".encode())
                    found.update(view.get(0, _SAMPLE_BYTES))
                    found.update(view.get(max(0, view.size - _SAMPLE_BYTES), _SAMPLE_BYTES))
                finally:
                    view.close()
        return found.hexdigest()
