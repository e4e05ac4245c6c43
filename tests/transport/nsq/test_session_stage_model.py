"""Model test of a stage writer's session against a model of the storage and the pipes between them:
no sequence of failures changes what is sealed.
"""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from zsq.transport.block.block import Block, pack
from zsq.transport.block.block_format import decode_header
from zsq.transport.client.core.stage_session import STALL_NS, StageSession
from zsq.transport.client.core.stage_table import StageState
from zsq.transport.client.link.reaction import Reaction
from zsq.transport.errors import E_DISK_FULL
from zsq.transport.wire.protocol import (
    Done,
    Failed,
    Missing,
    OpenStage,
    Seal,
    Staged,
    Wire,
    checksum_after,
)

STAGE = b"s" * 16


def block(number: int) -> Block:
    return pack([b"%020d" % number])


LENGTH = block(0).length


class ModelStorage:
    """A model of storage that accepts exactly the next number. Blocks that are sealed are durable,
    and a restart loses some of the others.
    """

    def __init__(self) -> None:
        self.blocks: list[tuple[int, int, bytes]] = []  # (checksum of the columns, length, columns)
        self.sealed = 0
        self.final = False
        self.told = -1
        self.owner = 0
        self.answers: deque[tuple[int, Wire]] = deque()
        self.seal: tuple[int, Seal] | None = None
        self.refusing = 0

    def open(self, link: int, request: int) -> None:
        self.owner = link
        self.seal = None
        self.told = -1
        data = {
            "expected": len(self.blocks),
            "sealed": self.sealed,
            "credit_bytes": 4 * LENGTH,
            "committed": False,
        }
        self.answers.append((link, Done(request, data)))

    def take(self, number: int, entry: tuple[int, int, bytes]) -> None:
        if self.final or number < len(self.blocks):
            if not self.final:
                assert self.blocks[number] == entry, "a number always means the same block"
        elif number > len(self.blocks):
            if self.told != len(self.blocks):
                self.told = len(self.blocks)
                self.answers.append((self.owner, Missing(0, STAGE, len(self.blocks))))
        elif self.refusing:
            self.refusing -= 1
            self.answers.append((self.owner, Failed(0, E_DISK_FULL, "full")))
        else:
            self.blocks.append(entry)
            self.answers.append((self.owner, Staged(STAGE, len(self.blocks))))

    def sync(self) -> None:
        """Answer the waiting seal if all its blocks have arrived."""
        if self.seal is None or len(self.blocks) < self.seal[1].blocks:
            return
        (link, seal), self.seal = self.seal, None
        checksum = 0
        for crc, _, _ in self.blocks[: seal.blocks]:
            checksum = checksum_after(checksum, crc)
        assert (seal.checksum, seal.size_bytes) == (
            checksum,
            sum(length for _, length, _ in self.blocks[: seal.blocks]),
        )
        self.sealed = max(self.sealed, seal.blocks)
        if seal.final:
            assert seal.blocks == len(self.blocks)
            self.final = True
        self.answers.append((link, Done(seal.request, {"messages": seal.blocks})))

    def give_up_seal(self) -> None:
        if self.seal is not None and len(self.blocks) < self.seal[1].blocks:
            (link, seal), self.seal = self.seal, None
            self.answers.append((link, Missing(seal.request, STAGE, len(self.blocks))))

    def die(self, keep: int) -> None:
        del self.blocks[self.sealed + keep :]
        self.seal = None
        self.told = -1
        self.answers.clear()


