"""What the fixture of a data directory holds, topic by topic: each subject has a function that
makes it at a broker, and one that checks it at a later version.

`make_fixtures.py` calls the first ones and stores what they return. `test_older.py` calls the
second ones with that. They use the public API, except where only the wire shows what is stored.

The clock of the broker that opens a fixture says that a minute has passed since it was made
(`opened.py`). So nothing becomes due or too old, in whichever year the tests run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

import pytest
import zmq
from support.broker import Broker, wait_for

import zsq
from zsq.transport.block.block import pack
from zsq.transport.client.blocking.stage_writer import StageCommitter, StageWriter
from zsq.transport.errors import E_CLOSED, Refused
from zsq.transport.wire import protocol
from zsq.transport.wire.codec import block_frames, decode, encode

Facts = Any  # what a function of a fixture returns: anything that JSON can represent

DAY_S: Final = 86_400.0
FAR_S: Final = 100 * DAY_S
MESSAGES: Final = 3_000
IDS: Final = 4_200  # more than the first file of ids takes
MIB: Final = 1 << 20
PRODUCER: Final = 77
TOKEN: Final = "fixture"
WAIT_S: Final = 20.0


class Subject(NamedTuple):
    """Its name, which is that of its topic, too. `late`: it needs the large log files of the second
    run.
    """

    name: str
    make: Callable[[Broker], Facts]
    check: Callable[[Broker, Facts], None]
    late: bool = False


def received(consumer: zsq.Consumer, count: int) -> Iterator[zsq.Message]:
    """Yield so many messages."""
    for number in range(count):
        message = consumer.receive(WAIT_S)
        assert message is not None, f"{number} messages of {count} came, and then none"
        yield message


def finish_all(consumer: zsq.Consumer, count: int) -> list[bytes]:
    """Receive and finish so many messages. Return their bodies."""
    bodies = []
    for message in received(consumer, count):
        bodies.append(message.body)
        message.finish()
    consumer.flush()
    return bodies


def bodies_of(broker: Broker, topic: str) -> list[bytes]:
    with zsq.Reader(topic, url=broker.ipc) as reader:
        found: list[bytes] = []
        offset, end = reader.bounds()
        while offset < end:
            fetched = reader.read(offset)
            found += [
                bytes(body or b"") for block in fetched.blocks for body in block.body.values()
            ]
            offset = fetched.next_offset
        return found


def digest_of(bodies: Sequence[bytes]) -> str:
    return hashlib.sha256(b"\n".join(bodies)).hexdigest()


def topic_row(broker: Broker, topic: str) -> dict[str, Any]:
    with zsq.Admin(broker.ipc) as admin:
        return dict(admin.stats(topic)["topics"][0])


def channel_row(broker: Broker, topic: str, channel: str) -> dict[str, Any]:
    rows = topic_row(broker, topic)["channels"]
    return dict(next(row for row in rows if row["channel_name"] == channel))


def _make(topic: str, **settings: Any) -> Callable[[Broker], None]:
    """Return a function that creates the topic."""

    def make(broker: Broker) -> None:
        with zsq.Admin(broker.ipc) as admin:
            admin.create_topic(topic, **settings)

    return make


# A log of several files, with keys, tags and headers, and a channel in the middle of it.


def _log_bodies() -> list[bytes]:
    return [b"message %d " % number + b"x" * (number % 60) for number in range(MESSAGES)]


def make_log(broker: Broker) -> Facts:
    every = _log_bodies()
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_topic("log")
        admin.create_channel("log", "work", start="earliest")
        for begin in range(0, MESSAGES, 100):
            part = range(begin, begin + 100)
            producer.publish_many(
                "log",
                every[begin : begin + 100],
                keys=[b"k%d" % (number % 7) for number in part],
                tags=["even" if number % 2 == 0 else None for number in part],
            )
        producer.publish("log", b"with headers", headers={"trace": b"\x00\xff", "n": 7})
        producer.publish("log", b"for others", headers={"zsq-channel": "elsewhere"})
        assert len(admin.chunks("log")["chunks"]) > 2
    finished: list[int] = []
    requeued: list[int] = []
    with zsq.Consumer("log", "work", url=broker.ipc, ready=2_500) as consumer:
        for message in received(consumer, MESSAGES // 2):
            if message.offset % 3 == 0:
                message.finish()
                finished.append(message.offset)
            elif message.offset % 100 == 1:
                message.requeue(FAR_S)
                requeued.append(message.offset)
        consumer.flush()
    return {"finished": finished, "requeued": requeued}


def check_log(broker: Broker, facts: Facts) -> None:
    every = _log_bodies()
    assert digest_of(bodies_of(broker, "log")[:MESSAGES]) == digest_of(every)
    with zsq.Reader("log", url=broker.ipc) as reader:
        assert reader.bounds() == (0, MESSAGES + 2)
        stored = [reader.message(offset) for offset in (0, 1, MESSAGES)]
    assert [(one.key, one.tag) for one in stored] == [(b"k0", "even"), (b"k1", None), (None, None)]
    assert stored[-1].headers == {"trace": b"\x00\xff", "n": 7}
    gone = {*facts["finished"], *facts["requeued"]}
    left = set(range(MESSAGES + 1)) - gone
    with zsq.Consumer("log", "work", url=broker.ipc, ready=2_500) as consumer:
        found = set()
        for message in received(consumer, len(left)):
            found.add(message.offset)
            message.finish()
        consumer.flush()
    assert found == left, "the message for another channel, and what is finished, does not come"
    assert channel_row(broker, "log", "work")["deferred_count"] == len(facts["requeued"])


# Channels: ordered, with priorities, fair, limited, and with messages that are put off.


def make_ordered(broker: Broker) -> Facts:
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_channel("ordered", "strict", ordered=True)
        keys = [b"%d" % (number % 5) for number in range(20)]
        producer.publish_many("ordered", [b"%d" % number for number in range(20)], keys=keys)
    with zsq.Consumer("ordered", "strict", url=broker.ipc, ready=1, ordered=True) as consumer:
        for message in received(consumer, 5):
            if message.key == b"0":
                message.requeue(FAR_S)
            else:
                message.finish(sync=True)
    return None


def check_ordered(broker: Broker, facts: Facts) -> None:
    with zsq.Consumer("ordered", "strict", url=broker.ipc, ordered=True) as consumer:
        numbers = [int(body) for body in finish_all(consumer, 12)]
    assert sorted(numbers) == [number for number in range(5, 20) if number % 5]
    for key in range(1, 5):
        of_key = [number for number in numbers if number % 5 == key]
        assert of_key == sorted(of_key)
    with zsq.Admin(broker.ipc) as admin:
        assert admin.unfinished("ordered", "strict") == 4, "the key that waits for its first one"


def make_urgent(broker: Broker) -> Facts:
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_channel("urgent", "levels", priorities=3)
        for number in range(30):
            producer.publish("urgent", b"%d" % number, headers={"zsq-priority": number % 3})
    with zsq.Consumer("urgent", "levels", url=broker.ipc, ready=1, priorities=3) as consumer:
        return [int(body) for body in finish_all(consumer, 3)]


def check_urgent(broker: Broker, facts: Facts) -> None:
    left = [number for number in range(30) if number not in facts]
    with zsq.Consumer("urgent", "levels", url=broker.ipc, ready=1, priorities=3) as consumer:
        numbers = [int(body) for body in finish_all(consumer, len(left))]
    for level in range(3):  # the first deliveries need not wait until all of the backlog is read
        assert [number for number in numbers if number % 3 == level] == [
            number for number in left if number % 3 == level
        ]


def make_fair(broker: Broker) -> Facts:
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_channel(
            "fair",
            "turns",
            fair_by="key",
            fair_weights="0=2",
            max_in_flight_per_key=2,
            max_rate_per_key=1_000.0,
        )
        for key in range(10):
            bodies = [b"%d-%d" % (key, number) for number in range(20)]
            producer.publish_many("fair", bodies, key=b"%d" % key)
    with zsq.Consumer("fair", "turns", url=broker.ipc, ready=1) as consumer:
        return sorted(body.decode() for body in finish_all(consumer, 30))


def check_fair(broker: Broker, facts: Facts) -> None:
    with zsq.Consumer("fair", "turns", url=broker.ipc, ready=1) as consumer:
        bodies = [body.decode() for body in finish_all(consumer, 170)]
    every = [f"{key}-{number}" for key in range(10) for number in range(20)]
    assert sorted([*bodies, *facts]) == sorted(every)
    assert len({body.split("-")[0] for body in bodies[:40]}) == 10, "each key has its turn"


def make_limited(broker: Broker) -> Facts:
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_channel("limited", "slow", max_rate=10 / DAY_S, max_rate_burst=10)
        producer.publish_many("limited", [b"%d" % number for number in range(20)])
    with zsq.Consumer("limited", "slow", url=broker.ipc) as consumer:
        finish_all(consumer, 5)
    return None


def check_limited(broker: Broker, facts: Facts) -> None:
    with zsq.Consumer("limited", "slow", url=broker.ipc) as consumer:
        assert finish_all(consumer, 5) == [b"%d" % number for number in range(5, 10)]
        assert consumer.receive(0.5) is None, "half of the burst was used before"


def make_put_off(broker: Broker) -> Facts:
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_channel(
            "put-off", "again", max_attempts=9, backoff_curve="30d,60d", backoff_jitter=10
        )
        admin.create_channel(
            "put-off", "curved", backoff_s=5.0, backoff_max_s=50.0, backoff_curve="linear"
        )
        producer.publish_many("put-off", [b"%d" % number for number in range(5)])
        with zsq.Consumer("put-off", "again", url=broker.ipc) as consumer:
            messages = [*received(consumer, 5)]
            messages[0].requeue(FAR_S)
            messages[1].defer(FAR_S)
            messages[2].requeue(backoff=True)
            messages[3].requeue()
            messages[4].requeue()
            consumer.flush()
        wait_for(lambda: channel_row(broker, "put-off", "again")["deferred_count"] == 3)
        wait_for(lambda: channel_row(broker, "put-off", "again")["requeue_count"] == 4)
    return _put_off(broker)


def _put_off(broker: Broker) -> list[list[int]]:
    with zsq.Admin(broker.ipc) as admin:
        peek = admin.peek("put-off", "again")
    return [
        [one.offset, one.attempts, one.due_ns] for one in peek.messages if one.state == "deferred"
    ]


def check_put_off(broker: Broker, facts: Facts) -> None:
    assert _put_off(broker) == facts
    with zsq.Consumer("put-off", "again", url=broker.ipc) as consumer:
        for message in received(consumer, 2):
            assert (message.offset in (3, 4), message.attempts) == (True, 2)
            message.finish(sync=True)


HANDLER: Final[dict[str, Any]] = {}
exec(
    compile(
        "def handle(attempts):\n    raise ValueError(f'attempt {attempts}')\n", "handler.py", "exec"
    ),
    HANDLER,
)


def make_dead(broker: Broker) -> Facts:
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_channel(
            "dead", "work", max_attempts=2, backoff_s=0.0, dead_letter_expired=True
        )
        producer.publish_many("dead", [b"rejected", b"tried"], keys=[b"r", b"t"])
        with zsq.Consumer("dead", "work", url=broker.ipc) as consumer:
            for message in received(consumer, 3):
                try:
                    HANDLER["handle"](message.attempts)
                except ValueError as error:
                    # Without this frame, which would name the folder of whoever makes the fixture.
                    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                    if message.body == b"rejected":
                        message.reject(error)
                    else:
                        message.requeue(error=error)
                consumer.flush()
        wait_for(lambda: len(admin.topics().get("dead.work.dead", "no")) == 0)
        wait_for(lambda: topic_row(broker, "dead.work.dead")["message_count"] == 2)
    return _letters(broker)


def _letters(broker: Broker) -> list[list[str]]:
    with zsq.Reader("dead.work.dead", url=broker.ipc) as reader:
        letters = [reader.message(offset) for offset in range(*reader.bounds())]
    return [[one.body.decode(), repr(sorted(one.headers.items()))] for one in letters]


def check_dead(broker: Broker, facts: Facts) -> None:
    assert _letters(broker) == facts
    assert sorted(body for body, _ in facts) == ["rejected", "tried"]
    assert all("Traceback" in headers for _, headers in facts)


def make_sought(broker: Broker) -> Facts:
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_channel("sought", "back", start="earliest")
        admin.create_channel("sought", "skipped", start="earliest")
        producer.publish_many("sought", [b"%d" % number for number in range(10)])
        with zsq.Consumer("sought", "back", url=broker.ipc) as consumer:
            finish_all(consumer, 10)
        admin.seek("sought", "back", 4)
        return admin.skip("sought", "skipped", [0, 2])


def check_sought(broker: Broker, facts: Facts) -> None:
    assert facts == [0, 2]
    with zsq.Consumer("sought", "back", url=broker.ipc) as consumer:
        assert finish_all(consumer, 6) == [b"%d" % number for number in range(4, 10)]
    with zsq.Consumer("sought", "skipped", url=broker.ipc) as consumer:
        assert finish_all(consumer, 8) == [b"%d" % number for number in (1, *range(3, 10))]


# Delayed messages, ids, keys, lifetimes.


def make_delayed(broker: Broker) -> Facts:
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_topic("delayed")
        receipts = [
            producer.publish("delayed", b"later %d" % number, key="k", delay=FAR_S + number)
            for number in range(20)
        ]
        cancelled = receipts[7].delayed_key
        assert cancelled is not None
        assert admin.delayed_cancel("delayed", [cancelled]) == [True]
        return [
            [one["delayed_key"], one["body"].decode(), one["due_ns"]]
            for one in admin.delayed_list("delayed")
        ]


def check_delayed(broker: Broker, facts: Facts) -> None:
    with zsq.Admin(broker.ipc) as admin:
        rows = [
            [one["delayed_key"], one["body"].decode(), one["due_ns"]]
            for one in admin.delayed_list("delayed")
        ]
        assert rows == facts
        count = admin.delayed_count("delayed")
    assert (count["messages"], count["lost"]) == (19, 0)


def make_ids(broker: Broker) -> Facts:
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_topic("ids", dedupe_window_s=7 * DAY_S)
        for begin in range(0, IDS, 600):
            ids = [f"id-{number}" for number in range(begin, begin + 600)]
            producer.publish_many("ids", [b"x"] * 600, dedupe_ids=ids)
        producer.publish("ids", b"later", dedupe_id="later", delay=FAR_S)
    folder = broker.data_dir / "topics"
    wait_for(lambda: [*folder.glob("*/ids/*.table")], what="the table of a full file of ids")
    wait_for(lambda: len([*folder.glob("*/ids/*.ids")]) == 2, what="the next file of ids")
    return None


def check_ids(broker: Broker, facts: Facts) -> None:
    with zsq.Producer(broker.ipc) as producer:
        again = [
            producer.publish("ids", b"again", dedupe_id=one)
            for one in ("id-0", f"id-{IDS - 1}", "later", "new")
        ]
    assert [(one.duplicate, one.offset) for one in again] == [
        (True, 0),
        (True, IDS - 1),
        (True, -1),
        (False, IDS),
    ]


def make_unique(broker: Broker) -> Facts:
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_channel("unique", "work")
        producer.publish("unique", b"1", unique_key="begun", unique="while-working")
        with zsq.Consumer("unique", "work", url=broker.ipc) as consumer:
            for message in received(consumer, 1):
                message.requeue(FAR_S)
            consumer.flush()
        producer.publish("unique", b"2", unique_key="waits", unique="while-waiting")
        wait_for(lambda: channel_row(broker, "unique", "work")["deferred_count"] == 1)
    return None


def check_unique(broker: Broker, facts: Facts) -> None:
    with zsq.Producer(broker.ipc) as producer:
        for key, unique, duplicate in (
            ("waits", "while-waiting", True),
            ("begun", "while-working", True),
            ("begun", "while-waiting", False),
        ):
            receipt = producer.publish("unique", b"again", unique_key=key, unique=unique)
            assert receipt.duplicate is duplicate, (key, unique)


def make_revoked(broker: Broker) -> Facts:
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_channel("revoked", "work")
        for number in range(6):
            producer.publish("revoked", b"%d" % number, revoke_key="ab"[number % 2])
        producer.publish("revoked", b"later", revoke_key="a", delay=FAR_S)
        assert admin.revoke("revoked", ["a"]) == {"delayed": 1}
    return None


def check_revoked(broker: Broker, facts: Facts) -> None:
    with zsq.Consumer("revoked", "work", url=broker.ipc) as consumer:
        assert finish_all(consumer, 3) == [b"1", b"3", b"5"]
    wait_for(lambda: channel_row(broker, "revoked", "work")["cancelled_count"] == 3)


def make_expiring(broker: Broker) -> Facts:
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_topic("expiring", expires_s=300 * DAY_S)
        admin.create_channel("expiring", "work")
        producer.publish("expiring", b"short", expires_in=1)
        producer.publish("expiring", b"long", expires_in=2 * FAR_S)
        producer.publish("expiring", b"as the topic says")
    return None


def check_expiring(broker: Broker, facts: Facts) -> None:
    assert topic_row(broker, "expiring")["settings"]["expires_s"] == 300 * DAY_S
    with zsq.Consumer("expiring", "work", url=broker.ipc) as consumer:
        assert finish_all(consumer, 2) == [b"long", b"as the topic says"]
    wait_for(lambda: channel_row(broker, "expiring", "work")["expired_count"] == 1)


# Producers, and transactions.


@contextlib.contextmanager
def _raw(broker: Broker, topic: str) -> Iterator[Callable[..., protocol.Wire]]:
    """Give a function that sends one message of the wire, and returns the answer."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(broker.tcp)

        def ask(message: protocol.Wire, *frames: Any) -> protocol.Wire:
            socket.send_multipart([b"", encode(message), *frames])
            assert socket.poll(30_000), "no answer"
            return decode(socket.recv_multipart()[1])

        ask(protocol.Open(1, "topic", topic, "", True))
        welcome = ask(protocol.Hello(protocol.PROTOCOL_VERSION, PRODUCER, 10_000))
        assert isinstance(welcome, protocol.Welcome)
        yield ask


