"""Test of writers and a topic's stages together. Pushes and links are lost, the disk is full, and
processes die. What is sealed must be what was written.

The writers are the client library's own state machines. Storage is a list of blocks and a row for
each stage. When it dies, it loses all blocks that no row names.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from zsq.actors.settings import options
from zsq.actors.storage.stages import SealNow, Stages
from zsq.storage.log.transactions import Transaction
from zsq.transport.block.block import Block, Header, decode_header, pack
from zsq.transport.client.core.stage_session import PAUSE_NS, STALL_NS, StageSession
from zsq.transport.client.core.stage_table import StageState
from zsq.transport.client.core.stage_window import WindowEntry
from zsq.transport.client.link.reaction import Reaction
from zsq.transport.errors import E_DISK_FULL, ZsqError
from zsq.transport.wire.protocol import (
    Done,
    Failed,
    OpenStage,
    Seal,
    StagePart,
    Wire,
    checksum_after,
)

S = 1_000_000_000
WRITER = st.integers(0, 2)
# The index of the push that is lost. If there are fewer pushes, none is lost.
LOST = st.integers(0, 9)
WINDOW, CREDIT = 4_000, 1_600
T = Transaction("app", 1, "app")
Peer = tuple[bytes, ...]


class Row(NamedTuple):
    """The state of a stage that storage still has after a crash."""

    blocks: list[Header]
    final: bool


class Writer:
    """One stage: its session, and the pipes to and from storage on the current link."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.session = StageSession(
            bytes([number]) * 16, *T[:3], window_bytes_max=WINDOW, out_blocks_max=12
        )
        self.made: list[Header] = []
        self.links = 0
        self.peer: Peer | None = None
        self.words: deque[Wire] = deque()
        self.pushes: deque[WindowEntry] = deque()
        # Pushes of earlier links: they may arrive at any time.
        self.late: deque[WindowEntry] = deque()
        self.answers: deque[Wire] = deque()

    def connect(self) -> None:
        if self.session.ended:
            return
        if self.peer is not None:
            self.session.lost()
        self.links += 1
        self.peer = (b"%d-%d" % (self.number, self.links),)
        self.words = deque([self.session.begin()])
        self.late.extend(self.pushes)
        self.pushes.clear()
        self.answers.clear()

    def make(self, count: int) -> None:
        for _ in range(count):
            block = pack([b"x%d" % len(self.made)] * (1 + len(self.made) % 3))
            if (
                self.session.final
                or self.session.ended
                or not self.session.window.has_room(block.length)
            ):
                return
            self.session.add(block)
            self.made.append(block.header)

    def pump(self, now_ns: int) -> None:
        while (entry := self.session.take(now_ns)) is not None:
            self.pushes.append(entry)
        if (seal := self.session.take_seal()) is not None:
            self.words.append(seal)


class StagesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patches = [
            mock.patch.multiple(
                options,
                STAGE_CREDIT_POOL_BYTES=4_000,
                STAGE_CREDIT_BYTES=CREDIT,
                STAGE_CREDIT_BYTES_MIN=1_500,
            ),
        ]
        for patch in self.patches:
            patch.start()
        self.now_ns = 1_000 * S
        self.full = False
        self.rows: dict[bytes, Row] = {}
        self.writers = [Writer(number) for number in range(3)]
        self.start()

    def start(self) -> None:
        self.stages = Stages()
        self.files: dict[bytes, list[Header]] = {}
        # Seals whose sync is in progress, with the number of blocks that existed when it began.
        self.syncs: deque[tuple[SealNow, int]] = deque()
        for stage, row in self.rows.items():
            messages = sum(header.count for header in row.blocks)
            size = sum(header.length for header in row.blocks)
            checksum = 0
            for header in row.blocks:
                checksum = checksum_after(checksum, header.columns_crc)
            self.files[stage] = list(row.blocks)
            self.stages.recovered(
                stage, T, (len(row.blocks), messages, size, checksum), row.final, self.now_ns
            )

    # Writers

    @rule(number=WRITER, count=st.integers(1, 8))
    def write(self, number: int, count: int) -> None:
        self.writers[number].make(count)
        self.writers[number].pump(self.now_ns)

    @rule(number=WRITER, count=st.integers(1, 12), pushed=st.integers(0, 9), lost=LOST)
    def go(self, number: int, count: int, pushed: int, lost: int) -> None:
        """Let a writer connect, write and seal in one step. Without such a step, few runs would get
        far.
        """
        writer = self.writers[number]
        if writer.peer is None:
            writer.connect()
        self.message(number)
        self.read_answers(number, 9)
        self.write(number, count)
        self.push(number, pushed, lost)
        self.message(number)
        self.read_answers(number, 3)

    @rule(number=WRITER, count=st.integers(1, 12), lost=LOST)
    def die_while_sealing(self, number: int, count: int, lost: int) -> None:
        self.go(number, count, 9, lost)
        self.go(number, count, 9, 9)
        self.sync()
        self.read_answers(number, 9)
        self.die()

    @rule(number=WRITER)
    def finish(self, number: int) -> None:
        self.writers[number].session.finish()
        self.writers[number].pump(self.now_ns)

    @rule(number=WRITER)
    def connect(self, number: int) -> None:
        self.writers[number].connect()

    @rule(number=WRITER)
    def vanish(self, number: int) -> None:
        """End the link without informing storage."""
        writer = self.writers[number]
        if writer.peer is not None and not writer.session.ended:
            writer.session.lost()
            writer.peer = None

    @rule(number=WRITER, count=st.integers(1, 9))
    def read_answers(self, number: int, count: int) -> None:
        writer = self.writers[number]
        for _ in range(min(count, len(writer.answers))):
            if writer.peer is None:
                return
            message = writer.answers.popleft()
            reaction = Reaction.RESTART
            if isinstance(message, (Done, Failed)) or type(message).__name__ in (
                "Staged",
                "Missing",
            ):
                reaction = writer.session.on_word(message, self.now_ns)
            if reaction in (Reaction.RENEW, Reaction.RESTART):
                writer.connect()
                return
            assert writer.session.state is not StageState.FAILED, writer.session.error
        writer.pump(self.now_ns)

    # Pushes and messages that arrive, or get lost

    @rule(number=WRITER, count=st.integers(1, 9), lost=LOST)
    def push(self, number: int, count: int, lost: int) -> None:
        self.arrive(self.writers[number], self.writers[number].pushes, count, lost)

    @rule(number=WRITER, count=st.integers(1, 9), lost=LOST)
    def push_late(self, number: int, count: int, lost: int) -> None:
        self.arrive(self.writers[number], self.writers[number].late, count, lost)

    def arrive(self, writer: Writer, pipe: deque[WindowEntry], count: int, lost: int) -> None:
        stage = writer.session.stage
        taken: list[Block] = []
        for index in range(min(count, len(pipe))):
            entry = pipe.popleft()
            header = decode_header(entry.header)
            if index != lost and self.stages.push(stage, header.sequence, self.now_ns):
                taken.append(Block(header, entry.payload))
        if taken and self.full:
            self.stages.refused(stage, E_DISK_FULL, "no space", self.now_ns)
        elif taken:
            self.files[stage] += [block.header for block in taken]
            self.stages.arrived(stage, taken, self.now_ns)
        self.turn()

    @rule(number=WRITER)
    def message(self, number: int) -> None:
        writer = self.writers[number]
        if not writer.words or writer.peer is None:
            return
        message = writer.words.popleft()
        try:
            if isinstance(message, OpenStage):
                self.stages.check_open(message.stage, T)
                self.stages.link(writer.peer, self.now_ns)
                self.files.setdefault(message.stage, [])
                data = self.stages.opened(writer.peer, message.stage, T, self.now_ns)
                writer.answers.append(Done(message.request, data))
            else:
                assert isinstance(message, Seal)
                self.stages.seal(writer.peer, message, self.now_ns)
        except ZsqError as error:
            if isinstance(message, OpenStage) and error.code == "E_LIMIT":
                writer.session.lost()  # the real link also waits and tries again
                writer.peer = None
            else:
                writer.answers.append(
                    Failed(getattr(message, "request", 0), error.code, error.text)
                )
        self.turn()

    # Storage

    def turn(self) -> None:
        self.stages.turn()
        for order in self.stages.seals:
            self.syncs.append((order, len(self.files[order.stage])))
        self.stages.seals.clear()
        for peer, message in self.stages.replies:
            for writer in self.writers:
                if writer.peer == peer:
                    writer.answers.append(message)
        self.stages.replies.clear()

    @rule()
    def sync(self) -> None:
        if self.syncs:
            order, blocks = self.syncs.popleft()
            self.rows[order.stage] = Row(self.files[order.stage][:blocks], order.final)
            self.stages.sealed(order.stage, blocks, order.final)
        self.turn()

    @rule(full=st.booleans())
    def fill(self, full: bool) -> None:
        self.full = full

    @rule()
    def die(self) -> None:
        self.start()
        for number in range(3):
            self.vanish(number)

    @rule(seconds=st.sampled_from([1, 6, 11, 25]))
    def wait(self, seconds: int) -> None:
        self.now_ns += seconds * S
        self.stages.tick(self.now_ns)
        self.turn()
        for writer in self.writers:
            if writer.peer is not None and writer.session.on_time(self.now_ns) is Reaction.RENEW:
                writer.connect()
            writer.pump(self.now_ns)

    # Invariants

    @invariant()
    def what_lies_there_is_what_was_written(self) -> None:
        for writer in self.writers:
            found = self.files.get(writer.session.stage, [])
            assert [(h.sequence, h.columns_crc) for h in found] == [
                (n, h.columns_crc) for n, h in enumerate(writer.made[: len(found)])
            ]
            assert (
                len(self.rows.get(writer.session.stage, Row([], False)).blocks)
                >= writer.session.window.durable.blocks
            ), "it let go of what is not durable"

    @invariant()
    def credit_adds_up(self) -> None:
        rows = self.stages._stages.values()
        owned = [row for row in rows if row.credit_bytes]
        pool = options.STAGE_CREDIT_POOL_BYTES + len(owned) * options.STAGE_CREDIT_BYTES_MIN
        assert self.stages._granted == sum(row.credit_bytes for row in owned) <= pool
        assert self.stages._writers == len(owned)
        for row in rows:
            assert (row.owner is None) == (row.credit_bytes == 0)
            assert row.owner is None or row.name in self.stages._links[row.owner].stages

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            for patch in self.patches:
                patch.stop()

    def settle(self) -> None:
        """When no more faults happen, each stage gets sealed, and a commit can name it."""
        self.full = False
        for _ in range(200):
            for writer in self.writers:
                writer.session.finish()
                if writer.peer is None:
                    writer.connect()
                writer.pump(self.now_ns)
                self.message(writer.number)
                self.message(writer.number)
                self.push(writer.number, 9, 9)
                self.sync()
                self.read_answers(writer.number, 9)
            self.wait(1)
            if all(writer.session.ended for writer in self.writers):
                break
        parts: list[StagePart] = []
        for writer in self.writers:
            assert writer.session.state is StageState.SEALED, (
                writer.session.state,
                writer.session.error,
            )
            assert len(self.rows[writer.session.stage].blocks) == len(writer.made)
            parts.append(writer.session.part())
        assert self.stages.check_parts(T, tuple(parts)) == [part[0] for part in parts if part[1]]


assert PAUSE_NS <= S < STALL_NS
TestStages = StagesMachine.TestCase
TestStages.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
