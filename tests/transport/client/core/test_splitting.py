"""Tests of a block of which the topic refuses a message: only that message fails."""

from __future__ import annotations

from collections import deque
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from zsq.transport.block.block import pack
from zsq.transport.client.core.producer_session import PendingBlock, ProducerSession
from zsq.transport.client.link.reaction import Reaction
from zsq.transport.errors import E_FORBIDDEN, E_TOO_BIG, E_TOPIC_FAILED, UsageError
from zsq.transport.wire.protocol import Stored, Unstored, Welcome

BAD = b"bad"
CREDIT = 1 << 20


def bodies_of(pending: PendingBlock) -> list[bytes]:
    assert pending.block is not None
    return [body or b"" for body in pending.block.body.values()]


def block(*bodies: bytes) -> PendingBlock:
    return PendingBlock(pack(list(bodies)))


def opened(*, splits: bool = True) -> ProducerSession:
    session = ProducerSession(iter(range(1, 1000)), splits=splits)
    session.begin(1000)
    assert session.on_welcome(Welcome(1, 0, CREDIT, 1000)) is Reaction.UP
    return session


class Topic:
    """A topic that stores blocks in order and refuses each block with a bad message.

    What is on its way to it and back is lost with the link, or arrives.
    """

    def __init__(self, session: ProducerSession) -> None:
        self.session = session
        self.stored: list[bytes] = []
        self.links = 0
        self._expected: dict[int, int] = {}
        self._offsets: dict[tuple[int, int], int] = {}
        self._way: deque[tuple[int, int, list[bytes]]] = deque()
        self._answers: deque[Stored | Unstored] = deque()
        self._open()

    def _open(self) -> None:
        self.links += 1
        self.session.begin(1000)
        expected = self._expected.setdefault(self.session.producer_id, 0)
        if self.session.on_welcome(Welcome(1, expected, CREDIT, 1000)) is not Reaction.UP:
            self.lose()

    def lose(self, arrive: int = 0) -> None:
        """Lose the link after some of the blocks on their way have arrived."""
        for _ in range(min(arrive, len(self._way))):
            self._take()
        self._way.clear()
        self._answers.clear()
        self.session.lost()
        self._open()

    def send(self) -> None:
        while (pending := self.session.take()) is not None:
            self._way.append((self.session.producer_id, pending.sequence, bodies_of(pending)))

    def _take(self) -> None:
        """Receive one block."""
        producer_id, sequence, bodies = self._way.popleft()
        expected = self._expected[producer_id]
        if BAD in bodies:
            self._answers.append(Unstored(sequence, -1, E_TOO_BIG, "too big"))
        elif sequence > expected:
            self._answers.append(Unstored(sequence, expected, "E_SEQUENCE", "out of order"))
        else:
            if sequence == expected:
                self._offsets[producer_id, sequence] = len(self.stored)
                self.stored += bodies
                self._expected[producer_id] += 1
            self._answers.append(Stored(((sequence, self._offsets[producer_id, sequence]),)))

    def receive(self) -> None:
        if self._way:
            self._take()

    def answer(self) -> None:
        if self._answers:
            reaction = self.session.on_word(self._answers.popleft())
            if reaction is not Reaction.NOTHING:
                self.lose()

    def settle(self) -> None:
        for _ in range(10_000):
            if not self.session.unanswered:
                return
            self.send()
            self.receive()
            self.answer()
        raise AssertionError("the session did not get all answers")


STEPS = st.sampled_from(["send", "receive", "answer", "lose", "lose late"])


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=9), max_size=6), st.lists(STEPS))
def test_each_good_message_is_stored_once_in_order_and_each_bad_one_fails(
    blocks: list[list[bool]], steps: list[str]
) -> None:
    session = opened()
    session.lost()
    topic = Topic(session)
    numbers = count()
    every = [[b"%d" % next(numbers) if good else BAD for good in rows] for rows in blocks]
    pending_blocks = [block(*bodies) for bodies in every]
    for pending in pending_blocks:
        session.add(pending)
    for step in steps:
        if step == "lose":
            topic.lose()
        elif step == "lose late":
            topic.lose(arrive=1)
        else:
            getattr(topic, step)()
    topic.settle()
    good = [body for bodies in every for body in bodies if body != BAD]
    assert topic.stored == good
    for pending, bodies in zip(pending_blocks, every, strict=True):
        assert pending.done
        for index, body in enumerate(bodies):
            leaf, place = pending.leaf(index)
            assert leaf.done
            assert (leaf.error is not None) == (body == BAD)
            if body != BAD:
                assert topic.stored[leaf.first_offset + place] == body
    assert session.queue_bytes == session.window_bytes == 0


def test_the_halves_of_a_refused_block_need_no_new_link() -> None:
    session = opened()
    session.lost()
    topic = Topic(session)
    session.add(block(*[b"%d" % n for n in range(50)], BAD, *[b"%d" % n for n in range(50)]))
    topic.settle()
    assert len(topic.stored) == 100
    assert topic.links == 1


def test_a_refusal_that_is_not_about_the_messages_costs_the_block() -> None:
    for code in (E_FORBIDDEN, E_TOPIC_FAILED):
        session = opened()
        pending = block(b"a", b"b")
        session.add(pending)
        session.take()
        session.on_word(Unstored(0, 0, code, "no"))
        assert pending.error is not None
        assert not pending.pieces


def test_a_session_that_does_not_split_fails_the_block() -> None:
    session = opened(splits=False)
    pending = block(b"a", BAD)
    session.add(pending)
    session.take()
    session.on_word(Unstored(0, -1, E_TOO_BIG, "too big"))
    assert isinstance(pending.error, UsageError)
    assert not pending.pieces
