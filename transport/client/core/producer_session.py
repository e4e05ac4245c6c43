"""Producer session: state machine of one producer and one topic. No I/O.

It manages the window, sequences, credit, and the blocks to send again. It has no socket, clock or
randomness. Its input is the received messages, and its output is the pending blocks to send. It
gets fresh producer ids as an argument.

Theory of operation. The session handles pending blocks. A pending block waits in `queue`, gets the
next sequence when it is first sent, and stays in `window` until it is answered. When a link is
lost, the window goes back to the front of the queue, in order and with its sequences. The topic
answers a repeated sequence as it did the first time, so nothing is stored twice. The topic accepts
only the next sequence, so no block is left out.

A sequence may be given to another block only if no copy of the first block can still arrive. So
when the topic refuses a block (a full disk, a limit), its sequence is free again only if the block
was sent once and nothing was sent after it. Otherwise the session *settles*: it waits until all
blocks before the refused one are answered. Then it takes a new producer id and numbers the
remaining blocks from 0. Old copies of these blocks may still arrive under the old id. The topic
never accepts them, because the sequence of the refused block is missing before them.

The topic stores a block completely or not at all. If it refuses one because something in it is
wrong, that may be one message of many. A session that `splits` then cuts the block in halves, and
sends these instead of it, until each message that is wrong is alone. Only those fail. The halves
are *suspects*: each is sent when nothing else is unanswered, and nothing is sent after it. So a
refusal frees its sequence, and the link stays.

A block whose messages were all stored before, by their ids (`wire/dedupe.py`), leaves no trace in
the topic's log. After a restart, the topic expects its sequence again. That looks like a lost
block, but nothing is lost, so the session takes a new producer id without counting it.

Rejected: new numbers under the old id on a new link. An old copy that is still in the old link's
pipe has the same sequence as another block now. The topic could store the old copy instead of that
block. One message would be stored twice, and another one lost.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final

from ...block.block import Block, Header, encode_header
from ...errors import (
    E_BAD_COMMAND,
    E_CLOSED,
    E_CLOSING,
    E_DISK_FULL,
    E_HELLO,
    E_SEQUENCE,
    E_TOPIC_FULL,
    UsageError,
    ZsqError,
    from_wire,
)
from ...wire.protocol import (
    HEARTBEAT_MS,
    PROTOCOL_VERSION,
    WINDOW_BLOCKS_MAX,
    Delayed,
    Duplicates,
    Hello,
    Stored,
    Unstored,
    Welcome,
    Wire,
)
from ...wire.rows import check_rows, heartbeat
from ..link.reaction import Reaction
from .pieces import halves, rows_of
from .transition import Transition, transition_of

UNKNOWN_OFFSET: Final = -1  # the block is stored, but the topic no longer knows its offset

# Codes that concern the link or are temporary: the block is sent again on a new link.
_BEGIN_AGAIN: Final = frozenset({E_SEQUENCE, E_HELLO, E_CLOSING})
# Codes for missing room: a patient producer waits and sends the same blocks with the same
# sequences.
NO_ROOM: Final = frozenset({E_TOPIC_FULL, E_DISK_FULL})


class ProducerState(Enum):
    DOWN = "down"  # there is no link
    GREETING = "greeting"  # Hello is sent
    OPEN = "open"  # blocks go out as the credit allows
    # A block was refused, and blocks after it were sent. The session waits only for the blocks
    # before the refused one.
    SETTLING = "settling"


class ProducerEvent(Enum):
    BEGIN = "begin"  # there is a new link, and Hello is sent
    WELCOME = "Welcome"
    # Blocks were sent that must be answered before the session takes another id.
    UNSETTLED = "Welcome, not settled"
    # The topic expects a sequence that it had already confirmed as stored.
    FORGOTTEN = "Welcome that forgot"
    STORED = "Stored, Delayed"
    REFUSED = "Unstored"  # this block failed, and its sequence is free again
    SPOILED = "Unstored, later ones sent"
    AGAIN = "Unstored, begin again"  # the code is E_SEQUENCE, E_HELLO or E_CLOSING
    NO_ROOM = "Unstored, no room"  # E_TOPIC_FULL or E_DISK_FULL, for a patient producer
    SETTLED = "settled"  # no answer is missing under the old id
    LOST = "link lost"


class ProducerAction(Enum):
    REWIND = "queue again what has no answer"
    TAKE_BACK = "take back later blocks"
    RENUMBER = "take a new id"


_S, _E, _A, _to = ProducerState, ProducerEvent, ProducerAction, Transition
ProducerTransition = Transition[ProducerState, ProducerAction]
_ENDS: Final[dict[ProducerEvent, ProducerTransition]] = {
    _E.AGAIN: _to(_S.DOWN, (_A.REWIND,), Reaction.RESTART),
    _E.NO_ROOM: _to(_S.DOWN, (_A.REWIND,), Reaction.LATER),
    _E.LOST: _to(_S.DOWN, (_A.REWIND,)),
}
PRODUCER_TABLE: Final[dict[ProducerState, dict[ProducerEvent, ProducerTransition]]] = {
    _S.DOWN: {_E.BEGIN: _to(_S.GREETING), _E.LOST: _ENDS[_E.LOST]},
    _S.GREETING: {
        _E.WELCOME: _to(_S.OPEN, (), Reaction.UP),
        _E.UNSETTLED: _to(_S.SETTLING, (), Reaction.UP),
        _E.FORGOTTEN: _to(_S.DOWN, (_A.RENUMBER,), Reaction.RENEW),
        **_ENDS,
    },
    _S.OPEN: {
        _E.STORED: _to(_S.OPEN),
        _E.REFUSED: _to(_S.OPEN),
        _E.SPOILED: _to(_S.SETTLING, (_A.TAKE_BACK,)),
        **_ENDS,
    },
    _S.SETTLING: {
        _E.STORED: _to(_S.SETTLING),
        _E.REFUSED: _to(_S.SETTLING),
        _E.SPOILED: _to(_S.SETTLING, (_A.TAKE_BACK,)),
        _E.SETTLED: _to(_S.DOWN, (_A.RENUMBER,), Reaction.RENEW),
        **_ENDS,
    },
}


class PendingBlock:
    """A block on its way to be stored.

    Publishers share it with the session: they read `done`, `error` and `first_offset`. `delay_ms`
    is 0 for a block without delay. A delayed block that is stored has a `key`: the due time and the
    serial of its first message, or None if the topic no longer knows them.

    `part` is the number of the part that has it, or -1 for a topic without parts. A block whose
    messages belong to several parts, or of which the topic has refused a message, is cut into
    `pieces`, which are sent instead of it. It is settled with the last one of them.
    """

    __slots__ = (
        "block",
        "count",
        "delay_ms",
        "done",
        "duplicates",
        "error",
        "first_offset",
        "key",
        "length",
        "order",
        "part",
        "pieces",
        "raised",
        "rows",
        "sends",
        "sequence",
        "suspect",
        "whole",
    )

    def __init__(
        self,
        block: Block | None = None,
        delay_ms: int = 0,
        whole: PendingBlock | None = None,
        rows: Sequence[int] = (),
    ) -> None:
        self.block = block
        self.delay_ms = delay_ms
        self.part = -1
        self.pieces: tuple[PendingBlock, ...] = ()
        self.whole = whole  # the block of which this is a piece
        self.rows = rows  # the indexes of its messages in that block, ascending
        self.suspect = False  # True if the topic has refused a block with these messages
        self.key: tuple[int, int] | None = None
        self.count = block.count if block is not None else 0
        self.length = block.length if block is not None else 0
        self.sequence = -1
        self.sends = 0  # how often the block was passed to a link
        self.done = False
        self.first_offset = UNKNOWN_OFFSET
        self.error: ZsqError | None = None
        self.raised = False  # True when the error was reported
        # The indexes of its messages in the publish, if they were sorted by part.
        self.order: Sequence[int] = ()
        # Index -> offset of the messages that were not stored, because their ids are known.
        self.duplicates: dict[int, int] = {}

    def seal(self, block: Block) -> None:
        """Set the packed block, for messages that were gathered one by one."""
        self.block = block
        self.count = block.count
        self.length = block.length

    def cut(self, rows_of_each: Sequence[Sequence[int]]) -> tuple[PendingBlock, ...]:
        """Cut this block into pieces with these messages, and return the pieces."""
        block, self.block = self.block, None
        assert block is not None
        self.pieces = tuple(
            PendingBlock(rows_of(block, rows), self.delay_ms, self, rows) for rows in rows_of_each
        )
        return self.pieces

    def leaves(self) -> list[PendingBlock]:
        """Return this block or, if it was cut, the pieces that are sent instead of it."""
        if not self.pieces:
            return [self]
        return [leaf for piece in self.pieces for leaf in piece.leaves()]

    def leaf(self, index: int) -> tuple[PendingBlock, int]:
        """Return the piece that has this message, and the message's index there."""
        for piece in self.pieces:
            place = bisect_left(piece.rows, index)
            if place < len(piece.rows) and piece.rows[place] == index:
                return piece.leaf(place)
        assert not self.pieces
        return self, index

    def wire_header(self, producer_id: int) -> bytes:
        """Return the block's header with this producer id and its sequence.

        The columns do not change.
        """
        assert self.block is not None
        assert self.sequence >= 0
        h = self.block.header
        return encode_header(
            Header(
                h.columns,
                h.flags,
                h.length,
                h.count,
                0,
                0,
                producer_id,
                self.sequence,
                h.columns_crc,
            )
        )

    def settle(self, first_offset: int, error: ZsqError | None = None) -> None:
        self.first_offset = first_offset
        self.error = error
        self.block = None  # this frees the memory of the block
        self.done = True
        if self.whole is not None:
            self.whole.piece_settled()

    def offset_of(self, index: int) -> int:
        """Return the offset of this message, or of the earlier one with its id, or -1."""
        if not self.duplicates:
            return self.first_offset + index if self.first_offset >= 0 else UNKNOWN_OFFSET
        if index in self.duplicates:
            return self.duplicates[index]
        if self.first_offset < 0:
            return UNKNOWN_OFFSET
        return self.first_offset + index - sum(other < index for other in self.duplicates)

    @property
    def stored_count(self) -> int:
        """The number of its messages that were stored, if there is no error."""
        return self.count - len(self.duplicates)

    def piece_settled(self) -> None:
        """Settle this block if all of its pieces are settled, with the first error."""
        if all(piece.done for piece in self.pieces):
            errors = (piece.error for piece in self.pieces if piece.error is not None)
            self.settle(UNKNOWN_OFFSET, next(errors, None))


