"""Check of a log of ticks: its chain, the checksums of all its bytes, and what it should not have.

It reads every tick and every object with rows once, and changes nothing. The broker may run
meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ....transport.checksum import crc32c
from ...documents import loads
from ...errors import Damaged, ForeignDirectory
from ...row_changes import decode_frames, read_frames
from ..archive.bucket_check import DAMAGE, NOTE, BucketFinding
from ..bucket import Bucket, BucketAway, BucketRefuses, ObjectMissing
from .ship_log import Chain, find_chain, newest_boundary
from .tick_format import (
    BOUNDARIES,
    LOG,
    STATES,
    TAKEOVER,
    WINDOW,
    DecodedIndex,
    Piece,
    boundary_object,
    decode_head,
    decode_index,
    log_object,
    number_of,
)
from .tick_reader import ChainCheck, ShippedTopic

READ_BYTES: Final = 4 * 1024 * 1024
ATTEMPTS_MAX: Final = 5

Advance = Callable[[int], object]


@dataclass(slots=True)
class ShipReport:
    """The findings about a log of ticks. Without a log, `ticks` is 0.

    `first`, `last` and `time_ns` are the numbers of the ticks that count, and the time of the last
    one.
    """

    ticks: int = 0
    bytes: int = 0
    topics: int = 0
    first: int = 0
    last: int = 0
    time_ns: int = 0
    findings: list[BucketFinding] = field(default_factory=list)

    @property
    def damaged(self) -> int:
        return sum(one.level == DAMAGE for one in self.findings)


def check_log(bucket: Bucket, advance: Advance = lambda count: None) -> ShipReport:
    """Return the findings about the log of ticks of this prefix.

    If the broker removes old ticks meanwhile, the check begins again. Raises `BucketError` if the
    store refuses or does not answer.
    """
    for _ in range(ATTEMPTS_MAX):
        with contextlib.suppress(_LogMoved):
            return _LogCheck(bucket, advance).run()
    raise BucketAway(
        f"{bucket.url}: the broker removed old ticks {ATTEMPTS_MAX} times during the check; check "
        "again when it is less busy"
    )


class _LogMoved(Exception):
    """Ticks that were about to be read are gone, and the log begins behind them now."""


class _LogCheck:
    def __init__(self, bucket: Bucket, advance: Advance) -> None:
        self._bucket = bucket
        self._advance = advance
        self._report = ShipReport()
        self._topics: dict[str, ShippedTopic] = {}
        # The number of each tick with a registry -> the uuids of the topics in it.
        self._registries: dict[int, frozenset[str] | None] = {}
        self._live: frozenset[str] | None = None  # the topics in the newest registry

    def run(self) -> ShipReport:
        numbers = sorted(map(number_of, self._bucket.names(f"{LOG}/")))
        bases = set(self._bucket.names(f"{STATES}/"))
        try:
            chain = find_chain(self._bucket)
        except BucketRefuses as error:
            if numbers or any(True for _ in self._bucket.names(f"{BOUNDARIES}/")):
                self._add(DAMAGE, f"{LOG}/", self._inner(error))
            return self._report
        self._check_ticks(chain)
        self._check_names(chain, numbers)
        self._check_bases(bases)
        self._report.topics = len(self._topics)
        return self._report

    def _add(self, level: str, name: str, text: str) -> None:
        self._report.findings.append(BucketFinding(level, name, text))

    def _inner(self, error: object) -> str:
        """Return the text of an error without the bucket's URL."""
        return str(error).replace(f"{self._bucket.url}/", "")

    def _check_ticks(self, chain: Chain) -> None:
        report = self._report
        check = ChainCheck(self._bucket, chain.boundary)
        decoded: DecodedIndex | None = None
        for number in chain.numbers:
            name = log_object(number)
            try:
                data = self._bucket.read(name)
            except ObjectMissing:
                if newest_boundary(self._bucket).number > number:
                    raise _LogMoved from None
                self._add(DAMAGE, name, "it is missing")
                continue
            self._advance(len(data))
            try:
                decoded = decode_index(data)
            except (Damaged, ForeignDirectory) as error:
                self._add(DAMAGE, name, str(error))
                continue
            try:
                check.take(decoded, number)
            except BucketRefuses as error:
                self._add(DAMAGE, name, self._inner(error).removeprefix(f"{name}: "))
                check.go_on(decoded)
            self._check_pieces(name, decoded, data)
            report.ticks += 1
            report.bytes += len(data)
            report.first = report.first if report.ticks > 1 else number
            report.last, report.time_ns = number, decoded.index.time_ns
        registry = -1 if decoded is None else decoded.index.registry_number
        if report.ticks and registry >= 0 and registry not in self._registries:
            self._add(DAMAGE, log_object(registry), "the newest registry is missing")
        self._live = self._registries.get(registry)
        for topic in self._topics.values():
            for text in topic.missing() if self._is_live(topic) else ():
                self._add(DAMAGE, f"{LOG}/", f"topic {topic.uuid}: {text}")

    def _is_live(self, topic: ShippedTopic) -> bool:
        """Return False for a deleted topic. Its objects and its first ticks may be gone, and other
        ticks still name it.
        """
        return self._live is None or topic.uuid in self._live

    def _check_pieces(self, name: str, decoded: DecodedIndex, data: bytes) -> None:
        index = decoded.index
        size = decoded.body
        if index.registry:
            position, length, crc = index.registry
            registry = data[decoded.body + position : decoded.body + position + length]
            self._registries[index.number] = None
            size += length
            if len(registry) != length or crc32c(registry) != crc:
                self._add(DAMAGE, name, "its registry of topics is damaged")
            else:
                self._registries[index.number] = _topics_in(registry)
        for piece in index.pieces:
            topic = self._topics.setdefault(piece.uuid, ShippedTopic(piece.uuid))
            if wrong := topic.take(piece, index.number):
                self._add(DAMAGE, name, f"topic {piece.uuid}: {wrong}")
            size += piece.size
            start = decoded.body + piece.position
            if text := _wrong_piece(piece, data[start : start + piece.size]):
                self._add(DAMAGE, name, f"topic {piece.uuid}: {text}")
        if size != len(data):
            self._add(DAMAGE, name, f"it has {len(data)} bytes instead of {size}")

    def _check_names(self, chain: Chain, numbers: list[int]) -> None:
        """Report the objects that do not belong to the chain."""
        chained = set(chain.numbers)
        below = 0
        for number in numbers:
            if number in chained:
                continue
            name = log_object(number)
            if number < 0:
                self._add(NOTE, f"{LOG}/", "an object whose name is no number")
            elif number < chain.boundary.number:
                below += not self._is_takeover(name)
            elif number >= chain.number + WINDOW:
                if find_chain(self._bucket).number == chain.number:
                    text = f"the log goes on here, but {log_object(chain.number)} is missing"
                    self._add(DAMAGE, name, text)
            elif number < chain.number:
                text = "a late request of a process that had lost; it does not count"
                self._add(NOTE, name, text)
        if below:
            text = f"{below} ticks below the boundary: the broker has not finished a removal"
            self._add(NOTE, f"{LOG}/", text)
        boundaries = sorted(map(number_of, self._bucket.names(f"{BOUNDARIES}/")))
        for number in boundaries:
            if number < chain.boundary.number:
                text = "an older boundary: the broker has not finished a removal"
                self._add(NOTE, boundary_object(number), text)

    def _is_takeover(self, name: str) -> bool:
        """Return True for a takeover below the boundary. They are kept for ever."""
        try:
            return decode_head(self._bucket.read(name, 0, 64)).kind == TAKEOVER
        except (ObjectMissing, Damaged, ForeignDirectory):
            return False

    def _check_bases(self, names: set[str]) -> None:
        needed = {
            topic.base: topic
            for topic in self._topics.values()
            if topic.base and self._is_live(topic)
        }
        for name, topic in sorted(needed.items()):
            if text := self._wrong_base(name):
                self._add(DAMAGE, name, f"{text}; it has the rows of topic {topic.uuid}")
        orphans = sorted(names - needed.keys())
        if orphans:
            text = (
                f"{len(orphans)} objects that no tick needs, such as {orphans[0]}: the broker was "
                "adding or removing them"
            )
            self._add(NOTE, f"{STATES}/", text)

    def _wrong_base(self, name: str) -> str:
        position = crc = 0
        rest = b""

        def read(size: int) -> bytes:
            nonlocal position, crc, rest
            if not rest:
                rest = self._bucket.read(name, position, READ_BYTES)
                position += len(rest)
                crc = crc32c(rest, crc)
                self._advance(len(rest))
            data, rest = rest[:size], rest[size:]
            return data

        try:
            for _ in read_frames(read):
                pass
        except ObjectMissing:
            return "it is missing"
        except Damaged as error:
            return str(error)
        return "" if name.endswith(f".{crc:08x}") else "its checksum does not match its name"


def _topics_in(registry: bytes) -> frozenset[str] | None:
    try:
        return frozenset(str(row["uuid"]) for row in loads(registry)["topics"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # then no topic counts as deleted


def _wrong_piece(piece: Piece, body: bytes) -> str:
    """Return what is wrong with the bytes of a piece, or ""."""
    if len(body) != piece.size or crc32c(body) != piece.crc:
        return "its piece is damaged"
    try:
        for _ in decode_frames(memoryview(body)[piece.range_bytes :]):
            pass
    except Damaged as error:
        return str(error)
    return ""
