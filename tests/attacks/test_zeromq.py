"""Tests of attacks through the ZeroMQ gateway, and with orders that all gateways accept: a client
with some permissions tries to get data that it may not have, or to use up resources.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from support.broker import Broker, kill, wait_for
from support.keys import Keyring

import zsq
from zsq.actors.security.access import token_hash
from zsq.transport.block.block import pack
from zsq.transport.client.blocking.stage_writer import StageCommitter, StagePart, StageWriter
from zsq.transport.client.core.administration import seek
from zsq.transport.wire import protocol as p
from zsq.transport.wire.answers import Committed
from zsq.transport.wire.codec import encode

pytestmark = pytest.mark.slow

MIB = 1024 * 1024
USERS = ("owner", "admin", "mallory", "etl", "rival", "crowd", "nurse")
ACCESS = f"""
[users.owner]
curve = ["KEY owner"]
tokens = ["{token_hash("owner")}"]
publish = ["*"]
subscribe = ["*"]
admin = ["*"]

[users.admin]
curve = ["KEY admin"]
tokens = ["{token_hash("admin")}"]
admin = ["*"]

[users.mallory]
curve = ["KEY mallory"]
tokens = ["{token_hash("mallory")}"]
admin = ["secret*", "mallory.*"]
publish = ["mallory.*", "orders.audit.dead"]
subscribe = ["mallory.*"]

[users.etl]
curve = ["KEY etl"]
publish = ["rows*"]

[users.rival]
curve = ["KEY rival"]
publish = ["rows*"]

[users.nurse]
curve = ["KEY nurse"]
publish = ["ward.well"]
subscribe = ["ward.dead/redrive"]

