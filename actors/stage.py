"""One stage: what has arrived of it, what is durable, which seals wait for more. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..transport.block import Block
from ..transport.errors import E_BAD_ARGUMENT, UsageError, ZsqError
from ..transport.protocol import Done, Failed, Seal, Wire, checksum_after

Peer = tuple[bytes, ...]
Transaction = tuple[str, int, str]  # app, version, kind


@dataclass(slots=True)
class Stage:
    """`blocks` are written, of those `durable` are committed with the stage's row, and `taken` are on their way to be written."""

    name: bytes
    transaction: Transaction
    blocks: int = 0
    messages: int = 0
    size_bytes: int = 0
    checksum: int = 0
    durable: int = 0
    final: bool = False  # the durable ones are all there will be
    taken: int = 0
    told: int = -1  # the gap before which block was told,
    told_ns: int = 0  # and when
    grown_ns: int = 0
    used_ns: int = 0  # by its writer, monotonic; see `Stages.orphans`
    owner: Peer | None = None
    credit_bytes: int = 0
    closed: bool = False  # a final seal agrees with what arrived: nothing more is taken
    sealing: bool = False
    failure: ZsqError | None = None
    waiting: list[Seal] = field(default_factory=list)

    def arrived(self, blocks: Sequence[Block], now_ns: int) -> None:
        """These are written, in order."""
        for block in blocks:
            self.blocks += 1
            self.messages += block.count
            self.size_bytes += block.length
            self.checksum = checksum_after(self.checksum, block.header.columns_crc)
        assert self.blocks <= self.taken
        self.grown_ns = self.used_ns = now_ns

    def answer(self, word: Seal) -> Wire | None:
        """To a seal, or None while it has to wait.

        An earlier prefix than what has arrived (pushes go on while an interim seal is on its way, on another socket) is sealed
        with what followed; its sums are then not known, but each block was checked by itself.
        """
        wrong = ""
        if (word.blocks > self.blocks and self.closed) or (word.final and word.blocks < self.blocks):
            wrong = f"{self.blocks} blocks came, not {word.blocks}"
        elif word.blocks == self.blocks and (word.size_bytes, word.checksum) != (self.size_bytes, self.checksum):
            wrong = f"what came has (bytes, checksum) {(self.size_bytes, self.checksum)}, not {(word.size_bytes, word.checksum)}"
        if wrong:
            return Failed(word.request, E_BAD_ARGUMENT, f"stage {self.name.hex()} is not what was sent: {wrong}; begin a new one")
        if self.durable < word.blocks or (word.final and not self.final):
            return None
        return Done(word.request, {"messages": self.messages})

    def check_part(self, transaction: Transaction, part: Any) -> None:
        """That a commit may name it so: `UsageError` E_BAD_ARGUMENT, or what it died of."""
        if self.failure is not None:
            raise self.failure
        counts = (self.blocks, self.messages, self.size_bytes, self.checksum)
        wrong = ""
        if self.transaction != transaction:
            wrong = "is of another transaction"
        elif not self.final:
            wrong = "is not finally sealed"
        elif part[1:] != counts:
            wrong = f"has (blocks, messages, bytes, checksum) {counts}, not {part[1:]}"
        if wrong:
            raise UsageError(E_BAD_ARGUMENT, f"part {self.name.hex()} {wrong}")
