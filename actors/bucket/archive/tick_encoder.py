"""Tick encoder: reads the ranges of pieces from the chunk files, and encodes ticks in order.

It runs in one thread. Each tick names the digest of the one before it, and the tails of all topics
follow from the pieces so far. So it owns both, and encodes one tick after the other.

A piece that cannot be read is left out of its tick. Its topic is told, and begins a new stream
behind what the log has. This happens if a topic is deleted while its pieces wait.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from ....storage.bucket.shipping.tick_format import (
    TAILS_EVERY,
    EncodedTick,
    Index,
    Piece,
    Tail,
    advanced,
    encode_tick,
)
from ....storage.errors import Damaged, StorageError
from ....storage.files import Files
from ....storage.log.log_format import chunk_name
from ....transport.wire import protocol as p


class Encoded(NamedTuple):
    """An encoded tick, the tails after it, and the pieces that it does not have, with reasons.

    The pieces are named by their numbers in the list that was given.
    """

    tick: EncodedTick
    tails: dict[str, Tail]
    failed: dict[int, str]


class TickEncoder:
    """Encodes the ticks of one epoch. `digest` and `tails` are those of its takeover.

    Ticks whose numbers are multiples of `tails_every` have the tails of all topics.
    """

    def __init__(
        self,
        files: Files,
        digest: str,
        tails: dict[str, Tail],
        tails_every: int = TAILS_EVERY,
    ) -> None:
        self._files = files
        self._digest = digest
        self._tails = tails
        self._tails_every = tails_every
        self._broken: dict[str, int] = {}  # the stream of each topic that has lost a piece

    def encode(
        self,
        index: Index,
        pieces: Sequence[tuple[Piece, p.Ship]],
        registry: bytes,
        topics: Collection[str],
    ) -> Encoded:
        """Encode the next tick. `topics` are the uuids of all topics that exist."""
        self._tails = {uuid: tail for uuid, tail in self._tails.items() if uuid in topics}
        taken: list[Piece] = []
        bodies: list[bytes] = []
        failed: dict[int, str] = {}
        for number, (piece, message) in enumerate(pieces):
            try:
                self._check_follows(piece)
                bodies.append(self._body(piece, message))
            except (StorageError, OSError) as error:
                failed[number] = str(error)
                self._broken[piece.uuid] = piece.stream
                continue
            taken.append(piece)
            self._tails[piece.uuid] = advanced(self._tails.get(piece.uuid), piece, index.number)
        index = index._replace(previous=self._digest, pieces=tuple(taken))
        if index.number % self._tails_every == 0:
            index = index._replace(tails=self._tails)
        tick = encode_tick(index, bodies, registry)
        self._digest = tick.digest
        return Encoded(tick, dict(self._tails), failed)

    def _check_follows(self, piece: Piece) -> None:
        """Raise `Damaged` if pieces before this one are missing."""
        if self._broken.get(piece.uuid) == piece.stream:
            raise Damaged("an earlier piece of the same topic could not be shipped")
        tail = self._tails.get(piece.uuid)
        known = tail.sequence if tail is not None and tail.stream == piece.stream else 0
        if piece.sequence != known + 1:
            raise Damaged(f"piece {piece.sequence} of the topic cannot follow piece {known}")
        # A new stream may have been told of the log before the last piece of the old one arrived.
        first = piece.ranges[0] if piece.ranges else None
        if tail is None or first is None or first.base_offset > tail.chunk or not first.start:
            return
        if (first.base_offset, first.start) != (tail.chunk, tail.position):
            raise Damaged("the piece does not continue where the topic's pieces so far end")

    def _body(self, piece: Piece, message: p.Ship) -> bytes:
        parts: list[bytes] = []
        for stretch in piece.ranges:
            path = f"{message.folder}/{chunk_name(stretch.base_offset)}"
            fd = self._files.open_read(path)
            try:
                data = self._files.pread(fd, stretch.stop - stretch.start, stretch.start)
            finally:
                self._files.close(fd)
            if len(data) != stretch.stop - stretch.start:
                raise Damaged(f"{path} ends before byte {stretch.stop}, which was synced")
            parts.append(data)
        if message.changes:
            parts.append(message.changes)
        return parts[0] if len(parts) == 1 else b"".join(parts)