def _publish_raw(broker: Broker, sequences: Sequence[int]) -> list[protocol.Wire]:
    with _raw(broker, "producers") as ask:
        blocks = [pack([b"%d" % one], producer_id=PRODUCER, sequence=one) for one in sequences]
        return [ask(protocol.Pub(), *block_frames([block])) for block in blocks]


def make_producers(broker: Broker) -> Facts:
    _make("producers")(broker)
    stored = [protocol.Stored(((number, number),)) for number in range(3)]
    assert _publish_raw(broker, range(3)) == stored
    return None


def check_producers(broker: Broker, facts: Facts) -> None:
    stored = [protocol.Stored(((number, number),)) for number in range(4)]
    assert _publish_raw(broker, [1, 2, 3]) == stored[1:], "the first two were stored before"
    assert bodies_of(broker, "producers") == [b"0", b"1", b"2", b"3"]


def make_staged(broker: Broker) -> Facts:
    _make("staged")(broker)
    parts = []
    for version in (1, 2):
        with StageWriter("staged", "app", version, url=broker.ipc) as writer:
            writer.write([b"%d-%d" % (version, number) for number in range(100)])
            parts.append(writer.seal())
    with StageCommitter("staged", url=broker.ipc) as committer:
        committer.commit("app", 1, parts[:1])
    stage, *numbers = parts[1] or (b"",)
    return [stage.hex(), *numbers]


