"""Tests of docs/lifetimes.md: each case of its two tables, at the in-memory broker and at a real
one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from support.broker import wait_for

import zsq
from zsq.testing import MemoryBroker, Namespace

DOCS: Final = Path(__file__).parents[3] / "docs" / "lifetimes.md"
WAIT_S: Final = 20.0
LIFE_S: Final = 60.0


class World:
    """A topic with a channel, whose messages all have the same lifetime and revoke key."""

    def __init__(self, space: Namespace) -> None:
        self.space = space
        self.topic = space.topic("t")
        self.admin = space.admin()
        self._ends = 0

    def channel(self, name: str = "c", **settings: Any) -> None:
        self.admin.create_channel(self.topic, name, **settings)

    def publish(self, *bodies: bytes, **options: Any) -> None:
        for body in bodies:
            self.space.publish("t", body, **options)

    def consumer(self, channel: str = "c", **options: Any) -> zsq.Consumer:
        return self.space.consumer("t", channel, message_timeout=3600, **options)

    def left(self) -> int:
        """Return how many messages the channel has not finished."""
        broker = self.space.broker
        if isinstance(broker, MemoryBroker):
            return broker.unfinished(self.topic, "c")
        return self.admin.unfinished(self.topic, "c")

    def expire(self) -> None:
        self.space.advance(LIFE_S + 1)

    def revoke(self, key: str = "k") -> int:
        return int(self.admin.revoke(self.topic, key)["delayed"])

    def rest(self, consumer: zsq.Consumer | None = None, channel: str = "c") -> list[bytes]:
        """Publish a last message, and return the bodies that come before it."""
        self._ends += 1
        end = b"end %d" % self._ends
        self.publish(end)
        consumer = consumer or self.consumer(channel)
        bodies: list[bytes] = []
        while end not in bodies:
            message = receive(consumer)
            bodies.append(message.body)
            message.finish()
        consumer.flush()
        assert consumer.receive(0.05) is None
        return [body for body in bodies if not body.startswith(b"end")]


def receive(consumer: zsq.Consumer) -> zsq.Message:
    message = consumer.receive(WAIT_S)
    assert message is not None
    return message


# Expiry


def expires_waiting(world: World) -> None:
    world.channel()
    world.publish(b"a", expires_in=LIFE_S)
    world.publish(b"b", expires_in=2 * LIFE_S)
    world.expire()
    assert world.rest() == [b"b"]


def expires_requeued(world: World) -> None:
    world.channel()
    world.publish(b"a", expires_in=LIFE_S)
    consumer = world.consumer(ready=1)
    message = receive(consumer)
    world.expire()
    message.requeue()
    assert world.rest(consumer) == []


def expires_deferred(world: World) -> None:
    world.channel()
    world.publish(b"a", expires_in=LIFE_S)
    consumer = world.consumer(ready=1)
    receive(consumer).requeue(2 * LIFE_S)
    consumer.flush()
    world.space.advance(2 * LIFE_S + 1)
    assert world.rest(consumer) == []


def expires_behind_its_key(world: World) -> None:
    world.channel(ordered=True)
    world.publish(b"first", key="x")
    world.publish(b"a", key="x", expires_in=LIFE_S)
    world.publish(b"last", key="x")
    consumer = world.consumer(ready=1)
    message = receive(consumer)
    world.expire()
    message.finish()
    assert receive(consumer).body == b"last"


def expires_with_priorities(world: World) -> None:
    world.channel(priorities=3)
    world.publish(b"a", expires_in=LIFE_S, headers={"zsq-priority": 2})
    world.publish(b"b", headers={"zsq-priority": 1})
    world.expire()
    assert world.rest() == [b"b"]


def expires_delayed(world: World) -> None:
    world.channel()
    world.publish(b"a", delay=LIFE_S, expires_in=LIFE_S + 20)
    world.publish(b"b", delay=LIFE_S, expires_in=3 * LIFE_S)
    world.expire()
    world.space.advance(30)
    assert world.rest() == [b"b"]


def expires_due_late(world: World) -> None:
    world.channel()
    world.publish(b"a", delay=10, expires_in=20)
    world.publish(b"b", delay=10, expires_in=500)
    world.space.advance(100)
    consumer = world.consumer(ready=1)
    message = receive(consumer)
    assert message.body == b"b"
    assert 395_000 <= int(str(message.headers["zsq-expires-ms"])) <= 401_000
    message.finish()
    assert world.rest(consumer) == []


def expires_to_dead_letters(world: World) -> None:
    dead = world.space.topic("dead")
    world.channel(dead_letter_expired=True, dead_letter_topic=dead)
    world.publish(b"a", expires_in=LIFE_S)
    world.publish(b"b")
    world.publish(b"c", expires_in=LIFE_S, headers={"own": 1})
    world.expire()
    consumer = world.consumer()
    assert world.rest(consumer) == [b"b"]
    letters = world.space.consumer("dead", "look")
    found = [receive(letters), receive(letters)]
    assert [letter.body for letter in found] == [b"a", b"c"]
    assert found[1].headers["zsq-dead-reason"] == "expired"
    assert found[1].headers["own"] == 1
    assert "zsq-expires-ms" not in found[1].headers


def expires_with_a_handler(world: World) -> None:
    world.channel()
    world.publish(b"a", expires_in=LIFE_S)
    consumer = world.consumer(ready=1)
    message = receive(consumer)
    world.expire()
    message.finish(sync=True)
    assert not message.cancelled
    assert world.rest(consumer) == []


def expires_held(world: World) -> None:
    world.channel()
    lives = {"zsq-expires-ms": 1_000}
    world.space.producer().publish_many(world.topic, [b"first", b"a"], headers=[None, lives])
    world.publish(b"b", expires_in=1)
    world.publish(b"c")
    consumer = world.consumer(ready=10)
    message = receive(consumer)
    world.space.advance(1)
    wait_for(lambda: world.left() == 2, WAIT_S, "the end of two messages")
    message.finish()
    assert world.rest(consumer) == [b"c"]


def expires_again_after_a_seek(world: World) -> None:
    world.channel()
    world.publish(b"a", expires_in=LIFE_S)
    consumer = world.consumer()
    receive(consumer).finish()
    consumer.flush()
    world.expire()
    world.admin.seek(world.topic, "c", "earliest")
    assert world.rest(consumer) == []


def expires_by_the_topic(world: World) -> None:
    world.admin.create_topic(world.topic, expires_s=LIFE_S)
    world.channel()
    world.channel("d", max_age_s=LIFE_S / 2)
    world.publish(b"a")
    world.publish(b"b", expires_in=3 * LIFE_S)
    world.publish(b"c", delay=LIFE_S / 2)
    world.space.advance(LIFE_S / 2 + 1)
    assert world.rest(channel="d") == [b"c"]
    world.space.advance(LIFE_S / 2)
    assert world.rest() == [b"b", b"c"]


# Cancelling


def cancel_for_one(world: World) -> None:
    world.channel("c")
    world.channel("d")
    world.publish(b"a", b"b")
    assert world.admin.cancel(world.topic, [0], channel="c") == {"c": [0]}
    assert world.rest() == [b"b"]
    assert world.rest(channel="d") == [b"a", b"b"]


def cancel_for_all(world: World) -> None:
    world.channel("c")
    world.channel("d")
    world.publish(b"a", b"b")
    assert world.admin.cancel(world.topic, [0]) == {"c": [0], "d": [0]}
    assert world.rest() == [b"b"]


def revoke_waiting(world: World) -> None:
    world.channel("c")
    world.channel("d", priorities=2)
    world.publish(b"a", b"b", revoke_key="k")
    world.publish(b"c", revoke_key="other")
    assert world.revoke() == 0
    assert world.rest() == [b"c"]
    assert world.rest(channel="d") == [b"c"]


def revoke_requeued(world: World) -> None:
    world.channel()
    world.publish(b"a", revoke_key="k")
    consumer = world.consumer(ready=1)
    message = receive(consumer)
    world.revoke()
    message.requeue()
    assert world.rest(consumer) == []


def revoke_deferred(world: World) -> None:
    world.channel()
    world.publish(b"a", revoke_key="k")
    consumer = world.consumer(ready=1)
    receive(consumer).requeue(30)
    consumer.flush()
    world.revoke()
    world.space.advance(31)
    assert world.rest(consumer) == []


def revoke_behind_its_key(world: World) -> None:
    world.channel(ordered=True)
    world.publish(b"first", key="x")
    world.publish(b"a", key="x", revoke_key="k")
    world.publish(b"last", key="x")
    consumer = world.consumer(ready=1)
    message = receive(consumer)
    world.revoke()
    message.finish()
    assert receive(consumer).body == b"last"


def revoke_delayed(world: World) -> None:
    world.channel()
    world.publish(b"a", b"b", delay=30, revoke_key="k")
    world.publish(b"c", delay=30, revoke_key="other")
    assert world.revoke() == 2
    assert world.admin.delayed_count(world.topic)["messages"] == 1
    world.space.advance(31)
    assert world.rest() == [b"c"]


def revoke_then_publish(world: World) -> None:
    world.channel()
    world.publish(b"a", revoke_key="k")
    world.revoke()
    world.publish(b"b", revoke_key="k")
    assert world.rest() == [b"b"]


def cancel_held(world: World) -> None:
    world.channel()
    keys = [{"zsq-revoke-key": "k"}] * 2
    bodies = [b"first", b"a", b"b", b"c"]
    world.space.producer().publish_many(world.topic, bodies, headers=[*keys, None, None])
    world.publish(b"d", revoke_key="k")
    consumer = world.consumer(ready=10)
    message = receive(consumer)
    world.revoke()
    world.admin.cancel(world.topic, [2])
    wait_for(lambda: message.cancelled and world.left() == 2, WAIT_S, "the end of the others")
    message.finish()
    assert world.rest(consumer) == [b"c"]


def revoke_begun(world: World) -> None:
    world.channel()
    world.publish(b"a", b"b", revoke_key="k")
    consumer = world.consumer(ready=2)
    one, other = receive(consumer), receive(consumer)
    assert not one.cancelled
    world.revoke()
    wait_for(lambda: one.cancelled and other.cancelled, WAIT_S, "the word of the channel")
    one.requeue()
    other.finish(sync=True)
    assert world.rest(consumer) == []


def cancel_begun(world: World) -> None:
    world.channel()
    world.publish(b"a", b"b", b"c")
    consumer = world.consumer(ready=3)
    one, two, three = receive(consumer), receive(consumer), receive(consumer)
    world.admin.cancel(world.topic, [0, 1, 2])
    wait_for(lambda: one.cancelled and two.cancelled and three.cancelled, WAIT_S, "the word")
    one.requeue()
    two.finish(sync=True)
    three.reject()
    assert world.rest(consumer) == []
    assert consumer.stale_count == 0


def cancel_dying(world: World) -> None:
    dead = world.space.topic("dead")
    world.channel(dead_letter_topic=dead)
    world.publish(b"a", revoke_key="k")
    consumer = world.consumer(ready=1)
    receive(consumer).reject("no")
    consumer.flush()
    world.revoke()
    assert receive(world.space.consumer("dead", "look")).body == b"a"


def revoke_dead_letter(world: World) -> None:
    dead = world.space.topic("dead")
    world.channel(dead_letter_topic=dead)
    world.publish(b"a", revoke_key="k")
    world.publish(b"b")
    letters = world.space.consumer("dead", "look", ready=1)
    letters.subscribe()
    consumer = world.consumer(ready=2)
    for _ in range(2):
        receive(consumer).reject("no")
    consumer.flush()
    letter = receive(letters)
    world.admin.revoke(dead, "k")
    letter.requeue()
    last = receive(letters)
    assert last.body == b"b"
    last.finish()
    assert letters.receive(0.1) is None


def revoke_before_a_channel(world: World) -> None:
    world.channel("c")
    world.publish(b"a", revoke_key="k")
    world.revoke()
    world.channel("d", start="earliest")
    assert world.rest(channel="d") == [b"a"]


def revoke_and_seek(world: World) -> None:
    world.channel()
    world.publish(b"a", revoke_key="k")
    world.revoke()
    consumer = world.consumer()
    assert world.rest(consumer) == []
    world.admin.seek(world.topic, "c", "earliest")
    assert receive(consumer).body == b"a"


def revoke_without_channels(world: World) -> None:
    world.publish(b"a", revoke_key="k")
    with pytest.raises(zsq.NotFound, match="has no channel"):
        world.revoke()


EXPIRY: Final[dict[str, Callable[[World], None] | None]] = {
    "waits": expires_waiting,
    "is requeued": expires_requeued,
    "is deferred": expires_deferred,
    "waits behind others of its key": expires_behind_its_key,
    "waits in a channel with priorities": expires_with_priorities,
    "is delayed": expires_delayed,
    "becomes due late": expires_due_late,
    "expires in a channel with dead letters": expires_to_dead_letters,
    "is with a handler": expires_with_a_handler,
    "is with a consumer, and no handler has begun it": expires_held,
    "was delivered before, and comes again after a seek": expires_again_after_a_seek,
    "has no lifetime, in a topic with one": expires_by_the_topic,
    "is published over NSQ or as a Spark row": None,  # nothing happens
}
CANCELLING: Final[dict[str, Callable[[World], None]]] = {
    "waits, by offset, for one channel": cancel_for_one,
    "waits, by offset, for all channels": cancel_for_all,
    "waits, by key": revoke_waiting,
    "is requeued, by key": revoke_requeued,
    "is deferred, by key": revoke_deferred,
    "waits behind others of its key, by key": revoke_behind_its_key,
    "is delayed, by key": revoke_delayed,
    "is published later with the key": revoke_then_publish,
    "is with a consumer, and no handler has begun it": cancel_held,
    "is with a handler, by key": revoke_begun,
    "is with a handler, by offset": cancel_begun,
    "is on its way to the dead letters": cancel_dying,
    "is a dead letter, by key in its topic": revoke_dead_letter,
    "came before a channel was created": revoke_before_a_channel,
    "was cancelled, and comes again after a seek": revoke_and_seek,
    "is in a topic without channels, by key": revoke_without_channels,
}
CASES: Final = [case for case in (*EXPIRY.values(), *CANCELLING.values()) if case is not None]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_case_of_the_documentation(space: Namespace, case: Callable[[World], None]) -> None:
    case(World(space))


def test_a_batch_has_no_message_that_was_cancelled_before_it_was_taken(space: Namespace) -> None:
    world = World(space)
    world.channel()
    world.publish(b"first", revoke_key="k")
    keys = [{"zsq-revoke-key": "k"}, None]
    world.space.producer().publish_many(world.topic, [b"a", b"b"], headers=keys)
    consumer = world.consumer(ready=10)
    message = receive(consumer)
    world.revoke()
    wait_for(lambda: message.cancelled, WAIT_S, "the word of the channel")
    message.finish()
    batch = consumer.receive_batch(WAIT_S)
    assert batch is not None
    assert (batch.bodies, batch.attempts) == ([b"b"], [1])
    batch.finish()


@pytest.mark.parametrize(
    ("title", "cases"),
    [("expiry of a message that", EXPIRY), ("cancelling a message that", CANCELLING)],
)
def test_the_documentation_has_these_cases(title: str, cases: dict[str, object]) -> None:
    table = DOCS.read_text().split(f"| {title} | what happens |\n|---|---|\n")[1]
    rows = re.findall(r"^\| (.+?) \|", table.split("\n\n")[0], re.MULTILINE)
    assert rows == list(cases)
