"""Tick reader: the log of ticks up to one of them, verified, and the pieces that a restore needs.

The log is read twice. The first pass reads the indexes. It checks that each tick follows the one
before it, that the pieces of each topic follow each other, and that their ranges leave no byte out.
After it, the reader knows what each topic needs. The second pass reads only those pieces, checks
their checksums, and gives them to the caller in the order of the log.

`READERS` threads read ahead of the caller, so at most `AHEAD` ticks are in memory. Most ticks are
small: the first read of such a tick returns all of it, and is kept for the second pass, up to
`KEPT_BYTES`.

A broker that runs meanwhile may remove old ticks. The reader then raises `LogMoved`, and a new one
begins at the new boundary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeVar

from ....transport.checksum import crc32c
from ...errors import Damaged, ForeignDirectory
from ..bucket import Bucket, BucketAway, BucketRefuses, ObjectMissing
from .ship_log import Chain, check_follows, find_chain, newest_boundary
from .tick_format import (
    INDEX_READ_BYTES,
    LOG,
    WINDOW,
    Boundary,
    DecodedIndex,
    Index,
    Piece,
    decode_head,
    decode_index,
    log_object,
    number_of,
)

READERS: Final = 8
AHEAD: Final = 12
KEPT_BYTES: Final = 64 * 1024 * 1024
# An object is read as a whole if the parts that are not needed have at most this size.
SPARE_BYTES: Final = 256 * 1024
CHAINS_MAX: Final = 5

Advance = Callable[[int], object]
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class LogMoved(BucketAway):
    """The broker has removed ticks that were being read. The same call may succeed now."""


class WrongTime(BucketRefuses):
    """The log has no tick that is as old as the wanted time."""


@dataclass(slots=True)
class ShippedChunk:
    """The bytes of a chunk that the log has: from `start` to `stop`, in ticks from `number` on."""

    start: int
    stop: int
    number: int


@dataclass(slots=True)
class ShippedTopic:
    """The part of the log that belongs to one topic.

    `begins` is the tick of the last piece with all rows (-1: none), and `base` that piece's object.
    `begin` is its stream and sequence, because a tick may have several pieces of a topic.
    `doubtful` are chunks that a process has shipped beyond its last `end`: they may be parts of a
    group that was never complete.
    """

    uuid: str
    stream: int = 0
    sequence: int = 0
    begins: int = -1
    begin: tuple[int, int] = (0, 0)
    base: str = ""
    end: int = 0
    reserved: int = 0
    kept_from: int = 0
    chunks: dict[int, ShippedChunk] = field(default_factory=dict)
    doubtful: set[int] = field(default_factory=set)

    def needs(self, piece: Piece, number: int) -> bool:
        """Return True if a restore needs this piece, which is in tick `number`."""
        return (bool(piece.change_bytes) and self.needs_changes(piece, number)) or any(
            self.needs_range(one.base_offset, number) for one in piece.ranges
        )

    def needs_changes(self, piece: Piece, number: int) -> bool:
        """Return True if the changes of this piece are not older than all rows."""
        stream, sequence = self.begin
        is_same_tick = piece.stream == stream and piece.sequence >= sequence
        return number > self.begins or (number == self.begins and is_same_tick)

    def needs_range(self, base_offset: int, number: int) -> bool:
        chunk = self.chunks.get(base_offset)
        return chunk is not None and base_offset >= self.kept_from and number >= chunk.number

    def take(self, piece: Piece, number: int) -> str:
        """Add a piece. Return what is wrong with it, or ""."""
        wrong = ""
        fresh = piece.stream != self.stream
        if fresh:
            if self.sequence and piece.sequence != 1:
                wrong = f"the pieces before number {piece.sequence} of its stream are missing"
            self.doubtful.update(base for base in self.chunks if base >= self.end)
        elif piece.sequence != self.sequence + 1:
            wrong = f"piece {piece.sequence} follows piece {self.sequence} of the same stream"
        self.stream, self.sequence = piece.stream, piece.sequence
        if piece.begins:
            self.begins, self.base = number, piece.base
            self.begin = piece.stream, piece.sequence
        self.end = max(self.end, piece.end)
        self.reserved = max(self.reserved, piece.reserved)
        self.kept_from = max(self.kept_from, piece.kept_from)
        for one in piece.ranges:
            chunk = self.chunks.get(one.base_offset)
            if chunk is None or (one.start == 0 and chunk.stop != 0):
                self.chunks[one.base_offset] = ShippedChunk(one.start, one.stop, number)
            elif one.start == chunk.stop:
                chunk.stop = one.stop
            else:
                wrong = wrong or (
                    f"the log file of offset {one.base_offset} continues at byte {one.start}, but "
                    f"the pieces before have its bytes up to {chunk.stop}"
                )
                chunk.stop = max(chunk.stop, one.stop)
        for base in [base for base in self.chunks if base < self.kept_from]:
            del self.chunks[base]
        return wrong

    def missing(self) -> list[str]:
        """Return what the log lacks of this topic."""
        return [
            f"bytes 0 to {chunk.start} of the log file of offset {base} are missing"
            for base, chunk in sorted(self.chunks.items())
            if chunk.start
        ]


class LoadedPiece(NamedTuple):
    """A piece, the tick that has it, and its verified bytes."""

    number: int
    piece: Piece
    body: memoryview


class ChainCheck:
    """Checks that ticks follow each other. Call `take` for each tick, in order."""

    def __init__(self, bucket: Bucket, boundary: Boundary) -> None:
        self._bucket = bucket
        self._previous = boundary.digest
        self._epoch = 0
        self._archive = ""

    def take(self, decoded: DecodedIndex, number: int) -> None:
        """Raise `BucketRefuses` if this tick cannot be the next one."""
        index = decoded.index
        check_follows(self._bucket, decoded, self._previous)
        wrong = ""
        if index.number != number:
            wrong = f"it is tick {index.number}"
        elif index.epoch < self._epoch:
            wrong = f"it has epoch {index.epoch}, and the tick before it has {self._epoch}"
        elif self._archive and index.archive != self._archive:
            wrong = f"it belongs to archive {index.archive}, and the one before to {self._archive}"
        if wrong:
            raise BucketRefuses(f"{self._bucket.url}/{log_object(number)}: {wrong}")
        self.go_on(decoded)

    def go_on(self, decoded: DecodedIndex) -> None:
        """Expect that the next tick follows this one."""
        self._previous = decoded.digest
        self._epoch, self._archive = decoded.index.epoch, decoded.index.archive


class TickReader:
    """The log of ticks of a bucket up to a point in time, or up to its end.

    `last` is the last tick of it, and `is_end` is False if the log goes on behind it.
    """

    def __init__(self, bucket: Bucket, advance: Advance = lambda count: None) -> None:
        self._bucket = bucket
        self._advance = advance
        self._kept: dict[int, bytes] = {}
        self._kept_bytes = 0
        self._bodies: dict[int, int] = {}  # where the pieces begin in ticks that are not kept
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="zsq-restore")
        self.chain = _chain(bucket)
        self.boundary = self.chain.boundary
        self.numbers = self.chain.numbers
        self.topics: dict[str, ShippedTopic] = {}
        self.wrong: dict[str, list[str]] = {}
        self._indexes = 0

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    # The first pass

    def read(self, at_ns: int | None = None) -> None:
        """Read and check all indexes. End at the newest tick that is not newer than `at_ns`.

        Raises `BucketRefuses` if the log is damaged, or `WrongTime`.
        """
        if not self.numbers:
            raise BucketRefuses(
                f"{self._bucket.url} has no log of ticks: no broker has shipped its data there; "
                "check the URL"
            )
        self._check_end()
        check = ChainCheck(self._bucket, self.boundary)
        times: list[int] = []
        for number, decoded in self._in_order(self._index, self.numbers):
            check.take(decoded, number)
            times.append(decoded.index.time_ns)
            self.last = decoded
            if at_ns is None:
                self._take(decoded.index)
        if at_ns is not None:
            self._end_at(at_ns, times)
        for uuid, topic in self.topics.items():
            if missing := topic.missing():
                self.wrong.setdefault(uuid, []).extend(missing)

    @property
    def is_end(self) -> bool:
        return self.numbers == self.chain.numbers

    def _check_end(self) -> None:
        """Raise `BucketRefuses` if ticks exist that no sender can have had on its way."""
        beyond = [
            number
            for name in self._bucket.names(f"{LOG}/")
            if (number := number_of(name)) >= self.chain.number + WINDOW
        ]
        if beyond and find_chain(self._bucket).number == self.chain.number:
            raise BucketRefuses(
                f"{self._bucket.url}/{log_object(self.chain.number)} is missing, although the log "
                f"goes on up to number {max(beyond)}: the log is damaged"
            )

    def _end_at(self, at_ns: int, times: Sequence[int]) -> None:
        fits = [
            at
            for at, (number, time_ns) in enumerate(zip(self.numbers, times, strict=True))
            if time_ns <= at_ns and number >= self.boundary.complete
        ]
        if not fits:
            first = next(
                (
                    time_ns
                    for number, time_ns in zip(self.numbers, times, strict=True)
                    if number >= self.boundary.complete
                ),
                times[-1],
            )
            raise WrongTime(
                f"{self._bucket.url} does not cover this time any more: its ticks allow a restore "
                f"to any time from {time_text(first)} to {time_text(times[-1])}"
            )
        self.numbers = self.numbers[: fits[-1] + 1]
        for _, decoded in self._in_order(self._index, self.numbers):
            self._take(decoded.index)
            self.last = decoded

    def _take(self, index: Index) -> None:
        for uuid, tail in (index.tails or {}).items():
            if uuid in self.topics:
                topic = self.topics[uuid]
                topic.reserved = max(topic.reserved, tail.reserved)
        for piece in index.pieces:
            topic = self.topics.setdefault(piece.uuid, ShippedTopic(piece.uuid))
            if wrong := topic.take(piece, index.number):
                name = log_object(index.number)
                self.wrong.setdefault(piece.uuid, []).append(f"{name}: {wrong}")

    def _index(self, number: int) -> DecodedIndex:
        if number in self._kept:
            return decode_index(self._kept[number])
        name = log_object(number)
        data = self._read(name, 0, INDEX_READ_BYTES)
        try:
            size = decode_head(data).body
            if size > len(data):
                data = self._read(name, 0, size)
            decoded = decode_index(data)
        except (Damaged, ForeignDirectory) as error:
            raise BucketRefuses(f"{self._bucket.url}/{name}: {error}") from error
        self._bodies[number] = decoded.body
        if len(data) < INDEX_READ_BYTES and self._kept_bytes + len(data) <= KEPT_BYTES:
            self._kept[number] = data
            self._kept_bytes += len(data)
        return decoded

    # The second pass

    def pieces(self, uuids: Sequence[str]) -> Iterator[LoadedPiece]:
        """Yield the pieces that a restore of these topics needs, in the order of the log.

        Raises `BucketRefuses` if one is damaged.
        """
        wanted = {uuid: self.topics[uuid] for uuid in uuids}
        first = min(
            (
                number
                for topic in wanted.values()
                for number in (topic.begins, *(one.number for one in topic.chunks.values()))
            ),
            default=self.numbers[-1],
        )
        numbers = [number for number in self.numbers if number >= first]
        for _, loaded in self._in_order(lambda number: self._load(number, wanted), numbers):
            yield from loaded

    def registry(self) -> bytes:
        """Return the newest registry. Raises `BucketRefuses` if there is none."""
        number = self.last.index.registry_number
        if number < 0:
            raise BucketRefuses(f"{self._bucket.url}: the log has no registry of topics yet")
        decoded = self._index(number)
        name = log_object(number)
        try:
            position, size, crc = decoded.index.registry
        except ValueError:
            raise BucketRefuses(f"{self._bucket.url}/{name} has no registry of topics") from None
        data = self._read(name, decoded.body + position, size)
        if len(data) != size or crc32c(data) != crc:
            raise BucketRefuses(f"{self._bucket.url}/{name}: its registry of topics is damaged")
        return data

    def _load(self, number: int, wanted: dict[str, ShippedTopic]) -> list[LoadedPiece]:
        name = log_object(number)
        data = self._kept.get(number)
        if data is None:
            data = self._read(name, 0, max(self._bodies[number], INDEX_READ_BYTES))
        decoded = decode_index(data)
        self._kept.pop(number, None)
        pieces = [
            piece
            for piece in decoded.index.pieces
            if piece.uuid in wanted and wanted[piece.uuid].needs(piece, number)
        ]
        return [
            LoadedPiece(number, piece, self._verified(name, piece, body))
            for piece, body in self._parts(name, decoded.body, pieces, data)
        ]

    def _parts(
        self, name: str, body: int, pieces: Sequence[Piece], data: bytes
    ) -> Iterator[tuple[Piece, memoryview]]:
        """Yield the pieces with their bytes. Neighbours are read together. `data` is read yet."""
        group: list[Piece] = []
        for number, piece in enumerate(pieces):
            group.append(piece)
            end = piece.position + piece.size
            following = pieces[number + 1 :][:1]
            if following and following[0].position - end <= SPARE_BYTES:
                continue
            start = group[0].position
            view = memoryview(data)[body + start : body + end]
            if len(view) < end - start:
                view = memoryview(self._read(name, body + start, end - start))
            for one in group:
                yield one, view[one.position - start : one.position - start + one.size]
            group = []

    def _verified(self, name: str, piece: Piece, body: memoryview) -> memoryview:
        if len(body) != piece.size or crc32c(body) != piece.crc:
            raise BucketRefuses(
                f"{self._bucket.url}/{name}: the piece of topic {piece.uuid} is damaged"
            )
        return body

    # Reading

    def _read(self, name: str, start: int, size: int) -> bytes:
        try:
            data = self._bucket.read(name, start, size)
        except ObjectMissing as error:
            if newest_boundary(self._bucket).number > self.boundary.number:
                raise LogMoved(
                    f"{error}: the broker has removed old ticks meanwhile; try again"
                ) from error
            raise BucketRefuses(f"{error}: the log is damaged") from error
        self._advance(len(data))
        return data

    def _in_order(
        self, call: Callable[[_Item], _Result], items: Sequence[_Item]
    ) -> Iterator[tuple[_Item, _Result]]:
        """Yield each item with its result. The threads work on the next items meanwhile."""
        waiting: deque[tuple[_Item, Future[_Result]]] = deque()
        try:
            for item in items:
                waiting.append((item, self._threads.submit(call, item)))
                if len(waiting) >= AHEAD:
                    done, result = waiting.popleft()
                    yield done, result.result()
            while waiting:
                done, result = waiting.popleft()
                yield done, result.result()
        finally:
            for _, result in waiting:
                result.cancel()


def time_text(time_ns: int) -> str:
    """Return a time for people."""
    return f"{datetime.fromtimestamp(time_ns // 10**9, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _chain(bucket: Bucket) -> Chain:
    """Return the chain. Look again if the boundary moved meanwhile."""
    for attempt in range(CHAINS_MAX):
        before = newest_boundary(bucket).number
        try:
            return find_chain(bucket)
        except (ObjectMissing, BucketRefuses):
            if attempt + 1 == CHAINS_MAX or newest_boundary(bucket).number == before:
                raise
    raise AssertionError