[users.crowd]
curve = ["KEY crowd"]
tokens = ["{token_hash("crowd")}"]
publish = ["crowd.*"]
subscribe = ["crowd.*"]
create = ["crowd.mine.*", "crowd.shared/own-*"]
"""


@pytest.fixture(scope="module")
def keyring(tmp_path_factory: pytest.TempPathFactory) -> Keyring:
    made = Keyring(tmp_path_factory.mktemp("keys"), USERS)
    made.allow(ACCESS)
    return made


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, keyring: Keyring) -> Iterator[Broker]:
    with Broker(
        tmp_path_factory.mktemp("broker") / "data", *keyring.options(), http=True, nsq=True
    ) as broker:
        yield broker


class As:
    """The actions of one user, over ZeroMQ and over HTTP."""

    def __init__(self, broker: Broker, keyring: Keyring, user: str) -> None:
        self.broker, self.user, self.keys = broker, user, keyring.of(user)
        self.key_file = str(keyring.file(user))

    def admin(self) -> zsq.Admin:
        return zsq.Admin(self.broker.tcp, key_file=self.keys, timeout=20)

    def producer(self) -> zsq.Producer:
        return zsq.Producer(self.broker.tcp, key_file=self.keys, timeout=20)

    def consumer(self, topic: str, channel: str, **settings: Any) -> zsq.Consumer:
        return zsq.Consumer(
            topic, channel, url=self.broker.tcp, key_file=self.keys, timeout=20, **settings
        )

    def post(self, path: str, **options: Any) -> tuple[int, str]:
        """Send a POST request and return the status and the body."""
        head = {"authorization": f"Bearer {self.user}", "content-type": "application/json"}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.broker.http}{path}", json.dumps(options).encode(), head
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def redrive(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        line = [
            sys.executable,
            "-m",
            "zsq",
            "--url",
            self.broker.tcp,
            "--key-file",
            self.key_file,
            "redrive",
            *arguments,
        ]
        return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def owner(broker: Broker, keyring: Keyring) -> As:
    return As(broker, keyring, "owner")


@pytest.fixture
def mallory(broker: Broker, keyring: Keyring) -> As:
    return As(broker, keyring, "mallory")


def die(who: As, topic: str, channel: str, *bodies: bytes, dead: str = "") -> None:
    """Make these messages dead letters of the channel, stored durably in their topic."""
    with who.admin() as admin:
        admin.create_channel(topic, channel, dead_letter_topic=dead or None)
    with who.producer() as producer:
        producer.publish_many(topic, bodies)
    with who.consumer(topic, channel) as consumer:
        for _ in bodies:
            message = consumer.receive(10)
            assert message is not None
            message.reject("why")
        consumer.flush()
    with who.admin() as admin:
        wait_for(
            lambda: stats(admin, topic, channel)["dead_letter_count"] == len(bodies),
            20,
            "dead letters",
        )


def stats(admin: zsq.Admin, topic: str, channel: str = "") -> dict[str, Any]:
    row: dict[str, Any] = admin.stats(topic)["topics"][0]
    return (
        row
        if not channel
        else next(one for one in row["channels"] if one["channel_name"] == channel)
    )


def end(who: As, topic: str) -> int:
    """Return how many messages were ever in the topic, or 0 if it does not exist."""
    try:
        with zsq.Reader(topic, url=who.broker.ipc) as reader:
            return reader.bounds()[1]
    except zsq.NotFound:
        return 0


# Orders that copy bodies


def test_the_admin_of_a_topic_does_not_read_it_through_dead_letters(owner: As, mallory: As) -> None:
    with owner.admin() as admin:
        admin.create_channel("secret", "billing")
    with mallory.admin() as admin:
        with pytest.raises(zsq.Refused, match=r"E_FORBIDDEN .*subscribe"):
            admin.configure_channel(
                "secret", "billing", dead_letter_topic="mallory.loot", max_attempts=1
            )
        with pytest.raises(zsq.Refused, match=r"E_FORBIDDEN .*subscribe"):
            admin.create_channel("secret", "mine", dead_letter_topic="mallory.loot", max_attempts=1)
    path = "/api/channel/configure?topic=secret&channel=billing"
    assert mallory.post(path, dead_letter_topic="mallory.loot")[0] == 403
    assert (
        mallory.post(
            "/api/channel/create?topic=secret&channel=mine", dead_letter_topic="mallory.loot"
        )[0]
        == 403
    )
    with owner.admin() as admin:
        assert stats(admin, "secret", "billing")["settings"]["dead_letter_topic"] == ""


def test_the_admin_of_a_topic_does_not_read_it_through_a_redrive(owner: As, mallory: As) -> None:
    die(owner, "secret.a", "c", b"the plan", dead="secret.dead")
    with owner.admin() as admin:
        admin.create_topic("mallory.loot")
    assert mallory.post("/api/redrive?topic=secret.dead", to="mallory.loot")[0] == 403
    assert mallory.post("/api/redrive?topic=secret.dead")[0] == 403
    done = mallory.redrive("secret.dead", "--all", "--to", "mallory.loot")
    assert (done.returncode, "E_FORBIDDEN" in done.stderr) == (1, True), done.stderr
    with mallory.admin() as admin, pytest.raises(zsq.Refused, match="E_FORBIDDEN"):
        admin.redrive_to(
            "secret.dead", "mallory.loot", None, ("secret.a", "0" * 32, "c"), chosen=True
        )
    assert end(owner, "mallory.loot") == 0


def test_a_redrive_is_in_the_audit_log_with_its_target(owner: As) -> None:
    die(owner, "noted", "c", b"a", b"b")
    with owner.admin() as admin:
        admin.create_channel("noted.copy", "x")
    assert (
        owner.redrive("noted.c.dead", "-n", "1", "--to", "noted.copy").stdout == "1 to noted.copy\n"
    )
    assert owner.post("/api/redrive?topic=noted.c.dead", count=1)[0] == 200
    with owner.admin() as admin:
        wait_for(lambda: end(owner, "noted") == 3, 20, "the second letter")
        lines = [
            line
            for line in admin.audit(count=200)
            if line["action"] == "redrive" and line["topic"] == "noted.c.dead"
        ]
    told = [
        (
            line["options"]["to"],
            line["options"].get("to_channel", ""),
            line["user"],
            line["via"],
            line["result"],
        )
        for line in reversed(lines)
    ]
    assert told == [
        ("noted.copy", "", "owner", "zeromq", "done"),
        ("noted", "c", "owner", "http", "done"),
    ]


def test_a_redrive_needs_the_right_to_consume_and_to_publish(
    broker: Broker, keyring: Keyring, owner: As
) -> None:
    die(owner, "ward", "c", b"a", b"b", dead="ward.dead")
    with owner.admin() as admin:
        admin.create_topic("ward.well")
    nurse = As(broker, keyring, "nurse")
    done = nurse.redrive("ward.dead", "--all", "--to", "ward.well")
    assert (done.returncode, done.stdout) == (0, "2 to ward.well\n"), done.stderr
    with owner.admin() as admin:
        admin.create_topic("ward.other")
    done = nurse.redrive("ward.dead", "--all", "--to", "ward.other")
    assert end(owner, "ward.other") == 0


# Headers that try to misdirect dead letters


def forged(topic: str, uuid: str, channel: str) -> dict[str, Any]:
    return {
        "zsq-dead-topic": topic,
        "zsq-dead-uuid": uuid,
        "zsq-dead-channel": channel,
        "zsq-dead-offset": 0,
        "zsq-dead-reason": "rejected",
    }


def test_forged_dead_letters_are_not_sent_where_their_headers_say(owner: As, mallory: As) -> None:
    die(owner, "orders", "audit", b"real")
    with owner.admin() as admin:
        admin.create_channel("payments", "book")
        uuids = {name: stats(admin, name)["uuid"] for name in ("orders", "payments")}
    with mallory.producer() as producer:
        for headers in (
            # A channel whose dead letters go elsewhere.
            forged("payments", uuids["payments"], "book"),
            # The right uuid and channel, but another topic.
            forged("payments", uuids["orders"], "audit"),
            forged("payments", uuids["payments"], "none"),  # a channel that does not exist
            forged("orders", "0" * 32, "audit"),  # the uuid of an earlier topic of that name
            {"zsq-dead-topic": "payments", "zsq-dead-channel": "book"},  # the uuid is missing
        ):
            producer.publish("orders.audit.dead", b"forged", headers=headers)
    done = owner.redrive("orders.audit.dead", "--all")
    assert (done.returncode, done.stdout.splitlines()[0]) == (
        1,
        "1 to orders, for channel audit",
    ), done.stderr
    assert (end(owner, "payments"), end(owner, "orders")) == (0, 2)
    assert "their origin cannot be verified; choose the target with --to" in done.stdout


def test_two_channels_with_one_default_name_do_not_share_their_dead_letters(owner: As) -> None:
    """Channel `x` of topic `eu.orders` and channel `orders.x` of topic `eu` have the same default
    name for their dead-letter topic.
    """
    die(owner, "eu.orders", "x", b"private")
    with owner.admin() as admin:
        with pytest.raises(
            zsq.Refused,
            match=r"E_IN_USE .*'eu\.orders\.x\.dead' already takes the dead letters of channel 'x' "
            r"of topic 'eu\.orders'",
        ):
            admin.create_channel("eu", "orders.x", max_attempts=3)
        admin.create_channel("eu", "orders.x")
        with pytest.raises(zsq.Refused, match=r"E_IN_USE .*set dead_letter_topic"):
            admin.configure_channel("eu", "orders.x", max_attempts=3)
        with owner.producer() as producer:
            producer.publish("eu", b"intruder")
        with owner.consumer("eu", "orders.x") as consumer:
            message = consumer.receive(10)
            assert message is not None
            message.reject("why")
            consumer.flush()
            wait_for(
                lambda: "E_IN_USE" in stats(admin, "eu", "orders.x")["health"],
                20,
                "the refusal at sending",
            )
            assert end(owner, "eu.orders.x.dead") == 1
            admin.configure_channel(
                "eu", "orders.x", dead_letter_topic="eu.orders-x.dead", max_attempts=3
            )
            wait_for(
                lambda: end(owner, "eu.orders-x.dead") == 1,
                20,
                "the letter where it was told to go",
            )
        admin.delete_topic("eu.orders", force=True)
        # The owner of the dead-letter topic with the default name no longer exists.
        admin.configure_channel("eu", "orders.x", dead_letter_topic=None)


def test_the_owner_of_dead_letters_is_known_after_a_restart(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", "--no-listen") as one:
        with zsq.Admin(one.ipc) as admin, zsq.Producer(one.ipc) as producer:
            admin.create_channel("eu.orders", "x")
            producer.publish("eu.orders", b"a")
            with zsq.Consumer("eu.orders", "x", url=one.ipc) as consumer:
                message = consumer.receive(10)
                assert message is not None
                message.reject("why")
                consumer.flush()
            wait_for(
                lambda: stats(admin, "eu.orders", "x")["dead_letter_count"] == 1,
                20,
                "the dead letter",
            )
        assert one.stop() == 0
        one.start()
        with zsq.Admin(one.ipc) as admin, pytest.raises(zsq.Refused, match="E_IN_USE"):
            admin.create_channel("eu", "orders.x", max_attempts=3)


# Transactions and stages


def staged(who: As, app: str, version: int, *bodies: bytes, topic: str = "rows") -> StagePart:
    with StageWriter(
        topic, app, version, url=who.broker.tcp, timeout=20, key_file=who.keys
    ) as writer:
        writer.push(pack(bodies))
        part = writer.seal()
    assert part is not None
    return part


def commit(who: As, app: str, version: int, parts: list[StagePart]) -> Committed:
    with StageCommitter("rows", url=who.broker.tcp, timeout=20, key_file=who.keys) as committer:
        return committer.commit(app, version, parts)


def test_the_transactions_of_an_app_belong_to_the_user_who_committed_first(
    broker: Broker, keyring: Keyring
) -> None:
    etl, rival = As(broker, keyring, "etl"), As(broker, keyring, "rival")
    assert commit(etl, "nightly-etl", 1, [staged(etl, "nightly-etl", 1, b"a")])["repeated"] is False
    with pytest.raises(zsq.Refused, match=r"E_FORBIDDEN .*'nightly-etl'.*another user"):
        commit(rival, "nightly-etl", (1 << 63) - 1, [])
    with pytest.raises(zsq.Refused, match="E_FORBIDDEN"):
        staged(rival, "nightly-etl", 2, b"x")
    found = commit(etl, "nightly-etl", 2, [staged(etl, "nightly-etl", 2, b"b")])
    assert (found["repeated"], found["messages"]) == (False, 1)
    with (
        pytest.raises(zsq.Refused, match="E_FORBIDDEN"),
        StageCommitter("rows", url=broker.tcp, key_file=rival.keys) as committer,
    ):
        committer.abort("nightly-etl", 2)


def test_stages_of_another_user_are_neither_committed_nor_dropped(
    broker: Broker, keyring: Keyring
) -> None:
    """The app does not belong to any user yet. The rival commits it first. The victim then gets an
    error and does not lose its rows.
    """
    etl, rival = As(broker, keyring, "etl"), As(broker, keyring, "rival")
    part = staged(etl, "fresh", 1, b"a", b"b")
    with pytest.raises(
        zsq.Refused, match=rf"E_FORBIDDEN stage {part[0].hex()} belongs to user 'etl'"
    ):
        commit(rival, "fresh", 1, [part])
    with StageCommitter("rows", url=broker.tcp, timeout=20, key_file=rival.keys) as committer:
        with pytest.raises(
            zsq.Refused, match=rf"E_FORBIDDEN stage {part[0].hex()} belongs to user 'etl'"
        ):
            committer.abort("", 0, [part[0]])
        assert committer.abort("fresh", 1)["dropped"] == 0, "only one's own"
    assert commit(etl, "fresh", 1, [part])["messages"] == 2
    second = staged(etl, "squatted", 1, b"c")
    assert commit(rival, "squatted", (1 << 63) - 1, [])["repeated"] is False
    # The answer must not be `repeated`, because the writer would then drop its rows, and they would
    # be lost.
    with pytest.raises(zsq.Refused, match="E_FORBIDDEN"):
        commit(etl, "squatted", 1, [second])


def test_the_owner_of_a_transaction_is_known_after_a_crash(
    tmp_path: Path, keyring: Keyring
) -> None:
    """The owner of a transaction is read from the mark in the log if the state was not committed
    yet. The owner of a stage is read from its row.
    """
    with Broker(tmp_path / "data", *keyring.options()) as one:
        etl, rival = As(one, keyring, "etl"), As(one, keyring, "rival")
        part = staged(etl, "kept", 1, b"a")
        commit(etl, "app", 1, [staged(etl, "app", 1, b"a")])
        assert one.process is not None
        pids = [actor["pid"] for actor in one.actors()]
        kill(one.process.pid)
        one.process.wait(20)
        one.wait_gone(pids)
        one.start()
        with pytest.raises(zsq.Refused, match="E_FORBIDDEN"):
            commit(rival, "app", 9, [])
        with pytest.raises(zsq.Refused, match="E_FORBIDDEN"):
            commit(rival, "kept", 1, [part])
        assert commit(etl, "kept", 1, [part])["messages"] == 1


# Quotas


def test_staged_rows_count_for_the_bound_of_their_topic(
    owner: As, broker: Broker, keyring: Keyring
) -> None:
    """The writer pushes 16 MiB, and at most the 8 MiB of the topic's bound are on disk. The writer
    gets the reason, and the rows that fit can be committed.
    """
    etl = As(broker, keyring, "etl")
    with owner.admin() as admin:
        admin.create_topic("rows.bound", max_bytes=8 * MIB, when_full="reject")
    with StageWriter(
        "rows.bound", "app", 1, url=broker.tcp, timeout=2, key_file=etl.keys
    ) as writer:
        for _ in range(64):
            writer.push(pack([bytes(MIB // 4)]))
        with pytest.raises(zsq.Refused, match=r"E_TOPIC_FULL .*are staged"):
            writer.seal()
        with owner.admin() as admin:
            wait_for(lambda: stats(admin, "rows.bound")["staged_bytes"] > 7 * MIB)
            assert stats(admin, "rows.bound")["staged_bytes"] <= 8 * MIB
    part = staged(etl, "app", 2, b"small", topic="rows.bound")
    with StageCommitter("rows.bound", url=broker.tcp, timeout=20, key_file=etl.keys) as committer:
        assert committer.commit("app", 2, [part])["messages"] == 1


def test_first_use_makes_only_what_the_user_may_create(
    owner: As, broker: Broker, keyring: Keyring
) -> None:
    crowd = As(broker, keyring, "crowd")
    with owner.admin() as admin:
        admin.create_channel("crowd.shared", "there")
    with crowd.producer() as producer:
        producer.publish("crowd.mine.a", b"x")
        producer.publish("crowd.shared", b"x")
        with pytest.raises(
            zsq.Refused, match=r"E_FORBIDDEN .*'crowd\.other' does not exist.* needs create"
        ):
            producer.publish("crowd.other", b"x")
    for topic, channel in (
        ("crowd.mine.b", "c"),
        ("crowd.shared", "own-1"),
        ("crowd.shared", "there"),
    ):
        with crowd.consumer(topic, channel) as consumer:
            consumer.receive(0.2)
    for topic, channel in (
        ("crowd.other", "c"),
        ("crowd.other", "own-1"),
        ("crowd.shared", "mine"),
    ):
        consumer = crowd.consumer(topic, channel)
        with pytest.raises(zsq.Refused, match=r"E_FORBIDDEN .*needs create"):
            consumer.subscribe()
        consumer.close()
    assert crowd.post("/pub?topic=crowd.other")[0] == 403
    assert crowd.post("/pub?topic=crowd.shared")[0] == 200
    assert crowd.post("/pub?topic=crowd.mine.a")[0] == 200
    for command, code in (
        (b"PUB crowd.other\n\x00\x00\x00\x01x", b"E_UNAUTHORIZED"),
        (b"SUB crowd.shared mine\n", b"E_UNAUTHORIZED"),
        (b"PUB crowd.shared\n\x00\x00\x00\x01x", b"OK"),
        (b"SUB crowd.shared own-1\n", b"OK"),
    ):
        with socket.create_connection(("127.0.0.1", broker.nsq), timeout=10) as nsq:
            nsq.sendall(b"  V2AUTH\n\x00\x00\x00\x05crowd" + command)
            answer = b""
            while code not in answer and (piece := nsq.recv(4096)):
                answer += piece
            assert code in answer, (command, answer)
    with owner.admin() as admin:
        found = {
            name: channels for name, channels in admin.topics().items() if name.startswith("crowd.")
        }
    assert found == {"crowd.mine.a": [], "crowd.mine.b": ["c"], "crowd.shared": ["own-1", "there"]}


def test_processes_are_bounded_and_what_is_there_goes_on(tmp_path: Path) -> None:
    """One client creates topics as fast as it can, until the limit refuses them. A publisher that
    was there before is not disturbed.
    """
    limits = ("--own-process", "always", "--processes-max", "24")
    with Broker(tmp_path / "data", "--no-listen", *limits) as one:
        with zsq.Admin(one.ipc, timeout=20) as admin, zsq.Producer(one.ipc, timeout=20) as honest:
            honest.publish("honest", b"a")
            made, refusal = until_refused(lambda number: admin.create_topic(f"evil.{number}"))
            assert 8 <= made < 20
            assert re.match(
                r"E_LIMIT no room for topic .* at most 24 processes .* raise --processes-max",
                str(refusal),
            )
            _, refusal = until_refused(lambda number: admin.create_channel("evil.0", f"c{number}"))
            assert str(refusal).startswith("E_LIMIT no room for channel")
            honest.publish("honest", b"b")
            assert len(one.actors()) <= 24 + 3, "with the supervisor and the forkserver"
        assert one.stop() == 0
        one.extra = ("--no-nsq", "--no-http", "--no-listen", "--processes-max", "16")
        one.start()  # existing topics start whatever the limit is
        assert end_of(one, "honest") == 2


def until_refused(order: Callable[[int], object]) -> tuple[int, zsq.Refused]:
    """Carry out orders until one is refused. Return how many were carried out, and the refusal."""
    for number in range(100):
        try:
            order(number)
        except zsq.Refused as error:
            return number, error
    raise AssertionError("never refused")


def end_of(broker: Broker, topic: str) -> int:
    with zsq.Reader(topic, url=broker.ipc, patient=True) as reader:
        return reader.bounds()[1]


def test_delayed_messages_stop_at_the_bound_of_their_topic(owner: As) -> None:
    """Delayed messages are in a separate store until they are due, but they count toward
    `max_bytes`. Other clients publish as before.
    """
    with owner.admin() as admin, owner.producer() as producer:
        admin.create_topic("later", max_bytes=8 * MIB, when_full="reject")
        with zsq.Producer(owner.broker.tcp, key_file=owner.keys, timeout=20) as attacker:
            accepted, refusal = until_refused(
                lambda number: attacker.publish("later", bytes(MIB // 2), delay=3600)
            )
        assert re.match(r"E_TOPIC_FULL .*are delayed", str(refusal))
        assert accepted <= 18, "8 MiB and one append more"
        assert disk_bytes(owner.broker.data_dir) < 64 * MIB
        producer.publish("beside", b"x")
        assert admin.delayed_cancel_all("later") == accepted
        wait_for(lambda: taken(producer, "later"), 20, "room again")


def taken(producer: zsq.Producer, topic: str) -> bool:
    try:
        producer.publish(topic, b"x")
    except zsq.Refused:
        return False
    return True


def disk_bytes(folder: Path) -> int:
    """Return the disk space that the files use. The store's file is sparse."""
    return sum(
        512 * one.stat().st_blocks for one in (folder / "topics").rglob("*") if one.is_file()
    )