class ProducerSession:
    """The window of one producer and topic.

    `ids` yields fresh random ids of 63 bits. With `patient`, blocks wait while there is no room.
    With `splits`, a message that the topic refuses fails without the others of its block.
    """

    def __init__(self, ids: Iterator[int], patient: bool = False, splits: bool = False) -> None:
        self._ids = ids
        self.patient = patient
        self.splits = splits
        self._alone = False  # True if the block that was sent last is a suspect
        # The last refusal for lack of room. It is None after a block was stored.
        self.no_room: Unstored | None = None
        self._granted = 0
        self.state = _S.DOWN
        self.producer_id = next(ids)
        self.queue: deque[PendingBlock] = deque()
        self.window: dict[int, PendingBlock] = {}  # the sent blocks by sequence, ascending
        self.window_bytes = 0
        self.queue_bytes = 0
        self.credit_bytes = 0
        self.next_sequence = 0
        self.heartbeat_ms = HEARTBEAT_MS
        self.forgotten = 0  # how often the topic no longer had blocks that it had confirmed
        self.refused: list[PendingBlock] = []  # failed blocks that the lane has not processed yet
        self._cut = -1  # the refused sequence while the session settles, else -1
        # The first of the last answered blocks of which nothing was stored, or -1.
        self._traceless = -1

    # Outgoing messages

    def begin(self, heartbeat_ms: int) -> Hello:
        """Return the first message for a new link."""
        self._step(_E.BEGIN)
        return Hello(PROTOCOL_VERSION, self.producer_id, heartbeat_ms)

    def add(self, pending: PendingBlock) -> None:
        self.queue.append(pending)
        self.queue_bytes += pending.length

    def take(self) -> PendingBlock | None:
        """Return the next pending block to send on this link, with its sequence.

        Return None if nothing waits or the credit is used up. A block larger than the whole credit
        is sent alone.
        """
        queue = self.queue
        if not queue or self.state not in (_S.OPEN, _S.SETTLING):
            return None
        pending = queue[0]
        if self.window and (
            self.window_bytes + pending.length > self.credit_bytes
            or len(self.window) >= WINDOW_BLOCKS_MAX
            or pending.suspect
            or self._alone
        ):
            return None
        if pending.sequence < 0:
            if self.state is _S.SETTLING:
                return None
            pending.sequence = self.next_sequence
            self.next_sequence += 1
        queue.popleft()
        self.queue_bytes -= pending.length
        self.window[pending.sequence] = pending
        self.window_bytes += pending.length
        pending.sends += 1
        self._alone = pending.suspect
        return pending

    @property
    def unanswered(self) -> bool:
        return bool(self.window or self.queue)

    # Incoming messages

    def on_word(self, message: Wire) -> Reaction:
        """Process a message from the topic.

        Raises `UsageError` (E_BAD_COMMAND) if it is not allowed in this state. The caller then
        restarts the link.
        """
        if type(message) is Stored:
            return self.on_stored(message)
        if type(message) is Unstored:
            return self.on_unstored(message)
        if type(message) is Delayed:
            return self.on_delayed(message)
        if type(message) is Duplicates:
            return self.on_duplicates(message)
        if type(message) is Welcome:
            return self.on_welcome(message)
        raise UsageError(E_BAD_COMMAND, f"a producer does not accept {type(message).__name__}")

    def on_welcome(self, message: Welcome) -> Reaction:
        oldest = self.next_sequence
        if self.queue and self.queue[0].sequence >= 0:
            oldest = self.queue[0].sequence
        if message.expected < oldest:
            # The topic has lost blocks that it had confirmed as stored (by a power cut in sync mode
            # `interval` or `never`), or the producer's row has expired. It cannot store the
            # unanswered blocks under the old id, because it accepts only the next sequence.
            if not 0 <= self._traceless <= message.expected:
                self.forgotten += 1
            return self._step(_E.FORGOTTEN)
        if message.expected > self.next_sequence:
            # Another producer uses this id. Wait for the answers to the blocks that were sent, then
            # take another id.
            self._cut = self.next_sequence
        reaction = self._step(_E.WELCOME if self._cut < 0 else _E.UNSETTLED)
        self._granted = message.credit_bytes
        # After a refusal for lack of room, send one block at a time until one is stored.
        self.credit_bytes = 0 if self.no_room else message.credit_bytes
        self.heartbeat_ms = heartbeat(message.heartbeat_ms)
        return self._settle(reaction)

    def on_stored(self, message: Stored) -> Reaction:
        check_rows(message.blocks, 2, "stored blocks")
        self._step(_E.STORED)
        self._found_room()
        for sequence, first_offset in message.blocks:
            pending = self.window.pop(sequence, None)
            if pending is not None:
                self.window_bytes -= pending.length
                self._traceless = -1
                pending.settle(first_offset)
        return self._settle()

    def on_duplicates(self, message: Duplicates) -> Reaction:
        """Note that a block is durable, and which of its messages were stored before."""
        check_rows(message.duplicates, 2, "duplicates")
        self._step(_E.STORED)
        self._found_room()
        pending = self.window.pop(message.sequence, None)
        if pending is not None:
            self.window_bytes -= pending.length
            pending.duplicates = {
                index: offset for index, offset in message.duplicates if index < pending.count
            }
            if pending.stored_count:
                self._traceless = -1
            elif self._traceless < 0:
                self._traceless = message.sequence
            pending.key = (message.due_ns, message.serial) if message.serial >= 0 else None
            pending.settle(message.first_offset)
        return self._settle()

    def on_delayed(self, message: Delayed) -> Reaction:
        """Note that a delayed block is durable and waits in the topic.

        It has a sequence like any other block, and counts as answered.
        """
        self._step(_E.STORED)
        self._found_room()
        pending = self.window.pop(message.sequence, None)
        if pending is not None:
            self.window_bytes -= pending.length
            self._traceless = -1
            pending.key = (message.due_ns, message.serial) if message.serial >= 0 else None
            pending.settle(UNKNOWN_OFFSET)
        return self._settle()

    def on_unstored(self, message: Unstored) -> Reaction:
        pending = self.window.get(message.sequence)
        if (
            message.code == E_HELLO
            or (pending is not None and message.code in _BEGIN_AGAIN)
            or message.sequence < 0
        ):
            return self._step(_E.AGAIN)
        if pending is not None and self.patient and message.code in NO_ROOM:
            self.no_room = message
            return self._step(_E.NO_ROOM)
        if pending is None:
            return Reaction.NOTHING  # this block was after a refused one and is queued again
        del self.window[message.sequence]
        self.window_bytes -= pending.length
        error = from_wire(message.code, message.text)
        splits = self.splits and pending.count > 1 and isinstance(error, UsageError)
        if not splits:
            pending.settle(UNKNOWN_OFFSET, error)
            self.refused.append(pending)
        if pending.sends == 1 and message.sequence == self.next_sequence - 1 and self._cut < 0:
            self._step(_E.REFUSED)
            self.next_sequence = message.sequence
        else:
            self._cut = message.sequence if self._cut < 0 else min(self._cut, message.sequence)
            self._step(_E.SPOILED)
        if splits:
            self._split(pending)
        self._give_up(message)
        return self._settle()

    def lost(self) -> None:
        """Note that the link is lost, in any state."""
        self._step(_E.LOST)

    def withdraw(self, pending: PendingBlock) -> bool:
        """Take back a block that was never sent, because its publisher gave up.

        Return False if it may be stored by now.
        """
        if pending.sends or pending.done:
            return False
        try:
            self.queue.remove(pending)
        except ValueError:
            return False
        self.queue_bytes -= pending.length
        return True

    def withdraw_all(self) -> list[PendingBlock]:
        """Take back all blocks that were never sent, in order."""
        unsent = [pending for pending in self.queue if not pending.sends]
        for pending in unsent:
            self.withdraw(pending)
        return unsent

    def fail(self, error: ZsqError) -> None:
        """Let all waiting blocks fail, because nothing can be sent.

        Blocks that were sent may be stored or not. So their sequences are not used again.
        """
        self._rewind()
        waiting, self.queue = self.queue, deque()
        self.queue_bytes = 0
        for pending in waiting:
            pending.settle(UNKNOWN_OFFSET, error)
            self.refused.append(pending)
        if any(pending.sends for pending in waiting):
            self._renumber()

    # Internal

    def _step(self, event: ProducerEvent) -> Reaction:
        transition = transition_of(PRODUCER_TABLE, self.state, event)
        self.state = transition.after
        for action in transition.actions:
            if action is _A.REWIND:
                self._rewind()
            elif action is _A.TAKE_BACK:
                self._take_back()
            elif action is _A.RENUMBER:
                self._renumber()
        return transition.reaction

    def _found_room(self) -> None:
        if self.no_room is not None:
            self.no_room, self.credit_bytes = None, self._granted

    def _rewind(self) -> None:
        """Queue the unanswered blocks again, in order and before all others."""
        self.queue.extendleft(reversed(self.window.values()))
        self.queue_bytes += self.window_bytes
        self.window.clear()
        self.window_bytes = 0

    def _take_back(self) -> None:
        """Remove the sequences of all blocks after the refused one.

        They cannot be stored under this id. The same is true for all blocks in the queue, because
        sequences are assigned in order, and each sequence there is higher than the refused one.
        """
        later = [pending for sequence, pending in self.window.items() if sequence > self._cut]
        for pending in later:
            del self.window[pending.sequence]
            self.window_bytes -= pending.length
            self.queue_bytes += pending.length
        assert all(pending.sequence < 0 or pending.sequence > self._cut for pending in self.queue)
        self.queue.extendleft(reversed(later))
        for pending in self.queue:
            pending.sequence = -1

    def _split(self, pending: PendingBlock) -> None:
        """Queue the halves of a refused block before all others."""
        for piece in reversed(pending.cut(halves(pending.count))):
            piece.part = pending.part
            piece.suspect = True
            self.queue.appendleft(piece)
            self.queue_bytes += piece.length

    def _give_up(self, message: Unstored) -> None:
        """Let all waiting blocks fail if the topic is closed.

        A closed topic would refuse them one by one, with a new link each time. The blocks that were
        sent before the refused one may be stored. They are in the window, and still get an answer.
        """
        if message.code != E_CLOSED:
            return
        waiting, self.queue = self.queue, deque()
        self.queue_bytes = 0
        for pending in waiting:
            pending.settle(UNKNOWN_OFFSET, from_wire(message.code, message.text))
            self.refused.append(pending)

    def _settle(self, reaction: Reaction = Reaction.NOTHING) -> Reaction:
        """Take a new id if all sequences before the cut are answered.

        Return what the link does then, and otherwise `reaction`.
        """
        if self._cut < 0 or self.window or (self.queue and self.queue[0].sequence >= 0):
            return reaction
        return self._step(_E.SETTLED)

    def _renumber(self) -> None:
        self.producer_id = next(self._ids)
        self.next_sequence = 0
        self._cut = self._traceless = -1
        for pending in self.queue:
            pending.sequence = -1
