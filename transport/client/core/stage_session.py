"""Stage session: state machine of a stage's writer. No I/O.

It manages the credit, the seals, and the blocks to push again. It has no socket, clock or
randomness. Its input is the received messages with the time. Its output is the blocks to push and
the seals to request.

Theory of operation. `StageWindow` holds the blocks that are not durable, and the four marks of
their progress. Its bytes are bounded: a writer without room waits. The blocks from `received` to
`sent` are on their way. The credit bounds them, but one block may always be on its way. A PUSH
socket does not report lost blocks. So whenever a block may be lost, `sent` moves back to the block
that storage expects (go-back-N). Storage accepts only the next number and ignores older ones. So a
block that is pushed twice is stored once, and after a lost block storage accepts no later one.
Interim seals are sent while blocks are pushed, and their replies move `durable`. Only one seal
waits for its reply at a time, and it covers all blocks that were sent before it. So the number of
seals follows the speed of the disk.

Three events mean that a block may be lost: a Missing arrives, the link is lost, or no Staged
arrives for some time although blocks are on their way. This time doubles after each such event, up
to a limit, for slow networks. After the last two events, the session starts again on new sockets
with OpenStage. The reply contains the block to continue with.

`STAGE_TABLE` (`stage_table.py`) is the machine: what each event does in each state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from ...block.block import Block
from ...block.block_format import STAGED
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
from ...wire.protocol import Done, Failed, Missing, OpenStage, Seal, Staged, StagePart, Wire
from ..link.reaction import Reaction
from .stage_table import ENDED, STAGE_TABLE, StageAction, StageEvent, StageState
from .stage_window import StageWindow, WindowEntry
from .transition import transition_of

WINDOW_BYTES: Final = 32 * 1024 * 1024
SEALS_A_WINDOW: Final = 4  # an interim seal is due when 1/4 of the window is sent and not sealed
OUT_BLOCKS_MAX: Final = 900  # this is below the PUSH socket's high-water mark of 1,000
STALL_NS: Final = 5_000_000_000
STALL_DOUBLINGS_MAX: Final = 3
PAUSE_NS: Final = 1_000_000_000  # the pause after a refusal with a code in PASSING
FAR_NS: Final = 1 << 62

# Temporary refusals: the writer tries again later.
PASSING: Final = frozenset({E_DISK_FULL, E_LIMIT, E_TOPIC_FAILED, E_TOPIC_FULL})
_ABOUT_THE_LINK: Final = frozenset({E_CLOSING, E_UNREACHABLE})

_S, _E, _A = StageState, StageEvent, StageAction


@dataclass(slots=True)
class _Flow:
    """State of a stage that is open or paused, on one link."""

    credit_bytes: int
    moved_ns: int  # when blocks last arrived, or the first one was pushed
    seal: Seal | None = None  # the request without a reply
    resume_ns: int = 0  # the end of the pause, in the state PAUSED


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
        out_blocks_max: int = OUT_BLOCKS_MAX,
    ) -> None:
        self.stage = stage
        self.state = _S.DOWN
        self.error: ZsqError | None = None
        self.refusal: ZsqError | None = None  # why the stage waits; None after progress
        self.window = StageWindow(window_bytes_max)
        self.progress = 0  # grows when more blocks than ever before arrived or became durable
        self.final = False  # True when no more blocks will be added
        self.pressed = False  # True while a caller waits for room
        self._out_blocks_max = out_blocks_max
        self._opening = OpenStage(0, stage, app, version, kind, partition)
        self._flow: _Flow | None = None
        self._received_max = 0  # the most blocks that had arrived at any time
        self._request = 0
        self._stalls = 0

    # Outgoing messages

    def begin(self) -> OpenStage:
        """Return the first message for a new link."""
        self._step(_E.BEGIN)
        self._request += 1
        return replace(self._opening, request=self._request)

    @property
    def credit_bytes(self) -> int:
        return 0 if self._flow is None else self._flow.credit_bytes

    def add(self, block: Block, flags: int = STAGED) -> None:
        """Add the next block of the stage, which keeps some `flags`."""
        assert not self.final
        if not self.ended:
            self.window.add(block, flags)

    def take(self, now_ns: int) -> WindowEntry | None:
        """Return the next block to push on this link, or None.

        None means that nothing waits or that the credit is used up.
        """
        flow, window = self._flow, self.window
        if flow is None or self.state is not _S.OPEN or (entry := window.next()) is None:
            return None
        out_bytes = window.out_bytes
        if out_bytes:
            out_blocks = window.sent.blocks - window.received.blocks
            if out_bytes + entry.length > flow.credit_bytes or out_blocks >= self._out_blocks_max:
                return None
        else:
            flow.moved_ns = now_ns
        window.advance(entry)
        return entry

    def untake(self) -> None:
        """Take back the last block from `take`, because it could not be pushed."""
        self.window.go_back(self.window.sent.blocks - 1)

    def take_seal(self) -> Seal | None:
        """Return the seal that is due, or None.

        The final seal is due when all blocks are sent. Interim seals are due as the window fills,
        one at a time.
        """
        flow, window = self._flow, self.window
        if flow is None or flow.seal is not None or self.state is not _S.OPEN:
            return None
        sent = window.sent
        final = self.final and sent == window.total
        if not final:
            unsealed_bytes = window.unsealed_bytes
            is_due = self.pressed or unsealed_bytes * SEALS_A_WINDOW >= window.max_bytes
            if not unsealed_bytes or not is_due:
                return None
        self._request += 1
        flow.seal = Seal(
            self._request, self.stage, sent.blocks, sent.size_bytes, window.sent_checksum, final
        )
        return flow.seal

    def finish(self) -> None:
        """Note that all blocks were added, so that the final seal can be sent."""
        self.final = True

    def part(self) -> StagePart:
        """Return the description of this stage for a commit."""
        window, total = self.window, self.window.total
        return self.stage, total.blocks, window.messages, total.size_bytes, window.checksum

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
            if message.stage != self.stage:
                return Reaction.NOTHING
            return self._step(_E.STAGED, message.received, now_ns)
        if type(message) is Done:
            return self._on_done(message, now_ns)
        if type(message) is Missing:
            return self._on_missing(message, now_ns)
        if type(message) is Failed:
            return self._on_failed(message, now_ns)
        raise UsageError(E_BAD_COMMAND, f"a stage writer does not accept {type(message).__name__}")

    def _on_missing(self, message: Missing, now_ns: int) -> Reaction:
        if message.stage != self.stage or (message.request and not self._answers(message.request)):
            return Reaction.NOTHING
        window = self.window
        is_known = window.received.blocks <= message.expected <= window.total.blocks
        reaction = self._step(_E.MISSING if is_known else _E.FORGOTTEN, message.expected, now_ns)
        if message.request and self._flow is not None:
            self._flow.seal = None
        return reaction

    def _on_done(self, message: Done, now_ns: int) -> Reaction:
        if self.state is _S.OPENING and message.request == self._request:
            return self._on_opened(message.data, now_ns)
        flow = self._flow
        if flow is None or flow.seal is None or not self._answers(message.request):
            return Reaction.NOTHING
        seal, flow.seal = flow.seal, None
        if message.data.get("superseded"):
            return self._step(_E.COMMITTED)
        sealed, messages = message.data.get("messages"), self.window.messages
        if seal.final and sealed != messages:
            text = f"the stage has {messages} messages, but the broker sealed it with {sealed}"
            return self.fail(Refused(E_INTERNAL, text))
        return self._step(_E.FINISHED if seal.final else _E.SEALED, seal.blocks, now_ns)

    def _on_opened(self, data: Mapping[str, object], now_ns: int) -> Reaction:
        if data.get("committed"):
            return self._step(_E.COMMITTED)
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
        durable, total = self.window.durable.blocks, self.window.total.blocks
        if expected < durable:
            text = (f"{durable} durable blocks of this stage no longer exist (it was aborted, or not used for too long);"
                    " write the partition again as a new stage")  # fmt: skip
            return self.fail(NotFound(E_NOT_FOUND, text))
        if not sealed <= expected <= total:
            text = (
                f"the broker expects block {expected} of a stage of {total}, {sealed} "
                "sealed; another writer may use this stage"
            )
            return self.fail(UsageError(E_BAD_COMMAND, text))
        self._flow = _Flow(credit_bytes, now_ns)
        reaction = self._step(_E.OPENED, expected, now_ns)
        self._step(_E.SEALED, sealed, now_ns)
        return reaction

    def _on_failed(self, message: Failed, now_ns: int) -> Reaction:
        if self.ended or (message.request and not self._answers(message.request)):
            return Reaction.NOTHING
        error = from_wire(message.code, message.text)
        if message.code in _ABOUT_THE_LINK:
            return self._step(_E.RESTART)
        if message.code not in PASSING:
            return self.fail(error)
        reaction = self._step(_E.PAUSE)
        self.refusal = error
        assert self._flow is not None
        self._flow.resume_ns = now_ns + PAUSE_NS
        if message.request:
            self._flow.seal = None
        return reaction

    def lost(self) -> None:
        """Note that the link is lost, in any state."""
        self._step(_E.LOST)

    def fail(self, error: ZsqError) -> Reaction:
        """End the session with this error."""
        if not self.ended:
            self.error = error
        return self._step(_E.FAIL)

    # Time

    def due_ns(self) -> int:
        """Return the time of the next call of `on_time`."""
        flow = self._flow
        if flow is None:
            return FAR_NS
        if self.state is _S.PAUSED:
            return flow.resume_ns
        return flow.moved_ns + (STALL_NS << self._stalls) if self.window.out_bytes else FAR_NS

    def on_time(self, now_ns: int) -> Reaction:
        if now_ns < self.due_ns():
            return Reaction.NOTHING
        if self.state is _S.PAUSED:
            return self._step(_E.RESUME, self.window.received.blocks)
        self._stalls = min(self._stalls + 1, STALL_DOUBLINGS_MAX)
        return self._step(_E.STALL)

    # The machine

    def _answers(self, request: int) -> bool:
        """Return True if this is the number of the seal that waits for its reply."""
        flow = self._flow
        return flow is not None and flow.seal is not None and flow.seal.request == request

    def _step(self, event: StageEvent, blocks: int = 0, now_ns: int = 0) -> Reaction:
        """Carry out the transition of this event, which names a number of blocks or none."""
        transition = transition_of(STAGE_TABLE, self.state, event)
        for action in transition.actions:
            if action is _A.NOTE:
                self._note(blocks, now_ns)
            elif action is _A.DROP:
                self.progress += self.window.drop(blocks)
            elif action is _A.GO_BACK:
                self.window.go_back(blocks)
            elif action is _A.CONTINUE:
                self.window.continue_at(blocks)
                self._note_progress()
            elif action is _A.CLEAR:
                self.window.clear()
        self.state = transition.after
        if self.state not in (_S.OPEN, _S.PAUSED):
            self._flow = None
        return transition.reaction

    def _note(self, blocks: int, now_ns: int) -> None:
        if self.window.note(blocks):
            if self._flow is not None:
                self._flow.moved_ns = now_ns
            self._stalls = 0
            self._note_progress()

    def _note_progress(self) -> None:
        if self.window.received.blocks > self._received_max:
            self._received_max = self.window.received.blocks
            self.progress += 1
            self.refusal = None