def check_staged(broker: Broker, facts: Facts) -> None:
    stage, blocks, messages, size, checksum = facts
    part = (bytes.fromhex(stage), blocks, messages, size, checksum)
    with StageCommitter("staged", url=broker.ipc) as committer:
        assert committer.version_of("app") == 1
        assert committer.commit("app", 1, [])["repeated"]
        assert committer.commit("app", 2, [part])["first_offset"] == 100
    wanted = [b"%d-%d" % (version, number) for version in (1, 2) for number in range(100)]
    assert bodies_of(broker, "staged") == wanted


def make_adopted(broker: Broker) -> Facts:
    _make("adopted")(broker)
    with StageWriter("adopted", "app", 1, url=broker.ipc) as writer:
        for letter in b"abcde":
            writer.write([bytes([letter]) * MIB])
        part = writer.seal()
    with StageCommitter("adopted", url=broker.ipc) as committer:
        committer.commit("app", 1, [part])
    with zsq.Admin(broker.ipc) as admin:
        return [chunk["state"] for chunk in admin.chunks("adopted")["chunks"]]


def check_adopted(broker: Broker, facts: Facts) -> None:
    assert "adopted" in facts
    bodies = bodies_of(broker, "adopted")
    assert [(body[0], len(body)) for body in bodies] == [(letter, MIB) for letter in b"abcde"]