class RawLink:
    """A link of a user, on which a test sends what it wants and reads no answer."""

    def __init__(self, who: As) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.curve_publickey = who.keys.public.encode()
        self.socket.curve_secretkey = who.keys.secret.encode()
        self.socket.curve_serverkey = who.keys.server.encode()
        self.socket.setsockopt(zmq.SNDHWM, 200_000)
        self.socket.connect(who.broker.tcp)

    def send(self, message: p.Wire) -> None:
        self.socket.send_multipart([b"", encode(message)])

    def flood(self, make: Callable[[int], p.Wire], duration_s: float) -> int:
        """Send messages as fast as possible. Return how many."""
        sent, end_s = 0, time.monotonic() + duration_s
        while time.monotonic() < end_s:
            sent += 1
            self.send(make(sent))
        return sent

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("statistics of everything", lambda number: p.Stats(number, "", "")),
        ("lists of topics", lambda number: p.Manage(number, "list", "", "", {})),
        ("opening links", lambda number: p.Open(number, "topic", "crowd.mine.a", "", True)),
    ],
)
def test_a_flood_of_requests_of_one_user_leaves_the_others_served(
    broker: Broker, keyring: Keyring, owner: As, name: str, make: Callable[[int], p.Wire]
) -> None:
    """A user who may publish to some topics sends requests for 3 s, and reads no answer."""
    with owner.producer() as producer:
        for number in range(20):
            producer.publish(f"busy.{number}", b"x")
    link, delays = RawLink(As(broker, keyring, "crowd")), []
    try:
        link.send(p.Open(1, "supervisor", "", "", False))
        sent = link.flood(make, 3.0)
        for _ in range(5):  # while the answers are still missing
            begun_s = time.monotonic()
            with owner.admin() as admin:
                admin.stats()
                admin.create_channel("busy.0", "c")
            delays.append(time.monotonic() - begun_s)
    finally:
        link.close()
    print(f"{name}: {sent} requests; the administration waits {max(delays):.2f} s at most")
    assert max(delays) < 5.0


