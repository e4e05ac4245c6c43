"""Tests of a consumer's engine with several topics, without a broker: turns, credit, refusals, and
what it does with the broker's list of topics.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import Any, cast

import pytest

from zsq.transport.client.core.consumer_session import ConsumerSession, ConsumerState
from zsq.transport.client.core.subscription import BUSY_NS, SHARE_NS, ConsumerEngine
from zsq.transport.client.core.topic_choice import TOPICS_MAX, TopicChoice, topic_choice
from zsq.transport.client.core.topic_legs import Leg
from zsq.transport.client.core.topic_list import LISTED_NS, SILENT_NS, TopicList
from zsq.transport.client.link.link_table import LinkState
from zsq.transport.client.link.timeouts import FAR_NS
from zsq.transport.errors import (
    E_CLOSED,
    E_FORBIDDEN,
    E_NOT_FOUND,
    E_UNREACHABLE,
    E_UNSUPPORTED,
    BrokerUnreachable,
    NotFound,
    Refused,
    UsageError,
    ZsqError,
)
from zsq.transport.names import channel_missing
from zsq.transport.wire.addresses import parse_all
from zsq.transport.wire.protocol import Done, Failed, Fin, Spread
from zsq.transport.wire.spread import HasParts

A = "tcp://127.0.0.1:1"


def engine_of(topic: str | list[str], ready: int = 100) -> ConsumerEngine:
    return ConsumerEngine(
        parse_all(A, transport="tcp"), topic_choice(topic), "c", ConsumerSession(ready), None, {},
        ConsumerSession,
    )  # fmt: skip


@pytest.fixture
def several() -> Iterator[ConsumerEngine]:
    made = engine_of(["a", "b", "d"])
    yield made
    made.stop()
    made.events.close()


@pytest.fixture
def pattern() -> Iterator[ConsumerEngine]:
    made = engine_of("a*")
    yield made
    made.stop()
    made.events.close()


def list_of(engine: ConsumerEngine) -> TopicList:
    """Return its list of topics, which is the peer of the link to the supervisor."""
    (found,) = (link.peer for link in engine.links if isinstance(link.peer, TopicList))
    return found


def hear(engine: ConsumerEngine, *names: str, **parted: int) -> None:
    """Answer the request for the topics. `parted`: the topics of the cluster, with their parts."""
    topics = list_of(engine)
    sent: list[Any] = []
    link = cast("Any", topics.link)
    link.send = lambda frames, now_ns: sent.append(frames)
    topics.on_up(1)
    for number in range(1, 50):
        answer: Any = Done(number, {"topics": dict.fromkeys(names, ())})
        topics.on_word(answer, [], 1)
        if len(sent) == 2:
            rows = [
                {"topic": name, "parts": (1,) * number_of} for name, number_of in parted.items()
            ]
            topics.on_word(Done(number + 1, {"brokers": (), "topics": rows}), [], 1)
            return
    raise AssertionError("it asked for nothing")


def names(engine: ConsumerEngine) -> list[str]:
    return [leg.target.topic for leg in engine.legs]


def leg_of(engine: ConsumerEngine, name: str) -> Leg:
    (leg,) = (leg for leg in engine.legs if leg.target.topic == name)
    return leg


def spread(topic: str, parts: int) -> Spread:
    return Spread(1, topic, "u", tuple((n, 1) for n in range(parts)), ((1, (A,)),))


# Turns


def test_topics_take_turns_first_and_then_their_parts(several: ConsumerEngine) -> None:
    leg_of(several, "a").on_refused(HasParts(spread("a", 2)))
    assert sorted(names(several)) == ["a#0", "a#1", "b", "d"]
    for leg in several.legs:
        arrived = cast("deque[Any]", leg.session.arrived)
        arrived.extend(leg.target.topic for _ in range(3))
    taken = [str(several._next())[0] for _ in range(12)]
    for begin in range(0, 9, 3):
        assert sorted(taken[begin : begin + 3]) == ["a", "b", "d"]
    assert taken[9:] == ["a"] * 3
    assert several._next() is None


def test_a_session_knows_its_topic_and_part(several: ConsumerEngine) -> None:
    leg_of(several, "a").on_refused(HasParts(spread("a", 2)))
    assert [(leg.session.topic, leg.session.part) for leg in several.legs] == [
        ("a", 0), ("a", 1), ("b", None), ("d", None),
    ]  # fmt: skip


# Credit


def ready_of(engine: ConsumerEngine) -> dict[str, int]:
    return {leg.target.topic: leg.session.ready for leg in engine.legs}


_ticks = count(1)


def pass_some_time(engine: ConsumerEngine) -> None:
    """Let the timers run, each time at a later time than before."""
    engine.timers(time.monotonic_ns() + next(_ticks) * 100 * SHARE_NS)


def fill(engine: ConsumerEngine, *topics: str, held: int = 0) -> None:
    """Let these topics hold all that they may, until their credit grows no more."""
    for _ in range(20):
        for name in topics:
            (topic,) = (topic for topic in engine.topics if topic.target.topic == name)
            topic.delivered_ns = time.monotonic_ns()
            engine.filled(topic)
            topic.legs[0].session.unanswered = held
        pass_some_time(engine)


def test_idle_topics_have_one_message_and_busy_ones_share_the_rest(
    several: ConsumerEngine,
) -> None:
    assert ready_of(several) == {"a": 1, "b": 1, "d": 1}
    fill(several, "a")
    assert ready_of(several) == {"a": 98, "b": 1, "d": 1}
    fill(several, "a", "b")
    assert ready_of(several) == {"a": 49, "b": 49, "d": 1}
    several.topics[1].whole.session.unanswered = 49  # its handlers work for long
    several.timers(time.monotonic_ns() + 2 * BUSY_NS)
    assert ready_of(several)["a"] == 1
    assert ready_of(several)["b"] >= 49
    several.set_ready(0)
    assert ready_of(several) == {"a": 0, "b": 0, "d": 0}


def test_a_topic_with_few_messages_takes_little_credit_of_a_busy_one(
    several: ConsumerEngine,
) -> None:
    fill(several, "a")
    several.topics[1].delivered_ns = time.monotonic_ns()
    several.filled(several.topics[1])
    pass_some_time(several)
    assert ready_of(several) == {"a": 97, "b": 2, "d": 1}


def test_a_topic_that_holds_more_than_its_share_takes_from_the_others(
    several: ConsumerEngine,
) -> None:
    fill(several, "a", held=98)
    fill(several, "b")
    assert ready_of(several)["b"] + 98 <= 100 + 25
    several.topics[0].whole.session.unanswered = 0
    several.topics[1].delivered_ns = time.monotonic_ns()
    for _ in range(20):
        several.filled(several.topics[1])
        pass_some_time(several)
    assert ready_of(several)["b"] == 49


def test_parts_share_the_credit_of_their_topic(several: ConsumerEngine) -> None:
    leg_of(several, "a").on_refused(HasParts(spread("a", 2)))
    fill(several, "a")
    assert ready_of(several) == {"a#0": 49, "a#1": 49, "b": 1, "d": 1}


def test_a_single_topic_has_all_credit_always() -> None:
    for engine in (engine_of(["a"]), engine_of("a")):
        engine.timers(time.monotonic_ns())
        assert ready_of(engine) == {"a": 100}
        engine.stop()
        engine.events.close()


# Refusals


def test_each_refusal_is_raised_once_and_names_its_topic(several: ConsumerEngine) -> None:
    leg_of(several, "b").on_refused(Refused(E_CLOSED, "closed"))
    leg_of(several, "d").on_refused(NotFound(E_NOT_FOUND, "no topic 'd'"))
    leg_of(several, "a").on_up(1)  # it does not hide the refusals of the others
    for text in (r"E_CLOSED topic 'b': closed$", r"E_NOT_FOUND no topic 'd'$"):
        with pytest.raises(ZsqError, match=text):
            several.raise_refused()
    several.raise_refused()


def test_a_topic_is_not_tried_again_before_its_refusal_is_raised(several: ConsumerEngine) -> None:
    leg_of(several, "b").on_refused(Refused(E_CLOSED, "closed"))
    several.start()
    idle = [leg.target.topic for leg in several.legs if leg.link.state is LinkState.IDLE]
    assert idle == ["b"]


def test_a_lost_topic_keeps_the_messages_of_the_others(several: ConsumerEngine) -> None:
    voids: list[str] = []
    several.on_void = lambda: voids.append("all")
    several.on_part_void = lambda session: voids.append(session.topic)
    leg_of(several, "b").on_lost()
    assert voids == ["b"]


# Patterns


def test_a_pattern_follows_what_the_broker_lists(pattern: ConsumerEngine) -> None:
    assert not pattern.open
    hear(pattern, "a1", "b", "a2#0", "a2#1", "a3.c.dead", "a4#ephemeral", a5=2)
    assert sorted(names(pattern)) == ["a1", "a2", "a5"]
    assert all(leg.link.is_back for leg in pattern.legs), "it creates no topic"
    assert not pattern.open
    for leg in pattern.legs:
        leg.session.state = ConsumerState.OPEN
    assert pattern.open


def test_a_pattern_without_topics_is_open(pattern: ConsumerEngine) -> None:
    hear(pattern)
    assert pattern.open
    assert pattern._is_ready()
    assert pattern.error is None


def test_a_topic_is_left_when_it_is_not_listed_and_has_no_link(pattern: ConsumerEngine) -> None:
    hear(pattern, "a1", "a2")
    up = leg_of(pattern, "a1")
    up.link.state = LinkState.UP
    hear(pattern)
    assert names(pattern) == ["a1"], "a list that is not complete ends no leases"
    up.link.state = LinkState.IDLE
    hear(pattern)
    assert names(pattern) == []
    assert up.link not in pattern.links


def test_a_deleted_topic_of_a_pattern_is_left_at_once(pattern: ConsumerEngine) -> None:
    hear(pattern, "a1", "a2")
    leg_of(pattern, "a1").on_refused(NotFound(E_NOT_FOUND, "topic 'a1' does not exist"))
    assert (names(pattern), pattern.error) == (["a2"], None)
    hear(pattern, "a1", "a2")
    assert sorted(names(pattern)) == ["a1", "a2"]


def test_finishes_of_a_topic_that_was_left_count_as_missed(pattern: ConsumerEngine) -> None:
    hear(pattern, "a1", "a2")
    leg = leg_of(pattern, "a1")
    leg.session.unconfirmed = 3
    leg.session.stale_count = 2
    leg.on_refused(NotFound(E_NOT_FOUND, "topic 'a1' does not exist"))
    assert pattern.stale_count == 2
    steps = pattern.flush(1)
    next(steps)
    with pytest.raises(ZsqError, match="5 finishes"):
        steps.send(True)


@pytest.mark.parametrize(
    "error",
    [
        Refused(E_FORBIDDEN, "no"),
        Refused(E_CLOSED, "closed"),
        NotFound(E_NOT_FOUND, channel_missing("a1", "c")),
    ],
)
def test_a_topic_that_refuses_is_left_out_for_a_while(
    pattern: ConsumerEngine, error: ZsqError, caplog: pytest.LogCaptureFixture
) -> None:
    hear(pattern, "a1", "a2")
    leg_of(pattern, "a2").on_up(1)
    leg_of(pattern, "a1").on_refused(error)
    hear(pattern, "a1", "a2")
    assert (names(pattern), pattern.error) == (["a2"], None)
    assert caplog.text.count("topic a1 is left out") == 1


def test_a_pattern_that_no_topic_accepts_raises_the_refusal_and_tries_again(
    pattern: ConsumerEngine,
) -> None:
    hear(pattern, "a1")
    leg_of(pattern, "a1").on_refused(Refused(E_FORBIDDEN, "no"))
    with pytest.raises(Refused, match="topic 'a1': no"):
        pattern.raise_refused()
    hear(pattern, "a1")
    assert names(pattern) == ["a1"]


def test_a_broker_that_is_not_there_is_an_error_also_for_a_pattern(
    pattern: ConsumerEngine,
) -> None:
    hear(pattern, "a1")
    leg_of(pattern, "a1").on_refused(BrokerUnreachable(E_UNREACHABLE, "nothing listens"))
    with pytest.raises(BrokerUnreachable):
        pattern.raise_refused()
    assert names(pattern) == ["a1"]


def test_too_many_topics_are_an_error_at_first(pattern: ConsumerEngine) -> None:
    every = [f"a{number}" for number in range(TOPICS_MAX + 1)]
    choice = pattern.choice
    assert len(choice.matching(every)) == TOPICS_MAX + 1
    hear(pattern, *every)
    with pytest.raises(UsageError, match="1,001 topics"):
        pattern.raise_refused()


def test_the_list_is_asked_for_again_and_a_silent_link_is_opened_again(
    pattern: ConsumerEngine,
) -> None:
    hear(pattern, "a1")
    topics = list_of(pattern)
    restarts: list[str] = []
    link = cast("Any", topics.link)
    link.restart = lambda now_ns, why: restarts.append(why)
    topics.link.state = LinkState.UP
    assert topics.on_time(2) == 1 + LISTED_NS
    later_ns = 1 + LISTED_NS
    assert topics.on_time(later_ns) == later_ns + SILENT_NS
    assert topics.on_time(later_ns + SILENT_NS) == FAR_NS
    assert len(restarts) == 1
    topics.link.state = LinkState.IDLE


@pytest.mark.parametrize("answer", [{"topics": 7}, {}, {"topics": {7: ()}}, {"topics": [1]}])
def test_an_answer_of_another_form_is_refused(
    pattern: ConsumerEngine, answer: dict[str, Any]
) -> None:
    topics = list_of(pattern)
    cast("Any", topics.link).send = lambda frames, now_ns: None
    topics.on_up(1)
    with pytest.raises(UsageError, match="is no list of topics"):
        topics.on_word(Done(1, answer), [], 1)


def test_a_broker_without_a_cluster_is_not_asked_for_it_again(pattern: ConsumerEngine) -> None:
    topics = list_of(pattern)
    sent: list[Any] = []
    cast("Any", topics.link).send = lambda frames, now_ns: sent.append(frames)
    topics.on_up(1)
    topics.on_word(Done(1, {"topics": {"a1": ()}}), [], 1)
    topics.on_word(Failed(2, E_UNSUPPORTED, "no cluster"), [], 1)
    assert names(pattern) == ["a1"]
    topics.link.state = LinkState.UP
    topics.on_time(1 + LISTED_NS)
    topics.on_word(Done(3, {"topics": {"a1": (), "a2": ()}}), [], 1)
    assert (len(sent), sorted(names(pattern))) == (3, ["a1", "a2"])
    topics.link.state = LinkState.IDLE


def test_a_list_that_is_refused_is_raised_at_first_and_logged_later(
    pattern: ConsumerEngine, caplog: pytest.LogCaptureFixture
) -> None:
    topics = list_of(pattern)
    cast("Any", topics.link).send = lambda frames, now_ns: None
    topics.on_up(1)
    topics.on_word(Failed(1, E_FORBIDDEN, "no"), [], 1)
    with pytest.raises(Refused, match="no"):
        pattern.raise_refused()


# Choices


@pytest.mark.parametrize(
    ("choice", "caption"),
    [
        (topic_choice("t"), "t"),
        (topic_choice(["a", "b"]), "a,b"),
        (topic_choice("a*"), "a*"),
        (topic_choice([f"topic-{number}" for number in range(50)]), "topic-0 and 49 more topics"),
    ],
)
def test_a_caption_is_short(choice: TopicChoice, caption: str) -> None:
    assert choice.caption == caption
    assert topic_choice(choice.text.split(",") if choice.names else choice.text) == choice


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("*", "a", True),
        ("*", "a.dead", False),
        ("*.dead", "a.dead", True),
        ("*", "a#ephemeral", False),
        ("*#ephemeral", "a#ephemeral", True),
        ("*", "failed", False),
        ("a.*", "a", False),
        ("a.*", "a.", True),
    ],
)
def test_what_a_pattern_matches(pattern: str, name: str, *, matches: bool) -> None:
    choice = topic_choice(pattern, "failed")
    assert (choice.matching([name]) == [name]) is matches


def test_a_choice_of_names_matches_none() -> None:
    assert topic_choice("a").matching(["a"]) == []


def test_what_was_finished_before_and_came_back_is_finished_at_once(
    several: ConsumerEngine,
) -> None:
    """With a credit of one, each of such messages would else wait for a timer."""
    leg, sent = several.legs[0], []
    link = cast("Any", leg.link)
    link.send = lambda frames, now_ns: sent.append(frames)
    leg.link.state = LinkState.UP
    leg.session.words.append(Fin(0, 7, ()))
    leg.on_received(1)
    assert len(sent) == 1
    leg.link.state = LinkState.IDLE