# Topics: paused, closed, created again, ephemeral, with parts, with schedules.


def make_quiet(broker: Broker) -> Facts:
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_topic("quiet", keep_time_s=3_600.0, max_bytes=16 * MIB, sync="interval")
        admin.create_channel("quiet", "paused", max_age_s=300 * DAY_S)
        producer.publish_many("quiet", [b"a", b"b", b"c"])
        admin.pause("quiet", "paused")
        admin.create_topic("halted")
        admin.create_channel("halted", "work")
        admin.pause("halted")
        producer.publish("halted", b"waits")
        admin.create_topic("closed")
        admin.close_topic("closed")
        admin.alarm_ack("quiet", seconds=FAR_S)
    return None


def check_quiet(broker: Broker, facts: Facts) -> None:
    row = topic_row(broker, "quiet")
    assert (row["settings"]["keep_time_s"], row["settings"]["max_bytes"]) == (3_600.0, 16 * MIB)
    assert row["sync"] == "interval"
    assert channel_row(broker, "quiet", "paused")["paused"]
    assert channel_row(broker, "quiet", "paused")["depth"] == 3
    assert topic_row(broker, "halted")["paused"]
    assert channel_row(broker, "halted", "work")["depth"] == 0
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        with pytest.raises(Refused, match=E_CLOSED):
            producer.publish("closed", b"x")
        admin.unpause("halted")
        with zsq.Consumer("halted", "work", url=broker.ipc) as consumer:
            assert finish_all(consumer, 1) == [b"waits"]
        assert admin.alarm_unack("quiet") == {"count": 1}, "the alarms were silenced"
        actions = {entry["action"] for entry in admin.audit(topic="quiet") if "topic" in entry}
    assert {"create", "pause", "alarm"} <= actions


