"""A topic's stages: who sends them, what has arrived, which seals wait, what a commit may name. Pure.

A stage and the link it was opened on are two things: links come and go, the stage stays. Rules:

* Of each stage exactly the next block is taken. A gap is told once (Missing), and once more after a while, because what was
  sent again may be lost again; older blocks are ignored. What is not known is dropped and counted: nobody waits for an answer to a push.
* A seal waits until all that it names has arrived, at most STAGE_SEAL_WAIT_S since something last did. What arrived is
  compared with the writer's own count, bytes and checksum, and answered once the stage's row is committed.
* Credit is of the link: it goes with the link, the stage's blocks stay. Only the link that opened a stage last is told about it.
* A stage with a bad block is dead: it says why to whoever asks, until it expires.

What comes out are `replies` (words to send) and `seals` (stages to sync now); the shell takes both after each event.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..transport.block import Block
from ..transport.errors import E_BAD_ARGUMENT, E_LIMIT, E_NOT_FOUND, NotFound, Refused, UsageError, ZsqError
from ..transport.protocol import (
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
)
from . import options
from .stage import Peer, Stage, Transaction

_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000


class Reply(NamedTuple):
    """An effect: send this word to this peer."""

    peer: Peer
    word: Wire


class SealNow(NamedTuple):
    """An effect: make what has arrived of this stage durable, then say `sealed`."""

    stage: bytes
    final: bool


@dataclass(slots=True)
class _Link:
    seen_ns: int
    stages: set[bytes] = field(default_factory=set)
    superseded: set[bytes] = field(default_factory=set)


class Stages:
    """`(event, now) -> replies and seals` for one topic; times are monotonic ns."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.seals: list[SealNow] = []
        self.pushes_dropped = 0
        self._stages: dict[bytes, Stage] = {}
        self._links: dict[Peer, _Link] = {}
        self._grown: dict[bytes, None] = {}
        self._granted = 0
        self._writers = 0  # stages with credit

    def recovered(self, stage: bytes, transaction: Transaction, counts: tuple[int, int, int, int], final: bool, now_ns: int) -> None:
        """A stage that storage found: all of it is durable. `counts`: blocks, messages, bytes, checksum.

        Its time begins anew: its writer may have computed for long, with a link that lived until storage died.
        """
        row = Stage(stage, transaction, *counts, durable=counts[0], final=final, taken=counts[0], closed=final)
        row.used_ns = now_ns
        self._stages[stage] = row

    # Links

    def check_open(self, stage: bytes, transaction: Transaction) -> None:
        """Before anything is made: `Refused` E_LIMIT, `UsageError` E_BAD_ARGUMENT, or what the stage died of."""
        if len(stage) != STAGE_BYTES:
            raise UsageError(E_BAD_ARGUMENT, f"a stage is named by {STAGE_BYTES} bytes, not {len(stage)}")
        row = self._stages.get(stage)
        if row is None and len(self._stages) >= options.STAGES_MAX:
            raise Refused(E_LIMIT, f"a topic has at most {options.STAGES_MAX} stages; commit or abort some")
        if row is not None and row.transaction != transaction:
            raise UsageError(E_BAD_ARGUMENT, f"stage {stage.hex()} belongs to another transaction")
        if row is not None and row.failure is not None:
            raise row.failure
        if self._credit(row) == 0:
            raise Refused(E_LIMIT, f"{options.STAGE_WRITERS_MAX} write to this topic at once already; there is room again when some end")

    def _credit(self, row: Stage | None) -> int:
        """A share of what is left: the first get all they can use, and hundreds still get something. 0: too many already."""
        mine = row.credit_bytes if row is not None else 0
        if not mine and self._writers >= options.STAGE_WRITERS_MAX:
            return 0
        free = options.STAGE_CREDIT_POOL_BYTES - self._granted + mine
        return min(options.STAGE_CREDIT_BYTES, max(free // 8, options.STAGE_CREDIT_BYTES_MIN))

    def link(self, peer: Peer, now_ns: int) -> None:
        """A peer that opens; also one whose transaction is committed already, so that its later words are understood."""
        if peer not in self._links and len(self._links) >= options.STAGE_LINKS_MAX:
            raise Refused(E_LIMIT, f"a topic has at most {options.STAGE_LINKS_MAX} links of writers")
        link = self._links.setdefault(peer, _Link(now_ns))
        link.seen_ns = now_ns
        if len(link.stages) + len(link.superseded) >= options.STAGES_PER_LINK_MAX:
            raise Refused(E_LIMIT, f"a link carries at most {options.STAGES_PER_LINK_MAX} stages; open another one")

    def opened(self, peer: Peer, stage: bytes, transaction: Transaction, now_ns: int) -> dict[str, Any]:
        """After `check_open`, `link`, and storage's word that the stage is there. The answer's data."""
        row = self._stages.get(stage)
        if row is None:
            row = self._stages[stage] = Stage(stage, transaction)
        credit = self._credit(row)
        self._disown(row)
        row.owner, row.credit_bytes = peer, credit
        row.told = -1
        row.used_ns = now_ns
        self._granted += credit
        self._writers += 1
        self._links[peer].stages.add(stage)
        return {"expected": row.taken, "sealed": row.durable, "credit_bytes": credit, "committed": False}

    def _disown(self, row: Stage) -> None:
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
        """The link ended: its credit is free, its stages stay."""
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
        """Links that were silent for two heartbeats are told Bye and lose their credit; seals that waited too long name what is missing."""
        for peer, link in list(self._links.items()):
            heartbeat_ms = HEARTBEAT_MS if len(peer) > 1 else LOCAL_HEARTBEAT_MS  # as clients behind a gateway, and on this machine, beat
            if now_ns - link.seen_ns > 2 * heartbeat_ms * _NS_PER_MS:
                self.bye(peer)
                self.replies.append(Reply(peer, Bye()))
        patience_ns = int(options.STAGE_SEAL_WAIT_S * _NS_PER_S)
        for stage, row in self._stages.items():
            if row.waiting and row.owner is not None and now_ns - row.grown_ns > patience_ns:
                for word in [word for word in row.waiting if word.blocks > row.blocks]:
                    row.waiting.remove(word)
                    self.replies.append(Reply(row.owner, Missing(word.request, stage, row.taken)))

    # Pushes

    def push(self, stage: bytes, number: int, now_ns: int) -> bool:
        """Whether to take this block: then check it, and say `arrived` or `refused` for what was taken, in order."""
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
            and (row.told != row.taken or now_ns - row.told_ns > options.STAGE_GAP_RETELL_S * _NS_PER_S)
        ):
            row.told, row.told_ns = row.taken, now_ns
            self.replies.append(Reply(row.owner, Missing(0, stage, row.taken)))
        return False

    def arrived(self, stage: bytes, blocks: Sequence[Block], now_ns: int) -> None:
        """These are written, in order."""
        row = self._stages[stage]
        row.arrived(blocks, now_ns)
        self._grown[stage] = None
        self._look(row)

    def refused(self, stage: bytes, code: str, text: str, now_ns: int) -> None:
        """What was taken could not be written (no space): the writer is told, and tries again later."""
        row = self._stages[stage]
        row.taken = row.told = row.blocks
        row.told_ns = now_ns  # those behind it are a gap, but the writer knows already
        if row.owner is not None:
            self.replies.append(Reply(row.owner, Failed(0, code, text)))

    def kill(self, stage: bytes, error: ZsqError) -> bool:
        """A block that nobody may send: the stage takes nothing more, and says why. False: there is none, or it was killed before."""
        row = self._stages.get(stage)
        if row is None or row.failure is not None:
            self.pushes_dropped += 1
            return False
        row.failure = error
        row.taken = row.blocks
        if row.owner is not None:
            for request in (0, *(word.request for word in row.waiting)):
                self.replies.append(Reply(row.owner, Failed(request, error.code, error.text)))
        row.waiting.clear()
        return True

    def turn(self) -> None:
        """Once a turn of the loop: tell what has arrived, once a stage."""
        for stage in self._grown:
            row = self._stages.get(stage)
            if row is not None and row.owner is not None:
                self.replies.append(Reply(row.owner, Staged(stage, row.blocks)))
        self._grown.clear()

    # Seals

    def seal(self, peer: Peer, word: Seal, now_ns: int) -> None:
        self.seen(peer, now_ns)
        row = self._stages.get(word.stage)
        if row is None:
            link = self._links.get(peer)
            if link is None or word.stage not in link.superseded:
                raise NotFound(E_NOT_FOUND, f"stage {word.stage.hex()} is not known (any more)")
            self.replies.append(Reply(peer, _superseded(word.request)))
        elif row.owner != peer:
            self.replies.append(Reply(peer, Bye()))  # it was silent for too long, or has a later link: begin anew
        elif row.failure is not None:
            raise row.failure
        elif len(row.waiting) >= options.STAGE_SEALS_MAX:
            raise Refused(E_LIMIT, f"{options.STAGE_SEALS_MAX} seals of this stage wait already")
        else:
            row.grown_ns = max(row.grown_ns, now_ns)
            row.waiting.append(word)
            self._look(row)

    def _look(self, row: Stage) -> None:
        """Answer the seals that can be answered, and begin the next one."""
        if not row.waiting or row.owner is None:
            return
        left: list[Seal] = []
        for word in row.waiting:
            answer = row.answer(word)
            if answer is None:
                left.append(word)
                row.closed = row.closed or (word.final and word.blocks == row.blocks)
            else:
                self.replies.append(Reply(row.owner, answer))
        row.waiting = left
        if not row.sealing and any(word.blocks <= row.blocks for word in left):
            row.sealing = True
            self.seals.append(SealNow(row.name, row.closed))

    def sealed(self, stage: bytes, blocks: int, final: bool) -> None:
        """The stage's row says so, and is committed."""
        row = self._stages.get(stage)
        if row is None or not row.sealing or blocks > row.blocks:
            return  # dropped, or dropped and begun again
        row.durable, row.final, row.sealing = blocks, final, False
        self._look(row)

    def unsealed(self, stage: bytes, code: str, text: str) -> None:
        """It could not be sealed (no space): whoever waits for that is told, and asks again later."""
        row = self._stages[stage]
        row.sealing, row.closed = False, row.final
        due = [word for word in row.waiting if word.blocks <= row.blocks]
        for word in due:
            row.waiting.remove(word)
            if row.owner is not None:
                self.replies.append(Reply(row.owner, Failed(word.request, code, text)))

    def is_sealing(self, stage: bytes) -> bool:
        row = self._stages.get(stage)
        return row is not None and row.sealing

    # The end of stages

    def of(self, app: str, version: int, *, older: bool = False) -> list[bytes]:
        """The stages of that transaction; with `older` also those of the app's earlier versions."""
        found = []
        for stage, row in self._stages.items():
            of_app, of_version, _ = row.transaction
            if of_app == app and (of_version == version or (older and of_version < version)):
                found.append(stage)
        return found

    def known(self, stages: Iterable[bytes]) -> list[bytes]:
        return [stage for stage in dict.fromkeys(stages) if stage in self._stages]

    def forget(self, stages: Iterable[bytes], text: str, *, superseded: bool = False) -> None:
        """They were committed without being asked (`superseded`), aborted, or expired; whoever waits for a seal is told."""
        for stage in stages:
            row = self._stages.pop(stage)
            owner, waiting = row.owner, list(row.waiting)
            self._disown(row)
            self._grown.pop(stage, None)
            if owner is None:
                continue
            if superseded:
                self._links[owner].superseded.add(stage)
            for word in waiting:
                answer = _superseded(word.request) if superseded else Failed(word.request, E_NOT_FOUND, text)
                self.replies.append(Reply(owner, answer))

    def check_parts(self, transaction: Transaction, parts: Sequence[Any]) -> list[bytes]:
        """The stages that a commit names, those without blocks left out; `NotFound`, or `UsageError` E_BAD_ARGUMENT with what is wrong."""
        if len(parts) > STAGE_PARTS_MAX:
            raise UsageError(E_BAD_ARGUMENT, f"a commit has at most {STAGE_PARTS_MAX} parts, not {len(parts)}")
        found: dict[bytes, None] = {}
        for part in parts:
            if type(part) is not tuple or [*map(type, part)] != [bytes, int, int, int, int] or len(part[0]) != STAGE_BYTES:
                raise UsageError(E_BAD_ARGUMENT, "a part is: stage, blocks, messages, bytes, checksum")
            stage = part[0]
            row = self._stages.get(stage)
            if row is None:
                raise NotFound(E_NOT_FOUND, f"part {stage.hex()} is not there (any more): it was aborted, or lay here for too long")
            if stage in found:
                raise UsageError(E_BAD_ARGUMENT, f"part {stage.hex()} is named twice")
            row.check_part(transaction, part)
            found[stage] = None
        return [stage for stage in found if self._stages[stage].blocks]

    def orphans(self, now_ns: int, open_kept_ns: int, sealed_kept_ns: int) -> list[bytes]:
        """Stages that were not used for so long, by the monotonic clock. A living link uses its stage; a finally sealed
        one is used by all of its transaction: a job whose first task sealed long ago is still at work."""
        last: dict[Transaction, int] = {}
        used: dict[bytes, int] = {}
        for row in self._stages.values():
            seen_ns = self._links[row.owner].seen_ns if row.owner is not None else 0
            used[row.name] = max(row.used_ns, seen_ns)
            last[row.transaction] = max(last.get(row.transaction, 0), used[row.name])
        found = []
        for row in self._stages.values():
            used_ns, kept_ns = (last[row.transaction], sealed_kept_ns) if row.final else (used[row.name], open_kept_ns)
            if not row.sealing and used_ns < now_ns - kept_ns:
                found.append(row.name)
        return found

    def messages(self, stages: Iterable[bytes]) -> int:
        return sum(self._stages[stage].messages for stage in stages)

    def statistics(self) -> dict[str, Any]:
        staged = sum(row.size_bytes for row in self._stages.values())
        return {"stages": len(self._stages), "staged_bytes": staged, "stage_links": len(self._links), "pushes_dropped": self.pushes_dropped}


def _superseded(request: int) -> Done:
    return Done(request, {"messages": 0, "superseded": True})
