"""Tests of the answer memory: a message whose answer did not arrive is recognized when it comes
back, and one that somebody wants to be handled once more is not.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zsq
from zsq.transport.block.block import pack, with_place
from zsq.transport.client.blocking.client import Batch
from zsq.transport.client.core.answer_memory import AnswerMemory, place_of
from zsq.transport.client.core.consumer_session import ConsumerSession
from zsq.transport.wire.protocol import Answer, Deliver, Fin, Req, Subscribed

LEASE_MS = 3_600_000
COUNT = 3


class Channel:
    """A channel with three messages, its consumer's session, and an answer memory."""

    def __init__(self, memory: AnswerMemory, stored_ns: int = 0) -> None:
        self.memory = memory
        self.stored_ns = stored_ns
        self.session = ConsumerSession(100)
        self.ended: set[int] = set()  # the offsets whose answers are committed
        self.committed: set[int] = set()  # those of them that came on this link
        self.confirmed: set[int] = set()  # and whose confirmation the client has
        self.messages: dict[int, zsq.Message] = {}  # those that are not answered
        self.tokens: dict[int, int] = {}
        self.sent: list[Any] = []  # on this link, and not processed by the channel
        self.token = 0
        self.connect()

    def connect(self) -> list[zsq.Message]:
        """Open a new link. Return the messages that the channel delivers."""
        sub = self.session.begin(1000)
        self.session.on_word(Subscribed(sub.request, 1, LEASE_MS, 2000), [], 0)
        return [self.deliver(offset) for offset in range(COUNT) if offset not in self.ended]

    def deliver(self, offset: int) -> zsq.Message:
        self.token += 1
        self.tokens[self.token] = offset
        block = with_place(pack([b"x"]), offset, self.stored_ns)
        runs = ((offset, 1, 1),)
        now_ns = time.monotonic_ns()
        self.session.on_word(Deliver(self.token, runs, LEASE_MS), [block], now_ns)
        owner: Any = SimpleNamespace(
            topic="t", channel="c", _noted=lambda: None, _requeue=self.session.requeue
        )
        [message] = Batch(owner, self.session.arrived.pop()).messages()
        self.messages[offset] = message
        return message

    def answer(self, offset: int, *, reject: bool = False) -> None:
        message = self.messages.pop(offset)
        if reject:
            with self.memory.answering(message, rejected="bad"):
                message.reject("bad")
        else:
            with self.memory.answering(message):
                message.finish()

    def send(self, *, barrier: bool = False) -> None:
        if barrier:
            self.session.barrier()
        words = self.session.collect()
        self.sent += words
        words.clear()

    def process(self) -> None:
        """Let the channel commit the oldest answer that it has, or confirm those before it."""
        word = self.sent.pop(0)
        if word.token:
            self.ended.add(self.tokens[word.token])
            self.committed.add(self.tokens[word.token])
        if word.request:
            self.confirmed |= self.committed
            self.session.on_word(Answer(word.request, word.token, ()), [], 0)

    def lose(self) -> list[zsq.Message]:
        self.session.lost()
        self.sent.clear()
        self.committed.clear()
        self.messages.clear()
        return self.connect()


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_exactly_the_messages_whose_answer_was_lost_are_recognized(data: st.DataObject) -> None:
    memory = AnswerMemory()
    channel = Channel(memory)
    answered: dict[int, bool] = {}  # the offsets that were answered, and whether rejected
    for _ in range(data.draw(st.integers(1, 25))):
        steps = ["send", "barrier", "lose"]
        steps += ["answer"] if channel.messages else []
        steps += ["process"] * 2 if channel.sent else []
        steps += ["rewind"] if channel.confirmed else []
        step = data.draw(st.sampled_from(steps))
        if step == "answer":
            offset = data.draw(st.sampled_from(sorted(channel.messages)))
            answered[offset] = data.draw(st.booleans())
            channel.answer(offset, reject=answered[offset])
        elif step in {"send", "barrier"}:
            channel.send(barrier=step == "barrier")
        elif step == "process":
            channel.process()
        elif step == "rewind":
            # The channel is moved back, for all messages whose end the client knows.
            again, channel.confirmed = channel.confirmed, set()
            channel.ended -= again
            channel.committed -= again
            for offset in again:
                answered.pop(offset, None)
                assert memory.take(channel.deliver(offset)) is None
        else:
            for message in channel.lose():
                ending = memory.take(message)
                expected = answered.get(message.offset)
                assert (ending is not None) is (expected is not None)
                if ending is not None:
                    assert (ending.rejected == "bad") is expected
                    channel.answer(message.offset, reject=bool(expected))


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_rewound_message_is_handled_also_before_its_end_is_confirmed(confirmed: bool) -> None:
    channel = Channel(memory := AnswerMemory())
    channel.answer(0)
    channel.send(barrier=confirmed)
    while channel.sent:
        channel.process()
    assert memory.take(channel.deliver(0)) is None


def test_another_consumer_recognizes_a_message_of_one_that_was_closed() -> None:
    memory = AnswerMemory()
    first = Channel(memory)
    first.answer(0)
    first.answer(1)
    assert memory.take(Channel(memory).messages[0]) is not None
    first.send(barrier=True)
    while first.sent:
        first.process()
    assert memory.take(Channel(memory).messages[1]) is None, "its end was confirmed"


def test_a_message_that_ended_without_its_lease_is_recognized() -> None:
    channel = Channel(memory := AnswerMemory())
    message = channel.messages[0]
    channel.lose()
    with memory.answering(message):
        message.finish()
    channel.send(barrier=True)
    while channel.sent:
        channel.process()
    assert memory.take(channel.deliver(0)) is not None
    assert memory.take(channel.deliver(0)) is None, "it came back once"


def test_a_failed_answer_is_remembered_too() -> None:
    channel = Channel(memory := AnswerMemory())
    message = channel.messages[0]
    channel.session.over = "closed"
    with pytest.raises(zsq.Refused), memory.answering(message):
        message.finish()
    channel.session.over = ""
    assert memory.take(channel.deliver(0)) is not None


def test_another_message_at_the_same_offset_has_another_place() -> None:
    """A message of a topic that was created again must not count as the old one."""
    channel = Channel(memory := AnswerMemory())
    channel.answer(0)
    channel.lose()
    other = Channel(memory, stored_ns=1).messages[0]
    assert place_of(other) != place_of(channel.messages[0])
    assert memory.take(other) is None
    assert memory.take(channel.messages[0]) is not None


def test_only_the_newest_are_kept_and_for_some_time() -> None:
    now_s = 0.0
    memory = AnswerMemory(entries_max=2, keep_s=10.0, clock_s=lambda: now_s)
    channel = Channel(memory)
    for offset in range(3):
        channel.answer(offset)
    assert len(memory) == 2
    channel.lose()
    assert [memory.take(channel.messages[offset]) is not None for offset in (0, 1)] == [False, True]
    now_s = 10.0
    assert memory.take(channel.messages[2]) is None


def test_confirmed_answers_make_room() -> None:
    channel = Channel(memory := AnswerMemory())
    for offset in range(2):
        channel.answer(offset)
    channel.send(barrier=True)
    while channel.sent:
        channel.process()
    channel.answer(2)
    assert len(memory) == 1
    assert {type(word) for word in channel.session.collect()} <= {Fin, Req}