def make_reborn(broker: Broker) -> Facts:
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        for topic in ("reborn", "ended", "gone#ephemeral"):
            producer.publish_many(topic, [b"x"] * 7)
        for topic in ("reborn", "ended"):
            admin.delete_topic(topic, force=True)
    with zsq.Producer(broker.ipc) as producer:
        assert producer.publish("reborn", b"first").offset == 7
    return None


def check_reborn(broker: Broker, facts: Facts) -> None:
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        assert not {"ended", "gone#ephemeral"} & set(admin.topics())
        assert admin.ended("ended") == 7
        assert producer.publish("ended", b"first").offset == 7
    with zsq.Reader("reborn", url=broker.ipc) as reader:
        assert reader.bounds() == (7, 8)
        assert reader.message(7).body == b"first"


def make_parts(broker: Broker) -> Facts:
    keys = [b"%d" % number for number in range(20)]
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_topic("parts", parts=3)
        admin.create_channel("parts", "work")
        places = producer.publish_many("parts", keys, keys=keys).places
    return sorted([part, count] for part, _, count in places)


def check_parts(broker: Broker, facts: Facts) -> None:
    found: dict[int | None, int] = {}
    with zsq.Consumer("parts", "work", url=broker.ipc) as consumer:
        for message in received(consumer, 20):
            assert message.body == message.key
            found[message.part] = found.get(message.part, 0) + 1
            message.finish()
        consumer.flush()
    counts = {
        part: sum(row[1] for row in rows) for part, rows in groupby(facts, lambda row: row[0])
    }
    assert found == counts


