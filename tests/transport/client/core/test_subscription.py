"""Tests of a consumer's engine: a refusal is raised before the next attempt, and messages are
received while answers are sent.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import zsq
from zsq.transport.client.core import subscription, topic_legs
from zsq.transport.client.core.confirm import Confirm
from zsq.transport.client.core.consumer_backoff import BackoffState, ConsumerBackoff, Outcome
from zsq.transport.client.core.consumer_session import ConsumerSession
from zsq.transport.client.core.subscription import ConsumerEngine
from zsq.transport.client.link.link_table import LinkState
from zsq.transport.client.link.reaction import Reaction
from zsq.transport.errors import E_CLOSED, Refused
from zsq.transport.wire.address import parse
from zsq.transport.wire.protocol import Bye, Fin, Spread
from zsq.transport.wire.spread import HasParts


def test_a_refusal_is_told_before_the_next_attempt(tmp_path: Path) -> None:
    """If a new attempt came first, each call would raise the result of the attempt before it, even
    when the broker accepts again.
    """
    engine = ConsumerEngine(parse(f"ipc://{tmp_path}"), "t", "c", ConsumerSession(1), None, {})
    engine.legs[0].on_refused(Refused(E_CLOSED, "closed"))
    engine.start()
    assert engine.link.state is LinkState.IDLE
    with pytest.raises(Refused, match="E_CLOSED"):
        engine.raise_refused()
    engine.start()
    assert engine.link.state is not LinkState.IDLE
    engine.stop()


def test_news_are_taken_in_between_many_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client must receive while it sends many finishes. Otherwise the channel's replies would
    fill the pipe, and a lost link would be noticed only after the last finish.
    """
    monkeypatch.setattr(topic_legs, "WORDS_MAX", 10)
    done: list[str] = []

    def receive(now_ns: int) -> None:
        done.append("in")
        link.up = len(done) < 30

    words = [deque(Fin(0, 1, ((offset, 1),)) for offset in range(100))]
    session = SimpleNamespace(
        dirty=True,
        collect=lambda: words[0],
        report=lambda now_ns: None,
        ready=1,
        unconfirmed=0,
        next_confirm=Confirm(),
    )
    engine = ConsumerEngine(parse(f"ipc://{tmp_path}"), "t", "c", cast("Any", session), 1_000, {})
    link = SimpleNamespace(up=True, send=lambda frames, now_ns: done.append("out"), receive=receive)
    engine.legs[0].link = cast("Any", link)
    engine.tell(1)
    assert done == [*["out"] * 10, "in"] * 3


def test_finishes_are_told_while_more_is_at_hand(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finishes are not kept until all received messages are handled. The channel can then
    deliver more at once, and fewer messages come again after a crash.
    """
    monkeypatch.setattr(subscription, "TELL_NS", 3_600_000_000_000)
    with zsq.Consumer("t", "c", url=broker.url, ready=100, heartbeat_ms=60_000) as taking:
        taking.subscribe()
        broker.call(lambda: [broker.put(b"%d" % number) for number in range(100)])
        drive = taking._made
        assert drive is not None
        with drive.lock:
            assert drive.wait(
                lambda: len(drive.engine.session.arrived) == 100,
                time.monotonic_ns() + 5_000_000_000,
            )
        for _ in range(50):
            message = taking.receive()
            assert message is not None
            message.finish()
        broker.wait_for(lambda: len(broker.finished) >= 25)


@pytest.mark.parametrize(("untold", "told"), [(24, 0), (25, 1)])
def test_a_share_of_the_credit_in_finishes_is_told_before_the_next_delivery_is_taken(
    untold: int, told: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ConsumerEngine(parse(f"ipc://{tmp_path}"), "t", "c", ConsumerSession(100), None, {})
    said: list[int] = []
    monkeypatch.setattr(engine, "start", lambda: None)
    monkeypatch.setattr(engine, "tell", said.append)
    monkeypatch.setattr(ConsumerSession, "untold", untold)
    delivery = SimpleNamespace(
        alone=False,
        take=lambda count: None,
        block=SimpleNamespace(count=1),
        session=SimpleNamespace(),
    )
    engine.session.arrived.append(cast("Any", delivery))
    with pytest.raises(StopIteration) as taken:
        next(engine.take(0, None, lambda: False, lambda: False))
    assert taken.value.value is delivery
    assert len(said) == told


def test_a_probe_that_waits_for_its_handler_is_not_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was on its way goes back, and nothing else. Without its probe, a consumer that backs off
    would wait for ever.
    """
    late = SimpleNamespace(block=SimpleNamespace(count=2))
    session = SimpleNamespace(
        on_word=lambda *word: Reaction.NOTHING, arrived=deque([late]), unanswered=3, ready=0
    )
    engine = ConsumerEngine(parse(f"ipc://{tmp_path}"), "t", "c", cast("Any", session), None, {})
    given_back: list[int] = []
    monkeypatch.setattr(engine, "give_back", lambda leg, count: given_back.append(count))
    engine.limit = 0
    engine.legs[0].on_word(Bye(), [], 1)
    assert given_back == [2]


def test_a_probe_of_a_part_that_is_left_is_repeated(tmp_path: Path) -> None:
    """Its handler may never begin."""
    engine = ConsumerEngine(
        parse(f"ipc://{tmp_path}"), "t", "c", ConsumerSession(1), None, {}, ConsumerSession
    )
    spread = Spread(1, "t", "u", ((0, 1),), ((1, ("tcp://127.0.0.1:1",)),))
    engine.legs[0].on_refused(HasParts(spread))
    (part,) = engine.legs
    backoff = ConsumerBackoff(zsq.Backoff(failures=1))
    engine.back_off_with(backoff)
    backoff.ended(backoff.ticket, Outcome.FAILURE, 0)
    backoff.due(backoff.until_ns)
    backoff.taken(0)
    before = backoff.state
    part.on_refused(HasParts(spread))
    assert before is BackoffState.TESTING
    assert backoff.state is BackoffState.WAITING
    engine.stop()
