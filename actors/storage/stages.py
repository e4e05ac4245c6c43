"""Stages of a topic: their writers, arrived blocks, waiting seals, parts of a commit. No I/O.

A stage does not depend on the link that opened it, and stays when the link ends. With a *seal*, the
writer asks storage to make the blocks of a stage durable. After the *final* seal, the stage accepts
no more blocks. Rules:

* Each stage accepts exactly its next block. A gap is reported once (Missing), and again after a
  while, because the blocks that were sent again may be lost again. Older blocks are ignored. Blocks
  of unknown stages are dropped and counted, because no writer waits for an answer to a push.
* A seal waits until all blocks that it names have arrived. It waits for at most STAGE_SEAL_WAIT_S
  after the arrival of the last block. The blocks that arrived are compared with the writer's count,
  bytes and checksum. The seal is answered once the stage's row is committed.
* Credit belongs to the link and ends with it; the stage's blocks stay. Only the link that opened a
  stage last receives messages about it.
* A stage with a bad block is dead: it answers every request with its error until it expires.

The results are `replies` (messages to send) and `seals` (stages to sync now). `StageCommits` takes
both after each event.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...storage.log.transactions import Transaction, is_foreign
from ...transport.block.block import Block
from ...transport.errors import (
    E_BAD_ARGUMENT,
    E_FORBIDDEN,
    E_LIMIT,
    E_NOT_FOUND,
    NotFound,
    Refused,
    UsageError,
    ZsqError,
)
from ...transport.wire.protocol import (
    HEARTBEAT_MS,
    LOCAL_HEARTBEAT_MS,
    STAGE_BYTES,
    STAGE_PARTS_MAX,
    Bye,
    Done,
    Failed,
    Missing,
    Seal,
    Staged,
    Wire,
    checksum_after,
)
from ..runtime.pulses import StagesPulse
from ..settings import options

Peer = tuple[bytes, ...]


@dataclass(slots=True)
class StageProgress:
    """One stage: what has arrived, what is durable, and which seals wait for more blocks.

    `blocks` is the number of written blocks. The first `durable` of them are committed with the
    stage's row. `taken` also counts the accepted blocks that are about to be written.
    """

    name: bytes
    transaction: Transaction
    blocks: int = 0
    messages: int = 0
    size_bytes: int = 0
    checksum: int = 0
    durable: int = 0
    final: bool = False  # no blocks follow the durable ones
    taken: int = 0
    told: int = -1  # the block that the last Missing asked for
    told_ns: int = 0  # the time of that Missing
    grown_ns: int = 0
    used_ns: int = 0  # monotonic time of the last use by its writer; see `Stages.orphans`
    owner: Peer | None = None
    credit_bytes: int = 0
    closed: bool = False  # a final seal agrees with the blocks that arrived: no more are accepted
    sealing: bool = False
    failure: ZsqError | None = None
    waiting: list[Seal] = field(default_factory=list)

    def arrived(self, blocks: Sequence[Block], now_ns: int) -> None:
        """Count these blocks, which are written in order."""
        for block in blocks:
            self.blocks += 1
            self.messages += block.count
            self.size_bytes += block.length
            self.checksum = checksum_after(self.checksum, block.header.columns_crc)
        assert self.blocks <= self.taken
        self.grown_ns = self.used_ns = now_ns

    def answer(self, message: Seal) -> Wire | None:
        """Return the answer to a seal, or None while it has to wait.

        A seal may name fewer blocks than have arrived, because the writer pushes more blocks over
        another socket while a seal that is not final is on its way. Then the later blocks are
        sealed with it. In that case the seal's bytes and checksum cannot be compared, but each
        block was checked when it arrived.
        """
        wrong = ""
        if (message.blocks > self.blocks and self.closed) or (
            message.final and message.blocks < self.blocks
        ):
            wrong = f"{self.blocks} blocks arrived, not {message.blocks}"
        elif message.blocks == self.blocks and (message.size_bytes, message.checksum) != (
            self.size_bytes,
            self.checksum,
        ):
            wrong = (
                f"its (bytes, checksum) are {(self.size_bytes, self.checksum)}, not "
                f"{(message.size_bytes, message.checksum)}"
            )
        if wrong:
            text = (
                f"stage {self.name.hex()} differs from what its writer sent: {wrong}; send the "
                "messages again in a new stage"
            )
            return Failed(message.request, E_BAD_ARGUMENT, text)
        if self.durable < message.blocks or (message.final and not self.final):
            return None
        return Done(message.request, {"messages": self.messages})

    def check_user(self, user: str) -> None:
        """Raise `Refused` (E_FORBIDDEN) if another user opened the stage."""
        if is_foreign(self.transaction.user, user):
            raise Refused(
                E_FORBIDDEN,
                (
                    f"stage {self.name.hex()} belongs to user {self.transaction.user!r}, not to "
                    f"{user!r}"
                ),
            )

    def check_part(self, transaction: Transaction, part: Any) -> None:
        """Check that a commit may name this part.

        Raises `UsageError` (E_BAD_ARGUMENT), `NotFound`, `Refused` (E_FORBIDDEN), or the error that
        killed the stage.
        """
        if self.failure is not None:
            raise self.failure
        counts = (self.blocks, self.messages, self.size_bytes, self.checksum)
        wrong = ""
        self.check_user(transaction.user)
        if self.transaction[:3] != transaction[:3]:
            wrong = "belongs to another transaction"
        elif not self.final:
            # A writer has a part only when its final seal was answered. So that was another broker,
            # such as a former primary, from which the writer came here, or to which it went.
            text = "is not finally sealed at this broker: its writer sealed it at another one"
            raise NotFound(
                E_NOT_FOUND,
                f"part {self.name.hex()} {text}; send its messages again in a new stage",
            )
        elif part[1:] != counts:
            wrong = (
                f"has (blocks, messages, bytes, checksum) {counts}, but the commit says {part[1:]}"
            )
        if wrong:
            raise UsageError(E_BAD_ARGUMENT, f"part {self.name.hex()} {wrong}")


_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000


class StageReply(NamedTuple):
    """A message that the caller must send to this peer."""

    peer: Peer
    message: Wire


class SealNow(NamedTuple):
    """A stage that the caller must seal: make its arrived blocks durable, then call `sealed`."""

    stage: bytes
    final: bool


@dataclass(slots=True)
class _WriterLink:
    seen_ns: int
    stages: set[bytes] = field(default_factory=set)
    superseded: set[bytes] = field(default_factory=set)


class Stages:
    """The stages of one topic. Each event adds to `replies` and `seals`. Times are monotonic ns."""

    def __init__(self) -> None:
        self.replies: list[StageReply] = []
        self.seals: list[SealNow] = []
        self.pushes_dropped = 0
        self.staged_bytes = 0
        self._stages: dict[bytes, StageProgress] = {}
        self._links: dict[Peer, _WriterLink] = {}
        self._grown: dict[bytes, None] = {}
        self._granted = 0
        self._writers = 0  # number of stages with credit

    def recovered(
        self,
        stage: bytes,
        transaction: Transaction,
        counts: tuple[int, int, int, int],
        final: bool,
        now_ns: int,
    ) -> None:
        """Add a stage that storage found at its start. All of the stage is durable.

        `counts` are blocks, messages, bytes and checksum. The expiry of the stage starts again,
        because its writer may have computed for a long time, with a link that was open until the
        topic's process ended.
        """
        row = StageProgress(
            stage,
            transaction,
            *counts,
            durable=counts[0],
            final=final,
            taken=counts[0],
            closed=final,
        )
        row.used_ns = now_ns
        self._stages[stage] = row
        self.staged_bytes += row.size_bytes

    # Links

    def check_open(self, stage: bytes, transaction: Transaction) -> None:
        """Check that a stage may be opened, before storage creates it.

        Raises `Refused` (E_LIMIT, E_FORBIDDEN), `UsageError` (E_BAD_ARGUMENT), or the error that
        killed the stage.
        """
        if len(stage) != STAGE_BYTES:
            raise UsageError(
                E_BAD_ARGUMENT, f"stage name must have {STAGE_BYTES} bytes, not {len(stage)}"
            )
        row = self._stages.get(stage)
        if row is None and len(self._stages) >= options.STAGES_MAX:
            raise Refused(
                E_LIMIT,
                (
                    f"the topic has {options.STAGES_MAX} stages, which is the limit; commit or "
                    "abort some"
                ),
            )
        if row is not None:
            row.check_user(transaction.user)
        if row is not None and row.transaction[:3] != transaction[:3]:
            raise UsageError(
                E_BAD_ARGUMENT,
                f"stage {stage.hex()} belongs to another transaction; open a new stage",
            )
        if row is not None and row.failure is not None:
            raise row.failure
        if self._credit(row) == 0:
            text = (
                f"{options.STAGE_WRITERS_MAX} stages of this topic are being written, which is "
                "the limit; try again when some have ended"
            )
            raise Refused(E_LIMIT, text)

    def _credit(self, row: StageProgress | None) -> int:
        """Return the bytes of credit for a stage, or 0 if there are too many writers.

        Each stage gets a share of the credit that is left. So the first stages get all that they
        can use, and each of hundreds of stages still gets some.
        """
        mine = row.credit_bytes if row is not None else 0
        if not mine and self._writers >= options.STAGE_WRITERS_MAX:
            return 0
        free = options.STAGE_CREDIT_POOL_BYTES - self._granted + mine
        return min(options.STAGE_CREDIT_BYTES, max(free // 8, options.STAGE_CREDIT_BYTES_MIN))

    def link(self, peer: Peer, now_ns: int) -> None:
        """Register a link that opens a stage, even if its transaction is committed.

        The later messages of this link are then accepted. Raises `Refused` (E_LIMIT).
        """
        if peer not in self._links and len(self._links) >= options.STAGE_LINKS_MAX:
            text = (
                f"the topic has {options.STAGE_LINKS_MAX} connections of stage writers, which "
                "is the limit; close some"
            )
            raise Refused(E_LIMIT, text)
        link = self._links.setdefault(peer, _WriterLink(now_ns))
        link.seen_ns = now_ns
        if len(link.stages) + len(link.superseded) >= options.STAGES_PER_LINK_MAX:
            text = (
                f"the connection has {options.STAGES_PER_LINK_MAX} stages, which is the limit; "
                "open another connection"
            )
            raise Refused(E_LIMIT, text)

    def opened(
        self, peer: Peer, stage: bytes, transaction: Transaction, now_ns: int
    ) -> dict[str, int]:
        """Give the stage to this link and return the data of the answer.

        Call it after `check_open` and `link`, when storage has created the stage.
        """
        row = self._stages.get(stage)
        if row is None:
            row = self._stages[stage] = StageProgress(stage, transaction)
        credit = self._credit(row)
        self._disown(row)
        row.owner, row.credit_bytes = peer, credit
        row.told = -1
        row.used_ns = now_ns
        self._granted += credit
        self._writers += 1
        self._links[peer].stages.add(stage)
        return {
            "expected": row.taken,
            "sealed": row.durable,
            "credit_bytes": credit,
            "committed": False,
        }

    def _disown(self, row: StageProgress) -> None:
        self._granted -= row.credit_bytes
        self._writers -= row.credit_bytes > 0
        row.credit_bytes = 0
        row.waiting.clear()
        if row.owner is not None:
            row.used_ns = max(row.used_ns, self._links[row.owner].seen_ns)
            self._links[row.owner].stages.discard(row.name)
            row.owner = None

    def seen(self, peer: Peer | None, now_ns: int) -> None:
        link = self._links.get(peer) if peer is not None else None
        if link is not None:
            link.seen_ns = now_ns

    def bye(self, peer: Peer) -> None:
        """End a link. Its credit is free again, but its stages stay."""
        link = self._links.get(peer)
        if link is not None:
            for stage in list(link.stages):
                self._disown(self._stages[stage])
            del self._links[peer]

    def gone(self, first: bytes) -> None:
        """Forget all links behind a gateway."""
        for peer in [peer for peer in self._links if peer[0] == first]:
            self.bye(peer)

    def peers(self) -> list[Peer]:
        return list(self._links)

    def tick(self, now_ns: int) -> None:
        """End silent links. Answer a seal that waited too long with the number of the missing
        block.

        A link that was silent for two heartbeats gets Bye and loses its credit.
        """
        for peer, link in list(self._links.items()):
            # Clients behind a gateway and clients on this machine have different intervals.
            heartbeat_ms = HEARTBEAT_MS if len(peer) > 1 else LOCAL_HEARTBEAT_MS
            if now_ns - link.seen_ns > 2 * heartbeat_ms * _NS_PER_MS:
                self.bye(peer)
                self.replies.append(StageReply(peer, Bye()))
        patience_ns = int(options.STAGE_SEAL_WAIT_S * _NS_PER_S)
        for stage, row in self._stages.items():
            if row.waiting and row.owner is not None and now_ns - row.grown_ns > patience_ns:
                for message in [message for message in row.waiting if message.blocks > row.blocks]:
                    row.waiting.remove(message)
                    self.replies.append(
                        StageReply(row.owner, Missing(message.request, stage, row.taken))
                    )

    # Pushes

    def push(self, stage: bytes, number: int, now_ns: int) -> bool:
        """Return True if this block is accepted.

        Then the caller checks it and calls `arrived` or `refused` for accepted blocks, in order.
        """
        row = self._stages.get(stage)
        if row is None or row.failure is not None or row.closed:
            self.pushes_dropped += 1
            return False
        self.seen(row.owner, now_ns)
        if number == row.taken:
            row.taken += 1
            return True
        if (
            number > row.taken
            and row.owner is not None
            and (
                row.told != row.taken
                or now_ns - row.told_ns > options.STAGE_GAP_RETELL_S * _NS_PER_S
            )
        ):
            row.told, row.told_ns = row.taken, now_ns
            self.replies.append(StageReply(row.owner, Missing(0, stage, row.taken)))
        return False

    def arrived(self, stage: bytes, blocks: Sequence[Block], now_ns: int) -> None:
        """Record that these blocks are written, in order."""
        row = self._stages[stage]
        row.arrived(blocks, now_ns)
        self.staged_bytes += sum(block.length for block in blocks)
        self._grown[stage] = None
        self._look(row)

    def refused(self, stage: bytes, code: str, text: str, now_ns: int) -> None:
        """Report that accepted blocks could not be written. The writer tries again later."""
        row = self._stages[stage]
        row.taken = row.told = row.blocks
        # The blocks that follow leave a gap, but the writer knows of it already.
        row.told_ns = now_ns
        if row.owner is not None:
            self.replies.append(StageReply(row.owner, Failed(0, code, text)))

    def kill(self, stage: bytes, error: ZsqError) -> bool:
        """Kill a stage because of a block that no writer may send.

        The stage accepts no more blocks and returns the error. Return False if the stage is unknown
        or already dead.
        """
        row = self._stages.get(stage)
        if row is None or row.failure is not None:
            self.pushes_dropped += 1
            return False
        row.failure = error
        row.taken = row.blocks
        if row.owner is not None:
            for request in (0, *(message.request for message in row.waiting)):
                self.replies.append(StageReply(row.owner, Failed(request, error.code, error.text)))
        row.waiting.clear()
        return True

    def turn(self) -> None:
        """Report the number of arrived blocks, once for each stage in each turn of the loop."""
        for stage in self._grown:
            row = self._stages.get(stage)
            if row is not None and row.owner is not None:
                self.replies.append(StageReply(row.owner, Staged(stage, row.blocks)))
        self._grown.clear()

    # Seals

    def seal(self, peer: Peer, message: Seal, now_ns: int) -> None:
        self.seen(peer, now_ns)
        row = self._stages.get(message.stage)
        if row is None:
            link = self._links.get(peer)
            if link is None or message.stage not in link.superseded:
                text = "it was aborted, or it expired; send its messages again in a new stage"
                raise NotFound(E_NOT_FOUND, f"stage {message.stage.hex()} does not exist: {text}")
            self.replies.append(StageReply(peer, _superseded(message.request)))
        elif row.owner != peer:
            # The link was silent for too long, or the stage has a later link: the writer must open
            # it again.
            self.replies.append(StageReply(peer, Bye()))
        elif row.failure is not None:
            raise row.failure
        elif len(row.waiting) >= options.STAGE_SEALS_MAX:
            raise Refused(
                E_LIMIT,
                (
                    f"{options.STAGE_SEALS_MAX} seals of this stage wait, which is the limit; wait "
                    "for their replies"
                ),
            )
        else:
            row.grown_ns = max(row.grown_ns, now_ns)
            row.waiting.append(message)
            self._look(row)

    def _look(self, row: StageProgress) -> None:
        """Answer the seals that can be answered, and begin the next one."""
        if not row.waiting or row.owner is None:
            return
        left: list[Seal] = []
        for message in row.waiting:
            answer = row.answer(message)
            if answer is None:
                left.append(message)
                row.closed = row.closed or (message.final and message.blocks == row.blocks)
            else:
                self.replies.append(StageReply(row.owner, answer))
        row.waiting = left
        if not row.sealing and any(message.blocks <= row.blocks for message in left):
            row.sealing = True
            self.seals.append(SealNow(row.name, row.closed))

    def sealed(self, stage: bytes, blocks: int, final: bool) -> None:
        """Record that the stage's row is committed with these blocks."""
        row = self._stages.get(stage)
        if row is None or not row.sealing or blocks > row.blocks:
            return  # the stage was dropped, and perhaps opened again
        row.durable, row.final, row.sealing = blocks, final, False
        self._look(row)

    def unsealed(self, stage: bytes, code: str, text: str) -> None:
        """Report that a stage could not be sealed (no space). The writer seals again later."""
        row = self._stages[stage]
        row.sealing, row.closed = False, row.final
        due = [message for message in row.waiting if message.blocks <= row.blocks]
        for message in due:
            row.waiting.remove(message)
            if row.owner is not None:
                self.replies.append(StageReply(row.owner, Failed(message.request, code, text)))

    def is_sealing(self, stage: bytes) -> bool:
        row = self._stages.get(stage)
        return row is not None and row.sealing

    # The end of stages

    def of(self, app: str, version: int, user: str = "", *, older: bool = False) -> list[bytes]:
        """Return this user's stages of that transaction.

        `older` adds the stages of the app's earlier versions.
        """
        stages = []
        for stage, row in self._stages.items():
            of_app, of_version, _, owner = row.transaction
            if (
                of_app == app
                and (of_version == version or (older and of_version < version))
                and not is_foreign(owner, user)
            ):
                stages.append(stage)
        return stages

    def check_user(self, stages: Iterable[bytes], user: str) -> None:
        """Raise `Refused` (E_FORBIDDEN) if one of the stages belongs to another user."""
        for stage in stages:
            if stage in self._stages:
                self._stages[stage].check_user(user)

    def known(self, stages: Iterable[bytes]) -> list[bytes]:
        return [stage for stage in dict.fromkeys(stages) if stage in self._stages]

    def forget(self, stages: Iterable[bytes], text: str, *, superseded: bool = False) -> None:
        """Remove stages that were committed, aborted, or expired. Waiting seals are answered.

        `superseded` means that the stages' transaction is committed.
        """
        for stage in stages:
            row = self._stages.pop(stage)
            self.staged_bytes -= row.size_bytes
            owner, waiting = row.owner, list(row.waiting)
            self._disown(row)
            self._grown.pop(stage, None)
            if owner is None:
                continue
            if superseded:
                self._links[owner].superseded.add(stage)
            for message in waiting:
                answer = (
                    _superseded(message.request)
                    if superseded
                    else Failed(message.request, E_NOT_FOUND, text)
                )
                self.replies.append(StageReply(owner, answer))

    def check_parts(self, transaction: Transaction, parts: Sequence[Any]) -> list[bytes]:
        """Return the stages that a commit names, without the empty ones.

        Raises `NotFound`, `UsageError` (E_BAD_ARGUMENT) with the reason, or an error of
        `check_part`.
        """
        if len(parts) > STAGE_PARTS_MAX:
            raise UsageError(
                E_BAD_ARGUMENT,
                f"a commit can have at most {STAGE_PARTS_MAX} parts, not {len(parts)}",
            )
        seen: dict[bytes, None] = {}
        for part in parts:
            if (
                type(part) is not tuple
                or [*map(type, part)] != [bytes, int, int, int, int]
                or len(part[0]) != STAGE_BYTES
            ):
                raise UsageError(
                    E_BAD_ARGUMENT, "a part must be (stage, blocks, messages, bytes, checksum)"
                )
            stage = part[0]
            row = self._stages.get(stage)
            if row is None:
                text = (
                    f"part {stage.hex()} does not exist: its stage was aborted, or it expired "
                    "(zsq serve --stage-timeout)"
                )
                raise NotFound(E_NOT_FOUND, text)
            if stage in seen:
                raise UsageError(E_BAD_ARGUMENT, f"part {stage.hex()} is named twice")
            row.check_part(transaction, part)
            seen[stage] = None
        return [stage for stage in seen if self._stages[stage].blocks]

    def orphans(self, now_ns: int, open_kept_ns: int, sealed_kept_ns: int) -> list[bytes]:
        """Return the stages that were not used for at least that long, by the monotonic clock.

        A stage with an open link counts as used. A finally sealed stage counts as used while any
        stage of its transaction is used: a job whose first task sealed long ago may still run.
        """
        last: dict[Transaction, int] = {}
        used: dict[bytes, int] = {}
        for row in self._stages.values():
            seen_ns = self._links[row.owner].seen_ns if row.owner is not None else 0
            used[row.name] = max(row.used_ns, seen_ns)
            last[row.transaction] = max(last.get(row.transaction, 0), used[row.name])
        expired = []
        for row in self._stages.values():
            used_ns, kept_ns = (
                (last[row.transaction], sealed_kept_ns)
                if row.final
                else (used[row.name], open_kept_ns)
            )
            if not row.sealing and used_ns < now_ns - kept_ns:
                expired.append(row.name)
        return expired

    def messages(self, stages: Iterable[bytes]) -> int:
        return sum(self._stages[stage].messages for stage in stages)

    def statistics(self) -> StagesPulse:
        return {
            "stages": len(self._stages),
            "staged_bytes": self.staged_bytes,
            "stage_links": len(self._links),
            "pushes_dropped": self.pushes_dropped,
        }


def _superseded(request: int) -> Done:
    return Done(request, {"messages": 0, "superseded": True})


def is_superseded(message: Wire) -> bool:
    """Return True if the message tells a writer that its transaction is committed without it."""
    return type(message) is Done and "superseded" in message.data