def make_schedules(broker: Broker) -> Facts:
    with zsq.Admin(broker.ipc) as admin:
        admin.create_topic("schedules")
        admin.schedule_add(
            "schedules",
            "rare",
            "0 0 29 2 *",
            b"leap",
            key="k",
            headers={"n": 1},
            timezone="Europe/Berlin",
            missed="all",
        )
        admin.schedule_add("schedules", "paused", "0 0 29 2 *", b"x", unique="while-working")
        wait_for(lambda: all(row["state"] == "waiting" for row in admin.schedule_list("schedules")))
        admin.schedule_pause("schedules", "paused")
        admin.schedule_run("schedules", "rare")
    return _schedules(broker)


def _schedules(broker: Broker) -> list[list[object]]:
    names = (
        "name",
        "cron",
        "timezone",
        "missed",
        "unique",
        "state",
        "next_due_ns",
        "last_due_ns",
        "body_bytes",
    )
    with zsq.Admin(broker.ipc) as admin:
        rows = [dict(row) for row in admin.schedule_list("schedules")]
    return [[row[name] for name in names] for row in rows]


def check_schedules(broker: Broker, facts: Facts) -> None:
    wait_for(lambda: _schedules(broker) == facts, what="the schedules as they were")
    assert bodies_of(broker, "schedules") == [b"leap"]


