"""Harness for a topic's stages: it has a method for each message of a writer. A block that is
accepted counts as written at once, and is kept for comparisons.
"""

from __future__ import annotations

from typing import Any

from zsq.actors.storage.stages import SealNow, Stages
from zsq.storage.log.transactions import Transaction
from zsq.transport.block.block import Block, pack
from zsq.transport.wire.protocol import Seal, StagePart, Wire, checksum_after

S = 1_000_000_000
A, B, FAR = (b"a",), (b"b",), (b"gateway-1", b"c")
ONE, TWO = b"1" * 16, b"2" * 16
T = Transaction("app", 7, "app")


class StageTable:
    """Stages with their blocks."""

    def __init__(self) -> None:
        self.stages = Stages()
        self.now_ns = 1_000 * S
        self.blocks: dict[bytes, list[Block]] = {}

    def open(
        self, peer: tuple[bytes, ...] = A, stage: bytes = ONE, transaction: Transaction = T
    ) -> dict[str, Any]:
        self.stages.check_open(stage, transaction)
        self.stages.link(peer, self.now_ns)
        return self.stages.opened(peer, stage, transaction, self.now_ns)

    @staticmethod
    def block(number: int) -> Block:
        return pack([b"%d" % number] * (1 + number % 3), sequence=number)

    def push(self, *numbers: int, stage: bytes = ONE) -> list[int]:
        """Push blocks, and return the numbers of the accepted ones."""
        taken = [number for number in numbers if self.stages.push(stage, number, self.now_ns)]
        if taken:
            self.blocks.setdefault(stage, []).extend(map(self.block, taken))
            self.stages.arrived(stage, list(map(self.block, taken)), self.now_ns)
        return taken

    def seal_of(self, request: int, blocks: int, *, final: bool = True, stage: bytes = ONE) -> Seal:
        size = checksum = 0
        for number in range(blocks):
            size += self.block(number).length
            checksum = checksum_after(checksum, self.block(number).header.columns_crc)
        return Seal(request, stage, blocks, size, checksum, final)

    def part(self, blocks: int, stage: bytes = ONE) -> StagePart:
        message = self.seal_of(0, blocks)
        return (
            stage,
            blocks,
            sum(1 + number % 3 for number in range(blocks)),
            message.size_bytes,
            message.checksum,
        )

    def seal(
        self,
        request: int,
        blocks: int,
        *,
        final: bool = True,
        stage: bytes = ONE,
        peer: tuple[bytes, ...] = A,
    ) -> None:
        self.stages.seal(peer, self.seal_of(request, blocks, final=final, stage=stage), self.now_ns)

    def sync(self, stage: bytes = ONE) -> SealNow:
        """Carry out the one seal that was requested."""
        (order,) = self.stages.seals
        self.stages.seals.clear()
        assert order.stage == stage
        self.stages.sealed(stage, len(self.blocks.get(stage, ())), order.final)
        return order

    def sealed(self, blocks: int, stage: bytes = ONE, peer: tuple[bytes, ...] = A) -> None:
        """Make a stage that is ready for its commit."""
        self.open(peer, stage)
        self.push(*range(blocks), stage=stage)
        self.seal(1, blocks, stage=stage, peer=peer)
        self.sync(stage)
        self.told()

    def told(self) -> list[tuple[bytes, Wire]]:
        found = [(peer[0], message) for peer, message in self.stages.replies]
        self.stages.replies.clear()
        return found