def test_a_storm_of_seeks_leaves_the_others_served(owner: As) -> None:
    """Two clients move a channel some thousand times a second. Other clients publish to the same
    topic and consume from another channel.
    """
    with owner.admin() as admin:
        for channel in ("moved", "honest"):
            admin.create_channel("stormy", channel)
    over, seeks, delays = threading.Event(), [0] * 2, []

    def storm(number: int) -> None:
        with owner.admin() as admin:
            while not over.is_set():  # the next orders are sent before these are answered
                moves = [
                    next(
                        seek(
                            "stormy",
                            "moved",
                            "earliest" if one % 2 else "latest",
                            forward=False,
                            clamp=False,
                        )
                    )
                    for one in range(500)
                ]
                for request in [admin._send(move) for move in moves]:
                    admin._reply(request)
                    seeks[number] += 1

    with owner.producer() as producer, owner.consumer("stormy", "honest") as consumer:
        producer.publish_many("stormy", [b"before"] * 1000)
        for _ in range(1000):
            message = consumer.receive(20)
            assert message is not None
            message.finish()
        threads = [threading.Thread(target=storm, args=(number,)) for number in range(2)]
        try:
            for thread in threads:
                thread.start()
            wait_for(lambda: all(seeks), 20, "the storm")
            for number in range(200):
                begun = time.monotonic()
                producer.publish("stormy", b"%d" % number)
                message = consumer.receive(20)
                delays.append(time.monotonic() - begun)
                assert message is not None
                assert message.body == b"%d" % number
                message.finish()
        finally:
            over.set()
            for thread in threads:
                thread.join(30)
    delays.sort()
    memory = {
        actor["name"]: actor["private_bytes"] // MIB
        for actor in owner.broker.actors()
        if actor["kind"] in ("supervisor", "gateway")
    }
    told = (
        f"publish to receipt: median {delays[100] * 1000:.1f} ms, 99% {delays[198] * 1000:.1f} "
        f"ms; MiB: {memory}"
    )
    print(f"{sum(seeks)} seeks in {sum(delays):.1f} s; {told}")
    assert max(memory.values()) < 128
    assert delays[100] < 0.25
    assert delays[198] < 2.0