def make_access(broker: Broker) -> Facts:
    return None


def check_access(broker: Broker, facts: Facts) -> None:
    """The file names a user with this token, who may view all topics."""
    url = f"http://127.0.0.1:{broker.http}/stats?format=json"

    def shown(**headers: str) -> set[str]:
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return {row["topic_name"] for row in json.load(answer)["topics"]}

    assert "log" not in shown()
    assert {"log", "quiet"} <= shown(Authorization=f"Bearer {TOKEN}")


SUBJECTS: Final = tuple(
    Subject(name, make, check, name == "adopted")
    for name, make, check in (
        ("log", make_log, check_log),
        ("ordered", make_ordered, check_ordered),
        ("urgent", make_urgent, check_urgent),
        ("fair", make_fair, check_fair),
        ("limited", make_limited, check_limited),
        ("put-off", make_put_off, check_put_off),
        ("dead", make_dead, check_dead),
        ("sought", make_sought, check_sought),
        ("delayed", make_delayed, check_delayed),
        ("ids", make_ids, check_ids),
        ("unique", make_unique, check_unique),
        ("revoked", make_revoked, check_revoked),
        ("expiring", make_expiring, check_expiring),
        ("producers", make_producers, check_producers),
        ("staged", make_staged, check_staged),
        ("adopted", make_adopted, check_adopted),
        ("quiet", make_quiet, check_quiet),
        ("reborn", make_reborn, check_reborn),
        ("parts", make_parts, check_parts),
        ("schedules", make_schedules, check_schedules),
        ("access", make_access, check_access),
    )
)