class World:
    def __init__(self) -> None:
        self.session = StageSession(STAGE, "app", 1, window_bytes_max=12 * LENGTH)
        self.storage = ModelStorage()
        self.pipes: dict[int, deque[tuple[int, tuple[int, int, bytes]]]] = {}
        self.words: dict[int, deque[Wire]] = {}
        self.link = 0
        self.now = 0
        self.made: list[bytes] = []

    def add(self) -> None:
        made = block(len(self.made))
        if not self.session.final and self.session.window.has_room(made.length):
            self.made.append(bytes(made.columns))
            self.session.add(made)
        self.pump()

    def pump(self) -> None:
        session = self.session
        while (entry := session.take(self.now)) is not None:
            header = decode_header(entry.header)
            self.pipes[self.link].append(
                (header.sequence, (header.columns_crc, header.length, bytes(entry.payload)))
            )
            assert session.window.out_bytes <= max(session.credit_bytes, entry.length), (
                "credit is never exceeded"
            )
        assert session.window.held_bytes <= 12 * LENGTH
        seal = session.take_seal()
        if seal is not None:
            self.words[self.link].append(seal)

    def connect(self) -> None:
        if self.session.ended:
            return
        self.link += 1
        self.pipes[self.link] = deque()
        self.words[self.link] = deque([self.session.begin()])

    def lose(self) -> None:
        self.session.lost()
        self.connect()

    def hear(self) -> None:
        """Pass one control message of the present link to the storage."""
        if self.words.get(self.link):
            message = self.words[self.link].popleft()
            if isinstance(message, Seal):
                self.storage.seal = (self.link, message)
            elif isinstance(message, OpenStage):
                self.storage.open(self.link, message.request)

    def deliver(self, back: int) -> None:
        """Deliver one push. Its link may have ended long ago."""
        pipe = self.pipes.get(self.link - back)
        if pipe:
            self.storage.take(*pipe.popleft())

    def drop(self, back: int) -> None:
        pipe = self.pipes.get(self.link - back)
        if pipe:
            pipe.popleft()

    def again(self, back: int) -> None:
        """Let one push arrive twice."""
        pipe = self.pipes.get(self.link - back)
        if pipe:
            pipe.appendleft(pipe[0])

    def answer(self) -> None:
        while self.storage.answers:
            link, message = self.storage.answers.popleft()
            if link == self.link and self.session.state is not StageState.DOWN:
                if self.session.on_word(message, self.now) in (Reaction.RENEW, Reaction.RESTART):
                    self.lose()
                self.pump()
                return

    def tick(self) -> None:
        self.now += STALL_NS
        if self.session.on_time(self.now) is Reaction.RENEW:
            self.lose()
        self.pump()

    def finish(self) -> None:
        self.session.finish()
        self.storage.refusing = 0
        for turn in range(20_000):
            self.pump()
            if self.session.ended and self.storage.final:
                return
            self.hear()
            self.deliver(0)
            self.answer()
            self.storage.sync()
            if turn % 50 == 49:
                self.storage.give_up_seal()
                self.tick()
        raise AssertionError(f"it never comes to rest: {self.session.state}")


ACTIONS = (*("add", "add", "deliver", "deliver", "deliver", "hear", "answer", "answer", "sync") * 3,
           "drop", "drop", "again", "tick", "lose", "die", "refuse", "give_up_seal")  # fmt: skip
steps = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.sampled_from((0, 0, 0, 1, 2))), min_size=20, max_size=150
)


@settings(max_examples=400, deadline=None)
@given(steps)
def test_no_order_of_losses_changes_what_is_sealed(script: list[tuple[str, int]]) -> None:
    world = World()
    world.connect()
    for action, number in script:
        if action in ("deliver", "drop", "again"):
            getattr(world, action)(number)
        elif action == "die":
            world.storage.die(number)
            world.lose()
        elif action == "refuse":
            world.storage.refusing += 1
        elif action in ("sync", "give_up_seal"):
            getattr(world.storage, action)()
        else:
            getattr(world, action)()
    if not world.made:
        world.add()
    world.finish()
    assert world.session.state is StageState.SEALED
    assert [what for _, _, what in world.storage.blocks] == world.made
    stage, blocks, messages, size_bytes, _ = world.session.part()
    assert (stage, blocks, messages, size_bytes) == (
        STAGE,
        len(world.made),
        len(world.made),
        LENGTH * len(world.made),
    )
    assert world.session.window.held_bytes == 0
