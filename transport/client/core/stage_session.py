"""Stage session: state machine of a stage's writer. No I/O.

It manages the window, credit, seals, and the blocks to push again. It has no socket, clock or
randomness. Its input is the received messages with the time. Its output is the blocks to push and
the seals to request.

Theory of operation. A stage's blocks are numbered from 0. Four block numbers describe its progress.
They are always in this order:

    base       all blocks below it are durable (from a seal's reply); the writer has dropped them
    received   all blocks below it have arrived (from Staged)
    sent       all blocks below it were pushed on the present link
    total      the number of blocks that the user has added

The window extends from `base` to `total`. Its bytes are bounded: a writer without room waits
(`room`). The blocks from `received` to `sent` are on their way. The credit bounds them, but one
block may always be on its way. A PUSH socket does not report lost blocks. So whenever a block may
be lost, `sent` moves back to the block that storage expects (go-back-N). Storage accepts only the
next number and ignores older ones. So a block that is pushed twice is stored once, and after a lost
block storage accepts no later one. Interim seals are sent while blocks are pushed, and their
replies move `base`. Only one seal waits for its reply at a time, and it covers all blocks that were
sent before it. So the number of seals follows the speed of the disk.

Three events mean that a block may be lost: a Missing arrives, the link is lost, or no Staged
arrives for some time although blocks are on their way. This time doubles after each such event, up
to a limit, for slow networks. After the last two events, the session starts again on new sockets
with OpenStage. The reply contains the block to continue with.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from ...block.block import Block, Header, encode_header
from ...errors import (
    E_BAD_COMMAND,
    E_CLOSING,
    E_DISK_FULL,
    E_INTERNAL,
    E_LIMIT,
    E_NOT_FOUND,
    E_TOPIC_FAILED,
    E_TOPIC_FULL,
    E_UNREACHABLE,
    NotFound,
    Refused,
    UsageError,
    ZsqError,
    from_wire,
)
from ...wire.protocol import (
    Done,
    Failed,
    Missing,
    OpenStage,
    Seal,
    Staged,
    StagePart,
    Wire,
    checksum_after,
)
from ..link.reaction import Reaction

__all__ = [
    "OUT_BLOCKS_MAX",
    "PASSING",
    "PAUSE_NS",
    "STALL_NS",
    "WINDOW_BYTES",
    "StageSession",
    "StageState",
    "WindowEntry",
]


class StageState(Enum):
    DOWN = "down"  # there is no link
    OPENING = "opening"  # OpenStage is sent
    OPEN = "open"  # blocks go out as the credit allows
    PAUSED = "paused"  # the broker cannot take more at the moment
    SEALED = "sealed"  # the final seal is answered: all blocks are durable
    COMMITTED = "committed"  # the transaction is committed, by this writer or another one
    FAILED = "failed"  # the stage failed permanently; `error` has the reason


class StageEvent(Enum):
    BEGIN = "begin"  # there is a new link, and OpenStage is sent
    OPENED = "Done to OpenStage"
    STAGED = "Staged"
    MISSING = "Missing"
    SEALED = "Done to an interim Seal"
    FINISHED = "Done to the final Seal"
    COMMITTED = "committed or superseded"
    PAUSE = "Failed, for the moment"
    RESUME = "pause is over"
    FAIL = "Failed"
    LOST = "link lost"


_S, _E = StageState, StageEvent
_ENDS: Final = {_E.COMMITTED: _S.COMMITTED, _E.FAIL: _S.FAILED, _E.LOST: _S.DOWN}
_LATE: Final = (_E.STAGED, _E.MISSING, _E.FAIL, _E.LOST)  # these change nothing after the end
STAGE_TABLE: Final[dict[StageState, dict[StageEvent, StageState]]] = {
    _S.DOWN: {_E.BEGIN: _S.OPENING, _E.FAIL: _S.FAILED, _E.LOST: _S.DOWN},
    _S.OPENING: {_E.OPENED: _S.OPEN, _E.STAGED: _S.OPENING, **_ENDS},
    _S.OPEN: {
        _E.STAGED: _S.OPEN, _E.MISSING: _S.OPEN, _E.SEALED: _S.OPEN, _E.FINISHED: _S.SEALED, _E.PAUSE: _S.PAUSED, **_ENDS,
    },
    _S.PAUSED: {
        _E.STAGED: _S.PAUSED, _E.MISSING: _S.PAUSED, _E.SEALED: _S.PAUSED, _E.FINISHED: _S.SEALED, _E.PAUSE: _S.PAUSED,
        _E.RESUME: _S.OPEN, **_ENDS,
    },
    _S.SEALED: dict.fromkeys(_LATE, _S.SEALED),
    _S.COMMITTED: dict.fromkeys(_LATE, _S.COMMITTED),
    _S.FAILED: dict.fromkeys(_LATE, _S.FAILED),
}  # fmt: skip
ENDED: Final = frozenset({_S.SEALED, _S.COMMITTED, _S.FAILED})


WINDOW_BYTES: Final = 32 * 1024 * 1024
SEALS_A_WINDOW: Final = 4  # an interim seal is due when 1/4 of the window is sent and not sealed
OUT_BLOCKS_MAX: Final = 900  # this is below the PUSH socket's high-water mark of 1,000
STALL_NS: Final = 5_000_000_000
STALL_DOUBLINGS_MAX: Final = 3
PAUSE_NS: Final = 1_000_000_000  # the pause after a refusal with a code in PASSING
FAR_NS: Final = 1 << 62

# Temporary refusals: the writer tries again later.
PASSING: Final = frozenset({E_DISK_FULL, E_LIMIT, E_TOPIC_FAILED, E_TOPIC_FULL})
_AGAIN: Final = frozenset({E_CLOSING, E_UNREACHABLE})  # codes that concern the link

_S, _E = StageState, StageEvent


class WindowEntry(NamedTuple):
    """A block of the window as it is sent, with the totals of the stage up to it."""

    header: bytes
    payload: Any
    length: int
    size_bytes: int  # the size of the stage up to and including this block
    checksum: int


class StageSession:
    """One stage, from its first block to its final seal."""

    def __init__(
        self,
        stage: bytes,
        app: str,
        version: int,
        kind: str = "app",
        partition: int = 0,
        window_bytes_max: int = WINDOW_BYTES,
    ) -> None:
        self.stage = stage
        self.app = app
        self.version = version
        self.kind = kind
        self.partition = partition
        self.state = _S.DOWN
        self.error: ZsqError | None = None
        self.refusal: ZsqError | None = None  # why the stage waits; None after progress
        self.base = self.received = self.sent = self.total = 0
        self.size_bytes = self.messages = self.checksum = 0  # these are the totals of all blocks
        self.credit_bytes = 0
        self.progress = 0  # grows when more blocks than ever before arrived or became durable
        self.final = False  # True when no more blocks will be added
        self.pressed = False  # True while a caller waits for room
        self._window_bytes_max = window_bytes_max
        self._window: dict[int, WindowEntry] = {}
        # The bytes of all blocks below `base`, `received` and `sent`.
        self._base_bytes = self._received_bytes = self._sent_bytes = 0
        self._best_received = 0
        self._request = 0
        self._opening = 0  # the request number of the OpenStage that is not answered
        self._sealing: Seal | None = None  # the seal request without a reply
        self._moved_ns = 0  # when blocks last arrived, or the first one was pushed
        self._stalls = 0
        self._resume_ns = 0

    # Outgoing messages

    def begin(self) -> OpenStage:
        """Return the first message for a new link."""
        self._step(_E.BEGIN)
        self._request += 1
        self._opening = self._request
        return OpenStage(
            self._request, self.stage, self.app, self.version, self.kind, self.partition
        )

    @property
    def window_bytes(self) -> int:
        return self.size_bytes - self._base_bytes

    @property
    def out_bytes(self) -> int:
        return self._sent_bytes - self._received_bytes

    def room(self, length: int) -> bool:
        """Return True if a block of this length may be added. An empty window takes any block."""
        return (
            self.size_bytes - self._base_bytes + length <= self._window_bytes_max
            or not self._window
        )

    def add(self, block: Block) -> None:
        """Add the next block of the stage. It gets its number here."""
        assert not self.final
        if self.state in ENDED:
            return
        h = block.header
        header = encode_header(
            Header(h.columns, 0, h.length, h.count, 0, 0, 0, self.total, h.columns_crc)
        )
        self.checksum = checksum_after(self.checksum, h.columns_crc)
        self.size_bytes += h.length
        self.messages += h.count
        self._window[self.total] = WindowEntry(
            header, block.payload, h.length, self.size_bytes, self.checksum
        )
        self.total += 1

    def take(self, now_ns: int) -> WindowEntry | None:
        """Return the next block to push on this link, or None.

        None means that nothing waits or that the credit is used up.
        """
        if self.sent == self.total or self.state is not _S.OPEN:
            return None
        entry = self._window[self.sent]
        out = self._sent_bytes - self._received_bytes
        if out:
            if (
                out + entry.length > self.credit_bytes
                or self.sent - self.received >= OUT_BLOCKS_MAX
            ):
                return None
        else:
            self._moved_ns = now_ns
        self.sent += 1
        self._sent_bytes = entry.size_bytes
        return entry

    def untake(self) -> None:
        """Take back the last block from `take`, because it could not be pushed."""
        self._go_back(self.sent - 1)

    def take_seal(self) -> Seal | None:
        """Return the seal that is due, or None.

        The final seal is due when all blocks are sent. Interim seals are due as the window fills,
        one at a time.
        """
        if self._sealing is not None or self.state is not _S.OPEN:
            return None
        final = self.final and self.sent == self.total
        if not final:
            unsealed = self._sent_bytes - self._base_bytes
            if not unsealed or not (
                self.pressed or unsealed * SEALS_A_WINDOW >= self._window_bytes_max
            ):
                return None
        self._request += 1
        checksum = self._window[self.sent - 1].checksum if self.sent > self.base else self.checksum
        self._sealing = Seal(
            self._request, self.stage, self.sent, self._sent_bytes, checksum, final
        )
        return self._sealing

    def finish(self) -> None:
        """Note that all blocks were added, so that the final seal can be sent."""
        self.final = True

    def part(self) -> StagePart:
        """Return the description of this stage for a commit."""
        return self.stage, self.total, self.messages, self.size_bytes, self.checksum

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    # Incoming messages

    def on_word(self, message: Wire, now_ns: int) -> Reaction:
        """Process a message from storage.

        Raises `UsageError` (E_BAD_COMMAND) if it is not allowed in this state. The caller then
        restarts the link.
        """
        if type(message) is Staged:
            return self._on_staged(message.stage, message.received, now_ns)
        if type(message) is Done:
            return self._on_done(message, now_ns)
        if type(message) is Missing:
            return self._on_missing(message, now_ns)
        if type(message) is Failed:
            return self._on_failed(message, now_ns)
        raise UsageError(E_BAD_COMMAND, f"a stage writer does not accept {type(message).__name__}")

    def _on_staged(self, stage: bytes, received: int, now_ns: int) -> Reaction:
        if stage != self.stage:
            return Reaction.NOTHING
        self._step(_E.STAGED)
        if self.state in (_S.OPEN, _S.PAUSED):
            self._arrived(received, now_ns)
        return Reaction.NOTHING

    def _on_missing(self, message: Missing, now_ns: int) -> Reaction:
        if message.stage != self.stage or (
            message.request and (self._sealing is None or message.request != self._sealing.request)
        ):
            return Reaction.NOTHING
        self._step(_E.MISSING)
        if self.ended:
            return Reaction.NOTHING
        if message.request:
            self._sealing = None
        if not self.received <= message.expected <= self.total:
            return Reaction.RENEW  # storage has lost blocks: open the stage again to learn which
        self._arrived(message.expected, now_ns)
        if self.state is _S.OPEN:
            self._go_back(message.expected)
        return Reaction.NOTHING

    def _on_done(self, message: Done, now_ns: int) -> Reaction:
        if self.state is _S.OPENING and message.request == self._opening:
            return self._on_opened(message.data, now_ns)
        sealing = self._sealing
        if sealing is None or message.request != sealing.request:
            return Reaction.NOTHING
        self._sealing = None
        if message.data.get("superseded"):
            self._end(_E.COMMITTED)
            return Reaction.NOTHING
        if sealing.final and message.data.get("messages") != self.messages:
            return self.fail(
                Refused(
                    E_INTERNAL,
                    (
                        f"the stage has {self.messages} messages, but the broker sealed it with "
                        f"{message.data.get('messages')}"
                    ),
                )
            )
        self._step(_E.FINISHED if sealing.final else _E.SEALED)
        self._arrived(sealing.blocks, now_ns)
        self._sealed(sealing.blocks)
        return Reaction.NOTHING

    def _on_opened(self, data: Mapping[str, object], now_ns: int) -> Reaction:
        if data.get("committed"):
            self._end(_E.COMMITTED)
            return Reaction.UP
        expected, sealed, credit_bytes = (
            data.get(name) for name in ("expected", "sealed", "credit_bytes")
        )
        if not (
            isinstance(expected, int) and isinstance(sealed, int) and isinstance(credit_bytes, int)
        ):
            raise UsageError(
                E_BAD_COMMAND,
                "the reply to OpenStage must contain the numbers expected, sealed and credit_bytes",
            )
        if expected < self.base:
            text = (f"{self.base} durable blocks of this stage no longer exist (it was aborted, or not used for too long);"
                    " write the partition again as a new stage")  # fmt: skip
            return self.fail(NotFound(E_NOT_FOUND, text))
        if not sealed <= expected <= self.total:
            text = (
                f"the broker expects block {expected} of a stage of {self.total}, {sealed} "
                "sealed; another writer may use this stage"
            )
            return self.fail(UsageError(E_BAD_COMMAND, text))
        self._step(_E.OPENED)
        self.credit_bytes = credit_bytes
        # `expected` may be lower than before, because blocks that are not durable are lost when the
        # topic's process ends.
        self.received = expected
        self._received_bytes = self._bytes_at(expected)
        self._go_back(expected)
        self._arrived(expected, now_ns)
        self._sealed(max(sealed, self.base))
        self._moved_ns = now_ns
        return Reaction.UP

    def _on_failed(self, message: Failed, now_ns: int) -> Reaction:
        mine = self._sealing is not None and message.request == self._sealing.request
        if self.ended or (message.request and not mine):
            return Reaction.NOTHING
        error = from_wire(message.code, message.text)
        if message.code in _AGAIN:
            return Reaction.RESTART
        if message.code not in PASSING:
            return self.fail(error)
        self._step(_E.PAUSE)
        self.refusal = error
        self._resume_ns = now_ns + PAUSE_NS
        if mine:
            self._sealing = None
        return Reaction.NOTHING

    def lost(self) -> None:
        """Note that the link is lost, in any state."""
        self._step(_E.LOST)
        self._sealing = None

    def fail(self, error: ZsqError) -> Reaction:
        """End the session with this error."""
        opening = self.state is _S.OPENING
        if not self.ended:
            self.error = error
            self._end(_E.FAIL)
        return Reaction.UP if opening else Reaction.NOTHING

    # Time

    def due_ns(self) -> int:
        """Return the time of the next call of `on_time`."""
        if self.state is _S.PAUSED:
            return self._resume_ns
        if self.state is _S.OPEN and self.sent > self.received:
            return self._moved_ns + (STALL_NS << self._stalls)
        return FAR_NS

    def on_time(self, now_ns: int) -> Reaction:
        if now_ns < self.due_ns():
            return Reaction.NOTHING
        if self.state is _S.PAUSED:
            self._step(_E.RESUME)
            self._go_back(self.received)
            return Reaction.NOTHING
        self._stalls = min(self._stalls + 1, STALL_DOUBLINGS_MAX)
        return Reaction.RENEW

    # Internal

    def _step(self, event: StageEvent) -> None:
        after = STAGE_TABLE[self.state].get(event)
        if after is None:
            raise UsageError(
                E_BAD_COMMAND, f"{event.value} is not allowed in state {self.state.value}"
            )
        self.state = after

    def _end(self, event: StageEvent) -> None:
        self._step(event)
        self._window.clear()
        self._sealing = None

    def _bytes_at(self, number: int) -> int:
        """Return the bytes of the stage's blocks below `number`, which must not be below `base`."""
        return self._window[number - 1].size_bytes if number > self.base else self._base_bytes

    def _arrived(self, received: int, now_ns: int) -> None:
        if not self.received <= received <= self.total:
            return  # the message is outdated
        if received > self.received:
            self._moved_ns = now_ns
            self._stalls = 0
        self.received = received
        self._received_bytes = self._bytes_at(received)
        if received > self.sent:  # an old copy arrived before the new one was pushed
            self.sent, self._sent_bytes = received, self._received_bytes
        if received > self._best_received:
            self._best_received = received
            self.progress += 1
            self.refusal = None

    def _sealed(self, sealed: int) -> None:
        if sealed > self.base:
            base_bytes = self._bytes_at(sealed)
            for number in range(self.base, sealed):
                del self._window[number]
            self.base, self._base_bytes = sealed, base_bytes
            self.progress += 1

    def _go_back(self, number: int) -> None:
        self.sent, self._sent_bytes = number, self._bytes_at(number)
